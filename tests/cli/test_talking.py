"""What a chat does with each line that is typed and with each end of a run; without a model."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest

from localagent.agent import Approvals, RunDone, RunFailed
from localagent.cli.options import ModelOptions, ToolOptions
from localagent.cli.talk import turns as module
from localagent.cli.talk.chat import Chat
from localagent.cli.talk.conversation import Conversation
from localagent.cli.talk.prompt import ChatInput
from localagent.cli.talk.speaker import Speaker
from localagent.cli.talk.turns import Interrupts
from localagent.errors import ContextOverflow, EngineFailed, InvalidTool
from localagent.messages import AssistantMessage, SystemMessage, ToolCallPart, ToolMessage
from localagent.messages.usage import Usage
from localagent.tools import tool
from parsers import Text


@tool(side_effects=True)
def send(text: str) -> str:
    """Send a text to everybody, and never ask anybody whether they wanted it in the first place: they did, of course they did."""
    return text


@tool
def look() -> str:
    """Look."""
    return ""


def ended(text: str = "", stop: str = "answer") -> RunDone:
    message = AssistantMessage.text(text) if text else None
    return RunDone(message, (), Usage(input=7, output=2), 1, stop)


class Agent:
    """Answers with what is in the list: events, or an error that is raised."""

    def __init__(self, *runs):
        self.model = SimpleNamespace(name="tiny\nmodel", host=SimpleNamespace(context=8192))
        self.asked, self.cancels, self.tools, self.sampling = [], [], [], {}
        self.approvals = Approvals()
        self._runs = list(runs)

    def run(self, message, *, history, cancel, **options):
        self.asked.append(message and message.text)
        if message is not None:
            history.append(message)
        for event in self._next(cancel):
            if isinstance(event, RunDone):
                history.append(AssistantMessage.text("ok"))
            yield event

    def compact(self, history, *, cancel):
        self.asked.append(("compact", history))
        yield from self._next(cancel)

    def _next(self, cancel):
        self.cancels.append(cancel)
        for event in self._runs.pop(0) if self._runs else [Text("ok", 0, 2), ended("ok")]:
            if isinstance(event, Exception):
                raise event
            yield event() if callable(event) else event

    def toolset(self):
        if isinstance(self.tools, Exception):
            raise self.tools
        return self.tools


def speaker_of(agent):
    speaker = Speaker(agent.model, [], ModelOptions(), ToolOptions(), {}, lambda _: agent.model)
    speaker.agent = lambda _: agent
    return speaker


@pytest.fixture
def talk(monkeypatch, capsys, tmp_path):
    """What a chat prints when these lines are typed: all of stdout, and the lines on stderr but the first."""
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))

    def run(agent, *lines, stats=False, system=None, save=False):
        conversation = Conversation.open(lambda _: None, system=system, resume=None, save=save)
        closed = []
        with ExitStack() as things:
            things.callback(closed.append, True)
            left = []

            def typed(prompt):
                yield from lines
                left.append(True)

            monkeypatch.setattr(ChatInput, "lines", typed)
            Chat(speaker_of(agent), conversation, things, stats=stats).run()
        assert closed == [True]
        printed = capsys.readouterr()
        first, *notes = printed.err.splitlines()
        assert first == "tiny model, 8,192 tokens of context. /help tells more."
        return SimpleNamespace(out=printed.out, notes=notes, conversation=conversation, read_all=bool(left))

    return run


def test_a_line_is_a_question_unless_it_is_empty_or_a_command(talk):
    agent = Agent()
    said = talk(agent, "Hi.", "   ", "/etc/passwd", "/help", "//", "And you?")
    assert agent.asked == ["Hi.", "/etc/passwd", "//", "And you?"]
    assert said.out == "ok\n" * 4
    assert said.notes[0].split() == ["/help", "show", "this"]


@pytest.mark.parametrize("command", ["/exit", "/quit", "/exit now", " /exit"])
def test_leaving(talk, command):
    agent = Agent()
    said = talk(agent, command, "Hi.")
    assert (said.read_all, agent.asked) == (
        command == " /exit",
        [" /exit", "Hi."] if command == " /exit" else [],
    )


def test_a_command_that_there_is_not(talk):
    agent = Agent()
    assert talk(agent, "/sing a song").notes == ["localagent: no command /sing: /help lists the commands"]
    assert agent.asked == []


def test_instructions_are_shown_and_changed(talk):
    said = talk(Agent(), "/system", "Hi.", "/system  Be curt. ", "/system", "/clear", "/history")
    assert said.notes == ["(no instructions)", "(a new conversation)", "Be curt.", "(a new conversation)"]
    assert [m for m in said.conversation.messages() if m.role == "system"] == [SystemMessage.text("Be curt.")]


def test_the_history_names_who_said_what_and_leaves_out_the_instructions(talk):
    call = ToolCallPart(id="1", name="send", arguments={"text": "x"})

    class Calling(Agent):
        def run(self, message, *, history, cancel):
            history.append(message)
            history.append(AssistantMessage(content=["I send it.", call, call]))
            history.append(ToolMessage.from_results([call.result("sent")]))
            history.append(AssistantMessage.text("Done."))
            yield ended("Done.")

    said = talk(Calling(), "Send x.", "/history", system="Be curt.")
    assert said.notes == [
        "user: Send x.",
        'assistant: I send it. send(text="x") send(text="x")',
        "tool: sent",
        "assistant: Done.",
    ]


def test_tools_are_shown_with_those_that_ask(talk):
    agent = Agent()
    assert talk(agent, "/tools").notes == ["(no tools: start with --tools or --mcp)"]
    agent.tools = [look, send]
    first, second = talk(agent, "/tools").notes
    assert first == "look: Look."
    assert second.startswith("send (asks): Send a text to everybody")
    assert len(second) == len("send (asks): ") + 120
    agent.tools = InvalidTool("two servers both offer 't'")
    assert talk(agent, "/tools", "Hi.").notes == ["localagent: two servers both offer 't'"]
    assert agent.asked == ["Hi."]


def test_a_summary_on_request(talk):
    agent = Agent([EngineFailed("no memory")])
    said = talk(agent, "/compact", "/compact")
    assert agent.asked == [("compact", said.conversation)] * 2
    assert said.notes == ["localagent: no memory"]


@pytest.mark.parametrize(
    ("stop", "remark"),
    [
        ("answer", []),
        ("terminated", []),
        ("cancelled", ["(stopped)"]),
        ("length", ["(cut off: the token limit or the end of the context window was reached)"]),
    ],
)
def test_an_end_that_a_person_should_know_of(talk, stop, remark):
    said = talk(Agent([Text("half", 0, 4), ended("half", stop)]), "Hi.")
    assert said.out == "half\n", "the line is ended before anything else is said"
    assert said.notes == remark


def test_figures_are_printed_on_request(talk):
    assert talk(Agent(), "Hi.", stats=True).notes == ["prompt tokens: 7; cached: 0; generated: 2; stop: stop"]
    assert talk(Agent(), "Hi.").notes == []


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (EngineFailed("the engine died"), "localagent: the engine died"),
        (ContextOverflow(9, 8), f"localagent: {ContextOverflow(9, 8)}"),
    ],
)
@pytest.mark.parametrize("raised", [True, False])
def test_a_run_that_fails_is_told_and_the_chat_goes_on(talk, error, says, raised):
    failed = error if raised else RunFailed(error, (), Usage(), 1)
    agent = Agent([Text("half", 0, 4), failed])
    said = talk(agent, "Hi.", "Again.", "/history")
    assert said.out == "half\nok\n"
    assert said.notes[0] == says
    assert agent.asked == ["Hi.", "Again."]
    assert "user: Again." in said.notes
    assert "user: Hi." not in said.notes, "what was never answered is forgotten"


def test_a_conversation_that_is_too_long_may_be_started_over(talk):
    agent = Agent([Text("ok", 0, 2), ended("ok")], [ContextOverflow(9, 8)])
    said = talk(agent, "Hi.", "Again.")
    assert said.notes == [f"localagent: {ContextOverflow(9, 8)}, or start over with /clear"]


# Ctrl-C


@pytest.mark.parametrize("active", [True, False])
def test_keys_act_on_the_answer_that_is_written(monkeypatch, tmp_path, active):
    """Esc ends the thinking of this answer, and Ctrl-T is for what shows it; without keys nobody waits for them."""
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    options, heard, opened = [], [], []

    @contextmanager
    def listening(obeyed):
        heard.append(obeyed)
        yield

    def open_view(**how):
        opened.append(how)
        return real(**how)

    def run(message, *, history, cancel, **more):
        options.append(more)
        history.append(message)
        yield ended("ok")

    real = module.open_view
    agent = Agent()
    monkeypatch.setattr(agent, "run", run)
    keyboard = SimpleNamespace(active=active, listening=listening)
    conversation = Conversation.open(lambda _: None, system=None, resume=None, save=False)
    talk = module.Turns(lambda _: agent, conversation, keyboard, stats=False)
    monkeypatch.setattr(module, "open_view", open_view)
    assert talk.ask("Hi.")
    [obeyed], [given] = heard, options
    assert {*obeyed} == {"escape", "c-t"}
    assert obeyed["c-t"].__func__.__name__ == "toggle_reasoning"
    assert opened == [{"warned": set(), "keys": active}]
    if active:
        assert not given["end_thinking"].is_set()
        obeyed["escape"]()
        assert given["end_thinking"].is_set()
    else:
        assert given == {}, "nobody could press it"
    assert talk.interrupts.cancel is None


def test_ctrl_c_cancels_the_answer_and_nothing_else(talk):
    def interrupted():
        os.kill(os.getpid(), signal.SIGINT)
        return Text("rest", 0, 4)

    agent = Agent([interrupted, ended("rest", "cancelled")])
    before = signal.getsignal(signal.SIGINT)
    assert talk(agent, "Hi.", "Again.").notes == ["(stopped)"]
    assert [cancel.is_set() for cancel in agent.cancels] == [True, False]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("typing", [True, False])
def test_ctrl_c_while_nothing_is_answered(monkeypatch, typing):
    """On a terminal line editing deals with it; with a pipe the program ends as others do."""
    monkeypatch.setattr(module, "on_terminal", lambda: typing)
    before = signal.getsignal(signal.SIGINT)
    try:
        with Interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            ended_by_it = False
    except KeyboardInterrupt:
        ended_by_it = True
    assert ended_by_it is not typing
    assert signal.getsignal(signal.SIGINT) is before
