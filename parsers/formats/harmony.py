"""A turn in OpenAI's harmony format, as gpt-oss writes it: a sequence of messages, each with a header.

    <|start|>assistant<|channel|>analysis<|message|>Let me see.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": 3}<|call|>

A message to a recipient is a call, whatever its channel; one in the analysis channel is reasoning; any other
is content, and so is text outside messages. The recipient stands behind the role or behind the channel. The
prompt ends in `<|start|>assistant`, so that the first header begins in its middle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass

from ..dialect import Context, Dialect, Inside
from ..engine.source import Reading
from ..engine.spans import Span
from ..engine.turn import MarkedTurn, Stops
from ..engine.writer import NAME
from ..events import Reason
from ..literals.near import tool_behind
from .named.block import NamedBlock
from .named.written import by_template

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
TOKENS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL)
_HEADER = (START, CHANNEL, MESSAGE)
_ENDS = (END, RETURN, CALL)

_TO = re.compile(r"to=\s*(\S*)")
_ADDRESS = " to="
_NAMESPACE = "functions."
_PEOPLE = frozenset({"assistant", "user", "all"})
"""Recipients that are no tools."""
_CHANNELS = ("analysis", "commentary", "final")
_WORDS = ("assistant", *_CHANNELS, "json", "code")
_CONTENT = frozenset({"json", "text", "python", "response", "function"})
"""What models also write behind a recipient, of what follows it."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says. `recipients`: tools, which are two only by mistake. `words`: all the rest.

    `strays`: words behind a recipient that belong there only if white space has got into its name.
    """

    role: str
    channel: str
    recipients: tuple[str, ...]
    words: tuple[str, ...]
    strays: tuple[str, ...] = ()

    @classmethod
    def of(cls, stretches: list[tuple[str, str]]) -> Header:
        """A header from its markers, each with the text behind it. The first channel counts."""
        recipients: dict[str, None] = {}
        firsts: dict[str, str] = {}
        words: list[str] = []
        strays: list[str] = []
        for marker, text in stretches:
            others = _TO.sub("", text).split()
            words += others
            firsts.setdefault(marker, others[0] if others else "")
            recipients |= dict.fromkeys(_TO.findall(text))
            _, *behind = _TO.split(text)[::2]
            strays += (
                word
                for rest in behind
                for word in rest.split()
                if word not in _WORDS and any(map(str.isalnum, word))
            )
        tools = tuple(name for name in recipients if name not in _PEOPLE)
        return cls(firsts.get(START, ""), firsts.get(CHANNEL, ""), tools, tuple(words), tuple(strays))

    @property
    def is_own(self) -> bool:
        """Whether the message is the model's own, and not an answer that it imagines."""
        return not self.role or self.role.startswith("assistant")

    @property
    def is_plain(self) -> bool:
        """Whether nothing is lost without the header, even if its last word is cut."""
        return not self.recipients and all(
            any(known.startswith(word) for known in _WORDS) for word in self.words
        )


