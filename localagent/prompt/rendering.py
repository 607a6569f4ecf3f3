"""The prompt of the next turn: a request, written for the model's chat template and rendered by its host."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from localagent.errors import TemplateFailed, UsageError
from localagent.messages import Message, ModelMessage, ToolMessage
from localagent.prompt.probe import TemplateSupport, probe
from localagent.prompt.request import Request, build_request
from localagent.prompt.segments import Prompt
from localagent.prompt.variables import TARGET, join_users, to_wire
from parsers import Dialect

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
    ) -> Prompt:
        """Render template variables (see `variables`) to a prompt for the model to continue.

        `limit`: with many more tokens than this, it may stop early and raise ContextOverflow; by default what
        the context holds, infinity for the whole prompt at any cost. Raises TemplateFailed.
        """


def request_for(host: Renderer, messages: Sequence[Message], name: str | None = None) -> Request:
    """What is sent of a conversation. `name`: of the model, for warnings and errors.

    Raises Unsupported, UnpairedResult.
    """
    return build_request(messages, dataclasses.replace(TARGET, name=name or host.name))


def render_turn(
    host: Renderer,
    dialect: Dialect,
    request: Request,
    tools: Sequence[ToolSchema] | None = None,
    limit: float | None = None,
) -> Prompt:
    """The prompt for the next turn. `limit`: see `Renderer.render`.

    Raises UsageError, TemplateFailed, ContextOverflow.
    """
    if not request.messages:
        raise UsageError("a conversation needs at least one message")
    if tools and not dialect.renderers:
        raise UsageError(
            f"{host.name} takes no tools: its dialect {dialect.name!r} has no tool calls; if the model does "
            "write calls, name the dialect that it writes"
        )
    render = host.render if limit is None else functools.partial(host.render, limit=limit)
    try:
        prompt = _render(host, render, dialect, request.messages, tools or None)
    except TemplateFailed:
        joined = join_users(request.messages)  # some templates want the roles to take turns
        if len(joined) == len(request.messages):
            raise
        prompt = _render(host, render, dialect, joined, tools or None)
    opened = opens_reasoning(dialect, prompt.text if prompt.tail is None else prompt.tail)
    return dataclasses.replace(prompt, inside="reasoning" if opened else None)


def opens_reasoning(dialect: Dialect, prompt: str) -> bool:
    """Whether a prompt that ends like this leaves the reasoning of `dialect` open."""
    span = dialect.reasoning
    if span is None:
        return False
    spelled = (marker for marker in dialect.spellings if dialect.means(marker) == span.open)
    return prompt.rstrip().endswith(tuple(marker.rstrip() for marker in (span.open, *spelled)))


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
    return render(to_wire(messages, dialect, _support(host)), tools)


def _shows(prompt: Prompt, message: ToolMessage) -> bool:
    """Whether the results stand in the prompt, as far as their longest words in a row can tell."""
    rows = (re.findall(r"[\w ]+", result.text) for result in message.results)
    return all(max(row, key=len).strip() in prompt.text for row in rows if row)


def _support(host: Renderer) -> TemplateSupport:
    """What the host's template shows: probed once, since it never changes."""
    try:
        return _probed[host]
    except (TypeError, KeyError):  # the former: a host that cannot be hashed or referred to weakly
        found = probe(lambda turns: host.render(turns).text)
    with suppress(TypeError):
        _probed[host] = found
    return found


_probed: WeakKeyDictionary[Renderer, TemplateSupport] = WeakKeyDictionary()
