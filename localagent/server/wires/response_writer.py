"""The answers of the responses API: a run of items, each announced, written and done before the next.

Beside the API's own fields, a response may hold `malformed_tool_calls`, `unfit_tool_calls`, and what
`openai.own_fields` says. A call that had begun to stream and then broke is done as "incomplete", and is no
part of the output.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from localagent.errors import ContextOverflow
from localagent.parsers import ArgumentsDelta, CallEnd, CallStart, Malformed, Reasoning, Text
from localagent.server.calls import HeldCalls, StreamedCalls
from localagent.server.exchange import Answer, BadRequest, Frame, TurnRequest
from localagent.server.wires.offer import Offer, custom_input
from localagent.server.wires.openai import (
    Scores,
    Spans,
    error_body,
    malformed_entry,
    own_fields,
    unfit_entries,
    worth_telling,
)
from localagent.turn import Done, Scored, TurnEvent
from localagent.wire.openai.items import SEALED


@dataclass(slots=True)
class _Item:
    """One item of the output. `object` is how it was announced."""

    position: int
    object: dict[str, Any]
    written: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    good: bool = True

    @property
    def text(self) -> str:
        return "".join(self.written)

    def part(self) -> dict[str, Any]:
        """The one part of a message or of reasoning, as far as it is written."""
        if self.object["type"] == "reasoning":
            kind = "reasoning_text" if "content" in self.object else "summary_text"
            return {"type": kind, "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": [*self.logprobs]}

    def whole(self, status: str) -> dict[str, Any]:
        """The item as far as it is written."""
        field = next(name for name in ("content", "summary", "arguments", "input") if name in self.object)
        value = [self.part()] if field in ("content", "summary") else self.text
        return {**self.object, field: value, "status": status}


class ResponseWriter:
    """One response."""

    def __init__(self, request: TurnRequest, answer: Answer) -> None:
        self._answer = answer
        self._offer: Offer = request.details["offer"]
        self._with_logprobs: bool = request.details["logprobs"]
        self._sealed: bool = request.details["sealed"]
        self._summary: bool = request.details["summary"]
        self._echo: dict[str, Any] = request.details["echo"]
        self._passing = HeldCalls() if answer.buffer_tool_calls else StreamedCalls()
        self._sequence = 0
        self._items: list[_Item] = []
        self._open: _Item | None = None
        self._reasoning = Spans()
        self._scores = Scores(answer)
        self._malformed: list[dict[str, Any]] = []
        self._unfit: list[dict[str, Any]] = []
        self._called = 0  # complete calls so far
        self._end: dict[str, Any] = {}

    # -- the interface ------------------------------------------------------------------------------------

    def begin(self) -> list[Frame]:
        """As `Writer.begin`."""
        return [self._lifecycle("response.created"), *self.keep_alive()]

    def feed(self, event: TurnEvent) -> list[Frame]:
        """As `Writer.feed`."""
        return [frame for each in self._passing.feed(event) for frame in self._write(each)]

    def keep_alive(self) -> list[Frame]:
        """As `Writer.keep_alive`: an event, since Codex counts events and not bytes."""
        return [self._lifecycle("response.in_progress")]

    def fail(self, error: Exception) -> list[Frame]:
        """As `Writer.fail`. Some clients look for the one event, some for the other."""
        told = error_body(error)[1]["error"]
        code = "server_error"
        if isinstance(error, BadRequest | ContextOverflow):
            code = told["code"] or "invalid_prompt"
        done = [item.whole("completed") for item in self._items if item.good and item is not self._open]
        self._open = None
        self._end = {"status": "failed", "output": done, "error": {"code": code, "message": told["message"]}}
        last = {"code": code, "message": told["message"], "param": told["param"], "error": told}
        return [self._lifecycle("response.failed"), self._event("error", **last)]

    def whole(self) -> dict[str, Any]:
        """As `Writer.whole`."""
        return {
            "id": f"resp_{self._answer.key}",
            "object": "response",
            "created_at": int(self._answer.created),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "metadata": {},
            "model": self._answer.model,
            "output": [],
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            "usage": None,
            **self._echo,
            **self._end,
        }

    # -- events -------------------------------------------------------------------------------------------

    def _write(self, event: TurnEvent) -> list[Frame]:
        match event:
            case Text(text=text) if text:
                frames = self._opened("message")
                entries = [entry for _, entry in self._scores.beside(event.start, event.end)]
                self._item.logprobs += entries
                return [
                    *frames,
                    self._delta("response.output_text.delta", text, content_index=0, logprobs=entries),
                ]
            case Scored() if self._with_logprobs:
                self._scores.note(event)
            case Reasoning(text=text) if text:
                self._reasoning.add(event.start, event.end)
                frames = self._opened("reasoning")
                if self._summary:
                    kind = "response.reasoning_summary_text.delta"
                    return [*frames, self._delta(kind, text, summary_index=0)]
                return [*frames, self._delta("response.reasoning_text.delta", text, content_index=0)]
            case CallStart() if event.name not in self._offer.custom:
                return [*self._close(), *self._call("function_call", event.index, event.name)]
            case ArgumentsDelta() if self._open is not None and "arguments" in self._open.object:
                return [self._delta("response.function_call_arguments.delta", event.json)]
            case CallEnd():
                return self._end_call(event)
            case Malformed() if worth_telling(event):
                return self._fail_call(event)
            case Done():
                return self._finish(event)
        return []

    def _finish(self, done: Done) -> list[Frame]:
        reason = done.message.stop_reason
        status = "completed" if reason in ("stop", "tool_calls") else "incomplete"
        frames = self._close(status)
        usage = done.message.usage
        self._end = {
            "status": status,
            "output": [item.whole("completed") for item in self._items if item.good],
            "usage": {
                "input_tokens": usage.input,
                "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": 0},
                "output_tokens": usage.output,
                "output_tokens_details": {"reasoning_tokens": len(self._reasoning.tokens(done))},
                "total_tokens": usage.total,
            },
            **own_fields(done),
        }
        if frames and status == "incomplete":
            self._end["output"][-1]["status"] = status
        if reason in _REASONS:
            self._end["incomplete_details"] = {"reason": _REASONS[reason]}
        if self._malformed:
            self._end["malformed_tool_calls"] = self._malformed
        if self._unfit:
            self._end["unfit_tool_calls"] = self._unfit
        return [*frames, self._lifecycle(f"response.{status}")]

    # -- items --------------------------------------------------------------------------------------------

    def _opened(self, kind: str) -> list[Frame]:
        """Frames that end the open item and begin one of this kind, unless that is the open one."""
        if self._open is not None and self._open.object["type"] == kind:
            return []
        frames = self._close()
        if kind == "message":
            frames += self._announce("msg", {"type": kind, "role": "assistant", "content": []})
        elif self._summary:
            frames += self._announce("rs", {"type": kind, "summary": []})
            added = "response.reasoning_summary_part.added"
            return [*frames, self._event(added, summary_index=0, part=self._item.part())]
        else:
            frames += self._announce("rs", {"type": kind, "summary": [], "content": []})
        return [*frames, self._event("response.content_part.added", content_index=0, part=self._item.part())]

    def _announce(self, prefix: str, fields: dict[str, Any]) -> list[Frame]:
        position = len(self._items)
        item = _Item(position, {"id": f"{prefix}_{self._answer.key}{position}", **fields})
        self._items.append(item)
        self._open = item
        return [self._event("response.output_item.added", item=item.object | {"status": "in_progress"})]

    def _call(self, kind: str, index: int, name: str) -> list[Frame]:
        space, short = self._offer.spaces.get(name, (None, name))
        fields = {"type": kind, "call_id": f"call_{self._answer.key}{index}", "name": short}
        fields |= {"namespace": space} if space else {}
        fields |= {"arguments": ""} if kind == "function_call" else {"input": ""}
        return self._announce("fc" if kind == "function_call" else "ctc", fields)

    def _delta(self, kind: str, piece: str, **fields: Any) -> Frame:
        self._item.written.append(piece)
        return self._event(kind, delta=piece, **fields)

    def _end_call(self, event: CallEnd) -> list[Frame]:
        frames = []
        if event.name in self._offer.custom:  # only now is it known what the tool is given
            frames = [*self._close(), *self._call("custom_tool_call", event.index, event.name)]
            kind = "response.custom_tool_call_input.delta"
            frames.append(self._delta(kind, custom_input(event)))
        self._unfit += unfit_entries(self._called, event.fits)
        self._called += 1
        return [*frames, *self._close()]

    def _fail_call(self, event: Malformed) -> list[Frame]:
        frames: list[Frame] = []
        call_id, sent = None, ""
        if event.index is not None and self._open is not None and "arguments" in self._open.object:
            if not self._open.written:
                # Nothing at all would pass for a call without arguments; half an object never does.
                frames = [self._delta("response.function_call_arguments.delta", "{")]
            call_id, sent = self._open.object["call_id"], self._open.text
            frames += self._close("incomplete", good=False)
        self._malformed.append(malformed_entry(event, len(self._malformed), call_id, sent))
        return frames

    def _close(self, status: str = "completed", good: bool = True) -> list[Frame]:
        """Frames that end the open item, if there is one."""
        if self._open is None:
            return []
        item, frames = self._open, []
        item.good = good
        if item.object["type"] == "reasoning" and self._sealed:
            item.object["encrypted_content"] = SEALED + item.text
        match item.object["type"]:
            case "message":
                done = {"text": item.text, "logprobs": item.logprobs, "content_index": 0}
                frames = [self._event("response.output_text.done", **done)]
            case "reasoning" if self._summary:
                kind = "response.reasoning_summary_text.done"
                frames = [self._event(kind, text=item.text, summary_index=0)]
                kind = "response.reasoning_summary_part.done"
                frames.append(self._event(kind, part=item.part(), summary_index=0))
            case "reasoning":
                frames = [self._event("response.reasoning_text.done", text=item.text, content_index=0)]
            case "function_call" if good:
                done = {"arguments": item.text, "name": item.object["name"]}
                frames = [self._event("response.function_call_arguments.done", **done)]
            case "custom_tool_call":
                frames = [self._event("response.custom_tool_call_input.done", input=item.text)]
        if "content" in item.object:
            frames.append(self._event("response.content_part.done", content_index=0, part=item.part()))
        frames.append(self._event("response.output_item.done", item=item.whole(status)))
        self._open = None
        return frames

    # -- frames -------------------------------------------------------------------------------------------

    @property
    def _item(self) -> _Item:
        assert self._open is not None
        return self._open

    def _event(self, kind: str, **fields: Any) -> Frame:
        """An event; one about the open item says so."""
        number = self._sequence
        self._sequence += 1
        about: dict[str, Any] = {}
        if self._open is not None and "response" not in fields:
            about = {"output_index": self._open.position}
            if "item" not in fields:
                about["item_id"] = self._open.object["id"]
        return Frame({"type": kind, "sequence_number": number, **about, **fields}, event=kind)

    def _lifecycle(self, kind: str) -> Frame:
        return self._event(kind, response=self.whole())


_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
