"""A turn as a `response_template` describes it.

Outside of the fields, what opens one of them is looked for; inside a field, only what closes it. The end of the
output closes the field that is open. What stands outside of every field is content, though the template would
drop it: nothing that a model wrote is lost.
"""

from __future__ import annotations

from collections.abc import Callable

from parsers.declared.calls import read_calls
from parsers.declared.template import Field, Template
from parsers.dialect import Context, Inside
from parsers.engine.emitter import Emitter
from parsers.engine.source import Reading
from parsers.events import Reason
from parsers.patterns import Found, Patterns, compile_pattern, literals


class DeclaredTurn:
    """Reads one turn."""

    def __init__(self, context: Context, template: Template) -> None:
        self._context = context
        self._source = context.source
        self._emit = context.emit
        self._template = template
        self._fields = sorted(
            (field for field in template.fields if field.open), key=lambda field: field.name
        )
        outer = next((field for field in template.fields if field.open is None), None)
        self._outer = Field("", "content", None, None, strip=True, repeats=True) if outer is None else outer
        opens = [field.open for field in self._fields if field.open is not None]
        frames = [frame for frame in (self._outer.close, template.frame) if frame is not None]
        parts, self._strays = _parts(template, context.dialect.ends)
        frames += [compile_pattern(literals((token,))) for token in parts]
        strays = [compile_pattern(literals((token,))) for token in self._strays]
        self._first_stray = len(opens) + len(frames)
        self._outside = Patterns(context.source, [*opens, *frames, *strays])

    def read(self, inside: Inside | None) -> Reading:
        """See `Turn`."""
        source, emit = self._source, self._emit
        if inside == "reasoning":
            yield from self._text(self._template.of_kind("reasoning")[0])
        while (yield from source.char()):
            found = yield from self._outside.find(_Text(emit, self._outer).take)
            if found is None:
                break
            if found.number < len(self._fields):
                yield from self._field(self._fields[found.number], found)
            elif found.number < self._first_stray:
                _account(emit, found.end)
            else:
                _account(emit, found.start)
                raw = source.since(found.start)
                emit.malformed(raw, self._strays[raw], found.end)
            source.keep_from(None)
        _account(emit, source.offset)

    def _field(self, field: Field, opening: Found) -> Reading:
        """Read a field. `source.pos` is after `opening`, and the text is kept from there on."""
        source, emit = self._source, self._emit
        if field.kind != "calls":
            _account(emit, opening.end)
            yield from self._text(field)
            return
        source.rewind(opening.start)
        yield from source.space()  # it frames the call and is no part of it
        start = min(source.offset, opening.end)
        source.rewind(start)
        _account(emit, start)
        source.keep_from(start)
        source.retain(start)
        yield from read_calls(self._context, field, opening._replace(start=start))
        source.release()

    def _text(self, field: Field) -> Reading:
        """Read the text of a field and what closes it. Calls in reasoning are drafts, unless it never closes."""
        source, emit = self._source, self._emit
        source.keep_from(None)
        write = _Text(emit, field).take
        ends = [] if field.close is None else [field.close]
        calls = self._template.of_kind("calls") if field.kind == "reasoning" else ()
        drafts = Patterns(source, [*ends, *(field.open for field in calls if field.open is not None)])
        draft: int | None = None
        while (found := (yield from drafts.find(write))) is not None and found.number == len(ends):
            write(source.since(found.start), found.end)
            if draft is None:
                draft = found.start
                source.retain(draft)
        _account(emit, source.offset)
        if found is None and draft is not None:
            emit.malformed(source.since(draft), Reason.CALL_IN_REASONING, source.offset)
        source.release()
        source.keep_from(None)


class _Text:
    """Writes the text of a field, without white space at its ends unless the template wants it."""

    def __init__(self, emit: Emitter, field: Field) -> None:
        self._emit = emit
        self._write: Callable[[str, int], None] = emit.reasoning if field.kind == "reasoning" else emit.text
        self._strip = field.strip
        self._begun = False
        self._blank = ""  # white space that counts if text follows it

    def take(self, text: str, end: int) -> None:
        """Write a piece, which ends at the offset `end`."""
        if not self._strip:
            self._write(text, end)
            return
        if not self._begun:
            text = text.lstrip()
            _account(self._emit, end - len(text))
        text = self._blank + text
        body = text.rstrip()
        self._blank = text[len(body) :]
        if body:
            self._begun = True
            self._write(body, end - len(self._blank))


def _account(emit: Emitter, end: int) -> None:
    """What is left up to `end` only frames the rest."""
    if end > emit.end:
        emit.markup(end)


def _parts(template: Template, ends: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, Reason]]:
    """The tokens of which a single one can stand outside of all fields: those that frame text, and those of calls."""
    calls: dict[str, Reason] = {}
    frames = dict.fromkeys(ends)
    thought: set[str] = set()
    for field in template.fields:
        opens = () if field.open is None else field.open.tokens
        closes = () if field.close is None else field.close.tokens
        if field.kind == "calls":
            calls |= dict.fromkeys(opens, Reason.NOT_A_CALL) | dict.fromkeys(closes, Reason.STRAY_END)
        elif field.kind == "reasoning":
            frames |= dict.fromkeys(opens)
            thought |= set(closes)  # what closes reasoning is content where there is none
        else:
            frames |= dict.fromkeys((*opens, *closes))
    strays = {token: reason for token, reason in calls.items() if token not in frames}
    frames |= dict.fromkeys(thought & strays.keys())
    return tuple(frames), {token: reason for token, reason in strays.items() if token not in frames}
