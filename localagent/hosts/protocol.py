"""The interface of a model host: messages in, tokens out.

A host loads one set of weights, renders conversations to token ids, and generates tokens one by one with
their exact text. It does not parse what it generates.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal, Protocol, Self

from localagent.errors import Unsupported
from localagent.hosts.sampling import Sampling
from localagent.messages.usage import Timings
from localagent.prompt.rendering import Renderer
from localagent.prompt.segments import Prompt, Raw

POLL = 0.05
"""Seconds between two looks at whether the run was cancelled."""

StopReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token. `text` is the text that it completes: a UTF-8 character split over tokens comes
    with its last byte, so `text` may be empty. Special tokens appear as their text.

    `end` is True for an end-of-generation token, which is always the last one. `logprobs` is None unless
    `Sampling.logprobs` asked for them.
    """

    id: int
    text: str
    special: bool
    end: bool = False
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logarithms of the model's own probabilities, before penalties, temperature and truncation.

    `token`: the chosen token's; `top`: the likeliest ids with theirs, the likeliest first.
    """

    token: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Queued:
    """The generation waits: `place` generations begin before it runs, itself included, so 1 is next."""

    place: int


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Progress of the prefill: `done` of `total` prompt tokens are evaluated, `cached` of them reused."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class Finish:
    """How a generation ended. Counts are tokens; `prompt` includes the reused `cached` ones.

    `stop`: the stop string that ended it, if one did.
    """

    stop_reason: StopReason
    prompt: int
    cached: int
    generated: int
    timings: Timings = field(default_factory=Timings)
    stop: str | None = None

    @property
    def prefilled(self) -> int:
        """The prompt tokens that had to be evaluated."""
        return self.prompt - self.cached


Step = Queued | Prefilled | Token
"""What a generation gives: its place while it waits, the progress of the prefill, then the tokens."""


class CancelFlag(Protocol):
    """A `threading.Event`, an `asyncio.Event`, or anything else with this method.

    It is asked before every token, and a few times a second while none is drawn, on the host's owner thread,
    and never waited for.
    """

    def is_set(self) -> bool:
        """Whether the generation is to end."""


class Cancelled(Exception):
    """What was waited for was given up, since its flag was set."""


class Cancel(threading.Event):
    """An event that is set when it is set itself, or when one of `others` is."""

    def __init__(self, *others: CancelFlag | None) -> None:
        super().__init__()
        self._others = [other for other in others if other is not None]

    def is_set(self) -> bool:
        """Whether anybody has cancelled."""
        return super().is_set() or any(other.is_set() for other in self._others)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until anybody cancels, at most `timeout` seconds; whether somebody has."""
        end = None if timeout is None else monotonic() + timeout
        while not self.is_set():
            left = POLL if end is None else min(POLL, end - monotonic())
            if left <= 0:
                return False
            super().wait(left)
        return True


class Constraint(Protocol):
    """What bounds the tokens of one generation. It is called on the host's owner thread only.

    Before a token the host may ask for `forced`, and for the `mask`; then it tells every token that came,
    drawn or forced, in order. The token that ends the generation is not told. Both questions may be asked
    more than once, or not at all. What an exception in here ends is that generation, with ConstraintFailed.
    """

    def forced(self) -> Sequence[int]:
        """The tokens that come next whatever the model thinks of them; none where there is a choice."""

    def mask(self) -> Any | None:
        """numpy uint32 [ceil(vocabulary size / 32)]: bit `id % 32` of word `id // 32` is set for every token
        that may come next (llguidance's layout). None where any may.

        It holds where tokens are `forced`, too: a host may rather draw them one by one.
        """

    def otherwise(self) -> int | None:
        """What comes where the model would choose a token that is not in the mask: this token, which is in
        it and ends the turn. None: of those in the mask, the one that it would choose.
        """

    def accept(self, token: int) -> None:
        """This token came."""


Form = Literal["lark", "core", "gbnf", "ebnf", "schema"]
"""In what a server is told of a constraint: a grammar as llguidance reads it, or as XGrammar does, too; one
in llama.cpp's own language, or in XGrammar's; or a JSON Schema."""


class PassedOn(Constraint, Protocol):
    """A constraint that a server holds. It is told every token that came, and says whether it may."""

    @property
    def form(self) -> Form:
        """What `said` is."""

    @property
    def said(self) -> Any:
        """What the server is told: text, or a schema."""

    def accept(self, token: int) -> None:
        """This token came. Raises ConstraintFailed for one that the server should not have drawn."""

    def end(self) -> None:
        """The server ended the turn of its own accord. Raises ConstraintFailed where more had to come."""


