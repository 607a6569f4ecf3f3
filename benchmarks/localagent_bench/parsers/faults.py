"""Further faults, each with its rule for what is then the same call.

Knows what each fault does to a text and to the words of its calls. A parser is not blamed for words that the
fault itself has misspelt: that is what the model wrote. Nothing is allowed for beyond that, and where a
fault spells nothing differently, a call has to be read as it was meant.

The faults of `outputs` are those of the published figures; these are counted beside them.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localagent.parsers import DIALECTS
from localagent_bench.parsers.corpora import AskedCalls, Call
from localagent_bench.parsers.judging import Own, Same, edited, folded, is_own
from localagent_bench.parsers.outputs import PROMPTED, Output, with_draft

Change = Callable[[Output, AskedCalls, random.Random], str | Output | None]
"""What becomes of an output: its text, or more of it; None where it has no place for the fault."""

_CHARACTERS = "aeknrst019_-\"',:=)]}>({[<|/\\ \n"
_INVISIBLE = "\u00a0\u00ad\u200b\u200d\u2060\ufeff"
_BLANKS = (" ", "  ", "\n", "\t", "\n\n  ")
_PROSE = (
    ' Hmm, that is "not" what they want (is it?), so I\'ll ask: which of [these] do you mean?',
    " - no, wait. I can't look that up: {nothing} here is 'current'.",
)
_CURLED = str.maketrans("\u201c\u201d\u2018\u2019", "\"\"''")
_FENCES = (
    *((f"```{language}\n", "\n```") for language in ("", "json", "xml", "python")),
    *(("**", "**"), ("`", "`")),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault. `told`: what it does, for people."""

    told: str
    change: Change
    same: Same | None = None
    """Whether a call is the one that was written, in the model's own words; None: no word may differ."""
    before: bool = False
    """The calls of the output may stand whole in front of those that have to be read."""


@dataclass(frozen=True, slots=True)
class Faulty:
    """An output with a fault in it."""

    fault: str
    output: Output
    """With the calls that have to be read."""
    before: Sequence[Call] = ()
    """Calls that may be read in front of those."""


def with_further_fault(output: Output, fault: str, other: AskedCalls, draw: random.Random) -> Faulty | None:
    """The output with a fault in it; None where there is no place for one. `other` has another call."""
    kind = FURTHER[fault]
    changed = kind.change(output, other, draw) if output.text else None
    if changed is None:
        return None
    broken = replace(output, text=changed) if isinstance(changed, str) else changed
    return Faulty(fault, broken, output.calls if kind.before else ())


# -- characters -------------------------------------------------------------------------------------------


def _put(text: str, place: int, what: str) -> str:
    return text[:place] + what + text[place:]


def _inserted(output: Output, other: AskedCalls, draw: random.Random) -> str:
    return _put(output.text, draw.randrange(len(output.text) + 1), draw.choice(_CHARACTERS))


def _edit(text: str, draw: random.Random) -> str:
    place = draw.randrange(len(text))
    put = draw.choice(("", text[place] * 2, draw.choice(_CHARACTERS), text[place] + draw.choice(_CHARACTERS)))
    return text[:place] + put + text[place + 1 :]


def _two(output: Output, other: AskedCalls, draw: random.Random) -> str | None:
    return _edit(_edit(output.text, draw), draw) if len(output.text) > 1 else None


def _swapped(output: Output, other: AskedCalls, draw: random.Random) -> str | None:
    """Two neighbours that are not alike."""
    text = output.text
    places = [place for place in range(len(text) - 1) if text[place] != text[place + 1]]
    if not places:
        return None
    place = draw.choice(places)
    return text[:place] + text[place + 1] + text[place] + text[place + 2 :]


def _span(output: Output, other: AskedCalls, draw: random.Random) -> str | None:
    length = draw.randint(2, 12)
    if length >= len(output.text):
        return None
    place = draw.randrange(len(output.text) - length)
    return output.text[:place] + output.text[place + length :]


def _space(output: Output, other: AskedCalls, draw: random.Random) -> str:
    return _put(output.text, draw.randrange(len(output.text) + 1), draw.choice(_BLANKS))


def _tag(output: Output, other: AskedCalls, draw: random.Random) -> str | None:
    """White space within something in brackets that is no list: a tag, or a marker."""
    tags = [*re.finditer(r"[<\[][^<>\[\]\s\"',{}]{2,60}[>\]]", output.text)]
    if not tags:
        return None
    tag = draw.choice(tags)
    return _put(output.text, draw.randrange(tag.start() + 1, tag.end()), draw.choice(" \n"))


