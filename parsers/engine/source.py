"""The output of a model as a reader sees it: a window of text that grows.

Knows characters, offsets, markers and which of them the host flagged as special tokens. Knows nothing of
calls or events. Contract for readers (generators that a StreamParser drives):

- `text[pos:]` is what has arrived and is not read; advance `pos` to read.
- A bare `yield` means "I need more input": leave little unread when yielding, since it is copied.
- After the last piece `ended` is True and a reader must finish without yielding.
- `keep_from(offset)` retains what is read from there on, for `since(offset)` and `rewind(offset)`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Generator, Mapping
from functools import cache
from types import MappingProxyType

Reading = Generator[None, None, None]
"""A reader that returns nothing."""

_SPACE = re.compile(r"[ \t\r\n\f\v]*")


@cache
def _run_without(characters: str) -> re.Pattern[str]:
    return re.compile(f"[^{re.escape(characters)}]*" if characters else "(?s:.*)")


@cache
def _any_of(texts: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, filter(str.strip, texts))) or "(?!)")


class Source:
    """The window, its place in the whole output, and the special flags of its pieces."""

    __slots__ = (
        "_cores", "_flags", "_kept", "_kept_from", "_longer", "_longest", "_markers", "_retained", "_runs",
        "_shown", "_spelled", "base", "ended", "marks", "pos", "starts", "text", "unmarked",
    )  # fmt: skip

    def __init__(
        self,
        markers: tuple[str, ...],
        atomic: Collection[str] | None,
        cores: Mapping[str, str] = MappingProxyType({}),
        shown: Collection[str] = (),
        tags: tuple[str, ...] = (),
    ) -> None:
        """`markers`: every marker of the dialect. `atomic`: those that are single special tokens in the
        vocabulary at hand; when that is known, an ordinary token never spells one of them. `cores`: of the
        markers that are no token of their own, the token in them; `shown`: those that are not flagged where
        `atomic` is None; `tags`: other text of the format (see `Dialect`).
        """
        self.text = ""
        self.pos = 0
        self.base = 0  # the offset in the output at which the window begins
        self.ended = False
        self._markers = tuple(sorted(markers, key=len, reverse=True))
        self._longer = {  # of the markers with which others begin
            marker: longer
            for marker in markers
            if (longer := [other for other in markers if other != marker and other.startswith(marker)])
        }
        self._cores = cores
        self._shown = frozenset(shown)
        marks = (*markers, *tags)
        if atomic:  # in ordinary tokens these are data
            marks = tuple(m for m in marks if m not in atomic and cores.get(m, m) not in atomic)
        self.marks = _any_of(marks)  # what a value of a call should not hold, see `fits`
        self._spelled = tuple(marker for marker in markers if self._is_spelled(marker, atomic))
        self._longest = max(map(len, markers), default=0)
        self.starts = "".join(sorted({marker[0] for marker in markers}))  # with which a marker may begin
        self.unmarked = _run_without(self.starts)
        self._runs: list[int] = []  # offset at which each run of equally flagged text begins
        self._flags: list[bool | None] = []
        self._kept: list[tuple[int, str]] = []  # text already read, with its offsets
        self._kept_from: int | None = None
        self._retained = False

    @property
    def offset(self) -> int:
        """Code points read so far."""
        return self.base + self.pos

    def feed(self, piece: str, special: bool | None) -> None:
        """Append `piece`. Read text leaves the window and is kept only if a reader asked for that."""
        # Each special token is a run of its own, so that two of them never make one marker.
        if not self._flags or self._flags[-1] is not special or special:
            self._runs.append(self.base + len(self.text))
            self._flags.append(special)
        if self.pos == len(self.text):
            if self._kept_from is not None and self.pos:
                self._kept.append((self.base, self.text))
            self.base += self.pos
            self.text = piece
        else:
            if self._kept_from is not None and self.pos:
                self._kept.append((self.base, self.text[: self.pos]))
            self.base += self.pos
            self.text = self.text[self.pos :] + piece
        self.pos = 0
        # The flags of text to which no reader can go back are dropped, now and then and not at every piece.
        if len(self._runs) > 64 and self._kept_from is None:
            current = bisect_right(self._runs, self.base) - 1
            del self._runs[:current], self._flags[:current]

    # -- looking at what is next ----------------------------------------------------------------------

    def ready(self) -> str:
        """The next character if it has arrived with at most one blank in front, which is skipped; else "".

        `source.ready() or (yield from source.space())` is `space` without a generator in the usual case.
        """
        text, pos = self.text, self.pos
        char = text[pos : pos + 1]
        if char == " ":
            self.pos = pos + 1
            char = text[pos + 1 : pos + 2]
        return char if char > " " else ""

    def may_bring(self, text: str) -> bool:
        """Whether `text` may come next over white space, as far as what has arrived shows."""
        start = _SPACE.match(self.text, self.pos).end()  # type: ignore[union-attr]
        return text.startswith(self.text[start : start + len(text)])

    def char(self) -> Generator[None, None, str]:
        """The next character, "" at the end of the output."""
        while self.pos == len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.pos]

    def space(self) -> Generator[None, None, str]:
        """Skip white space; returns the character behind it, "" at the end of the output."""
        if (char := self.text[self.pos : self.pos + 1]) > " ":
            return char
        while True:
            self.pos = _SPACE.match(self.text, self.pos).end()  # type: ignore[union-attr]
            if self.pos < len(self.text):
                return self.text[self.pos]
            if self.ended:
                return ""
            yield

    def marker(self, among: Collection[str] | None = None) -> Generator[None, None, str]:
        """The marker that stands at `pos`, "" if none does. `among`: as in `marker_at`."""
        while (marker := self.marker_at(self.pos, among)) is None:
            yield
        return marker

    def ahead(self, texts: tuple[str, ...]) -> Generator[None, None, str]:
        """The first of `texts`, longest first, that stands at `pos`; "" if none does."""
        for text in texts:
            while not self.text.startswith(text, self.pos):
                rest = self.text[self.pos :]
                if self.ended or len(rest) >= len(text) or not text.startswith(rest):
                    break
                yield
            else:
                return text
        return ""

    def either(self, texts: tuple[str, ...]) -> Generator[None, None, str]:
        """Read the first of `texts`, longest first, that stands at `pos`; "" if none does."""
        text = yield from self.ahead(texts)
        self.pos += len(text)
        return text

    def run(self, pattern: re.Pattern[str]) -> Generator[None, None, str]:
        """Read the longest run of characters that `pattern` (one character class, starred) matches."""
        parts: list[str] = []
        while True:
            start, end = self.pos, pattern.match(self.text, self.pos).end()  # type: ignore[union-attr]
            self.pos = end
            if end < len(self.text) or self.ended:
                return "".join((*parts, self.text[start:end])) if parts else self.text[start:end]
            parts.append(self.text[start:end])
            yield

    def marker_at(self, index: int, among: Collection[str] | None = None) -> str | None:
        """The marker at window index `index`, "" if there is none, None while more input may make one.

        `among`: the markers that count, all of the dialect's if None.
        """
        text = self.text
        markers: Collection[str] = (
            self._markers if among is None else [marker for marker in self._markers if marker in among]
        )
        for marker in markers:
            if text.startswith(marker, index) and self._flags_allow(marker, index, index + len(marker)):
                if self._longer and not self.ended and self._goes_on(marker, index, markers):
                    return None
                return marker
        end = len(text)
        if not self.ended and end - index < self._longest:
            # A special token comes whole: only a marker of which it is the core can go on behind it.
            if self.is_special(index):
                markers = [marker for marker in markers if marker in self._cores]
            rest = text[index:]
            for marker in markers:
                if marker.startswith(rest) and self._flags_allow(marker, index, end):
                    return None
        return ""

    def _goes_on(self, marker: str, index: int, among: Collection[str]) -> bool:
        """Whether `marker`, at window index `index`, may yet become a longer one."""
        rest = self.text[index:]
        return any(longer.startswith(rest) for longer in self._longer.get(marker, ()) if longer in among)

    def cut_marker(self, marker: str) -> bool:
        """Whether the output ends here in the beginning of `marker`."""
        if not self.ended:
            return False
        rest = self.text[self.pos :]
        return marker.startswith(rest) and self._flags_allow(marker, self.pos, len(self.text))

    def is_special(self, index: int, marker: str = "") -> bool:
        """Whether the host flagged the character at `index`, or the token in `marker` there, as special."""
        return self._flag_at(index + max(0, marker.find(self._cores.get(marker, ""))))[0] is True

    def _is_spelled(self, marker: str, atomic: Collection[str] | None) -> bool:
        """Whether ordinary tokens may spell `marker`. `atomic`: as for `__init__`."""
        core = self._cores.get(marker, marker)
        if atomic is None:
            return not core or marker in self._shown
        return marker not in atomic and core not in atomic

    def _flags_allow(self, marker: str, index: int, end: int) -> bool:
        """Whether the text from `index` to `end`, which is `marker` or its beginning, counts as that."""
        core = self._cores.get(marker)
        if core is None:
            flag, limit = self._flag_at(index)
            return end <= limit and (flag is not False or marker in self._spelled)
        core_index = index + marker.index(core)
        return marker in self._spelled or core_index >= end or self._flag_at(core_index)[0] is not False

    def _flag_at(self, index: int) -> tuple[bool | None, int]:
        """The flag of the character at `index`, and where in the window its run ends."""
        if len(self._runs) == 1:
            return self._flags[0], len(self.text)
        run = bisect_right(self._runs, self.base + index) - 1
        end = self._runs[run + 1] - self.base if run + 1 < len(self._runs) else len(self.text)
        return self._flags[run], end

    # -- going back -----------------------------------------------------------------------------------

    def keep_from(self, offset: int | None) -> None:
        """Retain everything read from `offset` (not before the window) on; None lets go of it."""
        if self._retained:
            return  # `retain` keeps more than that
        self._kept_from = offset
        self._kept.clear()

    def retain(self, offset: int) -> None:
        """Keep what is read from `offset` on up to `release`, whatever readers keep or let go of."""
        if self._kept_from is None:
            self.keep_from(offset)
        self._retained = True

    def release(self) -> None:
        """End `retain`: the next `keep_from` counts again."""
        self._retained = False

    def since(self, offset: int) -> str:
        """The text from `offset` to the current position. Costs as much as it returns."""
        if offset >= self.base:
            return self.text[offset - self.base : self.pos]
        parts = [self.text[: self.pos]]
        start, place = self.base, len(self._kept)
        while start > offset:
            place -= 1
            start, text = self._kept[place]
            parts.append(text[max(0, offset - start) :])
        return "".join(reversed(parts))

    def has_marker_since(self, offset: int) -> bool:
        """Whether a marker stands anywhere between `offset` and the current position."""
        text = self.since(offset)
        for marker in self._markers:
            place = text.find(marker)
            while place >= 0:
                flag, _ = self._flag_at(offset + place - self.base)
                if flag is not False or marker in self._spelled:
                    return True
                place = text.find(marker, place + 1)
        return False

    def rewind(self, offset: int) -> None:
        """Make `offset` the current position again."""
        if offset >= self.base:
            self.pos = offset - self.base
            return
        parts = [self.text]
        while self.base > offset:
            self.base, text = self._kept.pop()
            parts.append(text)
        self.text = "".join(reversed(parts))
        self.pos = offset - self.base
