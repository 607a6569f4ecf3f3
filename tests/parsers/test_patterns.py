"""Patterns find in arriving text what `re` finds in the whole of it, in time that is linear in its length."""

from __future__ import annotations

import re
from time import perf_counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from parsers.engine.source import Source
from parsers.patterns.expression import InvalidPattern, literals, parse
from parsers.patterns.program import compile_pattern
from parsers.patterns.search import Match, Patterns
from tests.parsers.reading import split

ATOMS = (
    "a",
    "b",
    "<t>",
    "<",
    r"\s",
    r"\w",
    ".",
    "[^a]",
    "[ab]",
    r"\n",
    " ",
    r"[^<\n]",
    r"\.",
)
TEXTS = st.lists(st.sampled_from(["a", "b", "<t>", "<", "t", ">", " ", "\n", "."]), max_size=12).map("".join)
CUTS = st.lists(st.integers(0, 30), max_size=5)


def quantified(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(inner, min_size=1, max_size=3)
    counts = st.sampled_from(["*", "+", "?", "*?", "+?", "??"])
    return st.one_of(
        several.map("".join),
        several.map(lambda items: f"(?:{'|'.join(items)})"),
        st.tuples(inner, counts).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    )


EXPRESSIONS = st.recursive(st.sampled_from(ATOMS), quantified, max_leaves=6)


def find(patterns: list[str], text: str, cuts: list[int] = ()) -> tuple[Match | None, str]:  # type: ignore[assignment]
    """The first match, and the text before it."""
    compiled = tuple(compile_pattern(parse(each)) for each in patterns)
    source = Source(tuple(token for pattern in compiled for token in pattern.tokens), None)
    before: list[str] = []
    search = Patterns(source, compiled).find(lambda piece, end: before.append(piece))
    try:
        next(search)
        for piece, special in split(text, cuts):
            source.feed(piece, special)
            next(search)
        source.ended = True
        next(search)
    except StopIteration as stop:
        return stop.value, "".join(before)
    raise AssertionError("a search asked for input after the end")


@given(EXPRESSIONS, TEXTS, CUTS)
def test_the_first_match_is_that_of_re(expression, text, cuts):
    named = f"(?P<g>{expression})"
    try:
        found, before = find([named], text, cuts)
    except InvalidPattern:
        assume(False)
    expected = re.compile(named, re.DOTALL).search(text)
    # What may be empty comes last here, so that a marker is never text; `re` takes it in the order written.
    assume(not re.search(r"\|", expression) or re.compile(expression, re.DOTALL).fullmatch("") is None)
    if expected is None:
        assert (found, before) == (None, text)
    else:
        assert found is not None
        assert (found.start, found.end, found.groups) == (*expected.span(), expected.groupdict())
        assert before == text[: expected.start()]


@given(EXPRESSIONS, TEXTS, CUTS)
def test_text_waits_only_while_a_match_may_begin_in_it(expression, text, cuts):
    """A match that the text so far rules out, whatever follows, holds nothing back."""
    found, before = find([rf"\s*{re.escape('<t>')}"], text.replace("<", ""), cuts)
    assert (found, before) == (None, text.replace("<", ""))


@pytest.mark.parametrize(
    ("patterns", "text", "number", "matched"),
    [
        (["ab", "abc"], "xabc", 1, "abc"),
        (["abc", "ab"], "xabd", 1, "ab"),
        (["b", "abcd"], "abce", 0, "b"),
        (["b.*?d", "c"], "abce", 1, "c"),
        (["x$", "b"], "abx", 1, "b"),
        ([r"x$"], "axbx", 0, "x"),
        (["(?:^|<t>)"], "ab", 0, ""),
        (["(?:^|<t>)"], "<t>ab", 0, "<t>"),
        (["^a"], "aba", 0, "a"),
        (["(?:(?P<n>a)|b)"], "xb", 0, "b"),
    ],
)
def test_of_several_the_earliest_counts_and_then_the_longest(patterns, text, number, matched):
    for cuts in ([], range(len(text))):
        found, _ = find(patterns, text, [*cuts])
        assert found is not None
        assert (found.number, text[found.start : found.end]) == (number, matched)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("(", "no regular expression"),
        ("(?=a)", "cannot be matched as text arrives"),
        (r"(a)\1", r"'\1' is not read: there are \w"),
        (r"\bx", r"'\b' is not read: there are \w"),
        (r"x\Z", r"'\Z' is not read: there are \w"),
        (r"\x61", r"'\x' is not read: there are \w"),
        ("a{2}", "write '{' as"),
        ("a*+", "cannot be matched as text arrives"),
        ("(?i)a", "cannot be matched as text arrives"),
        ("a{e}", "write '{' as"),
        ("[[a]", "a set in a set"),
        ("[a--b]", "a set in a set"),
        ("a\\", "no regular expression"),
        ("[a", "no regular expression"),
        ("a)", "no regular expression"),
        ("(?:a?)*", "repeats what may be empty"),
        ("a" * 2001, "too long"),
        ("(?:" * 490 + ")" * 490, "nested too deep"),
    ],
)
def test_what_needs_more_than_the_text_so_far_is_refused(expression, says):
    with pytest.raises(InvalidPattern, match=re.escape(says)):
        compile_pattern(parse(expression))


def test_a_token_stands_only_where_the_source_has_it():
    """Spelled out in ordinary pieces, a token of the vocabulary is text."""
    pattern = compile_pattern(literals(("<t>",)))
    source = Source(pattern.tokens, frozenset({"<t>"}))
    before: list[str] = []
    search = Patterns(source, (pattern,)).find(lambda piece, end: before.append(piece))
    next(search)
    source.feed("a<t>b", False)
    next(search)
    source.feed("<t>", True)
    with pytest.raises(StopIteration) as stop:
        next(search)
    assert (stop.value.value.start, before) == (5, ["a<t>b"])


@pytest.mark.parametrize("expression", ["(?:a|a)*b", r"\s*x", "(?:.*?a)+b", "[^<]*<t>"])
def test_no_expression_takes_more_time_than_the_text_is_long(expression):
    """`re` takes exponential or quadratic time for some of these."""
    times = []
    for size in (500, 4000):
        text = ("a" if "a" in expression else " ") * size
        start = perf_counter()
        found, before = find([expression], text, [*range(0, size, 10)])
        times.append(perf_counter() - start)
        assert found is None
        assert before == text
    assert times[1] < 8 * 5 * times[0] + 0.2


@pytest.mark.parametrize(
    ("expression", "groups", "text"),
    [
        (r"\s*<t>\s+(?P<n>\w+)x?", {"n": "f"}, None),
        (r"\s*<t>(?P<n>\w+)x?", {"n": "f"}, "<t>f"),
        ("(?:^|<t>)", {}, "<t>"),
        ("(?:a|b)+.*?c", {}, "ac"),
        (r"\w+", {}, None),
        ("(?P<n>a)", {}, None),
        ("a$", {}, "a"),
    ],
)
def test_what_a_pattern_matches_can_be_written(expression, groups, text):
    assert compile_pattern(parse(expression)).written(groups) == text