def _invisible(output: Output, other: AskedCalls, draw: random.Random) -> str:
    end = len(output.text)
    return _put(output.text, draw.choice((0, draw.randrange(end + 1), end)), draw.choice(_INVISIBLE))


def _crlf(output: Output, other: AskedCalls, draw: random.Random) -> str | None:
    return output.text.replace("\n", "\r\n") if "\n" in output.text else None


def _quotes(output: Output, other: AskedCalls, draw: random.Random) -> str | None:
    """Quotes as word processors write them: one of them, two that follow each other, or all."""
    places = [match.start() for match in re.finditer("[\"']", output.text)]
    if not places:
        return None
    first = draw.randrange(len(places))
    places = draw.choice((places, places[first : first + 1], places[first : first + 2]))
    text = [*output.text]
    for number, place in enumerate(places):
        text[place] = {'"': "\u201c\u201d", "'": "\u2018\u2019"}[text[place]][number % 2]
    return "".join(text)


# -- markers ----------------------------------------------------------------------------------------------


def _markers(output: Output) -> list[tuple[int, int]]:
    """Where the format's markers and tags stand."""
    table = DIALECTS[output.dialect]
    marks = sorted(filter(str.strip, (*table.markers, *table.tags)), key=len, reverse=True)
    return [match.span() for match in re.finditer("|".join(map(re.escape, marks)) or "(?!)", output.text)]


def _marker(put: Callable[[str, Output, random.Random], str]) -> Change:
    """Something in place of a marker or a tag."""

    def change(output: Output, other: AskedCalls, draw: random.Random) -> str | None:
        places = _markers(output)
        if not places:
            return None
        start, end = draw.choice(places)
        return output.text[:start] + put(output.text[start:end], output, draw) + output.text[end:]

    return change


def _twice(marker: str, output: Output, draw: random.Random) -> str:
    return marker + draw.choice(("", " ", "\n")) + marker


def _another(marker: str, output: Output, draw: random.Random) -> str:
    return draw.choice([mark for mark in DIALECTS[output.dialect].markers if mark.strip() and mark != marker])


def _fence(output: Output, other: AskedCalls, draw: random.Random) -> str:
    """Markdown around the whole, or around what is between the first marker and the last one."""
    before, after = draw.choice(_FENCES)
    places = _markers(output)
    start, end = 0, len(output.text)
    if len(places) > 1 and draw.random() < 0.4:
        start, end = places[0][1], places[-1][0]
    return output.text[:start] + before + output.text[start:end] + after + output.text[end:]


# -- the course of a turn ---------------------------------------------------------------------------------


def _anywhere(output: Output, draw: random.Random) -> int:
    return draw.randrange(1, len(output.text)) if len(output.text) > 1 else 1


def _anew(output: Output) -> str:
    """The output as it is written where the prompt has not begun it."""
    return PROMPTED.get(output.dialect, "") + output.text


def _prose(output: Output, other: AskedCalls, draw: random.Random) -> str:
    return output.text[: _anywhere(output, draw)] + draw.choice(_PROSE)


def _prose_closed(output: Output, other: AskedCalls, draw: random.Random) -> str:
    """As before, but for the last characters of the output, which mostly are its closing markers."""
    place = _anywhere(output, draw)
    tail = draw.randint(1, min(24, max(1, len(output.text) - place)))
    return output.text[:place] + draw.choice(_PROSE) + output.text[-tail:]


def _restarted(output: Output, other: AskedCalls, draw: random.Random) -> str:
    between = draw.choice(("", "\n", "\n\nLet me try again.\n"))
    return output.text[: _anywhere(output, draw)] + between + _anew(output)


def _name_cut(output: Output, other: AskedCalls, draw: random.Random) -> str | None:
    """Cut within the name of the first call, and begun again."""
    name = output.calls[0][0] if output.calls else ""
    start = output.text.find(name)
    if len(name) < 2 or start < 0:
        return None
    return (
        output.text[: draw.randrange(start + 1, start + len(name))] + draw.choice(("", "\n")) + _anew(output)
    )


def _inside(output: Output, other: AskedCalls, draw: random.Random) -> Output | None:
    """Calls of other tools begin anywhere in the output, which does not go on."""
    declared = {tool["function"]["name"] for tool in output.tools}
    table = DIALECTS[output.dialect]
    if output.how not in table.renderers or declared & {tool["function"]["name"] for tool in other.tools}:
        return None
    try:
        calls = table.render(other.calls, output.how)
    except ValueError:
        return None
    return replace(
        output,
        text=output.text[: _anywhere(output, draw)] + calls,
        calls=other.calls,
        tools=[*output.tools, *other.tools],
    )


