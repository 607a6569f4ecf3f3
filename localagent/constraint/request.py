"""What a turn asks for, as the guide that sees to it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from localagent.constraint.bars import Bars
from localagent.constraint.ending import Ending
from localagent.constraint.gbnf import gbnf
from localagent.constraint.grammar import Grammar, block_grammar, schema_grammar
from localagent.constraint.guide import Fixed, Guide, Way
from localagent.constraint.layout import layout
from localagent.constraint.matching import Factory, Matcher, matcher_factory
from localagent.constraint.passing import Passed, PassedSchema, Thought, Turns, core
from localagent.constraint.schema import Relaxed
from localagent.control import Control
from localagent.errors import GrammarMissing, GrammarTooLarge, Unsupported
from localagent.hosts.protocol import Form, Host
from localagent.parsers import CallEnd, CallStart, Dialect, StreamParser
from localagent.prompt import RequestWarning
from localagent.prompt.rendering import thinking_support
from localagent.prompt.segments import Prompt

if TYPE_CHECKING:
    from localagent.hosts.engine import Vocabulary

_UNBOUNDED = "the arguments of calls are not bounded: {}"


@dataclass(frozen=True, slots=True)
class Guided:
    """A turn's guide, if it needs one, and what a person should hear of it."""

    guide: Guide | Passed | PassedSchema | None = None
    warnings: tuple[RequestWarning, ...] = ()
    unbounded: tuple[Relaxed, ...] = ()
    """The tools for which there is no guide, for want of the extra or because a server draws."""


def guided(
    host: Host,
    dialect: Dialect,
    tools: Sequence[Mapping[str, Any]] | None,
    control: Control,
    prompt: Prompt,
    ending: Ending | None = None,
) -> Guided:
    """The guide of a turn. It compiles grammars, which takes a while the first time.

    Raises UsageError, of which Unsupported, SchemaRefused and GrammarTooLarge are kinds, and GrammarMissing.
    """
    control.check_tools(tools)
    if host.vocabulary is not None:
        return _Request(host, host.vocabulary, dialect, tools or (), control, prompt, ending).answer()
    if not host.elsewhere:  # played back from a recording
        return Guided()
    return _guided_there(host, dialect, tools or (), control, prompt)


def _guided_there(
    host: Any, dialect: Dialect, tools: Sequence[Mapping[str, Any]], control: Control, prompt: Prompt
) -> Guided:
    """The same where a server draws: what it is told to hold. Raises Unsupported where it takes nothing."""
    warnings: tuple[RequestWarning, ...] = ()
    if control.thinking_budget is not None:
        said = (
            f"{host.name} draws its tokens elsewhere: the thinking cannot be ended after a number of tokens"
        )
        warnings = (RequestWarning("thinking", said),)
    wish = next(
        (
            word
            for word, wished in (
                (f"tool_choice {control.tool_choice!r:.60}", bool(control.named)),
                (f"tool_choice {control.tool_choice!r:.60}", bool(tools) and control.choice != "auto"),
                ("response_format", control.answers),
                ("parallel_tool_calls", bool(tools) and not control.parallel_tool_calls),
                ("strict", bool(tools) and control.strict),
            )
            if wished
        ),
        None,
    )
    if wish is None:
        reason = _UNBOUNDED.format(f"the server of {host.name} draws them, and was told to hold nothing")
        return Guided(warnings=warnings, unbounded=tuple(_every(tools, reason)))
    there = _Request(host, host.pieces, dialect, tools, control, prompt, None)
    return Guided(there.passed_on(wish, host.takes(prompt)), warnings)


class _Barred(NamedTuple):
    """Arguments of `Bars`."""

    tokens: Sequence[int]
    texts: Sequence[str]
    leading: str


