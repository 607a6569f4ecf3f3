"""Middleware: what may step in at seven places of a run.

    before_turn(run)                  the history may be changed, as compaction does
    system_prompt(run)                text that is added to the instructions of this request
    rewrite_messages(messages, run)   what this request tells of the conversation, which stays as it is
    before_model(request, run)        the whole request; an AssistantMessage instead saves asking the model;
                                      `request.prompt()` renders it for hooks that ask
    after_model(message, run)         the model's message before it is kept
    around_tool(call, proceed, run)   one call; `proceed(call)` runs it and returns its result
    on_message(message, run)          every message that is kept: the user's, the model's, results, rescues,
                                      and summaries of compaction

A middleware is an object with any of these methods, or a function marked `@middleware("before_model")` and
so on. All may be async; then `proceed` is awaited. The first middleware of an agent is the outermost:
`before_...`, `system_prompt` and `rewrite_messages` are called from the first to the last, `after_model` and
`on_message` from the last to the first, and `around_tool` of the first holds all others. A hook that returns
None changes nothing. `before_turn` may return an iterator of events, also an async one, which the run yields.
`rewrite_messages` should be pure: compaction also calls it, to see how long a request would be after a cut.
An exception in a hook ends the run, except in `around_tool`: that runs in the thread of its call, and an
exception becomes the call's error result.

`run` is the `Run`. Built-in middleware says in a protocol what it needs of one.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from localagent.agent.concurrency import GRACE, Coroutines, in_thread
from localagent.chat_model import ChatModel
from localagent.control import prompt_options
from localagent.errors import UsageError
from localagent.messages import AssistantMessage, BaseMessage, Message, ToolCallPart, ToolResultPart, explain
from localagent.prompt import Prompt
from localagent.prompt.rendering import ToolSchema

HOOKS = (
    "before_turn",
    "system_prompt",
    "rewrite_messages",
    "before_model",
    "after_model",
    "around_tool",
    "on_message",
)
"""The methods that a middleware may have."""
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Proceed = Callable[[ToolCallPart], ToolResultPart]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What the model is about to be asked."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    sampling: dict[str, Any] = field(default_factory=dict)
    """The options of the turn as `Model.stream` takes them."""
    model: ChatModel | None = field(default=None, repr=False, compare=False)
    """Who is asked. The run fills it in: a hook that makes a request need not."""

    def prompt(self) -> Prompt:
        """What the model would be given: `text`, and the tokens as `ids`. Rendered anew by each call.

        However long it is, all of it. Raises UsageError, TemplateFailed, Unsupported, UnpairedResult.
        """
        if (model := self.model) is None:
            raise UsageError("there is no prompt: this request belongs to no model; give it one with model=")
        return model.render(self.messages, tools=self.tools, **prompt_options(self.sampling))


def middleware(hook: str) -> Callable[[F], F]:
    """Mark a function as a middleware with this one hook. Raises UsageError for an unknown hook."""
    if hook not in HOOKS:
        raise UsageError(f"no hook {hook!r:.40}: the hooks are {', '.join(HOOKS)}")

    def mark(function: F) -> F:
        function.localagent_hook = hook  # type: ignore[attr-defined]
        return function

    return mark


class Stack:
    """The middleware of one agent, in order, and its methods by hook."""

    def __init__(self, items: Iterable[object]) -> None:
        """Raises UsageError for an item without a hook."""
        if not isinstance(items, Iterable) or isinstance(items, str):
            raise UsageError("middleware must be a list: put it in brackets")
        self.items = tuple(items)
        self.hooks: dict[str, list[Callable[..., Any]]] = {hook: [] for hook in HOOKS}
        for item in self.items:
            found = dict(_hooks_of(item))
            if not found:
                raise UsageError(
                    f"{item!r:.60} is no middleware: it needs a method such as before_model, or "
                    'the decorator @middleware("before_model")'
                )
            for hook, method in found.items():
                self.hooks[hook].append(method)


class CancelledRun(Protocol):
    """What calling hooks needs of a run: when to stop awaiting them."""

    @property
    def cancel(self) -> threading.Event:
        """Set when the run is cancelled."""


class Hooks:
    """The hooks of a stack, called for one run, which says when. Raises Cancelled."""

    def __init__(self, stack: Stack, run: CancelledRun, coroutines: Coroutines) -> None:
        self._hooks = stack.hooks
        self._run = run
        self._coroutines = coroutines

    def before_turn(self) -> Iterator[Any]:
        """Call the hooks; the events that they return."""
        for hook in self._hooks["before_turn"]:
            events = self._call(hook)
            if isinstance(events, AsyncIterator):
                while (event := self._settle(anext(events, None))) is not None:
                    yield event
            else:
                yield from events or ()

    def system_prompt(self) -> list[str]:
        """The texts that are added to the instructions."""
        texts = (self._call(hook) for hook in self._hooks["system_prompt"])
        return [_checked(text, str, "system_prompt") for text in texts if text is not None]

    def rewrite_messages(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation as this request tells it."""
        told: list[Any] = list(messages)
        for hook in self._hooks["rewrite_messages"]:
            if (changed := self._call(hook, tuple(told))) is not None:
                told = [_checked(message, BaseMessage, "rewrite_messages") for message in changed]
        return told

    def before_model(self, request: ModelRequest) -> ModelRequest | AssistantMessage:
        """The request as it goes out, or the message that stands for an answer of the model."""
        for hook in self._hooks["before_model"]:
            changed = self._call(hook, request)
            if isinstance(changed, AssistantMessage):
                return changed
            if changed is not None:
                request = replace(_checked(changed, ModelRequest, "before_model"), model=request.model)
        return request

    def after_model(self, message: AssistantMessage) -> AssistantMessage:
        """The message that is kept."""
        for hook in reversed(self._hooks["after_model"]):
            changed = self._call(hook, message)
            message = message if changed is None else _checked(changed, AssistantMessage, "after_model")
        return message

    def on_message(self, message: Message) -> None:
        """Tell the hooks of a message that was kept."""
        for hook in reversed(self._hooks["on_message"]):
            self._call(hook, message)

    def around_tool(self, proceed: Proceed, cancel: threading.Event) -> Proceed:
        """`proceed` with all the hooks around it. To be called in the thread of the call."""
        for hook in reversed(self._hooks["around_tool"]):
            proceed = partial(self._around, hook, proceed, cancel)
        return proceed

    def _around(
        self, hook: Callable[..., Any], proceed: Proceed, cancel: threading.Event, call: ToolCallPart
    ) -> ToolResultPart:
        def awaited(call: ToolCallPart) -> asyncio.Future[ToolResultPart]:
            return asyncio.wrap_future(in_thread(partial(proceed, call), f"localagent-{call.name:.20}"))

        held = awaited if inspect.iscoroutinefunction(hook) else proceed
        result = self._coroutines.settle(hook(call, held, self._run), cancel)
        made = _checked(result, ToolResultPart, "around_tool")
        try:  # a hook often changes the result by model_copy, which validates nothing
            return ToolResultPart.model_validate(made.model_dump(warnings=False))
        except ValidationError as error:
            raise UsageError(
                f"the hook around_tool returned an invalid result: {explain(error, 'result')}"
            ) from None

    def _call(self, hook: Callable[..., Any], *arguments: Any) -> Any:
        return self._settle(hook(*arguments, self._run))

    def _settle(self, value: Any) -> Any:
        return self._coroutines.settle(value, self._run.cancel, GRACE)


def _hooks_of(item: object) -> Iterable[tuple[str, Callable[..., Any]]]:
    if (marked := getattr(item, "localagent_hook", None)) is not None and callable(item):
        yield marked, item
        return
    for hook in HOOKS:
        if callable(method := getattr(item, hook, None)) and not isinstance(item, type):
            yield hook, method


def _checked(value: object, kind: type[T], hook: str) -> T:
    if not isinstance(value, kind):
        raise UsageError(f"the hook {hook} returned {value!r:.60}: it must return {kind.__name__} or None")
    return value
