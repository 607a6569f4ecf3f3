"""Markdown as rows: nothing is left out, and however it is cut while it streams, the rows are the same."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.cli.show.markdown import MarkdownRows
from localagent.wording import printable

PIECES = [
    "# h\n", "para ", "word ", "\n", "\n\n", "- a\n", "- b\n", "  - n\n", "1. x\n", "2. y\n", "```py\n", "```\n",
    "x = '''\n", "'''\n", "| a | b |\n", "|---|---|\n", "| 1 | 2 |\n", "> q\n", "**", "*", "`", "[l](u) ", "&#155;",
    "&#27;", "<b>", "\x1b[2J", "\r", "---\n", "===\n", "    code\n", "\t", "[a]: http://x\n", "![i](u)", "~~", "\\",
    "😀", "#", "1", "-", "| ", "http://x.y ", "<http://a.b> ", "\u202e", "字", "</div>\n", "<div>\n",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=50).map("".join)


def rows(
    text: str, width: int = 40, *, height: int = 1000, size: int | None = None, colour: bool = False
) -> list[str]:
    """The rows of a text that comes in pieces of this size, or whole."""
    shown = MarkdownRows(colour=colour)
    finished: list[str] = []
    for at in range(0, len(text), size or max(len(text), 1)):
        shown.feed(text[at : at + (size or len(text))])
        if size:
            finished += shown.rows(width, height)[0]
    return [re.sub(r"\x1b\[[\d;]*m", "", row) for row in [*finished, *shown.end(width)]]


@given(TEXTS, st.integers(1, 9))
def test_rows_are_the_same_however_the_text_comes(text, size):
    assert rows(text, size=size) == rows(text)


@given(TEXTS, st.integers(2, 6))
def test_nothing_that_controls_a_terminal_is_in_a_row(text, height):
    shown = MarkdownRows()
    shown.feed(text)
    finished, unfinished = shown.rows(30, height)
    for row in [*finished, *unfinished]:
        left = re.sub(r"\x1b\[[\d;]*m", "", row)
        assert printable(left) == left
        assert "\n" not in left


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<b>bold</b> and <T>", ["<b>bold</b> and <T>"]),
        ("<details>\nhidden\n</details>", ["<details>", "hidden", "</details>"]),
        ("[a]: http://x.y", ["[a]: http://x.y"]),
        ("[here](http://x.y)", ["here (http://x.y)"]),
        ("<http://x.y>", ["<http://x.y>"]),
        ("![alt](a.png)", ["!alt (a.png)"]),
        ("a &amp; b &#27;[2J", ["a & b \ufffd[2J"]),
        ("one\ntwo", ["one", "two"]),
        ("- [ ] to do", [" • [ ] to do"]),
        ("3. c\n4. d", ["  3 c", "  4 d"]),
        ("```\n\na\n\n\n```", ["```", "", "a", "", "", "```"]),
        ("```python title\nx = 1", ["```python title", "x = 1", "```"]),
        ("    indented\n", ["indented"]),
        ("", []),
        (" \n\n", []),
        ("***", ["-" * 40]),
    ],
)
def test_what_a_text_looks_like(text, shown):
    assert rows(text) == shown


def test_code_and_cells_are_folded_not_cut():
    assert rows("```\n" + "x" * 50 + "  y\n```", 20) == ["```", "x" * 20, "x" * 20, "x" * 10 + "  y", "```"]
    folded = "".join(rows("| a |\n|---|\n| " + "w" * 60 + " |\n", 20))
    assert folded.count("w") == 60


def test_a_numbered_list_goes_on_with_its_numbers():
    text = "".join(f"1. item {number}\n" for number in range(12)) + "\nEnd."
    found = rows(text, size=5)
    assert found == [f"{number:3} item {number - 1}" for number in range(1, 13)] + ["", "End."]
    assert found == rows(text)


def test_colours_are_right_where_a_string_goes_on_across_a_cut():
    body = "".join(f"line{n} = {n}\n" for n in range(30))
    text = f'```python\ntext = """\n{body}"""\n{body}```\n'
    shown = MarkdownRows()
    finished: list[str] = []
    for at in range(0, len(text), 7):
        shown.feed(text[at : at + 7])
        finished += shown.rows(60, 1000)[0]
    finished += shown.end(60)
    assert finished == [*_whole(text)]


def _whole(text: str) -> list[str]:
    shown = MarkdownRows()
    shown.feed(text)
    return shown.end(60)


@pytest.mark.parametrize(
    "unit",
    [
        "word and **more** words. ",
        "- an item with `code` in it\n",
        "1. an item\n",
        "Some paragraph.\n\n",
        "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 9 + "\n",
    ],
)
def test_what_is_laid_out_again_does_not_grow_with_the_answer(unit):
    shown = MarkdownRows()
    longest = 0
    text = unit * (20_000 // len(unit))
    for at in range(0, len(text), 40):
        shown.feed(text[at : at + 40])
        shown.rows(80, 24)
        longest = max(longest, len(shown._source))
    assert longest < 2_000


def test_a_long_block_of_code_or_a_table_does_not_grow_either():
    for head, line in (
        ("```python\n", "x = [1, 2, 3]  # three\n"),
        ("| a | b |\n|---|---|\n", "| one | two |\n"),
    ):
        shown = MarkdownRows()
        shown.feed(head)
        longest = 0
        lines: list[str] = []
        for _ in range(500):
            shown.feed(line)
            lines += shown.rows(80, 24)[0]
            longest = max(longest, len(shown._source))
        lines += shown.end(80)
        assert longest < 2_000
        assert sum("one" in row or "1, 2" in re.sub(r"\x1b\[[\d;]*m", "", row) for row in lines) == 500


PYTHON = "```py\nx = 'a' # c\n\tdef f(): pass\n\n\n```"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "**b** *i* ~~s~~ `c` [l](http://x)",
            ["\x1b[1mb\x1b[0m \x1b[3mi\x1b[0m \x1b[9ms\x1b[0m \x1b[36mc\x1b[0m \x1b[94ml\x1b[0m (\x1b[4;34mhttp://x\x1b[0m)"],
        ),
        ("# h **x**", ["\x1b[1;4mh \x1b[0m\x1b[1;4mx\x1b[0m"]),
        ("## h\n### h\n\ntext", ["\x1b[1mh\x1b[0m", "", "\x1b[1;35mh\x1b[0m", "", "text"]),
        ("> q\n> r", ["\x1b[35m▌ \x1b[0m\x1b[35mq\x1b[0m", "\x1b[35m▌ \x1b[0m\x1b[35mr\x1b[0m"]),
        (
            "| a | b |\n|---|--:|\n| 1 | **x** |",
            [" \x1b[36ma\x1b[0m  \x1b[36mb\x1b[0m", "\x1b[36m ────\x1b[0m", " 1  \x1b[1mx\x1b[0m"],
        ),
        ("- a\n  - b", ["\x1b[1m • \x1b[0ma", "   \x1b[1m • \x1b[0mb"]),
        ("9. a\n\n   b\n10. c", ["\x1b[36m  9 \x1b[0ma", "    b", "\x1b[36m 10 \x1b[0mc"]),
        (
            PYTHON,
            [
                "\x1b[2m```py\x1b[0m", "x = \x1b[33m'\x1b[0m\x1b[33ma\x1b[0m\x1b[33m'\x1b[0m \x1b[2m# c\x1b[0m",
                "    \x1b[94mdef\x1b[0m \x1b[92mf\x1b[0m(): \x1b[94mpass\x1b[0m", "", "", "\x1b[2m```\x1b[0m",
            ],
        ),
        ("a\n\n---\n\nb", ["a", "", "\x1b[2m" + "-" * 24 + "\x1b[0m", "", "b"]),
        ("x" * 25, ["x" * 24, "x"]),
        ("```\n" + "字" * 13 + "\n" + "y" * 24 + "\n```", ["\x1b[2m```\x1b[0m", "字" * 12, "字", "y" * 24, "\x1b[2m```\x1b[0m"]),
        ("```nosuch lang\nx\n```", ["\x1b[2m```nosuch lang\x1b[0m", "x", "\x1b[2m```\x1b[0m"]),
    ],
)  # fmt: skip
def test_styles_are_those_of_a_terminal(text, shown):
    whole = MarkdownRows()
    whole.feed(text)
    assert whole.end(24) == shown
    assert whole.end(24) == [], "another text may begin"


def test_all_of_a_text_may_be_dim_and_without_colour():
    def end(text, **how):
        shown = MarkdownRows(**how)
        shown.feed(text)
        return shown.end(24)

    assert end("a `b` **c**", style="dim") == ["\x1b[2ma \x1b[0m\x1b[2;36mb\x1b[0m \x1b[1;2mc\x1b[0m"]
    assert end("**a** `b` [c](d)", colour=False) == ["\x1b[1ma\x1b[0m b c (\x1b[4md\x1b[0m)"]
    assert "\x1b[3" not in "".join(end(PYTHON, colour=False))


def lines(count: int, head: str = "```\n") -> str:
    return head + "".join(f"{number}\n" for number in range(count))


@pytest.mark.parametrize(
    ("text", "finished", "unfinished", "kept"),
    [
        ("a\n\nb", [], ["a", "", "b"], "a\n\nb"),
        ("a\n\nb\n", ["a"], ["", "b"], "b\n"),
        ("a\n\nb\n\n#", ["a"], ["", "b"], "b\n\n#"),
        ("- a\n- b", [], [" • a", " • b"], "- a\n- b"),
        ("- a\n- b\n", [" • a"], [" • b"], "- b\n"),
        ("3. a\n4. b\n5. c\n", ["  3 a", "  4 b"], ["  5 c"], "5. c\n"),
        (lines(10), [], ["```", *"0123456789", "```"], lines(10)),
        (lines(11), ["```", *"0123456789"], ["10", "```"], "```\n10\n"),
        (lines(12), ["```", *"0123456789", "10"], ["11", "```"], "```\n11\n"),
        (lines(11, "```py\n"), ["```py", *"0123456789"], ["10", "```"], "```py\n10\n"),
        (lines(12, "```py\n'''\n"), [], ["```py", "'''", *map(str, range(12)), "```"], lines(12, "```py\n'''\n")),
        (
            "|a|\n|-|\n" + "|1|\n" * 4, [], [" a", " ─", *[" 1"] * 4], "|a|\n|-|\n" + "|1|\n" * 4,
        ),
        ("|a|\n|-|\n" + "|1|\n" * 5, [" a", " ─", *[" 1"] * 4], ["", " a", " ─", " 1"], "|a|\n|-|\n|1|\n"),
        ("one two " * 39, [], ["one two one two one two"] * 13, "one two " * 39),
        (
            "one two " * 42, ["one two one two one two"] * 11, ["one two one two one two"] * 3, "one two " * 9,
        ),
    ],
)  # fmt: skip
def test_what_is_finished_while_a_text_is_written(text, finished, unfinished, kept):
    """On a screen of 8 rows: what is finished is not laid out again, and what may change is kept."""

    def plain(found):
        return [re.sub(r"\x1b\[[\d;]*m", "", row) for row in found]

    shown = MarkdownRows()
    shown.feed(text)
    done, more = shown.rows(24, 8)
    assert (plain(done), plain(more)) == (finished, unfinished)
    assert shown._source == kept
    assert shown.rows(24, 8) == ([], more)
    assert plain(shown.end(24)) == unfinished


@pytest.mark.parametrize(("height", "count"), [(5, 4), (6, 4), (7, 0)])
def test_a_table_is_cut_when_it_fills_the_screen(height, count):
    shown = MarkdownRows()
    shown.feed("|a|\n|-|\n" + "|1|\n" * 3)
    assert len(shown.rows(24, height)[0]) == count
