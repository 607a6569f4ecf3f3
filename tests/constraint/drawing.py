"""Tokens drawn at random under a grammar's mask, and tools and calls to draw them for."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from hypothesis import strategies as st

from localagent.constraint.layout import layout
from localagent.constraint.matching import Matcher
from localagent.errors import ConstraintFailed
from parsers import CallEnd, Dialect, Malformed, StreamParser, Text

SOON = 40
"""After so many tokens whatever ends something is preferred."""
NEVER = 1200
"""A text that is not at its end by then is given up."""


def special_of(vocabulary: Any) -> dict[str, int]:
    """Id by text."""
    return {text: token for token, text in vocabulary.special.items()}


def takes(vocabulary: Any, matcher: Matcher, text: str) -> bool:
    """Whether the matcher accepts the whole text, and may end there."""
    try:
        for token in vocabulary.tokenize(text, special=True):
            matcher.accept(token)
    except ConstraintFailed:
        return False
    return matcher.accepting


def takes_bytes(grammar: str, text: str) -> bool:
    """Whether llguidance takes the whole text, of which each byte is a token; no engine is needed."""
    from llguidance import LLMatcher, LLTokenizer

    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.get_error()
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())


def draw(vocabulary: Any, matcher: Matcher, dialect: Dialect | None, random: Random) -> list[int] | None:
    """Tokens from the beginning to the end of the grammar; None if there is no end in sight."""
    import numpy as np

    closers = [vocabulary.tokenize(text, special=True) for text in _closers(dialect)]
    drawn: list[int] = []
    while not matcher.stopped and len(drawn) < NEVER:
        forced = list(matcher.forced())
        if not forced and len(drawn) > SOON:
            if matcher.accepting:
                return drawn
            forced = next((list(text) for text in closers if _fits(matcher, text)), [])
        if not forced:
            mask = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
            token = int(random.choice(np.flatnonzero(mask).tolist()))
            if vocabulary.piece(token).end:
                return drawn
            forced = [token]
        for token in forced:
            matcher.accept(token)
        drawn += forced
    return drawn if matcher.accepting else None


def _closers(dialect: Dialect | None) -> list[str]:
    texts = ['"', "'", "]", "}"]
    if dialect is not None:
        shape = layout(dialect)
        values = [shape.argument("k", kind).post for kind in ("string", "integer", "object")]
        texts = [shape.close + shape.tail, *values, shape.values.strings.close, shape.strings.close, *texts]
    return [text for text in dict.fromkeys(texts) if text]


def _fits(matcher: Matcher, tokens: tuple[int, ...]) -> bool:
    trial = matcher.copy()
    try:
        for token in tokens:
            trial.accept(token)
    except ConstraintFailed:
        return False
    return True


def text_of(vocabulary: Any, tokens: list[int]) -> str:
    return b"".join(vocabulary.piece(token).data for token in tokens).decode("utf-8", "replace")


def read(dialect: Dialect, tools: list[dict[str, Any]], text: str) -> list[CallEnd] | str:
    """The calls in a text, or what is wrong with it."""
    parser = StreamParser(dialect, tools)
    events = [*parser.feed(text), *parser.close()]
    calls = [event for event in events if isinstance(event, CallEnd)]
    if wrong := [event for event in events if isinstance(event, Malformed)]:
        return f"malformed: {wrong[0].reason} in {wrong[0].raw!r}"
    if any(call.repaired for call in calls):
        return "repaired"
    if any(isinstance(event, Text) and event.text.strip() for event in events):
        return "text beside the calls"
    return calls or "no call"


# -- schemas, with values that fit them ---------------------------------------------------------------

NAMES = st.sampled_from(["city", "n", "max_results", "query", "is_on", "Größe", "x-1", "from"])
WORDS = st.text(
    st.one_of(
        st.characters(min_codepoint=32, max_codepoint=126),
        st.sampled_from("éß日\n\t\"'\\<>/[]{}\u2028\U0001f600"),
        st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]),
    ),
    max_size=12,
)
MARKUP = st.sampled_from(
    ["</p>", "<b>", "a < b", "</parameter", "1", "true", "[1]", "<|im_end|>", "null", ""]
)


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> tuple[dict[str, Any], st.SearchStrategy[Any]]:
    """A schema, and a strategy for values that fit it, members in the schema's order."""
    kinds = ["string", "enum", "integer", "number", "boolean", "length", "date", "pattern", "union"]
    kind = draw(st.sampled_from([*kinds, *(["array", "object", "map", "tuple", "either"] if depth else [])]))
    match kind:
        case "string":
            return {"type": "string"}, WORDS | MARKUP
        case "length":
            return {"type": "string", "minLength": 1, "maxLength": 4}, st.text(
                "ab\"'é", min_size=1, max_size=4
            )
        case "date":
            return {"type": "string", "format": "date"}, st.sampled_from(["2024-02-28", "1999-12-31"])
        case "pattern":
            return {"type": "string", "pattern": "^[a-c]+-[0-9]{2}$"}, st.sampled_from(["a-12", "abc-00"])
        case "enum":
            values = draw(st.lists(WORDS | st.integers() | st.none() | st.booleans(), min_size=1, max_size=4))
            return {"enum": values}, st.sampled_from(values)
        case "integer":
            low = draw(st.none() | st.integers(-1000, 1000))
            schema = {"type": "integer"} | ({} if low is None else {"minimum": low, "maximum": low + 50})
            return schema, st.integers() if low is None else st.integers(low, low + 50)
        case "number":
            return {"type": "number"}, st.floats(-1e15, 1e15) | st.integers()
        case "boolean":
            return {"type": "boolean"}, st.booleans()
        case "union":
            return {"type": ["string", "integer", "null"]}, WORDS | st.integers() | st.none()
        case "either":
            (one, ones), (two, twos) = draw(schemas(depth - 1)), draw(schemas(depth - 1))
            return {"anyOf": [one, two]}, ones | twos
        case "array":
            items, values = draw(schemas(depth - 1))
            most = draw(st.none() | st.integers(1, 3))
            schema = {"type": "array", "items": items, "minItems": 1} | (
                {} if most is None else {"maxItems": most}
            )
            return schema, st.lists(values, min_size=1, max_size=most or 3)
        case "tuple":
            (one, ones), (two, twos) = draw(schemas(depth - 1)), draw(schemas(depth - 1))
            schema = {"type": "array", "prefixItems": [one, two], "items": False, "minItems": 1}
            return schema, st.tuples(ones, twos).map(list) | ones.map(lambda one: [one])
        case "map":
            values, fitting = draw(schemas(depth - 1))
            return {"type": "object", "additionalProperties": values}, st.dictionaries(
                st.sampled_from(["a", "key two", "é"]), fitting, max_size=2
            )
    return draw(records(depth - 1))


@st.composite
def records(draw: st.DrawFn, depth: int = 2) -> tuple[dict[str, Any], st.SearchStrategy[Any]]:
    """As `schemas`, of an object."""
    names = draw(st.lists(NAMES, unique=True, max_size=4))
    parts = {name: draw(schemas(depth)) for name in names}
    required = [name for name in names if draw(st.booleans())]
    schema = {
        "type": "object",
        "properties": {name: part for name, (part, _) in parts.items()},
        "required": required,
    }
    fitting = st.fixed_dictionaries(
        {name: values for name, (_, values) in parts.items() if name in required},
        optional={name: values for name, (_, values) in parts.items() if name not in required},
    ).map(lambda given: {name: given[name] for name in names if name in given})
    return schema, fitting


def tool_of(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": dict(schema)}}


def words_in(value: Any) -> list[str]:
    """Every string in a value."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [word for each in inner for word in words_in(each)]
