"""Calls as a name, a separator and a JSON object of arguments: Kimi K2, DeepSeek and Mistral.

The name is known before the arguments begin, and the object's own brace completes the call, since the marker
behind it is often a stop token, which is not printed. What an object may look like is the business of
`literals.object_call`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterable
from dataclasses import replace

from ..dialect import Calls, Context, Dialect, Render
from ..engine.faults import Fault
from ..engine.source import Reading
from ..engine.spans import NOWHERE, THINK, Span
from ..engine.writer import NAME
from ..events import MAX_DEPTH, Reason
from ..literals.block import LiteralBlock
from ..literals.object_call import JsonCall
from ..literals.skipping import QUOTES
from ..literals.writer import JSON, Writer
from .objects.block import JsonBlock

_FENCE = "```"
_OPENING_FENCE = re.compile(r"\s*(?:```[\w \t\r-]*\s*)?")
_FENCED_END = re.compile(r"[\s`]*")
_CLOSERS = re.compile(r"[}\]]*")
_KIMI_ID = re.compile(r"[\w.\-:]*")
_KIMI_PREFIX = "functions."
_KIMI_NAME = re.compile(r"(?:functions\.)?([\w.\-]+?)(?::\d+)?")
_KIMI_DOCUMENTED = re.compile(r"functions\.[\w.\-]+:\d+")
_KIMI_NUMBER = re.compile(r"[:_.]?\d+\Z")
_DEEPSEEK_KIND = "function"
_MISTRAL_ID = re.compile(r"[\w\-]*")


class NamedCall(JsonCall):
    """A name, as the block writes it, and an object of arguments."""

    def __init__(self, block: NamedBlock) -> None:
        super().__init__(block.context, block.span, block.follows_call)
        self._block = block

    def read(self) -> Reading:
        """Read name and arguments. Raises Fault."""
        name = yield from self._block.name()
        if not NAME.fullmatch(name) or not name:
            raise Fault(Reason.NOT_A_CALL)
        self.writer.repaired |= self._block.renamed
        self.writer.start(name)
        yield from self._block.arguments(self)


class NamedBlock(LiteralBlock):
    """What blocks of named calls share: one call, from its name to its end.

    `span`: the markers around one call. `closes`: those that show that a call without arguments is over, and
    `opens` that another one has begun, before which this one was cut off.
    """

    def __init__(
        self, context: Context, span: Span, closes: tuple[str, ...], opens: tuple[str, ...] = ()
    ) -> None:
        super().__init__(context)
        self.span = span
        self.closes = closes
        self.opened = True  # the call has its opening marker
        self.fenced = False  # the arguments stand in a Markdown fence
        self.renamed = False  # the name stands there in a way that the format does not have
        self._terminators = (span.open, span.close, *opens, *closes, *self.ends)

    def name(self) -> Generator[None, None, str]:
        """Read a call's name and everything up to its arguments. Raises Fault."""
        raise NotImplementedError

    def word(self, pattern: re.Pattern[str] = NAME) -> Generator[None, None, str]:
        """Read a word and the white space around it. Raises Fault when the output ends there."""
        source = self.source
        yield from source.space()
        word = yield from source.run(pattern)
        if not (yield from source.space()):
            raise Fault(Reason.TRUNCATED, balanced=False)
        return word

    def passed(self, *markers: str) -> Generator[None, None, bool]:
        """Read one of `markers` if it comes next."""
        marker = yield from self.source.marker(markers)
        self.source.pos += len(marker)
        return marker != ""

    def separator(self, marker: str) -> Generator[None, None, bool]:
        """Read the marker between a name and its arguments. It may be missing where they are plain to see.

        So it may in front of the call's own end; any other marker shows that the name was cut off.
        """
        if (yield from self.passed(marker)):
            return True
        if not self.opened:
            raise Fault(Reason.NOT_A_CALL, final=True)
        plain = (yield from self.source.char()) in ("{", "`")
        if not plain and not (yield from self._at_own_end()):
            raise Fault(Reason.SYNTAX)
        return False

    def _at_own_end(self) -> Generator[None, None, bool]:
        """Whether the marker comes next that ends a call, and nothing else."""
        close = self.span.close
        return close not in self.ends and (yield from self.at_marker((close,)))

    def call(self, start: int) -> Reading:
        """Read one call, which began at `start`, from its name on; what is faulty is kept."""
        call = NamedCall(self)
        if (yield from self.read_call(call, start)):
            yield from self._surplus()
            if self.fenced:
                yield from self._fence_end()

    def arguments(self, call: NamedCall) -> Reading:
        """Read the arguments of `call`, their fence included. Raises Fault."""
        source = self.source
        start = source.offset
        yield from self.opening_fence()
        fence = source.since(start)
        self.fenced = _FENCE in fence
        if not _OPENING_FENCE.fullmatch(fence):
            raise Fault(Reason.SYNTAX)  # the arguments have begun on its line, and broken
        if not (yield from source.space()):
            raise Fault(Reason.TRUNCATED, balanced=False)
        if (yield from self.at_marker(self.closes)) or (self.fenced and (yield from self.closing_fence())):
            call.without_arguments()
        elif (yield from self.at_terminator()):
            raise Fault(Reason.MISSING_VALUE)
        else:
            yield from call.read_arguments()

    def _surplus(self) -> Reading:
        """Keep brackets that close nothing: `{"a": 1}}` is a frequent slip, and they are no text."""
        start = self.source.offset
        yield from self.source.run(_CLOSERS)
        if self.source.offset > start:
            self.emit.malformed(self.source.since(start), Reason.SYNTAX, self.source.offset)

    def _fence_end(self) -> Reading:
        """Read the closing fence, or the part of it that has been written when the output ends."""
        source = self.source
        start = source.offset
        behind = yield from source.run(_FENCED_END)
        if _FENCE in behind:
            source.rewind(start + behind.index(_FENCE) + len(_FENCE))
        elif (yield from source.char()):
            source.rewind(start)
        if source.offset > start:
            self.emit.markup(source.offset)

    def follows_call(self, inner: bool, opener: str) -> Generator[None, None, bool]:
        """Anything may follow, unless unescaped quotes leave open which brace ends the object."""
        return not inner or (yield from self.ends_here())

    def confirm(self) -> Reading:
        """An object is complete with its own brace, unless that was one too early."""
        yield from self.bounded((*QUOTES, ":", ","))

    def skip_element(self, closers: list[str]) -> Generator[None, None, bool]:
        """Skip the brackets of a faulty call; nothing but a marker separates it from the next one."""
        yield from super().skip_element(closers)
        return False

    def at_marker(self, markers: tuple[str, ...]) -> Generator[None, None, bool]:
        """Whether one of `markers` comes next, though another one that begins alike may be longer."""
        return (yield from self.source.marker(markers)) != ""

    def at_terminator(self) -> Generator[None, None, bool]:
        """Whether a marker comes next that ends a call, or begins the next one."""
        return (yield from self.at_marker(self._terminators))


