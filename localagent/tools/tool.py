"""A tool: a name, a schema, and a way to bind a model's arguments to something that runs.

`function.tool` makes one from a Python function, `localagent.mcp` from a server's tool. `bind` checks the
arguments and runs nothing; its result may be run once.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from localagent.errors import InvalidTool
from localagent.messages import Message, ResultPart, ToolCallPart
from localagent.tools.bounds import TOOL_BOUNDS
from localagent.wording import writable

Bound = Callable[["ToolContext"], Any | Awaitable[Any]]
"""A tool with its arguments. It runs once and returns a value for `results.as_result`, or an awaitable."""


Report = Callable[[str, float | None], None]
"""Receives progress: a text, and the share of the work that is done, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """A running tool's view of its call, and its way to report progress.

    A function gets it through a parameter with this annotation, which models never see.
    """

    call: ToolCallPart
    """The call as it was approved."""
    messages: Sequence[Message] = ()
    """The conversation up to the call."""
    agent_name: str | None = None
    state: Any = None
    """Whatever the application passed to the run for its tools, such as a user or a database."""
    cancel: threading.Event = field(default_factory=threading.Event)
    """Set when the result is no longer wanted: the run was cancelled, or the time is up."""
    report: Report = lambda text, share: None

    def progress(self, text: str, share: float | None = None) -> None:
        """Report progress. `share`: the part of the work that is done, from 0 to 1."""
        number = isinstance(share, int | float) and math.isfinite(share)
        self.report(writable(str(text)), min(max(float(share or 0), 0.0), 1.0) if number else None)


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """A result with options. Its content is text, parts or anything that JSON can hold."""

    content: str | Sequence[ResultPart] | Any
    is_error: bool = False
    terminate: bool = False
    """End the run with this result, without another turn of the model."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """JSON for hooks and logs; never sent to a model."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """What a call would do to a text file."""

    path: str
    before: str | None
    """The text of the file as it is; None if there is no such file."""
    after: str


@dataclass(frozen=True, kw_only=True)
class Tool:
    """Something that a model may call.

    `parameters` is the JSON Schema of an object. `bind` takes the arguments as the model wrote them. If they
    do not fit, it raises InvalidArguments with a text for the model.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    bind: Callable[[Mapping[str, Any]], Bound]
    normalise: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    """Turns the model's arguments into those that the tool gets, as JSON; raises what `bind` does.

    Approval rules use it, since they must see what will really run. None: the tool takes them unchanged.
    """
    side_effects: bool = False
    """It changes something outside the conversation, so a person is asked before it runs."""
    sequential: bool = False
    """No other call of the turn runs at the same time, except one that was given up but still works."""
    repeatable: bool = False
    """Repeating the same call makes sense, such as checking whether something is ready."""
    timeout: float | None = None
    """Seconds; None leaves it to the agent."""
    kind: str | None = None
    """The kind of tool, as a hint for user interfaces: "read", "edit", "execute", "fetch".

    The calls that a run keeps have it as their `tool_kind`.
    """
    change: Callable[[Mapping[str, Any]], FileChange | None] | None = field(default=None, repr=False)
    """What a call with these arguments would change, for the person who is asked about it. It changes nothing
    and never raises; None: the arguments say it best."""
    origin: Any = field(default=None, repr=False)
    """What does the work: a function, or a server's tool as it was listed. None: `bind`."""

    def __post_init__(self) -> None:
        """Raises InvalidTool for a kind that is no word, and for a tool that is too large."""
        TOOL_BOUNDS.check(self.name, self.description, self.parameters)
        if self.kind is not None and not (isinstance(self.kind, str) and self.kind.isprintable()):
            raise InvalidTool(f"tool {self.name}: kind={self.kind!r:.40} is no word, such as 'read'")
        if self.origin is None:  # a copy with another `bind` still does the same work, so it keeps the origin
            object.__setattr__(self, "origin", self.bind)

    @property
    def identity(self) -> Hashable:
        """Equal for tools that look the same to a person and do the same work.

        An approval is remembered by this, not by the name: a server may give the name another meaning, and
        another tool may take it over.
        """
        try:
            hash(origin := self.origin)
        except TypeError:
            origin = id(self.origin)  # never reused: who keeps an identity keeps the tool
        return json.dumps([self.schema, self.side_effects, self.kind], sort_keys=True, default=repr), origin

    def normal(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments in normal form: what the tool gets, as JSON. Raises InvalidArguments."""
        own = dict(deepcopy(arguments))  # a validator may take its input apart
        return own if self.normalise is None else self.normalise(own)

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
