"""Turns of the model that were written down beforehand, and what a client makes of the frames."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from localagent.hosts.protocol import Logprobs, Token
from localagent.hosts.replay import ReplayHost
from localagent.model import Model
from localagent.prompt.segments import Prompt
from localagent.server.exchange import Answer, Frame, Wire
from localagent.server.raw import TEXT
from localagent.turn import Done, Scored, TurnEvent
from parsers import DIALECTS, Dialect

ANSWER = Answer(model="lfm2-nano", created=1_700_000_000.5, key="k3y", buffer_tool_calls=False)
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "", "parameters": {"type": "object", "properties": {"a": {}}}},
}


def named(dialect: str) -> Dialect:
    """A dialect, or that of a model that continues a text."""
    return TEXT if dialect == TEXT.name else DIALECTS[dialect]


def tokens_of(output: str, dialect: str = "lfm2", cuts: Iterable[int] = (), size: int = 4) -> list[Token]:
    """What a host yields for this output: markers as special tokens, the rest cut there, or in small pieces."""
    markers = named(dialect).markers
    pattern = "(" + ("|".join(map(re.escape, sorted(markers, key=len, reverse=True))) or "(?!)") + ")"
    tokens: list[Token] = []
    at = 0
    places = set(cuts)
    for piece in filter(None, re.split(pattern, output)):
        begun = 0
        for place in range(1, len(piece)):
            cut = at + place in places if places else place % size == 0
            if cut and piece not in markers:
                tokens.append(Token(len(tokens), piece[begun:place], False))
                begun = place
        tokens.append(Token(len(tokens), piece[begun:], piece in markers))
        at += len(piece)
    return tokens


def turn_of(
    output: str | Sequence[Token], dialect: str = "lfm2", inside: str | None = None, **options: Any
) -> list[TurnEvent]:
    """The events of a turn in which the model writes this."""
    tokens = tokens_of(output, dialect) if isinstance(output, str) else output
    host = ReplayHost([tokens], named(dialect).markers, Prompt((1, 2, 3), "", inside=inside))
    return list(Model(host, named(dialect)).stream("Go.", **options))


def scored(events: Sequence[TurnEvent], tops: int = 1) -> list[TurnEvent]:
    """The same turn with log-probabilities, which a replay does not have."""
    *others, done = events
    assert isinstance(done, Done)
    scores = tuple(Logprobs(-0.5, tuple((at + n, -0.5 - n) for n in range(tops))) for at in done.token_ids)
    waiting = deque(map(Scored, done.token_ids, done.ends, scores))
    told: list[TurnEvent] = []
    begin = 0
    for event in others:
        while waiting and begin < getattr(event, "end", 0):
            begin = waiting[0].end
            told.append(waiting.popleft())
        told.append(event)
    return [*told, *waiting, dataclasses.replace(done, logprobs=scores)]


def spell(output: Sequence[Token]) -> Any:
    """`Answer.spell` for these tokens; ids beyond them are spelled "?"."""
    texts = {token.id: token.text for token in output}
    return lambda ids: [texts.get(each, "?").encode() for each in ids]


def answered(
    wire: Wire, body: Any, events: Iterable[TurnEvent], answer: Answer = ANSWER
) -> tuple[list[Frame], dict[str, Any]]:
    """The stream and the whole answer, from one writer."""
    writer = wire.writer(wire.read(body), answer)
    frames = writer.begin()
    for event in events:
        frames += writer.feed(event)
    return frames, writer.whole()


def data_of(frames: Iterable[Frame]) -> list[Any]:
    """The JSON of each frame, as it comes out of the bytes; "[DONE]" is itself, and comments are left out."""
    found = []
    for frame in frames:
        text = frame.encode().decode()
        assert text.endswith("\n\n")
        lines = text.splitlines()
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert len(data) == (frame.data is not None)
        found += [each if each == "[DONE]" else json.loads(each) for each in data]
    return found