class Section(NamedBlock):
    """A section of calls, each between markers of its own. Some models leave out the section's marker.

    `separator`: the marker between a name and its arguments.
    """

    def __init__(self, context: Context, span: Span, separator: str, closes: tuple[str, ...]) -> None:
        super().__init__(context, span, (span.close, *closes), context.dialect.openers)
        self.behind_name = separator
        self._section_closes = closes
        self._marked = False  # the section has a marker
        self._closed = True  # the last call has its closing marker
        self._empty = True

    def read(self) -> Reading:
        """Read the section and what belongs to it; `source.pos` is behind it afterwards."""
        source = self.source
        source.keep_from(self.start)
        if not (yield from self.at_marker((self.span.open,))):
            self._marked = True
            source.pos += len((yield from source.marker()))
        end = source.offset
        while True:
            yield from source.space()
            start = source.offset
            self.opened = yield from self.passed(self.span.open)
            if not self.opened and (yield from self.passed(*self._section_closes)):
                self.emit.markup(source.offset)
                break
            if not self.opened and (yield from self._over(end)):
                break
            self.emit.markup(source.offset)
            yield from self.call(start)
            end = yield from self._call_end()
            self._empty = False
        source.keep_from(None)

    def _call_end(self) -> Generator[None, None, int]:
        """Read what closes a call; returns where the call ends if that is missing."""
        source = self.source
        end = source.offset
        ended = not (yield from source.space())
        self._closed = yield from self.passed(self.span.close)
        if self._closed or ended:
            self.emit.markup(source.offset)
            return source.offset
        source.rewind(end)
        return end

    def _over(self, end: int) -> Generator[None, None, bool]:
        """Whether the section ends here without its marker; if not, its first call has no opening marker.

        `end`: behind the last call.
        """
        source, emit = self.source, self.emit
        ends = not (yield from source.char()) or (yield from self.at_marker(self.ends))
        if any(map(source.cut_marker, self._terminators)):
            source.pos = len(source.text)
            ends = True
        if ends or (yield from self.at_terminator()):
            if self._empty:
                reason = Reason.TRUNCATED if ends else Reason.UNCLOSED
                emit.malformed(source.since(self.start), reason, source.offset)
            elif source.offset > emit.end:
                emit.markup(source.offset)
        elif self._empty:
            return False
        else:
            source.rewind(end)
            if self._marked or not self._closed:
                emit.malformed("", Reason.MISSING_END, end)
        return True


