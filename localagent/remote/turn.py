"""One turn on a server: the chunks of a chat completion to the events of a turn, and to its message.

What our own server says beside OpenAI's fields is read where it is there: `reasoning_content`,
`malformed_tool_calls`, `timings`, `relaxed_schemas`. The spans of the events count what has come, since the
raw output, with its markers, stays with the server.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Any

from localagent.errors import StreamBroken
from localagent.hosts.protocol import Logprobs
from localagent.messages import (
    AssistantMessage,
    AssistantPart,
    MalformedToolCallPart,
    Prices,
    StopReason,
    Timings,
    ToolCallPart,
    Usage,
)
from localagent.parsers import (
    ArgumentEnd,
    ArgumentsDelta,
    CallEnd,
    CallPart,
    CallStart,
    Collector,
    Event,
    Malformed,
    MalformedPart,
    Reasoning,
    Text,
    ToolCheck,
)
from localagent.remote.calls import UNPLACED, RemoteCalls, reason_of
from localagent.remote.refusals import stream_error
from localagent.remote.server import Server
from localagent.turn import BrokenOff, Done, TurnEvent, as_part
from localagent.wording import writable

if TYPE_CHECKING:
    from localagent.constraint.schema import Relaxed

_STOPS: Mapping[str, StopReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",  # where a call came of it, that is seen
    "function_call": "stop",
    "content_filter": "content_filter",
}


@dataclass(frozen=True, slots=True)
class RemoteLogprobs(Logprobs):
    """Log-probabilities from a server, which tells texts in place of ids: `top` is empty.

    `text`: the token's; `alternatives`: the likeliest tokens with theirs, the likeliest first.
    """

    text: str = ""
    alternatives: tuple[tuple[str, float], ...] = ()


class RemoteTurn:
    """All of a turn but the network: it is fed what comes, and gives the events."""

    def __init__(
        self,
        server: Server,
        name: str,
        prices: Prices | None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """`name`: the model's, where the server does not say which one answered. `tools`: the declared ones,
        since no server but our own says whether a call fits them.
        """
        self._check = ToolCheck(tools)
        self._server = server
        self._name = name
        self._prices = prices
        self._id: str | None = None
        self._calls = RemoteCalls()
        self._collector = Collector()
        self._ended: deque[int] = deque()  # the calls among the collected parts: indices, -1 for none
        self._at = 0
        self._finish: str | None = None
        self._usage = Usage()
        self._timings: Timings | None = None
        self._scores: list[Logprobs] = []
        self._relaxed: list[Relaxed] = []
        self._began = monotonic()
        self._first: float | None = None

    def feed(self, chunk: Any) -> list[TurnEvent]:
        """The events of one chunk, or of a whole completion. Raises StreamBroken, ContextOverflow."""
        if not isinstance(chunk, Mapping):
            raise self._unreadable("a chunk that is no object")
        if chunk.get("error"):
            raise stream_error(self._server.url, chunk)
        self._id = self._id or _text(chunk.get("id"))
        self._name = _text(chunk.get("model")) or self._name
        self._read_numbers(chunk)
        choices = chunk.get("choices") or ()
        if not isinstance(choices, Sequence) or isinstance(choices, str):
            raise self._unreadable("choices that are no list")
        events: list[Event] = []
        for choice in choices[:1]:
            if not isinstance(choice, Mapping):
                raise self._unreadable("a choice that is no object")
            delta = choice.get("delta") or choice.get("message") or {}
            if not isinstance(delta, Mapping):
                raise self._unreadable("a delta that is no object")
            events += self._read_delta(delta)
            self._read_scores(choice.get("logprobs"))
            self._finish = _text(choice.get("finish_reason")) or self._finish
        return [*self._told(events)]

    def close(self) -> list[TurnEvent]:
        """The last events, after the end of the stream. Raises StreamBroken if that came too early."""
        if self._finish is None:
            raise StreamBroken(
                f"{self._server.url} broke the answer off in the midst: its log says why; ask again"
            )
        cut = self._finish == "length"
        events = self._told(self._calls.close("length" if cut else "stop"))
        reason = _STOPS.get(self._finish, "error")
        error = None
        if reason == "error":
            error = f"the server stopped for a reason that is not known here: {self._finish!r:.60}"
        if reason == "stop" and any(isinstance(part, CallPart) for part in self._collector.parts):
            reason = "tool_calls"
        return [*events, self._done(reason, error)]

    def cancelled(self) -> list[TurnEvent]:
        """The last events of a turn that the caller ended. What it has cost, only the server knows."""
        return [*self._told(self._calls.abandon()), self._done("cancelled")]

    def broken(self, error: BaseException) -> list[TurnEvent]:
        """The last events when `error` ends the turn: what was written until then, if anything was."""
        if not self._collector.parts:
            return []
        if isinstance(error, KeyboardInterrupt):
            return [BrokenOff(self._message("cancelled"))]
        return [BrokenOff(self._message("error", str(error) or type(error).__name__))]

    # -- what comes -----------------------------------------------------------------------------------

    def _read_delta(self, delta: Mapping[str, Any]) -> list[Event]:
        events: list[Event] = []
        # The same text under two names, as some servers send it, is told once.
        names = ("reasoning_content", "reasoning", "thinking")
        if reasoning := next((text for name in names if (text := _text(delta.get(name)))), None):
            events += [*self._calls.settle(), Reasoning(reasoning, *UNPLACED)]
        for text in (*_texts(delta.get("content")), *_texts(delta.get("refusal"))):
            events += [*self._calls.settle(), Text(text, *UNPLACED)]
        for entry in self._objects(delta, "tool_calls"):
            events += self._calls.feed(entry)
        for entry in self._objects(delta, "malformed_tool_calls"):
            events += self._fail_call(entry)
        return events

    def _fail_call(self, entry: Mapping[str, Any]) -> list[Event]:
        raw, name = _text(entry.get("raw")) or "", _text(entry.get("name"))
        reason, call_id = _text(entry.get("reason")) or "syntax", _text(entry.get("id"))
        if call_id and (events := self._calls.take_back(call_id, raw, reason, name)) is not None:
            return events
        return [*self._calls.settle(), Malformed(raw, reason_of(reason), name, None, {}, *UNPLACED)]

    def _objects(self, delta: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
        entries = delta.get(name) or []
        if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            raise self._unreadable(f"{name} that are no list of objects")
        return entries

    def _read_numbers(self, chunk: Mapping[str, Any]) -> None:
        if isinstance(used := chunk.get("usage"), Mapping):
            details = used.get("prompt_tokens_details")
            cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else 0
            total = _count(used.get("prompt_tokens"))
            self._usage = Usage(
                input=total, output=_count(used.get("completion_tokens")), cache_read=min(cached, total)
            )
        if isinstance(timings := chunk.get("timings"), Mapping):  # as llama-server has them, too
            prefill, decode = (_seconds(timings.get(f"{name}_ms")) for name in ("prompt", "predicted"))
            self._timings = Timings(prefill=prefill, decode=decode)
        relaxed = chunk.get("relaxed_schemas")
        for each in relaxed if isinstance(relaxed, list) else ():
            if isinstance(each, Mapping):
                told = (_text(each.get(name)) or "" for name in ("tool", "path", "keyword", "reason"))
                from localagent.constraint.schema import Relaxed  # slow to load, and seldom needed

                self._relaxed.append(Relaxed(*told))

    def _read_scores(self, logprobs: Any) -> None:
        content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
        for token, value, entry in _scored(content):
            others = tuple((text, score) for text, score, _ in _scored(entry.get("top_logprobs")))
            self._scores.append(RemoteLogprobs(value, (), token, others))

    # -- what is told ---------------------------------------------------------------------------------

    def _told(self, events: Sequence[Event]) -> list[TurnEvent]:
        """The events with their spans, once they are collected."""
        told: list[TurnEvent] = []
        for event in events:
            size = len(event.text) if isinstance(event, Text | Reasoning) else 0
            size = len(event.json) if isinstance(event, ArgumentsDelta) else size
            if isinstance(event, Malformed) and event.index is None:
                size = len(event.raw)
            placed = replace(event, start=self._at, end=self._at + size)
            if isinstance(placed, CallStart):
                placed = replace(placed, fits=self._check.name(placed.name))
            elif isinstance(placed, ArgumentEnd):
                name = self._calls.all[placed.index].name
                placed = replace(placed, fits=self._check.argument(name, placed.key, placed.value))
            elif isinstance(placed, CallEnd):
                placed = replace(placed, fits=self._check.call(placed.name, placed.arguments))
            self._at += size
            self._collector.add(placed)
            if isinstance(event, CallEnd | Malformed):
                self._ended.append(-1 if event.index is None else event.index)
            told.append(placed)
            if self._first is None and not isinstance(event, CallStart):
                self._first = monotonic()
        return told

    def _done(self, reason: StopReason, error: str | None = None) -> Done:
        message = self._message(reason, error)
        return Done(message, (), tuple(self._scores), tuple(self._relaxed))

    def _message(self, reason: StopReason, error: str | None = None) -> AssistantMessage:
        first = self._first or monotonic()
        measured = Timings(prefill=first - self._began, decode=monotonic() - first)
        usage = self._usage
        if self._prices is not None:
            usage = usage.model_copy(update={"cost": self._prices.cost(usage)})
        return AssistantMessage(
            id=self._id or f"msg_{secrets.token_hex(8)}",
            timestamp=datetime.now(UTC),
            content=tuple(self._parts()),
            model=self._name,
            usage=usage,
            timings=self._timings or measured,
            stop_reason=reason,
            error=error,
        )

    def _parts(self) -> list[AssistantPart]:
        """The parts, with the ids of the calls and what else their server wants back with them."""
        ended, parts = iter(self._ended), []
        for part in self._collector.parts:
            index = next(ended) if isinstance(part, CallPart | MalformedPart) else -1
            call = self._calls.all[index] if index >= 0 else None
            made = as_part(part, call.id if call is not None else "")
            if call is not None and call.extra and isinstance(made, ToolCallPart | MalformedToolCallPart):
                made = made.model_copy(update={"provider_metadata": {"openai": call.extra}})
            parts.append(made)
        return parts

    def _unreadable(self, what: str) -> StreamBroken:
        return StreamBroken(
            f"{self._server.url} streams {what}, which is no chat completion: correct the address"
        )


def _scored(entries: Any) -> Iterator[tuple[str, float, Mapping[str, Any]]]:
    """The tokens of a list that have a log-probability, with it."""
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and isinstance(value := entry.get("logprob"), int | float):
            yield _text(entry.get("token")) or "", float(value), entry


def _text(value: Any) -> str | None:
    # JSON can hold half a surrogate pair, which is no text.
    return writable(value) if isinstance(value, str) and value else None


def _texts(content: Any) -> list[str]:
    """The text of a delta: a string, or blocks, as some servers have it."""
    if isinstance(content, list):
        return [
            text for block in content if isinstance(block, Mapping) and (text := _text(block.get("text")))
        ]
    return [text] if (text := _text(content)) else []


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _seconds(milliseconds: Any) -> float:
    good = isinstance(milliseconds, int | float) and 0 <= milliseconds < 1e12
    return milliseconds / 1000 if good else 0.0
