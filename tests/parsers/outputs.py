"""Strategies: what models write, what they almost write, and what nobody would.

Everything about a dialect is taken from its own table, its own renderers and its own case rows, so that a
dialect which is added later is tested like the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from parsers import DIALECTS
from parsers.engine.tools import kind_of
from tests.parsers.reading import Piece

LONG = settings.default.max_examples > 1000
"""Whether time does not count: `make test-long`."""

START, END = "<|tool_call_start|>", "<|tool_call_end|>"
"""The markers of LFM2."""

CALLING = [
    name for name, dialect in DIALECTS.items() if dialect.calls is not None or dialect.opening is not None
]
"""The dialects with calls, all of which must write them."""

Call = tuple[str, dict[str, Any]]
Tools = list[dict[str, Any]]

SAMPLE: list[Call] = [
    ("f", {"a": 3, "b": "x y", "o": {"k": [1, None, True, "z"], "e": {}}}),
    ("g", {"a": "1"}),
    ("h", {}),
]
TOOLS: Tools = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {"a": {"type": kind}}}}}
    for name, kind in (("f", "integer"), ("g", "string"))
]
tools = st.sampled_from([None, TOOLS])
cuts = st.lists(st.integers(0, 400), max_size=12)

GENERAL = (
    "[", "]", "(", ")", "{", "}", "f(", "g(a=", "[f(", "[f(a='1')]", "kwargs={", "x=1", "x='a'", 'y="b"', "'", '"',
    "'''", '"""', "\\", "\\u12", "\\ud83d", "\\ude00", "\\x", "\\N{DEGREE SIGN}", ", ", ",", "=", ":", "**", "*", "/",
    "{'k': 1}", "[1, 2", "True", "null", "07", "-", "1e999", "0x", ".5", "nan", "mode=fast", "f'{x}'", "b'x'", "r'\\'",
    "```", "```python\n", "\n", "\n\n", " ", "\r\n", "\t", "\x00", "\ud800", '{"name": "f", "arguments": {"a": 1}}',
    '{"name": ', '"arguments": {', "<", ">", "<|", "</", "]]>", "é", "🌍", "it's", "a b",
)  # fmt: skip
_TOKEN = re.compile(r"</?[\w:=.\"]+(?: [\w:]+=)?>?|\w+|\s+|[^\w\s]")


def in_pieces(markers: Iterable[str], text: str) -> list[str]:
    """`text` split at markers, which are pieces of their own."""
    pattern = "|".join(map(re.escape, sorted(markers, key=len, reverse=True)))
    return [part for part in re.split(f"({pattern})", text) if part]


@cache
def rows(name: str) -> tuple[str, ...]:
    """The shorter outputs in the dialect's case table."""
    table = Path(__file__).parent / "cases" / f"{name}.jsonl"
    lines = table.read_text().splitlines() if table.exists() else []
    return tuple(raw for raw in (json.loads(line)["raw"] for line in lines) if len(raw) < 300)


@cache
def samples(name: str) -> tuple[str, ...]:
    """The sample calls in every notation of the dialect, as far as it can write several."""
    dialect = DIALECTS[name]
    return tuple(written(name, SAMPLE, notation)[1] for notation in dialect.renderers)


@cache
def tokens(name: str) -> tuple[str, ...]:
    """What the dialect's calls are made of: markers, tags, words, white space, punctuation."""
    markers = DIALECTS[name].markers
    found: dict[str, None] = {}
    for sample in samples(name):
        for part in in_pieces(markers, sample):
            found.update(dict.fromkeys([part] if part in markers else _TOKEN.findall(part)))
    return tuple(found)


@cache
def with_spaces(name: str) -> tuple[str, ...]:
    """The dialect's markers, with each white space that the table says may surround them."""
    dialect = DIALECTS[name]
    sides = [((*dialect.markers, *dialect.phrases), (), ())]
    for span in (dialect.reasoning, *dialect.answers):
        if span is not None:
            sides.append(((span.open,), span.before, span.after_open))
            sides.append(((span.close,), span.before_close, span.after_close))
    if dialect.calls is not None:
        sides.append((dialect.openers, dialect.calls.before, ()))
    return tuple(
        dict.fromkeys(
            b + m + a
            for markers, before, after in sides
            for m in markers
            for b in ("", *before)
            for a in ("", *after)
        )
    )