class KimiSection(Section):
    """`functions.f:0`, whose number is that of the call in the conversation, and its arguments."""

    def name(self) -> Generator[None, None, str]:
        """See `NamedBlock`. The prefix and the number may be missing."""
        id_ = yield from self.word(_KIMI_ID)
        yield from self.separator(self.behind_name)
        tools = self.context.tools
        found = _KIMI_NAME.fullmatch(id_)
        name = found[1] if found else ""
        self.renamed = False
        if not tools or name in tools:
            return name
        # `functions_Bash_2` means the declared tool [mangled-name]; what means none, or more than one,
        # and is not as documented either, is no call.
        unnumbered = _KIMI_NUMBER.sub("", id_)
        meant = {tool_behind(_KIMI_PREFIX, each, tools) for each in (id_, unnumbered)} - {""}
        if unnumbered in tools:
            meant.add(unnumbered)
        if len(meant) == 1:
            self.renamed = True
            return meant.pop()
        return name if not meant and _KIMI_DOCUMENTED.fullmatch(id_) else ""


class DeepSeekSection(Section):
    """`f`, a separator and its arguments; in V3 and R1 `function`, a separator, `f` and fenced arguments."""

    def name(self) -> Generator[None, None, str]:
        """See `NamedBlock`. Distilled models mix the two layouts."""
        tools = self.context.tools
        self.renamed = False
        name = yield from self.word()
        if not (yield from self.separator(self.behind_name)):
            if name in tools or not name.startswith(_DEEPSEEK_KIND):
                return name
            self.renamed = True  # the name is glued to the word in front of it [glued-name]
            name = name.removeprefix(_DEEPSEEK_KIND)
            return name if name in tools else ""
        if name in ("", _DEEPSEEK_KIND):
            fallback = name
            name = yield from self.word()
            if not name and (yield from self.source.char()) == "{":
                name = fallback  # a tool of that name
        return name

    def confirm(self) -> Reading:
        """See `NamedBlock`. A call has at least one of its two markers [glm-white-space]."""
        yield from super().confirm()
        source = self.source
        end = source.offset
        yield from source.run(_FENCED_END)
        if not self.opened and not (yield from self.at_marker((self.span.close,))):
            raise Fault(Reason.NOT_A_CALL, final=True)
        source.rewind(end)


class SolarSection(Section):
    """An id, a marker, `f`, a separator and its arguments. The id may be missing."""

    def __init__(
        self, context: Context, span: Span, behind_id: str, separator: str, closes: tuple[str, ...]
    ) -> None:
        super().__init__(context, span, separator, closes)
        self._behind_id = behind_id

    def name(self) -> Generator[None, None, str]:
        """See `NamedBlock`."""
        yield from self.word()
        if not (yield from self.passed(self._behind_id)):
            raise Fault(Reason.SYNTAX)
        name = yield from self.word()
        yield from self.separator(self.behind_name)
        return name


