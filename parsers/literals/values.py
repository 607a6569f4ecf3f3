"""Nested literals: strings, numbers, constants, lists, tuples, sets and mappings, at any place of a call.

One loop over an explicit stack, so depth costs memory and not Python frames. What is read is written as
JSON at once, except where the notation is not decided yet: `{` may open a set, `(` may only group, and a
mapping's key must become text. Values are never evaluated.

Whether a quote closes its string is decided by what follows it alone [closing-quote]. What decides it only
looks ahead, and leaves going back to its caller, so one rule serves however the output is cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from json.encoder import encode_basestring as quote_json
from typing import Any

from ..engine.faults import Fault
from ..engine.source import Reading
from ..engine.spans import Span
from ..engine.words import CONSTANTS, literal
from ..engine.writer import CallWriter, json_text
from ..events import MAX_DEPTH, Reason
from .plain import LEAST, MOST_DEPTH, plain_items, plain_members
from .skipping import QUOTES, Passed, opening_quote, pass_literal
from .strings import PREFIXES, String
from .torn import is_torn

WORD = re.compile(r"[^\s,()\[\]{}:'\"=<*`]*")
IDENTIFIER = re.compile(r"[^\W\d]\w*")
PARAMETER = re.compile(r"[\w\-]*")
"""Names of arguments: they may be keywords of Python, and contain `-`."""
SIGNS = ("+", "-")
PREFIX_LETTERS = frozenset("rufRUF")
"""With which a further literal may begin; bytes cannot be joined to text."""
STRING_STARTS = frozenset((*QUOTES, *PREFIX_LETTERS))
"""With which a quoted string may begin."""

# What follows a string that is plainly closed: a key, the value of a member, an item of a list.
_S = r"[ \t\r\n\f\v]*"
_KEY_BEGUN = re.compile(rf"""(?:"[^"\\<\n]{{0,40}}(?:"{_S})?|'[^'\\<\n]{{0,40}}(?:'{_S})?)\Z""")
_COLON = re.compile(rf"{_S}(:|\Z)")
_NEXT_KEY = re.compile(rf"""{_S}(?:,{_S}(["']|\Z)|(\Z))""")
_NEXT_ITEM = re.compile(rf"""{_S}(?:,{_S}(["'\[{{]|\Z)|(\Z))""")
_NUMBER_STARTS = frozenset("0123456789+-.")
_JSON_WORD = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")

Follows = Callable[[bool], Generator[None, None, bool]]
"""Whether what comes next fits after a complete value, outside all of its brackets.

Reads ahead; the caller goes back. The argument: a string of the value holds unescaped quotes already.
"""


CLOSERS = {"[": "]", "(": ")", "{": "}"}


class Frame:
    """One open bracket. `keys` is True for a mapping, False for a sequence, None while undecided."""

    __slots__ = ("closer", "items", "joined", "key", "keys", "mapping", "placeholder", "written")

    def __init__(self, opener: str) -> None:
        self.closer = CLOSERS[opener]
        self.keys: bool | None = False if opener == "[" else None
        self.items: list[Any] = []
        self.joined = False  # an item is made of adjacent literals
        self.mapping: dict[str, Any] = {}
        self.written: dict[str, str] = {}  # bare numbers of the mapping, as they were written
        self.key: str | None = None  # the key whose value is being read
        self.placeholder: int | None = None  # where the held JSON waits for a decision

    @property
    def expects_key(self) -> bool:
        """A mapping between two items, or a brace that may be one."""
        return self.closer == "}" and self.keys is not False and self.key is None

    @property
    def groups(self) -> bool:
        """A parenthesis that has not shown yet whether it is a tuple."""
        return self.closer == ")" and self.keys is None


