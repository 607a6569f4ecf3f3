"""How a dialect lays out a call, read off its own renderer.

The renderer writes a few probe calls, and their text is cut at the names, keys and values that were put in:

    head NAME ( gap NAME )* ( empty | first VALUE post ( next VALUE post )* close ) ( between … )* tail

So the reader, the writer and the grammar of a dialect cannot disagree, and a new dialect is constrained as
soon as it has a renderer. What the cuts do not explain is refused (`Unsupported`), never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from localagent.errors import Unsupported
from localagent.parsers import CallEnd, Dialect, Malformed, StreamParser, Text

Kind = Literal["string", "integer", "number", "boolean", "null", "array", "object"]

# None of these is escaped in any notation, and none is part of another.
_NAMES: Final = ("probeNameA", "probeNameB", "probeNameC")
_KEYS: Final = ("probeKeyA", "probeKeyB", "probeKeyC")
PROBE_KEY: Final = _KEYS[1]
_NUMBER: Final = 7654321
_OTHER: Final = 1234567
_PROBES: Final[Mapping[Kind, tuple[Any, str]]] = {
    "string": ("probeValue", "probeValue"),
    "integer": (_NUMBER, str(_NUMBER)),
    "number": (7654.25, r"7654\.25"),
    "boolean": (True, "[Tt]rue"),
    "null": (None, "null|None"),
    "array": ([_NUMBER], rf"\[{_NUMBER}\]"),
    "object": ({"probe inner": _NUMBER}, rf"\{{[^{{}}]*{_NUMBER}\}}"),
}
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Keys that every notation writes as they are."""
_PIECE: Final = re.compile(r"\s+|<[^<>]*>?|[^\s<]+")
"""What belongs together in the text between calls: a turn ends in front of one of these."""
_TAG: Final = re.compile(r"</?[^<>=\"]+[=>]")
INDEX: Final = "\x00"
"""Stands in texts of a layout for the number of a call, which some formats write."""


@dataclass(frozen=True, slots=True)
class Strings:
    """How a string is written.

    quoted: between quotes, with JSON's escapes; `python` if either quote may be used. verbatim: between two
    tokens, without escapes. raw: as it is, up to what follows the value.
    """

    style: Literal["quoted", "verbatim", "raw"]
    open: str = ""
    close: str = ""
    python: bool = False


@dataclass(frozen=True, slots=True)
class Notation:
    """How values are written within lists and objects. `has_bare`: names stand without quotes as keys.
    `gap`: a regular expression for white space between the parts of a list or an object, "" for none but that
    in `comma` and `colon`.
    """

    strings: Strings
    constants: Mapping[bool | None, str]
    comma: str
    colon: str
    has_bare: bool
    gap: str = ""


@dataclass(frozen=True, slots=True)
class Argument:
    """The texts around an argument's value: in front of the `first` one and of a `next` one, and after it."""

    first: str
    next: str
    post: str


@dataclass(frozen=True, eq=False)
class Layout:
    """One notation of a dialect, cut as the top of this file shows. Texts hold `INDEX` for a call's number.

    `between` is None where the dialect writes several calls in another way than one; `again` is what may
    stand there as well, without the markers: None if nothing may. `unmarked`: what stands in front of a name
    where `opener` is missing; None if that is no call, or one in JSON, which may be laid out otherwise.
    `cuts`: beginnings of `tail`, and white space behind it, where the turn may end as well: many models leave
    closing markers out, and the parser takes the end of the turn for them.

    `strings`: how a string is written as an argument, and `constants`: true, false and null; within lists and
    objects `values` has both. `is_typed`: the text in front of a value gives its type, so that no
    string is taken for a number. `is_sorted`: arguments stand in the order of their names, not in that of the
    schema.

    `join`: all that stands between the names of two calls without arguments, which shows where a number is.

    Of raw text: `reserved` is what it may not hold, `near` the tags of which it may not even hold something
    similar, `edges` the white space that it may not begin or end with, which would be taken for markup.
    """

    dialect: Dialect
    renderer: str | None
    opener: str
    head: str
    gaps: tuple[str, ...]
    between: str | None
    again: str | None
    unmarked: str | None
    tail: str
    cuts: tuple[str, ...]
    empty: str
    close: str
    strings: Strings
    constants: Mapping[bool | None, str]
    values: Notation
    is_typed: bool
    is_sorted: bool
    reserved: tuple[str, ...]
    near: tuple[str, ...]
    edges: str
    join: str

    def argument(self, key: str, kind: Kind) -> Argument:
        """The texts around an argument. Raises Unsupported for a key that the dialect cannot write."""
        probe, plain = _Probe(self.dialect, self.renderer), _PLAIN.fullmatch(key)
        around = _argument(probe, _KEYS[1] if plain else key, kind)
        texts = (around.first, around.next, around.post)
        first, *others = (text.replace(_KEYS[1], key) for text in texts) if plain else texts
        return Argument(_numbered(first, self.join), *others)

    def member(self, key: str) -> str:
        """A key of an object within a value, with what stands between it and its value."""
        probe = _Probe(self.dialect, self.renderer)
        if _PLAIN.fullmatch(key):
            return _member(probe, _KEYS[1]).replace(_KEYS[1], key)
        return _member(probe, key)


