"""The events of a run as JSON, one object a line, for `localagent run --events`.

`event` names the kind: "text", "reasoning", "call_start", "arguments_delta", "call_end", "malformed",
"tool_ended" and so on, as the classes of `parsers.events` and `agent.events` do; the other fields are theirs.
The last line is "run_done" or "run_failed".
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from localagent.agent import AgentEvent
from localagent.cli.terminal import show_json


class EventLines:
    """A view that prints every event on stdout, as soon as it comes."""

    def show(self, event: AgentEvent) -> None:
        """Print the next event."""
        # ASCII, so that no line separator of Unicode's ends a line early for its reader.
        show_json(json.dumps(as_json(event)))

    def end(self) -> None:
        """Nothing: every line is whole."""


def as_json(event: AgentEvent) -> dict[str, Any]:
    """An event as a JSON object."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    fields = dataclasses.fields(event)
    return {"event": name, **{each.name: _plain(getattr(event, each.name)) for each in fields}}


def _plain(value: Any) -> Any:
    match value:
        case BaseModel():
            return value.model_dump(mode="json")
        case Exception():
            return {"type": type(value).__name__, "message": str(value)}
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case None | bool() | int() | float():
            return value
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    return str(value)
