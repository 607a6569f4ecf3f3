"""A turn as a `response_template` describes it.

Where no field is open, what opens one is looked for, and in reasoning only what closes it. The end of the
output closes everything. Text outside of every field is content, though the template would drop it: nothing
that a model wrote is lost. Content that has a field of its own is read alike, so that a call in it is a call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from ..dialect import Context, Grammar, Inside
from ..engine.emitter import Emitter
from ..engine.source import Reading
from ..events import Reason
from ..patterns.expression import literals
from ..patterns.program import Pattern, compile_pattern
from ..patterns.search import Match, Patterns
from .objects import NamedField, ObjectsField, QuotedField
from .shapes import ObjectArguments, ObjectCalls, TagArguments
from .tags import TagsField
from .template import Field, Template

_OUTSIDE = Field("", "content", None, None, strip=True, repeats=True)
"""What text outside of every field is in, where content has markers of its own."""

Action = Field | Reason | None
"""What a match means: a field begins, something is wrong, or it only frames the text."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is looked for in a turn. `outer` holds the text outside of the other fields."""

    outer: Field
    reasoning: Field | None
    calls: Field | None
    outside: tuple[tuple[Pattern, Action], ...]
    in_content: tuple[tuple[Pattern, Action], ...]
    in_reasoning: tuple[Pattern, ...]


def plan_of(template: Template, ends: tuple[str, ...]) -> Plan:
    """The plan for turns that end with `ends`."""
    reasoning, content = template.of_kind("reasoning"), template.of_kind("content")
    calls = template.of_kind("calls")
    outer = content if content is not None and content.open is None else _OUTSIDE
    opens: list[tuple[Pattern, Action]] = [
        (field.open, field)
        for field in (content, reasoning, calls)
        if field is not None and field.open is not None
    ]
    frames = [pattern for pattern in (outer.close, template.frame) if pattern is not None]
    tokens = _tokens(template, ends)
    others: list[tuple[Pattern, Action]] = [
        *((frame, None) for frame in frames),
        *((compile_pattern(literals((token,))), action) for token, action in tokens.items()),
    ]
    closing: list[tuple[Pattern, Action]] = []
    if content is not None and content is not outer and content.close is not None:
        closing = [(content.close, outer)]
    # Any text may be the beginning of some openings: to look for those would keep all content waiting.
    prompt = [(pattern, action) for pattern, action in opens if pattern.begins_with_token]
    drafts = [pattern for pattern, action in prompt if action is calls]
    ended = [] if reasoning is None or reasoning.close is None else [reasoning.close]
    return Plan(
        outer,
        reasoning,
        calls,
        outside=(*opens, *others),
        in_content=(*closing, *prompt, *others),
        in_reasoning=(*ended, *drafts),
    )


def _tokens(template: Template, ends: tuple[str, ...]) -> dict[str, Action]:
    """What tokens mean that are alone: those of calls show a call that went wrong.

    The one that closes reasoning is text outside of it.
    """
    frames: dict[str, Action] = dict.fromkeys((*ends, *(template.frame.tokens if template.frame else ())))
    calls: dict[str, Action] = {}
    thought: tuple[str, ...] = ()
    for field in template.fields:
        if field.kind == "calls":
            calls = dict.fromkeys(field.opens, Reason.NOT_A_CALL)
            calls |= dict.fromkeys((*field.closes, *field.quotes), Reason.STRAY_END)
        elif field.kind == "reasoning":
            frames |= dict.fromkeys(field.opens)
            thought = field.closes
        else:
            frames |= dict.fromkeys((*field.opens, *field.closes))
    shared = {token: None for token in thought if token in calls}
    return calls | frames | shared


