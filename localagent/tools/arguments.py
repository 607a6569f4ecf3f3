"""The arguments of a tool function: their JSON Schema, and binding a model's arguments to a call.

Whatever the arguments, `bind` raises nothing but InvalidArguments. Binding runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import ValidationError

from localagent.errors import InvalidArguments
from localagent.messages.values import NotJson, check_json
from localagent.tools.findings import findings, shown
from localagent.tools.names import matched
from localagent.tools.readings import misread, too_many
from localagent.tools.schema import (
    Schema,
    backtracking_pattern,
    inlined,
    lets_more_through,
    schemas_of,
    tidied,
)
from localagent.tools.signature import NOTHING, Parameter, no_schema, refuse
from localagent.tools.tool import Bound, ToolContext
from localagent.wording import listed, one_line, quoted, writable

PATTERN = (
    "its pattern {!r:.60} would be matched by Python's re, which one text can keep busy for ever: "
    "give pydantic the pattern as text and leave regex_engine alone, or check the text in the function"
)
TANGLED = "nested too deep to be read, as each level may be one of several types: nest it less"
MAX_FINDINGS = 5
"""The most mistakes reported to a model at once; more do not help it."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """How a function takes its arguments."""

    parameters: Sequence[Parameter]
    schema: Schema
    closed: frozenset[str]
    """Parameters whose objects may hold only the keys that their types name."""
    tangled: Mapping[str, Schema]
    """The schemas of parameters with recursive types, with the definitions in their `$defs`."""

    def bind(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Bound:
        """The call of the function, ready to run. Raises InvalidArguments."""
        values = self._validated(arguments)

        def run(context: ToolContext) -> Any:
            placed: list[Any] = []
            named: dict[str, Any] = {}
            for each in self.parameters:
                if each.adapter is None:
                    value: Any = context
                elif each.name in values:
                    value = values[each.name]
                elif each.field is not None or each.positional:
                    value = each.value_left_out()
                else:
                    continue  # the function has a default of its own
                if each.positional:
                    placed.append(value)
                else:
                    named[each.name] = value
            return function(*placed, **named)

        return run

    def normal(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What the function gets, as JSON, with the defaults that are known. Raises InvalidArguments.

        A value that its type cannot say in JSON is as it was written.
        """
        values = self._validated(arguments)
        taken = self._taken()
        normal = matched(arguments, taken)
        for name, each in taken.items():
            if name in values:
                with suppress(Exception):  # a serializer of the type's raises what it likes
                    normal[name] = _as_json(each, values[name])
            elif "default" in (told := self.schema["properties"][name]):
                normal[name] = told["default"]
        return normal

    def _taken(self) -> dict[str, Parameter]:
        """The parameters that models are asked for."""
        return {each.name: each for each in self.parameters if each.adapter is not None}

    def _validated(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        taken = self._taken()
        given = matched(arguments, taken)
        unknown = [key for key in given if key not in taken]
        found = [f"{quoted(key)}: there is no such parameter" for key in unknown]
        if found:
            found[-1] += f"; the parameters are: {listed(taken)}"
        found += [
            f"{each.name}: missing" for each in taken.values() if each.required and each.name not in given
        ]
        values: dict[str, Any] = {}
        for name, each in taken.items():
            if name in given:
                values[name], wrong = _validate(
                    each, given[name], name in self.closed, self.tangled.get(name)
                )
                found += wrong or self._misread(name, given[name])
        if found:
            raise InvalidArguments(_text(found))
        return values

    def _misread(self, name: str, value: Any) -> list[str]:
        found = misread(self.schema["properties"][name], value, name, self.schema.get("$defs", {}))
        return [f"{path}: Input should be {wanted}, not {shown(written)}" for path, wanted, written in found]


def read_arguments(parameters: Sequence[Parameter], descriptions: Mapping[str, str], tool: str) -> Arguments:
    """The arguments of a function with such parameters. Raises InvalidTool.

    `descriptions` are those of its docstring; what an annotation says goes before.
    """
    asked = {each.name: each for each in parameters if each.adapter is not None}
    raw, definitions = _raw_schemas(asked, tool)
    for name, each in asked.items():
        if each.adapter and (pattern := backtracking_pattern(each.adapter.core_schema)) is not None:
            raise refuse(tool, name, PATTERN.format(pattern))
    properties: Schema = {}
    closed, tangled = set(), {}
    for name, each in asked.items():
        whole = inlined({**raw[name], "$defs": definitions})
        if not lets_more_through(whole):
            closed.add(name)
        if "$defs" in whole:
            tangled[name] = {**raw[name], "$defs": definitions}
        properties[name] = {key: value for key, value in raw[name].items() if key != "default"}
        if said := each.description or descriptions.get(name):
            properties[name]["description"] = said
        if each.default is not NOTHING:
            properties[name]["default"] = _default(each, tool)
    schema: Schema = {"type": "object", "properties": properties}
    if required := [name for name, each in asked.items() if each.required]:
        schema["required"] = required
    if definitions:
        schema["$defs"] = definitions
    return Arguments(tuple(parameters), tidied(inlined(schema)), frozenset(closed), tangled)


def _raw_schemas(asked: Mapping[str, Parameter], tool: str) -> tuple[Schema, Schema]:
    adapters = {name: each.adapter for name, each in asked.items() if each.adapter is not None}
    try:
        return schemas_of(adapters)
    except Exception:  # a type's own hooks may raise anything; now each alone, to name the one
        for name, adapter in adapters.items():
            try:
                schemas_of({name: adapter})
            except Exception as error:
                raise refuse(tool, name, no_schema(adapter._type, error)) from None
        raise


def _default(parameter: Parameter, tool: str) -> Any:
    """The default as JSON. Raises InvalidTool for one that its own type refuses."""
    adapter, value = parameter.adapter, parameter.default
    assert adapter is not None
    name = parameter.name
    try:
        valid = adapter.validate_python(value)
    except ValidationError as error:
        said = findings(error, name, value)[0].removeprefix(f"{name}: ")
        hint = f"; write it as optional, {name}: ... | None = None" if value is None else ""
        raise refuse(tool, name, f"its default does not fit its type: {said}{hint}") from None
    except Exception as error:
        raise refuse(tool, name, f"its default does not fit its type: {one_line(repr(error), 200)}") from None
    try:
        return _as_json(parameter, valid)
    except Exception as error:
        what = f"its default {value!r:.60} cannot be written as JSON"
        raise refuse(tool, name, f"{what}: {one_line(str(error), 200)}") from None


def _as_json(parameter: Parameter, valid: Any) -> Any:
    """A value of the parameter's type as JSON. Raises ValueError, and what the type's own hooks raise."""
    if isinstance(valid, Decimal):  # models are told that it is a number
        return check_json(int(valid) if valid == int(valid) else float(valid))
    assert parameter.adapter is not None
    return check_json(parameter.adapter.dump_python(valid, mode="json", by_alias=True, warnings=False))


def _validate(
    parameter: Parameter, value: Any, closed: bool, tangled: Schema | None
) -> tuple[Any, list[str]]:
    """The value as the function takes it, and what is wrong with it.

    It is read as JSON, since types such as dates and sets are stricter with values of Python's.
    """
    name, adapter = parameter.name, parameter.adapter
    assert adapter is not None
    try:
        text = json.dumps(check_json(value), allow_nan=False)
        if tangled is not None and too_many(tangled, value, text, tangled["$defs"]):
            return None, [f"{name}: {TANGLED}"]
        return adapter.validate_json(text, extra="forbid" if closed else None), []
    except ValidationError as error:
        return None, findings(error, name, value)
    except NotJson as error:
        return None, [f"{name}: {error}"]
    except Exception as error:  # a type's own validator may raise anything
        return None, [one_line(f"{name}: {type(error).__name__}: {error}", 400)]


def _text(found: Sequence[str]) -> str:
    more = [f"and {len(found) - MAX_FINDINGS} more"] if len(found) > MAX_FINDINGS else []
    return writable("\n".join([*found[:MAX_FINDINGS], *more]))