@cache
def unmarked(name: str) -> str:
    """Characters with which calls of the dialect may begin where no marker stands and no tools are declared."""
    dialect = DIALECTS[name]
    opening = None if dialect.opening is None else dialect.opening({})
    first = "" if opening is None else opening.first
    whole_turns = [sample for sample in samples(name) if not sample.lstrip().startswith(dialect.openers)]
    return first + ("[{" if whole_turns and opening is None else "")


@cache
def noise(name: str) -> st.SearchStrategy[str]:
    """Markers, beginnings of markers, pieces of calls, white space, and anything else."""
    markers = DIALECTS[name].markers
    own = (*with_spaces(name), *(marker[:-3] or marker[:1] for marker in markers), *tokens(name))
    piece = st.one_of(st.sampled_from(own), st.sampled_from(GENERAL), st.text(max_size=4))
    return st.lists(piece, max_size=20).map("".join)


def declaring(calls: Iterable[Call]) -> Tools:
    """Tools that declare each argument with the type of its value."""
    merged: dict[str, dict[str, Any]] = {}
    for name, arguments in calls.items() if isinstance(calls, dict) else calls:
        merged.setdefault(name, {}).update(arguments)
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": {key: {"type": kind_of(value)} for key, value in arguments.items()},
                },
            },
        }
        for name, arguments in merged.items()
    ]


def written(name: str, calls: list[Call], notation: str | None = None) -> tuple[list[Call], str]:
    """What of `calls` the dialect can express, and its text: at least the one call `f()`."""
    dialect = DIALECTS[name]
    assert dialect.renderers, f"{name} has no renderer"

    def expresses(calls: list[Call]) -> bool:
        try:
            return bool(dialect.render(calls, notation))
        except ValueError:
            return False

    kept = [
        (tool, {key: value for key, value in arguments.items() if expresses([(tool, {key: value})])})
        for tool, arguments in calls
        if expresses([(tool, {})])
    ]
    while kept and not expresses(kept):
        kept.pop()  # a turn may hold one call only
    kept = kept or [("f", {})]
    return kept, dialect.render(kept, notation)


names = st.one_of(
    st.sampled_from(["f", "g", "get_weather"]), st.from_regex(r"[A-Za-z_][\w.\-]{0,8}", fullmatch=True)
)


@cache
def values(name: str) -> st.SearchStrategy[Any]:
    """Any JSON value, with strings that hold what the dialect's calls are made of."""
    pieces = (*DIALECTS[name].markers, *tokens(name), "'", '"', "\\", ", x=", ")]", "\n", "word", "]]>")
    scalars = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=20),
        st.lists(st.sampled_from(pieces), max_size=6).map("".join),
    )
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
        max_leaves=10,
    )


@cache
def call_lists(name: str) -> st.SearchStrategy[list[Call]]:
    """Calls of different tools, and sometimes the first of them once more."""
    keys = st.one_of(names, names, st.text(max_size=8))
    calls = st.tuples(names, st.dictionaries(keys, values(name), max_size=4))
    unique = st.lists(calls, min_size=1, max_size=3, unique_by=lambda call: call[0])
    return st.tuples(unique, st.booleans()).map(lambda drawn: drawn[0] + drawn[0][:1] * drawn[1])


@cache
def rendered(name: str, notation: str | None = None) -> st.SearchStrategy[tuple[list[Call], str]]:
    """Calls and how the dialect writes them."""
    return call_lists(name).map(lambda calls: written(name, calls, notation))