class LiteralReader:
    """Reads literals and writes them as JSON. `follows` says what may come after a whole value."""

    json_escapes = False
    """Whether strings have JSON's escapes."""
    json_only = False
    """Whether what JSON does not have counts as repaired."""
    string_starts = STRING_STARTS
    separator = ","
    """The text between two arguments."""
    words = WORD
    """What a value without quotes is made of: nothing that may follow it."""
    assigns: tuple[str, ...] = ("=",)
    """What may stand between the name of an argument and its value."""

    def __init__(self, writer: CallWriter, span: Span, follows: Follows) -> None:
        """`span`: the markers of the block that the call stands in."""
        self.writer = writer
        self.source = writer.source
        self.span = span
        self.follows = follows
        self.frames: list[Frame] = []
        self.adjacent_until = -1  # closing quotes up to this offset belong to a chain of adjacent literals
        self.kinds: frozenset[str] | None = None  # the types that the argument being read may have
        self.word: str | None = None  # the last atom, if it was written without quotes
        self.written: dict[str, str] = {}  # the bare numbers of the mapping read last, as they were written

    def closers(self) -> list[str]:
        """The brackets that are open, outermost first."""
        return [frame.closer for frame in self.frames]

    def no_json(self, found: bool = True) -> None:
        """What has been read is no JSON, if `found`."""
        self.writer.repaired |= found and self.json_only

    # -- arguments ------------------------------------------------------------------------------------

    def argument(self, key: str, closer: str) -> Reading:
        """Read the value of `key` and look for what must follow it: `separator` or `closer`, left unread."""
        writer = self.writer
        self.kinds = writer.kinds_of(key)
        writer.key(key)
        typed = writer.type_of(key)
        value = yield from (self.value() if typed is None else self._typed_value(key, typed))
        if (self.source.ready() or (yield from self.source.space())) not in (self.separator, closer):
            raise Fault(Reason.SYNTAX)
        writer.argument(key, value, self.written)

    def _typed_value(self, key: str, kind: str) -> Generator[None, None, Any]:
        """One value, in its declared type where only that can tell; written only when that is decided."""
        writer = self.writer
        char = self.source.ready() or (yield from self.source.space())
        # Only a bare number can become a string, and only a string anything else.
        if char not in (_NUMBER_STARTS if kind == "string" else self.string_starts):
            return (yield from self.value())
        place = writer.hold()
        value = yield from self.value()
        typed = writer.typed(key, value, self.word)
        writer.repaired |= typed is not value
        writer.settle(place, None if typed is value else json_text(typed))
        return typed

    # -- values ---------------------------------------------------------------------------------------

    def value(self) -> Generator[None, None, Any]:
        """Read one value, its brackets included. Raises Fault."""
        base = len(self.frames)
        while True:
            frame = self.frames[-1] if len(self.frames) > base else None
            if frame is not None:
                self._plain(frame)
            char = self.source.ready() or (yield from self.source.space())
            if char in CLOSERS:
                frame = self._open(char)
                if (self.source.ready() or (yield from self.source.space())) != frame.closer:
                    continue
                value = self._closed_at_once(frame)
            elif (
                frame is not None
                and frame.expects_key
                and char in QUOTES
                and (yield from self._plain_key(frame))
            ):
                continue
            else:
                value = yield from (
                    self._strings(self.source.offset, "") if char in QUOTES else self.atom(char)
                )
            while len(self.frames) > base:
                if not (yield from self.attach(value)):
                    break
                value = self._close()
            else:
                return value

    def _plain_key(self, frame: Frame) -> Generator[None, None, bool]:
        """Read a short key in one step, if it is plain: keys are written when they are complete, anyhow."""
        source = self.source
        start = source.offset
        while not source.ended and _KEY_BEGUN.match(source.text, source.pos):
            yield
        self._plain(frame)
        return source.offset > start

    def _plain(self, frame: Frame) -> None:
        """Read ahead what needs no thought; what is left is read as usual."""
        source = self.source
        seen = len(source.text) - source.pos
        if seen < 3:
            return
        pieces: list[str] = []
        nested = seen >= LEAST and len(self.frames) + MOST_DEPTH <= MAX_DEPTH
        if frame.keys is False:
            source.pos, python = plain_items(
                source.text, source.pos, frame.items.append, pieces.append, nested=nested
            )
            self.no_json(python)
            if pieces:
                self.writer.write("".join(pieces))
        elif frame.expects_key and source.text[source.pos : source.pos + 1] in QUOTES:
            before = len(frame.mapping)
            source.pos, frame.key, python = plain_members(
                source.text, source.pos, frame.mapping, frame.written, pieces.append, nested=nested
            )
            self.no_json(python)
            # A member makes two pieces; one whose key was there already makes the mapping no longer.
            self.writer.repaired |= len(frame.mapping) - before < len(pieces) // 2
            if pieces:
                assert frame.placeholder is not None
                self.writer.settle(frame.placeholder, ("" if frame.keys else "{") + "".join(pieces))
                frame.keys = True
                frame.placeholder = self.writer.hold() if frame.key is None else None

    def _open(self, opener: str) -> Frame:
        if len(self.frames) == MAX_DEPTH:
            raise Fault(Reason.TOO_DEEP)
        frame = Frame(opener)
        self.no_json(opener == "(")
        self.frames.append(frame)
        self.source.pos += 1
        if opener == "[":
            self.writer.write("[")
        else:
            frame.placeholder = self.writer.hold()
        return frame

    def _closed_at_once(self, frame: Frame) -> Any:
        """Read the closer of an empty bracket; returns its value."""
        self.source.pos += 1
        if frame.keys is None:
            self._decide(frame, keys=frame.closer == "}")
        return self._close()

    def _decide(self, frame: Frame, *, keys: bool) -> None:
        """The notation of a brace or parenthesis has shown itself: write its opener."""
        frame.keys = keys
        self.no_json(not keys)
        place, frame.placeholder = frame.placeholder, None
        assert place is not None
        self.writer.replace(place, "{" if keys else "[")

    def _close(self) -> Any:
        """Leave the innermost frame, whose closer has been read; returns its value."""
        frame = self.frames.pop()
        if frame.groups:
            assert frame.placeholder is not None
            self.writer.settle(frame.placeholder)
            return frame.items[0]
        self.writer.write("}" if frame.keys else "]")
        self.word = None
        self.written = frame.written
        return frame.mapping if frame.keys else frame.items

    def attach(self, value: Any) -> Generator[None, None, bool]:
        """Put a complete value into the innermost frame; True when that frame's closer was read."""
        frame = self.frames[-1]
        source = self.source
        char = source.ready() or (yield from source.space())
        if frame.expects_key and char == ":":
            self._key(frame, value)
            return False
        if frame.expects_key and frame.keys:
            raise Fault(Reason.SYNTAX)
        if char not in (",", frame.closer) or not char:
            raise Fault(Reason.SYNTAX)
        if frame.keys is None and (char == "," or frame.closer == "}"):
            if frame.joined:
                raise Fault(Reason.SYNTAX)
            self._decide(frame, keys=False)
        if frame.keys:
            assert frame.key is not None
            self.writer.repaired |= frame.key in frame.mapping  # the last one counts [repeated-argument]
            frame.mapping[frame.key] = value
            if self.word is not None:
                frame.written[frame.key] = self.word
            frame.key = None
        else:
            frame.items.append(value)
        source.pos += 1
        if char == frame.closer:
            return True
        if (source.ready() or (yield from source.space())) == frame.closer:
            self.no_json()
            source.pos += 1
            return True
        self.writer.write(", ")
        if frame.keys:
            frame.placeholder = self.writer.hold()
        return False

    def _key(self, frame: Frame, value: Any) -> None:
        """What was read is a key: replace its JSON by that of its text."""
        if isinstance(value, (list, dict)):
            raise Fault(Reason.NOT_A_LITERAL)
        self.no_json(not isinstance(value, str))
        frame.key = value if isinstance(value, str) else json_text(value)
        self.source.pos += 1
        place, frame.placeholder = frame.placeholder, None
        assert place is not None
        opener = "" if frame.keys else "{"
        frame.keys = True
        self.writer.settle(place, f"{opener}{quote_json(frame.key)}: ")

    # -- atoms ----------------------------------------------------------------------------------------

    def atom(self, char: str) -> Generator[None, None, Any]:
        """One value without brackets, which begins with `char`."""
        source = self.source
        start = source.offset
        if char in QUOTES:
            return (yield from self._strings(start, ""))
        word = yield from source.run(self.words)
        if word.lower() in PREFIXES and (yield from source.char()) in QUOTES:
            return (yield from self._strings(start, word.lower()))
        if not word:
            raise Fault(Reason.SYNTAX)
        self.word = word
        if word in SIGNS:
            yield from source.space()
            word += yield from source.run(self.words)
            self.word = source.since(start)
        if source.pos == len(source.text) and not (yield from source.char()):
            raise Fault(Reason.TRUNCATED)  # the next character might have belonged to it
        value: Any
        if self.may_be_text(word):
            value = yield from self.bare_word(word)
        else:
            value, repaired = literal(word)
            self.writer.repaired |= repaired
            self.no_json(_JSON_WORD.fullmatch(word) is None)
        self.writer.write(json_text(value))
        return value

    def may_be_text(self, word: str) -> bool:
        """Whether a word without quotes can only be text."""
        return not self.frames and IDENTIFIER.fullmatch(word) is not None and word not in CONSTANTS

    def bare_word(self, word: str) -> Generator[None, None, str]:
        """`mode=fast`: a name in place of a value is its text, unless it would have to be evaluated."""
        if (yield from self.source.space()) not in (",", ")"):
            raise Fault(Reason.NOT_A_LITERAL)
        return self.text_of(word)

    def text_of(self, word: str) -> str:
        """The text that a word in place of a value stands for. Raises Fault."""
        if word.lower() in ("nan", "inf", "infinity"):
            raise Fault(Reason.NOT_FINITE)
        if not self.frames and self.kinds is not None and "string" not in self.kinds:
            raise Fault(Reason.NOT_A_LITERAL)  # a misspelled constant: `exact=Tue` [torn-string]
        self.writer.repaired = True
        return word

    def _strings(self, start: int, prefix: str) -> Generator[None, None, str]:
        """One literal, or adjacent ones, which are joined as in Python where they are an argument's value."""
        parts: list[str] = []
        source = self.source
        self.word = None
        self.no_json(prefix != "" or source.text[source.pos] != '"')
        self.writer.write('"')
        while True:
            if "b" in prefix:
                raise Fault(Reason.NOT_A_LITERAL)
            quote = source.text[source.pos]
            if source.text[source.pos + 1 : source.pos + 2] in ("", quote):
                quote = yield from opening_quote(source)  # it may be one of three
            else:
                source.pos += 1
            string = String(
                source,
                self.span,
                (start, prefix, quote),
                (self.fits_at_once, self.fits_after),
                self._torn,
                self.writer.write,
                json=self.json_escapes,
                json_only=self.json_only,
            )
            parts.append((yield from string.read()))
            self.writer.repaired |= string.repaired
            if source.offset >= self.adjacent_until:
                break
            # In a list or in JSON two strings side by side have lost their comma [lost-comma].
            if self.json_escapes or not all(frame.groups for frame in self.frames):
                raise Fault(Reason.SYNTAX)
            for frame in self.frames[-1:]:
                frame.joined = True
            yield from source.space()
            start = source.offset
            prefix = (yield from source.run(self.words)).lower()
        self.writer.write('"')
        return "".join(parts)

    # -- what fits after a closing quote ---------------------------------------------------------------

    def fits_at_once(self) -> bool | None:
        """What `fits_after` says, if what is in sight shows it without any doubt; None while more may."""
        if not self.frames:
            return False
        frame, source = self.frames[-1], self.source
        plain = _COLON if frame.expects_key else _NEXT_KEY if frame.keys else _NEXT_ITEM
        match = plain.match(source.text, source.pos)
        if match is None:
            return False
        return True if match[1] else False if source.ended else None

    def fits_after(self, inner: bool) -> Generator[None, None, bool]:
        """Whether what comes next shows that the quote just read closes its string.

        `inner`: the string holds unescaped quotes already.
        """
        if self.source.offset <= self.adjacent_until:
            return True
        char = self.source.ready() or (yield from self.source.space())
        if not char:
            return True  # the output ends here: nothing can contradict
        if self.json_only and self.frames and self.frames[-1].expects_key and self.frames[-1].keys:
            return True  # no key of JSON has an unescaped quote in it: `"a": 1, "b"x 2` has lost its colon
        if not inner and (char in QUOTES or char in PREFIX_LETTERS):
            start = self.source.offset
            if (yield from self._adjacent()):
                return True
            self.source.rewind(start)
        return (yield from self._fits(inner))

    def _adjacent(self) -> Generator[None, None, bool]:
        """Whether more literals follow, each complete, the last up to a quote that fits."""
        source = self.source
        while True:
            word = yield from source.run(self.words)
            text = not word or (word.lower() in PREFIXES and word[0] in PREFIX_LETTERS)
            if (yield from source.char()) not in QUOTES or not text:
                return False
            passed = yield from pass_literal(source, self.span)
            after = source.offset
            if passed is Passed.OUTPUT_ENDED or (passed is Passed.CLOSED and (yield from self._fits(False))):
                self.adjacent_until = after
                return True
            if passed is Passed.CUT:
                return False
            source.rewind(after)
            yield from source.space()

    def _fits(self, inner: bool) -> Generator[None, None, bool]:
        """Whether what follows fits the innermost bracket, or closes it and fits the next one out."""
        source = self.source
        grouped = True  # only grouping parentheses so far: `{('a'): 1}`
        for frame in reversed(self.frames):
            char = source.ready() or (yield from source.space())
            if not char:
                return True
            if grouped and frame.expects_key:
                if char == ":":
                    return True
                if frame.keys:
                    return False
            if char == ",":
                source.pos += 1
                return (yield from self.starts_item(frame))
            if char != frame.closer:
                return False
            grouped = grouped and frame.groups
            source.pos += 1
        return (yield from self.follows(inner))

    def _torn(self) -> Generator[None, None, bool]:
        """Whether the quote just read was meant to close its string, though what follows does not fit."""
        return is_torn(self.source, [frame.closer for frame in reversed(self.frames)], self.assigns)

    def starts_item(self, frame: Frame) -> Generator[None, None, bool]:
        """Whether what follows a comma can be the next item of `frame`."""
        source = self.source
        char = source.ready() or (yield from source.space())
        if char in ("", frame.closer, *QUOTES) or (char in CLOSERS and not frame.keys):
            return True
        word = yield from source.run(self.words)
        if word in SIGNS:
            yield from source.space()
            word += yield from source.run(self.words)
        if not (follower := (yield from source.char())):
            return True
        if follower in QUOTES:
            return word.lower() in PREFIXES
        try:
            literal(word or "?")
        except Fault as fault:
            return fault.reason is not Reason.NOT_A_LITERAL  # too large a number is one all the same
        return True


class JsonReader(LiteralReader):
    """Literals whose strings have JSON's escapes; Python's notation is read as well."""

    json_escapes = True


class StrictJsonReader(JsonReader):
    """The same, where everything that JSON does not have counts as repaired."""

    json_only = True
