"""A turn as Meta's Muse writes it: messages with a recipient, those to a tool with a block of tags in them.

     to=self<|message|>I should look.<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>
    <atem:invoke name="get_weather">
    <atem:parameter name="city">Paris</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eot|>

A message to `self` is reasoning, one to the user or to nobody is content, any other is for a tool, and the
name in its block counts. The prompt ends in `<|start|>assistant`, so that the first header begins in its
middle. At times the recipient is wrong: a message to the user that holds nothing but a call of a declared
tool is that call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace

from ..dialect import Calls, Context, Dialect, Inside
from ..engine.driver import Call
from ..engine.faults import Fault
from ..engine.source import Reading
from ..engine.spans import Span
from ..engine.turn import MarkedTurn, Stops
from ..events import Reason
from ..literals.raw import stops_at
from ..literals.writer import RawWriter
from .tags.block import TagBlock
from .tags.call import TagCall
from .tags.shape import Shape
from .tags.written import Tags

START, MESSAGE, END, TURN_END = "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"
_ENDS = (TURN_END, END, "<|end_of_text|>")
_TOKENS = (START, MESSAGE, *_ENDS)
_ADDRESSES = (" to=", "to=")
_TO = re.compile(r"to=\s*(\S*)")
_RECIPIENT = re.compile(r"[^\s<]*")
_PEOPLE = frozenset({"user", "assistant", "all"})
"""Recipients that are no tools."""
_SELF = "self"
_WORDS = ("assistant", _SELF, *_PEOPLE)
_NAME = re.compile(r'[^"<>\n]*')

_BLOCK = Span("<atem:function_calls>", "</atem:function_calls>")
ATEM = Shape("<atem:invoke name=", "</atem:invoke>", "<atem:parameter name=", "</atem:parameter>", quote='"')


class MuseTurn(MarkedTurn):
    """Reads one turn, as the top of this file describes it."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._stops = Stops(dict.fromkeys(_TOKENS, ()))

    def read(self, inside: Inside | None) -> Reading:
        """Read the whole turn. `inside`: the prompt has left a message to the model itself open."""
        source, emit = self._source, self._emit
        if inside == "reasoning":
            with emit.within("reasoning", 0):
                yield from self._text(emit.reasoning)
        elif (yield from self._addressed()):
            yield from self._message()
        while True:
            yield from self.bare_calls()
            marker = yield from self._stretch(emit.text, self._stops)
            if not marker:
                return
            if marker in (START, MESSAGE):
                yield from self._message()
            else:
                source.pos += len(marker)
                emit.markup(source.offset)

    def _addressed(self) -> Generator[None, None, bool]:
        """Whether the output begins with the recipient of a header whose role stands in the prompt."""
        source = self._source
        start = source.offset
        source.keep_from(start)
        address = yield from source.either(_ADDRESSES)
        name = (yield from source.run(_RECIPIENT)) if address else ""
        addressed = name != "" and (yield from source.marker((MESSAGE,))) != ""
        ended = name != "" and (not (yield from source.char()) or source.cut_marker(MESSAGE))
        source.rewind(start)
        source.keep_from(None)
        return addressed or (ended and address == _ADDRESSES[0])

    def _message(self) -> Reading:
        """Read a message from its header on."""
        source, emit = self._source, self._emit
        start = source.offset
        source.keep_from(start)
        source.pos += len((yield from source.marker((START,))))
        header = yield from self._header()
        named = tuple(dict.fromkeys(_TO.findall(header)))
        role, *rest = _TO.sub("", header).split() or [""]
        complete = yield from source.marker((MESSAGE,))
        source.pos += len(complete)
        own = not role or "assistant".startswith(role) or role.startswith("assistant")
        if not complete:
            words = [*named, role, *rest]
            if all(any(known.startswith(word) for known in _WORDS) for word in words):
                emit.markup(source.offset)
            else:
                reason = Reason.SYNTAX if (yield from source.char()) else Reason.TRUNCATED
                emit.malformed(source.since(start), reason, source.offset)
            source.keep_from(None)
        elif not own or len(named) > 1:
            yield from self._foreign(start)
        elif named == (_SELF,):
            emit.markup(source.offset)
            source.keep_from(None)
            with emit.within("reasoning", start):
                yield from self._text(emit.reasoning)
        elif named and named[0] not in _PEOPLE:
            self.has_content()
            with emit.within("calls", start):
                yield from self._calls(start, named[0])
        else:
            self.has_content()  # JSON in it is an answer
            emit.markup(source.offset)
            if (yield from self._is_call()):
                yield from AtemBlock(self._context, "").read()
            else:
                source.keep_from(None)
                yield from self._text(emit.text)

    def _header(self) -> Generator[None, None, str]:
        """Read up to the next marker, and behind one that the end of the output cuts off."""
        source = self._source
        start = source.offset
        while True:
            yield from source.run(source.unmarked)
            if not (yield from source.char()) or (yield from source.marker(_TOKENS)):
                return source.since(start)
            if any(map(source.cut_marker, _TOKENS)):
                text = source.since(start)
                source.pos = len(source.text)
                return text
            source.pos += 1

    def _calls(self, start: int, recipient: str) -> Reading:
        """Read a message to a tool, or keep what is none. `start`: where its header began."""
        source, emit = self._source, self._emit
        body = source.offset
        yield from source.space()
        tags = (_BLOCK.open, ATEM.call)
        if (yield from source.ahead(tags)):
            source.rewind(body)
            emit.markup(body)
            yield from source.space()
            yield from AtemBlock(self._context, recipient).read()
        elif source.ended and any(tag.startswith(source.text[source.pos :]) for tag in tags):
            source.pos = len(source.text)
            emit.malformed(source.since(start), Reason.TRUNCATED, source.offset)
        else:
            yield from self._foreign(start)
            return
        source.keep_from(None)

    def _foreign(self, start: int) -> Reading:
        """Keep a message that is no call: not the model's own, to two recipients, or without a block."""
        source = self._source
        while True:
            yield from source.run(source.unmarked)
            if not (yield from source.char()) or (marker := (yield from source.marker((START, *_ENDS)))):
                break
            source.pos += 1
        ended = not (yield from source.char())
        if not ended and marker != START:
            source.pos += len(marker)
        self._emit.malformed(source.since(start), Reason.NOT_A_CALL, source.offset)
        source.keep_from(None)

    def _text(self, write: Callable[[str, int], None]) -> Reading:
        """Read a message of text up to behind its end, or to the header of the next one."""
        source = self._source
        while marker := (yield from self._stretch(write, self._stops)):
            if marker == START:
                # In reasoning, its end was lost, or the call that follows is a draft.
                self._emit.amiss |= self._emit.place == "reasoning"
                return
            source.pos += len(marker)
            if marker == MESSAGE:
                self._emit.malformed(marker, Reason.STRAY_END, source.offset)
            else:
                self._emit.markup(source.offset)
                return

    def _is_call(self) -> Generator[None, None, bool]:
        """Whether the message that begins here is nothing but a block with a call of a declared tool."""
        source, tools = self._source, self._context.tools
        if not tools:
            return False
        start = source.offset
        is_call = False
        yield from source.space()
        if (yield from source.either((_BLOCK.open,))):
            yield from source.space()
            if (yield from source.either((ATEM.call + ATEM.quote,))):
                name = yield from source.run(_NAME)
                is_call = resolved(name, tools) in tools and (yield from self._block_ends())
        source.rewind(start)
        return is_call

    def _block_ends(self) -> Generator[None, None, bool]:
        """Read on to the end of a block; whether the message ends there, too."""
        source = self._source
        while (yield from _MESSAGE_STOPS.skip(source)) == _BLOCK.close:
            source.pos += len(_BLOCK.close)
            if not (yield from source.space()) or (yield from source.marker((START, *_ENDS))):
                return True
        return False