class Generation(Iterator[Token], Protocol):
    """A running generation: an iterator of tokens. Once exhausted, `finish` says how it ended."""

    def steps(self) -> Iterator[Step]:
        """The same tokens, and before them each new place in the queue and the progress of the prefill."""

    def asteps(self, most: int | None = None) -> AsyncGenerator[Sequence[Step], None]:
        """The same on an event loop, which is never blocked: those that are there, `most` of them at most.
        Leaving it early cancels the generation.
        """

    @property
    def finish(self) -> Finish | None:
        """How it ended; None while tokens may still come."""

    def close(self) -> None:
        """Stop early; `finish` then says "cancelled". Safe to call twice and after the end."""


class Watched(Protocol):
    """What a server shows and watches of a host, which may be in another process: see `server.fleet`."""

    @property
    def context(self) -> int:
        """Context window in tokens."""

    @property
    def lanes(self) -> int:
        """How many generations run at once; the others wait."""

    @property
    def architecture(self) -> str:
        """The engine's name of the architecture, such as "lfm2" or "llama"."""

    @property
    def engine(self) -> str:
        """Name and version of the engine; "" where none is known."""

    @property
    def template_source(self) -> str | None:
        """The chat template's jinja source, if there is one."""

    @property
    def alive(self) -> bool:
        """Whether it can still generate: not once its owner thread has ended."""

    @property
    def busy_seconds(self) -> float:
        """How long the engine has been computing one step: much more than seconds, and it hangs."""

    @property
    def threads(self) -> int | None:
        """CPU threads that computed last; None where the engine does not tell."""

    @property
    def cache_bytes(self) -> int:
        """Memory that evaluated prompts take beside what is in the lanes. About: they change meanwhile."""

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each of `ids`, which a generation has given. Does not wait for the engine."""

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """The bytes that `ids` spell, special tokens included. Raises UsageError for an unknown id, and
        Unsupported where the vocabulary is not here.
        """


class NoEngine:
    """The base of hosts without an engine in this process: nothing can hang, and no prompt is kept."""

    elsewhere = False
    takes_text = True
    alive = True
    busy_seconds = 0.0
    threads = None
    cache_bytes = 0

    def scoped(self, scope: str) -> Self:
        """The same host: there is nothing to keep apart."""
        return self

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """Not known here. Raises Unsupported."""
        raise Unsupported("there is no vocabulary here, so tokens cannot be spelled")


class Host(Renderer, Watched, Protocol):
    """One loaded model on one engine: it renders (see `Renderer`) and generates.

    All engine calls happen on one owner thread, whichever thread calls these methods. As many generations
    overlap as the engine has lanes; the others wait, first come, first served.
    """

    @property
    def elsewhere(self) -> bool:
        """Whether a server draws the tokens, which can be told what to hold (`remote.tokens.host`)."""

    @property
    def special_tokens(self) -> frozenset[str]:
        """The text of every special token in the vocabulary."""

    @property
    def vocabulary(self) -> Any:
        """The vocabulary, as `engine.Vocabulary` has it; None if nothing is drawn here that could be bounded.

        Pieces may be asked for in any thread, the rest on the owner thread.
        """

    def tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        """The ids of `text` with nothing added; control tokens are recognised only when `special`."""

    @property
    def takes_text(self) -> bool:
        """Whether `raw_prompt` may be asked for: not of recordings, which are of conversations."""

    def raw_prompt(self, raw: Raw) -> Prompt:
        """A prompt without the chat template. Raises ContextOverflow, and Unsupported for a gap where the
        model has no tokens for it.
        """

    def check(self, prompt: Prompt) -> None:
        """Raise what `generate` would raise for this prompt: UsageError, ContextOverflow."""

    def scoped(self, scope: str) -> Host:
        """The same host, whose prompts are evaluated and reused apart from those of all other scopes.

        Closing either closes both.
        """

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling,
        cancel: CancelFlag | None = None,
        constraint: Constraint | None = None,
    ) -> Generation:
        """Prefill `prompt` and yield tokens until an end token, a limit or `cancel`. Returns at once.

        `constraint`: bounds what is drawn; one generation's own. Tokens that it forces count and come like
        any other. Log-probabilities are those before its mask.

        Raises ContextOverflow before anything is computed; while it runs EngineFailed and ConstraintFailed.
        """

    def close(self) -> None:
        """Free the weights and end the owner thread. Safe to call twice."""
