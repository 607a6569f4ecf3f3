"""Outputs made to hurt: large, deep, and of the kinds that make look-ahead and rewinding expensive."""

from __future__ import annotations

import sys

import pytest

from parsers import DIALECTS, CallEnd, Malformed, StreamParser
from parsers.grammars.values import MAX_DEPTH
from tests.parsers.outputs import END, START, TOOLS
from tests.parsers.reading import check_run, read, whole

SIZE = 100_000
LARGE = {
    **{f"100 kB of {char!r}": START + "[f(a=" + char * SIZE for char in "['\\{(\"<,` "},
    **{f"100 kB of {char!r} as text": char * SIZE for char in "[<'"},
    "10,000 lists deep": f"{START}[f(a={'[' * 10_000}1{']' * 10_000})]{END}",
    "10,000 mappings deep": START + "[f(a=" + "{'k':" * 10_000 + "1" + "}" * 10_000 + f")]{END}",
    "a string of 1 MB": f"{START}[f(a='{'x' * 1_000_000}')]{END}",
    "a name of 100 kB": f"{START}[{'f' * SIZE}(a=1)]{END}",
    "an integer of 100 kB": f"{START}[f(a={'9' * SIZE})]{END}",
    "lone surrogates": f"{START}[f(a='{chr(0xD800) * 1000}{chr(0xDC00) * 1000}')]{END}{chr(0xDBFF)}",
    "NUL and every control character": f"{START}[f(a='{''.join(map(chr, range(32)))}')]{END}\0",
    "mixed line ends": f"a\r\nb\rc\n{START}[f(a='x\r\ny\rz\n',\r b=1\r\n)]{END}\r",
}  # fmt: skip

# Each takes a count; the cost must grow no faster than the output.
FAMILIES = {
    "text": lambda n: "hello < world " * n,
    "a string": lambda n: f"{START}[f(a='{'hello wor ' * n}')]{END}",
    "nested values": lambda n: START + "[f(a=[" + "[1, {'k': None}], " * n + "])]" + END,
    "arguments": lambda n: f"{START}[f({''.join(f'a{i}={i}, ' for i in range(n))})]{END}",
    "blocks": lambda n: f"{START}[f(a=1)]{END}" * n,
    "faulty siblings": lambda n: START + "[" + "f('x'), " * n + "]" + END,
    "adjacent literals": lambda n: START + "[f(a=" + "'a' " * n + ")]" + END,
    "adjacent literals that end in nothing": lambda n: START + "[f(a=" + "'a' " * n + "x)]" + END,
    "end markers in a string": lambda n: f"{START}[f(a='{('x' + END) * n}')]{END}",
    "strings that never close": lambda n: f"{START}[f(a='x{END}" * n,
    "white space behind a quote": lambda n: f"{START}[f(a='x'{' ' * 10 * n}, b=1)]{END}",
    "quotes that look like closing ones": lambda n: START + "[f(a='x " + "', aaaaaaaaa" * n,
    "closing brackets behind inner quotes": lambda n: START + "[f(a='x" + "' )] " * n,
    "fences behind inner quotes": lambda n: START + "[f(a='a 'c' " + "')]```" * n + "\nx",
    "literals across blocks": lambda n: f"{START}[f(a=" + f"''\"\"\"\"{END}{START}[f(a=" * n,
    "echoes": lambda n: f"{START}[f(a=1)]{END}" + f"[f(a=1)]{END}" * n,
    "almost an echo": lambda n: f"{START}[f(a='{'x' * n}')]{END}[f(a='{'x' * n}",
    "bare lists that never close": lambda n: "[f(a='" * n,
    "bare lists with a fault at the end": lambda n: "[f(a=[" * n,
    "bare lists that count": lambda n: "[f(a=1)] " * n,
    "JSON with the name last": lambda n: START + '{"arguments": {"a": [' + "1, " * n + ']}, "name": "f"}' + END,
    "triple quotes": lambda n: START + "[f(a='''" + "''x" * n,
    "escapes": lambda n: START + "[f(a='" + r"\u0041\n\N{DEGREE SIGN}" * n,
    "reasoning with a draft": lambda n: f"<think>{START}" + "hm " * n,
}  # fmt: skip


@pytest.mark.parametrize("raw", LARGE.values(), ids=LARGE)
def test_hostile_outputs_are_read(raw):
    parser = StreamParser(DIALECTS["lfm2"])
    events = [event for at in range(0, len(raw), 4) for event in parser.feed(raw[at : at + 4])]
    events += parser.close()
    check_run(raw, events)
    assert read("lfm2", whole(raw))[-1].end == len(raw)


def test_limits_are_faults_of_the_call():
    deep = MAX_DEPTH + 1
    raw = f"{START}[f(a={'[' * deep}{']' * deep}), g(a={'9' * 4301}), h(a={'[' * 128}{']' * 128})]{END}"
    events = read("lfm2", whole(raw))
    assert [event.reason for event in events if isinstance(event, Malformed)] == ["too_deep", "too_large"]
    assert [event.name for event in events if isinstance(event, CallEnd)] == ["h"]


def steps(raw: str) -> int:
    """Function calls, Python's and built-in ones, that reading `raw` takes. Repeatable, unlike seconds."""
    count = 0

    def profile(_frame: object, kind: str, _argument: object) -> None:
        nonlocal count
        count += kind in ("call", "c_call")

    parser = StreamParser(DIALECTS["lfm2"], TOOLS)
    sys.setprofile(profile)
    try:
        for at in range(0, len(raw), 4):
            parser.feed(raw[at : at + 4])
        parser.close()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_cost_grows_no_faster_than_the_output(family):
    small, large = family(200), family(800)
    assert steps(large) / len(large) < 1.3 * steps(small) / len(small) + 0.2
