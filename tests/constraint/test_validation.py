"""Arguments are held against schemas of strangers: right ones are checked, none of them hangs anybody."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from localagent.constraint import validation
from localagent.constraint.validation import SECONDS, Arguments, Violation, _leaves_bounds, violations
from localagent.errors import GrammarMissing, InvalidArguments

DRAFT7 = "http://json-schema.org/draft-07/schema#"
LATEST = "https://json-schema.org/draft/2020-12/schema"
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"


def of(schema, **more):
    """The schema of an object with one property, `a`."""
    return {"type": "object", "properties": {"a": schema}, **more}


def said(schema, given):
    """What is wrong with the arguments; None where nothing is refused."""
    try:
        Arguments("t", schema).check(given)
    except InvalidArguments as error:
        return str(error).removeprefix("the arguments do not fit t: ")
    return None


UNIQUE = {"type": "array", "uniqueItems": True}
NAMED = {"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}
FITTING = [
    (of({"pattern": "^[a-z]+$"}), {"a": "abc"}),
    (of({"pattern": "b"}), {"a": "abc"}),
    (of({"pattern": "b"}), {"a": 5}),
    (of({"pattern": EMAIL}), {"a": "a.b@example.org"}),
    (of({"pattern": r"^\p{L}+$"}), {"a": "été"}),
    (of({"pattern": r"(a|b)\1"}), {"a": "aa"}),
    (of({"not": {"pattern": "^x"}}), {"a": "abc"}),
    (of(UNIQUE), {"a": [1, True, "1", [1], {"a": 1}, 2.5]}),
    (of({"uniqueItems": False}), {"a": [1, 1]}),
    (of({"uniqueItems": True}), {"a": "aa"}),
    (of(NAMED), {"a": {"x-1": 1}}),
    (of(NAMED), {"a": 5}),
    (of({"additionalProperties": True, "properties": {}}), {"a": {"b": 1}}),
    (of({"additionalProperties": {"type": "string"}}), {"a": {"b": "c"}}),
    (of({"unevaluatedProperties": False, "properties": {"b": {}}}), {"a": {"b": "c"}}),
    (of({"pattern": "b"}, **{"$schema": DRAFT7}), {"a": "abc"}),
]
UNFIT = [
    (of({"pattern": "^[a-z]+$"}), {"a": "A"}, "a: 'A' does not match '^[a-z]+$'"),
    (of({"pattern": EMAIL}), {"a": "a..b@example.org"}, "does not match"),
    (of({"not": {"pattern": "^x"}}), {"a": "xyz"}, "should not be valid"),
    (of(UNIQUE), {"a": [1, 2, 1.0]}, "a: [1, 2, 1.0] has non-unique elements"),
    (of(UNIQUE), {"a": [{"b": [1], "c": 2}, {"c": 2.0, "b": [1]}]}, "has non-unique elements"),
    (of(NAMED), {"a": {"x-1": "s"}}, "a.x-1: 's' is not of type 'integer'"),
    (of(NAMED), {"a": {"y": 1}}, "a: there is no 'y'"),
    (of({"additionalProperties": {"type": "string"}}), {"a": {"b": 1}}, "a.b: 1 is not of type 'string'"),
    (of({"unevaluatedProperties": False, "properties": {"b": {}}}), {"a": {"c": 1}}, "a: Unevaluated properties"),
    (of({"pattern": "b"}, **{"$schema": DRAFT7}), {"a": "x"}, "a: 'x' does not match 'b'"),
    (of({"enum": ["x" * 1000]}), {"a": "y" * 1000}, "..."),
    (of({"patternProperties": {"x": {}}, "minimum": 10}), {"a": 5}, "a: 5 is less than the minimum of 10"),
    ({"required": list("abcd")}, {}, "'a' is a required property; 'b' is a required property; 'c' is a required property; and more"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "given"), FITTING)
def test_arguments_that_fit(schema, given):
    assert said(schema, given) is None


@pytest.mark.parametrize(("schema", "given", "told"), UNFIT)
def test_arguments_that_do_not(schema, given, told):
    found = said(schema, given)
    assert told in found
    assert len(found) < 700


FITS = "a" * 40 + "!"
DOUBLING = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
ROUND = {"a": {"anyOf": [{"$ref": "#/$defs/b"}] * 2}, "b": {"anyOf": [{"$ref": "#/$defs/a"}] * 2}}
HOSTILE = {
    "pattern": (of({"pattern": "^(a+)+$"}), {"a": FITS}),
    "alternatives": (of({"pattern": "^(a|a)*$"}), {"a": FITS}),
    "back_reference": (of({"pattern": r"^(a+)+\1$"}), {"a": FITS}),
    "draft7": (of({"pattern": "^(a|a)*$"}, **{"$schema": DRAFT7}), {"a": FITS}),
    "dialect_inside": (of({"$schema": LATEST, "pattern": "^(a|a)*$"}), {"a": FITS}),
    "key": (of({"propertyNames": {"pattern": "^(a|a)*$"}}), {"a": {FITS: 1}}),
    "pattern_properties": (of({"patternProperties": {"^(a|a)*$": False}}), {"a": {FITS: 1}}),
    "additional": ({"patternProperties": {"^(a|a)*$": {}}, "additionalProperties": False}, {FITS: 1}),
    "unevaluated": (of({"allOf": [{"patternProperties": {"^(a|a)*$": {}}}], "unevaluatedProperties": False}), {"a": {FITS: 1}}),
    "unevaluated_elsewhere": (
        {"$defs": {"d": {"patternProperties": {"^(a|a)*$": {}}}}, "$ref": "#/$defs/d", "unevaluatedProperties": False},
        {FITS: 1},
    ),
    "many_times": (of({"items": {"pattern": "^(a|a)*$"}}), {"a": [FITS + str(n) for n in range(100)]}),
    "long": (of({"pattern": "(?:(?:a?){300}){300}" * 1000}), {"a": "a" * 1000}),
    "large": (of({"pattern": "(?:(?:a?){300}){300}b"}), {"a": "a" * 10_000}),
    "classes": (of({"pattern": "(?i)" + "[\\x00-\\U0010ffff]" * 50}), {"a": "a"}),
    "doubling": ({"$defs": {**DOUBLING, "d40": {"type": "object"}}, "$ref": "#/$defs/d0"}, {}),
    "round": ({"$defs": ROUND, "$ref": "#/$defs/a"}, {}),
    "unique": (of(UNIQUE), {"a": [{"n": n} for n in range(30_000)]}),
    "wide": (of({"items": {"anyOf": [{"type": "integer"}] * 1000}}), {"a": ["x" * 10_000] * 1000}),
    "wide_schema": (of({"anyOf": [{"type": "integer", "title": "t"}] * 100_000}), {"a": "x"}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "leaves"),
    [
        ({"anyOf": [{"$schema": DRAFT7}]}, True),
        ({"allOf": [[{"patternProperties": {}}]], "unevaluatedProperties": False}, True),
        ({"allOf": [{"patternProperties": {}}], "anyOf": [{"type": "object"}]}, False),
    ],
)
def test_what_cannot_be_checked_within_limits_is_found_within_lists(schema, leaves):
    assert _leaves_bounds(schema) is leaves


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_schema_hangs_anybody(kind):
    """Whoever checks has an answer in time, and other threads run meanwhile."""
    schema, given = HOSTILE[kind]
    done, longest = threading.Event(), 0.0

    def check() -> None:
        with contextlib.suppress(InvalidArguments):
            Arguments("t", schema).check(given)
        done.set()

    started = time.monotonic()
    threading.Thread(target=check, daemon=True).start()
    while not done.is_set():
        before = time.monotonic()
        assert before - started < 10 * SECONDS
        done.wait(0.01)
        longest = max(longest, time.monotonic() - before)
    # Generous to a busy machine; an engine that holds the lock takes all the time there is.
    assert longest < 8 * SECONDS


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "("},
        {"pattern": "a" * 2000},
        {"not": {"pattern": "("}},
        {"pattern": "^(a|a)*$"},
        {"not": {"pattern": "^(a|a)*$"}},
    ],
)
def test_where_a_pattern_decides_nothing_the_server_does(schema):
    assert said(of(schema), {"a": FITS}) is None


def test_violations_name_path_and_keyword():
    schema = of(UNIQUE, required=["b"])
    assert violations(schema, {"a": [1, 1]}) == [
        Violation("/a", "uniqueItems", "[1, 1] has non-unique elements"),
        Violation("", "required", "'b' is a required property"),
    ]
    assert violations(schema, {"a": [1, 2], "b": None}) == []
    assert violations({"$ref": "#/nowhere"}, {}) == []


def test_violations_without_the_packages(monkeypatch):
    monkeypatch.setattr("localagent.constraint.validation.find_spec", lambda name: None)
    with pytest.raises(GrammarMissing, match=r"checking a call needs jsonschema: .*install"):
        violations({}, {})


def test_a_long_array_is_given_up_between_two_items():
    """Where the check of one keyword takes all the time there is."""
    token = validation._deadline.set(time.monotonic() + 60)
    try:
        assert not list(validation._unique_items(None, True, [1, 2], {}))
        validation._deadline.set(time.monotonic() - 1)
        with pytest.raises(validation.Undecided, match="takes too long"):
            list(validation._unique_items(None, True, [1, 2], {}))
    finally:
        validation._deadline.reset(token)


def test_what_does_not_fit_is_told_to_the_letter():
    several = {"required": list("abcd")}
    missing = [f"'{name}' is a required property" for name in "abcd"]
    for count, more in ((2, ""), (3, ""), (4, "; and more")):
        schema = {"required": several["required"][:count]}
        with pytest.raises(InvalidArguments) as caught:
            Arguments("t", schema).check({})
        assert str(caught.value) == f"the arguments do not fit t: {'; '.join(missing[: min(count, 3)])}{more}"
    assert len(violations({"required": list("abcdef")}, {})) == 4
    for given, kind in (([1], "list"), ("x", "str"), (None, "NoneType")):
        with pytest.raises(InvalidArguments) as caught:
            Arguments("t", {}).check(given)
        assert str(caught.value) == f"the arguments of t are an object, not {kind}"
    deep = of({"items": {"properties": {"k": {"type": "integer"}}}})
    with pytest.raises(InvalidArguments) as caught:
        Arguments("t", deep).check({"a": [{"k": 1}, {"k": "x"}]})
    assert str(caught.value) == "the arguments do not fit t: a[1].k: 'x' is not of type 'integer'"
    assert violations(deep, {"a": [{"k": "x"}]})[0].path == "/a/0/k"


def test_a_description_is_cut_where_it_is_too_long():
    """The value that it quotes has no end."""
    for length in (173, 174, 10_000):
        (found,) = violations({"type": "integer"}, "x" * length)
        whole = f"'{'x' * length}' is not of type 'integer'"
        assert found.message == (whole if length == 173 else whole[:197] + "...")
        assert len(found.message) == 200


def test_a_check_takes_a_second_and_no_longer(monkeypatch):
    """Each look at the clock finds that a tenth of one has gone by."""
    now = [0.0]

    def later():
        now[0] += 0.1
        return now[0]

    for count, decided in ((5, True), (30, False)):
        arguments = Arguments("t", {"allOf": [*[{"minimum": 0}] * count, {"minimum": 5}]})
        assert len(arguments.errors(1)) == 1
        with monkeypatch.context() as patched:
            patched.setattr(validation.time, "monotonic", later)
            now[0] = 0.0
            if decided:
                assert len(arguments.errors(1)) == 1
            else:
                with pytest.raises(validation.Undecided, match="the check takes too long"):
                    arguments.errors(1)
                assert 1.0 < now[0] < 1.3


def test_a_pattern_may_be_so_long_and_no_longer():
    assert said(of({"pattern": "^" + "b" * 999}), {"a": "a"}) is not None
    assert said(of({"pattern": "^" + "b" * 1000}), {"a": "a"}) is None
