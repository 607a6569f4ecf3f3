"""Agents whose model plays recordings, and conversations as lines that tests can compare."""

from __future__ import annotations

import re
from collections.abc import Iterable

from localagent.agent import Agent, RunDone, RunFailed
from localagent.hosts.protocol import Token
from localagent.hosts.replay import ReplayHost
from localagent.messages import AssistantMessage, Message, ToolMessage
from localagent.model import Model
from parsers import DIALECTS

LFM2 = DIALECTS["lfm2"]
_MARKERS = re.compile("(" + "|".join(map(re.escape, LFM2.markers)) + ")")


def block(*calls: str) -> str:
    """One block of calls in the model's own notation: `block("add(a=1)")`."""
    return f"{LFM2.calls.open}[{', '.join(calls)}]{LFM2.calls.close}"


def recording(output: str, size: int = 5) -> list[Token]:
    """What a host yields for this output: markers as special tokens, the rest in small pieces."""
    pieces = [piece for piece in _MARKERS.split(output) if piece]
    tokens: list[Token] = []
    for piece in pieces:
        special = piece in LFM2.markers
        cuts = [piece] if special else [piece[at : at + size] for at in range(0, len(piece), size)]
        tokens += (Token(len(tokens), cut, special) for cut in cuts)
    return [*tokens, Token(len(tokens), "<|im_end|>", True, end=True)]


def scripted(*outputs: str) -> Model:
    """A model that writes these outputs, one a turn, and then the last one again."""
    return Model(ReplayHost([recording(output) for output in outputs], LFM2.markers), LFM2)


def follow(agent: Agent, prompt: object = "Go.", **options: object) -> tuple[list, RunDone]:
    """The events of a run, and its end."""
    *events, last = agent.run(prompt, **options)
    assert not any(isinstance(event, RunDone | RunFailed) for event in events)
    assert isinstance(last, RunDone), last
    return events, last


def lines(messages: Iterable[Message]) -> list[str]:
    """A conversation, a line for each message; errors are marked with an exclamation mark."""
    return [f"{message.role}: {_line(message)}" for message in messages]


def _line(message: Message) -> str:
    if isinstance(message, ToolMessage):
        return " | ".join(("! " if each.is_error else "") + each.text for each in message.results)
    if isinstance(message, AssistantMessage):
        calls = (f"{call.name}({call.described_arguments})" for call in message.tool_calls)
        broken = (f"<{part.reason}>" for part in message.malformed_tool_calls)
        return " ".join(filter(None, (message.text, *calls, *broken)))
    return message.text