@lru_cache(maxsize=128)
def layout(dialect: Dialect, renderer: str | None = None) -> Layout:
    """How `dialect` writes calls, in its own notation or the one named. Raises Unsupported."""
    probe = _Probe(dialect, renderer)
    one, two, three = (probe.written([(name, {}) for name in _NAMES[:n]]) for n in (1, 2, 3))
    opener = dialect.calls.open if dialect.calls and dialect.calls.open in one else ""
    head, *gaps, last = one[one.index(opener) + len(opener) :].split(_NAMES[0])
    join = _with_index(_between(two, _NAMES[0], _NAMES[1]), _between(three, _NAMES[1], _NAMES[2]))
    head, last = _numbered_at_end(head, join), _numbered(last, join)
    empty = _common(last, join)
    between: str | None = join[len(empty) :]
    tail = last[len(empty) :]
    two_head = _numbered_at_end(two[two.index(opener) + len(opener) : two.index(_NAMES[0])], join)
    two_tail = _numbered(two[two.rindex(_NAMES[1]) + len(_NAMES[1]) :], join)
    if (two_head, two_tail) != (head, last):
        between = None  # two calls are a list, and one alone is none
    number, text = (_argument(probe, _KEYS[1], kind) for kind in ("integer", "string"))
    after = _cut(probe.after_name({_KEYS[1]: _NUMBER}), "integer")
    if after is None or not after[1].startswith(number.post) or not after[1].endswith(tail):
        raise probe.unsupported("its calls end in several ways")
    close = after[1][len(number.post) : len(after[1]) - len(tail)]
    begun = one[: one.rindex(_NAMES[0])] + _NAMES[0]
    if spare := _spare(dialect, begun, empty, close):  # what closes a block is no part of the call
        empty, close = empty.removesuffix(spare), close.removesuffix(spare)
        between, tail = None if between is None else spare + between, spare + tail
    values = _notation(probe)
    is_typed = not text.first.startswith(number.first)
    quote = "" if is_typed else text.first[len(number.first) :]
    if quote in ("'", '"'):
        strings = values.strings
    elif quote:
        strings = Strings("verbatim", quote, text.post[: len(text.post) - len(number.post)])
    else:
        strings = Strings("raw")
    reserved = () if strings.style == "quoted" else _reserved(probe)
    return Layout(
        dialect=dialect,
        renderer=renderer,
        opener=opener,
        head=head,
        gaps=tuple(gaps),
        between=between,
        unmarked=_unmarked(dialect, opener, head, begun + empty),
        again=head if between is not None and _repeats(dialect, opener, head, begun + empty, tail) else None,
        tail=tail,
        cuts=_cuts(dialect, begun + empty, tail, between or ""),
        empty=empty,
        close=close,
        strings=strings,
        constants=_constants(probe),
        values=values,
        is_typed=is_typed,
        is_sorted=_is_sorted(probe),
        reserved=reserved,
        near=tuple(tag for tag in reserved if _is_guarded(probe, tag, reserved)),
        edges="".join(
            char
            for char in " \t\r\n"
            if strings.style == "raw"
            and not (probe.is_verbatim(char + "x") and probe.is_verbatim("x" + char))
        ),
        join=join,
    )


def _spare(dialect: Dialect, begun: str, empty: str, close: str) -> str:
    """How much of what ends a call, with and without arguments, the end of the turn can stand for."""
    shared = [
        close[piece.start() :] for piece in _PIECE.finditer(close) if empty.endswith(close[piece.start() :])
    ]
    return next((text for text in shared if _is_call(dialect, begun + empty.removesuffix(text))), "")


def _cuts(dialect: Dialect, call: str, tail: str, between: str) -> tuple[str, ...]:
    """Where in `tail`, behind `call`, the end of a turn may follow; `between` may have white space more."""
    texts = [tail[: piece.start()] for piece in _PIECE.finditer(tail)]
    if between.startswith(tail):
        rest = between[len(tail) :]
        texts.append(tail + rest[: len(rest) - len(rest.lstrip())])
    return tuple(text for text in dict.fromkeys(texts) if text != tail and _is_call(dialect, call + text))


