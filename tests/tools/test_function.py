"""`@tool`: from a function to a call, and everything that is wrong with a function or with arguments."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import functools
import inspect
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from hypothesis import given
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from localagent.errors import InvalidArguments, InvalidTool
from localagent.messages import ToolCallPart
from localagent.tools import FunctionTool, Tool, ToolContext, as_tool, tool
from tests.messages.strategies import json_objects

if TYPE_CHECKING:
    from collections import OrderedDict

CONTEXT = ToolContext(call=ToolCallPart(id="1", name="f"))
HANGS = "^(a+)+$"
DATE = 'Input should be a date such as "2026-01-31"'
MOMENT = 'Input should be a date and time such as "2026-01-31T12:00:00"'


class Unit(enum.Enum):
    C = "c"
    F = "f"


class Item(BaseModel):
    count: int
    note: str | None = None


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


@dataclass
class Point:
    x: int
    y: int = 0


class Touchy(BaseModel):
    a: int

    @field_validator("a")
    @classmethod
    def _check(cls, a: int) -> int:
        if a == 1:
            raise ValueError("one is\ntoo few")
        if a == 2:
            raise KeyError("two")
        return a


def call(function: Tool, **arguments: Any) -> Any:
    return function.bind(arguments)(CONTEXT)


def refusal(function: Tool, arguments: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidArguments) as caught:
        function.bind(arguments)
    return str(caught.value).splitlines()


# What a tool is


@tool
def search(query: str, limit: int = 10, *, unit: Unit = Unit.C) -> Any:
    """Search the notes.

    Only what is stored.

    Args:
        query: What to look for.
        limit: How many to find.
    """
    return query, limit, unit


def test_a_tool_is_what_the_function_says():
    assert isinstance(search, FunctionTool)
    assert search.name == "search"
    assert search.description == "Search the notes.\n\nOnly what is stored."
    assert search.parameters["properties"]["query"] == {"type": "string", "description": "What to look for."}
    assert search.parameters["required"] == ["query"]
    assert (search.side_effects, search.sequential, search.repeatable, search.timeout, search.kind) == (
        False, False, False, None, None,
    )  # fmt: skip


def test_a_tool_is_still_the_function():
    assert search("x", 3, unit=Unit.F) == ("x", 3, Unit.F)
    assert search.__name__ == "search"
    assert search.__doc__.startswith("Search the notes.")
    assert search.__wrapped__("x") == ("x", 10, Unit.C)
    assert search.__module__ == __name__
    assert list(inspect.signature(search).parameters) == ["query", "limit", "unit"]


def test_options_of_the_decorator_override_the_function():
    @tool(
        name="a.b/c-d",
        description="Other.",
        side_effects=True,
        sequential=True,
        repeatable=True,
        timeout=2.5,
        kind="edit",
    )
    def f(x: int) -> int:
        """Mine."""
        return x

    assert (f.name, f.description, f.timeout, f.kind) == ("a.b/c-d", "Other.", 2.5, "edit")
    assert f.side_effects
    assert f.sequential
    assert f.repeatable
    assert (f.__name__, f.__doc__) == ("f", "Mine.")


def test_a_timeout_may_be_less_than_a_second():
    assert tool(search.function, timeout=0.01).timeout == 0.01


def test_as_tool_takes_tools_and_functions():
    assert as_tool(search) is search
    plain = Tool(name="x", description="", parameters={}, bind=lambda arguments: lambda context: 1)
    assert as_tool(plain) is plain

    def f(x: int) -> int:
        return x + 1

    assert call(as_tool(f), x=1) == 2


# How it is called


def test_arguments_are_validated_and_converted():
    assert call(search, query="x") == ("x", 10, Unit.C)
    assert call(search, query="x", limit="3", unit="f") == ("x", 3, Unit.F)


def test_binding_runs_nothing():
    ran = []

    @tool
    def f(x: int) -> None:
        ran.append(x)

    bound = f.bind({"x": 1})
    assert not ran
    bound(CONTEXT)
    assert ran == [1]


def test_an_async_function_gives_something_to_await():
    @tool
    async def f(x: int) -> int:
        return x + 1

    assert asyncio.run(call(f, x="1")) == 2


@pytest.mark.parametrize(
    ("annotation", "given", "expected"),
    [
        (int, "3", 3),
        (float, 3, 3.0),
        (bool, "true", True),
        (int | str, "3", "3"),
        (str | int, 3, 3),
        (int | None, None, None),
        (list[int], ["1", 2], [1, 2]),
        (tuple[int, str], [1, "a"], (1, "a")),
        (set[int], [1, 1], {1}),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (Literal["a", 1], 1, 1),
        (dt.date, "2024-02-29", dt.date(2024, 2, 29)),
        (Path, "a/b", Path("a/b")),
        (Point, {"x": 1}, Point(1)),
        (Item, {"count": "2"}, Item(count=2)),
        (Open, {"a": 1, "b": [2]}, Open(a=1, b=[2])),
        (dict[str, Any], {"a": {"b": None}}, {"a": {"b": None}}),
        (Annotated[int, Field(strict=True)], 3, 3),
        (Annotated[Unit, Field(strict=True)], "c", Unit.C),
        (Annotated[dt.date, Field(strict=True)], "2024-02-29", dt.date(2024, 2, 29)),
    ],
    ids=str,
)
def test_a_value_reaches_the_function_as_its_type(annotation, given, expected):
    def f(value):
        return value

    f.__annotations__ = {"value": annotation}
    found = call(tool(f), value=given)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "given", "says"),
    [
        (int, "x", ['value: Input should be a valid integer, not "x"']),
        (int, 1.5, ["value: Input should be a valid integer, got a number with a fractional part"]),
        (int, None, ["value: Input should be a valid integer, not null"]),
        (str, 3, ["value: Input should be a valid string, not 3"]),
        (Unit, "q", ["value: Input should be 'c' or 'f', not \"q\""]),
        (int | bool, [], ["value: Input should be a valid integer or a valid boolean, not []"]),
        (Annotated[int, Field(ge=3)], 1, ["value: Input should be greater than or equal to 3, not 1"]),
        (list[Item], [{"count": 1}, 3], ["value[1]: Input should be an object, not 3"]),
        (
            list[Item],
            [{"count": 1}, {"count": "x"}, {}],
            ['value[1].count: Input should be a valid integer, not "x"', "value[2].count: missing"],
        ),
        (Item, {"count": 1, "nto": "x"}, ["value.nto: there is no such key"]),
        (Point, {"x": 1, "z": 1}, ["value.z: there is no such key"]),
        (Point, 3, ["value: Input should be an object, not 3"]),
        (Point | None, {}, ["value.x: missing"]),
        (dict[int, int], {"a": 1}, ['value.a: as a key: Input should be a valid integer, not "a"']),
        (set[int], 3, ["value: Input should be a list, not 3"]),
        (Touchy, {"a": 1}, ["value.a: one is too few"]),
        (Touchy, {"a": 2}, ["value: KeyError: 'two'"]),
        (int, "y" * 100, [f'value: Input should be a valid integer, not "{"y" * 59}...']),
        (Any, float("nan"), ["value: nan is not JSON"]),
        (tuple[int, str], [1], ["value[1]: missing"]),
        (Path, 1, ["value: Input should be a valid path, not 1"]),
        (Literal[True, None], 3, ["value: Input should be true or null, not 3"]),
        (Literal["None", "a"], 3, ["value: Input should be 'None' or 'a', not 3"]),
        (Annotated[Cat | Dog, Field(discriminator="kind")], {}, ["value: 'kind' is missing"]),
        (dt.date, "soon", ['value: Input should be a date such as "2026-01-31", not "soon"']),
        (dt.date, "2026-01-31T12:00:00", [f"value: {DATE}, not \"2026-01-31T12:00:00\""]),
        (dt.date, "2026-13-01", [f"value: {DATE} (month value is outside expected range of 1-12), not \"2026-13-01\""]),
        (dt.datetime, "soon", [f'value: {MOMENT}, not "soon"']),
        (dt.time, "noon", ['value: Input should be a time such as "12:30:00", not "noon"']),
        (dt.timedelta, "5", ['value: Input should be a duration such as "PT1H30M" or "01:30:00", not "5"']),
        (Item, {"count": 1, "\ud800": 1}, None),
    ],
    ids=str,
)  # fmt: skip
def test_the_model_reads_what_is_wrong_with_its_arguments(annotation, given, says):
    def f(value):
        raise AssertionError("it must not run")

    f.__annotations__ = {"value": annotation}
    found = refusal(tool(f), {"value": given})
    "\n".join(found).encode()
    assert says is None or found == says


class Meeting(BaseModel):
    at: dt.datetime
    after: Meeting | None = None


@pytest.mark.parametrize(
    ("annotation", "given", "path", "wanted"),
    [
        (dt.datetime, 2026, "", MOMENT),
        (dt.datetime, "20260131", "", MOMENT),
        (dt.datetime | None, "2026", "", MOMENT),
        (dt.datetime | dt.date, 86400, "", MOMENT),
        (dt.date, 0, "", DATE),
        (dt.date, "86400", "", DATE),
        (dt.time, 15, "", 'Input should be a time such as "12:30:00"'),
        (list[dt.date], ["2026-01-31", 0], "[1]", DATE),
        (tuple[int, dt.date], [0, 0], "[1]", DATE),
        (dict[str, dt.date], {"a b": 0}, ".a b", DATE),
        (Meeting, {"at": "2026-01-31", "after": {"at": 3}}, ".after.at", MOMENT),
        (float, "NaN", "", "Input should be a finite number"),
        (list[float], [1, "1e400"], "[1]", "Input should be a finite number"),
    ],
    ids=str,
)
def test_what_would_be_read_as_something_else_is_refused(annotation, given, path, wanted):
    """Pydantic takes 2026 for a moment in 1970, and text that spells no number for one."""

    def f(value):
        raise AssertionError("it must not run")

    f.__annotations__ = {"value": annotation}
    (found,) = refusal(tool(f), {"value": given})
    assert found.startswith(f"value{path}: {wanted}, not ")


@pytest.mark.parametrize(
    ("annotation", "given", "expected"),
    [
        (dt.datetime | int, 2026, 2026),
        (str | dt.date, "2026", "2026"),
        (dt.datetime | None, None, None),
        (dt.timedelta, 90, dt.timedelta(seconds=90)),
        (float, "1e3", 1000.0),
        (float | str, "NaN", "NaN"),
        (dict[str, dt.date], {"2026": "2026-01-31"}, {"2026": dt.date(2026, 1, 31)}),
    ],
    ids=str,
)
def test_what_can_only_be_meant_so_is_taken(annotation, given, expected):
    def f(value):
        return value

    f.__annotations__ = {"value": annotation}
    assert call(tool(f), value=given) == expected


def test_unknown_and_missing_arguments_are_named():
    assert refusal(search, {"foo": 1, "bar": 2}) == [
        "foo: there is no such parameter",
        "bar: there is no such parameter; the parameters are: query, limit, unit",
        "query: missing",
    ]


def test_no_more_findings_than_one_wants_to_read():
    @tool
    def f(items: list[int]) -> None: ...

    found = refusal(f, {"items": ["x"] * 9})
    assert len(found) == 6
    assert found[-1] == "and 4 more"


@pytest.mark.parametrize("name", ["max-results", "max_results", "Max.Results", "MAX RESULTS"])
def test_names_of_arguments_may_be_written_otherwise(name):
    @tool
    def f(max_results: int, maxresults: int = 0) -> Any:
        return max_results, maxresults

    assert call(f, **{name: 1}) == (1, 0)


def test_an_argument_that_may_mean_two_parameters_or_is_there_twice_is_refused():
    @tool
    def f(a_b: int = 0, A_B: int = 0) -> None: ...  # noqa: N803

    assert "a-B: there is no such parameter" in refusal(f, {"a-B": 1})[0]
    assert "a-b: there is no such parameter" in refusal(f, {"a-b": 1, "a_b": 2, "A_B": 1})[0]
    assert len(refusal(f, {"a_b": 0, "A-B": 1, "A.B": 2})) == 2


@given(json_objects)
def test_arguments_make_nothing_raise_but_invalid_arguments(arguments):
    @tool
    def f(
        a: Item | list[int] | None, b: dict[int, Point] | str = "", c: Unit | dt.date | None = None
    ) -> None: ...

    for given_ in (arguments, {"a": arguments}, {"a": [arguments], "b": arguments, "c": arguments}):
        try:
            f.bind(given_)
        except InvalidArguments as error:
            assert str(error)
            str(error).encode()


# Context, defaults, and kinds of parameters


@pytest.mark.parametrize("position", ["first", "last", "keyword", "optional", "annotated"])
def test_the_context_is_passed_and_not_shown(position):
    def first(context: ToolContext, /, x: int):
        return context, x

    def last(x: int, context: ToolContext):
        return context, x

    def keyword(x: int, *, context: ToolContext):
        return context, x

    def optional(x: int, context: ToolContext | None = None):
        return context, x

    def annotated(x: int, context: Annotated[ToolContext, "of the call"]):
        return context, x

    made = tool(locals()[position])
    assert list(made.parameters["properties"]) == ["x"]
    assert call(made, x=1) == (CONTEXT, 1)
    assert "context: there is no such parameter" in refusal(made, {"x": 1, "context": {}})[0]


def test_positional_only_keyword_only_and_field_defaults():
    made_lists = []

    @tool
    def f(
        a: int,
        b: int = 2,
        c: int = 3,
        /,
        d: int = Field(4),
        *,
        e: list[int] = Field(default_factory=list),  # noqa: B008
    ) -> Any:
        made_lists.append(e)
        return a, b, c, d, e

    assert call(f, a=1) == (1, 2, 3, 4, [])
    assert call(f, a=1, c=5, e=[1]) == (1, 2, 5, 4, [1])
    call(f, a=1)
    assert made_lists[0] is not made_lists[2]


def test_methods_partials_and_objects():
    class Store:
        """A store."""

        def __init__(self, factor: int) -> None:
            self.factor = factor

        def times(self, x: int) -> int:
            """Multiply.

            :param x: what
            """
            return x * self.factor

        def __call__(self, x: int) -> int:
            return -x * self.factor

    bound = tool(Store(3).times)
    assert (bound.name, bound.description, call(bound, x=2)) == ("times", "Multiply.", 6)
    assert bound.parameters["properties"]["x"] == {"type": "integer", "description": "what"}
    called = tool(Store(3))
    assert (called.name, called.description, call(called, x=2)) == ("Store", "A store.", -6)

    def fetch(key: str, path: str, retries: int = 1) -> Any:
        """Fetch.

        :param key: secret
        :param path: where
        """
        return key, path, retries

    by_name = tool(functools.partial(fetch, key="k"), name="fetch")
    assert list(by_name.parameters["properties"]) == ["path", "retries"]
    assert "k" not in str(by_name.parameters["properties"].values()).split()
    assert call(by_name, path="p") == ("k", "p", 1)
    by_position = tool(functools.partial(fetch, "k", "p"), name="fetch")
    assert list(by_position.parameters["properties"]) == ["retries"]
    assert call(by_position, retries=2) == ("k", "p", 2)
    with pytest.raises(InvalidArguments, match="key: there is no such parameter"):
        by_name.bind({"path": "p", "key": "mine"})


def test_an_object_whose_call_says_nothing_is_described_by_its_class():
    class Finder:
        """Find things."""

        def __call__(self, query: str) -> str:
            return query

    assert tool(Finder()).description == "Find things."
    assert tool(Finder()).__doc__ is None

    class Documented(Finder):
        """A finder."""

        def __call__(self, query: str) -> str:
            """Find it."""
            return query

    assert tool(Documented()).description == "Find it."


def test_what_wraps_a_function_does_not_describe_it():
    @tool
    @functools.lru_cache
    def f(x: int) -> int:
        return x

    assert f.description == ""


def test_a_wrapped_function_keeps_its_signature():
    def twice(function):
        @functools.wraps(function)
        def inner(*args, **kwargs):
            return [function(*args, **kwargs)] * 2

        return inner

    @tool
    @twice
    def f(x: int) -> int:
        return x

    assert call(f, x="1") == [1, 1]


def test_a_wrapper_may_know_the_signature_that_what_it_wraps_has_not():
    @functools.wraps(max)
    def largest(values):
        return max(values)

    values = inspect.Parameter("values", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=list[int])
    largest.__signature__ = inspect.Signature([values])
    assert call(tool(largest), values=[1, 3, 2]) == 3


def test_types_may_be_local():
    class Local(BaseModel):
        a: int

    @tool
    def f(x: Local, more: list[Local] | None = None) -> Any:
        return x

    assert call(f, x={"a": "1"}) == Local(a=1)

    def outer() -> Any:
        class Inner(BaseModel):
            b: int

        def g(x: Inner) -> Any:
            return Inner, x

        return g

    assert call(as_tool(outer()), x={"b": 1})[1].b == 1


# Docstrings

STYLES = {
    "google": """Do it.

    With care.

    Args:
        x (int): The first,
            on two lines.
        y: The second.

    Returns:
        Something.

    Raises:
        ValueError: never.
    """,
    "numpy": """Do it.

    With care.

    Parameters
    ----------
    x : int
        The first,
        on two lines.
    y
        The second.

    Returns
    -------
    int
    """,
    "rest": """Do it.

    With care.

    :param int x: The first,
        on two lines.
    :param y: The second.
    :returns: something
    :raises ValueError: never
    """,
    "epydoc": """Do it.

    With care.

    @param x: The first,
        on two lines.
    @param y: The second.
    @return: something
    """,
}


@pytest.mark.parametrize("style", STYLES)
def test_every_style_of_docstring_describes_the_parameters(style):
    def f(x: int, y: str): ...

    f.__doc__ = STYLES[style]
    made = tool(f)
    assert made.description == "Do it.\n\nWith care."
    assert made.parameters["properties"] == {
        "x": {"type": "integer", "description": "The first, on two lines."},
        "y": {"type": "string", "description": "The second."},
    }


def test_what_is_written_at_the_parameter_goes_before_the_docstring():
    @tool
    def f(x: Annotated[int, "at it"], y: int = Field(1, description="in a Field")) -> None:
        """Do.

        Args:
            x: in the docstring
            y: in the docstring
        """

    assert f.parameters["properties"]["x"]["description"] == "at it"
    assert f.parameters["properties"]["y"]["description"] == "in a Field"


@pytest.mark.parametrize(
    ("docstring", "description"),
    [
        ("Do it.", "Do it."),
        ("\n    Do it\n    well.\n\n    With care.\n", "Do it\nwell.\n\nWith care."),
        ("Do it.\nWith care.", "Do it.\nWith care."),
        ("Do it.\n\nArgs:\n", "Do it.\n\nArgs:"),
        ("Do it.\n\n:param\n", "Do it.\n\n:param"),
        ("Do it.\n\n    : : x\n", "Do it.\n\n: : x"),
        (" \n ", ""),
    ],
)
def test_a_docstring_describes_the_tool_however_it_is_laid_out(docstring, description):
    """Half a section, or a line that its reader stumbles over, is no reason to have no description."""

    def f(x: int): ...

    f.__doc__ = docstring
    assert tool(f).description == description


def test_a_function_without_a_docstring_has_no_description():
    def f(x: int): ...

    assert tool(f).description == ""


def test_numpy_names_may_share_a_line():
    @tool
    def f(x: int, y: int) -> None:
        """Do.

        Parameters
        ----------
        x, y : int
            Both.
        """

    assert {each["description"] for each in f.parameters["properties"].values()} == {"Both."}


# What is no tool


def _generator(x: int):
    yield x


async def _async_generator(x: int):
    yield x


def _no_annotation(x): ...
def _args(*args: int): ...
def _kwargs(x: int, **options: int): ...
def _colon(*args: Literal[":"]): ...
def _raising(x: Annotated[int, AfterValidator(lambda _: {}["x"])] = 3): ...
def _two(a: ToolContext, b: ToolContext | None = None): ...
def _unresolved(x: OrderedDict[str, int]): ...
def _nonsense(x: "not a type ("): ...  # noqa: F722
def _default(x: int = "x"): ...
def _none(x: int = None): ...  # noqa: RUF013
def _nan(x: float = float("nan")): ...
def _bytes(x: bytes = b"\xff"): ...
def _object(x: Any = object()): ...  # noqa: B008
def _documented(x: int):
    """Do.

    Args:
        x: this
        y: that
    """  # fmt: skip


class _Class:
    def method(self, x: int): ...


@pytest.mark.parametrize(
    ("thing", "options", "says"),
    [
        (_no_annotation, {}, "tool _no_annotation, parameter x: no annotation"),
        (_Class.method, {}, r"tool method, parameter self: no annotation.* bind the method first"),
        (_args, {}, r"tool _args, parameter \*args: models need each parameter by name"),
        (_kwargs, {}, r"tool _kwargs, parameter \*\*options: models need"),
        (_colon, {}, r"tool _colon, parameter \*args: models need"),
        (_raising, {}, r"tool _raising, parameter x: its default does not fit its type: KeyError\('x'\)"),
        (_two, {}, "tool _two, parameter b: a second ToolContext, beside a"),
        (_unresolved, {}, r"tool _unresolved, parameter x: its annotation 'OrderedDict\[str, int\]' cannot be resolved \(name 'OrderedDict' is not defined"),
        (_nonsense, {}, "tool _nonsense, parameter x: its annotation .* cannot be resolved"),
        (_default, {}, 'tool _default, parameter x: its default does not fit its type: Input should be a valid integer, not "x"'),
        (_none, {}, r"tool _none, parameter x: its default does not fit .*; write it as optional, x: ... \| None = None"),
        (_nan, {}, "tool _nan, parameter x: its default nan cannot be written as JSON"),
        (_bytes, {}, "tool _bytes, parameter x: its default .* cannot be written as JSON"),
        (_object, {}, "tool _object, parameter x: its default .* cannot be written as JSON"),
        (_documented, {}, "tool _documented, parameter y: documented, but there are: x"),
        (_generator, {}, "_generator is a generator: return one result"),
        (_async_generator, {}, "_async_generator is a generator"),
        (_Class, {}, "_Class is a class"),
        (3, {}, "3 is not a function but a int"),
        (None, {"as_tool": True}, "None is not a function"),
        (_Class(), {}, "is not a function but a _Class"),
        (lambda: 1, {}, "'<lambda>' is not a name for a tool"),
        (len, {}, "tool len, parameter obj: no annotation"),
        (print, {}, r"tool print, parameter \*args"),
        (max, {}, "tool max: Python cannot read its signature"),
        (search, {"name": ""}, "'' is not a name"),
        (search, {"name": "a" * 65}, "is not a name"),
        (search, {"name": "a b"}, "'a b' is not a name"),
        (search, {"name": "a\n"}, "is not a name"),
        (search, {"name": "señor"}, "'señor' is not a name"),
        (search, {"name": 3}, "3 is not a name"),
        (search, {"description": 5}, "tool search: description=5 is not text"),
        (search, {"timeout": -1}, "tool search: timeout=-1 is not a number of seconds above 0"),
        (search, {"timeout": 0}, "timeout=0"),
        (search, {"timeout": float("inf")}, "timeout=inf"),
        (search, {"timeout": float("nan")}, "timeout=nan"),
        (search, {"timeout": "3"}, "timeout='3'"),
        (search, {"timeout": True}, "timeout=True"),
        (search, {"description": "\ud800"}, "tool search: its description or schema is not JSON: lone surrogate"),
    ],
)  # fmt: skip
def test_what_is_no_tool_is_refused_when_it_is_decorated(thing, options, says):
    with pytest.raises(InvalidTool, match=says) as caught:
        if options.pop("as_tool", False):
            as_tool(thing)
        else:
            tool(**options)(thing)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


class Backtracking(BaseModel):
    model_config = ConfigDict(regex_engine="python-re")
    config: Annotated[str, Field(pattern=HANGS)]
    regex_engine: str = ""


class Holding(BaseModel):
    held: dict[str, list[Backtracking | None]]


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[str, Field(pattern=re.compile(HANGS))],
        Annotated[str | None, Field(pattern=re.compile(HANGS))],
        dict[Annotated[str, Field(pattern=re.compile(HANGS))], int],
        Backtracking,
        Holding,
    ],
)
def test_a_pattern_that_one_text_can_keep_busy_is_refused(annotation):
    with pytest.raises(InvalidTool, match=r"parameter text: its pattern '\^\(a\+\)\+\$'.* as text"):

        @tool
        def match(text: annotation) -> str:
            return "ok"


def test_patterns_are_matched_in_time():
    @tool
    def match(text: Annotated[str, Field(pattern=HANGS)]) -> str:
        return text

    assert call(match, text="aaa") == "aaa"
    assert "should match pattern" in refusal(match, {"text": "a" * 50_000 + "!"})[0]


class Add(BaseModel):
    left: Add | Mul | int


class Mul(BaseModel):
    left: Add | Mul | int


class Tagged(BaseModel):
    kind: Literal["tagged"]
    left: Annotated[Tagged | Other, Field(discriminator="kind")] | None = None


class Other(BaseModel):
    kind: Literal["other"]
    left: Annotated[Tagged | Other, Field(discriminator="kind")] | None = None


class Chain(BaseModel):
    left: Chain | None = None
    items: list[int | float | str] = []


def nested(depth: int, **fields: Any) -> Any:
    """So many objects in each other, the innermost of which is empty."""
    value: dict[str, Any] = {**fields}
    for _ in range(depth):
        value = {**fields, "left": value}
    return value


@tool
def read(a: Add | Mul | None = None, b: Tagged | Other | None = None, c: Chain | None = None) -> str:
    return "read"


@pytest.mark.parametrize("depth", [20, 60])
@pytest.mark.parametrize("innermost", [1, "no number"])
def test_alternatives_that_hold_each_other_hang_nobody(depth, innermost):
    began = time.monotonic()
    found = refusal(read, {"a": nested(depth - 1, left=innermost)})
    assert found == ["a: nested too deep to be read, as each level may be one of several types: nest it less"]
    assert time.monotonic() - began < 5


def test_what_is_nested_is_read():
    assert call(read, a=nested(5, left=1)) == "read"
    assert call(read, b=nested(60, kind="other")) == "read", "the tags leave one type at each level"
    assert call(read, c=nested(60)) == "read"
    assert call(read, c={"items": [1, 2.5, "a"] * 50_000}) == "read"
    assert "a.left.left: " in refusal(read, {"a": {"left": {"left": "no number"}}})[0]


def test_importing_the_tools_imports_nothing_heavy():
    code = "import sys; import localagent.tools; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"docstring_parser", "asyncio", "mcp", "rich", "jinja2", "localagent.parsers.formats"}
    assert not set(done.stdout.split()) & heavy


@pytest.mark.parametrize("kind", [5, "read\n", "\ud800"])
def test_a_kind_is_a_word(kind):
    def look() -> str:
        return "x"

    assert tool(kind="read")(look).kind == "read"
    with pytest.raises(InvalidTool, match=r"tool look: kind=.* is no word"):
        tool(kind=kind)(look)


@pytest.mark.parametrize(
    ("given", "told"),
    [(0.5, 0.5), (1, 1.0), (7, 1.0), (-1, 0.0), (None, None), (float("nan"), None), ("half", None)],
)
def test_progress_tells_a_share_from_0_to_1(given, told):
    heard: list[Any] = []
    context = ToolContext(call=CONTEXT.call, report=lambda text, share: heard.append((text, share)))
    context.progress("working\ud800", given)
    assert heard == [("working\\ud800", told)]