class MistralBlock(NamedBlock):
    """What `[TOOL_CALLS]` opens: a JSON list of calls, or one call, `f[CALL_ID]id[ARGS]{"city": "Paris"}`.

    The id may be missing. Nothing closes a call but the end of the turn, so that text behind it is content.
    """

    def __init__(self, context: Context) -> None:
        assert context.dialect.calls is not None
        span = context.dialect.calls
        super().__init__(context, span, (span.close,))

    def read(self) -> Reading:
        """Read it. `source.pos` is at its marker when `read` begins."""
        source = self.source
        source.keep_from(self.start)
        source.pos += len(self.span.open)
        char = yield from source.space()
        if char == "{" or (char == "[" and not (yield from source.marker())):
            source.rewind(self.start)
            yield from JsonBlock(self.context).read()
            return
        self.emit.markup(source.offset)
        yield from self.call(self.start)
        source.keep_from(None)

    def name(self) -> Generator[None, None, str]:
        """See `NamedBlock`."""
        name = yield from self.word()
        if (yield from self.passed("[CALL_ID]")):
            yield from self.word(_MISTRAL_ID)
        yield from self.separator("[ARGS]")
        return name


def tool_behind(prefix: str, word: str, tools: Collection[str]) -> str:
    """The declared tool whose name follows `prefix` in `word`, "" unless there is exactly one.

    One edit of the prefix is allowed: that is how far a slip of the model goes.
    """
    fitting = [name for name in tools if word.endswith(name) and one_edit(word.removesuffix(name), prefix)]
    return fitting[0] if len(fitting) == 1 else ""


def one_edit(text: str, other: str) -> bool:
    """Whether the two are equal but for one character lost, added or changed."""
    same = next((at for at, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), None)
    if same is None:
        return abs(len(text) - len(other)) <= 1
    rest, due = text[same:], other[same:]
    return rest[1:] == due or rest == due[1:] or rest[1:] == due[1:]


def by_template(call: str, between: str = "", around: Span = NOWHERE, depth: int = MAX_DEPTH) -> Render:
    """A renderer that writes each call by a template with the fields `name`, `index` and `arguments`.

    `between`: what separates two calls. `around`: what encloses all of them, if anything does.
    `depth`: how deep arguments may be nested. It raises ValueError for what no call can hold.
    """
    opening, closing = (around.open, around.close) if around is not NOWHERE else ("", "")

    def render(span: Span, markers: Iterable[str], calls: Calls) -> str:
        writer = Writer(markers, JSON)
        written = []
        for index, (name, arguments) in enumerate(calls):
            writer.check_name(name)
            written.append(call.format(name=name, index=index, arguments=writer.mapping(arguments, depth)))
        return f"{opening}{between.join(written)}{closing}"

    return render


MISTRAL = Dialect(
    name="mistral",
    reasoning=Span("[THINK]", "[/THINK]"),
    calls=Span("[TOOL_CALLS]", "</s>"),
    ends=("</s>",),
    grammar=MistralBlock,
    inner=("[CALL_ID]", "[ARGS]"),
    renderers={
        "args": by_template("[TOOL_CALLS]{name}[ARGS]{arguments}"),
        "ids": by_template("[TOOL_CALLS]{name}[CALL_ID]{index:09}[ARGS]{arguments}"),
        "list": by_template(
            '{{"name": "{name}", "arguments": {arguments}, "id": "{index:09}"}}',
            between=", ",
            around=Span("[TOOL_CALLS][", "]"),
            depth=MAX_DEPTH - 1,  # one object further in
        ),
    },
    spellings={"<think>": "open", "</think>": "close"},
    cores=dict.fromkeys(THINK.markers, ""),
    aliases=("ministral", "devstral", "magistral"),
)
"""Mistral from 7B v0.3 on: up to Nemo a list, then a name with an id, then without. Magistral reasons."""


