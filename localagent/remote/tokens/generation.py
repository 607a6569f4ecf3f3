"""One generation on a server: what comes of its request, which is sent again only while nothing has."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from time import monotonic, perf_counter, sleep

from localagent.errors import (
    ConstraintFailed,
    LocalAgentError,
    ServerRefused,
    ServerUnreachable,
    StreamBroken,
)
from localagent.hosts.generation import GenerationState
from localagent.hosts.protocol import (
    Cancel,
    CancelFlag,
    Cancelled,
    Finish,
    Logprobs,
    PassedOn,
    Step,
    StopReason,
    Token,
)
from localagent.remote.following import followed
from localagent.remote.refusals import stream_error
from localagent.remote.server import Server
from localagent.remote.tokens.apis import Api, Asked, Chunk
from localagent.remote.tokens.vocabulary import TokenFinder

ATTEMPTS = 4
"""How often a request is sent at most, while nothing has come of it."""
_PAUSE = 0.5
"""Seconds before the second attempt; each later one waits twice as long, or as long as the server says."""
_LONGEST_PAUSE = 30.0
_BUSY = (429, 502, 503, 504)
_TICK = 0.05
_UNKNOWN = Logprobs(float("nan"))
"""Of a token whose probability the server did not say."""


class RemoteGeneration:
    """A generation on a server: an iterator of tokens. One reader at a time."""

    def __init__(
        self,
        server: Server,
        make_api: Callable[[], Api],
        asked: Asked,
        state: GenerationState,
        spelling: TokenFinder,
        cancel: CancelFlag | None,
        record: Callable[[Sequence[Token]], None],
        passed: PassedOn | None = None,
    ) -> None:
        self._server = server
        self._make_api = make_api
        self._asked = asked
        self._state = state
        self._spelling = spelling
        self._record = record
        self._passed = passed
        self._cancel = Cancel(cancel)
        self._tokens: list[Token] = []
        self._finish: Finish | None = None
        self._sent = False
        self._first: float | None = None
        """When the first token came."""
        self._server_stop: StopReason | None = None
        """The stop reason that the server gave."""
        self._steps = self._run()

    @property
    def finish(self) -> Finish | None:
        """How it ended; None while tokens may still come, and after an error."""
        return self._finish

    def __iter__(self) -> RemoteGeneration:
        return self

    def __next__(self) -> Token:
        for step in self.steps():
            if isinstance(step, Token):
                return step
        raise StopIteration

    def steps(self) -> Iterator[Step]:
        """The tokens. How much of the prompt was reused is told by `finish` alone.

        Raises ServerUnreachable, ServerRefused, StreamBroken, UnknownModel, ContextOverflow.
        """
        # Not `yield from`: leaving the loop would close the generation.
        while (step := next(self._steps, None)) is not None:
            yield step

    def asteps(self, most: int | None = None) -> AsyncGenerator[Sequence[Step], None]:
        """The same on an event loop, with a thread that reads from the server. Leaving early cancels it."""
        return followed(self.steps(), self._cancel)

    def close(self) -> None:
        """Stop early; `finish` then says "cancelled". Safe to call twice and after the end."""
        self._cancel.set()
        with suppress(LocalAgentError, ValueError):  # the second: another thread is reading
            for _ in self._steps:
                pass

    def _run(self) -> Iterator[Step]:
        state, began = self._state, perf_counter()
        try:
            with closing(self._chunks()) as chunks:
                for chunk in chunks:
                    over = state.ended is not None
                    yield from self._taken(chunk)
                    self._server_stop = self._server_stop or chunk.ended
                    # How much was reused comes last, with its own end. After a stop string it would write on,
                    # and so would one that does not heed its limit.
                    alone = state.ended is not None and self._server_stop is None
                    if alone and (over or state.finish().stop is not None):
                        self._give_up()
                        break
            if state.ended is None:
                raise StreamBroken(
                    f"{self._server.url} broke the answer off in the midst: its log says why; ask again"
                )
        except Cancelled:
            self._give_up()
            if state.ended is None:
                yield from self._kept(state.cancelled())
        except GeneratorExit:
            self._give_up()
            raise
        except (ConstraintFailed, StreamBroken) as error:
            self._give_up()
            over = state.ended is not None
            if not over:  # what was held back, since it might have begun a stop string
                yield from self._kept(state.cancelled())
            if not over or isinstance(error, ConstraintFailed):
                raise
        first = self._first or perf_counter()
        state.prefill, state.decode = first - began, perf_counter() - first
        self._finish = state.finish()
        self._record(self._tokens)

    def _taken(self, chunk: Chunk) -> Iterator[Token]:
        """What a chunk brings, as long as the turn is not over."""
        state = self._state
        if chunk.cached is not None:
            state.cached = min(max(0, chunk.cached), len(self._asked.ids))
        if self._cancel.is_set():  # what has arrived already is not looked at any more
            raise Cancelled
        if state.ended is not None:
            return
        for token, score in self._read(chunk):
            self._first = self._first or perf_counter()
            yield from self._kept(self._drawn(token, score))
            self._judge(token)
            if state.ended is not None:
                return
        if chunk.ended is not None:  # its end token it keeps to itself
            yield from self._kept(state.ends(chunk.ended))
            if self._passed is not None and chunk.ended == "stop":
                self._passed.end()

    def _kept(self, tokens: Sequence[Token]) -> Iterator[Token]:
        for token in tokens:
            self._tokens.append(token)
            yield token

    def _read(self, chunk: Chunk) -> Iterator[tuple[int, Logprobs]]:
        """The tokens of a chunk, each with its score, if the server gave one."""
        if chunk.lost:
            for token in self._spelling.lost(chunk):
                yield token, _UNKNOWN
        for at, token in enumerate(chunk.ids):
            yield token, self._score(chunk.scores[at]) if at < len(chunk.scores) else _UNKNOWN

    def _drawn(self, token: int, score: Logprobs) -> Sequence[Token]:
        try:
            return self._state.drawn(token, lambda: score)
        except IndexError as error:
            raise StreamBroken(
                f"{self._server.url} sent token {token}, which the tokenizer here does not have: is it that "
                "of another model?"
            ) from error

    def _judge(self, token: int) -> None:
        """Raise ConstraintFailed where the server did not hold what it was told to."""
        if self._passed is None:
            return
        if token in self._asked.ends:
            self._passed.end()
        else:
            self._passed.accept(token)

    def _score(self, told: Logprobs) -> Logprobs:
        most = self._asked.sampling.logprobs or 0
        return replace(told, top=tuple(sorted(told.top, key=lambda each: -each[1])[:most]))

    def _chunks(self) -> Generator[Chunk, None, None]:
        """What comes of the request, which is sent again while nothing has."""
        pause = _PAUSE
        for attempt in range(1, ATTEMPTS + 1):
            if self._cancel.is_set():  # as where it is closed before its first step
                raise Cancelled
            api, came, self._sent = self._make_api(), False, True
            try:
                with self._server.open(api.path, api.body(self._asked), self._cancel) as answer:
                    for event in answer.frames() if answer.streams else (answer.json(),):
                        if isinstance(event, Mapping) and event.get("error"):
                            raise stream_error(self._server.url, event)
                        chunk = api.read(event)
                        # An answer may be empty: a server that keeps its end token to itself sends no id.
                        came = came or bool(chunk.ids) or chunk.ended is not None
                        yield chunk
                if came or attempt == ATTEMPTS:
                    return
            except (ServerUnreachable, StreamBroken, ServerRefused) as error:
                busy = not isinstance(error, ServerRefused) or error.status in _BUSY
                if came or not busy or attempt == ATTEMPTS:
                    raise
                if isinstance(error, ServerRefused) and error.wait is not None:
                    pause = max(pause, error.wait)
                if pause > _LONGEST_PAUSE:
                    raise
            self._wait(pause)
            pause *= 2

    def _wait(self, seconds: float) -> None:
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0:
            if self._cancel.is_set():
                raise Cancelled
            sleep(min(_TICK, left))

    def _give_up(self) -> None:
        """Tell the server that nobody waits any more, where closing the connection may not be enough."""
        if self._sent and (told := self._make_api().abort(self._asked.name)) is not None:
            with suppress(LocalAgentError):
                replace(self._server, silence=2.0).ask(*told)