class DeclaredTurn:
    """Reads one turn."""

    def __init__(self, context: Context, plan: Plan) -> None:
        self._context = context
        self._source = context.source
        self._emit = context.emit
        self._plan = plan

    def read(self, inside: Inside | None) -> Reading:
        """Read all of it; `inside`: the field that the prompt has left open."""
        source, emit, plan = self._source, self._emit, self._plan
        if inside == "reasoning" and plan.reasoning is not None:
            yield from self._reasoning(plan.reasoning)
        current = plan.outer
        while (yield from source.char()):
            watched = plan.outside if current is plan.outer else plan.in_content
            patterns = Patterns(source, tuple(pattern for pattern, _ in watched))
            match = yield from patterns.find(_Text(emit, current).take)
            if match is None:
                break
            match watched[match.number][1]:
                case Field(kind="calls") as field:
                    yield from self._calls(field, match)
                case Field(kind="reasoning") as field:
                    _account(emit, match.end)
                    yield from self._reasoning(field)
                case Field() as field:
                    _account(emit, match.end)
                    current = field
                case _ if (yield from self._is_cut_off(match)):
                    break
                case None:
                    _account(emit, match.end)
                case reason:
                    _account(emit, match.start)
                    emit.malformed(source.since(match.start), reason, match.end)
            source.keep_from(None)
        _account(emit, source.offset)

    def _calls(self, field: Field, opening: Match) -> Reading:
        """Read the calls in a field. `source.pos` is after `opening`, and the text is kept from there on."""
        source = self._source
        source.rewind(opening.start)
        yield from source.space()  # it frames the call and is no part of it
        start = min(source.offset, opening.end)
        source.rewind(start)
        _account(self._emit, start)
        source.keep_from(start)
        source.retain(start)
        source.pos += opening.end - start
        if (yield from source.char()):
            source.rewind(start)
            with self._emit.within("calls", start):
                yield from _calls_in(self._context, field, opening._replace(start=start)).read()
        else:  # the name in it may have been cut off, too
            self._emit.malformed(source.since(start), Reason.TRUNCATED, source.offset)
        source.release()

    def _is_cut_off(self, token: Match) -> Generator[None, None, bool]:
        """Whether the output ends in what opens a field of calls; then that is kept."""
        source, calls = self._source, self._plan.calls
        if calls is None or calls.open is None:
            return False
        source.rewind(token.start)
        source.retain(token.start)
        cut_off = yield from Patterns(source, (calls.open,)).cut_off()
        source.release()
        if cut_off:
            source.pos = len(source.text)
            _account(self._emit, token.start)
            self._emit.malformed(source.since(token.start), Reason.TRUNCATED, source.offset)
        else:
            source.rewind(token.end)
        return cut_off

    def _reasoning(self, field: Field) -> Reading:
        """Read reasoning and what closes it. Calls in it are drafts, unless it never closes."""
        source, emit = self._source, self._emit
        source.keep_from(None)
        write = _Text(emit, field).take
        patterns = Patterns(source, self._plan.in_reasoning)
        draft: int | None = None
        with emit.within("reasoning", emit.end):
            while (match := (yield from patterns.find(write))) is not None:
                if field.close is not None and match.number == 0:
                    break
                write(source.since(match.start), match.end)
                if draft is None:
                    draft = match.start
                    source.retain(draft)
        _account(emit, source.offset if match is None else match.end)
        if match is None and draft is not None:
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


def _calls_in(context: Context, field: Field, opening: Match) -> Grammar:
    """A reader for the calls of a field and what closes it, from where `opening` begins."""
    match field.shape:
        case ObjectCalls() as shape:
            return ObjectsField(context, shape, opening)
        case ObjectArguments(quote="") as shape:
            return NamedField(context, field, shape, opening)
        case ObjectArguments() as shape:
            return QuotedField(context, field, shape, opening)
        case TagArguments() as shape:
            return TagsField(context, field, shape, opening)
    raise AssertionError(field.name)


def _account(emit: Emitter, end: int) -> None:
    """What is left up to `end` only frames the rest."""
    if end > emit.end:
        emit.markup(end)