_DEEPSEEK_CALLS = Span("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_CALL = Span("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
_DEEPSEEK_SEPARATOR = "<｜tool▁sep｜>"


def _deepseek(context: Context) -> DeepSeekSection:
    return DeepSeekSection(context, _DEEPSEEK_CALL, _DEEPSEEK_SEPARATOR, (_DEEPSEEK_CALLS.close,))


DEEPSEEK_V3 = Dialect(
    name="deepseek-v3",
    reasoning=THINK,
    calls=_DEEPSEEK_CALLS,
    ends=("<｜end▁of▁sentence｜>",),
    grammar=_deepseek,
    slips=(_DEEPSEEK_CALL.open,),
    inner=(_DEEPSEEK_SEPARATOR, _DEEPSEEK_CALL.close),
    renderers={
        "fenced": by_template(
            f"{_DEEPSEEK_CALL.open}function{_DEEPSEEK_SEPARATOR}{{name}}\n```json\n{{arguments}}\n```"
            f"{_DEEPSEEK_CALL.close}",
            between="\n",
            around=_DEEPSEEK_CALLS,
        )
    },
    shown=THINK.markers,
    aliases=("deepseek-r1",),
)
"""V3-0324, R1, and what was distilled from them."""

DEEPSEEK_V31 = replace(
    DEEPSEEK_V3,
    name="deepseek-v31",
    aliases=(),
    renderers={
        "plain": by_template(
            f"{_DEEPSEEK_CALL.open}{{name}}{_DEEPSEEK_SEPARATOR}{{arguments}}{_DEEPSEEK_CALL.close}",
            around=_DEEPSEEK_CALLS,
        )
    },
)
"""V3.1: the same markers."""

_KIMI_CALLS = Span("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
_KIMI_SINGULAR = Span("<|tool_call_section_begin|>", "<|tool_call_section_end|>")  # as it is misspelled
_KIMI_CALL = Span("<|tool_call_begin|>", "<|tool_call_end|>")
_KIMI_SEPARATOR = "<|tool_call_argument_begin|>"


def _kimi(context: Context) -> KimiSection:
    return KimiSection(context, _KIMI_CALL, _KIMI_SEPARATOR, (_KIMI_CALLS.close, _KIMI_SINGULAR.close))


KIMI_K2 = Dialect(
    name="kimi-k2",
    reasoning=THINK,
    calls=_KIMI_CALLS,
    ends=("<|im_end|>", "[EOS]"),
    grammar=_kimi,
    slips=(_KIMI_CALL.open, _KIMI_SINGULAR.open),
    inner=(_KIMI_SEPARATOR, _KIMI_CALL.close, _KIMI_SINGULAR.close),
    interrupts=dict.fromkeys((_KIMI_CALLS.open, _KIMI_SINGULAR.open, _KIMI_CALL.open), ()),
    renderers={
        "ids": by_template(
            f"{_KIMI_CALL.open}functions.{{name}}:{{index}}{_KIMI_SEPARATOR}{{arguments}}{_KIMI_CALL.close}",
            around=_KIMI_CALLS,
        )
    },
    shown=THINK.markers,
)
"""Kimi K2 and K2-Thinking. No draft holds the section's marker, so it ends a reasoning left open."""

_SOLAR_CALLS = Span("<|tool_calls|>", "<|calls|>")
_SOLAR_CALL = Span("<|tool_call:begin|>", "<|tool_call:end|>")
_SOLAR_NAME, _SOLAR_ARGUMENTS = "<|tool_call:name|>", "<|tool_call:args|>"


def _solar(context: Context) -> SolarSection:
    return SolarSection(context, _SOLAR_CALL, _SOLAR_NAME, _SOLAR_ARGUMENTS, (_SOLAR_CALLS.close,))


SOLAR_OPEN = Dialect(
    name="solar-open",
    reasoning=Span("<|think|>", "<|end|>"),
    calls=_SOLAR_CALLS,
    ends=("<|flush|>", "<|end|>"),
    grammar=_solar,
    slips=(_SOLAR_CALL.open,),
    inner=(_SOLAR_NAME, _SOLAR_ARGUMENTS, _SOLAR_CALL.close),
    renderers={
        "json": by_template(
            f"{_SOLAR_CALL.open}{{index}}{_SOLAR_NAME}{{name}}{_SOLAR_ARGUMENTS}{{arguments}}{_SOLAR_CALL.close}",
            around=_SOLAR_CALLS,
        )
    },
    answers=(Span("<|begin|>assistant", "<|content|>"),),  # what each message of a turn begins with
    spellings={"<|end|>": ""},  # it ends an answer, too
    cores={"<|begin|>assistant": "<|begin|>"},
    aliases=("solar",),
)

ALL = (MISTRAL, DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2, SOLAR_OPEN)
