"""Each hook can do what middleware.py says of it, in the order that it gives."""

from __future__ import annotations

import asyncio
import threading

import pytest

from localagent.agent import Agent, CompactionStarted, ModelRequest, ToolEnded, middleware
from localagent.errors import ContextOverflow, EngineFailed, UsageError
from localagent.messages import AssistantMessage, UserMessage
from localagent.tools import tool
from tests.agent.replaying import block, follow, lines, scripted
from tests.agent.words import words, wordy


@tool
def add(a: int) -> int:
    """Add."""
    return a + 1


class Noted:
    """Notes every hook that is called."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def note(self, what: str) -> None:
        self.notes.append(f"{self.name}.{what}")

    def before_turn(self, run):
        self.note("before_turn")

    def system_prompt(self, run):
        self.note("system_prompt")
        return f"I am {self.name}."

    def rewrite_messages(self, messages, run):
        self.note("rewrite_messages")

    def before_model(self, request, run):
        self.note("before_model")

    def after_model(self, message, run):
        self.note("after_model")

    def around_tool(self, call, proceed, run):
        self.note("around_tool(")
        result = proceed(call)
        self.note(")")
        return result

    def on_message(self, message, run):
        self.note(message.role)


class AsyncNoted(Noted):
    """The same, awaited."""

    async def before_turn(self, run):
        self.note("before_turn")

    async def system_prompt(self, run):
        return super().system_prompt(run)

    async def before_model(self, request, run):
        self.note("before_model")

    async def around_tool(self, call, proceed, run):
        self.note("around_tool(")
        result = await proceed(call)
        self.note(")")
        return result


@pytest.mark.parametrize("second", [Noted, AsyncNoted])
def test_order(second):
    notes: list[str] = []
    agent = Agent(
        scripted(block("add(a=1)"), "Done."), [add], instructions="Be brief.",
        middleware=[Noted("a", notes), second("b", notes)],
    )  # fmt: skip
    follow(agent)
    ask = [f"{name}.{hook}" for hook in ("before_turn", "rewrite_messages") for name in "ab"]
    ask += [f"{name}.{hook}" for hook in ("system_prompt", "before_model") for name in "ab"]
    answer = ["b.after_model", "a.after_model", "b.assistant", "a.assistant"]
    assert notes == [
        *("b.user", "a.user"),
        *ask,
        *answer,
        *("a.around_tool(", "b.around_tool(", "b.)", "a.)"),
        *("b.tool", "a.tool"),
        *ask,
        *answer,
    ]
    assert agent.model.host.rendered[0][0]["content"] == "Be brief.\n\nI am a.\n\nI am b."


def test_the_system_prompt_is_not_kept():
    @middleware("system_prompt")
    def clock(run):
        return f"Turn {run.turn}."

    history: list = []
    agent = Agent(scripted(block("add(a=1)"), "Done."), [add], middleware=[clock])
    follow(agent, history=history)
    shown = [turns[0]["content"] for turns in agent.model.host.rendered]
    assert shown == ["Turn 0.", "Turn 1."]
    assert [message.role for message in history] == ["user", "assistant", "tool", "assistant"]


def test_rewritten_messages_are_sent_and_not_kept():
    @middleware("rewrite_messages")
    def shout(messages, run):
        return [
            UserMessage.text(message.text.upper()) if message.role == "user" else message
            for message in messages
        ]

    agent = Agent(scripted("Hi."), middleware=[shout])
    _, done = follow(agent, "hello")
    assert lines(done.messages) == ["user: hello", "assistant: Hi."]
    assert agent.model.host.rendered[0][0]["content"] == "HELLO"


def test_a_request_can_be_changed():
    @middleware("before_model")
    def shorten(request, run):
        return ModelRequest(request.messages, (), {**request.sampling, "max_tokens": 1})

    _, done = follow(Agent(scripted("One two three."), [add], middleware=[shorten]))
    assert (done.message.text, done.stop_reason) == ("One t", "length")


def test_an_answer_can_stand_for_the_models():
    @middleware("before_model")
    def cached(request, run):
        return AssistantMessage.text("From the cache.")

    agent = Agent(scripted("never"), middleware=[cached])
    _, done = follow(agent)
    assert lines(done.messages) == ["user: Go.", "assistant: From the cache."]
    assert agent.model.host.rendered == []


def test_a_message_can_be_changed_before_it_is_kept():
    @middleware("after_model")
    def censor(message, run):
        return message.model_copy(update={"content": AssistantMessage.text("...").content})

    _, done = follow(Agent(scripted("Damn."), middleware=[censor]))
    assert lines(done.messages) == ["user: Go.", "assistant: ..."]


def test_a_call_can_be_changed_answered_or_wrapped():
    class Tools:
        def around_tool(self, call, proceed, run):
            match call.arguments["a"]:
                case 1:
                    return proceed(type(call)(id=call.id, name=call.name, arguments={"a": 10}))
                case 2:
                    return call.result("cached")
                case 3:
                    return proceed(type(call)(id="other", name=call.name, arguments={"b": 1}))
            raise RuntimeError("no")

    calls = block("add(a=1)", "add(a=2)", "add(a=3)", "add(a=4)")
    events, done = follow(Agent(scripted(calls, "Done."), [add], middleware=[Tools()]))
    changed, cached, wrong, raised = done.messages[2].results
    assert (changed.text, cached.text, raised.text) == ("11", "cached", "RuntimeError: no")
    assert wrong.is_error
    assert "b" in wrong.text
    ids = [call.id for call in done.messages[1].tool_calls]
    assert [result.call_id for result in done.messages[2].results] == ids
    assert sum(isinstance(event, ToolEnded) for event in events) == 4


def test_events_of_a_hook_are_events_of_the_run():
    class Telling:
        def before_turn(self, run):
            yield CompactionStarted(1, 2)

    class Awaited:
        async def before_turn(self, run):
            yield CompactionStarted(3, 4)
            yield CompactionStarted(5, 6)

    class Listing:
        def before_turn(self, run):
            return [CompactionStarted(7, 8)]

    events, _ = follow(Agent(scripted("x"), middleware=[Telling(), Awaited(), Listing()]))
    assert events[:4] == [CompactionStarted(at, at + 1) for at in (1, 3, 5, 7)]


def test_a_hook_that_takes_too_long_is_given_up_when_the_run_is_cancelled():
    cancel = threading.Event()

    @middleware("before_turn")
    async def slow(run):
        cancel.set()
        await asyncio.sleep(60)

    history: list = []
    agent = Agent(scripted("never"), name="mine", middleware=[slow])
    (done,) = agent.run("Go.", history=history, cancel=cancel)
    assert (done.stop_reason, done.message, done.turns, done.agent_name) == ("cancelled", None, 1, "mine")
    assert lines(done.messages) == lines(history) == ["user: Go."]
    assert agent.model.host.rendered == []


def test_an_error_in_a_hook_ends_the_run():
    @middleware("before_turn")
    def fail(run):
        if run.turn:
            raise EngineFailed("no")

    history: list = []
    *_, last = Agent(scripted(block("add(a=1)")), [add], middleware=[fail]).run("Go.", history=history)
    assert (str(last.error), last.turns) == ("no", 2)
    assert lines(history) == ["user: Go.", "assistant: add(a=1)", "tool: 2"]


def test_a_bug_in_a_hook_is_the_authors():
    @middleware("before_model")
    def fail(request, run):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(Agent(scripted("x"), middleware=[fail]).run("Go."))


@pytest.mark.parametrize(
    "hook", ["system_prompt", "before_model", "after_model", "around_tool", "rewrite_messages"]
)
def test_a_hook_that_returns_nonsense(hook):
    wanted = {"system_prompt": "str", "around_tool": "ToolResultPart", "after_model": "AssistantMessage"}
    wanted |= {"before_model": "ModelRequest", "rewrite_messages": "BaseMessage"}
    returned = "3" if hook == "rewrite_messages" else "[3]"
    says = f"the hook {hook} returned {returned}: it must return {wanted[hook]} or None"
    nonsense = middleware(hook)(lambda *_: [3])
    agent = Agent(scripted(block("add(a=1)"), "Done."), [add], middleware=[nonsense])
    if hook == "around_tool":
        _, done = follow(agent)
        assert done.messages[2].text == f"UsageError: {says}"
    else:
        *_, last = agent.run("Go.")
        assert isinstance(last.error, UsageError)
        assert str(last.error) == says


def test_no_such_hook():
    with pytest.raises(
        UsageError, match=r"^no hook 'before_lunch': the hooks are before_turn, (\w+, ){5}on_message$"
    ):
        middleware("before_lunch")


def test_a_hook_can_see_the_prompt_that_the_model_will_get():
    @middleware("before_model")
    def shorten(request, run):
        prompts.append(request.prompt())
        return ModelRequest(request.messages[-1:], (), {"max_tokens": 3})

    @middleware("before_model")
    def look(request, run):
        prompts.append(request.prompt())

    prompts: list = []
    agent = Agent(wordy("Yes."), [add], instructions="Be brief.", middleware=[shorten, look])
    follow(agent)
    texts = ["tools: add\nsystem: Be brief.\nuser: Go.", "user: Go."]
    assert [prompt.text for prompt in prompts] == texts
    assert [len(prompt.ids) for prompt in prompts] == [7, 2]
    assert agent.model.host.asked == texts[1:]


def test_a_prompt_that_is_too_long_for_the_model_can_be_seen():
    @middleware("before_model")
    def look(request, run):
        sizes.append(len(request.prompt().ids))

    sizes: list = []
    *_, last = Agent(wordy("Yes.", context=50), middleware=[look]).run(words(99))
    assert isinstance(last.error, ContextOverflow)
    assert sizes == [100]


def test_a_prompt_that_nobody_asks_for_is_not_rendered():
    agent = Agent(wordy("Yes."), middleware=[middleware("before_model")(lambda request, run: None)])
    follow(agent)
    assert len(agent.model.host.rendered) == 1


def test_a_request_of_nobody_has_no_prompt():
    with pytest.raises(UsageError, match="no model"):
        ModelRequest((UserMessage.text("x"),)).prompt()
    assert ModelRequest(()) == ModelRequest((), (), {}, model=scripted("x")), "who is asked is not compared"
    assert "model" not in repr(ModelRequest(()))
