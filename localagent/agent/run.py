"""One run of an agent: query the model, execute what it calls, append, and again until it answers.

Knows everything about the loop and nothing about where a model runs, what a tool does or who follows along.
Contract: every message is in the history before the run goes on; whenever a run ends, or is left, the history
is one that can be continued: each call of it has its result.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from localagent.agent.batch import Batch
from localagent.agent.events import (
    AgentEvent,
    HandedOver,
    Retried,
    RunDone,
    RunFailed,
    RunStop,
    ToolEnded,
    TurnEnded,
    TurnStarted,
)
from localagent.agent.executing import bind, execute
from localagent.agent.gate import Slot, approve, denied, open_slots
from localagent.agent.handover import refuse_second, target_of
from localagent.agent.history import History
from localagent.agent.middleware import Hooks, ModelRequest
from localagent.agent.rounds import (
    DROPPED,
    LAST_WORDS,
    REPEATED,
    ForcedBy,
    Rounds,
    also_ran,
    what_was_wrong,
)
from localagent.agent.transcript import INTERRUPTED, Transcript
from localagent.agent.waiting import Cancel, Cancelled, Coroutines
from localagent.errors import LocalAgentError
from localagent.messages import (
    AssistantMessage,
    Message,
    RescueMessage,
    SystemMessage,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from localagent.prompt.pairing import has_results
from localagent.tools import Report, ToolContext, ToolSet
from localagent.tools.tool import Bound
from localagent.turn import BrokenOff, Done

if TYPE_CHECKING:
    from localagent.agent.agent import Agent


class Run:
    """What goes on between one request of a user and its answer. Middleware is given it."""

    def __init__(
        self,
        agent: Agent,
        history: History,
        inputs: Sequence[Message],
        cancel: Cancel,
        sampling: dict[str, Any],
        state: Any = None,
    ) -> None:
        self.agent = agent
        """Whose turn it is; a hand-over changes it."""
        self.history = history
        self.usage = Usage()
        """Of all models that were asked so far."""
        self.cancel = cancel
        self.sampling = sampling
        self.state = state
        """Whatever the application gives its tools and hooks for this run."""
        self._inputs = inputs
        self._transcript = Transcript(history, self._hear)
        self._coroutines = Coroutines()
        self._hooks = Hooks(agent.stack, self, self._coroutines)
        self._rounds = Rounds(agent.max_turns, agent.max_rescues)
        self._message: AssistantMessage | None = None
        self._slots: list[Slot] = []
        """The calls of the present turn."""

    def use(self, coroutines: Coroutines) -> None:
        """Await things there from now on."""
        self._coroutines = coroutines
        self._hooks = Hooks(self.agent.stack, self, coroutines)

    @property
    def turn(self) -> int:
        """The present turn, from 0; -1 before the first."""
        return self._rounds.turn

    @cached_property
    def tools(self) -> ToolSet:
        """The tools of the agent whose turn it is. Raises InvalidTool, and what their sources raise."""
        return self.agent.toolset()

    @property
    def options(self) -> dict[str, Any]:
        """Sampling options of the next turn: the agent's, and over them the run's."""
        return {**self.agent.sampling, **self.sampling}

    def instructions(self) -> list[Message]:
        """What stands in front of the conversation: the agent's instructions and what middleware adds."""
        texts = [self.agent.instructions or "", *self._hooks.system_prompt()]
        text = "\n\n".join(text for text in texts if text)
        return [SystemMessage(content=text)] if text else []

    def rewrite(self, messages: Sequence[Message]) -> list[Message]:
        """What a request would tell of these messages."""
        return self._hooks.rewrite_messages(messages)

    def keep(self, message: Message) -> None:
        """Add a message to the conversation."""
        self._transcript.keep(message)

    def _hear(self, message: Message) -> None:
        self._hooks.on_message(message)

    def events(self) -> Generator[AgentEvent, None, None]:
        """Run to the end. The last event is RunDone or RunFailed."""
        try:
            stop = yield from self._loop()
        except Cancelled:
            self._leave()
            stop = "cancelled"
        except LocalAgentError as error:
            self._leave()
            yield RunFailed(error, self._transcript.told, self.usage, self.turn + 1)
            return
        except BaseException:  # left by its reader, or a bug in a hook
            self._leave()
            raise
        yield RunDone(self._message, self._transcript.told, self.usage, self.turn + 1, stop, self.agent.name)

    def _leave(self) -> None:
        self.cancel.set()
        self._transcript.leave(self._slots, self.agent.name)

    # -- the loop -------------------------------------------------------------------------------------

    def _loop(self) -> Generator[AgentEvent, None, RunStop]:
        rounds = self._rounds
        self._begin()
        while True:
            message = yield from self._query(offer_tools=True)
            wrong = what_was_wrong(message, had_tools=bool(self.tools))
            if message.stop_reason == "cancelled":
                self.cancel.set()
            elif wrong is None and not message.tool_calls:
                return "length" if message.stop_reason == "length" else "answer"
            if message.tool_calls:
                yield from self._execute(message)
            if self.cancel.is_set():
                return "cancelled"
            if any(slot.result is not None and slot.result.terminate for slot in self._slots):
                return "terminated"
            if (target := target_of(self._slots)) is not None:
                yield from self._hand_over(target, dropped=wrong is not None)
                wrong = None
            may_rescue = rounds.may_rescue(wrong=wrong is not None)
            if why := self._why_forced(may_rescue):
                return (yield from self._force_answer(why))
            if wrong is not None:
                kind, text = wrong
                yield from self._tell(Retried(kind, text + also_ran(self._slots), rounds.rescues))

    def _begin(self) -> None:
        """Keep what the user says; calls that a program left open are answered before that."""
        answers = list(takewhile(has_results, self._inputs))
        for message in answers:
            self.keep(message)
        self._transcript.close(INTERRUPTED, self.agent.name)
        for message in self._inputs[len(answers) :]:
            self.keep(message)

    def _why_forced(self, may_rescue: bool) -> ForcedBy | None:
        """Why the model is not asked again with tools, if it is not."""
        if not may_rescue:
            return "rescues"
        if self._rounds.repeats > 1:
            return "repeated"
        return "turn_limit" if self._rounds.is_last else None

    def _tell(self, retried: Retried) -> Iterator[Retried]:
        """Put a text in to help the model on."""
        self._rescue(retried.text)
        yield retried

    def _rescue(self, text: str) -> None:
        told = {"source": "agent", "mode": "tool", "agent_name": self.agent.name}
        self.keep(RescueMessage(content=text, timestamp=datetime.now(UTC), **told))

    def _force_answer(self, why: ForcedBy) -> Generator[AgentEvent, None, RunStop]:
        """Ask a last time, without tools; calls that come all the same are kept and not run."""
        yield from self._tell(Retried(why, LAST_WORDS[why]))
        message = yield from self._query(offer_tools=False)
        for slot in self._transcript.close(f"Not run. {LAST_WORDS[why]}", self.agent.name):
            if slot.result is not None:
                yield ToolEnded(slot.asked, slot.result)
        return "cancelled" if message.stop_reason == "cancelled" else why

    # -- query ----------------------------------------------------------------------------------------

    def _query(self, *, offer_tools: bool) -> Generator[AgentEvent, None, AssistantMessage]:
        """Ask the model, and keep what it writes, even if it is stopped on the way."""
        self._rounds.turn += 1
        self._slots = []
        yield from self._hooks.before_turn()
        tools = tuple(self.tools.schemas) if offer_tools else ()
        told = self.rewrite(self.history.messages())
        request = ModelRequest((*self.instructions(), *told), tools, self.options)
        yield TurnStarted(self.turn, self.agent.name, bool(tools))
        answer = self._hooks.before_model(request)
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
                if isinstance(event, BrokenOff):  # the error comes next
                    self._keep_answer(event.message)
                else:
                    yield event
        except GeneratorExit:
            self.cancel.set()
            for event in events:
                if isinstance(event, BrokenOff | Done):
                    self._keep_answer(event.message)
            raise
        raise AssertionError("a turn ends in Done")

    def _keep_answer(self, message: AssistantMessage) -> AssistantMessage:
        """Keep the model's message; stopped before its first word, it is as if it had not been asked."""
        self.usage += message.usage
        if not message.raw and not message.content and message.stop_reason == "cancelled":
            return message
        told = {"agent_name": self.agent.name, "timestamp": message.timestamp or datetime.now(UTC)}
        kept = message = message.model_copy(update=told)
        try:
            kept = self._hooks.after_model(message)
        finally:  # whatever comes of the hook, what the model wrote is not lost
            self._message = kept
            self.keep(kept)
        return kept

    # -- execute --------------------------------------------------------------------------------------

    def _execute(self, message: AssistantMessage) -> Generator[AgentEvent, None, None]:
        """Gate the calls together, run them, and keep their results in the order of the calls."""
        slots = self._slots = open_slots(message.tool_calls, self.tools, self.agent.max_calls)
        if self._rounds.repeats_last(slots):
            yield Retried("same_calls", REPEATED, self._rounds.repeats)
        yield from approve(slots, self.agent.approvals, self._coroutines, self.cancel)
        refuse_second(slots)
        told = tuple(self.history.messages())
        batch = Batch(
            partial(self._run_call, told),
            self.cancel,
            self.agent.tool_timeout,
            self.agent.sequential,
            self.agent.max_parallel,
        )
        yield from batch.run(slots)
        self._transcript.keep_results(slots, self.agent.name)
        self._rounds.keep_results(slots)

    def _run_call(
        self, told: Sequence[Message], call: ToolCallPart, cancel: threading.Event, report: Report
    ) -> ToolResultPart:
        """One call with the middleware around it, in a thread of its own.

        Middleware sees only calls whose arguments fit, and may proceed with others, or more than once.
        """
        context = ToolContext(call, told, self.agent.name, self.state, cancel, report)
        bound = bind(self.tools, context, call)
        if isinstance(bound, ToolResultPart):
            return bound
        once = iter([bound])

        def proceed(changed: ToolCallPart) -> ToolResultPart:
            if changed is not call and (refusal := denied(changed, self.tools, self.agent.approvals)):
                return refusal
            ready: Bound | ToolResultPart | None = next(once, None) if changed is call else None
            if ready is None:
                ready = bind(self.tools, context, changed)
            if isinstance(ready, ToolResultPart):
                return ready
            return execute(ready, context, self._coroutines, changed)

        return self._hooks.around_tool(proceed, cancel)(call)

    def _hand_over(self, target: Agent, *, dropped: bool) -> Iterator[HandedOver]:
        """Let another agent go on. It is not to mend the calls that this one wrote wrongly."""
        if dropped:
            self._rescue(DROPPED)
        source, self.agent = self.agent, target
        del self.tools  # which are those of the other agent from now on
        self._hooks = Hooks(target.stack, self, self._coroutines)
        self._rounds.change_agent()
        yield HandedOver(source.name, target.name)
