"""Tools made of typed Python functions: `@tool`, and `as_tool` for whatever a caller has.

A function that cannot be a tool raises InvalidTool when it is decorated, not when a model calls it, and the
error names the parameter.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar, overload

from localagent.errors import InvalidTool
from localagent.messages.values import check_json
from localagent.tools.arguments import read_arguments
from localagent.tools.names import check_name
from localagent.tools.signature import (
    Documented,
    docstring_of,
    read_docstring,
    read_signature,
    refuse,
    underlying,
)
from localagent.tools.tool import Tool
from localagent.wording import listed, quoted

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class FunctionTool(Tool, Generic[P, R]):
    """A tool made from a Python function, which can still be called like one."""

    function: Callable[P, R] = field(repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        documented = docstring_of(underlying(self.function))
        known = {"__name__": self.name, "__doc__": documented, "__wrapped__": self.function}
        for name in ("__name__", "__qualname__", "__module__"):
            if isinstance(text := getattr(self.function, name, None), str):
                known[name] = text
        vars(self).update(known)  # frozen for everybody else

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself: nothing is validated or converted."""
        return self.function(*args, **kwargs)


@overload
def tool(
    function: Callable[P, R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    side_effects: bool = False,
    sequential: bool = False,
    repeatable: bool = False,
    timeout: float | None = None,
    kind: str | None = None,
) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    side_effects: bool = False,
    sequential: bool = False,
    repeatable: bool = False,
    timeout: float | None = None,
    kind: str | None = None,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    side_effects: bool = False,
    sequential: bool = False,
    repeatable: bool = False,
    timeout: float | None = None,
    kind: str | None = None,
) -> Any:
    """Make a tool from a typed function, sync or async: `@tool`, or `@tool(name=..., side_effects=True)`.

    Name, description and parameters come from the function and its docstring unless given. A parameter
    annotated ToolContext is filled in and hidden from models. The model reads what the function returns;
    prints go to standard output as usual, and `context.progress` reports to the consumer of the run. `Tool`
    describes the other options. Raises InvalidTool, which names the parameter at fault.
    """

    def decorate(written: Callable[..., Any]) -> FunctionTool[..., Any]:
        called, documented = _described(written, name)
        if timeout is not None and not (_is_number(timeout) and 0 < timeout < math.inf):
            raise InvalidTool(f"tool {called}: timeout={timeout!r:.40} is not a number of seconds above 0")
        if description is not None and not isinstance(description, str):
            raise InvalidTool(f"tool {called}: description={description!r:.40} is not text")
        parameters = read_signature(written, called)
        known = dict.fromkeys([each.name for each in parameters] + _bound_names(written))
        for each in documented.parameters:
            if each not in known:
                raise refuse(called, each, f"documented, but there are: {listed(known)}")
        arguments = read_arguments(parameters, documented.parameters, called)
        made: FunctionTool[..., Any] = FunctionTool(
            name=called,
            description=documented.description if description is None else description,
            parameters=arguments.schema,
            bind=functools.partial(arguments.bind, written),
            normalise=arguments.normal,
            side_effects=side_effects,
            sequential=sequential,
            repeatable=repeatable,
            timeout=timeout,
            kind=kind,
            origin=written,
            function=written,
        )
        try:
            check_json(made.schema)
        except ValueError as error:
            raise InvalidTool(f"tool {called}: its description or schema is not JSON: {error}") from None
        return made

    return decorate if function is None else decorate(function)


def as_tool(thing: Tool | Callable[..., Any]) -> Tool:
    """Return a tool unchanged, or make one from anything callable. Raises InvalidTool."""
    return thing if isinstance(thing, Tool) else tool()(thing)


def _described(written: Any, name: str | None) -> tuple[str, Documented]:
    """The name of the tool and what its docstring says. Raises InvalidTool for anything but a function."""
    if isinstance(written, type):
        raise InvalidTool(f"{quoted(written.__name__)} is a class: pass a function, or an instance of it")
    if not callable(written):
        raise InvalidTool(f"{written!r:.60} is not a function but a {type(written).__name__}")
    inner = underlying(written)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise InvalidTool(f"{quoted(inner.__name__)} is a generator: return one result, such as a list")
    plain = written.func if isinstance(written, functools.partial) else written
    called = name if name is not None else getattr(plain, "__name__", type(plain).__name__)
    documented = read_docstring(docstring_of(inner))
    if not documented.description and not inspect.isroutine(plain) and not hasattr(plain, "__wrapped__"):
        # An object: its class says what it is, and of parameters only those of __init__.
        documented = Documented(
            read_docstring(inspect.getdoc(type(plain))).description, documented.parameters
        )
    return check_name(called), documented


def _bound_names(written: Any) -> list[str]:
    """Parameters that models are not asked for, but that a docstring may name."""
    try:
        return list(inspect.signature(underlying(written)).parameters)
    except (TypeError, ValueError):
        return []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
