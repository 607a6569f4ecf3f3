"""Reading a provider's JSON: every kind of field, what each refuses, and that each complaint says where."""

from __future__ import annotations

from typing import Any

import pytest

from localagent.errors import InvalidMedia, InvalidMessage, Unsupported
from localagent.messages import ImagePart, TextPart, UnknownPart, UserMessage
from localagent.wire.extras import attach, collect, keep, verbatim
from localagent.wire.payload import Fields, at, objects, whole

NOUNS = [
    (None, "nothing"), (True, "a boolean"), (7, "a number"), (1.5, "a number"), ("x", "a string"), ([], "a list"),
    ((), "a list"), ({}, "an object"), ({1}, "set"),
]  # fmt: skip


def refused(read: Any, *given: Any, **more: Any) -> str:
    with pytest.raises(InvalidMessage) as caught:
        read(*given, **more)
    return str(caught.value)


@pytest.mark.parametrize(("value", "noun"), NOUNS)
def test_what_stands_where_something_else_belongs(value: Any, noun: str) -> None:
    def of(name: str, *given: Any) -> str:
        return refused(getattr(Fields({"a": value}, "x"), name), "a", *given)

    if noun != "an object":
        assert refused(Fields, value, "x") == f"x: {noun} where an object belongs"
        assert of("object") == f"x.a: {noun} where an object belongs"
    if noun != "a string":
        said = "missing" if value is None else f"{noun} where a string belongs"
        assert of("text") == f"x.a: {said}"
    if noun != "a list":
        assert refused(lambda: [*objects(value, "x.a")]) == f"x.a: {noun} where a list belongs"
    if value is None:
        return
    if noun != "a string":
        assert of("maybe_text") == of("word", ("a",)) == f"x.a: {noun} where a string belongs"
    if noun != "a boolean":
        assert of("flag") == f"x.a: {noun} where true or false belongs"
    if noun != "an object":
        assert of("maybe_object") == f"x.a: {noun} where an object belongs"
    if noun != "a list":
        assert (
            refused(lambda: [*Fields({"a": value}, "x").objects("a")]) == f"x.a: {noun} where a list belongs"
        )


def test_the_values_of_fields_and_of_those_that_are_not_there() -> None:
    given = {
        "t": "",
        "n": 2.0,
        "f": False,
        "o": {"b": 1},
        "l": [{"c": 2}, {"d": 3}],
        "w": "b",
        "rest": 0,
        "none": None,
    }
    fields = Fields(given, "x")
    assert (fields.text("t"), fields.flag("f", True), fields.word("w", ("a", "b"))) == ("", False, "b")
    count = fields.count("n")
    assert count == 2 and type(count) is int
    inner = fields.maybe_object("o")
    assert inner is not None and (inner.where, inner.rest()) == ("x.o", {"b": 1})
    assert [(each.where, each.rest()) for each in fields.objects("l")] == [
        ("x.l[0]", {"c": 2}),
        ("x.l[1]", {"d": 3}),
    ]
    assert fields.rest() == {"rest": 0}
    assert (fields.take("rest"), fields.take("rest"), fields.rest()) == (0, None, {})
    assert given["t"] == "" and "rest" in given
    assert (fields.maybe_text("t"), fields.maybe_object("o"), [*fields.objects("l")]) == (None, None, [])
    assert (fields.flag("f"), fields.flag("f", True), fields.count("n"), fields.word("w", ())) == (
        False,
        True,
        0,
        None,
    )
    assert fields.number("n", range(3)) is None
    assert Fields({"n": 2.0}, "").number("n", range(3)) == 2


@pytest.mark.parametrize("value", [True, False, -1, -1.0, 1.5, "3", [], float("nan")])
def test_what_is_no_count(value: Any) -> None:
    shown = -1 if value == -1.0 and value is not True else value
    assert refused(Fields({"a": value}, "x").count, "a") == f"x.a: {shown!r} where a count belongs"


def test_numbers_words_and_objects_that_are_not_as_they_should_be() -> None:
    class Few:
        def __contains__(self, value: object) -> bool:
            return value == 3

        def __str__(self) -> str:
            return "three"

    assert Fields({"a": 3}, "x").number("a", Few()) == 3
    assert refused(Fields({"a": 4.0}, "x").number, "a", Few()) == "x.a: 4 where three belongs"
    assert refused(Fields({"a": "c" * 90}, "x").word, "a", ("a", "b")) == f"x.a: '{'c' * 59} is none of a, b"
    assert refused(Fields, {1: 2}, "x") == "x: an object with other keys than strings"
    assert refused(Fields({"a": 10**5000}, "x").number, "a", Few()) == "x.a: a number where three belongs"
    assert refused(Fields({"a": "y" * 90}, "x").count, "a") == f"x.a: '{'y' * 39} where a count belongs"


