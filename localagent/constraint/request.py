"""Makes the guide of a turn from what the turn asks for (`Control`).

`guided` is the way in. Where the tokens are drawn here, `_Request.here` makes the guide; where a server draws
them, `_Request.there` makes the grammar or schema that is sent to it, and the same guide judges what comes
back. The parts that both need come after them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from localagent.constraint.bars import Bars
from localagent.constraint.ending import Ending
from localagent.constraint.gbnf import core, gbnf
from localagent.constraint.grammar import Grammar, block_grammar, schema_grammar
from localagent.constraint.guide import Fixed, Guide, Way
from localagent.constraint.layout import layout
from localagent.constraint.matching import Factory, Matcher, matcher_factory
from localagent.constraint.passing import Passed, PassedSchema, Thought, Turns
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
    """A turn's guide, if it needs one, and what the user should know about it."""

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
        return _Request(host, host.vocabulary, dialect, tools or (), control, prompt, ending).here()
    if host.elsewhere:
        server: Any = host  # which has the vocabulary as `pieces`
        return _Request(server, server.pieces, dialect, tools or (), control, prompt, None).there()
    return Guided()  # played back from a recording


class _Request:
    """One turn's wishes, and what is known of its model."""

    def __init__(
        self,
        host: Any,
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
        self._called = bool(tools) and control.choice != "none"
        self._required = control.choice == "required" or control.named is not None
        self._special = {text: token for token, text in vocabulary.special.items() if text}

    # -- where the tokens are drawn here --------------------------------------------------------------

    def here(self) -> Guided:
        """The guide, and what is not bounded."""
        control = self._control
        if not self._called and not control.answers:
            # Without tools there is nothing to bar, and a dialect without calls has no markers of them.
            bars = self._bars() if self._tools and self._dialect.renderers else None
            return Guided(self._guide(bars=bars) if bars or self._ending else None)
        try:
            factory = matcher_factory(self._vocabulary)
        except GrammarMissing as missing:
            return self._without(missing)
        if not self._required and not control.answers:
            return Guided(self._offered(factory))
        # The turn must end in calls, or in an answer; where both may come, the model decides.
        ways, relaxed = list[Way](), list[Relaxed]()
        if self._called:
            block, relaxed = self._block(factory)
            ways.append(Way(block, "over"))
        if control.answers:
            answer = self._answer_grammar()
            ways.append(Way(factory.compile(answer.text), "over"))
            relaxed += answer.relaxed
        return Guided(self._guide(ways=[*ways, *self._reasoning()], relaxed=relaxed))

    def _without(self, missing: GrammarMissing) -> Guided:
        """What can be done without the package: the marker and the name are forced, and no more."""
        control = self._control
        if control.strict or control.answers or not control.parallel_tool_calls:
            raise missing
        reason = _UNBOUNDED.format(missing)
        if not self._required:
            return Guided(self._guide() if self._ending else None, unbounded=self._every_tool(reason))
        shape = layout(self._dialect)
        lead = shape.opener + (shape.head + control.named if control.named else "")
        if not lead:
            raise missing
        tokens = self._host.tokenize(lead, special=True)
        ways = [Way(Fixed(tokens, self._vocabulary.size), "free"), *self._reasoning()]
        warnings = (RequestWarning("tool_choice", reason),)
        return Guided(self._guide(ways=ways), warnings, self._every_tool(reason))

    def _offered(self, factory: Factory) -> Guide:
        """The guide of a turn in which the model may call tools."""
        control, bare = self._control, _reads_objects(self._dialect)
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

    def _block(self, factory: Factory, bare: bool = False) -> tuple[Matcher, list[Relaxed]]:
        """A matcher for the block of calls, `bare` also without its marker, and what it does not hold.

        A tool that cannot be compiled alone may have any arguments, so that it spoils no other.
        """

        def grammar(tools: Sequence[Mapping[str, Any]]) -> Grammar:
            return self._block_grammar(tools, ends=_ends_of(self._vocabulary), bare=bare)

        whole = grammar(self._tools)
        try:
            return factory.compile(whole.text), list(whole.relaxed)
        except GrammarTooLarge:
            if bare:  # without that, at least calls with their marker are bounded
                return self._block(factory)
            if self._control.strict or self._control.named:
                raise
        relaxed, kept = list[Relaxed](), list[Mapping[str, Any]]()
        for tool in self._tools:
            alone = grammar([tool])
            try:
                factory.compile(alone.text)
            except GrammarTooLarge as error:
                name = tool.get("function", tool)["name"]
                kept.append({"function": {"name": name}})
                relaxed.append(Relaxed(name, "", "size", str(error)))
            else:
                kept.append(tool)
                relaxed += alone.relaxed
        return factory.compile(grammar(kept).text), relaxed

    def _guide(self, **how: Any) -> Guide:
        dialect, inside = self._dialect, self._prompt.inside
        atomic = self._host.special_tokens.intersection((*dialect.markers, *dialect.cores.values()))
        return Guide(
            self._vocabulary,
            StreamParser(dialect, tools=self._tools, inside=inside, atomic=atomic),
            ends=_ends_of(self._vocabulary),
            ending=self._ending,
            inside=inside == "reasoning",
            strict=self._control.strict,
            **how,
        )

    # -- where a server draws them --------------------------------------------------------------------

    def there(self) -> Guided:
        """What the server is asked to enforce. Raises Unsupported where it takes nothing that would do."""
        control, name, piece = self._control, self._host.name, self._vocabulary.piece
        warnings: tuple[RequestWarning, ...] = ()
        if control.thinking_budget is not None:
            reason = "draws its tokens elsewhere: the thinking cannot be ended after a number of tokens"
            warnings = (RequestWarning("thinking", f"{name} {reason}"),)
        wishes = (
            (f"tool_choice {control.tool_choice!r:.60}", self._tools and control.choice != "auto"),
            ("response_format", control.answers),
            ("parallel_tool_calls", self._tools and not control.parallel_tool_calls),
            ("strict", self._tools and control.strict),
        )
        wish = next((word for word, wished in wishes if wished), None)
        if wish is None:  # there is nothing to enforce: it writes as it usually does
            reason = _UNBOUNDED.format(f"the server of {name} draws them, and was told to hold nothing")
            return Guided(warnings=warnings, unbounded=self._every_tool(reason))
        takes = self._host.takes(self._prompt)
        matcher_factory(self._vocabulary)  # without the package there would be nothing to judge by
        guide = self.here().guide
        if not isinstance(guide, Guide):
            raise Unsupported(f"it is not known how calls begin in the dialect {self._dialect.name}")
        unsaid = ""
        if form := next((form for form in takes if form != "schema"), None):
            try:
                return Guided(Passed(guide, form, self._turn(form), name, piece), warnings)
            except Unsupported as error:
                unsaid = f" ({error})"
        # A schema holds from the first token on, and nothing beside the answer.
        alone = control.answers and not self._called and self._prompt.inside != "reasoning"
        if alone and "schema" in takes:
            parser = StreamParser(self._dialect, inside=self._prompt.inside)
            return Guided(PassedSchema(parser, piece, control.answer_schema, name), warnings)
        raise Unsupported(
            f"{name} draws its tokens elsewhere, and its server cannot be held to {wish}{unsaid}: "
            "leave it out"
        )

    def _turn(self, form: Form) -> str:
        """The grammar of the whole turn. Raises Unsupported for what it cannot say."""
        lark = self._lark(Turns(self._vocabulary.size, _ends_of(self._vocabulary), form))
        match form:
            case "lark":
                return lark
            case "core":
                return core(lark)
        return gbnf(lark, "ebnf" if form == "ebnf" else "gbnf")

    def _lark(self, turns: Turns) -> str:
        control = self._control
        if control.answers or (self._called and control.choice != "auto"):
            grammars = [self._block_grammar(self._tools)] if self._called else []
            if control.answers:
                grammars.append(self._answer_grammar())
            return turns.required(grammars, self._thought())
        openers = [self._special[text] for text in self._dialect.openers if text in self._special]
        if not self._called:
            tokens, texts, leading = self._barred()
            if texts or leading:
                raise self._unmarked()
            return turns.barred(tokens, openers)
        if layout(self._dialect).opener not in self._special:
            raise self._unmarked()
        return turns.offered(self._block_grammar(self._tools), openers, control.parallel_tool_calls)

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

    # -- what both are made of ------------------------------------------------------------------------

    def _every_tool(self, reason: str) -> tuple[Relaxed, ...]:
        return tuple(Relaxed(tool.get("function", tool)["name"], "", "", reason) for tool in self._tools)

    def _block_grammar(self, tools: Sequence[Mapping[str, Any]], **how: Any) -> Grammar:
        control = self._control
        one = [control.named] if control.named else None
        parallel = control.parallel_tool_calls and not one
        return block_grammar(self._dialect, tools, one, parallel, control.strict, self._special, **how)

    def _answer_grammar(self) -> Grammar:
        if self._dialect.frames_content:
            raise Unsupported(
                f"response_format: answers in the dialect {self._dialect.name} stand between markers, and "
                "cannot be bounded"
            )
        return schema_grammar(self._control.answer_schema)

    def _reasoning(self) -> list[Way]:
        """The way in which the model opens its reasoning first, if its template shows that it reasons."""
        span = self._dialect.reasoning
        if span is None or self._prompt.inside == "reasoning" or span.open not in self._special:
            return []
        if not thinking_support(self._host, self._dialect, tools=bool(self._tools)).closing:
            return []
        return [Way(Fixed((self._special[span.open],), self._vocabulary.size), "reasoning")]

    def _bars(self) -> Bars:
        """Bars against every call. Raises Unsupported for a dialect whose calls begin like other text."""
        return Bars(self._vocabulary, *self._barred())

    def _barred(self) -> tuple[Sequence[int], Sequence[str], str]:
        """What a turn without calls does not hold: tokens, texts, and characters that begin it (see `Bars`).

        Raises Unsupported where `_bars` does.
        """
        dialect, texts, within, leading = self._dialect, list[str](), set[str](), ""
        if dialect.header:
            word = (layout(dialect).opener + layout(dialect).head).split()[-1]
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
            # Nor what would be a stray part of a call.
            within = {*dialect.inner, *((dialect.calls.close,) if dialect.calls else ())}
            frames = {marker for span in dialect.answers for marker in span.markers}
            within -= {*dialect.ends, *frames, dialect.reasoning.close if dialect.reasoning else ""}
        # What is a token of its own cannot be spelled in others.
        tokens = [self._special[text] for text in (*texts, *within) if text in self._special]
        return tokens, [text for text in texts if text not in self._special], leading


def _reads_objects(dialect: Dialect) -> bool:
    """Whether a JSON object without a marker is read as a call, and known as one before it ends."""
    parser = StreamParser(dialect, [{"function": {"name": "f"}}])
    events = parser.feed('{"name": "f", "arguments": {"a')
    return any(isinstance(event, CallStart) and event.start == 0 for event in events)


def _is_read(dialect: Dialect, renderer: str) -> bool:
    """Whether a call in this notation is one, where no tools are declared."""
    parser = StreamParser(dialect)
    events = parser.feed(dialect.render([("f", {})], renderer)) + parser.close()
    return any(isinstance(event, CallEnd) for event in events)


def _ends_of(vocabulary: Vocabulary) -> Sequence[int]:
    """The tokens that end a turn, looked for once; the usual one comes first."""
    ends = _ends.get(vocabulary)
    if ends is None:
        ends = [token for token in range(vocabulary.size) if vocabulary.piece(token).end]
        ends = _ends[vocabulary] = sorted(ends, key=lambda t: vocabulary.special.get(t) != vocabulary.eos)
    return ends


_ends: WeakKeyDictionary[Any, Sequence[int]] = WeakKeyDictionary()
