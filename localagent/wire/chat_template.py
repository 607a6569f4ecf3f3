"""Messages in the shape that Hugging Face chat templates read: dicts with `role` and string `content`.

What this shape cannot carry, and what becomes of it:
- tool calls go into the content as the model itself writes them, since LFM2's own templates drop
  `tool_calls` from the history without a word;
- a malformed call goes back as the text the model wrote, for the model to correct itself;
- ids, usage, timings and the raw output stay behind.

Only the markers around a block of calls are meant as control tokens (`Trusted`); what stands between them
comes from users and tools as well, and is content like all other text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from localagent.messages import (
    AssistantMessage,
    MalformedToolCallPart,
    Message,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from localagent.prompt import Mixed, Trusted
from parsers import Dialect


def to_chat_template(messages: Sequence[Message], dialect: Dialect) -> list[dict[str, Any]]:
    """The conversation as template variables. System messages become one, in front.

    Raises ValueError where a call cannot be written in the dialect.
    """
    system = "\n\n".join(message.text for message in messages if isinstance(message, SystemMessage))
    turns: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for message in messages:
        match message:
            case SystemMessage():
                pass
            case UserMessage():
                turns.append({"role": "user", "content": message.text})
            case AssistantMessage():
                turns.append(_assistant(message, dialect))
            case ToolMessage():
                turns += (
                    {"role": "tool", "name": part.name, "tool_call_id": part.call_id, "content": part.content}
                    for part in message.content
                )
            case _:
                assert_never(message)
    return turns


def _assistant(message: AssistantMessage, dialect: Dialect) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant", "content": Mixed(_content(message, dialect))}
    if message.tool_calls and message.reasoning:
        turn["reasoning_content"] = turn["thinking"] = message.reasoning
    return turn


def _content(message: AssistantMessage, dialect: Dialect) -> Iterable[str]:
    """Neighbouring calls share one block, as the model wrote them."""
    block: list[ToolCallPart] = []
    for part in (*message.content, None):
        if isinstance(part, ToolCallPart):
            block.append(part)
            continue
        if block:
            yield from _written(block, dialect)
            block = []
        match part:
            case TextPart(text=text):
                yield text
            case MalformedToolCallPart(raw=raw):
                yield raw
            case ReasoningPart() | None:
                pass
            case _:
                assert_never(part)


def _written(calls: Iterable[ToolCallPart], dialect: Dialect) -> Iterable[str]:
    """A block of calls as the model writes it: marker, payload, marker."""
    text = dialect.render([(call.name, call.arguments) for call in calls])
    assert dialect.calls is not None  # or `render` would have refused
    yield Trusted(dialect.calls.open)
    yield text.removeprefix(dialect.calls.open).removesuffix(dialect.calls.close)
    yield Trusted(dialect.calls.close)