def _is_call(dialect: Dialect, text: str) -> bool:
    """Whether `text`, with any number for `INDEX`, is read as one call that lacks nothing, whichever marker
    ends the turn behind it, or none.
    """
    return all(_reads(dialect, text + end, 1) for end in ("", *dialect.ends))


def _repeats(dialect: Dialect, opener: str, head: str, call: str, tail: str) -> bool:
    """Whether calls may also stand one behind the other in a block, each on a line of its own."""
    return head[:1].isspace() and _reads(dialect, call + call.removeprefix(opener) + tail, 2)


def _unmarked(dialect: Dialect, opener: str, head: str, call: str) -> str | None:
    lead = head.lstrip()
    if not opener or lead[:1] in ("", "{", "["):
        return None
    return lead if _reads(dialect, call.removeprefix(opener).lstrip(), 1) else None


def _reads(dialect: Dialect, text: str, count: int) -> bool:
    parser = StreamParser(dialect, [{"function": {"name": _NAMES[0]}}])
    events = [*parser.feed(text.replace(INDEX, "0")), *parser.close()]
    calls = [event for event in events if isinstance(event, CallEnd)]
    return (
        len(calls) == count
        and not any(call.repaired for call in calls)
        and not any(
            isinstance(event, Malformed) or (isinstance(event, Text) and event.text.strip())
            for event in events
        )
    )


