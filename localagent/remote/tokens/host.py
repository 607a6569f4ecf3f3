"""The `protocol.Host` of a model whose tokens a server draws.

Prompts are rendered and tokenized here, and ids come back: parser, stop strings, control tokens and messages
are the same as for a model on this machine. What the server may do otherwise is draw: its arithmetic and its
random numbers are its own. A request is sent again only while nothing has come of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from typing import Self, cast

from localagent.errors import Unsupported, UsageError
from localagent.hosts.generation import Cuts, GenerationState
from localagent.hosts.prefix import Transcripts
from localagent.hosts.prompting import Prompting, PromptingHost
from localagent.hosts.protocol import CancelFlag, Constraint, Form, NoEngine, PassedOn
from localagent.hosts.sampling import Sampling
from localagent.prompt.segments import Prompt
from localagent.remote.server import Server
from localagent.remote.tokens.apis import Api, Asked
from localagent.remote.tokens.generation import RemoteGeneration
from localagent.remote.tokens.vocabulary import ModelFiles, TokenFinder

_NO_CUTS = Cuts(None, None)


class TokenHost(PromptingHost, NoEngine):
    """A model on a server of tokens. Make it with `remote.tokens.opening.open_host`."""

    def __init__(
        self,
        server: Server,
        make_api: Callable[[], Api],
        files: ModelFiles,
        *,
        name: str,
        model: str | None,
        context: int,
        lanes: int = 1,
        takes: Callable[[Sequence[int]], Collection[Form]] = lambda ids: (),
    ) -> None:
        """`make_api`: an `Api` for each generation. `model`: what the server calls it. `takes`: the forms in
        which it can be told to hold something, found out with a prompt that it is about to be asked for.
        """
        self.server = server
        self.name = name
        self.context = context
        self.lanes = lanes
        self.architecture = files.architecture
        self.special_tokens = frozenset(files.vocabulary.special.values())
        self._make_api = make_api
        self._model = model
        self._takes = takes
        self._taken: Collection[Form] | None = None
        self.pieces = files.vocabulary
        """The model's vocabulary, by which what comes back is read."""
        self._ends = _ends(files)
        self._spelling = TokenFinder(files.vocabulary)
        self._prompting = Prompting(
            files.chat_template, files.vocabulary, context, Transcripts(self.special_tokens), nullcontext
        )

    elsewhere = True
    """A server draws: it is told what to hold, if it `takes` that."""
    engine = ""

    @property
    def vocabulary(self) -> None:
        """None: tokens are drawn elsewhere, so no mask can bound them."""
        return

    def takes(self, prompt: Prompt) -> Collection[Form]:
        """In what the server can be told to hold something. It may be asked, once, with this prompt.

        Raises ServerUnreachable, ServerRefused, StreamBroken, ContextOverflow.
        """
        if self._taken is None:
            self._taken = self._takes(prompt.ids)
        return self._taken

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """The bytes that `ids` spell, special tokens included. Raises UsageError for an unknown id."""
        try:
            return b"".join(self.token_bytes(ids))
        except IndexError as error:
            raise UsageError(str(error)) from error

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each of `ids`."""
        return [self.pieces.piece(token).data for token in ids]

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling,
        cancel: CancelFlag | None = None,
        constraint: Constraint | PassedOn | None = None,
    ) -> RemoteGeneration:
        """A generation; the server is asked when its first step is. Raises UsageError, ContextOverflow."""
        passed = cast("PassedOn | None", constraint)
        if passed is not None and getattr(passed, "form", None) is None:
            raise Unsupported(f"{self.server.url} draws the tokens, which no mask can bound from here")
        if sampling.logit_bias:
            raise Unsupported(f"{self.server.url} draws the tokens, and is not told of a logit_bias")
        self.check(prompt)
        ids = prompt.ids
        state = GenerationState(ids, sampling, self.pieces, self.context, _NO_CUTS)
        asked = Asked(
            ids,
            sampling,
            state.most,
            self._ends,
            self._model,
            f"localagent-{secrets.token_hex(8)}",
            passed.form if passed else None,
            passed.said if passed else None,
        )
        return RemoteGeneration(
            self.server,
            self._make_api,
            asked,
            state,
            self._spelling,
            cancel,
            self._prompting.recorder(prompt),
            passed,
        )

    def close(self) -> None:
        """Nothing to free: connections last for one generation."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ends(files: ModelFiles) -> tuple[int, ...]:
    """The ids that end a turn: servers are told, since some know only one of them."""
    vocabulary = files.vocabulary
    return tuple(token for token in sorted(vocabulary.special) if vocabulary.piece(token).end)
