"""The parameters of a function: types, defaults and docstring.

Docstrings are read in Google, NumPy, reST and epydoc style. A mistake is an InvalidTool that names the tool
and the parameter. Nothing of the function is run, but annotations that are text are evaluated.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from localagent.errors import InvalidTool
from localagent.tools.tool import ToolContext
from localagent.wording import quoted

NOTHING: Any = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. `adapter` is None for the one that takes the ToolContext."""

    name: str
    adapter: TypeAdapter[Any] | None
    description: str | None = None
    """What its annotation says of it."""
    default: Any = NOTHING
    """The function's own default, or else its Field's; NOTHING for one that a Field makes each time."""
    field: FieldInfo | None = None
    """The Field whose default it is, which the function does not know of."""
    positional: bool = False
    """It can be passed by position only."""

    @property
    def required(self) -> bool:
        """Whether models must give it."""
        return self.default is NOTHING and self.field is None

    def value_left_out(self) -> Any:
        """What to pass where models gave nothing; a Field makes a new value each time."""
        if self.field is None:
            return self.default
        return self.field.get_default(call_default_factory=True, validated_data={})


def refuse(tool: str, parameter: str, what: str) -> InvalidTool:
    """The error that says what is wrong with a parameter, in one line."""
    return InvalidTool(f"tool {quoted(tool)}, parameter {quoted(parameter)}: {' '.join(what.split())}")


def read_signature(function: Callable[..., Any], tool: str) -> tuple[Parameter, ...]:
    """The parameters in their order, without those that a functools.partial has bound. Raises InvalidTool."""
    bound = function.keywords if isinstance(function, functools.partial) else {}
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise InvalidTool(
            f"tool {quoted(tool)}: Python cannot read its signature: wrap it in a function"
        ) from None
    written = underlying(function)
    names = _names_around(written)
    parameters = [
        _read_parameter(each, written, names, tool) for each in found.values() if each.name not in bound
    ]
    contexts = [each.name for each in parameters if each.adapter is None]
    if len(contexts) > 1:
        raise refuse(tool, contexts[1], f"a second ToolContext, beside {contexts[0]}: one is enough")
    return tuple(parameters)


def underlying(function: Any) -> Any:
    """The function that a person wrote, under partials, methods, wrappers and objects that can be called."""
    while not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(called := _call_of(type(function)), types.FunctionType):
            function = called
        else:
            break
    return function


def _read_parameter(found: inspect.Parameter, written: Any, names: Mapping[str, Any], tool: str) -> Parameter:
    name = found.name
    if found.kind in (found.VAR_POSITIONAL, found.VAR_KEYWORD):
        raise refuse(tool, str(found).partition(":")[0], "models need each parameter by name: write them out")
    if found.annotation is NOTHING:
        hint = f"bind the method first, as in tool(it.{tool})" if name in ("self", "cls") else "annotate it"
        raise refuse(tool, name, f"no annotation, so models cannot be told its type: {hint}")
    annotation = _resolve(found, written, names, tool)
    positional = found.kind is found.POSITIONAL_ONLY
    if _is_context(annotation):
        return Parameter(name, None, default=found.default, positional=positional)
    infos = [each for each in get_args(annotation)[1:] if get_origin(annotation) is Annotated]
    default = found.default
    if isinstance(default, FieldInfo):
        annotation, infos, default = Annotated[annotation, default], [*infos, default], NOTHING
    fields = [each for each in infos if isinstance(each, FieldInfo)]
    if any(each.alias or each.validation_alias for each in fields):
        raise refuse(tool, name, "a Field with an alias: give the parameter that name instead")
    field = next((each for each in reversed(fields) if not each.is_required()), None)
    field = field if default is NOTHING else None
    said = [each.description for each in reversed(fields) if each.description]
    said += [each for each in infos if isinstance(each, str)]
    return Parameter(
        name,
        _adapter(annotation, name, tool),
        description=said[0] if said else None,
        default=default if field is None or field.default is PydanticUndefined else field.default,
        field=field,
        positional=positional,
    )


