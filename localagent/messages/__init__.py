"""The shared message model: one set of types for user input, model output, tool calls and results."""

from localagent.messages.messages import (
    AssistantMessage,
    Message,
    StopReason,
    SystemMessage,
    ToolMessage,
    UserMessage,
    dump_messages,
    load_messages,
)
from localagent.messages.parts import (
    AssistantPart,
    MalformedToolCallPart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    UserPart,
)
from localagent.messages.usage import Timings, Usage

__all__ = [
    "AssistantMessage",
    "AssistantPart",
    "MalformedToolCallPart",
    "Message",
    "ReasoningPart",
    "StopReason",
    "SystemMessage",
    "TextPart",
    "Timings",
    "ToolCallPart",
    "ToolMessage",
    "ToolResultPart",
    "Usage",
    "UserMessage",
    "UserPart",
    "dump_messages",
    "load_messages",
]