def _again(output: Output, other: AskedCalls, draw: random.Random) -> str:
    """The output, and the beginning of the same."""
    anew = _anew(output)
    return output.text + draw.choice(("", "\n", "\n\n")) + anew[: draw.randint(1, len(anew))]


def _unclosed(output: Output, other: AskedCalls, draw: random.Random) -> str | None:
    span = DIALECTS[output.dialect].reasoning
    if span is None or not span.open or output.inside:
        return None
    return span.open + draw.choice(("", "\nThis needs a tool.", "They ask for it, so:\n\n")) + _anew(output)


def _half_draft(output: Output, other: AskedCalls, draw: random.Random) -> Output | None:
    return with_draft(output, other, draw)


# -- what counts as the same call -------------------------------------------------------------------------


_BLANKLESS = folded(lambda word: "".join(word.split()))


def _by(own: Own) -> Same:
    return lambda got, due: is_own(got, due, own)


def _interrupted(words: Sequence[tuple[str, str]]) -> bool:
    """At most one word, which goes on with the sentence, and perhaps with its own end."""

    def is_sentence_in(word: str, meant: str) -> bool:
        for prose in _PROSE:
            head, broken, tail = word.partition(prose.strip())
            if broken and meant.startswith(head.rstrip()) and meant.endswith(tail):
                return True
        return False

    return len(words) <= 1 and all(is_sentence_in(*pair) for pair in words)


def _shortened(words: Sequence[tuple[str, str]]) -> bool:
    """At most one word, which has lost some characters that stood together."""

    def is_rest(word: str, meant: str) -> bool:
        lost = len(meant) - len(word)
        return lost > 0 and any(
            meant[:place] + meant[place + lost :] == word for place in range(len(word) + 1)
        )

    return len(words) <= 1 and all(is_rest(*pair) for pair in words)


def _is_shortened(got: Call, due: Call) -> bool:
    """As `_shortened`; a list is one word, of which the rest is the list that was written."""

    def flat(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: flat(item) for key, item in value.items()}
        return json.dumps(value) if isinstance(value, list) else value

    return is_own((got[0], flat(got[1])), (due[0], flat(due[1])), _shortened)


FURTHER: dict[str, Fault] = {
    "inserted": Fault("a character put in", _inserted, _by(edited(1, 1))),
    "two": Fault("two characters lost, doubled, changed or put in", _two, _by(edited(2, 2))),
    "swapped": Fault("two neighbours swapped", _swapped, _by(edited(2, 2))),
    "span": Fault("2 to 12 characters lost", _span, _is_shortened),
    "space": Fault("white space put in", _space, _by(_BLANKLESS)),
    "tag": Fault("white space in a tag or marker", _tag, _by(_BLANKLESS)),
    "invisible": Fault(
        "a character put in that nobody sees",
        _invisible,
        _by(folded(lambda word: re.sub(f"[{_INVISIBLE}]", "", word).strip())),
    ),
    "crlf": Fault(r"each \n as \r\n", _crlf, _by(folded(lambda word: word.replace("\r", "")))),
    "quotes": Fault("typographic quotes", _quotes, _by(folded(lambda word: word.translate(_CURLED)))),
    "marker-lost": Fault("a marker or tag lost", _marker(lambda *_: "")),
    "marker-doubled": Fault("one written twice", _marker(_twice)),
    "marker-changed": Fault("another marker in its place", _marker(_another)),
    "fence": Fault("Markdown around the call, or within its markers", _fence),
    "prose": Fault("cut off, then a sentence", _prose),
    "prose-closed": Fault("the same, then the closing markers", _prose_closed, _by(_interrupted)),
    "restarted": Fault("cut off, then begun again", _restarted, before=True),
    "name-cut": Fault("cut off within a name, then begun again", _name_cut),
    "inside": Fault("cut off by calls of other tools", _inside, before=True),
    "again": Fault("followed by its own beginning", _again, before=True),
    "unclosed": Fault("reasoning before it that is never closed", _unclosed),
    "half-draft": Fault("a draft cut off in the reasoning before", _half_draft),
}
FURTHER_TOLD = "; ".join(f"{name}: {fault.told}" for name, fault in FURTHER.items())
