"""One generation on one engine: resume a known prefix, prefill the rest in chunks, decode.

`generate` runs on the owner thread: it yields `Prefilled` for every chunk, then every sampled token including
the end token, and returns a `Finish`. `EngineGeneration` is the consumer's side of that stream.

A prompt is cut after the end of every message, and every `engine.chunk` tokens within one. Each cut is a
checkpoint. The cuts depend on the prompt alone, so a prompt that resumes at one of them goes through the same
floating-point sums, and gives the same tokens, as one evaluated from the start.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from localagent.hosts.engine import Cancelled, Engine, Vocabulary
from localagent.hosts.owner import Stream
from localagent.hosts.prefix import PrefixCache
from localagent.hosts.protocol import Finish, Logprobs, Prefilled, StopReason, Token
from localagent.hosts.sampling import Sampling
from localagent.hosts.stopping import StopStrings
from localagent.hosts.utf8 import TokenText
from localagent.messages.usage import Timings

Step = Prefilled | Token
Record = Callable[[Sequence[Token]], None]


class EngineGeneration:
    """A running generation: an iterator of tokens. Dropping it cancels it."""

    def __init__(self, stream: Stream[Step, Finish], record: Record) -> None:
        self._stream = stream
        self._record = record
        self._tokens: list[Token] = []

    def __iter__(self) -> EngineGeneration:
        return self

    def __next__(self) -> Token:
        while not isinstance(step := self._step(), Token):
            pass
        return step

    def steps(self) -> Iterator[Step]:
        """The progress of the prefill, then the tokens."""
        with contextlib.suppress(StopIteration):
            while True:
                yield self._step()

    @property
    def finish(self) -> Finish | None:
        """How it ended; None while tokens may still come, and after an error."""
        return self._stream.result

    def close(self) -> None:
        """Stop early and wait until the engine has stopped. Safe to call twice and after the end."""
        self._stream.close()
        self._remember()

    def _step(self) -> Step:
        """The next of either kind. Raises StopIteration, and OwnerClosed when the host was closed."""
        try:
            step = next(self._stream)
        except StopIteration:
            self._remember()
            raise
        if isinstance(step, Token):
            self._tokens.append(step)
        return step

    def _remember(self) -> None:
        tokens, self._tokens = self._tokens, []
        if tokens:
            self._record(tokens)


def generate(
    engine: Engine, prefix: PrefixCache, ids: Sequence[int], sampling: Sampling, cancelled: Cancelled
) -> Generator[Step, None, Finish]:
    """Prefill `ids` and sample until an end token, a limit, a stop string, or until `cancelled()`.

    The timings exclude the time that the consumer takes between steps. Raises EngineFailed.
    """
    run = _Run(engine, prefix, ids, sampling, cancelled)
    try:
        yield from run.steps()
    except Exception:
        prefix.clear()  # the engine's state is undefined after a failure
        raise
    return run.finish()


@dataclass(slots=True)
class _Run:
    """The state of one running generation."""

    engine: Engine
    prefix: PrefixCache
    ids: Sequence[int]
    sampling: Sampling
    cancelled: Cancelled
    cached: int = 0
    generated: int = 0
    prefill: float = 0.0
    decode: float = 0.0
    stop_reason: StopReason = "cancelled"
    stop: str | None = None

    def finish(self) -> Finish:
        timings = Timings(prefill=self.prefill, decode=self.decode)
        return Finish(self.stop_reason, len(self.ids), self.cached, self.generated, timings, self.stop)

    def steps(self) -> Generator[Step, None, None]:
        started = perf_counter()
        self.cached = self.prefix.resume(self.ids)
        *chunks, last = cut(self.ids, self.cached, self.engine)
        total = len(self.ids)
        for end, chunk in chunks:
            self.prefill += perf_counter() - started
            yield Prefilled(end - len(chunk), total, self.cached)
            started = perf_counter()
            if not self.engine.sequence.evaluate(chunk, self.cancelled):
                self.prefix.recover()
                return
            self.prefix.mark()
        self.prefill += perf_counter() - started
        yield Prefilled(total - len(last[1]), total, self.cached)
        yield from self._released(self._tokens(last[1]))

    def _released(self, tokens: Iterator[Token]) -> Iterator[Token]:
        """The tokens before the first stop string."""
        if not self.sampling.stop:
            yield from tokens
            return
        watch = StopStrings(self.sampling.stop)
        for token in tokens:
            yield from watch.feed(token)
            if watch.matched is not None:
                self.stop, self.stop_reason = watch.matched, "stop"
                return
        yield from watch.close()

    def _tokens(self, last: Sequence[int]) -> Iterator[Token]:
        """Decode; the first token also waits for the last chunk of the prompt."""
        text = TokenText(self.engine.vocabulary.piece)
        tokens = _Scored(self, text) if self.sampling.logprobs is not None else text
        draws = self.engine.sequence.decode(last, self.sampling, self.ids, self.cancelled)
        try:
            yield from self._decode(iter(draws), tokens)
        finally:
            draws.close()  # type: ignore[attr-defined]  # a generator, closed on the thread it ran on
        yield from tokens.close()

    def _decode(self, draws: Iterator[int], tokens: TokenText | _Scored) -> Iterator[Token]:
        room = self.engine.context_size - len(self.ids)
        limit = room + 1 if self.sampling.max_tokens is None else min(self.sampling.max_tokens, room + 1)
        feed, piece, cancelled = tokens.feed, self.engine.vocabulary.piece, self.cancelled
        while True:
            started = perf_counter()
            token = next(draws, None)
            if self.generated:
                self.decode += perf_counter() - started
            else:
                self.prefill += perf_counter() - started
            if token is None:  # cancelled within the last chunk
                self.prefix.recover()
                return
            self.generated += 1
            yield from feed(token)
            if piece(token).end:
                self.stop_reason = "stop"
                return
            if self.generated >= limit:
                self.stop_reason = "length"
                return
            if cancelled():
                return


class _Scored:
    """A `TokenText` whose tokens carry log-probabilities, also those it has held back."""

    def __init__(self, run: _Run, text: TokenText) -> None:
        self._sequence = run.engine.sequence
        self._count = run.sampling.logprobs or 0
        self._text = text
        self._scores: deque[Logprobs] = deque()

    def feed(self, token: int) -> list[Token]:
        """See `TokenText.feed`."""
        self._scores.append(_score(self._sequence.logprobs(), token, self._count))
        return self._with_scores(self._text.feed(token))

    def close(self) -> list[Token]:
        """See `TokenText.close`."""
        return self._with_scores(self._text.close())

    def _with_scores(self, tokens: Sequence[Token]) -> list[Token]:
        return [dataclasses.replace(token, logprobs=self._scores.popleft()) for token in tokens]


def _score(logprobs: Any, token: int, count: int) -> Logprobs:
    import numpy

    likeliest = numpy.argsort(-logprobs, kind="stable")[:count]  # the lower id first where two are equal
    return Logprobs(float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in likeliest))


def cut(ids: Sequence[int], begin: int, engine: Engine) -> list[tuple[int, Sequence[int]]]:
    """The chunks of `ids` from `begin` on, each with the position of its end; at least one."""
    vocabulary: Vocabulary = engine.vocabulary
    chunks = []
    start = begin
    for position in range(begin, len(ids)):
        end = position + 1
        if end == len(ids) or end - start == engine.chunk or vocabulary.piece(ids[position]).end:
            chunks.append((end, ids[start:end]))
            start = end
    return chunks
