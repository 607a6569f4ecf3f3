"""What a tool is: a name, a schema, and a way to bind a model's arguments to something that runs.

`function.tool` makes one of a Python function, `localagent.mcp` one of what a server offers. `bind` checks
the arguments and runs nothing; what it returns may be run once.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localagent.errors import InvalidTool
from localagent.messages import Message, ResultPart, ToolCallPart
from localagent.wording import writable

Bound = Callable[["ToolContext"], Any | Awaitable[Any]]
"""A tool with its arguments: runs once, and returns what `results.as_result` takes, or something to await."""


Report = Callable[[str, float | None], None]
"""Receives progress: a text, and the share of the whole that is done, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a running tool may know of its call, and how it reports progress.

    A function has it passed when one of its parameters is annotated so; models never see that parameter.
    """

    call: ToolCallPart
    """The call as it was approved."""
    messages: Sequence[Message] = ()
    """The conversation up to the call."""
    agent_name: str | None = None
    state: Any = None
    """Whatever the application passed to the run for its tools, such as a user or a database."""
    cancel: threading.Event = field(default_factory=threading.Event)
    """Set when nobody waits for the result: the run was cancelled, or the time is up."""
    report: Report = lambda text, share: None

    def progress(self, text: str, share: float | None = None) -> None:
        """Report how far the call is. `share` is the part of the whole that is done, from 0 to 1."""
        number = isinstance(share, int | float) and math.isfinite(share)
        self.report(writable(str(text)), min(max(float(share or 0), 0.0), 1.0) if number else None)


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """A result with more than its content, which is text, parts or anything that JSON can hold."""

    content: str | Sequence[ResultPart] | Any
    is_error: bool = False
    terminate: bool = False
    """The run ends with this result: the model is not asked to go on."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """JSON for hooks and logs; never sent to a model."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """Something that a model may call.

    `parameters` is the JSON Schema of an object. `bind` takes the arguments as the model wrote them and
    raises InvalidArguments, in words for the model, for what the tool cannot be called with.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    bind: Callable[[Mapping[str, Any]], Bound]
    normalise: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    """From the arguments as a model wrote them to those that the tool gets, as JSON; raises what `bind` does.

    For rules, which must see what runs. None: the tool takes them as they are written.
    """
    side_effects: bool = False
    """It changes something outside the conversation: a person is asked before it runs."""
    sequential: bool = False
    """No other call of the same turn runs beside it, except one that was given up and is still at work."""
    repeatable: bool = False
    """The same call twice in a row makes sense, such as looking whether something is ready."""
    timeout: float | None = None
    """Seconds; None leaves it to the agent."""
    kind: str | None = None
    """What sort of tool it is, as a hint for user interfaces: "read", "edit", "execute", "fetch".

    The calls that a run keeps have it as their `tool_kind`.
    """
    origin: Any = field(default=None, repr=False)
    """What does the work: a function, a tool of a server as it was listed. None: `bind`."""

    def __post_init__(self) -> None:
        """Raises InvalidTool for a kind that is no word."""
        if self.kind is not None and not (isinstance(self.kind, str) and self.kind.isprintable()):
            raise InvalidTool(f"tool {self.name}: kind={self.kind!r:.40} is no word, such as 'read'")
        if self.origin is None:  # a copy with another `bind` still does the same work, so it keeps the origin
            object.__setattr__(self, "origin", self.bind)

    @property
    def identity(self) -> Hashable:
        """Equal for tools that are the same in all that a person sees of them, and in what does the work.

        A name alone is not enough to remember an answer by: a server may come to mean something else by it,
        and another tool may take its place.
        """
        try:
            hash(origin := self.origin)
        except TypeError:
            origin = id(self.origin)  # whoever keeps the identity keeps the tool
        return json.dumps([self.schema, self.side_effects, self.kind], sort_keys=True, default=repr), origin

    def normal(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments in normal form: what the tool gets, as JSON. Raises InvalidArguments."""
        return dict(arguments) if self.normalise is None else self.normalise(arguments)

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as an OpenAI function tool, which is what models and parsers are shown."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }
