"""Arguments written as raw text between tags.

A declared string streams as it arrives, byte exact. Anything else is held to its end, since only then its
type can be told.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from functools import cache
from json.encoder import encode_basestring as quote_json
from types import MappingProxyType

from ..dialect import Context
from ..engine.faults import Fault
from ..engine.source import Source
from ..engine.writer import CallWriter, json_text
from ..events import Reason
from .near import NearTags, is_text_before, nearest
from .strings import whole_characters
from .typed_text import (
    LONGEST_CONSTANT,
    STRING,
    Kinds,
    may_be_a_value,
    replace_lone,
    typed_text,
)

QUOTING = frozenset(" \t\"'`")
"""What stands in front of a tag that is only mentioned."""

_BLANK = re.compile(r"[ \t]*")


class Ends:
    """Texts that may end a raw argument, each with the white space that is part of it where it stands there.

    `special`: the markers that end it only as special tokens; spelled in ordinary ones they are data. `near`:
    the tags of which something similar does not pass for text either. `misplaced`: the markers that may
    stand in the place of a tag, each with its white space.
    """

    def __init__(
        self,
        texts: Mapping[str, tuple[str, ...]],
        special: tuple[str, ...] = (),
        near: NearTags | None = None,
        misplaced: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        self.bare = _with_spaces(texts)
        self.special = special
        # Of markers that begin alike only the shortest counts, which is the same however the output is cut.
        misplaced = {
            text: owned
            for text, owned in misplaced.items()
            if not any(text != other and text.startswith(other) for other in (*misplaced, *special))
        }
        self.markers = misplaced.keys()
        self._misplaced = _with_spaces(misplaced)
        self._near = near
        variants = sorted({*self.bare, *special, *self._misplaced}, key=len, reverse=True)
        starts = [] if near is None else [near.starts]
        self._stop = re.compile("|".join((*map(re.escape, variants), *starts)))
        self._first = re.compile(f"[{re.escape(''.join(sorted({text[0] for text in variants})))}]")
        self._longest = len(variants[0])
        self._beginnings = {text[:length] for text in variants for length in range(1, len(text))}

    def find(self, source: Source) -> tuple[int, str, str]:
        """Where in the window the next of them begins, how it is written, and which it is.

        "" for both while that is undecided.
        """
        text, near = source.text, self._near
        undecided = len(text)
        hit = self._stop.search(text, source.pos)
        while hit:
            start, written = hit.start(), hit[0]
            if written in self.bare:
                return start, written, self.bare[written]
            if self.is_special(source, start, written):
                return start, written, written
            if written in self._misplaced:
                return start, written, self._misplaced[written]
            if near is not None:
                similar = near.at(text, start, source.ended)
                if similar is None:
                    undecided = start
                    break
                length, tag = similar
                if length:
                    return start, text[start : start + length], tag
            hit = self._stop.search(text, start + 1)
        if source.ended:
            return len(text), "", ""
        hit = self._first.search(text, max(source.pos, len(text) - self._longest + 1))
        while hit and text[hit.start() :] not in self._beginnings:
            hit = self._first.search(text, hit.end())
        return min(hit.start() if hit else len(text), undecided), "", ""

    def skip(self, source: Source) -> Generator[None, None, str]:
        """Pass over everything up to the next of them, which is returned; "" at the end of the output."""
        while True:
            source.pos, end, _ = self.find(source)
            if end or source.ended:
                return end
            yield

    def is_special(self, source: Source, index: int, text: str) -> bool:
        """Whether `text` at the window index `index` is a marker and a special token."""
        return text in self.special and source.is_special(index, text)


@cache
def stops_at(texts: tuple[str, ...], special: tuple[str, ...] = ()) -> Ends:
    """To look for any of `texts`, or for markers that are special tokens, with no white space around them."""
    return Ends(dict.fromkeys(texts, ()), special)


def _with_spaces(texts: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """How each of `texts` may stand there, behind its white space and without it."""
    return {space + text: text for text, spaces in texts.items() for space in (*spaces, "")}


class RawCall:
    """A call with raw arguments."""

    closer = ""
    """The tag that closes an argument."""
    behind: tuple[str, ...] = ()
    """What may follow it, over white space: then it is a marker that stands in its place."""

    before = ""
    """The character in front of the text that may end the argument being read, "" if it is empty so far."""

    _spoken = False  # a marker in the value was taken for data
    bounds: tuple[str, ...] = ()
    """The markers that end an argument as special tokens; any other token shows that it was never closed."""

    def __init__(self, context: Context) -> None:
        self.source = context.source
        self.writer = CallWriter(context.source, context.emit, context.tools)
        self._tools = context.tools

    def closers(self) -> list[str]:
        """None: brackets in raw text are text."""
        return []

    def start(self, name: str) -> None:
        """The name is known: open the call. A misspelled name has the types of the tool that it means."""
        self.writer.start(name)
        if self.writer.tool is None:
            self.writer.tool = nearest(name, self._tools)

    def kinds_of(self, key: str) -> Kinds:
        """The JSON types that the schema of an argument allows, whose name may be misspelled."""
        tool = self.writer.tool
        if tool is None or key in tool.types:
            return self.writer.kinds_of(key)
        meant = nearest(key, {declared: declared for declared in tool.types})
        return None if meant is None else tool.kinds.get(meant)

    def read_raw(self, key: str, ends: Ends, kinds: Kinds) -> Generator[None, None, str]:
        """Read an argument's text and what ends it, which is returned without its white space.

        The key and the value are written. Raises Fault when the output ends first.
        """
        self.writer.key(key)
        self.before = ""
        self._spoken = False
        if kinds == STRING:
            return (yield from self._string(key, "", ends))
        held: list[str] = []
        start = ""
        decided = kinds is not None  # what is held will be typed as a whole
        while True:
            piece, end = yield from self._piece(ends)
            held.append(piece)
            if end:
                return self._typed(key, "".join(held), end, kinds)
            if not decided:
                start = (start + piece).lstrip()
                if not may_be_a_value(start):
                    return (yield from self._string(key, "".join(held), ends))
                decided = len(start) >= LONGEST_CONSTANT

    def closes(self, end: str) -> Generator[None, None, bool]:
        """Whether `end`, one of the texts that come next, ends the argument being read; otherwise it is data.

        What follows may be looked at. Raises Fault if neither can be said.
        """
        return True
        yield

    def closes_nearly(self, end: str, tag: str) -> Generator[None, None, bool]:
        """Whether `end`, nearly `tag`, ends the argument. Raises Fault if nothing shows that it was meant."""
        raise NotImplementedError

    def is_mentioned(
        self, end: str, texts: tuple[str, ...], ends: tuple[str, ...]
    ) -> Generator[None, None, bool]:
        """Whether `end`, the value's own closing tag, just read, is data: a tag that the text speaks of.

        It stands behind a blank or a quote, and text goes on behind it on its line, which `goes_on` is not.
        """
        if self.before not in QUOTING or end[0] in "\r\n":
            return False
        yield from self.source.run(_BLANK)
        if (yield from self.source.char()) in ("", "\n", "\r"):
            return False
        return not (yield from self.goes_on(texts, ends))

    def goes_on(self, texts: tuple[str, ...], ends: tuple[str, ...]) -> Generator[None, None, bool]:
        """Whether one of `texts` comes next, one of `ends`, which end the turn, or the end of the output.

        A special token counts as well, since none is ever part of a value.
        """
        source = self.source
        if not (yield from source.space()) or (yield from source.ahead(texts)):
            return True
        if source.ended and any(text.startswith(source.text[source.pos :]) for text in texts):
            return True
        marker = yield from source.marker()
        return marker in ends or (marker != "" and source.is_special(source.pos, marker))

    def _typed(self, key: str, text: str, end: str, kinds: Kinds) -> str:
        value, repaired = typed_text(text, kinds)
        if isinstance(value, str):
            value = replace_lone(value)
        self.writer.repaired |= repaired
        self.writer.write(json_text(value))
        self.writer.argument(key, value)
        return end

    def _string(self, key: str, text: str, ends: Ends) -> Generator[None, None, str]:
        """Stream a string that begins with `text`."""
        parts: list[str] = []
        high = ""
        piece, end = text, ""
        self.writer.write('"')
        while True:
            piece, high = whole_characters(high + piece)
            if end and high:
                piece, high = piece + "\ufffd", ""
            parts.append(piece)
            if piece:
                self.writer.write(quote_json(piece)[1:-1], self.source.offset - len(high))
            if end:
                break
            piece, end = yield from self._piece(ends)
        self.writer.write('"')
        self.writer.argument(key, "".join(parts))
        return end

    def _piece(self, ends: Ends) -> Generator[None, None, tuple[str, str]]:
        """The next piece of the text, or what ends it, which is read then. Raises Fault."""
        source = self.source
        while True:
            stop, end, tag = ends.find(source)
            if stop > source.pos:
                piece = source.text[source.pos : stop]
                self.before = piece[-1]
                source.pos = stop
                return piece, ""
            if end:
                if end.endswith(tag) and (tag in ends.markers or tag in ends.special):
                    start = source.offset
                    special = ends.is_special(source, stop + len(end) - len(tag), tag)
                    source.pos += len(end)
                    if (yield from self._replaces_closer()):
                        if self._spoken:
                            source.rewind(start)
                            raise Fault(Reason.UNCLOSED_STRING, balanced=False)
                        self.writer.repaired = True
                        return "", self.closer
                    if special and tag in self.bounds:
                        return "", tag
                    if end not in ends.bare and not special:
                        self._spoken = True
                        self.before = end[-1]
                        return end, ""
                    source.rewind(start)
                    if special:
                        raise Fault(Reason.UNCLOSED_STRING, balanced=False)
                exact = end in ends.bare
                if not exact and is_text_before(tag, end, self.before):
                    source.pos += 1
                    self.before = end[0]
                    return end[0], ""
                closes = yield from (self.closes(end) if exact else self.closes_nearly(end, tag))
                source.pos += len(end)
                if closes:
                    return "", tag
                self.before = end[-1]
                return end, ""
            if source.ended:
                raise Fault(Reason.TRUNCATED, balanced=False)
            yield

    def _replaces_closer(self) -> Generator[None, None, bool]:
        """Whether the marker just read stands where the closing tag was due: the call goes on behind it."""
        source = self.source
        start = source.offset
        yield from source.space()
        replaces = self.behind != () and (yield from source.ahead(self.behind)) != ""
        source.rewind(start)
        return replaces
