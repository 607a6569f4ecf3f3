"""One run of an agent: query the model, execute what it calls, append, and again until it answers.

Every message is in the history before the run goes on. Whenever a run ends, or is left, its history can be
continued: each call in it has its result.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any

from localagent.agent.approvals import approve
from localagent.agent.calls import RunningCalls, run_call
from localagent.agent.compaction import Compaction, CompactionEvent
from localagent.agent.concurrency import Coroutines
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
from localagent.agent.handover import AgentLike, refuse_second, target_of
from localagent.agent.history import INTERRUPTED, History, Transcript, for_one_run, stamped
from localagent.agent.middleware import Hooks, ModelRequest
from localagent.agent.recovery import (
    DROPPED,
    LAST_WORDS,
    REPEATED,
    ForcedBy,
    Rounds,
    also_ran,
    what_was_wrong,
)
from localagent.agent.slot import ANY, Slot, ends_run, open_slots, refuse_others, settled
from localagent.chat_model import ChatModel
from localagent.control import after_calls, control_of
from localagent.errors import LocalAgentError
from localagent.hosts.protocol import Cancel, Cancelled
from localagent.messages import (
    AssistantMessage,
    CompactionSummaryMessage,
    Message,
    RescueMessage,
    SystemMessage,
    ToolResultPart,
    Usage,
)
from localagent.prompt import RequestWarning
from localagent.prompt.pairing import has_results
from localagent.tools import Report, ToolContext, ToolSet
from localagent.turn import BrokenOff, Done, Scored


class Run:
    """An agent at work on a conversation: `events` answers a request, `compact` makes room for the next.

    Hooks of middleware are given it.
    """

    def __init__(
        self,
        agent: AgentLike,
        history: History,
        inputs: Sequence[Message],
        coroutines: Coroutines,
        cancel: Cancel,
        sampling: dict[str, Any],
        state: Any = None,
    ) -> None:
        self.agent = agent
        """The agent whose turn it is; a hand-over changes it."""
        self.history = history
        self.usage = Usage()
        """Of all models that were asked so far."""
        self.cancel = cancel
        self.sampling = sampling
        self.state = state
        """Whatever the application gives its tools and hooks for this run."""
        self._inputs = inputs
        self._coroutines = coroutines
        self._tools: ToolSet | None = None
        self._hooks = Hooks(agent.stack, self, coroutines)
        self._transcript = Transcript(history, self._hear)
        self._rounds = Rounds(agent.max_turns, agent.max_rescues)
        self._message: AssistantMessage | None = None
        self._slots: list[Slot] = []
        """The calls of the present turn."""
        self._control = ANY
        """What the present turn was told about calls."""
        self._called = False
        """A turn of this run has made calls: what `tool_choice` required has been done."""

    @property
    def turn(self) -> int:
        """The present turn, from 0; -1 before the first."""
        return self._rounds.turn

    @property
    def model(self) -> ChatModel:
        """The model of the agent whose turn it is."""
        return self.agent.model

    @property
    def tools(self) -> ToolSet:
        """The tools of the agent whose turn it is. Raises InvalidTool, and what their sources raise."""
        if self._tools is None:  # sources are asked once: tools must not change between a call and its run
            self._tools = self.agent.toolset()
        return self._tools

    @property
    def options(self) -> dict[str, Any]:
        """The options of the next turn: the agent's, and over them the run's."""
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

    def keep_summary(self, summary: str, kept: int, tokens_before: int) -> None:
        """Put a summary in place of all but the last `kept` messages of the conversation."""
        self.history.compact(summary, kept, tokens_before)
        found = (m for m in self.history.messages() if isinstance(m, CompactionSummaryMessage))
        if (message := next(found, None)) is not None:  # a history of the caller's may tell it otherwise
            with suppress(Cancelled):  # by a hook that takes too long: the summary is kept all the same
                self._hear(message)

    def _hear(self, message: Message) -> None:
        self._hooks.on_message(message)  # those of the present agent: a hand-over changes them

    def compact(self) -> Iterator[CompactionEvent]:
        """Summarise older turns now, as the agent's own `Compaction` would, or a new one."""
        own = (item for item in self.agent.stack.items if isinstance(item, Compaction))
        with for_one_run(self.history):
            yield from next(own, Compaction()).compact(self)

    def events(self) -> Generator[AgentEvent, None, None]:
        """Run to the end. The last event is RunDone or RunFailed."""
        try:
            with for_one_run(self.history) as mended:
                if mended is not None:
                    yield RequestWarning("history", mended)
                last = yield from self._whole()
        except LocalAgentError as error:  # another run has the conversation, and nothing may be added to it
            last = RunFailed(error, (), self.usage, 0)
        yield last  # only now, since its reader may ask for nothing more

    def _whole(self) -> Generator[AgentEvent, None, RunDone | RunFailed]:
        """All but the last event, which is returned."""
        try:
            stop = yield from self._loop()
        except Cancelled:
            self._leave()
            stop = "cancelled"
        except LocalAgentError as error:
            self._leave()
            return RunFailed(error, self._transcript.added, self.usage, self.turn + 1)
        except BaseException:  # its reader left, or a hook has a bug
            self._leave()
            raise
        added = self._transcript.added
        return RunDone(self._message, added, self.usage, self.turn + 1, stop, self.agent.name)

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
            if ends_run(self._slots, self.agent.stop_after):
                return "terminated"
            if (target := target_of(self._slots)) is not None:
                yield from self._hand_over(target, dropped=wrong is not None)
                wrong = None
            why: ForcedBy | None = None
            if not rounds.may_rescue(wrong=wrong is not None):
                why = "rescues"
            elif rounds.repeats > 1:
                why = "repeated"
            elif rounds.is_last:
                why = "turn_limit"
            if why is not None:
                return (yield from self._force_answer(why))
            if wrong is not None:
                kind, text = wrong
                yield from self._tell(Retried(kind, text + also_ran(self._slots), rounds.rescues))

    def _begin(self) -> None:
        """Keep what the user says. Calls that a killed program left open are answered before that."""
        answers = list(takewhile(has_results, self._inputs))  # the caller's own results answer them first
        for message in answers:
            self.keep(message)
        self._transcript.close(INTERRUPTED, self.agent.name)
        for message in self._inputs[len(answers) :]:
            self.keep(message)

    def _tell(self, retried: Retried) -> Iterator[Retried]:
        """Tell the model what was wrong, and the reader that it was told."""
        self._rescue(retried.text)
        yield retried

    def _rescue(self, text: str) -> None:
        self.keep(RescueMessage(content=text, source="agent", mode="tool", agent_name=self.agent.name))

    def _force_answer(self, why: ForcedBy) -> Generator[AgentEvent, None, RunStop]:
        """Ask a last time, without tools. Calls that the model writes all the same are kept and not run."""
        yield from self._tell(Retried(why, LAST_WORDS[why]))
        message = yield from self._query(offer_tools=False)
        for slot in self._transcript.close(f"Not run. {LAST_WORDS[why]}", self.agent.name):
            if slot.result is not None:
                yield ToolEnded(slot.asked, slot.result)
        return "cancelled" if message.stop_reason == "cancelled" else why

    # -- query ----------------------------------------------------------------------------------------

    def _query(self, *, offer_tools: bool) -> Generator[AgentEvent, None, AssistantMessage]:
        """Ask the model, and keep what it writes, even if it is stopped halfway."""
        self._rounds.turn += 1
        self._slots = []
        yield from self._hooks.before_turn()
        tools = tuple(self.tools.schemas) if offer_tools else ()
        told = self.rewrite(self.history.messages())
        options = after_calls(self.options) if self._called or not offer_tools else self.options
        request = ModelRequest((*self.instructions(), *told), tools, options, self.model)
        yield TurnStarted(self.turn, self.agent.name, bool(tools))
        answer = self._hooks.before_model(request)
        self._control = ANY  # an answer that a hook gives has no options
        if isinstance(answer, ModelRequest):
            self._control = control_of(answer.sampling)
            done = yield from self._stream(answer)
        else:
            done = Done(answer, ())
        message = self._keep_answer(done.message)
        yield TurnEnded(self.turn, message, done.token_ids)
        return message

    def _stream(self, request: ModelRequest) -> Generator[AgentEvent, None, Done]:
        """The turn's own events. What was written is kept even if the turn is left or breaks off."""
        events = self.model.stream(
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
                elif not isinstance(event, Scored):  # `Done` has the same
                    yield event
        except GeneratorExit:  # the reader left: end the turn early, as cancelling does, and keep its message
            self.cancel.set()
            with suppress(Exception):  # of the engine or a hook: the reader is gone and would not hear of it
                for event in events:
                    if isinstance(event, BrokenOff | Done):
                        self._keep_answer(event.message)
            raise
        raise AssertionError("a turn ends in Done")

    def _keep_answer(self, message: AssistantMessage) -> AssistantMessage:
        """Keep the model's message, unless it was stopped before its first word."""
        self.usage += message.usage
        if not message.raw and not message.content and message.stop_reason == "cancelled":
            return message
        kept = message = self._completed(message.model_copy(update={"agent_name": self.agent.name}))
        try:
            kept = self._completed(self._hooks.after_model(message))
        finally:  # a hook that fails must not lose what the model wrote
            self._message = kept
            self.keep(kept)
        return kept

    def _completed(self, message: AssistantMessage) -> AssistantMessage:
        """The message with an id and a time, and its calls with the kind of their tool."""
        tools = self._tools  # not asked for here: a source that fails must not lose what the model wrote
        kinds = tools if tools is not None and any(tool.kind for tool in tools) else None
        parts = tuple(settled(part, kinds) for part in message.content)
        return stamped(message.model_copy(update={"content": parts}))

    # -- execute --------------------------------------------------------------------------------------

    def _execute(self, message: AssistantMessage) -> Generator[AgentEvent, None, None]:
        """Decide about the calls together, run them, and keep their results in the order of the calls."""
        most, control = self.agent.max_calls, self._control
        slots = self._slots = open_slots(message.tool_calls, self.tools, most, control)
        self._called |= any(slot.result is None for slot in slots)
        repeated = self._rounds.repeats_last(slots)
        refuse_others(
            slots, control
        )  # a call that has the result of the round before is not the one that runs
        if repeated:
            yield Retried("same_calls", REPEATED, self._rounds.repeats)
        yield from approve(slots, self.agent.approvals, self._coroutines, self.cancel)
        refuse_second(slots)
        told = tuple(self.history.messages())

        def execute(slot: Slot, cancel: threading.Event, report: Report) -> ToolResultPart:
            context = ToolContext(slot.call, told, self.agent.name, self.state, cancel, report)
            return run_call(slot, context, self.tools, self.agent.approvals, self._hooks, self._coroutines)

        agent = self.agent
        batch = RunningCalls(execute, self.cancel, agent.tool_timeout, agent.sequential, agent.max_parallel)
        yield from batch.run(slots)
        self._transcript.keep_results(slots, agent.name)
        self._rounds.keep_results(slots)

    def _hand_over(self, target: AgentLike, *, dropped: bool) -> Iterator[HandedOver]:
        """Let another agent go on. It need not mend the calls that this one wrote wrongly."""
        if dropped:
            self._rescue(DROPPED)
        source, self.agent = self.agent, target
        self._tools = None
        self._hooks = Hooks(target.stack, self, self._coroutines)
        self._rounds.change_agent()
        yield HandedOver(source.name, target.name)
