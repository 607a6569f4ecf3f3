"""Whole exchanges with a model that plays recordings: a request is read, and a turn with its options told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from localagent.hosts.protocol import Token
from localagent.hosts.replay import ReplayHost
from localagent.messages import UserMessage
from localagent.model import Model
from localagent.prompt.segments import Prompt
from localagent.server.exchange import Answer, Frame, Wire
from parsers import DIALECTS
from tests.agent.replaying import recording
from tests.parsers.outputs import flagged
from tests.parsers.reading import Piece
from tests.server.wires.turns import answered

ANSWER = Answer(model="replay", created=1_700_000_000.25, key="K", buffer_tool_calls=False)


@dataclass(frozen=True)
class Told:
    """One answer: as it was streamed, and whole."""

    frames: list[Frame]
    whole: dict[str, Any]

    @property
    def data(self) -> list[Any]:
        return [frame.data for frame in self.frames]


def model_of(tokens: Sequence[Token], dialect: str = "lfm2") -> Model:
    host = ReplayHost([tokens], DIALECTS[dialect].markers, Prompt((1, 2, 3), ""))
    return Model(host, DIALECTS[dialect])


def tell(wire: Wire, body: Mapping[str, Any], output: str | Model, answer: Answer = ANSWER) -> Told:
    """The answer to this request of a model, or of one that writes `output` in LFM2's notation."""
    request = wire.read(body)
    model = model_of(recording(output)) if isinstance(output, str) else output
    said = request.messages or [UserMessage(content=str(request.raw_prompts))]
    events = model.stream(said, tools=request.tools or None, **request.options)
    return Told(*answered(wire, body, events, answer))


def _tokens(pieces: Sequence[Piece], end: str) -> list[Token]:
    """Pieces of output, as hosts yield them: they never write half a surrogate pair."""
    tokens = []
    for number, (text, special) in enumerate(pieces):
        readable = "".join("?" if "\ud800" <= character <= "\udfff" else character for character in text)
        tokens.append(Token(number, readable, bool(special)))
    return [*tokens, Token(len(tokens), end, True, end=True)]


@st.composite
def models(draw: st.DrawFn, dialects: Sequence[str] = ("lfm2", "hermes")) -> Model:
    """Models that write anything: calls, broken calls, reasoning and noise, cut anywhere into tokens."""
    name = draw(st.sampled_from(dialects))
    _, pieces = draw(flagged(name))
    return model_of(_tokens(pieces, DIALECTS[name].ends[0]), name)
