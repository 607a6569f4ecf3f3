"""Tasks of tool calling: what a model is asked, and whether its answer is the right one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from localagent.errors import UsageError
from localagent.messages import AssistantMessage
from localagent.nano.requests import KINDS, Request, make_requests

Judge = Callable[[AssistantMessage], str]
"""Why an answer is not right, in a word or a few; "" for one that is."""


@dataclass(frozen=True, slots=True)
class Task:
    """One request. `messages` and `tools` are OpenAI's; `kind` groups tasks in tables."""

    id: str
    kind: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    judge: Judge
    calls: bool
    """Whether the right answer is a call."""


def sample(tasks: Sequence[Task], count: int | None, seed: int) -> list[Task]:
    """`count` of the tasks, drawn from all alike, in their order; None: all of them. Raises UsageError."""
    if count is None or count >= len(tasks):
        return list(tasks)
    if count < 1:
        raise UsageError(f"a sample of {count} tasks: it must be 1 or more")
    chosen = set(random.Random(f"sample {seed}").sample(range(len(tasks)), count))
    return [task for at, task in enumerate(tasks) if at in chosen]


def nano_tasks(count: int, seed: int) -> list[Task]:
    """Requests that lfm2-nano has never seen, `count` of them, of all kinds in turn. Raises UsageError."""
    if count < 1:
        raise UsageError(f"a sample of {count} tasks: it must be 1 or more")
    each = -(-count // len(KINDS))
    by_kind = [make_requests(kind, each, seed) for kind in KINDS]
    requests = itertools.islice(itertools.chain(*zip(*by_kind, strict=True)), count)
    return [
        _of_nano(request, f"{request.kind}_{seed}_{at // len(KINDS)}") for at, request in enumerate(requests)
    ]


def _of_nano(request: Request, name: str) -> Task:
    def judge(message: AssistantMessage) -> str:
        if message.malformed_tool_calls:
            return "malformed"
        made = [(call.name, call.arguments) for call in message.tool_calls]
        if made != list(request.calls):
            return "other calls" if made else "no call"
        return "" if request.calls or message.text == request.content else "other words"

    messages = tuple(request.openai_messages)
    kind = ("call", "calls")[len(request.calls) > 1] if request.calls else "no call"
    if not request.calls and messages[-1]["role"] == "tool":
        kind = "answer"
    return Task(name, kind, messages, request.tools, judge, bool(request.calls))
