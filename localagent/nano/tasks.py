"""Whole tasks with known solutions: a request, the calls that solve it, what they give back, and the answer.

    >>> task = make_tasks("chain", count=1, seed=7)[0]
    >>> [[step.name for step in steps] for steps in task.rounds]
    [['search_files'], ['read_file']]

For whatever runs a model in a loop until it answers; how the tools run is up to that. The values are words
that training never used.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from localagent.nano.conversations import Author, Conversation, common_words
from localagent.nano.words import Lexicon

TASKS: dict[str, str] = {
    "one": "answer",
    "two": "answers",
    "chain": "chain",
    "failing": "failed",
    "named": "named",
    "thinking": "think_answer",
}
"""Every kind of task, and the kind of conversation (see `conversations.PLANS`) that it is made of.

In order: one call of any of the twelve tools; two in one turn; a second call with what the first gave back;
a call that fails; a call of a tool with invented names; one call, with thoughts before it and the answer.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A call that the task needs, and what the tool gives back for it."""

    name: str
    arguments: dict[str, Any]
    result: str

    @property
    def failed(self) -> bool:
        """Whether what it gives back is an error."""
        return self.result.startswith("error: ")


@dataclass(frozen=True, slots=True)
class Task:
    """A request and its solution. `tools` are OpenAI function tools, `system` may be empty.

    `rounds` are the calls, turn by turn: those of one turn are made at once, in this order.
    """

    kind: str
    system: str
    prompt: str
    tools: tuple[dict[str, Any], ...]
    rounds: tuple[tuple[Step, ...], ...]
    answer: str


def make_tasks(kind: str, count: int, seed: int) -> list[Task]:
    """`count` tasks of one of `TASKS`; the same every time for the same arguments. Raises KeyError."""
    return [next(filter(_is_complete, _draw(kind, f"{seed}/{number}"))) for number in range(count)]


def _draw(kind: str, name: str) -> Iterator[Task]:
    for attempt in itertools.count():
        rng = random.Random(f"task/{kind}/{name}/{attempt}")
        author = Author(Lexicon(rng, held_out=True, common=common_words()))
        yield _task(kind, author.write(TASKS[kind], before=0))


def _is_complete(task: Task) -> bool:
    """Whether no call lacks what its tool requires: requests that name a tool leave out some arguments."""
    required = {tool["function"]["name"]: tool["function"]["parameters"]["required"] for tool in task.tools}
    return all(step.arguments.keys() >= set(required[step.name]) for steps in task.rounds for step in steps)


def _task(kind: str, made: Conversation) -> Task:
    asked, *turns, answer = made.turns
    results = iter([turn.content for turn in turns if turn.role == "tool"])
    rounds = tuple(
        tuple(Step(name, arguments, next(results)) for name, arguments in turn.calls)
        for turn in turns
        if turn.calls
    )
    return Task(kind, made.system, asked.content, made.tools, rounds, answer.content)
