"""A prompt far too long is refused after a part was read; any other is tokenized whole."""

from __future__ import annotations

import math

import pytest

from localagent.hosts.counting import CUT, PIECE, count_at_least, tokenize_within
from localagent.prompt.segments import Segment, TooManyTokens


class Words:
    """A token is a character; keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[Segment], bool]] = []

    def tokenize_segments(self, segments, continued=False):
        self.asked.append((list(segments), continued))
        return tuple(ord(character) for text, _ in self.asked[-1][0] for character in text)


@pytest.fixture
def words() -> Words:
    return Words()


def test_a_short_text_is_tokenized_once_and_whole(words):
    segments = [Segment("<s>", True), Segment("hi", False)]
    assert tokenize_within(words, iter(segments), 1) == (60, 115, 62, 104, 105)
    assert tokenize_within(words, segments, 1, True) == (60, 115, 62, 104, 105)
    assert words.asked == [(segments, False), (segments, True)]


@pytest.mark.parametrize(("limit", "length", "counted"), [
    (10, PIECE, False), (10, PIECE + 1, True), (PIECE, 8 * PIECE, False), (PIECE, 8 * PIECE + 1, True),
    (math.inf, 20 * PIECE, False),
])  # fmt: skip
def test_only_what_is_unlikely_to_fit_is_counted_first(words, limit, length, counted):
    try:
        assert len(tokenize_within(words, [Segment("a" * length, False)], limit)) == length
    except TooManyTokens as error:
        assert counted
        assert limit < error.least <= length
    assert (len(words.asked[0][0][0].text) < length) is counted


def test_what_is_counted_and_fits_is_tokenized_whole_after_all():
    class Sparse(Words):
        def tokenize_segments(self, segments, continued=False):
            return super().tokenize_segments(segments, continued)[::9]

    words, text = Sparse(), "ab" * PIECE
    ids = tokenize_within(words, [Segment(text, False)], PIECE // 4 - 1)
    assert ids == tuple(map(ord, text))[::9]
    assert [len(segments[0].text) for segments, _ in words.asked] == [PIECE, PIECE, 2 * PIECE]


def test_the_count_is_never_too_high(words):
    assert count_at_least(words, []) == 0
    assert count_at_least(words, [Segment("abc", False), Segment("<s>", True)]) == 6
    assert count_at_least(words, [Segment("a" * 100, False)], piece=100) == 100, "it was not cut"
    assert count_at_least(words, [Segment("a" * 101, False)], piece=100) == 100 - CUT, (
        "the rest is less than may be lost"
    )
    assert count_at_least(words, [Segment("a" * 300, False)], piece=100) == 3 * (100 - CUT)
    assert {continued for _, continued in words.asked} == {True}
    assert words.asked[1][0] == [Segment("<s>", True)], "a special token stays one"


def test_counting_stops_when_it_is_enough(words):
    assert count_at_least(words, [Segment("a" * 1000, False)], enough=3, piece=100) == 100 - CUT
    assert len(words.asked) == 1
    assert count_at_least(words, [Segment("a" * 1000, False)], enough=100 - CUT, piece=100) == 2 * (100 - CUT)
    assert len(words.asked) == 3
