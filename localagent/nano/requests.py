"""Requests whose right answer is known: what tests and benchmarks ask of lfm2-nano, or of any host.

    >>> request = make_requests("single", count=1, seed=7)[0]
    >>> request.messages[-1]["role"]
    'user'

The values are words that training never used, so a right answer was read off the request and not remembered.
Making requests needs no engine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from localagent.nano.conversations import PLANS, Author, Conversation, common_words
from localagent.nano.exchanges import Call, Turn
from localagent.nano.words import Lexicon

KINDS: tuple[str, ...] = tuple(PLANS)
"""Every kind of request; `conversations.PLANS` says what they are."""


@dataclass(frozen=True, slots=True)
class Request:
    """A conversation up to the model's turn, and that turn.

    `messages` are shaped as chat templates read them, `tools` are OpenAI function tools. The model is to
    write `<think>` + `reasoning` + `</think>` if there is a reasoning, then `content`; `calls` are what that
    holds. `turns` are the messages after the system text once more, with their calls.
    """

    kind: str
    messages: tuple[dict[str, Any], ...]
    turns: tuple[Turn, ...]
    tools: tuple[dict[str, Any], ...]
    reasoning: str
    content: str
    calls: tuple[Call, ...]

    @property
    def output(self) -> str:
        """The whole turn as the model writes it, without the end token."""
        return written_by(self.reasoning, self.content)

    @property
    def openai_messages(self) -> list[dict[str, Any]]:
        """The messages as OpenAI's chat completions take them; calls have ids, and results name them."""
        shown = [message for message in self.messages if message["role"] == "system"]
        calls = 0
        unanswered: Iterator[str] = iter(())
        for turn in self.turns:
            message: dict[str, Any] = {"role": turn.role, "content": turn.content}
            if turn.calls:
                made = [_openai_call(calls + at, call) for at, call in enumerate(turn.calls)]
                calls += len(made)
                unanswered = iter([call["id"] for call in made])
                message |= {"content": None, "tool_calls": made}
            elif turn.role == "tool":
                message["tool_call_id"] = next(unanswered)
            shown.append(message)
        return shown


def make_requests(kind: str, count: int, seed: int) -> list[Request]:
    """`count` requests of one of `KINDS`; the same every time for the same arguments. Raises KeyError."""
    requests = []
    for number in range(count):
        rng = random.Random(f"evaluation/{kind}/{seed}/{number}")
        author = Author(Lexicon(rng, held_out=True, common=common_words()))
        requests.append(_request(kind, author.write(kind)))
    return requests


def _request(kind: str, made: Conversation) -> Request:
    wanted = made.turns[made.wanted]
    return Request(
        kind=kind,
        messages=tuple(messages(made.system, made.turns[: made.wanted])),
        turns=made.turns[: made.wanted],
        tools=made.tools,
        reasoning=wanted.reasoning if made.think else "",
        content=wanted.content,
        calls=wanted.calls,
    )


def _openai_call(number: int, call: Call) -> dict[str, Any]:
    name, arguments = call
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"call_{number}", "type": "function", "function": function}


def messages(system: str, turns: tuple[Turn, ...]) -> list[dict[str, Any]]:
    """Turns as template variables, without their reasoning: templates do not show the past's."""
    first = [{"role": "system", "content": system}] if system else []
    return [*first, *({"role": turn.role, "content": turn.content} for turn in turns)]


def written_by(reasoning: str, content: str) -> str:
    """An assistant's turn as the model writes it."""
    return f"<think>{reasoning}</think>{content}" if reasoning else content
