"""Agents that are killed: `python -m tests.agent.killing FOLDER KILLS SEED`.

A process of one thread forks programs that load lfm2-nano and let an agent solve a task in a session. It kills
each when it comes to a certain point, or a random moment later, looks at what is in the file, and starts the
program again on it; in the end nobody is killed, and the task must have its answer. Prints one JSON line of
figures; whatever is wrong is an AssertionError.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from localagent.agent import Agent, RunDone, middleware
from localagent.agent.history import INTERRUPTED
from localagent.errors import UsageError
from localagent.messages import AssistantMessage, Message, RescueMessage, ToolMessage, UserMessage
from localagent.nano import GGUF
from localagent.nano.tasks import Task, make_tasks
from localagent.prompt.pairing import unanswered
from localagent.prompt.request import build_request
from localagent.session import MessageEntry, Session
from localagent.wire.chat_template import TARGET
from tests.agent.solving import Bench, check_history, identity, outcome_of

MOMENT = 0.05  # seconds that a tool takes
LIVES = 3  # of a program on one session, in which it may be killed
POINTS = ("assistant", "ran", "tool", "user")
"""What is heard before a kill: a message of that role was kept, or a tool has begun to run."""
WITHIN = {"assistant": 0.01, "ran": MOMENT, "tool": 0.02, "user": 0.03}
"""Seconds in which the kill follows."""
KILLED = ("generating", "in a tool", "before the answer", "answered")


@dataclass
class Told:
    """What a program told of itself."""

    kept: int = 0
    ran: list[tuple[str, str]] = field(default_factory=list)
    stop: str | None = None

    def hear(self, line: str) -> str:
        """Take one line; the point it stands for."""
        what, said = json.loads(line)
        if what == "ran":
            self.ran.append((said[0], said[1]))
        elif what == "done":
            self.stop = said
        else:
            self.kept += 1
        return str(what)


def state_of(messages: Sequence[Message]) -> str:
    """How far a conversation came."""
    if not messages:
        return "nothing"
    if unanswered(messages):
        return "in a tool"
    match messages[-1]:
        case UserMessage():
            return "generating"
        case ToolMessage() | RescueMessage():
            return "before the answer"
    return "answered"


def live(file: Path, task: Task, prompt: str | None, say: Callable[[str, Any], None]) -> None:
    """The program: go on with the session, or with this prompt if there is nothing to go on with."""
    from localagent.model import load

    @middleware("on_message")
    def tell(message: Message, run: object) -> None:
        say(message.role, None)

    with load(GGUF, threads=1, context=4096) as model:
        bench = Bench(task, MOMENT, lambda call: say("ran", call))
        agent = Agent(
            model, bench.tools, instructions=task.system or None, middleware=[tell], max_turns=4,
            temperature=0, max_tokens=120,
        )  # fmt: skip
        session = Session.open(file)
        if prompt is not None and state_of(session.context()) == "answered":
            with pytest.raises(UsageError, match="has its answer"):
                agent.run(None, history=session)
        for event in agent.run(prompt, history=session):
            if isinstance(event, RunDone):
                say("done", event.stop_reason)


def spend_life(file: Path, task: Task, prompt: str | None, point: str | None) -> Told:
    """Fork a program and kill it a moment after it comes to the point; without one, it lives."""
    heard, says = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(heard)

        def say(*said: Any) -> None:
            os.write(says, f"{json.dumps(said)}\n".encode())

        try:
            live(file, task, prompt, say)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    os.close(says)
    told, times = Told(), random.choice((1, 1, 2))
    with os.fdopen(heard) as lines:
        for line in lines:
            times -= told.hear(line) == point
            if times == 0:
                time.sleep(random.random() * WITHIN[point or ""])
                os.kill(process, signal.SIGKILL)
                break
        for line in lines:
            told.hear(line)
    _, status = os.waitpid(process, 0)
    assert status == 0 or os.WIFSIGNALED(status), "the program failed"
    assert status != 0 or told.stop, "the program ended without a word"
    return told


class Held:
    """A session from life to life: what was in it before, and what must hold of it now."""

    def __init__(self, folder: Path, task: Task) -> None:
        self.task = task
        self.file = Session.create(folder).file
        self.session = Session.open(self.file)
        self.ran: list[tuple[str, str]] = []
        self.torn = 0
        self._raw = self.file.read_bytes()

    @property
    def state(self) -> str:
        """Where the last life ended."""
        return state_of(self.session.context())

    @property
    def interrupted(self) -> bool:
        """Whether the result of a call was lost."""
        results = [r for m in self.session.context() if isinstance(m, ToolMessage) for r in m.results]
        return any(result.text == INTERRUPTED for result in results)

    def live(self, prompt: str | None, point: str | None) -> Told:
        """One more life, and a look at what it left."""
        before, state = self.session, self.state
        told = spend_life(self.file, self.task, prompt, point)
        self.session = Session.open(self.file)
        assert self.file.read_bytes().startswith(self._raw), "what was written stays, to the byte"
        self._raw = self.file.read_bytes()
        assert self.session.entries[: len(before.entries)] == before.entries
        assert all(isinstance(entry, MessageEntry) for entry in self.session.entries)
        torn = len(self.session.problems) - len(before.problems)
        assert 0 <= torn <= 1, self.session.problems
        self.torn += torn
        fresh = [entry.message for entry in self.session.entries[len(before.entries) :]]
        assert told.kept <= len(fresh) <= told.kept + 1, (told, fresh)
        if fresh and state == "in a tool":
            closing, lost = fresh[0], unanswered(before.context())
            assert isinstance(closing, ToolMessage), closing
            assert [(r.call_id, r.text, r.is_error) for r in closing.results] == [
                (call.id, INTERRUPTED, True) for call in lost
            ]
        turns = [message for message in fresh if isinstance(message, AssistantMessage)]
        written = [identity(call.name, call.arguments) for turn in turns for call in turn.tool_calls]
        assert Counter(told.ran) <= Counter(written), "only what the model wrote in this life was run"
        build_request(self.session.context(), TARGET)
        self.ran += told.ran
        return told


def hold(folder: Path, task: Task, points: Iterator[str]) -> Counter[str]:
    """A session whose program is killed up to LIVES times, until it lives; then the same is asked again."""
    held, counts = Held(folder, task), Counter[str]()
    for point in (*(next(points) for _ in range(LIVES)), None):
        # Lost results are told to the model, which may go on at once or with the user's next words.
        anew = held.state == "nothing" or (held.state == "in a tool" and random.random() < 0.5)
        told = held.live(task.prompt if anew else None, point)
        counts[held.state if told.stop is None else "lived"] += 1
        if told.stop or held.state == "answered":
            break
    first = held.session.context()
    assert not unanswered(first)
    if not held.interrupted:  # else lfm2-nano, which never saw such a result, may say anything
        check_history(first)
        assert outcome_of(first, held.ran, "answer").solves(task), first
    told = held.live(task.prompt, None)
    last = held.session.context()[len(first) :]
    assert outcome_of(last, told.ran, told.stop or "").solves(task), held.session.context()
    counts["interrupted"] += held.interrupted
    counts["torn"] += held.torn
    counts["sessions"] += 1
    return counts


def main(folder: Path, kills: int) -> Counter[str]:
    """Kill as often as that, and in every state at least once."""
    counts, points = Counter[str](), cycle(POINTS)
    # lfm2-nano solves these tasks, also once more behind a result that was lost.
    kinds = (make_tasks(kind, 4, seed=43) for kind in ("one", "two", "chain"))
    tasks = cycle(task for group in zip(*kinds, strict=True) for task in group)
    while sum(counts[state] for state in KILLED) < kills or not all(counts[state] for state in KILLED[:3]):
        counts.update(hold(folder, next(tasks), points))
        assert counts["sessions"] < 10 * kills, counts
    return counts


if __name__ == "__main__":
    random.seed(int(sys.argv[3]))
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
