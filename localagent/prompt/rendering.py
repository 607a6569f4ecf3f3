"""The prompt of the next turn: a request, written for the model's chat template and rendered by its host."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from localagent.errors import TemplateFailed, Unsupported, UsageError
from localagent.messages import (
    AssistantMessage,
    Message,
    ModelMessage,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolMessage,
)
from localagent.parsers import Dialect
from localagent.prompt.probe import probe
from localagent.prompt.request import Request, build_request
from localagent.prompt.segments import Mixed, Prompt, Trusted
from localagent.prompt.thinking import (
    Switch,
    Thinking,
    ThinkingPlan,
    ThinkingSupport,
    check_thinking,
    opens_reasoning,
    plan_thinking,
    probe_thinking,
)
from localagent.prompt.variables import TARGET, join_users, to_wire

T = TypeVar("T")
ToolSchema = Mapping[str, Any]
"""An OpenAI function tool: {"type": "function", "function": {"name", "description", "parameters"}}."""


class Renderer(Protocol):
    """What is needed of a host here: the model's name, its chat template and its tokenizer."""

    @property
    def name(self) -> str:
        """The model's name as its weights give it, for messages and logs."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        limit: float | None = None,
        **variables: Any,
    ) -> Prompt:
        """Render a conversation (see `variables`) to a prompt for the model to continue.

        `limit`: with many more tokens than this, it may stop early and raise ContextOverflow; by default what
        the context holds, infinity for the whole prompt at any cost. `variables`: more of them for the
        template, and `prefill`, for which see `ChatTemplate.render`. Raises TemplateFailed.
        """

    def write(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The text of such a prompt alone. The engine is not asked for tokens, so nobody waits for it.

        Raises TemplateFailed.
        """


def request_for(host: Renderer, messages: Sequence[Message], name: str | None = None) -> Request:
    """What is sent of a conversation. `name`: of the model, for warnings and errors.

    Raises Unsupported, UnpairedResult.
    """
    return build_request(messages, dataclasses.replace(TARGET, name=name or host.name))


def thinking_for(
    host: Renderer,
    dialect: Dialect,
    request: Request,
    tools: Sequence[ToolSchema] | None = None,
    thinking: Thinking = None,
    budget: int | None = None,
    name: str | None = None,
    ends: bool = False,
) -> ThinkingPlan:
    """What is done to make the model think, or not. The template is only asked if anything is wanted.

    `budget`: tokens. `name`: of the model, for warnings. `ends`: the reasoning may be ended by other means
    than the budget. Raises UsageError.
    """
    check_thinking(thinking, budget)
    if thinking is None and budget is None and not ends:
        return ThinkingPlan()
    system = any(isinstance(message, SystemMessage) for message in request.messages[:1])
    support = thinking_support(host, dialect, tools=bool(tools), system=system)
    return plan_thinking(support, thinking, budget, name or host.name)


def thinking_support(
    host: Renderer, dialect: Dialect, *, tools: bool = False, system: bool = False
) -> ThinkingSupport:
    """What the host's template can be told about thinking, beside tools and a system message or without."""
    return _once(
        host,
        (dialect, tools, system),
        lambda: probe_thinking(host.write, dialect, tools=tools, system=system),
    )


def render_turn(
    host: Renderer,
    dialect: Dialect,
    request: Request,
    tools: Sequence[ToolSchema] | None = None,
    limit: float | None = None,
    switch: Switch | None = None,
    name: str | None = None,
    begun: AssistantMessage | None = None,
) -> Prompt:
    """The prompt for the next turn. `limit`: see `Renderer.render`; `switch`: what is said about thinking;
    `name`: of the model, for errors; `begun`: the first words of the turn, with which the model goes on.

    Raises UsageError, TemplateFailed, ContextOverflow.
    """
    if not request.messages:
        raise UsageError("a conversation needs at least one message")
    if tools and not dialect.renderers:
        raise UsageError(
            f"{name or host.name} takes no tools: its dialect {dialect.name!r} has no tool calls; if the "
            "model does write calls, name the dialect that it writes"
        )
    render = host.render if limit is None else functools.partial(host.render, limit=limit)
    messages: Sequence[ModelMessage] = request.messages
    if switch is not None:
        render = functools.partial(render, **switch.variables)
        messages = switch.said_in(messages)
    try:
        prompt = _render(host, render, dialect, messages, tools or None)
    except TemplateFailed:
        joined = join_users(messages)  # some templates want the roles to take turns
        if len(joined) == len(messages):
            raise
        messages = joined
        prompt = _render(host, render, dialect, messages, tools or None)
    opened = opens_reasoning(dialect, prompt.text if prompt.tail is None else prompt.tail)
    if begun is not None and begun.content:
        closing = thinking_support(host, dialect, tools=bool(tools)).closing if opened else None
        words = _first_words(begun, dialect, closing, name or host.name)
        render = functools.partial(render, prefill=words)
        return _render(host, render, dialect, messages, tools or None)
    return dataclasses.replace(prompt, inside="reasoning" if opened else None)


def _first_words(begun: AssistantMessage, dialect: Dialect, closing: str | None, name: str) -> Mixed:
    """What a turn begins with. `closing`: what ends the reasoning, where the template has opened it.

    Raises Unsupported.
    """
    why = ""
    if dialect.frames_content:
        why = f"text in its dialect {dialect.name!r} stands in frames that only the model can open"
    elif not all(isinstance(part, TextPart | ReasoningPart) for part in begun.content):
        why = "it holds more than text"
    elif begun.reasoning and closing is None:
        why = "it holds reasoning, which the chat template does not open"
    if why:
        raise Unsupported(f"{name} cannot go on with a last message of the assistant: {why}")
    if closing is None:
        return Mixed((begun.text,))
    return Mixed((begun.reasoning, Trusted(closing), begun.text))


def _render(
    host: Renderer,
    render: Callable[..., Prompt],
    dialect: Dialect,
    messages: Sequence[ModelMessage],
    tools: Sequence[ToolSchema] | None,
) -> Prompt:
    """The conversation through the template, which is probed only where its answer decides something.

    That is where tools were used and the dialect cannot write calls, where the template frames content, and
    where it refuses or drops the results of calls that it has not seen.
    """
    results = [message for message in messages if isinstance(message, ToolMessage)]
    if not results or (dialect.renderers and not dialect.frames_content):
        try:
            prompt = render(to_wire(messages, dialect), tools)
        except TemplateFailed:
            if not results:
                raise
        else:
            if not results or not prompt.text or _shows(prompt, results[-1]):
                return prompt
    support = _once(host, "calls", lambda: probe(host.write))
    return render(to_wire(messages, dialect, support), tools)


def _shows(prompt: Prompt, message: ToolMessage) -> bool:
    """Whether the results stand in the prompt, as far as their longest words in a row can tell."""
    rows = (re.findall(r"[\w ]+", result.text) for result in message.results)
    return all(max(row, key=len).strip() in prompt.text for row in rows if row)


def _once(host: Renderer, what: Hashable, ask: Callable[[], T]) -> T:
    """What is found out by `ask`, once for each host, since its template never changes."""
    try:
        known = _probed.setdefault(host, {})
    except TypeError:  # a host that cannot be hashed or referred to weakly
        return ask()
    if what not in known:
        known[what] = ask()
    return cast(T, known[what])


_probed: WeakKeyDictionary[Renderer, dict[Hashable, Any]] = WeakKeyDictionary()
