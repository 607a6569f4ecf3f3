"""How a dialect lays out a call, read off what it writes; what cannot be read off is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from localagent.constraint.layout import INDEX, Argument, Layout, Notation, Strings, layout
from localagent.errors import Unsupported
from parsers import DIALECTS, Dialect

JSON_WORDS = {True: "true", False: "false", None: "null"}
PYTHON_WORDS = {True: "True", False: "False", None: "None"}
JSON_STRINGS = Strings("quoted", '"', '"')
JSON_VALUES = Notation(JSON_STRINGS, JSON_WORDS, ", ", ": ", has_bare=False)
PYTHON_STRINGS = Strings("quoted", '"', '"', python=True)
GEMMA_STRINGS = Strings("verbatim", '<|"|>', '<|"|>')

# The texts of a call: opener, head, between, tail, empty, close; of strings, constants and values; the rest.
TEXTS = {
    "lfm2": ("<|tool_call_start|>", "[", ", ", "]<|tool_call_end|>", "()", ")"),
    "hermes": (
        "<tool_call>",
        '\n{"name": "',
        '\n</tool_call>\n<tool_call>\n{"name": "',
        "\n</tool_call>",
        '", "arguments": {}}',
        "}}",
    ),
    "qwen3-coder": (
        "<tool_call>",
        "\n<function=",
        "\n</tool_call>\n<tool_call>\n<function=",
        "\n</tool_call>",
        ">\n</function>",
        "</function>",
    ),
    "gemma4": ("<|tool_call>", "call:", "<tool_call|><|tool_call>call:", "<tool_call|>", "{}", "}"),
    "kimi-k2": (
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.",
        "<|tool_call_end|><|tool_call_begin|>functions.",
        "<|tool_call_end|><|tool_calls_section_end|>",
        f":{INDEX}<|tool_call_argument_begin|>{{}}",
        "}",
    ),
    "glm45": ("<tool_call>", "", "\n<tool_call>", "", "\n</tool_call>", "</tool_call>"),
}
VALUES = {
    "lfm2": (
        PYTHON_STRINGS,
        PYTHON_WORDS,
        Notation(PYTHON_STRINGS, PYTHON_WORDS, ", ", ": ", has_bare=False),
    ),
    "hermes": (JSON_STRINGS, JSON_WORDS, JSON_VALUES),
    "qwen3-coder": (Strings("raw"), PYTHON_WORDS, JSON_VALUES),
    "gemma4": (GEMMA_STRINGS, JSON_WORDS, Notation(GEMMA_STRINGS, JSON_WORDS, ",", ":", has_bare=True)),
    "kimi-k2": (JSON_STRINGS, JSON_WORDS, JSON_VALUES),
    "glm45": (Strings("raw"), JSON_WORDS, JSON_VALUES),
}
ARGUMENTS = {
    # A string and a number in the argument `k`, and a number in one that needs quotes, where it can be written.
    "lfm2": (
        Argument('(k="', ', k="', '"'),
        Argument("(k=", ", k=", ""),
        Argument('(**{"a b": ', ', **{"a b": ', "}"),
    ),
    "hermes": (
        Argument('", "arguments": {"k": "', ', "k": "', '"'),
        Argument('", "arguments": {"k": ', ', "k": ', ""),
        Argument('", "arguments": {"a b": ', ', "a b": ', ""),
    ),
    "qwen3-coder": (
        Argument(">\n<parameter=k>\n", "<parameter=k>\n", "\n</parameter>\n"),
        Argument(">\n<parameter=k>\n", "<parameter=k>\n", "\n</parameter>\n"),
        None,
    ),
    "gemma4": (
        Argument('{k:<|"|>', ',k:<|"|>', '<|"|>'),
        Argument("{k:", ",k:", ""),
        Argument('{<|"|>a b<|"|>:', ',<|"|>a b<|"|>:', ""),
    ),
    "kimi-k2": (
        Argument(f':{INDEX}<|tool_call_argument_begin|>{{"k": "', ', "k": "', '"'),
        Argument(f':{INDEX}<|tool_call_argument_begin|>{{"k": ', ', "k": ', ""),
        Argument(f':{INDEX}<|tool_call_argument_begin|>{{"a b": ', ', "a b": ', ""),
    ),
    "glm45": (
        Argument(
            "\n<arg_key>k</arg_key>\n<arg_value>", "<arg_key>k</arg_key>\n<arg_value>", "</arg_value>\n"
        ),
        Argument(
            "\n<arg_key>k</arg_key>\n<arg_value>", "<arg_key>k</arg_key>\n<arg_value>", "</arg_value>\n"
        ),
        Argument(
            "\n<arg_key>a b</arg_key>\n<arg_value>", "<arg_key>a b</arg_key>\n<arg_value>", "</arg_value>\n"
        ),
    ),
}
CUTS = {
    "lfm2": ("]",),
    "hermes": ("", "\n", "\n</tool_call>\n"),
    "qwen3-coder": ("", "\n", "\n</tool_call>\n"),
    "gemma4": ("",),
    "kimi-k2": ("", "<|tool_call_end|>"),
    "glm45": ("\n",),
}
"""Behind what the turn may end, besides a whole block."""
NEAR = {
    "qwen3-coder": ("<function=", "<parameter=", "</parameter>", "</function>"),
    "glm45": ("<arg_key>", "<arg_value>", "</arg_value>"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_layout_is_what_the_dialect_writes(name: str) -> None:
    shape = layout(DIALECTS[name])
    assert (
        shape.opener,
        shape.head,
        shape.between,
        shape.tail,
        shape.empty,
        shape.close,
    ) == TEXTS[name]
    assert shape.cuts == CUTS[name]
    assert (shape.strings, shape.constants, shape.values) == VALUES[name]
    assert (shape.gaps, shape.is_typed, shape.near) == ((), False, NEAR.get(name, ()))
    assert shape.is_sorted == (name == "gemma4")
    text, number, quoted = ARGUMENTS[name]
    assert (shape.argument("k", "string"), shape.argument("k", "integer")) == (text, number)
    if quoted is not None:
        assert shape.argument("a b", "integer") == quoted
    else:
        with pytest.raises(Unsupported, match="'a b' cannot be the name of an argument in a tag"):
            shape.argument("a b", "integer")


def test_members_of_an_object_are_written_as_the_dialect_does() -> None:
    assert layout(DIALECTS["lfm2"]).member("k") == '"k": '
    assert layout(DIALECTS["hermes"]).member("a b") == '"a b": '
    gemma = layout(DIALECTS["gemma4"])
    assert [gemma.member(key) for key in ("k", "a b", "~~~", "é b")] == [
        "k:",
        '<|"|>a b<|"|>:',
        "~~~:",
        '<|"|>é b<|"|>:',
    ]


@pytest.mark.parametrize("name", ["mistral", "lfm2", "harmony", "gigachat3"])
def test_each_notation_has_its_own_layout(name: str) -> None:
    dialect = DIALECTS[name]
    shapes: list[Layout] = [layout(dialect, notation) for notation in dialect.renderers]
    assert len({(shape.opener, shape.head, shape.empty, shape.between) for shape in shapes}) == len(shapes)
    assert layout(dialect).head == shapes[0].head


# -- what cannot be read off --------------------------------------------------------------------------

Writer = Callable[[str, Any], str]


def dialect_of(one: Writer, name: str = "odd") -> Dialect:
    """A dialect that writes each call so, between the markers of Hermes."""

    def write(span: Any, markers: Any, calls: list[tuple[str, Any]]) -> str:
        return "\n".join(f"<tool_call>{one(*call)}</tool_call>" for call in calls)

    return replace(DIALECTS["hermes"], name=name, renderers={"odd": write})


def as_json(name: str, arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def without_b(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_b(inner) for key, inner in value.items() if key != "b b"}
    return value


def one_end_for_none(name: str, arguments: Any) -> str:
    return as_json(name, arguments) + ("" if arguments else " none")


def refused(name: str, arguments: Any) -> str:
    raise ValueError("it is never written")


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (refused, "it is never written"),
        (lambda name, arguments: name, "the integer is not found in what it writes"),
        (
            lambda name, arguments: name + json.dumps(arguments) * (len(arguments) < 2),
            "the argument 'probeKeyB' is not where it is expected",
        ),
        (
            lambda name, arguments: name + json.dumps(arguments).replace("true", "yes"),
            "its lists and objects are not written in brackets",
        ),
        (
            lambda name, arguments: name + json.dumps(arguments).replace("[", "(").replace("]", ")"),
            "its lists and objects are not written in brackets",
        ),
        (
            lambda name, arguments: (
                name + ("{nothing}" if arguments == {"probeKeyA": None} else json.dumps(arguments))
            ),
            "None is not found in what it writes",
        ),
    ],
)
def test_what_the_cuts_do_not_explain_is_refused(one: Writer, says: str) -> None:
    with pytest.raises(Unsupported) as caught:
        layout(dialect_of(one))
    assert str(caught.value) == f"calls of the dialect odd cannot be constrained: {says}"


def test_a_key_that_is_not_written_is_refused_by_name() -> None:
    shape = layout(dialect_of(lambda name, arguments: as_json(name, without_b(arguments))))
    assert shape.member("a b") == '"a b": '
    assert shape.argument("a b", "integer") == Argument('", "arguments": {"a b": ', ', "a b": ', "")
    with pytest.raises(Unsupported, match="the key 'b b' is not where it is expected"):
        shape.member("b b")
    with pytest.raises(Unsupported, match="the integer is not found in what it writes"):
        shape.argument("b b", "integer")


def test_one_call_that_is_written_in_another_way_than_two_stands_alone() -> None:
    def write(span: Any, markers: Any, calls: list[tuple[str, Any]]) -> str:
        written = ", ".join(as_json(*call) for call in calls)
        return f"<tool_call>{written if len(calls) == 1 else f'[{written}]'}</tool_call>"

    shape = layout(replace(DIALECTS["hermes"], name="odd", renderers={"odd": write}))
    assert shape.between is None
    assert (shape.head, shape.empty, shape.tail) == ('{"name": "', '", "arguments": {}}', "</tool_call>")


def test_a_number_that_counts_the_calls_is_told_from_one_that_does_not() -> None:
    def numbered(count: Callable[[int], int]) -> Layout:
        def write(span: Any, markers: Any, calls: list[tuple[str, Any]]) -> str:
            return "".join(f"<tool_call>{count(n)}:{as_json(*call)};" for n, call in enumerate(calls))

        return layout(replace(DIALECTS["hermes"], name="odd", renderers={"odd": write}))

    assert numbered(lambda n: n).head == f'{INDEX}:{{"name": "'
    assert numbered(lambda n: n).between == f'<tool_call>{INDEX}:{{"name": "'
    assert numbered(lambda n: 7).head == '7:{"name": "'


def test_a_number_may_stand_on_both_sides_of_a_call() -> None:
    def write(span: Any, markers: Any, calls: list[tuple[str, Any]]) -> str:
        return "".join(f"<tool_call>{n}:{as_json(*call)}#{n};" for n, call in enumerate(calls))

    shape = layout(replace(DIALECTS["hermes"], name="odd", renderers={"odd": write}))
    assert (shape.head, shape.between) == (f'{INDEX}:{{"name": "', f'<tool_call>{INDEX}:{{"name": "')
    assert (shape.empty, shape.close, shape.tail) == (f'", "arguments": {{}}}}#{INDEX};', "}}#0;", "")
