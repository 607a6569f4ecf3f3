"""One run of an agent: query the model, execute what it calls, append, and again until it answers.

Knows everything about the loop and nothing about where a model runs, what a tool does or who follows along.
Contract: every message is in the history before the run goes on; whenever a run ends, or is left, the history
is one that can be continued: each call of it has its result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from localagent.agent.batch import NOT_RUN, Batch, abandon
from localagent.agent.events import (
    AgentEvent,
    HandedOver,
    Retried,
    RunDone,
    RunFailed,
    RunStop,
    TurnEnded,
    TurnStarted,
)
from localagent.agent.executing import execute
from localagent.agent.gate import Slot, approve, open_slots
from localagent.agent.handover import refuse_second, target_of
from localagent.agent.history import History
from localagent.agent.middleware import ModelRequest
from localagent.agent.rounds import LAST_WORDS, REPEATED, Lost, Rounds, what_was_wrong
from localagent.agent.waiting import Cancel, Coroutines
from localagent.errors import LocalAgentError
from localagent.messages import (
    AssistantMessage,
    Message,
    RescueMessage,
    SystemMessage,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    Usage,
)
from localagent.pairing import unanswered
from localagent.tools import ToolContext, ToolSet
from localagent.turn import Done

if TYPE_CHECKING:
    from localagent.agent.agent import Agent

INTERRUPTED = (
    "No result: the program ended before this call's result was kept. It may have run, wholly or in part."
)


class Run:
    """What goes on between one request of a user and its answer. Middleware is given it."""

    def __init__(
        self,
        agent: Agent,
        history: History,
        inputs: Sequence[Message],
        cancel: Cancel,
        coroutines: Coroutines,
        sampling: dict[str, Any],
    ) -> None:
        self.agent = agent
        """Whose turn it is; a hand-over changes it."""
        self.history = history
        self.usage = Usage()
        """Of all models that were asked so far."""
        self.added: list[Message] = []
        """What this run added to the history."""
        self.cancel = cancel
        self.sampling = sampling
        self._inputs = inputs
        self._coroutines = coroutines
        self._rounds = Rounds(agent.max_turns, agent.max_rescues)
        self._message: AssistantMessage | None = None
        self._tools = agent.toolset()

    @property
    def turn(self) -> int:
        """The present turn, from 0; -1 before the first."""
        return self._rounds.turn

    @property
    def tools(self) -> ToolSet:
        """The tools of the agent whose turn it is."""
        return self._tools

    def instructions(self) -> list[Message]:
        """What stands in front of the conversation: the agent's instructions and what middleware adds."""
        texts = [self.agent.instructions or "", *self.agent.stack.system_prompt(self, self._coroutines)]
        text = "\n\n".join(text for text in texts if text)
        return [SystemMessage(content=text)] if text else []

    def rewrite(self, messages: Sequence[Message]) -> list[Message]:
        """What a request would tell of these messages."""
        return self.agent.stack.rewrite_messages(messages, self, self._coroutines)

    def keep(self, message: Message) -> None:
        """Add a message to the conversation."""
        self.history.append(message)
        self.added.append(message)
        self.agent.stack.on_message(message, self, self._coroutines)

    def events(self) -> Generator[AgentEvent, None, None]:
        """Run to the end. The last event is RunDone or RunFailed."""
        try:
            self._close_open_calls(INTERRUPTED)
            for message in self._inputs:
                self.keep(message)
            stop = yield from self._loop()
        except LocalAgentError as error:
            self._leave()
            yield RunFailed(error, tuple(self.added), self.usage, self.turn + 1)
        except BaseException:  # left by its reader, or a bug in a hook
            self._leave()
            raise
        else:
            yield RunDone(self._message, tuple(self.added), self.usage, self.turn + 1, stop)

    def _leave(self) -> None:
        """Leave a history that can be continued, as far as it can be written."""
        self.cancel.set()
        with suppress(LocalAgentError):
            self._close_open_calls(NOT_RUN)

    # -- the loop -------------------------------------------------------------------------------------

    def _loop(self) -> Generator[AgentEvent, None, RunStop]:
        rounds = self._rounds
        while True:
            message = yield from self._query(offer_tools=True)
            slots: list[Slot] = []
            if message.tool_calls:
                slots = yield from self._execute(message)
            if self.cancel.is_set():
                return "cancelled"
            if any(slot.result is not None and slot.result.terminate for slot in slots):
                return "terminated"
            yield from self._hand_over(slots)
            wrong = what_was_wrong(message, had_tools=bool(self._tools))
            may_rescue = rounds.may_rescue(wrong=wrong is not None)
            if wrong is None and not slots:
                return "length" if message.stop_reason == "length" else "answer"
            if lost := self._lost(may_rescue):
                return (yield from self._force_answer(lost))
            if wrong is not None:
                lost_calls = message.malformed_tool_calls
                yield from self._tell(Retried("malformed" if lost_calls else "empty", wrong, rounds.rescues))

    def _lost(self, may_rescue: bool) -> Lost | None:
        """Why the model is not asked again with tools, if it is not."""
        if not may_rescue:
            return "rescues"
        if self._rounds.repeats > 1:
            return "repeated"
        return "turn_limit" if self._rounds.is_last else None

    def _tell(self, retried: Retried) -> Iterator[Retried]:
        """Put a text in to help the model on."""
        self.keep(
            RescueMessage(
                content=retried.text, timestamp=datetime.now(UTC), source="agent", mode="tool",
                agent_name=self.agent.name,
            )
        )  # fmt: skip
        yield retried

    def _force_answer(self, why: Lost) -> Generator[AgentEvent, None, RunStop]:
        """Ask a last time, without tools; calls that come all the same are kept and not run."""
        yield from self._tell(Retried(why, LAST_WORDS[why]))
        message = yield from self._query(offer_tools=False)
        if message.tool_calls:
            slots = [Slot(call, call) for call in message.tool_calls]
            for slot in slots:
                slot.refuse(f"Not run. {LAST_WORDS[why]}")
            self._keep_results(slots)
        return "cancelled" if self.cancel.is_set() else why

    # -- query ----------------------------------------------------------------------------------------

    def _query(self, *, offer_tools: bool) -> Generator[AgentEvent, None, AssistantMessage]:
        """Ask the model, and keep what it writes, even if it is stopped on the way."""
        agent, stack = self.agent, self.agent.stack
        self._rounds.turn += 1
        for events in stack.before_turn(self, self._coroutines):
            yield from events
        tools = tuple(self._tools.schemas) if offer_tools else ()
        told = self.rewrite(self.history.messages())
        request = ModelRequest((*self.instructions(), *told), tools, {**agent.sampling, **self.sampling})
        yield TurnStarted(self.turn, agent.name, bool(tools))
        answer = stack.before_model(request, self, self._coroutines)
        if isinstance(answer, ModelRequest):
            done = yield from self._stream(answer)
        else:
            done = Done(answer, ())
        message = self._keep_answer(done.message)
        yield TurnEnded(self.turn, message, done.token_ids)
        return message

    def _stream(self, request: ModelRequest) -> Generator[AgentEvent, None, Done]:
        """The turn's own events. Left on the way, what was written until then is kept all the same."""
        events = self.agent.model.stream(
            request.messages,
            tools=request.tools or None,
            cancel=self.cancel,
            progress=True,
            **request.sampling,
        )
        try:
            for event in events:
                if isinstance(event, Done):
                    return event
                yield event
        except GeneratorExit:
            self.cancel.set()
            for event in events:
                if isinstance(event, Done):
                    self._keep_answer(event.message)
            raise
        raise AssertionError("a turn ends in Done")

    def _keep_answer(self, message: AssistantMessage) -> AssistantMessage:
        """Keep the model's message; stopped before its first word, it is as if it had not been asked."""
        self.usage += message.usage
        message = message.model_copy(update={"agent_name": self.agent.name})
        message = self.agent.stack.after_model(message, self, self._coroutines)
        if message.content or message.stop_reason != "cancelled":
            self._message = message
            self.keep(message)
        return message

    # -- execute --------------------------------------------------------------------------------------

    def _execute(self, message: AssistantMessage) -> Generator[AgentEvent, None, list[Slot]]:
        """Gate the calls together, run them, and keep their results in the order of the calls."""
        slots = open_slots(message.tool_calls, self._tools)
        repeated = self._rounds.repeats_last(slots)
        try:
            if repeated:
                yield Retried("repeated", REPEATED, self._rounds.repeats)
            else:
                refuse_second(slots)
                yield from approve(slots, self.agent.approvals, self._coroutines, self.cancel)
            batch = Batch(self._run_call, self.cancel, self.agent.tool_timeout, self.agent.sequential)
            yield from batch.run(slots)
        finally:
            abandon(slots)
            self._keep_results(slots)
        if not repeated:
            self._rounds.keep_results(slots)
        return slots

    def _run_call(
        self, call: ToolCallPart, cancel: threading.Event, report: Callable[[str, float | None], None]
    ) -> ToolResultPart:
        """One call with the middleware around it, in a thread of its own."""
        context = ToolContext(call, self.history.messages(), self.agent.name, cancel, report)
        proceed = partial(execute, self._tools, context, self._coroutines)
        return self.agent.stack.around_tool(self, proceed, self._coroutines)(call)

    def _keep_results(self, slots: Sequence[Slot]) -> None:
        results = (
            slot.result.model_copy(update={"call_id": slot.asked.id, "name": slot.asked.name})
            for slot in slots
            if slot.result is not None
        )
        self.keep(
            ToolMessage.from_results(
                results, timestamp=datetime.now(UTC), mode="tool", agent_name=self.agent.name
            )
        )

    def _close_open_calls(self, text: str) -> None:
        """Answer the calls at the end of the history that have no result."""
        if slots := [Slot(call, call) for call in unanswered(self.history.messages())]:
            for slot in slots:
                slot.refuse(text)
            self._keep_results(slots)

    def _hand_over(self, slots: Sequence[Slot]) -> Iterator[HandedOver]:
        """Let another agent go on, if a call said so."""
        target = target_of(slots)
        if target is not None:
            source, self.agent = self.agent, target
            self._tools = target.toolset()
            yield HandedOver(source.name, target.name)
