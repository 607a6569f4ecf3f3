"""Names, sizes and other people's text fit into messages of one line."""

from __future__ import annotations

import pytest

from localagent.wording import listed, one_line, printable, quoted, size_text, writable


@pytest.mark.parametrize(
    ("text", "limit", "line"),
    [
        ("a\n\n b\tc ", None, "a b c"),
        ("abcdefgh", 8, "abcdefgh"),
        ("abcdefghi", 8, "abcde..."),
        ("ab" + " " * 99 + "c", 8, "ab..."),  # what was not looked at is said to be more
        ("", 8, ""),
        (" " * 32 + "a", 8, "..."),
        (" " * 31 + "a", 8, "a"),
    ],
)
def test_a_text_on_one_line(text, limit, line):
    assert one_line(text, limit) == line


@pytest.mark.parametrize(
    ("text", "shown"),
    [("Paris", "Paris"), ("a\x1b[2J", r"'a\x1b[2J'"), ("é" * 60, "é" * 60), ("x" * 61, f"'{'x' * 59}")],
)
def test_other_peoples_text_is_plain_short_or_escaped(text, shown):
    assert quoted(text) == shown


def test_names_are_listed_up_to_a_limit():
    assert listed([]) == "none"
    assert listed(["a", "b\n"]) == r"a, 'b\n'"
    assert listed("abc", limit=3) == "a, b, c"
    assert listed("abcde", limit=3) == "a, b, c and 2 more"
    assert listed("abcdefghijklmnopqrst") == ", ".join("abcdefghijklmnopqrst")
    assert listed("abcdefghijklmnopqrstu").endswith("s, t and 1 more")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Zürich\t1\n", "Zürich\t1\n"),
        ("a\x1b[2J\r", r"a\x1b[2J\x0d"),
        ("\x00\x7f\x85\x9f", r"\x00\x7f\x85\x9f"),
        ("\xa0\xad\u200b", "\xa0\xad\u200b"),  # no letters, but they harm nobody
        ("\u061c\u200e\u2028\u202e\u2066", r"\u061c\u200e\u2028\u202e\u2066"),
        ("\ud800\udfff", r"\ud800\udfff"),
    ],
)
def test_what_could_deceive_a_reader_is_spelt_out(text, shown):
    assert printable(text) == shown


def test_what_utf8_cannot_write_is_spelt_out():
    assert writable("aé") == "aé"
    assert writable("a\ud800") == r"a\ud800"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "size unknown"),
        (0, "0 bytes"),
        (999_999, "999,999 bytes"),
        (1_000_000, "1 MB"),
        (999_499_999, "999 MB"),
        (1_000_000_000, "1.0 GB"),
        (1_234_000_000_000, "1,234.0 GB"),
    ],
)
def test_sizes_in_decimal_units(size, text):
    assert size_text(size) == text