@dataclass(frozen=True, slots=True)
class _Probe:
    """One notation of a dialect, by what it writes."""

    dialect: Dialect
    renderer: str | None

    def written(self, calls: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
        """The text of these calls. Raises Unsupported."""
        try:
            return self.dialect.render(calls, self.renderer)
        except ValueError as error:
            raise self.unsupported(str(error)) from None

    def after_name(self, arguments: Mapping[str, Any]) -> str:
        """What follows the name in a call with these arguments."""
        text = self.written([(_NAMES[0], arguments)])
        return text[text.rindex(_NAMES[0]) + len(_NAMES[0]) :]

    def is_verbatim(self, text: str) -> bool:
        """Whether `text` is written as it is, where any other is."""
        expected = self.written([(_NAMES[0], {_KEYS[0]: "probeValue"})]).replace("probeValue", text)
        try:
            return self.dialect.render([(_NAMES[0], {_KEYS[0]: text})], self.renderer) == expected
        except ValueError:
            return False

    def unsupported(self, why: str) -> Unsupported:
        """The error for a dialect whose calls cannot be cut."""
        return Unsupported(f"calls of the dialect {self.dialect.name} cannot be constrained: {why}")


# -- arguments and values -----------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _argument(probe: _Probe, key: str, kind: Kind) -> Argument:
    """How the argument `key` is written with a value of this kind."""
    value = _PROBES[kind][0]
    alone = _cut(probe.after_name({key: value}), kind)
    if alone is None:
        if kind in ("array", "object"):  # written as elements of their own, and read as JSON as well
            return _argument(probe, key, "integer")
        raise probe.unsupported(f"the {kind} is not found in what it writes")
    for before, behind in ((_KEYS[0], _KEYS[2]), ("!", "~")):  # where arguments are sorted, `key` is between
        leading = _cut(probe.after_name({before: _OTHER, key: value}), kind)
        following = _cut(probe.after_name({key: value, behind: _OTHER}), kind)
        if leading is None or following is None or str(_OTHER) not in leading[0]:
            continue
        single = probe.after_name({before: _OTHER}).split(str(_OTHER))[1]
        lead = leading[0].split(str(_OTHER))[1]
        if str(_OTHER) in following[1]:
            return Argument(alone[0], lead[len(_common(single, lead)) :], _common(alone[1], following[1]))
    raise probe.unsupported(f"the argument {key!r:.40} is not where it is expected")


@lru_cache(maxsize=4096)
def _member(probe: _Probe, key: str) -> str:
    single = probe.after_name({_KEYS[0]: {"! !": _NUMBER}})  # no element can be named so
    before = single[: single.index("! !")]
    before = before[: before.rindex("{") + 1]
    written = probe.after_name({_KEYS[0]: {key: _NUMBER, "~ ~": _OTHER}})
    if not written.startswith(before) or str(_NUMBER) not in written:
        raise probe.unsupported(f"the key {key!r:.40} is not where it is expected")
    member = written[len(before) : written.index(str(_NUMBER))]
    if str(_OTHER) in member:  # members are sorted, and this key comes after the other one
        member = member.split(str(_OTHER), 1)[1].partition(",")[2].lstrip(" ")
    return member


def _notation(probe: _Probe) -> Notation:
    inner = {"probe inner": _NUMBER, "probe other": _OTHER}
    written = probe.after_name({_KEYS[0]: ["probeValue", "probeText", True, False, None, inner]})
    parts = re.search(
        r"\[([^\[\]]*?)probeValue(.*?)probeText(.*?)([Tt]rue)(.*?)([Ff]alse).*?(null|None).*?"
        rf"\{{(.*?)probe inner(.*?){_NUMBER}(.*?){re.escape(str(_OTHER))}",
        written,
    )
    if parts is None:
        raise probe.unsupported("its lists and objects are not written in brackets")
    quote, comma = parts[1], parts[5]
    close = parts[2][: len(parts[2]) - len(comma) - len(quote)]
    constants = {True: parts[4], False: parts[6], None: parts[7]}
    if quote in ("'", '"'):
        strings = Strings("quoted", '"', '"', python=quote == "'" or parts[4] == "True")
    else:
        strings = Strings("verbatim", quote, close)
    colon = parts[9][len(close) :]
    has_bare = _member(probe, _KEYS[1]).startswith(_KEYS[1])
    return Notation(strings, constants, comma, colon, has_bare)


def _constants(probe: _Probe) -> dict[bool | None, str]:
    """How an argument is written that is a constant."""
    words = {True: "[Tt]rue", False: "[Ff]alse", None: "null|None"}
    constants = {}
    for value, pattern in words.items():
        written = re.findall(pattern, probe.after_name({_KEYS[0]: value}))
        if not written:
            raise probe.unsupported(f"{value} is not found in what it writes")
        constants[value] = written[-1]
    return constants


def _is_sorted(probe: _Probe) -> bool:
    written = probe.after_name({_KEYS[1]: 1, _KEYS[0]: 1})
    return written.index(_KEYS[0]) < written.index(_KEYS[1])


def _reserved(probe: _Probe) -> tuple[str, ...]:
    """The markers and tags that the renderer refuses to write in a raw string."""
    example = probe.written([(_NAMES[0], {_KEYS[0]: "x", _KEYS[1]: 1})])
    known = dict.fromkeys((*probe.dialect.markers, *probe.dialect.tags, *_TAG.findall(example)))
    return tuple(text for text in known if not probe.is_verbatim(f"x{text}x"))


def _is_guarded(probe: _Probe, tag: str, reserved: tuple[str, ...]) -> bool:
    """Whether a tag that lacks a character is not written either, since it would be taken for that tag."""
    shorter = tag[: len(tag) // 2] + tag[len(tag) // 2 + 1 :]
    if not tag.startswith("<") or len(tag) < 6 or any(other in shorter for other in reserved):
        return False
    return not probe.is_verbatim(f"x{shorter}x")


# -- cutting ------------------------------------------------------------------------------------------


def _cut(text: str, kind: Kind) -> tuple[str, str] | None:
    """What stands before and after the probe's value. The last one counts: a type's name may be alike."""
    hits = list(re.finditer(_PROBES[kind][1], text))
    return (text[: hits[-1].start()], text[hits[-1].end() :]) if hits else None


def _between(text: str, left: str, right: str) -> str:
    """What stands between the last `left` and the first `right`."""
    return text[text.rindex(left) + len(left) : text.index(right)]


def _common(left: str, right: str) -> str:
    """What both begin with, not cut within a tag: half a special token would be none."""
    pairs = zip(left, right, strict=False)
    length = next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
    shared = left[:length]
    start = shared.rfind("<")
    return shared[:start] if length < len(left) and start > shared.rfind(">") else shared


def _with_index(first: str, second: str) -> str:
    """What stands between two calls, with INDEX where that is another number between the next two."""
    parts, others = (re.split(r"(\d+)", text) for text in (first, second))
    if len(parts) != len(others) or parts[::2] != others[::2]:
        return first
    return "".join(part if part == other else INDEX for part, other in zip(parts, others, strict=True))


def _numbered(text: str, join: str) -> str:
    """`text` with INDEX for a number at its beginning that `join` has there, too."""
    lead = join.split(INDEX, maxsplit=1)[0]
    return re.sub(rf"\A({re.escape(lead)})\d+", rf"\g<1>{INDEX}", text) if INDEX in join else text


def _numbered_at_end(text: str, join: str) -> str:
    trail = join.rsplit(INDEX, maxsplit=1)[-1]
    return re.sub(rf"\d+({re.escape(trail)})\Z", rf"{INDEX}\1", text) if INDEX in join else text