def test_the_place_of_a_complaint() -> None:
    assert str(Fields({}, "x").wrong("no")) == "x: no"
    assert str(Fields({}, "x").wrong("no", "a")) == "x.a: no"
    assert (Fields({}, "").path("a"), Fields({}, "x").path("a")) == ("a", "x.a")
    with pytest.raises(InvalidMessage, match=r"^x\[0\]: not base64"), at("x[0]"):
        raise InvalidMedia("not base64")
    with pytest.raises(InvalidMessage, match=r"^x\[0\]\.text: "), at("x[0]"):
        TextPart(text=7)  # type: ignore[arg-type]
    with pytest.raises(KeyError), at("x"):
        raise KeyError("a")


def test_what_is_kept_as_its_text() -> None:
    assert Fields({}, "x").spell({"é": [1, None]}) == '{"é": [1, null]}'
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for value in ({1, 2}, deep):
        assert refused(Fields({}, "x").spell, value).startswith("x: not JSON: ")


@pytest.mark.parametrize(
    ("value", "same"),
    [(1.0, 1), (1.5, 1.5), (float("inf"), float("inf")), (True, True), ("1.0", "1.0"), (None, None)],
)
def test_a_number_with_a_point_may_be_whole(value: Any, same: Any) -> None:
    assert whole(value) == same and type(whole(value)) is type(same)


# -- fields of providers -----------------------------------------------------------------------------------


def test_an_unknown_part_is_whole_and_its_own() -> None:
    block = {"type": "smell", "of": ["roses"], "none": None}
    fields = Fields(block, "x")
    fields.take("type")
    part = fields.unknown("google", "smell")
    assert isinstance(part, UnknownPart) and part.kind == "google:smell"
    again = verbatim(part, "google")
    assert again == block
    assert again is not None
    again["of"].append("x")
    assert verbatim(part, "google") == block
    assert verbatim(part, "openai") is verbatim(TextPart(text="x"), "google") is None
    assert verbatim(UnknownPart(kind="google:smell"), "google") is None
    assert verbatim(UnknownPart.model_validate({"kind": "google:smell", "block": [1]}), "google") is None


def test_what_nobody_took_is_collected_with_what_is_inside() -> None:
    block = Fields({"a": 1, "inner": {"b": 2, "c": None}, "empty": {}}, "x")
    inner, empty = block.object("inner"), block.object("empty")
    assert collect(block, "p", inner=inner, empty=empty) == {"p": {"a": 1, "inner": {"b": 2}}}
    assert collect(Fields({"a": None}, "x"), "p", empty=empty) == {}


def test_what_stands_beside_a_turn_is_its_payload() -> None:
    message = UserMessage.text("x")
    assert keep(message, Fields({"a": None}, "x"), "p") is message
    kept = keep(message, Fields({"a": [1]}, "x"), "p")
    assert kept.payload == {"p": {"a": [1]}} and kept.content == message.content


def test_fields_go_back_beside_those_of_the_block() -> None:
    extra = {"a": [1], "own": "no", "inner": {"x": [1], "own": "no"}, "plain": {"x": 1}, "none": None}
    part = TextPart(text="x", provider_metadata={"p": extra})
    block = {"own": 1, "inner": {"own": 2}, "plain": {"own": 3}}
    joined = attach(block, part, "p", nested=("inner",), reserved=("b", "own"))
    assert joined == {"own": 1, "inner": {"own": 2, "x": [1]}, "plain": {"own": 3}, "a": [1]}
    joined["a"].append(2)
    joined["inner"]["x"].append(2)
    assert (extra["a"], extra["inner"]) == ([1], {"x": [1], "own": "no"})
    assert block == {"own": 1, "inner": {"own": 2}, "plain": {"own": 3}}
    assert attach(block, part, "q") is block


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ("x", "the provider metadata 'p' of a part of kind 'image' is no object"),
        ({"b": 1}, "'b' in the provider metadata of a part of kind 'image'"),
    ],
)
def test_fields_that_would_make_another_block_of_it_are_refused(metadata: Any, said: str) -> None:
    part = ImagePart(url="https://a.b/c.png", provider_metadata={"p": metadata})
    with pytest.raises(Unsupported) as caught:
        attach({}, part, "p", reserved=("b",))
    assert str(caught.value) == said
    assert attach(
        {"b": 2}, ImagePart(url="https://a.b", provider_metadata={"p": {"b": 1}}), "p", reserved=("b",)
    ) == {"b": 2}
