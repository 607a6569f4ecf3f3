"""Middleware: what may step in at seven places of a run.

    before_turn(run)                  the history may be changed, as compaction does
    system_prompt(run)                text that is added to the instructions of this request
    rewrite_messages(messages, run)   what this request tells of the conversation, which stays as it is
    before_model(request, run)        the whole request; an AssistantMessage instead saves asking the model
    after_model(message, run)         the model's message before it is kept
    around_tool(call, proceed, run)   one call; `proceed(call)` runs it and returns its result
    on_message(message, run)          every message that is kept: the user's, the model's, results, rescues

A middleware is an object with any of these methods, or a function marked `@middleware("before_model")` and
so on. All may be async; then `proceed` is awaited. The first middleware of an agent is the outermost:
`before_...`, `system_prompt` and `rewrite_messages` are called from the first to the last, `after_model` and
`on_message` from the last to the first, and `around_tool` of the first holds all others. A hook that returns
None changes nothing. `before_turn` may return an iterator of events, which the run yields. An exception in a
hook ends the run, except in `around_tool`, which runs in the thread of its call and has it as result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from localagent.agent.waiting import Coroutines, in_thread
from localagent.errors import UsageError
from localagent.messages import AssistantMessage, BaseMessage, Message, ToolCallPart, ToolResultPart
from localagent.turn import ToolSchema

if TYPE_CHECKING:
    import asyncio

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
    """Sampling options as `Model.stream` takes them."""


def middleware(hook: str) -> Callable[[F], F]:
    """Mark a function as a middleware of one hook. Raises UsageError for a hook that there is not."""
    if hook not in HOOKS:
        raise UsageError(f"no hook {hook!r:.40}: there are {', '.join(HOOKS)}")

    def mark(function: F) -> F:
        function.localagent_hook = hook  # type: ignore[attr-defined]
        return function

    return mark


class Stack:
    """The middleware of one agent, in order. Knows how to call hooks, not when."""

    def __init__(self, items: Iterable[object]) -> None:
        """Raises UsageError for what has no hook."""
        self.items = tuple(items)
        self._hooks: dict[str, list[Callable[..., Any]]] = {hook: [] for hook in HOOKS}
        for item in self.items:
            found = dict(_hooks_of(item))
            if not found:
                raise UsageError(
                    f"{item!r:.60} is no middleware: it needs a method such as before_model, or "
                    '@middleware("before_model")'
                )
            for hook, method in found.items():
                self._hooks[hook].append(method)

    def before_turn(self, run: object, coroutines: Coroutines) -> Iterable[Iterable[Any]]:
        """Call the hooks, one for each step; what each yields are events."""
        for hook in self._hooks["before_turn"]:
            yield coroutines.settle(hook(run)) or ()

    def system_prompt(self, run: object, coroutines: Coroutines) -> list[str]:
        """The texts that are added to the instructions."""
        texts = (coroutines.settle(hook(run)) for hook in self._hooks["system_prompt"])
        return [_checked(text, str, "system_prompt") for text in texts if text is not None]

    def rewrite_messages(
        self, messages: Sequence[Message], run: object, coroutines: Coroutines
    ) -> list[Message]:
        """The conversation as this request tells it."""
        told: list[Any] = list(messages)
        for hook in self._hooks["rewrite_messages"]:
            if (changed := coroutines.settle(hook(tuple(told), run))) is not None:
                told = [_checked(message, BaseMessage, "rewrite_messages") for message in changed]
        return told

    def before_model(
        self, request: ModelRequest, run: object, coroutines: Coroutines
    ) -> ModelRequest | AssistantMessage:
        """The request as it goes out, or the message that stands for an answer of the model."""
        for hook in self._hooks["before_model"]:
            changed = coroutines.settle(hook(request, run))
            if isinstance(changed, AssistantMessage):
                return changed
            request = request if changed is None else _checked(changed, ModelRequest, "before_model")
        return request

    def after_model(self, message: AssistantMessage, run: object, coroutines: Coroutines) -> AssistantMessage:
        """The message that is kept."""
        for hook in reversed(self._hooks["after_model"]):
            changed = coroutines.settle(hook(message, run))
            message = message if changed is None else _checked(changed, AssistantMessage, "after_model")
        return message

    def on_message(self, message: Message, run: object, coroutines: Coroutines) -> None:
        """Tell of a message that was kept."""
        for hook in reversed(self._hooks["on_message"]):
            coroutines.settle(hook(message, run))

    def around_tool(self, run: object, proceed: Proceed, coroutines: Coroutines) -> Proceed:
        """`proceed` with all the hooks around it. To be called in a thread of its own."""
        for hook in reversed(self._hooks["around_tool"]):
            proceed = partial(_around, hook, proceed, run, coroutines)
        return proceed


def _hooks_of(item: object) -> Iterable[tuple[str, Callable[..., Any]]]:
    if (marked := getattr(item, "localagent_hook", None)) is not None and callable(item):
        yield marked, item
        return
    for hook in HOOKS:
        if callable(method := getattr(item, hook, None)) and not isinstance(item, type):
            yield hook, method


def _around(
    hook: Callable[..., Any], proceed: Proceed, run: object, coroutines: Coroutines, call: ToolCallPart
) -> ToolResultPart:
    if not inspect.iscoroutinefunction(hook):
        return _checked(hook(call, proceed, run), ToolResultPart, "around_tool")

    def awaited(call: ToolCallPart) -> asyncio.Future[ToolResultPart]:
        from asyncio import wrap_future

        return wrap_future(in_thread(partial(proceed, call), f"localagent-{call.name:.20}"))

    return _checked(coroutines.settle(hook(call, awaited, run)), ToolResultPart, "around_tool")


def _checked(value: object, kind: type[T], hook: str) -> T:
    if not isinstance(value, kind):
        raise UsageError(f"the hook {hook} returned {value!r:.60}: it must return {kind.__name__} or None")
    return value
