"""Whatever a tool returns or raises becomes a result."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import io
import json
import re
import socket
import sys
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from localagent.errors import InvalidArguments, ToolError
from localagent.messages import AudioPart, ImagePart, TextPart, ToolCallPart, ToolResultPart, UnknownPart
from localagent.tools import ToolOutput
from localagent.tools.results import MAX_ERROR, MAX_TRACEBACK, as_error, as_result
from tests.messages.strategies import json_values

CALL = ToolCallPart(id="7", name="f", arguments={"x": 1})
SOCKET = socket.socket()
SOCKET.close()
PNG = b"\x89PNG\r\n\x1a\n" + b"rest"


class Unit(enum.Enum):
    C = "c"


class Level(enum.IntEnum):
    LOW = 1


class Model(BaseModel):
    when: dt.date
    unit: Unit = Field(Unit.C, alias="theUnit")


@dataclass
class Point:
    x: int
    more: Any = None


@pydantic_dataclass
class Checked:
    path: Path


Pair = collections.namedtuple("Pair", "left right")


class Hostile:
    @property
    def __class__(self):
        raise RuntimeError("no class")

    def __repr__(self):
        raise RuntimeError("no repr")


class Rude(Exception):
    @property
    def __cause__(self):
        raise RuntimeError("no cause")


class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no str")


def circular() -> list[Any]:
    value: list[Any] = [1]
    value.append({"again": value})
    return value


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def doubled(times: int) -> Any:
    value: Any = 1
    for _ in range(times):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", ""),
        ("grüße\n{}", "grüße\n{}"),
        (None, "null"),
        (True, "true"),
        (3, "3"),
        (0.5, "0.5"),
        ([], "[]"),
        (["a", "b"], '["a", "b"]'),
        ({"a": [1, None, "ü"]}, '{"a": [1, null, "ü"]}'),
        ({1: 2, None: 3, "x": 4, Unit.C: 5}, '{"1": 2, "null": 3, "x": 4, "c": 5}'),
        ((1, {2}), "[1, [2]]"),
        (range(3), "[0, 1, 2]"),
        ({"a": 1}.keys(), '["a"]'),
        ({"a": 1}.values(), "[1]"),
        (collections.deque([1]), "[1]"),
        (Pair(1, [2]), '{"left": 1, "right": [2]}'),
        (Unit.C, "c"),
        (Level.LOW, "1"),
        (Model(when=dt.date(2024, 1, 2), theUnit=Unit.C), '{"when": "2024-01-02", "theUnit": "c"}'),
        ([Point(1, Point(2))], '[{"x": 1, "more": {"x": 2, "more": null}}]'),
        (Checked(Path("a/b")), '{"path": "a/b"}'),
        (dt.datetime(2024, 1, 2, 3, tzinfo=dt.UTC), "2024-01-02T03:00:00Z"),
        (dt.timedelta(seconds=90), "PT1M30S"),
        (decimal.Decimal("1.10"), "1.10"),
        (Path("a/b"), "a/b"),
        ({"id": uuid.UUID(int=1)}, '{"id": "00000000-0000-0000-0000-000000000001"}'),
        (b"plain text", "plain text"),
        ({"b": b"x"}, '{"b": "x"}'),
        (nested(128), "[" * 128 + "1" + "]" * 128),
    ],
    ids=lambda value: f"{value!s:.30}",
)
def test_a_value_is_told_as_text(value, text):
    assert as_result(CALL, value) == ToolResultPart(call_id="7", name="f", content=text)


def test_a_model_that_was_filled_without_checks_is_told_as_it_is():
    """Pydantic would warn of it; that it was made so is the tool's business."""
    value = Model.model_construct(when="soon", unit=Unit.C)
    assert as_result(CALL, value).content == '{"when": "soon", "theUnit": "c"}'


def test_the_same_value_twice_is_not_circular():
    one = {"a": 1}
    assert as_result(CALL, [one, one]).content == '[{"a": 1}, {"a": 1}]'


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (TextPart(text="a"), (TextPart(text="a"),)),
        ([TextPart(text="a"), ImagePart(data=PNG)], (TextPart(text="a"), ImagePart(data=PNG))),
        (["look:", ImagePart(data=PNG), {"w": 3}], (TextPart(text="look:"), ImagePart(data=PNG), TextPart(text='{"w": 3}'))),
        ((PNG, "b"), (ImagePart(data=PNG), TextPart(text="b"))),
        (PNG, (ImagePart(data=PNG),)),
        (bytearray(b"%PDF-1.7"), (ImagePart(data=b"%PDF-1.7"),)),
        (b"ID3\x04", (AudioPart(data=b"ID3\x04"),)),
        (UnknownPart(kind="map", at=1), (UnknownPart(kind="map", at=1),)),
    ],
    ids=lambda value: f"{value!s:.30}",
)  # fmt: skip
def test_parts_and_media_stay_parts(value, content):
    found = as_result(CALL, value)
    assert not found.is_error
    assert found.content == content


def test_a_pil_image_becomes_an_image_part():
    found = as_result(CALL, ["here", Image.new("RGB", (2, 2), "red")])
    assert [part.kind for part in found.content] == ["text", "image"]
    assert found.content[1].media_type == "image/png"


