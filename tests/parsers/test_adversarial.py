"""Outputs made to hurt: large, deep, and of the kinds that make look-ahead and rewinding expensive."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsers import DIALECTS, ArgumentsDelta, CallEnd, Malformed, StreamParser
from parsers.engine.tools import MAX_BARE_NAME
from parsers.events import MAX_DEPTH
from tests.parsers.growing import costs_grow_linearly, families, families_of_calls, pumped_calls
from tests.parsers.outputs import CALLING, END, LONG, START, TOOLS, declaring, samples, thoughts
from tests.parsers.reading import characters, check_run, outcome, read, whole

SIZE = 100_000 if LONG else 10_000
DEEP = 5000 if LONG else 1500
"""Past any limit on recursion."""
LARGE = {
    **{f"much of {char!r}": START + "[f(a=" + char * SIZE for char in "['\\{(\"<,` "},
    **{f"much of {char!r} as text": char * SIZE for char in "[<'"},
    "deep lists": f"{START}[f(a={'[' * DEEP}1{']' * DEEP})]{END}",
    "deep mappings": START + "[f(a=" + "{'k':" * DEEP + "1" + "}" * DEEP + f")]{END}",
    "a long string": f"{START}[f(a='{'x' * SIZE * 10}')]{END}",
    "a long name": f"{START}[{'f' * SIZE}(a=1)]{END}",
    "a huge integer": f"{START}[f(a={'9' * SIZE})]{END}",
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


@pytest.mark.law("total")
@pytest.mark.parametrize("raw", LARGE.values(), ids=LARGE)
def test_hostile_outputs_are_read(raw):
    parser = StreamParser(DIALECTS["lfm2"])
    events = [event for at in range(0, len(raw), 4) for event in parser.feed(raw[at : at + 4])]
    events += parser.close()
    check_run(raw, events)
    assert read("lfm2", whole(raw))[-1].end == len(raw)


def test_limits_are_faults_of_the_call():
    deep = MAX_DEPTH + 1
    large = f"g(a={'9' * 4301}), g(a=0x{'f' * 4000})"
    raw = f"{START}[f(a={'[' * deep}{']' * deep}), {large}, h(a={'[' * 128}{']' * 128})]{END}"
    events = read("lfm2", whole(raw))
    reasons = [event.reason for event in events if isinstance(event, Malformed)]
    assert reasons == ["too_deep", "too_large", "too_large"]
    assert [event.name for event in events if isinstance(event, CallEnd)] == ["h"]


@pytest.mark.parametrize(("depth", "malformed"), [(MAX_DEPTH, []), (MAX_DEPTH + 1, ["too_deep"])])
def test_elements_that_nest_have_the_same_limit(depth, malformed):
    token = "]<]minimax[>["
    inner = f"{token}<a>" * depth + "1" + f"{token}</a>" * depth
    call = f'{token}<invoke name="f">{inner}{token}</invoke>'
    assert (
        outcome(read("minimax-m3", whole(f"{token}<tool_call>{call}{token}</tool_call>")))["malformed"]
        == malformed
    )


def test_an_array_in_ever_more_elements_is_not_written_anew_for_each():
    token, count = "]<]minimax[>[", 4000
    items = "".join(f"{token}<l>[{n}]{token}</l>" for n in range(count))
    raw = f'{token}<tool_call>\n{token}<invoke name="f">{items}{token}</invoke>\n{token}</tool_call>'
    parameters = {"type": "object", "properties": {"l": {"type": "array"}}}
    events = read("minimax-m3", whole(raw), tools=[{"name": "f", "parameters": parameters}])
    assert sum(len(event.json) for event in events if isinstance(event, ArgumentsDelta)) < len(raw)
    assert any(isinstance(event, Malformed) for event in events)


@pytest.mark.law("linear")
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_cost_grows_no_faster_than_the_output(family):
    assert costs_grow_linearly("lfm2", ("", family(200), family(800)), TOOLS)


# -- the same for every dialect, of its own calls -----------------------------------------------------

SIZES = (200, 400, 800)
"""Past the depth at which values are refused."""
STRINGS = declaring([("f", {"a": "a string"})])

EXAMPLES = settings.default.max_examples // 20


@pytest.mark.law("linear")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_cost_grows_no_faster_than_the_output_in_every_dialect(dialect):
    found = {}
    for tools, grown in ((None, families(dialect)), (STRINGS, families_of_calls(dialect))):
        for what, family in grown.items():
            raws = [family(size) for size in SIZES]
            read(dialect, whole(raws[0]), tools=tools)  # what is compiled the first time does not count
            found[what, tools is None] = costs_grow_linearly(dialect, raws, tools)
    assert [what for what, linear in found.items() if not linear] == []


@pytest.mark.law("linear")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_a_parser_remembers_does_not_grow_with_the_output(dialect):
    """Neither text nor the flags of its tokens are kept once they are read."""
    parser = StreamParser(DIALECTS[dialect], STRINGS)

    def read_on() -> None:
        for _ in range(500):
            parser.feed("some words without any meaning. ", special=False)
            parser.feed("<|unknown|>", special=True)

    for sample in (*samples(dialect), *thoughts(dialect)):
        parser.feed(f"{sample}\n")  # a word glued to a call would make it a broken one, which is kept
        read_on()
    tracemalloc.start()
    try:
        read_on()
        remembered, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert remembered < 10_000


@pytest.mark.law("linear")
@pytest.mark.parametrize("dialect", CALLING)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_cost_of_calls_broken_off_anywhere_grows_no_faster_than_the_output(dialect, data):
    """A stretch of the calls' text, from anywhere to anywhere, over and over."""
    sample = data.draw(st.sampled_from(samples(dialect)))
    start, end = sorted((data.draw(st.integers(0, len(sample) - 1)), data.draw(st.integers(1, len(sample)))))
    unit = (sample[start:end] or sample)[: SIZES[0]]
    times = max(3, SIZES[0] // len(unit))  # the first stretches may cost less: they stand in another place
    raws = [sample[:start] + unit * (times * more) for more in (1, 2, 4)]
    for raw in raws:
        read(dialect, whole(raw))  # what is compiled and cached the first time does not count
    assert costs_grow_linearly(dialect, raws, None)


def hostile_values(dialect: str) -> dict[str, str]:
    """Calls that hold what no call can hold, written as the dialect writes a number or a string."""
    number, string = ([("f", {"a": value})] for value in (424242, "placeholder"))
    written = DIALECTS[dialect].render(number)
    quoted = DIALECTS[dialect].render(string)
    strange = "".join(map(chr, range(32))) + "\x7f\u2028\ufffe\U0010ffff"
    return {
        **{f"deep {kind}": pumped_calls(dialect, kind)(DEEP) for kind in ("lists", "mappings")},
        **{
            f"deep {kind}, never closed": pumped_calls(dialect, kind, False)(DEEP)
            for kind in ("lists", "mappings")
        },
        "brackets": written.replace("424242", "[" * DEEP),
        "braces": written.replace("424242", "{" * DEEP),
        "keys": written.replace("424242", '{"k":' * DEEP + "1" + "}" * DEEP),
        "a huge integer": written.replace("424242", "9" * 5000),
        "a huge exponent": written.replace("424242", "1e999999"),
        "a long fraction": written.replace("424242", "-0." + "3" * 5000),
        "not a number": written.replace("424242", "NaN") + written.replace("424242", "-Infinity"),
        "lone surrogates": quoted.replace("placeholder", "\ud83d" * 500 + "x" + "\ude00" * 500),
        "lone surrogates as escapes": quoted.replace("placeholder", r"\ud83d" * 500 + r"\ude00"),
        "a surrogate as name": quoted.replace("f", "\ud800", 1),
        "strange characters": quoted.replace("placeholder", strange) + strange,
        "a strange name": quoted.replace("f", "\0", 1),
        "a long name": quoted.replace("f", "f" * SIZE, 1),
        "a long string": quoted.replace("placeholder", "x" * SIZE),
    }


@pytest.mark.law("total")
@pytest.mark.parametrize("dialect", CALLING)
def test_hostile_values_are_read_in_every_dialect(dialect):
    for raw in hostile_values(dialect).values():
        for tools in (
            None,
            declaring([("f", {"a": [1]})]),
            declaring([("f", {"a": 1})]),
            declaring([("f", {"a": ""})]),
        ):
            parser = StreamParser(DIALECTS[dialect], tools)
            events = [event for at in range(0, len(raw), 61) for event in parser.feed(raw[at : at + 61])]
            check_run(raw, [*events, *parser.close()])


@pytest.mark.law("total")
@pytest.mark.parametrize("dialect", CALLING)
def test_limits_are_faults_of_the_call_in_every_dialect(dialect):
    """What is too deep is no call, and what is not too deep is one."""
    for depth, calls in ((MAX_DEPTH // 2, 1), (DEEP, 0)):
        raw = pumped_calls(dialect, "lists")(depth)
        events = read(dialect, whole(raw), tools=declaring([("f", {"a": [1]})]))
        assert sum(isinstance(event, CallEnd) for event in events) == calls
        assert any(isinstance(event, Malformed) for event in events) == (not calls)


@pytest.mark.parametrize("dialect", CALLING)
def test_long_names_of_tools_are_kept_once(dialect):
    """Every prefix of a name of 10,000 characters takes 50 MB."""
    tools = declaring({"f" * 10_000: {}})
    StreamParser(DIALECTS[dialect], tools=tools)  # what is compiled the first time does not count
    tracemalloc.start()
    try:
        StreamParser(DIALECTS[dialect], tools=tools).feed("[f")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1_000_000


def test_a_bare_list_calls_tools_whose_names_are_not_too_long():
    for length, called in ((MAX_BARE_NAME, True), (MAX_BARE_NAME + 1, False)):
        name = "f" * length
        tools = declaring({name: {}, "g": {}, "fh": {}})
        raw = f"[{name}(a=1)] [fh()] [gh()] [h()]"
        events = read("lfm2", whole(raw), tools=tools)
        assert [event.name for event in events if isinstance(event, CallEnd)] == [name] * called + ["fh"]
        assert outcome(read("lfm2", characters(raw), tools=tools)) == outcome(events)