class _Request:
    """One turn's wishes, and what is known of its model."""

    def __init__(
        self,
        host: Host,
        vocabulary: Vocabulary,
        dialect: Dialect,
        tools: Sequence[Mapping[str, Any]],
        control: Control,
        prompt: Prompt,
        ending: Ending | None,
    ) -> None:
        self._host = host
        self._vocabulary = vocabulary
        self._dialect = dialect
        self._tools = tools
        self._control = control
        self._prompt = prompt
        self._ending = ending
        self._special = {text: token for token, text in vocabulary.special.items() if text}

    def answer(self) -> Guided:
        """See `guided`."""
        control = self._control
        required = control.choice == "required" or control.named is not None
        called = bool(self._tools) and control.choice != "none"
        if not called and not control.answers:
            bars = self._bars() if self._tools and self._dialect.renderers else None
            return Guided(self._guide(bars=bars) if bars or self._ending else None)
        try:
            factory = matcher_factory(self._vocabulary)
        except GrammarMissing as missing:
            return self._without(missing, required)
        if not required and not control.answers:
            return Guided(self._offered(factory))
        ways, relaxed = [], list[Relaxed]()
        if called:
            block, relaxed = self._block(factory)
            ways.append(Way(block, "over"))
        if control.answers:
            answer = self._answer_grammar()
            ways.append(Way(factory.compile(answer), "over"))
            relaxed += answer.relaxed
        return Guided(self._guide(ways=[*ways, *self._reasoning()], relaxed=relaxed))

    def passed_on(self, wish: str, takes: Collection[Form]) -> Passed | PassedSchema:
        """What the server is told to hold. `wish`: what asks for it.

        Raises Unsupported where it takes nothing that would hold, and as `guided`.
        """
        # A schema holds from the first token on, and nothing beside the answer.
        alone = self._control.answers and not (self._tools and self._control.choice != "none")
        alone = alone and self._prompt.inside != "reasoning" and "schema" in takes
        matcher_factory(self._vocabulary)  # there would be nothing to judge by without the package
        guide = self.answer().guide
        if not isinstance(guide, Guide):
            raise Unsupported(f"it is not known how calls begin in the dialect {self._dialect.name}")
        name, piece = self._host.name, self._vocabulary.piece
        unsaid = ""
        if form := next((each for each in takes if each != "schema"), None):
            try:
                return Passed(guide, form, self._turn(form), name, lambda token: _spelled(piece(token).data))
            except Unsupported as error:
                unsaid = f" ({error})"
        if alone:
            parser = StreamParser(self._dialect, inside=self._prompt.inside)
            return PassedSchema(parser, piece, self._control.answer_schema, name)
        raise Unsupported(
            f"{name} draws its tokens elsewhere, and its server cannot be held to {wish}{unsaid}: "
            "leave it out"
        )

    def _turn(self, form: Form) -> str:
        """The grammar of the whole turn. Raises Unsupported for what it cannot say."""
        turns = Turns(self._vocabulary.size, _ends_of(self._vocabulary), form)
        lark = self._lark(turns)
        match form:
            case "lark":
                return lark
            case "core":
                return core(lark)
        return gbnf(lark, "ebnf" if form == "ebnf" else "gbnf")

    def _lark(self, turns: Turns) -> str:
        control = self._control
        called = bool(self._tools) and control.choice != "none"
        if control.answers or (called and control.choice != "auto"):
            grammars = [self._block_grammar()] if called else []
            if control.answers:
                grammars.append(self._answer_grammar())
            return turns.required(grammars, self._thought())
        openers = [self._special[text] for text in self._dialect.openers if text in self._special]
        if not called:
            bars = self._barred()
            if bars.texts or bars.leading:
                raise self._unmarked()
            return turns.barred(bars.tokens, openers)
        if layout(self._dialect).opener not in self._special:
            raise self._unmarked()
        return turns.offered(self._block_grammar(), openers, control.parallel_tool_calls)

    def _thought(self) -> Thought | None:
        """The reasoning that may or must come first."""
        span, inside = self._dialect.reasoning, self._prompt.inside == "reasoning"
        if span is None or not (inside or self._reasoning()):
            return None
        if span.close not in self._special:
            raise self._unmarked()
        return Thought(None if inside else self._special[span.open], self._special[span.close])

    def _unmarked(self) -> Unsupported:
        return Unsupported(f"not all markers of the dialect {self._dialect.name} are tokens of their own")

    def _offered(self, factory: Factory) -> Guide:
        """The guide of a turn in which the model may call tools."""
        control, bare = self._control, self._reads_objects()
        try:
            block, relaxed = self._block(factory, bare)
            shape = layout(self._dialect)
            if not shape.opener and not (bare and shape.head.lstrip("[").startswith("{")):
                raise Unsupported(
                    f"calls of the dialect {self._dialect.name} begin without a marker, and are not bounded"
                )
        except (Unsupported, GrammarTooLarge) as error:
            if control.strict or not control.parallel_tool_calls:
                raise
            return self._guide(relaxed=self._every_tool(str(error)))
        spare = None if control.parallel_tool_calls else self._bars()
        return self._guide(block=block, parallel=spare, relaxed=relaxed)

    def _reads_objects(self) -> bool:
        """Whether a JSON object without a marker is read as a call, and known as one before it ends."""
        parser = StreamParser(self._dialect, [{"function": {"name": "f"}}])
        events = parser.feed('{"name": "f", "arguments": {"a')
        return any(isinstance(event, CallStart) and event.start == 0 for event in events)

    def _block(self, factory: Factory, bare: bool = False) -> tuple[Matcher, list[Relaxed]]:
        """A matcher for the block of calls, `bare` also without its marker, and what it does not hold.

        A tool that cannot be compiled alone may have any arguments, so that it spoils no other.
        """
        how: dict[str, Any] = {"ends": _ends_of(self._vocabulary), "bare": bare}
        grammar = self._block_grammar(**how)
        try:
            return factory.compile(grammar), list(grammar.relaxed)
        except GrammarTooLarge:
            if bare:  # then at least what has its marker is bounded
                return self._block(factory)
            if self._control.strict or self._control.named:
                raise
        relaxed, kept = list[Relaxed](), []
        for tool in self._tools:
            function = tool.get("function", tool)
            alone = self._block_grammar([tool], **how)
            try:
                factory.compile(alone)
                kept.append(tool)
                relaxed += alone.relaxed
            except GrammarTooLarge as error:
                kept.append({"function": {"name": function["name"]}})
                relaxed.append(Relaxed(function["name"], "", "size", str(error)))
        return factory.compile(self._block_grammar(kept, **how)), relaxed

    def _without(self, missing: GrammarMissing, required: bool) -> Guided:
        """What can be done without the package."""
        control = self._control
        if control.strict or control.answers or not control.parallel_tool_calls:
            raise missing
        if not required:
            guide = self._guide() if self._ending else None
            return Guided(guide, unbounded=self._every_tool(_UNBOUNDED.format(missing)))
        shape = layout(self._dialect)
        lead = shape.opener + (shape.head + control.named if control.named else "")
        if not lead:
            raise missing
        tokens = self._host.tokenize(lead, special=True)
        ways = [Way(Fixed(tokens, self._vocabulary.size), "free"), *self._reasoning()]
        reason = _UNBOUNDED.format(missing)
        return Guided(
            self._guide(ways=ways), (RequestWarning("tool_choice", reason),), self._every_tool(reason)
        )

    def _every_tool(self, reason: str) -> tuple[Relaxed, ...]:
        return tuple(_every(self._tools, reason))

    def _guide(self, **how: Any) -> Guide:
        dialect = self._dialect
        atomic = self._host.special_tokens.intersection((*dialect.markers, *dialect.cores.values()))
        inside = self._prompt.inside
        parser = StreamParser(dialect, tools=self._tools, inside=inside, atomic=atomic)
        return Guide(
            self._vocabulary,
            parser,
            ends=_ends_of(self._vocabulary),
            ending=self._ending,
            inside=inside == "reasoning",
            strict=self._control.strict,
            **how,
        )

    def _block_grammar(self, tools: Sequence[Mapping[str, Any]] | None = None, **how: Any) -> Grammar:
        control, tools = self._control, self._tools if tools is None else tools
        one = [control.named] if control.named else None
        parallel = control.parallel_tool_calls and not one
        strict, special = control.strict, self._special
        return block_grammar(self._dialect, tools, one, parallel, strict, special, **how)

    def _answer_grammar(self) -> Grammar:
        if self._dialect.frames_content:
            raise Unsupported(
                f"response_format: answers in the dialect {self._dialect.name} stand between markers, and "
                "cannot be bounded"
            )
        return schema_grammar(self._control.answer_schema)

    def _reasoning(self) -> list[Way]:
        """That the model opens its reasoning first, if its template shows that it does such a thing."""
        span = self._dialect.reasoning
        if span is None or self._prompt.inside == "reasoning" or span.open not in self._special:
            return []
        if not thinking_support(self._host, self._dialect, tools=bool(self._tools)).closing:
            return []
        return [Way(Fixed((self._special[span.open],), self._vocabulary.size), "reasoning")]

    def _bars(self) -> Bars:
        """Against every call. Raises Unsupported for a dialect whose calls begin like other text."""
        barred = self._barred()
        return Bars(self._vocabulary, barred.tokens, barred.texts, barred.leading)

    def _barred(self) -> _Barred:
        """What a turn without calls does not hold. Raises Unsupported as `_bars`."""
        dialect, texts, within, leading = self._dialect, list[str](), set[str](), ""
        if dialect.header:
            head = layout(dialect).opener + layout(dialect).head
            word = head.split()[-1]
            if not word.endswith("."):
                raise Unsupported(
                    f"calls in the dialect {dialect.name} begin like other messages: they cannot be barred"
                )
            texts.append(word)
        else:
            texts += dialect.openers
            for renderer in dialect.renderers:
                # Calls without the marker that are read as such even where no tools are known.
                if not layout(dialect, renderer).opener and _is_read(dialect, renderer):
                    lead = re.split(r"[{\[]", layout(dialect, renderer).head)[0]
                    texts += [lead] if lead else []
                    leading = leading if lead else "{["
        if not dialect.header:  # nor what would be a stray part of one
            within = {*dialect.inner, *((dialect.calls.close,) if dialect.calls else ())}
            frames = {marker for span in dialect.answers for marker in span.markers}
            within -= {*dialect.ends, *frames, dialect.reasoning.close if dialect.reasoning else ""}
        # What is a token of its own cannot be spelled in others.
        tokens = [self._special[text] for text in (*texts, *within) if text in self._special]
        return _Barred(tokens, [text for text in texts if text not in self._special], leading)


def _every(tools: Sequence[Mapping[str, Any]], reason: str) -> Iterator[Relaxed]:
    return (Relaxed(tool.get("function", tool)["name"], "", "", reason) for tool in tools)


def _is_read(dialect: Dialect, renderer: str) -> bool:
    """Whether a call in this notation is one, where no tools are declared."""
    parser = StreamParser(dialect)
    events = parser.feed(dialect.render([("f", {})], renderer)) + parser.close()
    return any(isinstance(event, CallEnd) for event in events)


def _spelled(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _ends_of(vocabulary: Vocabulary) -> Sequence[int]:
    """The tokens that end a turn, looked for once; the usual one comes first."""
    found = _ends.get(vocabulary)
    if found is None:
        ends = [token for token in range(vocabulary.size) if vocabulary.piece(token).end]
        found = _ends[vocabulary] = sorted(ends, key=lambda t: vocabulary.special.get(t) != vocabulary.eos)
    return found


_ends: WeakKeyDictionary[Any, Sequence[int]] = WeakKeyDictionary()
