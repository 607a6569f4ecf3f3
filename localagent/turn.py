"""One turn of the model: render, generate, parse, collect.

    messages + tools --render--> Prompt --generate--> Token --feed--> Event --collect--> AssistantMessage

The command line, the server and the agent all consume this one stream of events.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, assert_never

from localagent.hosts.protocol import Finish, Host, Logprobs, Prefilled, Token
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
from localagent.prompt import Prompt, RequestWarning
from localagent.prompt.rendering import ToolSchema, render_turn, request_for
from parsers import CallPart, Collector, Dialect, Event, MalformedPart, Part, StreamParser
from parsers import ReasoningPart as ParsedReasoning
from parsers import TextPart as ParsedText


@dataclass(frozen=True, slots=True)
class Done:
    """The last event of a turn: the whole message, and the ids of the generated tokens.

    `logprobs` has an entry for each token if `Sampling.logprobs` asked for them; else it is empty.
    """

    message: AssistantMessage
    token_ids: tuple[int, ...]
    logprobs: tuple[Logprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokenOff:
    """The last event of a turn that an error or Ctrl-C broke off: what the model had written so far.

    The error is raised next. If nothing had been written, the error comes without this event.
    """

    message: AssistantMessage


TurnEvent = Event | RequestWarning | Prefilled | BrokenOff | Done


def run_turn(
    host: Host,
    dialect: Dialect,
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None = None,
    sampling: Sampling | None = None,
    cancel: threading.Event | None = None,
    name: str | None = None,
    progress: bool = False,
    prices: Prices | None = None,
) -> Iterator[TurnEvent]:
    """Run one turn: warnings about the request, parser events as they arrive, then Done.

    With `progress`, `Prefilled` events report the prefill before the first event. Setting `cancel` ends the
    generation at the next token, and the turn still ends in Done; closing the iterator ends it without Done.
    `name`: the model's name in the message, by default the one in the weights. `prices`: for the cost in its
    usage. A turn that ends in calls has the stop reason "tool_calls". Raises UsageError, TemplateFailed,
    ContextOverflow, EngineFailed; a turn that breaks off midway yields BrokenOff first.
    """
    request = request_for(host, messages, name)
    prompt = render_turn(host, dialect, request, tools)
    yield from request.warnings
    atomic = host.special_tokens.intersection((*dialect.markers, *dialect.cores.values()))
    parser = StreamParser(dialect, tools=tools, inside=prompt.inside, atomic=atomic)
    draft = _Draft(name or host.name, prices)
    generation = host.generate(prompt, sampling or Sampling(), cancel)
    try:
        for token in generation.steps():
            if isinstance(token, Prefilled):
                if progress:
                    yield token
                continue
            draft.take(token)
            if token.end and token.text not in dialect.markers:
                continue  # an end token that is no marker of this dialect is only for `raw`
            for event in parser.feed(token.text, token.special):
                draft.collector.add(event)
                yield event
        finish = generation.finish
        assert finish is not None
        for event in parser.close("stop" if finish.stop_reason == "stop" else "length"):
            draft.collector.add(event)
            yield event
        yield Done(draft.message(finish), tuple(draft.ids), tuple(draft.logprobs))
    except (Exception, KeyboardInterrupt) as error:
        if draft.ids:
            yield BrokenOff(draft.broken(prompt, error))
        raise
    finally:
        generation.close()


@dataclass(slots=True)
class _Draft:
    """A turn in progress."""

    model: str
    prices: Prices | None = None
    collector: Collector = field(default_factory=Collector)
    raw: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)

    def take(self, token: Token) -> None:
        """Note the next token."""
        self.ids.append(token.id)
        self.raw.append(token.text)
        if token.logprobs is not None:
            self.logprobs.append(token.logprobs)

    def message(self, finish: Finish) -> AssistantMessage:
        """The whole turn."""
        called = finish.stop_reason == "stop" and any(isinstance(p, CallPart) for p in self.collector.parts)
        usage = Usage(input=finish.prompt, output=finish.generated, cache_read=finish.cached)
        return self._message(
            stop_reason="tool_calls" if called else finish.stop_reason,
            usage=self._priced(usage),
            timings=finish.timings,
        )

    def broken(self, prompt: Prompt, error: BaseException) -> AssistantMessage:
        """The part of the turn that was written before `error`."""
        usage = self._priced(Usage(input=len(prompt.ids), output=len(self.ids)))
        if isinstance(error, KeyboardInterrupt):
            return self._message(stop_reason="cancelled", usage=usage)
        return self._message(stop_reason="error", usage=usage, error=str(error) or type(error).__name__)

    def _priced(self, usage: Usage) -> Usage:
        return usage.model_copy(update={"cost": self.prices.cost(usage)}) if self.prices else usage

    def _message(self, **fields: Any) -> AssistantMessage:
        return AssistantMessage(
            id=f"msg_{secrets.token_hex(8)}",
            timestamp=datetime.now(UTC),
            content=tuple(map(_part, self.collector.parts)),
            model=self.model,
            raw="".join(self.raw),
            **fields,
        )


def _part(part: Part) -> AssistantPart:
    match part:
        case ParsedText(text=text):
            return TextPart(text=text)
        case ParsedReasoning(text=text):
            return ReasoningPart(text=text)
        case CallPart():
            return ToolCallPart(
                id=f"call_{secrets.token_hex(8)}",
                name=part.name,
                arguments=part.arguments,
                arguments_text=_arguments_text(part),
                repaired=part.repaired,
            )
        case MalformedPart():
            return MalformedToolCallPart(
                id=f"call_{secrets.token_hex(8)}",
                raw=part.raw,
                reason=part.reason,
                name=part.name,
                partial=part.partial,
            )
        case _:
            assert_never(part)


def _arguments_text(part: CallPart) -> str:
    """The arguments as they were streamed; a repaired call may have written a key twice."""
    return json.dumps(part.arguments, ensure_ascii=False) if part.repaired else part.arguments_text
