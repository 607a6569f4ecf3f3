"""The tools of a run: the schemas for the model, and finding the tool that a model means by a name.

Making a set of two tools that a model cannot tell apart raises InvalidTool.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from localagent.errors import InvalidTool
from localagent.tools.bounds import ToolRoom
from localagent.tools.function import FunctionTool, as_tool
from localagent.tools.names import matched, normal_name, shown_name, shown_parameter
from localagent.tools.tool import Bound, Tool
from localagent.wording import listed, quoted, writable

__all__ = ["ToolSet", "normal_name", "shown_name", "shown_to_models"]


class ToolSet:
    """Tools by name, in the order given. Raises InvalidTool for two with one name, or more than is taken."""

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        if not isinstance(tools, Iterable) or isinstance(tools, str | Mapping):
            raise InvalidTool(f"tools must be a list of tools, not a {type(tools).__name__}")
        self._tools: dict[str, Tool] = {}
        self._by_form: dict[str, Tool] = {}
        self._room = ToolRoom()
        for each in tools:
            self._add(shown_to_models(as_tool(each)))

    def _add(self, tool: Tool) -> None:
        self._room.add(tool.name, tool.description, tool.parameters)
        form = normal_name(tool.name)
        if (other := self._by_form.get(form)) is not None:
            both = f"{quoted(other.name)} and {quoted(tool.name)}"
            raise InvalidTool(f"two tools that models cannot tell apart: {both}; rename one")
        self._tools[tool.name] = self._by_form[form] = tool

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools as OpenAI function tools, under the names that models are shown."""
        schemas = [tool.schema for tool in self]
        for schema in schemas:
            schema["function"]["name"] = shown_name(schema["function"]["name"])
        return schemas

    @property
    def names(self) -> tuple[str, ...]:
        """The tools' own names."""
        return tuple(self._tools)

    def find(self, name: str) -> Tool | None:
        """The tool that a model means: the one with that name, or else with the same normal form."""
        return self._tools.get(name) or self._by_form.get(normal_name(name))

    def unknown(self, name: str) -> str:
        """What to tell a model that calls a tool that does not exist."""
        said = writable(f"There is no tool {quoted(name)}.")
        if not self._tools:
            return f"{said} There are no tools."
        close = difflib.get_close_matches(normal_name(name[:100]), self._by_form, n=1)
        first = [shown_name(self._by_form[form].name) for form in close]
        others = [shown for shown in map(shown_name, self._tools) if shown not in first]
        hint = f" Did you mean {first[0]}?" if first else ""
        return f"{said}{hint} The tools are: {listed([*first, *others])}."

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def __repr__(self) -> str:
        return f"ToolSet({listed(self._tools)})"


def shown_to_models(tool: Tool) -> Tool:
    """The tool with parameters that models can write, bound by the names that it knows; its name stays.

    Only the names at the top of its schema change. Raises InvalidTool where two become the same.
    """
    if isinstance(tool, FunctionTool):
        return tool  # Python's names are names already, and it matches them itself
    properties = tool.parameters.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return tool
    shown: dict[str, str] = {}
    for name in properties:
        if (other := shown.setdefault(shown_parameter(name), name)) != name:
            raise InvalidTool(
                f"tool {quoted(tool.name)}: models cannot tell its parameters "
                f"{quoted(other)} and {quoted(name)} apart"
            )
    parameters = {**tool.parameters, "properties": {new: properties[old] for new, old in shown.items()}}
    if isinstance(required := tool.parameters.get("required"), list):
        parameters["required"] = [shown_parameter(name) for name in required]

    def bind(arguments: Mapping[str, Any]) -> Bound:
        return tool.bind(matched(arguments, tuple(properties)))

    def normalise(arguments: Mapping[str, Any]) -> dict[str, Any]:
        return tool.normal(matched(arguments, tuple(properties)))

    return replace(tool, parameters=parameters, bind=bind, normalise=normalise)