def test_a_tool_output_sets_every_field_of_the_result():
    found = as_result(CALL, ToolOutput({"a": 1}, is_error=True, terminate=True, metadata={"k": [1, Unit.C]}))
    assert found == ToolResultPart(
        call_id="7", name="f", content='{"a": 1}', is_error=True, terminate=True, metadata={"k": [1, "c"]}
    )


def test_a_result_is_made_one_of_this_call():
    given_ = ToolResultPart(call_id="other", name="g", content="x", is_error=True, metadata={"a": 1})
    assert as_result(CALL, given_) == given_.model_copy(update={"call_id": "7", "name": "f"})


@pytest.mark.parametrize("metadata", [{"a": object(), "b": 1, 3: 4, "\ud800": 1}, 3, None, circular()])
def test_metadata_that_is_no_json_is_no_error(metadata):
    found = as_result(CALL, ToolOutput("fine", metadata=metadata))
    assert (found.content, found.is_error) == ("fine", False)
    json.dumps(found.metadata, allow_nan=False).encode()
    if isinstance(metadata, dict):
        assert found.metadata == {"a": "<object>", "b": 1, "3": 4, "\\ud800": 1}


def test_a_name_in_metadata_is_cut_to_200_characters():
    found = as_result(CALL, ToolOutput("fine", metadata={"a" * 200: 1, "b" * 201: 2}))
    assert found.metadata == {"a" * 200: 1, "b" * 197 + "...": 2}


class Unnamed(type):
    @property
    def __name__(cls):
        raise RuntimeError("no name")


class Nameless(Exception, metaclass=Unnamed): ...


class Endless(list):
    def __iter__(self):
        while True:
            yield 1


async def coroutine(): ...
async def async_generator(): yield  # fmt: skip


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SOCKET, "a socket .socket.socket is not JSON."),
        (lambda: {"a": [SOCKET]}, r"socket.socket is not JSON \(at a\[0\]\)"),
        (lambda: float("nan"), r"a float \(nan is not JSON\)"),
        (lambda: [float("inf")], "inf is not JSON"),
        (circular, "circular"),
        (lambda: nested(129), "nested more than 128 deep"),
        (lambda: nested(100_000), "nested more than 128 deep"),
        (lambda: doubled(100), "more than 1,000,000 values"),
        (lambda: "\ud800", r"lone surrogate U\+D800"),
        (lambda: {"\ud800": 1}, "lone surrogate"),
        (lambda: [TextPart(text="a"), object()], "builtins.object is not JSON"),
        (lambda: (n for n in range(3)), "a generator"),
        (lambda: [iter([1])], "list_iterator"),
        (lambda: {"a": map(str, [1])}, "map is not JSON"),
        (async_generator, "a async_generator"),
        (coroutine, "a coroutine .it was never awaited."),
        (lambda: ToolOutput(coroutine()), "a coroutine .it was never awaited."),
        (lambda: {1: 1, "1": 2}, "two keys are 1 in JSON"),
        (lambda: {(1, 2): 3}, "a tuple cannot be a key"),
        (lambda: {"a": {b"\xff": 3}}, "bytes is not JSON"),
        (lambda: b"\xff\xff", "a bytes"),
        (lambda: PNG + b"x" * 20_000_000, "20.0 MB of media"),
        (lambda: 10**5000, "an integer of more than 4,298 digits"),
        (object, "a object .builtins.object is not JSON."),
        (lambda: object, "a type"),
        (lambda: Model, "a ModelMetaclass"),
        (lambda: print, "a builtin_function_or_method"),
        (lambda: ValueError("x"), "a ValueError"),
        (threading.Lock, "a lock"),
        (lambda: io.StringIO("x"), "a StringIO"),
        (lambda: Point(1, object()), r"object is not JSON \(at more\)"),
        (lambda: Image, "a module"),
        (Hostile, "a Hostile .no class."),
        (lambda: ToolOutput(Hostile(), metadata={"a": Hostile()}), "a Hostile"),
        (lambda: Nameless(), "a object"),  # noqa: PLW0108 - pytest would ask it for its name
        (lambda: Endless([1]), "a Endless .more than 1,000,000 values"),
    ],
)
def test_what_cannot_be_told_is_an_error_result(make, says):
    found = as_result(CALL, make())
    assert found.is_error
    assert (found.call_id, found.name) == ("7", "f")
    assert found.content.startswith("The tool ran, but its result cannot be shown: a ")
    assert re.search(says, found.content)
    assert "\n" not in found.content
    found.content.encode()


