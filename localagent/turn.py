"""One turn of the model: render, generate, parse, collect.

    messages + tools --render--> Prompt --generate--> Token --feed--> Event --collect--> AssistantMessage

The command line, the server and the agent all consume this one stream of events. `LocalTurn` makes it from
a `TurnInput` and the steps of a generation; `Model` brings it those, in a thread or on an event loop.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any, assert_never

from localagent.control import Control, TurnOptions
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
from localagent.parsers import CallPart, Collector, Dialect, Event, MalformedPart, Part, StreamParser
from localagent.parsers import ReasoningPart as ParsedReasoning
from localagent.parsers import TextPart as ParsedText
from localagent.prompt import RequestWarning
from localagent.prompt.rendering import ToolSchema, render_turn, request_for, thinking_for

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnInput:
    """All that a model is given for one turn: the arguments of `ChatModel.stream`, once they are checked, and
    what the model adds to them.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSchema] | None
    sampling: Sampling
    """The model's own, with the turn's options in place of some."""
    control: Control
    options: TurnOptions
    """Those that the turn itself was given, of both: a server is told no others."""
    cancel: CancelFlag | None
    progress: bool
    """Whether `Queued`, `Prefilled` and `Scored` are among the events."""
    name: str
    """The model's, for its message, warnings and errors."""
    prices: Prices | None
    """For the cost in the usage."""


class LocalTurn:
    """All of a turn but the generating: it renders the request, is fed the steps of the generation, and gives
    the events of the turn. Whether the steps come in a thread or on an event loop makes no difference.

    A turn that ends in calls has the stop reason "tool_calls".
    """

    def __init__(self, host: Host, dialect: Dialect, given: TurnInput) -> None:
        """Render the request and compile its grammar, which takes a while if they are long.

        Raises UsageError, GrammarMissing, TemplateFailed, ContextOverflow.
        """
        # Here, since a model on a server needs none of it: a chat with one would start later for nothing.
        from localagent.constraint.ending import ending_for
        from localagent.constraint.request import guided

        messages, tools, control, name = given.messages, given.tools, given.control, given.name
        begun: AssistantMessage | None = None
        if control.continue_final_message:
            last = messages[-1] if messages else None
            if not isinstance(last, AssistantMessage):
                raise UsageError("continue_final_message: the last message must be the assistant's")
            messages, begun = messages[:-1], last
            # What is a call only as the whole of a turn is none after these words.
            dialect = replace(dialect, bare=None)
        request = request_for(host, messages, name)
        thinking, budget, flag = control.thinking, control.thinking_budget, control.end_thinking
        plan = thinking_for(host, dialect, request, tools, thinking, budget, name, ends=flag is not None)
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
        self._given = given

    def feed(self, step: Step) -> Sequence[TurnEvent]:
        """The events that the next step brings."""
        if not isinstance(step, Token):
            return (step,) if self._given.progress else ()
        self._tokens.append(step)
        self._written += len(step.text)
        scored: tuple[TurnEvent, ...] = ()
        if self._given.progress and step.logprobs is not None:
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
        if (prices := self._given.prices) is not None:
            usage = usage.model_copy(update={"cost": prices.cost(usage)})
        return AssistantMessage(
            id=f"msg_{secrets.token_hex(8)}",
            timestamp=datetime.now(UTC),
            content=tuple(map(as_part, self._collector.parts)),
            model=self._given.name,
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
