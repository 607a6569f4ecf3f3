"""A host that plays back recorded tokens, without an engine.

It feeds a recorded generation to the parser, the turn and everything above them, to test those and to measure
their own cost. The prompt, the sampling and a constraint have no effect on what is played.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

from localagent.errors import UsageError
from localagent.hosts.protocol import CancelFlag, Constraint, Finish, NoEngine, StopReason, Token
from localagent.hosts.sampling import Sampling
from localagent.hosts.stopping import StopStrings
from localagent.messages.usage import Timings
from localagent.prompt.segments import Prompt, Raw


class ReplayHost(NoEngine):
    """Plays one recording per generation, in order, and then repeats the last one."""

    takes_text = False

    def __init__(
        self,
        recordings: Sequence[Sequence[Token]],
        special_tokens: Iterable[str] = (),
        prompt: Prompt | None = None,
        context: int = 1 << 20,
        lanes: int = 1,
    ) -> None:
        """`prompt` is what every conversation renders to; its `inside` opens the turn.

        `lanes`: what the host says of itself; recordings never wait for each other.
        """
        if not recordings:
            raise ValueError("a replay needs at least one recording")
        self._recordings = list(recordings)
        self._played = 0
        self._prompt = prompt or Prompt((0,), "")
        self.name = "replay"
        self.architecture = "replay"
        self.engine = ""
        self.template_source: str | None = None
        self.context = context
        self.lanes = lanes
        self.special_tokens = frozenset(special_tokens)
        self.vocabulary = None
        self.rendered: list[Sequence[Mapping[str, Any]]] = []
        """The conversations that were rendered, in order."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        limit: float | None = None,
        **variables: Any,
    ) -> Prompt:
        """The prompt of the recording."""
        self.rendered.append(messages)
        return self._prompt

    def write(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The text of that prompt."""
        return self._prompt.text

    def raw_prompt(self, raw: Raw) -> Prompt:
        """Not to be called: see `takes_text`."""
        raise UsageError("a recording takes conversations, and no text to continue")

    def check(self, prompt: Prompt) -> None:
        """Any prompt will do."""

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling,
        cancel: CancelFlag | None = None,
        constraint: Constraint | None = None,
    ) -> ReplayGeneration:
        """The next recording, cut at `sampling.max_tokens` and before a stop string.

        A `constraint` is never asked: nothing is drawn here that it could bound.

        Raises UsageError when log-probabilities are asked for.
        """
        if sampling.logprobs is not None:
            raise UsageError("a replay has no log-probabilities: leave logprobs out")
        tokens = self._recordings[min(self._played, len(self._recordings) - 1)]
        self._played += 1
        stops = StopStrings(sampling.stop)
        if sampling.stop:
            tokens = _until(stops, tokens)
        return ReplayGeneration(tokens, len(prompt.ids), sampling.max_tokens, cancel, stops.matched)

    def tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        """Not to be called: a recording has no vocabulary."""
        raise UsageError("a replay has no vocabulary")

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """Nothing for each: a recording has no vocabulary."""
        return [b""] * len(ids)

    def close(self) -> None:
        """Nothing to free."""


class ReplayGeneration:
    """A recording being played."""

    def __init__(
        self,
        tokens: Sequence[Token],
        prompt: int,
        limit: int | None,
        cancel: CancelFlag | None,
        stop: str | None = None,
    ) -> None:
        self.finish: Finish | None = None
        self._stop = stop
        self._tokens = tokens
        self._prompt = prompt
        self._limit = len(tokens) if limit is None else limit
        self._cancel = cancel
        self._played = 0
        self._started = perf_counter()

    def __iter__(self) -> ReplayGeneration:
        return self

    def __next__(self) -> Token:
        if self.finish is None:
            if self._cancel is not None and self._cancel.is_set():
                self._end("cancelled")
            elif self._played == len(self._tokens):
                self._end("stop")
            elif self._played == self._limit:
                self._end("length")
        if self.finish is not None:
            raise StopIteration
        self._played += 1
        return self._tokens[self._played - 1]

    def steps(self) -> Iterator[Token]:
        """The tokens alone: a replay has no queue and no prefill."""
        yield from self

    async def asteps(self, most: int | None = None) -> AsyncGenerator[Sequence[Token], None]:
        """The same, with a turn of the event loop before each. Leaving it early ends the replay."""
        import asyncio

        try:
            for token in self:
                await asyncio.sleep(0)
                yield (token,)
        finally:
            self.close()

    def close(self) -> None:
        """Stop early."""
        if self.finish is None:
            self._end("cancelled")

    def _end(self, reason: StopReason) -> None:
        seconds = perf_counter() - self._started
        self.finish = Finish(
            reason,
            self._prompt,
            0,
            self._played,
            Timings(decode=seconds),
            self._stop if reason == "stop" else None,
        )


def _until(stops: StopStrings, tokens: Sequence[Token]) -> list[Token]:
    """The tokens before the first stop string."""
    found: list[Token] = []
    for token in tokens:
        found += stops.feed(token)
        if stops.matched is not None:
            return found
    return [*found, *stops.close()]
