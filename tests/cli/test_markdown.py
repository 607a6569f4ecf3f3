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