def _adapter(annotation: Any, name: str, tool: str) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation)
    except Exception as error:  # a type's own hooks may raise anything
        raise refuse(tool, name, no_schema(annotation, error)) from None


def no_schema(annotation: Any, error: Exception) -> str:
    """Why a type cannot be described to models: the first line of pydantic's reason, without its advice."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    reason = str(error).strip().partition("\n")[0].partition(" Set `arbitrary_types_allowed")[0]
    return f"{inspect.formatannotation(annotation):.80} has no JSON Schema: {reason:.200}"


def _is_context(annotation: Any) -> bool:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        choices = [each for each in get_args(annotation) if each is not types.NoneType]
        return len(choices) == 1 and _is_context(choices[0])
    return annotation is ToolContext


def _resolve(found: inspect.Parameter, written: Any, names: Mapping[str, Any], tool: str) -> Any:
    """The annotation, with what is text in it looked up where the function was written."""
    holder = types.SimpleNamespace(__annotations__={found.name: found.annotation})
    try:
        hints = typing.get_type_hints(
            holder, getattr(written, "__globals__", {}), dict(names), include_extras=True
        )
    except Exception as error:  # the text is evaluated, which may raise anything
        what = f"its annotation {found.annotation!r:.80} cannot be resolved"
        hint = "import or define it where the function is, not only for type checking"
        raise refuse(tool, found.name, f"{what} ({error!s:.120}): {hint}") from None
    return hints[found.name]


def _names_around(written: Any) -> dict[str, Any]:
    """What the text of annotations may mean besides globals: names of the functions and classes around it.

    Python keeps those in the closure as far as the body uses them; the others are there while it is defined.
    """
    if not isinstance(written, types.FunctionType):
        return {}
    names: dict[str, Any] = {}
    frame = sys._getframe(1)
    while frame is not None:
        around = f"{frame.f_code.co_qualname}."
        if frame.f_globals is written.__globals__ and written.__qualname__.startswith(around):
            names = {**frame.f_locals, **names}
        frame = frame.f_back  # type: ignore[assignment]
    for name, cell in zip(written.__code__.co_freevars, written.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not filled yet
            names[name] = cell.cell_contents
    return names


def _call_of(kind: type) -> Any:
    """What runs when objects of a class are called."""
    return next((vars(each)["__call__"] for each in kind.__mro__ if "__call__" in vars(each)), None)


_PARAMETERS = frozenset({"param", "parameter", "arg", "argument", "key", "keyword", "other_param"})
"""Names of a docstring's sections of parameters, as against attributes and what a generator receives."""


@dataclass(frozen=True, slots=True)
class Documented:
    """A docstring, read. `parameters` has the documented ones, with or without a text."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def docstring_of(function: object) -> str | None:
    """The docstring of a function, inherited ones included, but not the one that every `__call__` has."""
    found = inspect.getdoc(function)
    return None if found == inspect.getdoc(type.__call__) else found


def read_docstring(text: str | None) -> Documented:
    """The summary and the long description as one text, and the parameters by name."""
    if not text or not text.strip():
        return Documented()
    from docstring_parser import parse

    clean = inspect.cleandoc(text)
    try:
        found = parse(clean)
    except Exception:  # such as its IndexError of ": : x"; half a section is no reason to have no description
        return Documented(clean)
    gap = "\n\n" if found.blank_after_short_description else "\n"
    description = gap.join(part for part in (found.short_description, found.long_description) if part)
    parameters: dict[str, str] = {}
    for one in found.params:
        if one.args[0] in _PARAMETERS:
            said = " ".join((one.description or "").split())
            for name in one.arg_name.split(","):  # NumPy documents `x, y : int` together
                parameters[name.strip().lstrip("*")] = said
    return Documented(description.strip(), parameters)
