"""A tool that a server lists, as a `Tool` that models are offered.

Knows the server's description of a tool. Does not know threads or connections: what runs a call is passed in.
Contract: whatever the server wrote as a schema, building the tool and binding arguments to it never fail for
that. Where a schema cannot be used, only the server checks the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from localagent.errors import InvalidArguments
from localagent.mcp.config import ServerConfig
from localagent.tools.tool import Bound, Tool, ToolContext, ToolOutput

if TYPE_CHECKING:
    from jsonschema.protocols import Validator
    from mcp_types import Tool as ListedTool

Run = Callable[[str, str, Mapping[str, Any], ToolContext], ToolOutput]
"""Calls a tool, named by its server and its own name, and waits for the result."""
TOLD = 3
"""Mistakes in one call that the model is told of at once."""
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")


def offered_name(server: str, tool: str, prefix: bool) -> str:
    """What models call the tool: letters, digits, "_", "-" and "."; anything else becomes "_"."""
    return _UNFIT.sub("_", f"{server}_{tool}" if prefix else tool)


def offered_tool(config: ServerConfig, listed: ListedTool, prefix: bool, run: Run) -> Tool:
    """The tool for models."""
    name = offered_name(config.name, listed.name, prefix)
    notes = listed.annotations
    arguments = Arguments(name, listed.input_schema)

    def bind(given: Mapping[str, Any]) -> Bound:
        arguments.check(given)
        return lambda context: run(config.name, listed.name, given, context)

    reads_only = notes is not None and notes.read_only_hint is True
    return Tool(
        name=name,
        description=listed.description or listed.title or (notes.title if notes else None) or "",
        parameters={"type": "object", "properties": {}, **listed.input_schema},
        bind=bind,
        # A server that says nothing of its tool may do anything.
        side_effects=not (reads_only or config.allows(listed.name)),
        timeout=config.timeout,
    )


class Arguments:
    """What a tool takes, by its JSON Schema."""

    def __init__(self, tool: str, schema: Mapping[str, Any]) -> None:
        self._tool = tool
        self._schema = schema

    def check(self, given: Any) -> None:
        """Raise InvalidArguments for arguments that do not fit."""
        if not isinstance(given, Mapping):
            raise InvalidArguments(f"the arguments of {self._tool} are an object, not {type(given).__name__}")
        validator = self._validator
        if validator is None:
            return
        found = []
        try:
            for error in validator.iter_errors(dict(given)):
                where = "".join(
                    f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path
                ).lstrip(".")
                said = error.message if len(error.message) <= 200 else f"{error.message[:197]}..."
                found.append(f"{where}: {said}" if where else said)
                if len(found) > TOLD:
                    break
        except (
            Exception
        ):  # a reference to nowhere or to itself, a pattern that is none: jsonschema lets all out
            return
        if found:
            more = "; and more" if len(found) > TOLD else ""
            raise InvalidArguments(f"the arguments do not fit {self._tool}: {'; '.join(found[:TOLD])}{more}")

    @cached_property
    def _validator(self) -> Validator | None:
        """None when the schema is none."""
        from jsonschema import Draft202012Validator
        from jsonschema.validators import validator_for
        from referencing import Registry

        try:
            kind = validator_for(self._schema, Draft202012Validator)
            kind.check_schema(self._schema)
            # With an empty registry nothing is fetched: a reference to elsewhere would be a request to
            # elsewhere.
            return kind(self._schema, registry=Registry())
        except Exception:
            return None
