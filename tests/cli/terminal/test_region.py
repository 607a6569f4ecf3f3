"""Rows that are replaced on a terminal: a frame writes what changed and nothing else, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil

import pytest

from localagent.cli.show.region import Region


class Written:
    """A region, and what it wrote since it was last asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.size = os.terminal_size((10, 5))
        monkeypatch.setattr(shutil, "get_terminal_size", lambda: self.size)
        self._frames: list[str] = []
        self.region = Region(self._frames.append)

    def draw(self, finished: list[str], unfinished: list[str]) -> list[str]:
        self.region.draw(finished, unfinished)
        return self.frames()

    def frames(self) -> list[str]:
        frames, self._frames[:] = [*self._frames], []
        return frames


@pytest.fixture
def written(monkeypatch) -> Written:
    return Written(monkeypatch)


@pytest.mark.parametrize(
    ("old", "new", "frame"),
    [
        ([], ["a", "b"], "a\r\nb"),
        (["a"], ["a", "b"], "\r\nb"),
        (["a"], ["ab"], "b"),
        (["a", "b"], ["a", "bc", "d", "e"], "c\r\nd\r\ne"),
        (["a", "b"], ["a", "c"], "\rc\x1b[K"),
        (["a", "b"], ["ax", "c"], "\r\x1b[1Aax\x1b[K\r\nc\x1b[K"),
        (["a"], ["b", "c"], "\rb\x1b[K\r\nc"),
        (["a", "b", "c", "d"], ["a", "x"], "\r\x1b[2Ax\x1b[K\x1b[J"),
        (["a", "b", "c"], ["a"], "\r\x1b[2Aa\x1b[K\x1b[J"),
        (["a", "b"], [], "\r\x1b[1A\x1b[J"),
        (["a"], [], "\r\x1b[J"),
        (["\x1b[2ma\x1b[0m"], ["é"], "\x1b[?7l\ré\x1b[K\x1b[?7h"),
    ],
)
def test_a_frame_is_what_changed(written, old, new, frame):
    written.draw([], old)
    assert written.draw([], new) == [frame]
    assert written.draw([], new) == [], "nothing changed since"


def test_finished_rows_are_left_alone(written):
    assert written.draw(["a"], ["b"]) == ["a\r\nb"]
    assert written.draw(["b"], ["c"]) == ["\r\nc"]
    assert written.draw(["c"], []) == ["\r\n"]
    assert written.draw([], []) == []
    assert written.draw(["d"], []) == ["d\r\n"]


def test_rows_are_inserted_above_those_that_may_change(written):
    written.region.insert(["x"])
    assert written.frames() == ["x\r\n"]
    written.draw([], ["a"])
    written.region.insert(["y", "z"])
    assert written.frames() == ["\ry\x1b[K\r\nz\r\na"]
    assert written.draw([], ["ab"]) == ["b"]


def test_what_was_cleared_is_drawn_again(written):
    written.draw([], ["a", "b"])
    written.region.clear()
    assert written.frames() == ["\r\x1b[1A\x1b[J"]
    assert written.draw([], ["a", "b"]) == ["a\r\nb"]


def test_rows_that_have_left_the_screen_are_not_written_again(written):
    assert written.draw([], list("abcde")) == ["a\r\nb\r\nc\r\nd\r\ne"]  # the first is above the screen
    assert written.draw([], list("xbcdef")) == ["\r\nf"]
    written.region.clear()
    assert written.frames() == ["\r\x1b[3A\x1b[J"]
    assert written.draw([], list("abcdef")) == ["c\r\nd\r\ne\r\nf"]
    written.region.discard()
    assert written.frames() == ["\r\x1b[3A\x1b[J"]
    assert written.draw([], ["new"]) == ["new"], "they belong to something else"


def test_a_terminal_of_a_single_line(written):
    written.size = os.terminal_size((10, 1))
    written.draw([], ["a", "b"])
    assert written.draw([], ["a", "c"]) == ["\rc\x1b[K"]


def test_another_width_wraps_what_is_there(written):
    written.draw([], ["\x1b[2maaaa\x1b[0m", "", "bbb"])
    written.size = os.terminal_size((3, 5))
    assert written.draw([], ["new"]) == ["\r\x1b[3A\x1b[Jnew"], "two rows, an empty one and one"
    written.draw([], ["a" * 60])
    written.size = os.terminal_size((4, 5))
    assert written.draw([], ["new"]) == ["\r\x1b[4A\x1b[Jnew"], "not further than to the top"
    written.draw(["end"], [])
    written.size = os.terminal_size((6, 5))
    assert written.draw([], ["a"]) == ["a"], "there is nothing that could wrap"
    written.size = os.terminal_size((6, 3))
    assert written.draw([], ["ab"]) == ["b"], "another height wraps nothing"


def test_another_width_shows_again_what_has_left_the_screen(written):
    written.draw([], list("abcdef"))
    written.size = os.terminal_size((3, 5))
    assert written.draw([], list("abcdefg")) == ["\r\na\r\nb\r\nc\r\nd\r\ne\r\nf\r\ng"]
    assert written.draw([], list("abcdefgh")) == ["\r\nh"]
