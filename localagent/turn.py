"""One turn of the model: render, generate, parse, collect.

    messages + tools --render--> Prompt --generate--> Token --feed--> Event --collect--> AssistantMessage

The command line, the server and the agent all consume this one stream of events. `Turn` makes it;
`run_turn` and `arun_turn` drive that from a thread and on an event loop.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any, assert_never

from localagent.control import Control
from localagent.errors import UsageError
from localagent.hosts.protocol import CancelFlag, Finish, Host, Logprobs, Prefilled, Queued, Step, Token
from localagent.hosts.sampling import Sampling
from localagent.messages import (
    AssistantMessage,
    AssistantPart,
    MalformedToolCallPart,
    Message,
    Prices,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    Usage,
)
from localagent.prompt import RequestWarning
from localagent.prompt.rendering import ToolSchema, render_turn, request_for, thinking_for
from parsers import CallPart, Collector, Dialect, Event, MalformedPart, Part, StreamParser
from parsers import ReasoningPart as ParsedReasoning
from parsers import TextPart as ParsedText

if TYPE_CHECKING:
    from localagent.constraint.schema import Relaxed


@dataclass(frozen=True, slots=True)
class Done:
    """The last event of a turn: the whole message, and the ids of the generated tokens.

    `logprobs` has an entry for each token if `Sampling.logprobs` asked for them; else it is empty. `relaxed`:
    what of the tools' schemas was left out of the grammar, so that calls may not fit it; every tool, where
    the extra `grammar` is not installed, or a server draws the tokens and is not told to hold anything.
    `stop`: the stop string that ended the turn, if one did. `ends`: where the text of each token ends in the
    raw output, in code points, which is how events give their spans.
    """

    message: AssistantMessage
    token_ids: tuple[int, ...]
    logprobs: tuple[Logprobs, ...] = ()
    relaxed: tuple[Relaxed, ...] = ()
    stop: str | None = None
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Scored:
    """A token and its log-probabilities, before the events that it brings. `end`: where its text ends in the
    raw output, in code points.
    """

    id: int
    end: int
    logprobs: Logprobs


@dataclass(frozen=True, slots=True)
class BrokenOff:
    """The last event of a turn that an error or Ctrl-C broke off: what the model had written so far.

    The error is raised next. If nothing had been written, the error comes without this event.
    """

    message: AssistantMessage


TurnEvent = Event | RequestWarning | Queued | Prefilled | Scored | BrokenOff | Done


def run_turn(
    host: Host,
    dialect: Dialect,
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None = None,
    sampling: Sampling | None = None,
    cancel: CancelFlag | None = None,
    name: str | None = None,
    progress: bool = False,
    prices: Prices | None = None,
    control: Control | None = None,
) -> Generator[TurnEvent, None, None]:
    """Run one turn: warnings about the request, parser events as they arrive, then Done.

    With `progress`, `Queued` and `Prefilled` events tell what happens before the first token, and `Scored`
    events the log-probabilities of each, where `sampling` asks for them. Setting
    `cancel` ends the generation at the next token, and the turn still ends in Done; closing the iterator ends
    it without Done. `name`: the model's name in the message, by default the one in the weights. `prices`: for
    the cost in its usage. `control`: what the turn is told beside the sampling. A turn that ends in calls has
    the stop reason "tool_calls".

    Raises UsageError, GrammarMissing, TemplateFailed, ContextOverflow, EngineFailed, ConstraintFailed; a turn
    that breaks off midway yields BrokenOff first.
    """
    turn = Turn(host, dialect, messages, tools, name, progress, prices, control)
    yield from turn.warnings
    generation = host.generate(turn.prompt, sampling or Sampling(), cancel, turn.guide)
    try:
        for step in generation.steps():
            yield from turn.feed(step)
        yield from turn.close(generation.finish)
    except (Exception, KeyboardInterrupt) as error:
        yield from turn.broken(error)
        raise
    finally:
        generation.close()


async def arun_turn(
    host: Host,
    dialect: Dialect,
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None = None,
    sampling: Sampling | None = None,
    cancel: CancelFlag | None = None,
    name: str | None = None,
    progress: bool = False,
    prices: Prices | None = None,
    control: Control | None = None,
) -> AsyncGenerator[TurnEvent, None]:
    """As `run_turn`, on an event loop, which is never blocked: the request is rendered in a thread, but none
    waits while the model generates.

    Cancelling the task, or closing the iterator, cancels the generation and ends the turn without Done.
    """
    import asyncio  # here, so that programs without an event loop do not load it

    turn = await asyncio.to_thread(Turn, host, dialect, messages, tools, name, progress, prices, control)
    for warning in turn.warnings:
        yield warning
    generation = host.generate(turn.prompt, sampling or Sampling(), cancel, turn.guide)
    # Closing frees the lane; without `aclosing`, that would be left to the garbage collector.
    async with aclosing(generation.asteps()) as steps:
        try:
            async for step in steps:
                for event in turn.feed(step):
                    yield event
            for event in turn.close(generation.finish):
                yield event
        except (Exception, KeyboardInterrupt) as error:
            for event in turn.broken(error):
                yield event
            raise


class Turn:
    """All of a turn but the generating: it renders the request, is fed the steps of the generation, and gives
    the events of the turn. Whether the steps come in a thread or on an event loop makes no difference.
    """

    def __init__(
        self,
        host: Host,
        dialect: Dialect,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] | None,
        name: str | None,
        progress: bool,
        prices: Prices | None,
        control: Control | None = None,
    ) -> None:
        """Render the request, which takes a while if it is long.

        Arguments and errors as for `run_turn`.
        """
        # Here, since a model on a server needs none of it: a chat with one would start later for nothing.
        from localagent.constraint.ending import ending_for
        from localagent.constraint.request import guided

        control = control or Control()
        begun: AssistantMessage | None = None
        if control.continue_final_message:
            last = messages[-1] if messages else None
            if not isinstance(last, AssistantMessage):
                raise UsageError("continue_final_message: the last message must be the assistant's")
            messages, begun = messages[:-1], last
            # What is a call only as the whole of a turn is none after these words.
            dialect = replace(dialect, bare=None)
        request = request_for(host, messages, name)
        flag = control.end_thinking
        wishes = control.thinking, control.thinking_budget, name, flag is not None
        plan = thinking_for(host, dialect, request, tools, *wishes)
        self.prompt = render_turn(host, dialect, request, tools, switch=plan.switch, name=name, begun=begun)
        bounds = guided(host, dialect, tools, control, self.prompt, ending_for(host, plan, flag, self.prompt))
        self.warnings: Sequence[RequestWarning] = (*request.warnings, *plan.warnings, *bounds.warnings)
        self.guide = bounds.guide
        self._unbounded = bounds.unbounded
        atomic = host.special_tokens.intersection((*dialect.markers, *dialect.cores.values()))
        # Where no call may be made, what needs the tools to be told from text is text.
        called = tools if control.choice != "none" else None
        self._parser = StreamParser(dialect, tools=called, inside=self.prompt.inside, atomic=atomic)
        self._collector = Collector()
        self._tokens: list[Token] = []
        self._written = 0  # code points
        self._markers = dialect.markers
        self._model = name or host.name
        self._progress = progress
        self._prices = prices

    def feed(self, step: Step) -> Sequence[TurnEvent]:
        """The events that the next step brings."""
        if not isinstance(step, Token):
            return (step,) if self._progress else ()
        self._tokens.append(step)
        self._written += len(step.text)
        scored: tuple[TurnEvent, ...] = ()
        if self._progress and step.logprobs is not None:
            scored = (Scored(step.id, self._written, step.logprobs),)
        if step.end and step.text not in self._markers:
            return scored  # an end token that is no marker of this dialect is only for `raw`
        return (*scored, *self._collected(self._parser.feed(step.text, step.special)))

    def close(self, finish: Finish | None) -> Sequence[TurnEvent]:
        """The last events, after the generation has ended."""
        assert finish is not None
        events = self._collected(self._parser.close("stop" if finish.stop_reason == "stop" else "length"))
        called = finish.stop_reason == "stop" and any(isinstance(p, CallPart) for p in self._collector.parts)
        message = self._message(
            Usage(input=finish.prompt, output=finish.generated, cache_read=finish.cached),
            stop_reason="tool_calls" if called else finish.stop_reason,
            timings=finish.timings,
        )
        scores = tuple(token.logprobs for token in self._tokens if token.logprobs is not None)
        relaxed = self._unbounded or (self.guide.relaxed if self.guide is not None else ())
        ids = tuple(token.id for token in self._tokens)
        ends = tuple(accumulate(len(token.text) for token in self._tokens))
        return (*events, Done(message, ids, scores, relaxed, finish.stop, ends))

    def broken(self, error: BaseException) -> Sequence[TurnEvent]:
        """The last events when `error` ends the turn: what was written until then, if anything was."""
        if not self._tokens:
            return ()
        usage = Usage(input=len(self.prompt.ids), output=len(self._tokens))
        if isinstance(error, KeyboardInterrupt):
            return (BrokenOff(self._message(usage, stop_reason="cancelled")),)
        said = str(error) or type(error).__name__
        return (BrokenOff(self._message(usage, stop_reason="error", error=said)),)

    def _collected(self, events: Sequence[Event]) -> Sequence[Event]:
        for event in events:
            self._collector.add(event)
        return events

    def _message(self, usage: Usage, **fields: Any) -> AssistantMessage:
        if self._prices is not None:
            usage = usage.model_copy(update={"cost": self._prices.cost(usage)})
        return AssistantMessage(
            id=f"msg_{secrets.token_hex(8)}",
            timestamp=datetime.now(UTC),
            content=tuple(map(as_part, self._collector.parts)),
            model=self._model,
            raw="".join(token.text for token in self._tokens),
            usage=usage,
            **fields,
        )


def as_part(part: Part, call_id: str = "") -> AssistantPart:
    """What the parser read, as a part of a message. `call_id`: of a call; by default a new one."""
    call_id = call_id or f"call_{secrets.token_hex(8)}"
    match part:
        case ParsedText(text=text):
            return TextPart(text=text)
        case ParsedReasoning(text=text):
            return ReasoningPart(text=text)
        case CallPart():
            # From the text: a reader of the events may have changed the arguments that they hold.
            text = part.arguments_text
            if part.repaired:  # it may have a key twice
                text = json.dumps(json.loads(text), ensure_ascii=False)
            return ToolCallPart(
                id=call_id, name=part.name, arguments_text=text, repaired=part.repaired, fits=part.fits
            )
        case MalformedPart():
            return MalformedToolCallPart(
                id=call_id,
                raw=part.raw,
                reason=part.reason,
                name=part.name,
                partial=part.partial,
            )
        case _:
            assert_never(part)
