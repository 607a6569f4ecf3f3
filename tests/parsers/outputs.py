"""Strategies: what models write, what they almost write, and what nobody would."""

from __future__ import annotations

import re

from hypothesis import strategies as st

from parsers import DIALECTS
from tests.parsers.reading import Piece

START, END = "<|tool_call_start|>", "<|tool_call_end|>"
MARKERS = (START, END, "<think>", "</think>", "<|im_end|>", "<|endoftext|>")

names = st.from_regex(r"[A-Za-z_][\w.\-]{0,8}", fullmatch=True)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.lists(st.sampled_from([*MARKERS, "'", '"', "\\", ", x=", ")]", "\n", "word"]), max_size=6).map(
        "".join
    ),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
calls = st.tuples(names, st.dictionaries(st.one_of(names, st.text(max_size=8)), values, max_size=4))
call_lists = st.lists(calls, min_size=1, max_size=4)

fragments = st.sampled_from(
    [
        *MARKERS, *(marker[:-3] for marker in MARKERS), "[", "]", "(", ")", "{", "}", "f(", "g(a=", "[f(", "[f(a='1')]", "kwargs={", "x=1",
        "x='a'", 'y="b"', "'", '"', "'''", '"""', "\\", "\\u12", "\\ud83d", "\\ude00", "\\x", "\\N{DEGREE SIGN}",
        ", ", ",", "=", ":", "**", "*", "{'k': 1}", "[1, 2", "True", "null", "07", "-", "1e999", "0x", ".5", "nan",
        "mode=fast", "f'{x}'", "b'x'", "r'\\'", "```", "```python\n", "\n", " ", "\r\n", "\t", "\x00", "\ud800",
        '{"name": "f", "arguments": {"a": 1}}', '{"name": ', '"arguments": {', "<", "<|", "é", "🌍", "it's", "a b",
    ]
)  # fmt: skip
noise = st.lists(st.one_of(fragments, fragments, st.text(max_size=4)), max_size=24).map("".join)


@st.composite
def mutated_calls(draw: st.DrawFn) -> str:
    """A rendered block with a few characters lost, doubled or replaced, between two stretches of noise."""
    text = DIALECTS["lfm2"].render(draw(call_lists))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(fragments | st.just("")) + text[at + draw(st.integers(0, 3)) :]
    return draw(noise) + text + draw(noise)


@st.composite
def blocks_of_noise(draw: st.DrawFn) -> str:
    """Noise where a call list should be."""
    return f"{START}[f(a={draw(noise)}), g({draw(noise)})]{END}{draw(noise)}"


outputs = st.one_of(noise, mutated_calls(), blocks_of_noise())
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {"a": {"type": kind}}}}}
    for name, kind in (("f", "integer"), ("g", "string"))
]
tools = st.sampled_from([None, TOOLS])
cuts = st.lists(st.integers(0, 400), max_size=12)


@st.composite
def flagged(draw: st.DrawFn, source: st.SearchStrategy[str] = outputs) -> tuple[str, list[Piece]]:
    """An output as a host sends it: markers as special tokens or spelled out, the rest cut anywhere."""
    text = draw(source)
    pieces: list[Piece] = []
    for part in re.split("(" + "|".join(map(re.escape, MARKERS)) + ")", text):
        if part in MARKERS and draw(st.booleans()):
            pieces.append((part, True))
        else:
            at = draw(st.integers(0, len(part)))
            pieces += [(piece, False) for piece in (part[:at], part[at:]) if piece]
    return text, pieces