_MESSAGE_STOPS = stops_at((_BLOCK.close, START, *_ENDS))


def resolved(name: str, tools: Iterable[str]) -> str:
    """The declared tool that is meant: models call `read` through a namespace of its own, `read.read`."""
    space, _, rest = name.partition(".")
    return rest if name not in tools and rest in tools and rest.partition(".")[0] == space else name


class AtemCall(TagCall):
    """One call in a message. `recipient`: that of the message, "" where it does not matter."""

    def __init__(self, context: Context, recipient: str) -> None:
        super().__init__(context, ATEM)
        self._recipient = resolved(recipient, context.tools)
        self._tools = context.tools

    def opening(self) -> Generator[None, None, tuple[str, bool]]:
        """Read the name. The token that ends a header may have got into it, or in place of its end."""
        source = self.source
        if not (yield from source.either((ATEM.quote,))):
            raise Fault(Reason.SYNTAX)
        written = yield from source.run(_NAME)
        fumbled = False
        while (yield from source.either((MESSAGE,))):
            fumbled = True
            written += yield from source.run(_NAME)
        name = resolved(written.strip(), self._tools)
        if not (yield from source.either((f"{ATEM.quote}>",))):
            yield from source.space()
            if not fumbled or not (yield from source.ahead((ATEM.parameter, ATEM.call_end))):
                raise Fault(Reason.SYNTAX)
        if self._recipient != name and self._recipient in self._tools and name in self._tools:
            raise Fault(Reason.NOT_A_CALL)  # either may be meant
        return name, fumbled or name != written


class AtemBlock(TagBlock):
    """The block of a message to a tool. `recipient`: that of the message, "" where it does not matter."""

    def __init__(self, context: Context, recipient: str) -> None:
        super().__init__(replace(context, dialect=_PAYLOAD), ATEM)
        self._recipient = recipient

    def call(self) -> AtemCall:
        """A reader for the next call. Only the first is the one that the message is addressed to."""
        recipient, self._recipient = self._recipient, ""
        return AtemCall(self.context, recipient)

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """Go on as behind any tags; what is no call stays none, unless the output ends there."""
        final = fault.reason is Reason.NOT_A_CALL
        reason = yield from super().leave(call, fault)
        return fault.reason if final and (yield from self.source.char()) else reason


def render_messages(span: Span, markers: Iterable[str], calls: Calls) -> str:
    """A message for each call. Raises ValueError for what no call can hold."""
    layout = Tags(ATEM)
    writer = RawWriter((*markers, *layout.tags, *_BLOCK.markers))
    messages = []
    for name, arguments in calls:
        writer.check_name(name)
        tags = layout.write(writer, name, arguments)
        messages.append(f"{START}assistant to={name}{MESSAGE}{_BLOCK.open}\n{tags}\n{_BLOCK.close}")
    return f"{END.join(messages)}{TURN_END}"


MUSE = Dialect(
    name="muse",
    reasoning=Span(f"{START}assistant to={_SELF}{MESSAGE}", END),
    calls=Span(START, TURN_END),
    ends=_ENDS,
    turn=MuseTurn,
    inner=(MESSAGE,),
    renderers={"tags": render_messages},
    header=START,
    tags=(*_BLOCK.markers, *ATEM.tags),
    aliases=("muse-glimmer", "atem", "onyx"),
)
_PAYLOAD = replace(MUSE, calls=_BLOCK, ends=(*_ENDS, START))
"""The same, as the grammar of the tags sees it."""

ALL = (MUSE,)
