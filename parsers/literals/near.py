"""Tags that are almost written right, in raw text: `</paameter>`, `</parameter` without `>`, `/parameter>`.

Raw text has no escapes. A broken tag that were taken for text would become part of a value that nobody wrote,
so it is found, and what follows it decides [torn-tag]. A beginning is held back no longer than it may
still be a tag.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from typing import TypeVar

Named = TypeVar("Named")

ESCAPE = "\u200b"
"""What DeepSeek writes behind the `<` of a tag that is none."""
_BLANKS = 16
"""So much white space may stand in a broken tag."""
_PREFIX = 5
"""So much shows of most tags that they are none of the format's."""
_TORN = 6
"""So much of a closing tag belongs to no other text, unless it is another whole tag."""
_SHORT = 10
"""A tag of fewer characters is near only by one edit: `</invoice>` is no `</invoke>`."""


class _Tag:
    """One tag, compared by Wu and Manber's algorithm: a bit for each beginning, a word for each edit."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.edits = 1 if len(text) < _SHORT else 2
        self._bits: dict[str, int] = {}
        for index, char in enumerate(text):
            self._bits[char] = self._bits.get(char, 0) | 1 << index
        self._whole = 1 << len(text)
        self._all = 2 * self._whole - 1

    def lengths(self, text: str, index: int) -> tuple[list[tuple[int, int]], bool]:
        """How much of `text` from `index` on is the tag, nearly: edits and lengths; and if it may go on.

        A run of white space is one edit, however long.
        """
        hits: list[tuple[int, int]] = []
        none, one, two = 1, 3, 7 if self.edits == 2 else 0  # the beginnings with so many edits, or fewer
        most = len(self.text) + self.edits  # of other characters
        limit = most + _BLANKS
        length, blank = 0, False
        for char in text[index : index + limit]:
            bits = self._bits.get(char, 0)
            if (length > 1 and char == "<") or (length == 1 and char == ESCAPE):
                return hits, False
            length += 1
            if not bits and char.isspace():
                if blank:
                    most += 1
                    continue
                blank = True
            else:
                blank = False
            last, before, none = one, none, (none & bits) << 1
            one = ((one & bits) << 1 | before | (before | none) << 1) & self._all
            if self.edits == 2:
                two = ((two & bits) << 1 | last | (last | one) << 1) & self._all
            if not (one | two):
                return hits, False
            if (one | two) & self._whole:
                hits.append((0 if none & self._whole else 1 if one & self._whole else 2, length))
            if length == most:
                return hits, False
        return hits, length < limit


class NearTags:
    """Finds what is nearly a tag of one format.

    `closers` are whole tags, `openers` the texts in front of a name. `at_lines`: they stand on lines of
    their own. `others`: further tags, which are similar to these and are not meant.
    """

    def __init__(
        self,
        closers: tuple[str, ...],
        openers: tuple[str, ...],
        at_lines: bool = False,
        others: tuple[str, ...] = (),
    ) -> None:
        self._closers = [_Tag(tag) for tag in closers]
        self._openers = [_Tag(tag) for tag in openers]
        self._tags = (*self._closers, *self._openers)
        self._exact = (*closers, *openers, *others)
        slash = "".join({char for tag in closers for char in tag[2:4]})
        starts = f"<|/(?=[/{re.escape(slash)}]|\\Z)"
        if at_lines:
            words = "".join({tag[2] for tag in closers})
            line = rf"\n(?=[</{re.escape(words)}]|\Z)"
            starts = rf"\r{line}|{line}|\r\Z|{starts}"  # each begins with one character, which `re` looks for
        self._may_begin = lru_cache(1024)(self._begins_nearly)  # tags of other languages come over and over
        blank = " " * any(" " in tag for tag in closers)
        self._name = re.compile(rf"[\w:.|\uff5c\u2581{blank}\-]{{0,64}}")
        self._torn_beginnings = tuple(map(torn_beginning, closers))
        self.starts = starts
        """A pattern for where one may begin."""
        self._start = re.compile(starts)

    def at(self, text: str, index: int, ended: bool) -> tuple[int, str] | None:
        """How long the near tag at `index` is, and which is meant; "" if there is none.

        None while more text may make one. `ended`: no more comes. A line end in front belongs to it.
        """
        begin = index + (text[index] == "\r")
        begin += text.startswith("\n", begin)
        if not self._may_begin(text[begin : begin + _PREFIX]) or text.startswith(self._exact, begin):
            return 0, ""
        if not ended and any(tag.startswith(text[begin:]) for tag in self._exact):
            return None
        undecided = False
        for tag in self._closers:
            hits, open_ = tag.lengths(text, begin)
            undecided |= open_
            best: tuple[int, int] | None = None
            for edits, length in hits:
                end = begin + length
                if text[end - 1] != ">":
                    if text[begin] != "<":
                        continue  # `/parameter` is a path
                    if end == len(text):
                        undecided = True
                    elif text[end].isalnum() or text[end] == "_":
                        continue  # `</parameterize>`
                if best is None or (edits, -length) <= best:
                    best = (edits, -length)
            if best is not None and (ended or not undecided):
                length = begin - index - best[1]
                return (length, tag.text) if self._is_apart(text, index, begin, tag) else (0, "")
        return self._other(text, index, begin, undecided, ended)

    def _other(
        self, text: str, index: int, begin: int, undecided: bool, ended: bool
    ) -> tuple[int, str] | None:
        """What `at` returns where no closing tag is near: for a torn one, or an opening tag."""
        torn = self._torn(text, begin, ended)
        if torn and (ended or not undecided):
            return begin - index + torn, self._closers[0].text
        undecided |= torn is None
        for tag in self._openers:
            hits, open_ = tag.lengths(text, begin) if text[begin : begin + 1] in ("<", "") else ([], False)
            undecided |= open_
            for _, length in hits:
                if text[begin + length - 1] == tag.text[-1] and (ended or not undecided):
                    return begin - index + length, tag.text
        return None if undecided and not ended else (0, "")

    def _torn(self, text: str, begin: int, ended: bool) -> int | None:
        """How much of a closing tag stands there, and something else behind it: `</parameteameter=b>`.

        0 if it is none, or the whole tag of another language; None while more text may show that.
        """
        if not text.startswith(self._torn_beginnings, begin):
            return 0
        length = max(_common(tag.text, text, begin) for tag in self._closers)
        behind = self._name.match(text, begin + 2).end()  # type: ignore[union-attr]
        if behind == len(text) and not ended:
            return None
        return 0 if text[behind : behind + 1] in (">", "") else length

    def _begins_nearly(self, text: str) -> bool:
        """Whether something that begins like this may be a near tag."""
        return any(hits or open_ for hits, open_ in (tag.lengths(text, 0) for tag in self._tags))

    def _is_apart(self, text: str, index: int, begin: int, tag: _Tag) -> bool:
        """Whether a closing tag without `<` and `/` is one: on its line, and with nothing else amiss."""
        return text[begin] in "</" or (begin > index and text.startswith(tag.text[2:], begin))

    def check(self, value: str, end: str) -> None:
        """Raise ValueError if a written value holds something like a tag. `end`: the tag behind it."""
        text = value + end
        for hit in self._start.finditer(text, 0, len(value)):
            near = self.at(text, hit.start(), True)
            if near is not None and near[1]:
                written = text[hit.start() : hit.start() + near[0]]
                if is_text_before(near[1], written, value[: hit.start()][-1:]):
                    continue
                written = written.strip()
                raise ValueError(f"a value with {written!r} in it cannot be written as raw text")


@cache
def near_tags(
    closers: tuple[str, ...],
    openers: tuple[str, ...],
    at_lines: bool = False,
    others: tuple[str, ...] = (),
) -> NearTags:
    """One for each format."""
    return NearTags(closers, openers, at_lines, others)


def torn_beginning(tag: str) -> str:
    """How much of a closing tag shows that it was begun, whatever goes on behind it."""
    return tag[: min(_TORN, len(tag) - 3)]


def is_text_before(tag: str, written: str, before: str) -> bool:
    """Whether `written`, which stands behind the character `before`, is `tag` behind a `<` that is text.

    A doubled `<` follows a word; alone, or behind a blank, it is an operator: `<`, `cin <<`.
    """
    return written == f"<{tag}" and (before in ("", "<") or before.isspace())


def _common(tag: str, text: str, begin: int) -> int:
    """How many characters from `begin` on are the beginning of `tag`, without its last one."""
    there = text[begin : begin + len(tag) - 1]
    pairs = zip(tag, there, strict=False)
    return next((length for length, (due, char) in enumerate(pairs) if due != char), len(there))


def looks_like(text: str, tag: str) -> bool:
    """Whether `text` begins with what is nearly `tag`, its last character included."""
    return any(text[length - 1] == tag[-1] for _, length in _Tag(tag).lengths(text, 0)[0])


def is_near(text: str, word: str) -> bool:
    """Whether `text` is `word` but for one character at most."""
    if abs(len(text) - len(word)) > 1:
        return False
    same = next((index for index, (a, b) in enumerate(zip(text, word, strict=False)) if a != b), len(word))
    return text[same + 1 :] in (word[same:], word[same + 1 :]) or text[same:] == word[same + 1 :]


def nearest(name: str, known: Mapping[str, Named]) -> Named | None:
    """What one of the known names means, of which `name` is a misspelling; None unless it is exactly one."""
    meant = [value for word, value in known.items() if is_near(name, word)]
    return meant[0] if len(meant) == 1 else None


def tool_behind(prefix: str, word: str, tools: Collection[str]) -> str:
    """The declared tool whose name follows `prefix` in `word`, "" unless there is exactly one.

    One edit of the prefix is allowed: that is how far a slip of the model goes.
    """
    fitting = [name for name in tools if word.endswith(name) and is_near(word.removesuffix(name), prefix)]
    return fitting[0] if len(fitting) == 1 else ""