NO_UTF8 = "'utf-8' codec can't decode byte 0xff in position 0: invalid utf-8"
UNKNOWN = "Unable to serialize unknown type: <class"


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"a": [{(1, 2): 3}]}, "a dict (a tuple cannot be a key of a JSON object (at a[0]))"),
        ({(1, 2): 3}, "a dict (a tuple cannot be a key of a JSON object)"),
        ({"a": {1: 1, "1": 2}}, "a dict (two keys are 1 in JSON (at a))"),
        ([circular()], "a list (circular (at [0][1].again))"),
        (
            {"a b\n": [object()]},
            rf"a dict (builtins.object is not JSON (at 'a b\n'[0]): {UNKNOWN} 'object'>)",
        ),
        (
            Point(1, {"x": [SOCKET]}),
            f"a Point (socket.socket is not JSON (at more.x[0]): {UNKNOWN} 'socket.socket'>)",
        ),
        (Pair(1, iter([])), "a Pair (builtins.list_iterator is not JSON (at right))"),
        ([float("nan")], "a list (nan is not JSON)"),
        ({"a": [b"\xff"]}, f"a dict (builtins.bytes is not JSON (at a[0]): {NO_UTF8})"),
        (ToolOutput([object()]), f"a list (builtins.object is not JSON (at [0]): {UNKNOWN} 'object'>)"),
    ],
)
def test_what_cannot_be_told_is_told_with_its_place(value, what):
    said = f"The tool ran, but its result cannot be shown: {what}."
    assert as_result(CALL, value) == ToolResultPart(call_id="7", name="f", content=said, is_error=True)


def test_keys_are_told_as_json_has_them():
    value = {True: 1, False: 2, None: 3, 1.5: 4, 7: 5, Level.LOW: 6, Unit.C: 7}
    del value[True]  # which 1 is, too
    told = '{"false": 2, "null": 3, "1.5": 4, "7": 5, "c": 7}'
    assert as_result(CALL, value).content == told
    assert as_result(CALL, {True: 1, Unit.C: {Level.LOW: 2}}).content == '{"true": 1, "c": {"1": 2}}'


def test_an_endless_iterator_is_not_run():
    def endless():
        while True:
            yield 1

    assert as_result(CALL, {"a": endless()}).is_error


@given(json_values)
def test_json_stays_what_it_is(value):
    found = as_result(CALL, [value])
    assert not found.is_error
    assert json.loads(found.content) == [value]


leaves = (
    st.none() | st.integers() | st.floats() | st.text(alphabet=st.characters(categories=["L", "Cs"])) | st.binary()
    | st.builds(object) | st.just(Unit.C) | st.just(sys) | st.builds(Hostile) | st.builds(TextPart, text=st.just("x"))
    | st.datetimes() | st.decimals() | st.complex_numbers() | st.builds(lambda: (n for n in ())) | st.builds(ToolOutput, st.just(b"\xff"))
)  # fmt: skip
keys = st.text(max_size=2) | st.integers() | st.floats() | st.none() | st.binary(max_size=2)
anything = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.builds(Point, inner, inner)
        | st.builds(ToolOutput, inner, metadata=inner)
        | st.builds(lambda one: (one,), inner)
    ),
    max_leaves=8,
)


@given(anything)
def test_no_value_raises(value):
    found = as_result(CALL, value)
    assert (found.call_id, found.name) == ("7", "f")
    ToolResultPart.model_validate_json(found.model_dump_json())


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_tool_error_speaks_for_itself():
    found = as_error(CALL, raised(ToolError("No such note.\nThere are: a, b")))
    assert found == ToolResultPart(
        call_id="7", name="f", content="No such note.\nThere are: a, b", is_error=True
    )
    assert as_error(CALL, InvalidArguments("x: missing")).content == "x: missing"
    assert as_error(CALL, ToolError("")).content == "ToolError"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("two\n  lines"), "ValueError: two lines"),
        (KeyError("x"), "KeyError: 'x'"),
        (TimeoutError(), "TimeoutError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no"), None),
        (ValueError("\ud800"), "ValueError: \\ud800"),
        (Odd(), "Odd: (no message: reading it raised RuntimeError)"),
        (Nameless(), "object"),
        (
            ExceptionGroup(
                "in a TaskGroup", [ValueError("a"), ExceptionGroup("b", [ToolError("c"), KeyError()])]
            ),
            "ExceptionGroup: in a TaskGroup (2 sub-exceptions): ValueError: a; ToolError: c; KeyError",
        ),
    ],
)
def test_other_exceptions_are_one_line(error, text):
    found = as_error(CALL, raised(error))
    assert found.is_error
    assert text is None or found.content == text
    assert "in raised" in found.metadata["traceback"]
    found.model_dump_json().encode()


def test_an_exception_without_a_traceback_is_told():
    found = as_error(CALL, Rude("oh"))
    assert found.content == "Rude: oh"
    assert found.metadata["traceback"] == "Rude, whose traceback raised RuntimeError"


def test_an_exception_is_bounded():
    found = as_error(CALL, raised(ValueError("x" * 100_000)))
    assert len(found.content) == MAX_ERROR == 2_000
    assert len(found.metadata["traceback"]) == MAX_TRACEBACK == 20_000
    assert found.metadata["traceback"].endswith("xxx\n"), "its end says what happened"
    group = ExceptionGroup("six", [ValueError(str(number)) for number in range(6)])
    five = "; ".join(f"ValueError: {number}" for number in range(5))
    assert as_error(CALL, group).content == f"ExceptionGroup: six (6 sub-exceptions): {five}"
