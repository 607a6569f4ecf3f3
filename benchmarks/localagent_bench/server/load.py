"""Requests to a server, one or many at once, and when their tokens came.

A request has a connection and a thread of its own. The words of a prompt are drawn at random, so that no
prompt comes twice; two writers with the same seed draw the same.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median
from time import monotonic, perf_counter
from typing import Any

from localagent.errors import StreamBroken
from localagent.hosts.protocol import Cancelled
from localagent.remote.refusals import stream_error
from localagent_bench.server.rules import CHAT
from localagent_bench.server.target import MeasuredServer

WORDS = """
    a the one two three small old red green warm cold long short new good river house garden winter summer
    city book table friend morning evening road train letter story water bread music sea mountain forest bird
    horse fish writes reads finds takes gives makes sees walks opens asks and but with under over near after
"""
QUESTION = "Write a long story that begins with these words: "
_MOST_TOKENS = 1 << 40
"""A server that counts more of them counts nonsense."""
RUNNING = 3
"""The streams that run when the long prompt arrives."""

Figures = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked."""

    streams: Sequence[int] = (1, 4, 8)
    clients: Sequence[int] = (1, 8)
    """Who ask for answers of one token at once."""
    tokens: int = 64
    """Of each stream."""
    words: int = 1500
    """Of the long prompt."""
    answers: int = 100
    """Of one token each."""
    rounds: int = 3
    limit: float = 600.0
    """Seconds that one scenario may take on one server."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """`count` tokens to be written after two messages."""

    system: str
    user: str
    count: int
    ids: tuple[int, ...] = ()
    """What the messages are rendered to, for sides that take ids."""


class RequestWriter:
    """Draws requests."""

    def __init__(self, seed: str, tokens: int) -> None:
        """`tokens`: that each request writes."""
        self._random = random.Random(seed)
        self.tokens = tokens

    def words(self, count: int) -> str:
        """So many words."""
        return " ".join(self._random.choices(WORDS.split(), k=count))

    def request(self, user: str, system: str | None = None) -> LoadRequest:
        """A request; its own system text stands where a template would put the same one into all."""
        return LoadRequest(self.words(6) if system is None else system, user, self.tokens)

    def questions(self, count: int, system: str | None = None) -> list[LoadRequest]:
        """Short requests."""
        return [self.request(QUESTION + self.words(8 + number % 4), system) for number in range(count)]


@dataclass(slots=True)
class Seen:
    """What came of a request. Times are those at which text came, in seconds."""

    started: float = 0.0
    times: list[float] = field(default_factory=list)
    written: int = 0
    """Tokens, as the server counts them; else the chunks that came."""
    prompt: int | None = None
    """Tokens of the prompt, where the server tells."""

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.started


def gaps(streams: Sequence[Seen], since: float = 0, until: float = math.inf) -> Iterator[float]:
    """The seconds between two tokens of a stream, of which a part lies in this time."""
    for seen in streams:
        for sooner, later in pairwise(seen.times):
            if later > since and sooner < until:
                yield later - sooner


def lasted(streams: Sequence[Seen]) -> float:
    """Seconds from the first request to the last token."""
    return max(seen.times[-1] for seen in streams) - min(seen.started for seen in streams)


def meanwhile(streams: Sequence[Seen], late: Seen) -> int:
    """How often tokens of the streams came while another request waited for its first."""
    return sum(late.started < time < late.times[0] for seen in streams for time in seen.times)


class ScenarioEnd:
    """Ends the requests of a scenario: when one of them failed, or the time is over."""

    def __init__(self, limit: float) -> None:
        self._end = monotonic() + limit
        self._limit = limit
        self.failed = False

    def is_set(self) -> bool:
        """Whether they are to end."""
        return self.failed or monotonic() > self._end

    def explain(self) -> str:
        """Why."""
        return f"it did not end within {self._limit:g} seconds"


def together(tasks: Sequence[Callable[[], None]], stop: ScenarioEnd) -> None:
    """Run all of them, each in a thread, from the same moment on. Raises what the first one of them raised.

    Where the time is over, that is StreamBroken.
    """
    ready = threading.Barrier(len(tasks))

    def run(task: Callable[[], None]) -> None:
        ready.wait()
        try:
            task()
        except BaseException:
            stop.failed = True  # the others would only be waited for
            raise

    with ThreadPoolExecutor(len(tasks)) as pool:
        try:
            futures = [pool.submit(run, task) for task in tasks]
            errors = [error for each in futures if (error := each.exception()) is not None]
        except BaseException:  # Ctrl-C: the threads are waited for at the end of the block
            stop.failed = True
            ready.abort()  # it may come before all of them are there
            raise
    told = [error for error in errors if not isinstance(error, Cancelled)]
    if told:
        raise told[0]
    if errors:
        raise StreamBroken(stop.explain())


def ask(
    target: MeasuredServer,
    request: LoadRequest,
    seen: Seen,
    stop: ScenarioEnd,
    arrived: Callable[[], None] | None = None,
) -> None:
    """One streamed answer. `arrived` is called for every chunk with text. Raises as `Server.open`."""
    body = {**_body(target, request), "stream": True, "stream_options": {"include_usage": True}}
    ended = False
    seen.started = perf_counter()
    with target.server.open(CHAT, body, stop) as answer:
        for chunk in answer.frames():
            if not isinstance(chunk, dict) or chunk.get("error"):
                raise stream_error(target.server.url, chunk)
            if isinstance(usage := chunk.get("usage"), dict):
                seen.written = _count(usage, "completion_tokens") or 0
                seen.prompt = _count(usage, "prompt_tokens")
            choices = chunk.get("choices")
            for choice in choices if isinstance(choices, list) else ():
                if not isinstance(choice, dict):
                    continue
                ended = ended or choice.get("finish_reason") is not None
                delta = choice.get("delta")
                # The role comes before the first token, and is none.
                if isinstance(delta, dict) and any(delta[name] for name in delta if name != "role"):
                    seen.times.append(perf_counter())
                    if arrived is not None:
                        arrived()
    if not ended:
        raise StreamBroken(f"{target.server.url} broke the answer off in the midst: its log says why")
    if not seen.times:
        raise StreamBroken(f"{target.server.url} streamed no text: there are no tokens to be timed")
    seen.written = seen.written or len(seen.times)


def _body(target: MeasuredServer, request: LoadRequest) -> dict[str, Any]:
    messages = [{"role": role, "content": getattr(request, role)} for role in ("system", "user")]
    asked = {"model": target.model, "messages": messages, "max_tokens": request.count, "temperature": 0}
    return {**asked, **target.extra}


def _count(usage: dict[str, Any], name: str) -> int | None:
    count = usage.get(name)
    return count if type(count) is int and 0 < count < _MOST_TOKENS else None


# -- scenarios --------------------------------------------------------------------------------------------


def streams(target: MeasuredServer, writer: RequestWriter, load: Load, *, count: int) -> Figures:
    """Requests that all arrive at once."""
    stop, requests = ScenarioEnd(load.limit), writer.questions(count)
    seen = [Seen() for _ in requests]
    together([partial(ask, target, *each, stop) for each in zip(requests, seen, strict=True)], stop)
    seconds, written = lasted(seen), sum(each.written for each in seen)
    prompts = [each.prompt or 0 for each in seen]
    return {
        "speed": written / seconds if seconds else None,
        "first": median(each.first for each in seen),
        "worst": max(each.first for each in seen),
        "gap": max(gaps(seen), default=None),
        "tokens": float(written),
        "prompt": float(sum(prompts)) if all(prompts) else None,
    }


def long_prompt(target: MeasuredServer, writer: RequestWriter, load: Load) -> Figures:
    """A long prompt arrives when one of the streams has written a quarter, or has ended before that."""
    stop, requests = ScenarioEnd(load.limit), writer.questions(RUNNING)
    late, long = Seen(), writer.request(writer.words(load.words))
    running = [Seen() for _ in requests]
    quarter = threading.Event()

    def run(request: LoadRequest, seen: Seen) -> None:
        def arrived() -> None:
            if len(seen.times) >= max(1, load.tokens // 4):
                quarter.set()

        try:
            ask(target, request, seen, stop, arrived)
        finally:
            quarter.set()

    def arrive() -> None:
        quarter.wait()
        ask(target, long, late, stop)

    together([*(partial(run, *each) for each in zip(requests, running, strict=True)), arrive], stop)
    return {
        "gap": max(gaps(running, late.started, late.times[0]), default=None),
        "first": late.first,
        "meanwhile": float(meanwhile(running, late)),
    }


def short_answers(target: MeasuredServer, writer: RequestWriter, load: Load, *, clients: int) -> Figures:
    """Answers of one token, all to the same words, one after the other for each client."""
    stop = ScenarioEnd(load.limit)
    body = _body(target, LoadRequest("Answer briefly.", QUESTION + writer.words(8), 1))
    taken: list[float] = []

    def run(count: int) -> None:
        for _ in range(count):
            began = perf_counter()
            with target.server.open(CHAT, body, stop) as answer:
                answer.json()
            taken.append(perf_counter() - began)

    together([partial(run, 1)], stop)
    taken.clear()  # from now on the prompt is known
    shares = [len(range(at, load.answers, clients)) for at in range(clients)]
    began = perf_counter()
    together([partial(run, share) for share in shares], stop)
    seconds = perf_counter() - began
    return {"speed": len(taken) / seconds, "first": median(taken), "worst": max(taken)}
