"""One model turn: render, generate, parse, collect.

    messages + tools --render--> Prompt --generate--> Token --feed--> Event --collect--> AssistantMessage

Everything above (command line, server, agent) consumes the one event stream made here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, assert_never
from weakref import WeakKeyDictionary

from localagent.dialects import opens_reasoning
from localagent.errors import TemplateFailed, UsageError
from localagent.hosts.protocol import Finish, Host, Logprobs, Prefilled, Prompt, Token
from localagent.hosts.sampling import Sampling
from localagent.messages import (
    AssistantMessage,
    AssistantPart,
    MalformedToolCallPart,
    Message,
    ModelMessage,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolMessage,
    Usage,
)
from localagent.request import Request, RequestWarning, build_request
from localagent.wire import chat_template
from parsers import CallPart, Collector, Dialect, Event, MalformedPart, Part, StreamParser
from parsers import ReasoningPart as ParsedReasoning
from parsers import TextPart as ParsedText

ToolSchema = Mapping[str, Any]
"""An OpenAI function tool: {"type": "function", "function": {"name", "description", "parameters"}}."""


@dataclass(frozen=True, slots=True)
class Done:
    """The last event of a turn: the whole message, and the ids of the tokens the model generated.

    `logprobs` has one entry for each of them if `Sampling.logprobs` asked for it; else it is empty.
    """

    message: AssistantMessage
    token_ids: tuple[int, ...]
    logprobs: tuple[Logprobs, ...] = ()


TurnEvent = Event | RequestWarning | Prefilled | Done


def render_turn(
    host: Host,
    dialect: Dialect,
    request: Request,
    tools: Sequence[ToolSchema] | None,
    limit: float | None = None,
) -> Prompt:
    """The prompt for the next turn. `limit`: see `Host.render`.

    Raises UsageError, TemplateFailed, ContextOverflow.
    """
    if not request.messages:
        raise UsageError("a conversation needs at least one message")
    if tools and not dialect.renderers:
        raise UsageError(
            f"{host.name} reads no tools: its dialect {dialect.name!r} has no tool calls; if the model does "
            "write calls, name the dialect that it writes"
        )
    render = host.render if limit is None else functools.partial(host.render, limit=limit)
    try:
        prompt = _render(host, render, dialect, request.messages, tools or None)
    except TemplateFailed:
        joined = chat_template.join_users(request.messages)  # some templates want the roles to take turns
        if len(joined) == len(request.messages):
            raise
        prompt = _render(host, render, dialect, joined, tools or None)
    opened = opens_reasoning(dialect, prompt.text if prompt.tail is None else prompt.tail)
    return dataclasses.replace(prompt, inside="reasoning" if opened else None)


def _render(
    host: Host,
    render: Callable[..., Prompt],
    dialect: Dialect,
    messages: Sequence[ModelMessage],
    tools: Sequence[ToolSchema] | None,
) -> Prompt:
    """The conversation by the template, which is asked what it shows only where that decides something.

    That is so where tools were used and the dialect cannot write calls, where the template frames content,
    and where it refuses or drops the results of calls that it has not seen.
    """
    results = [message for message in messages if isinstance(message, ToolMessage)]
    if not results or (dialect.renderers and not chat_template.frames_content(dialect)):
        try:
            prompt = render(chat_template.to_wire(messages, dialect), tools)
        except TemplateFailed:
            if not results:
                raise
        else:
            if not results or not prompt.text or _shows(prompt, results[-1]):
                return prompt
    return render(chat_template.to_wire(messages, dialect, _support(host)), tools)


def _shows(prompt: Prompt, message: ToolMessage) -> bool:
    """Whether the results stand in the prompt, as far as their longest words in a row can tell."""
    rows = (re.findall(r"[\w ]+", result.text) for result in message.results)
    return all(max(row, key=len).strip() in prompt.text for row in rows if row)


def _support(host: Host) -> chat_template.TemplateSupport:
    """What the host's template shows. It never changes, so it is found out once where a host can be kept."""
    with contextlib.suppress(TypeError, KeyError):
        return _known_support[host]
    found = chat_template.probe(lambda turns: host.render(turns).text)
    with contextlib.suppress(TypeError):
        _known_support[host] = found
    return found


_known_support: WeakKeyDictionary[Host, chat_template.TemplateSupport] = WeakKeyDictionary()


def render_messages(
    host: Host,
    dialect: Dialect,
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None = None,
    name: str | None = None,
    limit: float | None = None,
) -> Prompt:
    """The prompt that `run_turn` gives the model. `limit`: see `Host.render`.

    Raises UsageError, TemplateFailed, ContextOverflow.
    """
    return render_turn(host, dialect, _request(host, messages, name), tools, limit)


def _request(host: Host, messages: Sequence[Message], name: str | None) -> Request:
    return build_request(messages, dataclasses.replace(chat_template.TARGET, name=name or host.name))


_WRITTEN = "localagent_written"
"""The attribute of an exception that broke off a turn: what was written until then."""


def run_turn(
    host: Host,
    dialect: Dialect,
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None = None,
    sampling: Sampling | None = None,
    cancel: threading.Event | None = None,
    name: str | None = None,
    progress: bool = False,
) -> Iterator[TurnEvent]:
    """Run one turn: warnings about the request, parser events as they arrive, then Done.

    `progress` asks for the progress of the prefill, too, as `Prefilled`, before the first event. `cancel`
    ends the generation at the next token; the turn then still ends in Done. Closing the iterator does so
    without. `name` is how the message names the model, by default as the weights do. Raises UsageError,
    TemplateFailed, ContextOverflow, EngineFailed; `written_before` has what was written until then.
    """
    request = _request(host, messages, name)
    prompt = render_turn(host, dialect, request, tools)
    yield from request.warnings
    atomic = host.special_tokens.intersection((*dialect.markers, *dialect.cores.values()))
    parser = StreamParser(dialect, tools=tools, inside=prompt.inside, atomic=atomic)
    draft = _Draft(name or host.name)
    generation = host.generate(prompt, sampling or Sampling(), cancel)
    try:
        for token in generation.steps():
            if isinstance(token, Prefilled):
                if progress:
                    yield token
                continue
            draft.take(token)
            if token.end and token.text not in dialect.markers:
                continue  # the engine's end token means nothing to this dialect; `raw` keeps it
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
        setattr(error, _WRITTEN, draft.broken(prompt, error))
        raise
    finally:
        generation.close()


def written_before(error: BaseException) -> AssistantMessage | None:
    """What the model had written when `error` broke off a turn, with "error" or "cancelled" as stop reason.

    None where it had not written a word.
    """
    message = getattr(error, _WRITTEN, None)
    return message if isinstance(message, AssistantMessage) else None


@dataclass(slots=True)
class _Draft:
    """A turn while it is written."""

    model: str
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
        return self._message(
            stop_reason=finish.stop_reason,
            usage=Usage(input=finish.prompt, output=finish.generated, cache_read=finish.cached),
            timings=finish.timings,
        )

    def broken(self, prompt: Prompt, error: BaseException) -> AssistantMessage | None:
        """What there is of the turn that `error` broke off."""
        if not self.ids:
            return None
        usage = Usage(input=len(prompt.ids), output=len(self.ids))
        if isinstance(error, KeyboardInterrupt):
            return self._message(stop_reason="cancelled", usage=usage)
        return self._message(stop_reason="error", usage=usage, error=str(error) or type(error).__name__)

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
