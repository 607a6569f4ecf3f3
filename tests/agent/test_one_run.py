"""One run at a time adds to a conversation, and one that several have mixed up is put in order again."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.agent import Agent, Compaction, CompactionEnded, RunDone, RunFailed, TurnEnded
from localagent.errors import ConversationBusy, SaveFailed, UnknownSession
from localagent.messages import (
    AssistantMessage,
    CustomMessage,
    Message,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from localagent.prompt import RequestWarning
from localagent.prompt.pairing import unanswered
from localagent.prompt.request import build_request
from localagent.session import Session
from localagent.tools import tool
from localagent.wire.chat_template import TARGET
from tests.agent.replaying import block, follow, lines, scripted
from tests.agent.words import wordy

ROOT = Path(__file__).parents[2]
LONG = 60.0  # seconds; nothing here takes as long


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """A refusal does not take two seconds."""
    monkeypatch.setattr("localagent.files.lock.MOMENT", 0.05)


class Held:
    """A tool that is at work until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

        @tool
        def work(n: int) -> str:
            """Work."""
            self.begun.set()
            assert self.go.wait(LONG)
            return f"done {n}"

        self.agent = Agent(scripted(block("work(n=1)"), "One."), [work])

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()


class Kept:
    """A history of somebody's own."""

    def __init__(self) -> None:
        self.kept: list[Message] = []

    def messages(self):
        return list(self.kept)

    def append(self, message):
        self.kept.append(message)

    def compact(self, summary, kept, tokens_before=None):
        raise AssertionError


def two_sessions(folder: Path) -> tuple[Session, Session]:
    session = Session.create(folder)
    return session, Session.open(session.file)


HISTORIES: dict[str, Any] = {
    "a session": lambda folder: (session := Session.create(folder), session),
    "a session opened twice": two_sessions,
    "a session in memory": lambda folder: (session := Session.in_memory(), session),
    "a list": lambda folder: (history := [], history),
    "a history of one's own": lambda folder: (history := Kept(), history),
}


def told(history: Any) -> list[str]:
    if isinstance(history, Session):
        return lines(history.context())
    return lines(history if isinstance(history, list) else history.messages())


def refused(events: list[Any]) -> str:
    (failed,) = events
    assert isinstance(failed, RunFailed)
    assert isinstance(failed.error, ConversationBusy)
    assert (failed.messages, failed.turns) == ((), 0)
    return str(failed.error)


WHOLE = ["user: First.", "assistant: work(n=1)", "tool: done 1", "assistant: One."]


# -- one at a time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HISTORIES)
def test_a_second_run_is_refused_until_the_first_has_ended(kind, tmp_path):
    one, other = HISTORIES[kind](tmp_path)
    with Held() as held:
        first = threading.Thread(target=lambda: list(held.agent.run("First.", history=one)))
        first.start()
        assert held.begun.wait(LONG)
        second = Agent(scripted("Two."), name="second")
        told_why = refused(list(second.run("Second.", history=other)))
        with pytest.raises(ConversationBusy):
            list(second.compact(other))
        held.go.set()
        first.join(LONG)
    name = one.id if "opened" in kind or kind == "a session" else "this conversation"
    assert told_why == (
        f"another run is adding to {name}: ask again when it has ended, or close its iterator"
    )
    assert told(one) == WHOLE
    assert isinstance(list(second.run("Second.", history=other))[-1], RunDone)
    assert told(other) == [*WHOLE, "user: Second.", "assistant: Two."]