@cache
def thoughts(name: str) -> tuple[str, ...]:
    """Short reasoning in front of a turn, with each white space that may surround its end, and none."""
    span = DIALECTS[name].reasoning
    if span is None:
        return ("",)
    closings = [marker for marker in with_spaces(name) if span.close in marker]
    return ("", *(f"{opened}hm{closing}" for closing in closings for opened in (span.open, "")))


@st.composite
def mutated(draw: st.DrawFn, name: str) -> str:
    """Rendered calls or a case row with a few characters lost, doubled or replaced, amid noise."""
    sources = [rendered(name).map(lambda pair: pair[1])] if name in CALLING else []
    sources += [st.sampled_from(rows(name))] if rows(name) else []
    text = draw(st.one_of(sources)) if sources else ""
    pieces = st.sampled_from((*DIALECTS[name].markers, *tokens(name), *GENERAL, ""))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(pieces) + text[at + draw(st.integers(0, 3)) :]
    before = draw(st.sampled_from(thoughts(name))) + draw(st.just("") | noise(name))
    return before + text + draw(noise(name))


@st.composite
def blocks_of_noise(draw: st.DrawFn, name: str) -> str:
    """Noise at one place of well-formed calls."""
    sample = draw(st.sampled_from(samples(name) or ("",)))
    at = draw(st.integers(0, len(sample)))
    return f"{sample[:at]}{draw(noise(name))}{sample[at:]}{draw(noise(name))}"


_SLIPS = (
    "True", "None", "NaN", "undefined", "01", "+1", "- 1", "1_0", "0x1", ".1", "1e999", "'x'", "'it's'", "r'x'",
    "'x' \"y\"", "word", '"it\\\'s"', '"a "b" c"', "'''x'''", "(1, 2)", "[1,]", "{'k': 1}", "{k: 1}", '{"k":1,"k":2}', "# so\n1", "/* so */1",
)  # fmt: skip
"""What models that mix JSON with Python or JavaScript write in place of a value."""
_NEIGHBOURS = ("true", "3", '"x"', "[0]")


def _mixed_values() -> Iterable[str]:
    """A list and a mapping with each slip in front of each kind of value, and with the slip as the last one."""
    for slip in (*_SLIPS, *_NEIGHBOURS):
        for other in _NEIGHBOURS:
            yield f"[{slip},{other},0]"
            yield f'{{"k":{slip},"l":{other}}}'
        yield f"[0,{slip}]"
        yield f'[null,{{"k":null,"l":{slip}}}]'


@cache
def mixing(name: str) -> tuple[tuple[str, str, str], ...]:
    """Calls that mix notations, each in three parts: what stands before the value, the value, the rest."""
    dialect = DIALECTS[name]
    calls = [
        dialect.render([("f", {"a": 424242})], notation).partition("424242") for notation in dialect.renderers
    ]
    return tuple((head, value, tail) for head, _, tail in calls for value in _mixed_values())


@cache
def outputs(name: str) -> st.SearchStrategy[str]:
    """Outputs of all kinds for a dialect."""
    mixed = [st.sampled_from(mixing(name)).map("".join)] if name in CALLING else []
    return st.one_of(noise(name), mutated(name), blocks_of_noise(name), *mixed)


def as_tokens(name: str, marker: str) -> list[Piece]:
    """A marker as a vocabulary has it: one special token, or ordinary ones, perhaps with a special one inside."""
    core = DIALECTS[name].cores.get(marker, marker)
    before, core, after = marker.partition(core) if core else (marker, "", "")
    return [piece for piece in ((before, False), (core, True), (after, False)) if piece[0]]


@st.composite
def flagged(draw: st.DrawFn, name: str) -> tuple[str, list[Piece]]:
    """An output as a host sends it: markers as special tokens or spelled out, the rest cut anywhere."""
    markers = DIALECTS[name].markers
    text = draw(outputs(name))
    pieces: list[Piece] = []
    for part in in_pieces(markers, text):
        if part in markers and draw(st.booleans()):
            pieces += as_tokens(name, part)
        else:
            at = draw(st.integers(0, len(part)))
            pieces += [(piece, False) for piece in (part[:at], part[at:]) if piece]
    return text, pieces
