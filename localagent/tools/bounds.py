"""How large the tools of a request may be: on every wire of the server, in Python, and of MCP servers.

A prompt with the largest tools is rendered and tokenized in about a second. Other APIs take less: names of 64
characters at OpenAI and of 128 at Anthropic.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from localagent.errors import InvalidTool
from localagent.wording import quoted


@dataclass(frozen=True, slots=True)
class ToolBounds:
    """The most that is taken, in characters; of a schema those of its JSON."""

    name: int = 256
    description: int = 50_000
    schema: int = 500_000
    together: int = 2_000_000
    """Of the names, descriptions and schemas of all tools."""
    count: int = 1_000
    """Tools."""

    def check(self, name: str, description: object, schema: object) -> int:
        """The characters of one tool. Raises InvalidTool."""
        if not name:
            raise InvalidTool("a tool without a name: models call tools by name", "name")
        total = 0
        parts = {"name": (name, self.name), "description": (description, self.description)}
        for part, (value, most) in {**parts, "schema": (schema, self.schema)}.items():
            try:
                size = json_size(value)
            except ValueError as error:
                raise InvalidTool(f"tool {quoted(name)}: its {part} is not JSON: {error}", part) from None
            if size > most:
                said = f"its {part} has {size:,} characters, and at most {most:,} are taken"
                raise InvalidTool(f"tool {quoted(name)}: {said}", part)
            total += size
        return total


TOOL_BOUNDS = ToolBounds()


class ToolRoom:
    """What is left for the tools of one request."""

    def __init__(self, bounds: ToolBounds = TOOL_BOUNDS) -> None:
        self._bounds = bounds
        self._total = 0
        self._count = 0

    def add(self, name: str, description: object, schema: object) -> None:
        """Take in a tool. Raises InvalidTool for one that is too large, or for which there is no room."""
        bounds = self._bounds
        total = self._total + bounds.check(name, description, schema)
        if self._count == bounds.count:
            raise InvalidTool(f"tool {quoted(name)}: it is one more than the {bounds.count:,} that are taken")
        if total > bounds.together:
            raise InvalidTool(
                f"tool {quoted(name)}: with it all tools together have {total:,} characters, and at most "
                f"{bounds.together:,} are taken"
            )
        self._total = total
        self._count += 1


def json_size(value: object) -> int:
    """The characters of a value as JSON, and of text as it is. Raises ValueError for one without an end."""
    if isinstance(value, str):
        return len(value)
    try:
        return len(json.dumps(value, ensure_ascii=False, skipkeys=True, default=repr))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