class HarmonyTurn(MarkedTurn):
    """Reads one turn, as the top of this file describes it."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._stops = Stops(dict.fromkeys(TOKENS, ()))

    def read(self, inside: Inside | None) -> Reading:
        """Read the whole turn. `inside`: the prompt has left an analysis message open."""
        source, emit = self._source, self._emit
        if inside == "reasoning":
            yield from self._analysis()
        elif (yield from self._addressed()):
            yield from self.message()
        while True:
            yield from self.bare_calls()
            marker = yield from self._stretch(emit.text, self._stops)
            if not marker:
                return
            if marker in _HEADER:
                yield from self.message()
            else:
                source.pos += len(marker)
                self._between(marker)

    def _addressed(self) -> Generator[None, None, bool]:
        """Whether the output begins with the recipient of a header whose role stands in the prompt."""
        source = self._source
        if not (yield from source.ahead((_ADDRESS,))):
            return False
        start = source.offset
        source.keep_from(start)
        source.pos += len(_ADDRESS)
        name = yield from source.run(NAME)
        if (yield from source.either((" ",))):
            yield from source.run(NAME)
        addressed = (yield from source.marker((CHANNEL, CONSTRAIN, MESSAGE))) != ""
        ended = not (yield from source.char()) or any(map(source.cut_marker, TOKENS))
        source.rewind(start)
        source.keep_from(None)
        return addressed or (ended and name.startswith(_NAMESPACE))

    def _between(self, marker: str) -> None:
        """What a marker that has been read means outside headers."""
        if marker in _ENDS:
            self._emit.markup(self._source.offset)
        else:
            self._emit.malformed(marker, Reason.STRAY_END, self._source.offset)

    def message(self) -> Reading:
        """Read a message from the first marker of its header on."""
        source, emit = self._source, self._emit
        start = source.offset
        source.keep_from(start)
        header = yield from self._header()
        if (yield from source.marker((MESSAGE,))):
            source.pos += len(MESSAGE)
            yield from self._body(header, start)
        elif header.is_plain:
            emit.markup(source.offset)
        else:  # without its end it is no header, and so announces no call [headless-message] [torn-attribute]
            ended = not (yield from source.char())
            raw = source.since(start)
            cut = not header.recipients or raw.endswith(header.recipients[-1])
            name = None if cut or len(header.recipients) > 1 else self._tool(header.recipients[0])
            emit.malformed(raw, Reason.TRUNCATED if ended else Reason.SYNTAX, source.offset, name or None)
        source.keep_from(None)

    def _tool(self, recipient: str, strays: tuple[str, ...] = ()) -> str:
        """The tool that a recipient names, "" if it is none [torn-attribute].

        White space in it, and the name of the channel behind it, leave one reading if that is declared.
        """
        tools = self._context.tools
        name = recipient.removeprefix(_NAMESPACE)
        if strays:
            joined = (recipient + "".join(strays)).removeprefix(_NAMESPACE)
            if joined in tools:
                return joined
            return name if name in tools and _CONTENT.issuperset(map(str.lower, strays)) else ""
        for channel in _CHANNELS if name not in tools else ():
            if name.endswith(channel) and name.removesuffix(channel) in tools:
                return name.removesuffix(channel)
        if name not in tools and (meant := tool_behind(_NAMESPACE, recipient, tools)):
            return meant
        return name if name != recipient or name in tools else ""

    def _header(self) -> Generator[None, None, Header]:
        """Read up to the marker that ends or breaks off the header, or to the end of the output."""
        source = self._source
        stretches: list[tuple[str, str]] = []
        called, channel = False, ""
        marker = yield from source.marker((START, CHANNEL))
        while marker or not stretches:
            begin = source.offset
            source.pos += len(marker)
            text = yield from self._words()
            if marker == CHANNEL and called and not text.startswith(channel):
                source.rewind(begin)  # a second channel: the call was cut off here, the next message begins
                break
            stretch = Header.of([(marker or START, text)])
            called, channel = called or stretch.recipients != (), channel or stretch.channel
            stretches.append((marker or START, text))
            marker = yield from source.marker((CHANNEL, CONSTRAIN))
        return Header.of(stretches)

    def _words(self) -> Generator[None, None, str]:
        """Read up to the next marker, and behind one that the end of the output cuts off."""
        source = self._source
        start = source.offset
        while True:
            yield from source.run(source.unmarked)
            if not (yield from source.char()) or (yield from source.marker(TOKENS)):
                return source.since(start)
            if any(map(source.cut_marker, TOKENS)):
                text = source.since(start)
                source.pos = len(source.text)
                return text
            source.pos += 1

    def _body(self, header: Header, start: int) -> Reading:
        """Read the message that the header announces. `start`: where the header began."""
        tools = [self._tool(recipient, header.strays) for recipient in header.recipients]
        if not header.is_own or len(tools) > 1 or "" in tools:
            yield from _Foreign(self._context).keep(start)
        elif tools:
            self.has_content()
            with self._emit.within("calls", start):
                yield from _Arguments(self._context, tools[0], header.recipients[0]).read_behind(start)
        else:
            self._emit.markup(self._source.offset)
            self._source.keep_from(None)
            if header.channel.startswith("analysis"):
                yield from self._analysis()
            else:  # JSON in it is an answer
                self.has_content()
                yield from self._text(self._emit.text)

    def _analysis(self) -> Reading:
        with self._emit.within("reasoning", self._emit.end):
            yield from self._text(self._emit.reasoning)

    def _text(self, write: Callable[[str, int], None]) -> Reading:
        """Read a message of text up to behind its end, or to the header of the next one."""
        source = self._source
        while marker := (yield from self._stretch(write, self._stops)):
            if marker in (START, CHANNEL):
                # In reasoning, its end was lost, or the call that follows is a draft.
                self._emit.amiss |= self._emit.place == "reasoning"
                return
            source.pos += len(marker)
            self._between(marker)
            if marker in _ENDS:
                return


class _Message(NamedBlock):
    """A message that is no text, behind its header."""

    def __init__(self, context: Context) -> None:
        # In a string, too, another message shows that this one was cut off [headless-message].
        super().__init__(context, Span(MESSAGE, START, closes=(CHANNEL,)), _ENDS, (CHANNEL,))


class _Arguments(_Message):
    """A message that is a call."""

    def __init__(self, context: Context, name: str, recipient: str) -> None:
        super().__init__(context)
        self._name = name
        self.renamed = recipient not in (name, f"{_NAMESPACE}{name}")

    def name(self) -> Generator[None, None, str]:
        """The name stood in the header."""
        return self._name
        yield

    def read_behind(self, start: int) -> Reading:
        """Read the call whose header began at `start`. Text behind it is content."""
        source = self.source
        self.emit.markup(source.offset)
        yield from self.call(start)
        end = source.offset
        yield from source.space()
        closed = yield from self.passed(*_ENDS)
        if any(map(source.cut_marker, TOKENS)):
            source.pos = len(source.text)
        if not closed and (yield from source.char()) and not (yield from self.at_terminator()):
            source.rewind(end)
            self.emit.malformed("", Reason.MISSING_END, end)
        elif source.offset > self.emit.end:
            self.emit.markup(source.offset)


class _Foreign(_Message):
    """A message that is not the model's, or goes to two recipients, or to one that is no function."""

    def keep(self, start: int) -> Reading:
        """Keep all of it. `start`: where its header began."""
        source = self.source
        yield from self.skip_to_terminator()
        yield from self.passed(*_ENDS)
        self.emit.malformed(source.since(start), Reason.NOT_A_CALL, source.offset)


HARMONY = Dialect(
    name="harmony",
    reasoning=Span("<|channel|>analysis<|message|>", END),
    calls=Span(START, CALL),
    ends=(RETURN, CALL, END),
    turn=HarmonyTurn,
    slips=(CHANNEL,),
    inner=(CONSTRAIN, MESSAGE),
    renderers={
        "role": by_template(
            "<|start|>assistant to=functions.{name}<|channel|>commentary json<|message|>{arguments}<|call|>"
        ),
        "channel": by_template(
            "<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json"
            "<|message|>{arguments}<|call|>"
        ),
    },
    header=START,
    aliases=("gpt-oss",),
)
"""gpt-oss: the first notation is that of its template, the second that of its generations."""

ALL = (HARMONY,)
