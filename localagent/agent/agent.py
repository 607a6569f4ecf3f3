"""An agent: a model with tools, instructions and rules. This is what a user holds.

    agent = Agent(model, tools=[get_weather])
    for event in agent.run("Will it rain in Paris?"): ...
    async for event in agent.arun("Will it rain in Paris?"): ...

An agent is configuration and holds no conversation: that is in a list or a session of the caller's.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeGuard, Unpack, cast

from localagent.agent.approvals import Approvals, Approver, as_approvals
from localagent.agent.boundaries import is_answered, is_empty
from localagent.agent.builtin import ClipResults
from localagent.agent.compaction import CompactionEvent
from localagent.agent.concurrency import Coroutines, Stepper
from localagent.agent.events import AgentEvent, RunDone, RunFailed, is_piece
from localagent.agent.history import History, as_history, stamped
from localagent.agent.middleware import Stack
from localagent.agent.rules import Rule
from localagent.agent.run import Run
from localagent.chat_model import ChatModel, Conversation, as_conversation
from localagent.control import TurnOptions
from localagent.errors import UsageError
from localagent.hosts.protocol import Cancel
from localagent.messages import Message, UserMessage
from localagent.prompt.pairing import has_results
from localagent.prompt.request import build_request
from localagent.session import Session
from localagent.tools import Tool, ToolSet, as_tool
from localagent.wire import chat_template
from localagent.wording import listed

MOST_TOLD = 100_000
"""Characters of a tool's result in a request, unless a `ClipResults` says otherwise: some 25,000 tokens."""


class ToolSource(Protocol):
    """Says what tools there are now. It is asked at the start of a run and after a hand-over."""

    def tools(self) -> Sequence[Tool]:
        """The tools. A LocalAgentError raised here fails the run."""


class Agent:
    """A model that may call tools. Agents are cheap: make as many as there are tasks."""

    def __init__(
        self,
        model: ChatModel,
        tools: Sequence[Tool | Callable[..., Any] | ToolSource] = (),
        *,
        name: str | None = None,
        instructions: str | None = None,
        approvals: Approvals | Approver | Sequence[Rule] | None = None,
        middleware: Sequence[object] = (),
        max_turns: int = 10,
        max_rescues: int = 2,
        max_calls: int = 128,
        max_parallel: int = 32,
        tool_timeout: float | None = 120.0,
        sequential: bool = False,
        stop_after: Sequence[str] = (),
        **options: Unpack[TurnOptions],
    ) -> None:
        """`instructions` stand in front of every request and are not kept in the history.

        `approvals`: rules, an approver, or both as `Approvals`. Without, tools with side effects do not run,
        since nobody can be asked. `middleware`: see `middleware.py`; a `ClipResults` of your own replaces
        the one that bounds tool results by default. The model is asked at most `max_turns` times with tools,
        then once without. It is told what was wrong with its output at most `max_rescues` times in a row. Of
        the calls of one turn the first `max_calls` run, `max_parallel` of them at once. `tool_timeout`:
        seconds that a call may run, for tools without a limit of their own. `sequential`: one call at a time.
        `stop_after`: names of tools; the run ends after a turn in which one of them ran without an error.
        `options`: of its turns, as `Model.stream` takes them; a `tool_choice` that requires a call holds
        until one has been made, so that the run can come to an answer.

        Raises UsageError, and InvalidTool for a tool that is none or two tools of one name. What is wrong
        with the tools of a source fails the run, since they are not known before.
        """
        self.model = model
        self.name = _text("name", name)
        self.instructions = _text("instructions", instructions)
        self.approvals = as_approvals(approvals)
        self.stack = _clipping(Stack(middleware))
        self.max_turns = _at_least("max_turns", max_turns, 1)
        self.max_rescues = _at_least("max_rescues", max_rescues, 0)
        self.max_calls = _at_least("max_calls", max_calls, 1)
        self.max_parallel = _at_least("max_parallel", max_parallel, 1)
        self.tool_timeout = _seconds(tool_timeout)
        self.sequential = sequential
        self.sampling: TurnOptions = {**options}
        model.turn_options(options)
        if not isinstance(tools, Iterable) or isinstance(tools, str | bytes | Tool):
            raise UsageError(f"tools must be a list, not {tools!r:.40}: put the tool in brackets")
        self.stop_after = _names("stop_after", stop_after)
        self._tools: list[Tool | ToolSource] = []
        self._add(tools)
        if self.stop_after and not any(
            map(_is_source, self._tools)
        ):  # else it is looked at when a run begins
            self.toolset()

    def add_tool(self, tool: Tool | Callable[..., Any] | ToolSource) -> None:
        """Give the agent another tool, for the runs to come; one that is going on keeps those it has.

        Raises InvalidTool for what is no tool, and for a second one of the same name.
        """
        self._add([tool])

    def _add(self, tools: Iterable[Tool | Callable[..., Any] | ToolSource]) -> None:
        made = [tool if _is_source(tool) else as_tool(cast(Tool, tool)) for tool in tools]
        ToolSet(tool for tool in [*self._tools, *made] if isinstance(tool, Tool))  # a clash is found here
        self._tools += made

    def toolset(self) -> ToolSet:
        """The tools that there are now.

        Raises InvalidTool, what their sources raise, and UsageError where `stop_after` names none of them.
        """
        found: list[Tool] = []
        for item in self._tools:
            found += [item] if isinstance(item, Tool) else item.tools()
        tools = ToolSet(found)
        for name in self.stop_after:
            if name not in tools:
                raise UsageError(
                    f"stop_after names {name!r:.60}: the agent has no such tool; there are: "
                    f"{listed(tools.names)}"
                )
        return tools

    def run(
        self,
        prompt: Conversation | None = None,
        *,
        history: History | Session | list[Any] | None = None,
        cancel: threading.Event | None = None,
        state: Any = None,
        **options: Unpack[TurnOptions],
    ) -> Generator[AgentEvent, None, None]:
        """Answer, calling tools on the way. The last event is RunDone, or RunFailed with the error.

        `prompt`: the user's words, or messages; None continues the history where it stands, such as that
        of a program that was killed. `history`: the conversation, which grows by what is said: a list of
        messages (or of dicts, which become messages), a session, or anything like `history.History`;
        without it the run begins a conversation of its own. While the run goes on, another one on the same
        conversation fails with ConversationBusy. `cancel`, when set, ends the run at the next token and
        gives up on running tools; closing the iterator does the same. Raises UsageError for arguments that
        make no sense.
        """
        return self._prepare(prompt, history, cancel, options, state)(Coroutines()).events()

    def arun(
        self,
        prompt: Conversation | None = None,
        *,
        history: History | Session | list[Any] | None = None,
        cancel: threading.Event | None = None,
        state: Any = None,
        **options: Unpack[TurnOptions],
    ) -> AsyncGenerator[AgentEvent, None]:
        """As `run`, in a thread of its own, followed from the caller's loop, where async tools and hooks run.

        Runs of any number of agents overlap on one model, as `Model.stream` says; while its tools run or a
        person is asked, a run holds no lane. Cancelling the task, or closing the iterator, ends the run as
        `cancel` does.
        """
        return _async_steps(self._prepare(prompt, history, cancel, options, state))

    def respond(
        self,
        prompt: Conversation | None = None,
        *,
        history: History | Session | list[Any] | None = None,
        cancel: threading.Event | None = None,
        state: Any = None,
        **options: Unpack[TurnOptions],
    ) -> RunDone:
        """Run to the end and return the last event. Raises what made the run fail."""
        for event in self.run(prompt, history=history, cancel=cancel, state=state, **options):
            if isinstance(event, RunDone):
                return event
            if isinstance(event, RunFailed):
                raise event.error
        raise AssertionError("a run ends in RunDone or RunFailed")

    def compact(
        self, history: History | Session | list[Any], *, cancel: threading.Event | None = None
    ) -> Iterator[CompactionEvent]:
        """Let the model summarise older turns now, as the `Compaction` of the middleware would, or a new one.

        `cancel`, when set, leaves the history as it is. The last event says what came of it, or what went
        wrong. Raises UsageError, TemplateFailed, SaveFailed, ConversationBusy.
        """
        return Run(self, as_history(history), (), Coroutines(), Cancel(cancel), {}).compact()

    def _prepare(
        self,
        prompt: Conversation | None,
        history: History | Session | list[Any] | None,
        cancel: threading.Event | None,
        options: TurnOptions,
        state: Any,
    ) -> Callable[[Coroutines], Run]:
        """Check the arguments; what starts the run, which in `arun` has a loop to await on only then."""
        kept = as_history(history)
        self.model.turn_options({**self.sampling, **options})
        inputs = [] if prompt is None else [_said(message) for message in as_conversation(prompt)]
        if not inputs:
            told = kept.messages()
            if is_empty(told):
                raise UsageError("nothing to go on with: there is no conversation yet; give a prompt")
            if is_answered(told):
                raise UsageError("nothing to go on with: the conversation has its answer; give a prompt")
        elif any(map(has_results, inputs)):  # refuse results that answer no call before anything is kept
            build_request([*kept.messages(), *inputs], chat_template.TARGET)
        return lambda coroutines: Run(self, kept, inputs, coroutines, Cancel(cancel), {**options}, state)


