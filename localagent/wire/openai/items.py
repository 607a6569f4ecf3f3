"""The input of OpenAI's responses API to messages.

An answer comes back as a run of items: reasoning, messages and calls, which are one assistant message here.
Results find their calls by id, wherever they stand, and follow the message with the call. Items of tools that
only the API's own servers have are left out, and named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from localagent.errors import UnpairedResult
from localagent.messages import (
    AssistantMessage,
    ImagePart,
    ModelMessage,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from localagent.wire.extras import collect
from localagent.wire.openai.reading import read_function
from localagent.wire.payload import Fields, at, objects

CUSTOM_INPUT = "input"
"""The argument of the function that stands for a custom tool, which takes plain text."""
SEALED = "localagent:"
"""How the `encrypted_content` begins in which localagent's own server hands out reasoning, in plain text.

Codex sends back this field alone, and drops the reasoning that it could read."""


def full_name(space: str | None, name: str) -> str:
    """The name by which the model knows a tool of a namespace."""
    return f"{space}{'' if space.endswith('_') else '__'}{name}" if space else name


@dataclass(slots=True)
class _Turn:
    """An assistant message, the results of its calls, and whether something else came after it."""

    parts: list[Any] = field(default_factory=list)
    results: list[ToolResultPart] = field(default_factory=list)
    closed: bool = False

    def messages(self) -> Iterator[ModelMessage]:
        yield AssistantMessage(content=tuple(self.parts))
        if self.results:
            yield ToolMessage(content=tuple(self.results))


def read_input(payload: object) -> tuple[list[ModelMessage], list[str]]:
    """The messages of a request's `input`, and the types of the items that were left out.

    Raises InvalidMessage, UnpairedResult.
    """
    if isinstance(payload, str):
        return [UserMessage(content=payload)], []
    reader = _Reader()
    for item in objects(payload, "input"):
        with at(item.where):
            reader.read(item)
    return list(reader.messages()), reader.left_out


class _Reader:
    def __init__(self) -> None:
        self.left_out: list[str] = []
        self._turns: list[_Turn | SystemMessage | UserMessage] = []
        self._waiting: dict[str, list[tuple[_Turn, str]]] = {}  # by call id: the turn, and the name

    def messages(self) -> Iterator[ModelMessage]:
        for turn in self._turns:
            if isinstance(turn, _Turn):
                yield from turn.messages()
            else:
                yield turn

    def read(self, item: Fields) -> None:
        match kind := item.maybe_text("type") or "message":
            case "message":
                self._message(item)
            case "reasoning":
                self._assistant().parts += _reasoning(item)
            case "function_call" | "custom_tool_call":
                self._call(item, kind)
            case "function_call_output" | "custom_tool_call_output":
                self._result(item)
            case "item_reference":
                raise item.wrong("no items are kept: send it whole, as clients do with store: false", "type")
            case "compaction" | "compaction_summary":
                raise item.wrong("only the server that wrote this compaction can read it", "type")
            case _:
                self.left_out.append(kind)

    def _assistant(self) -> _Turn:
        """The assistant message that items are added to."""
        last = self._turns[-1] if self._turns else None
        if isinstance(last, _Turn) and not last.closed:
            return last
        self._turns.append(turn := _Turn())
        return turn

    def _message(self, item: Fields) -> None:
        role, content = item.text("role"), item.take("content")
        parts: list[Any]
        if isinstance(content, str):
            parts = [TextPart(text=content)]
        else:
            parts = [_part(block) for block in objects(content, item.path("content"))]
        match role:
            case "assistant":
                self._assistant().parts += parts
            case "user":
                self._turns.append(UserMessage(content=tuple(parts)))
            case "system" | "developer":
                self._turns.append(SystemMessage(content=tuple(parts)))
            case _:
                raise item.wrong(f"{role!r:.60} is no role: system, developer, user, assistant", "role")

    def _call(self, item: Fields, kind: str) -> None:
        call_id, space = item.text("call_id"), item.maybe_text("namespace")
        if kind == "custom_tool_call":
            name = item.text("name")
            part: Any = ToolCallPart(id=call_id, name=name, arguments={CUSTOM_INPUT: item.text("input")})
        else:
            part = read_function(Fields({}, item.where), item, call_id)
        part = part.model_copy(update={"name": full_name(space, part.name), "provider_metadata": {}})
        turn = self._assistant()
        turn.parts.append(part)
        self._waiting.setdefault(call_id, []).append((turn, part.name))

    def _result(self, item: Fields) -> None:
        call_id, output = item.text("call_id"), item.take("output")
        waiting = self._waiting.get(call_id)
        if not waiting:
            raise UnpairedResult(f"{item.path('call_id')}: no call before it has the id {call_id!r:.60}")
        turn, name = waiting.pop(0)
        content: Any = output
        if not isinstance(output, str):
            content = tuple(_part(block) for block in objects(output, item.path("output")))
        turn.closed = True
        turn.results.append(ToolResultPart(call_id=call_id, name=name, content=content))


def _reasoning(item: Fields) -> list[ReasoningPart]:
    """Its text, if it can be read: as it was written, or else its summary."""
    sealed = item.maybe_text("encrypted_content") or ""
    summary = "\n\n".join(block.text("text") for block in item.objects("summary"))
    text = "".join(block.text("text") for block in item.objects("content"))
    if not text and sealed.startswith(SEALED):
        text = sealed.removeprefix(SEALED)
    return [ReasoningPart(text=text or summary)] if text or summary else []


def _part(block: Fields) -> Any:
    match kind := block.text("type"):
        case "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text":
            return TextPart(text=block.text("text"))
        case "refusal":
            return TextPart(text=block.text("refusal"))
        case "input_image":
            url, file_id = block.take("image_url"), block.maybe_text("file_id")
            if isinstance(url, dict):  # as chat completions have it
                url = Fields(url, block.path("image_url")).text("url")
            metadata = collect(block, "openai")
            with at(block.path("image_url")):
                return ImagePart(url=url, file_id=file_id, provider_metadata=metadata)
        case "input_file":
            data, name = block.maybe_text("file_data"), block.maybe_text("filename")
            source: dict[str, Any] = {
                "url": block.maybe_text("file_url"),
                "file_id": block.maybe_text("file_id"),
            }
            if data is not None:
                source["url" if data.startswith("data:") else "data"] = data
            with at(block.where):
                return ImagePart(**source, provider_metadata={"openai": {"filename": name}} if name else {})
        case _:
            return block.unknown("openai", kind)
