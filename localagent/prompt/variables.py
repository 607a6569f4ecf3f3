"""Messages to the variables of a chat template: dicts with `role` and string `content`.

Tool calls go into the content as the model itself writes them, wherever the dialect can: LFM2's own
templates drop `tool_calls` from the history without a word, and others do not escape strings. The template is
asked what it shows (`probe`), and given `tool_calls` if it shows them, for a dialect that cannot write calls,
where a template frames content, and where it refuses the results of calls that it has not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

from localagent.errors import Unsupported
from localagent.messages import (
    AssistantMessage,
    ModelMessage,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from localagent.parsers import Dialect
from localagent.prompt.notation import own_words, write_calls
from localagent.prompt.probe import TemplateSupport
from localagent.prompt.request import Target
from localagent.prompt.segments import Mixed

TARGET = Target("the chat template", system="slot", vision=False, orphan_results=True)


def to_wire(
    messages: Sequence[ModelMessage], dialect: Dialect, support: TemplateSupport | None = None
) -> list[dict[str, Any]]:
    """The conversation as template variables. Raises Unsupported.

    Calls go into the content, as the model writes them. With `support`, what `probe` said of the template,
    they are left to the template if it shows them: for dialects that cannot write calls, and for templates
    that frame content or want to see calls where results follow.
    """
    support = support or TemplateSupport()
    turns: list[dict[str, Any]] = []
    for message in messages:
        match message:
            case SystemMessage() | UserMessage():
                turns.append({"role": message.role, "content": "".join(_texts(message.content))})
            case AssistantMessage():
                turns.append(_assistant(message, dialect, support))
            case ToolMessage():
                turns += (_result(part, support) for part in message.content)
            case _:
                raise Unsupported(
                    f"a chat template cannot carry a message of role {message.role!r}: build_request makes "
                    "one of it that can be sent"
                )
    return turns


def join_users(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """The messages, neighbouring ones of the user as one: for templates that want the roles to take turns.

    They come of summaries and rescues, and of requests that were never answered.
    """
    joined: list[ModelMessage] = []
    for message in messages:
        before = joined[-1] if joined else None
        if isinstance(message, UserMessage) and isinstance(before, UserMessage):
            content = (*before.content, TextPart(text="\n\n"), *message.content)
            joined[-1] = before.model_copy(update={"content": content})
        else:
            joined.append(message)
    return joined


def _texts(parts: Iterable[Any]) -> Iterator[str]:
    for part in parts:
        if not isinstance(part, TextPart):
            raise _not_carried(part)
        yield part.text


def _result(part: Any, support: TemplateSupport) -> dict[str, Any]:
    if not isinstance(part, ToolResultPart):
        raise _not_carried(part)
    content = "".join(_texts(part.parts))
    if not support.tool_results:
        return {"role": "user", "content": f"Result of {part.name}:\n{content}"}
    return {"role": "tool", "name": part.name, "tool_call_id": part.call_id, "content": content}


def _assistant(message: AssistantMessage, dialect: Dialect, support: TemplateSupport) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant"}
    calls = message.tool_calls
    if calls and (support.tool_calls or not dialect.renderers):
        if not support.tool_calls:
            raise Unsupported(
                f"the history holds calls of {calls[0].name!r}, which neither this model's template nor the "
                f"dialect {dialect.name!r} can write"
            )
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments_text if support.text_arguments else deepcopy(call.arguments),
                },
            }
            for call in calls
        ]
    if message.reasoning:
        turn["reasoning_content"] = turn["thinking"] = message.reasoning
    if "tool_calls" not in turn:
        turn["content"] = Mixed(own_words(message, dialect) or _content(message, dialect))
        return turn
    content = turn["content"] = Mixed(_content(message, None))
    if support.none_content and not str(content).strip():
        turn["content"] = None
    elif str(content).strip() and not support.text_with_calls:
        raise Unsupported(
            f"a turn of the history holds text and a call of {calls[0].name!r}, and this model's template "
            "shows only one of them"
        )
    return turn


def _content(message: AssistantMessage, dialect: Dialect | None) -> Iterator[str]:
    """The text and, if there is a dialect, the calls; neighbours share a block, as the model writes them."""
    block: list[ToolCallPart] = []
    said = ""
    for part in (*message.content, None):
        if isinstance(part, ToolCallPart):
            block.append(part)
            continue
        if block and dialect is not None:
            yield from write_calls(block, dialect, after_text=bool(said))
        block = []
        match part:
            case TextPart(text=text):
                said = text
                yield text
            case ReasoningPart(opaque=False) | None:
                pass
            case _:
                raise _not_carried(part)


def _not_carried(part: Any) -> Unsupported:
    return Unsupported(f"a chat template cannot carry a part of kind {part.kind!r:.60}")