async def _async_steps(start: Callable[[Coroutines], Run]) -> AsyncGenerator[AgentEvent, None]:
    run = start(Coroutines(asyncio.get_running_loop()))
    stepper = Stepper(run.events(), is_piece, "localagent-run")
    try:
        while (event := await stepper.next()) is not None:
            yield event
    finally:
        run.cancel.set()
        await stepper.close()


def _clipping(stack: Stack) -> Stack:
    """The middleware, with a `ClipResults` as the outermost if it has none."""
    if any(isinstance(item, ClipResults) for item in stack.items):
        return stack
    return Stack((ClipResults(MOST_TOLD), *stack.items))


def _said(message: Message) -> Message:
    """What the caller says, with the time at which they said it."""
    if isinstance(message, UserMessage) and message.mode is None:
        message = message.model_copy(update={"mode": "user"})
    return stamped(message)


def _is_source(item: object) -> TypeGuard[ToolSource]:
    return not isinstance(item, Tool | type) and callable(getattr(item, "tools", None))


def _at_least(name: str, value: int, least: int) -> int:
    if type(value) is not int or value < least:
        raise UsageError(f"{name} is {str(value)[:40]!r}: it must be a whole number, {least} or more")
    return value


def _names(option: str, names: Sequence[str]) -> tuple[str, ...]:
    found = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (None,)
    if not all(isinstance(name, str) for name in found):
        raise UsageError(f"{option} is {names!r:.60}: it must be a list of names of tools")
    return cast(tuple[str, ...], found)


def _text(name: str, value: str | None) -> str | None:
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name} is {value!r:.40}: it must be text")
    return value


def _seconds(value: float | None) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and 0 < value < math.inf):
        raise UsageError(f"tool_timeout is {str(value)[:40]!r}: it must be seconds above 0, or None")
    return value
