"""Real turns of a model that plays recordings, told by the writer of a wire."""

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
from localagent.server.exchange import Answer, Frame, TurnRequest, Wire
from parsers import DIALECTS
from tests.agent.replaying import recording
from tests.parsers.outputs import flagged
from tests.parsers.reading import Piece

ANSWER = Answer(model="replay", created=1_700_000_000.25, key="K", prompt_tokens=3)
PROMPT = Prompt((1, 2, 3), "")


@dataclass(frozen=True)
class Told:
    """One answer: as it was streamed, and whole."""

    frames: list[Frame]
    whole: dict[str, Any]

    @property
    def data(self) -> list[Any]:
        return [frame.data for frame in self.frames]


def model_of(tokens: Sequence[Token], dialect: str = "lfm2") -> Model:
    host = ReplayHost([tokens], DIALECTS[dialect].markers, PROMPT)
    return Model(host, DIALECTS[dialect])


def tell(
    wire: Wire, body: Mapping[str, Any], output: str | Model, answer: Answer = ANSWER, **options: Any
) -> Told:
    """The answer of a model that writes `output`, in LFM2's notation, to this request."""
    return tell_request(wire, wire.read(body), output, answer, **options)


def tell_request(
    wire: Wire, request: TurnRequest, output: str | Model, answer: Answer = ANSWER, **options: Any
) -> Told:
    model = model_of(recording(output)) if isinstance(output, str) else output
    writer = wire.writer(request, answer)
    frames = writer.begin()
    said = request.messages or [UserMessage(content=request.raw_prompt or "x")]
    for event in model.stream(said, tools=request.tools or None, **{**request.options, **options}):
        frames += writer.feed(event)
    return Told(frames, writer.whole())


def tokens_of(pieces: Sequence[Piece], end: str) -> list[Token]:
    """Pieces of output, as hosts yield them: they never split a character or write half a surrogate pair."""
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
    ends = DIALECTS[name].ends or ("<|im_end|>",)
    return model_of(tokens_of(pieces, sorted(ends)[0]), name)