@pytest.mark.parametrize("kind", ["a session opened twice", "a list"])
def test_a_run_waits_a_moment_for_another_to_end(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("localagent.files.lock.MOMENT", LONG)
    one, other = HISTORIES[kind](tmp_path)
    with Held() as held:
        first = threading.Thread(target=lambda: list(held.agent.run("First.", history=one)))
        first.start()
        assert held.begun.wait(LONG)
        threading.Timer(0.2, held.go.set).start()
        assert isinstance(list(Agent(scripted("Two.")).run("Second.", history=other))[-1], RunDone)
        first.join(LONG)
    assert told(other) == [*WHOLE, "user: Second.", "assistant: Two."]


def test_tasks_are_refused_as_well_and_the_loop_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("localagent.files.lock.MOMENT", 0.5)
    session = Session.create(tmp_path)
    beats: list[float] = []

    async def main() -> list[Any]:
        async def beat() -> None:
            while True:
                beats.append(time.monotonic())
                await asyncio.sleep(0.01)

        async def ask(agent: Agent, text: str) -> list[Any]:
            return [event async for event in agent.arun(text, history=session)]

        heart = asyncio.create_task(beat())
        with Held() as held:
            first = asyncio.create_task(ask(held.agent, "First."))
            await asyncio.to_thread(held.begun.wait, LONG)
            begun = len(beats)
            second = await ask(Agent(scripted("Two.")), "Second.")
            waited = len(beats) - begun
            held.go.set()
            assert isinstance((await first)[-1], RunDone)
        heart.cancel()
        assert waited >= 2, "somebody held the loop while the second run waited"
        return second

    refused(asyncio.run(main()))
    assert told(session) == WHOLE


def test_a_tool_that_runs_an_agent_on_the_same_conversation_is_told(tmp_path):
    session = Session.create(tmp_path)

    @tool
    def ask() -> str:
        """Ask."""
        return str(Agent(scripted("Two.")).respond("Second.", history=session))

    _, done = follow(Agent(scripted(block("ask()"), "One."), [ask]), history=session)
    assert done.messages[2].results[0].text == (
        f"ConversationBusy: another run is adding to {session.id}: ask again when it has ended, or close its "
        "iterator"
    )


# -- however a run is left, the conversation is free ------------------------------------------------------


@pytest.mark.parametrize("kind", ["a session opened twice", "a list", "a session in memory"])
@pytest.mark.parametrize("how", ["closed", "forgotten", "told its end", "cancelled", "failed", "in a thread"])
def test_a_run_that_is_left_lets_go(kind, how, tmp_path):
    one, other = HISTORIES[kind](tmp_path)
    cancel = threading.Event()
    model = scripted(block("nothing()"), "One.")
    if how == "failed":
        model.host.generate = lambda *_: (_ for _ in ()).throw(SaveFailed("no"))
    events = Agent(model).run("First.", history=one, cancel=cancel)
    begun, go = threading.Event(), threading.Event()
    if how == "in a thread":  # begun in one thread, which lives on, and left in another
        begin = threading.Thread(target=lambda: (next(events), begun.set(), go.wait(LONG)))
        begin.start()
        assert begun.wait(LONG)
    else:
        next(events)
    match how:
        case "closed" | "in a thread":
            events.close()
        case "forgotten":
            ring: list[Any] = [events]
            ring.append(ring)
            del events, ring
            gc.collect()
        case "told its end" | "failed":
            for event in events:
                if isinstance(event, RunDone | RunFailed):
                    break  # without asking for what comes after the last event
        case "cancelled":
            cancel.set()
            list(events)
    last = list(Agent(scripted("Two.")).run("Second.", history=other))[-1]
    go.set()
    assert isinstance(last, RunDone)


def test_a_run_that_was_never_begun_holds_nothing():
    history: list[Any] = []
    events = Agent(scripted("One.")).run("First.", history=history)
    _, done = follow(Agent(scripted("Two.")), "Second.", history=history)
    assert done.text == "Two."
    events.close()


@pytest.mark.parametrize("how", ["task", "iterator", "loop"])
def test_an_asynchronous_run_that_is_left_lets_go(how, tmp_path, monkeypatch):
    monkeypatch.setattr("localagent.files.lock.MOMENT", LONG)
    one, other = two_sessions(tmp_path)
    left: list[Any] = []

    async def begin() -> None:
        events = Agent(scripted(block("nothing()"), "One.")).arun("First.", history=one)
        await anext(events)
        if how == "iterator":
            await events.aclose()
        elif how == "task":
            await asyncio.sleep(LONG)
        else:
            left.append(events)

    if how == "loop":  # closed without a word to what runs on it, as by a program that is taken down
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        loop.close()
        with suppress(RuntimeError):
            left.clear()
    else:
        with suppress(TimeoutError):
            asyncio.run(asyncio.wait_for(begin(), 0.5))
    assert isinstance(list(Agent(scripted("Two.")).run("Second.", history=other))[-1], RunDone)


PROGRAM = """
import sys, time
from pathlib import Path
from localagent.agent import Agent, RunFailed
from localagent.model import load
from localagent.nano import GGUF
from localagent.session import Session
from localagent.tools import tool

folder, file, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

@tool
def get_weather(city: str) -> str:
    "The weather in a city. Args: city: Its name."
    (folder / "begun").touch()
    while mode == "hold" and not (folder / "go").exists():
        time.sleep(0.01)
    return "clear"

with load(GGUF, threads=1, context=2048) as model:
    agent = Agent(model, [get_weather], temperature=0, max_tokens=80)
    for event in agent.run("What is the weather in Paris?", history=Session.open(file)):
        last = event
print(type(last).__name__, getattr(last, "error", last.stop_reason if hasattr(last, "stop_reason") else ""))
"""


@pytest.mark.engine
@pytest.mark.parametrize("killed", [False, True])
def test_two_processes(tmp_path, killed):
    """With a real model: the second is refused in a sentence while the first is at work, and works after it."""
    session = Session.create(tmp_path)

    def start(mode: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, tmp_path, session.file, mode], text=True, cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def end(process: subprocess.Popen[str]) -> str:
        said, complained = process.communicate(timeout=LONG)
        assert (process.returncode, complained) == (0, "")
        return said.strip()

    first = start("hold")
    try:
        until = time.monotonic() + LONG
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < until
            assert first.poll() is None, first.communicate()
            time.sleep(0.01)
        raw = session.file.read_bytes()
        assert end(start("run")) == (
            f"RunFailed another run is adding to {session.id}: ask again when it has ended, or close its iterator"
        )
        assert session.file.read_bytes() == raw
        if killed:
            first.send_signal(signal.SIGKILL)
            first.wait(LONG)
        else:
            (tmp_path / "go").touch()
            assert end(first) == "RunDone answer"
    finally:
        if first.poll() is None:
            first.kill()
        first.communicate()
    assert end(start("run")).startswith("RunDone")
    again = Session.open(session.file)
    assert again.problems == ()
    assert len(again.leaves) == 1, "one conversation, in one line"
    context = again.context()
    assert [message.text for message in context if isinstance(message, UserMessage)] == [
        "What is the weather in Paris?"
    ] * 2
    assert not unanswered(context)
    build_request(context, TARGET)


def test_two_terminals_take_turns_in_one_conversation(tmp_path):
    """Each goes on where the other ended, although each opened the session before."""
    one, other = two_sessions(tmp_path)
    for number, session in enumerate([one, other, other, one]):
        follow(Agent(scripted(f"Answer {number}.")), f"Question {number}.", history=session)
    assert len(one.leaves) == 1
    assert lines(one.context()) == [
        line for n in range(4) for line in (f"user: Question {n}.", f"assistant: Answer {n}.")
    ]


def test_who_went_back_stays_there(tmp_path):
    """Only the end of a session moves with what others add: a branch is where somebody wants to be."""
    one, other = two_sessions(tmp_path)
    follow(Agent(scripted("A.")), "Q.", history=one)
    other.refresh()
    other.branch(other.entries[0].id)
    follow(Agent(scripted("B.")), "R.", history=one)
    follow(Agent(scripted("C.")), "S.", history=other)
    assert lines(other.context()) == ["user: Q.", "user: S.", "assistant: C."]


def test_a_session_that_was_removed_is_told(tmp_path):
    session = Session.create(tmp_path)
    session.file.unlink()
    (failed,) = Agent(scripted("A.")).run("Q.", history=session)
    assert isinstance(failed.error, UnknownSession)
    assert list(tmp_path.iterdir()) == []


# -- what was mixed up ------------------------------------------------------------------------------------


def call(number: int, name: str = "work") -> ToolCallPart:
    return ToolCallPart(id=f"c{number}", name=name, arguments={"n": number})


def turn(*numbers: int) -> AssistantMessage:
    return AssistantMessage(content=tuple(map(call, numbers)), raw=f"raw {numbers}")


def results(*numbers: int, text: str = "done {}", **fields: Any) -> ToolMessage:
    made = [call(number).result(text.format(number)) for number in numbers]
    return ToolMessage.from_results(made, mode="tool", **fields)


U1, U2 = UserMessage(content="First."), UserMessage(content="Second.")
A1, A2 = AssistantMessage(content="One."), AssistantMessage(content="Two.")
LOST = results(1, text="lost", source="agent")
MIXED: dict[str, tuple[list[Message], list[str]]] = {
    "two tabs": (
        [U1, U2, turn(1), turn(2), results(1), results(2), A1, A2],
        ["user: First.", "user: Second.", "assistant: work(n=1)", "tool: done 1", "assistant: work(n=2)",
         "tool: done 2", "assistant: One.", "assistant: Two."],
    ),
    "the second first": (
        [U1, turn(1), U2, turn(2), results(2), results(1)],
        ["user: First.", "assistant: work(n=1)", "tool: done 1", "user: Second.", "assistant: work(n=2)",
         "tool: done 2"],
    ),
    "a result that was taken for lost": (
        [U1, turn(1), LOST, U2, A2, results(1), A1],
        ["user: First.", "assistant: work(n=1)", "tool: done 1", "user: Second.", "assistant: Two.",
         "assistant: One."],
    ),
    "the same without a turn between": (
        [U1, turn(1), LOST, U2, results(1), A1],
        ["user: First.", "assistant: work(n=1)", "tool: done 1", "user: Second.", "assistant: One."],
    ),
    "several calls, and one that never came back": (
        [U1, turn(1, 3), U2, turn(2), results(3), A2],
        ["user: First.", "assistant: work(n=1) work(n=3)", "tool: done 3", "user: Second.",
         "assistant: work(n=2)", "assistant: Two."],
    ),
    "a result of nothing": (
        [U1, turn(1), results(1), A1, U2, results(9), A2],
        ["user: First.", "assistant: work(n=1)", "tool: done 1", "assistant: One.", "user: Second.",
         "assistant: Two."],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_a_session_that_two_runs_mixed_up_opens_again(name, tmp_path):
    mixed, mended = MIXED[name]
    session = Session.create(tmp_path)
    for message in mixed:
        session.append(message)
    raw, head = session.file.read_bytes(), session.head
    session = Session.open(session.file)
    events, done = follow(Agent(scripted("Three.")), "Third.", history=session)
    (warning,) = [event for event in events if isinstance(event, RequestWarning)]
    assert warning == RequestWarning(
        "history",
        f"{session.id} had been mixed up by several runs at once: its messages were put in order again",
    )
    assert done.text == "Three."
    context = session.context()
    assert lines(m for m in context if not isinstance(m, CustomMessage)) == [
        *mended, "user: Third.", "assistant: Three."
    ]  # fmt: skip
    build_request(context, TARGET)
    assert session.file.read_bytes().startswith(raw), "every line stays"
    assert lines(session.context(head)) == lines(mixed)
    (note,) = [message for message in context if isinstance(message, CustomMessage)]
    assert (note.custom_type, note.payload) == ("mended", {"mixed_up": head})
    again = Session.open(session.file)
    assert (again.problems, lines(again.context())) == ((), lines(context))
    events, _ = follow(Agent(scripted("Four.")), "Fourth.", history=again)
    assert not any(isinstance(event, RequestWarning) for event in events), "once"


def test_a_session_of_two_real_runs_at_once(tmp_path, monkeypatch):
    """As it was before there was a lock."""
    session = Session.create(tmp_path)
    monkeypatch.setattr(Session, "alone", lambda self: nullcontext())
    both = threading.Barrier(2)

    def ask(n: int) -> None:
        @tool
        def work(n: int) -> str:
            """Work."""
            return f"done {n}"

        for event in Agent(scripted(block(f"work(n={n})"), f"{n}."), [work]).run(f"{n}?", history=session):
            if isinstance(event, TurnEnded):
                with suppress(threading.BrokenBarrierError):
                    both.wait(1)

    threads = [threading.Thread(target=ask, args=(n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    monkeypatch.undo()
    opened = Session.open(session.file)
    _, done = follow(Agent(scripted("Three.")), "Third.", history=opened)
    assert done.text == "Three."
    build_request(opened.context(), TARGET)


def test_what_was_mended_can_be_compacted(tmp_path):
    session = Session.create(tmp_path)
    for message in MIXED["two tabs"][0] * 12:
        session.append(message)
    agent = Agent(wordy("You worked.", "Done."), middleware=[Compaction(instructions="Summarise.")])
    events, done = follow(agent, "Third.", history=session)
    assert [event.problem for event in events if isinstance(event, CompactionEnded)] == [None]
    assert done.text == "Done."


def runs(number: int) -> st.SearchStrategy[list[Message]]:
    """What a run of the agent's adds."""
    ids = st.lists(st.integers(1, 3), max_size=3)

    def messages(rounds: list[int]) -> list[Message]:
        made: list[Message] = [UserMessage(content=f"Question {number}.")]
        for at, calls in enumerate(rounds):
            numbers = [number * 1000 + at * 10 + n for n in range(calls)]
            made += [turn(*numbers), results(*numbers)]
        return [*made, AssistantMessage(content=f"Answer {number}.")]

    return ids.map(messages)


@given(st.tuples(runs(1), runs(2), runs(3)), st.randoms(use_true_random=False))
def test_however_runs_were_mixed_up_all_that_was_said_is_told(added, chance: random.Random):
    mixed: list[Message] = []
    rest = [list(messages) for messages in added]
    while any(rest):
        mixed.append(chance.choice([each for each in rest if each]).pop(0))
    session = Session.in_memory()
    for message in mixed:
        session.append(message)
    before = session.entries
    with session.alone():
        pass
    context = [m for m in session.context() if not isinstance(m, CustomMessage)]
    sent = build_request(context, TARGET).messages
    for at, message in enumerate(sent):
        if isinstance(message, AssistantMessage) and message.tool_calls:
            for asked, result in zip(message.tool_calls, sent[at + 1].content, strict=True):
                assert result.text == f"done {asked.arguments['n']}"
    assert sorted(m.model_dump_json() for m in context) == sorted(m.model_dump_json() for m in mixed)
    for role in (UserMessage, AssistantMessage):
        assert [m for m in context if isinstance(m, role)] == [m for m in mixed if isinstance(m, role)]
    assert session.entries[: len(before)] == before
    after = session.entries
    with session.alone() as note:
        assert (note, session.entries) == (None, after)
