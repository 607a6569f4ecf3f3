"""An engine without weights: the state of a lane is one number, and it says what it was told to say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from localagent.errors import EngineFailed
from localagent.hosts.engine import CancelCheck
from localagent.hosts.host import EngineHost, Identity, Reuse
from localagent.hosts.owner import OwnerThread
from localagent.hosts.sampling import Sampling
from localagent.hosts.utf8 import Piece, make_piece
from localagent.prompt import Segment
from tests.hosts.prefix.chain import Chain, Pool

END, START, HEL, LO = 256, 257, 258, 259
TEMPLATE = "{% for m in messages %}<s>{{ m.content }}<e>{% endfor %}<s>"


class Bytes:
    """A vocabulary with a token for every byte, one that ends a turn, and one that begins it.

    Two more stand for several letters. `tokenize` never uses them: only a model that says them shows them.
    """

    size = 260
    bos = eos = ""
    gap = None

    def __init__(self) -> None:
        self.special = {END: "<e>", START: "<s>"}

    def piece(self, token: int) -> Piece:
        if not 0 <= token < self.size:
            raise IndexError(f"no token {token}")
        known = {**self.special, HEL: "hel", LO: "lo"}
        data = known[token].encode() if token in known else bytes([token])
        return make_piece(token, data, token in self.special, token == END)

    def tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        if not special:
            return tuple(text.encode())
        whole = text.encode().replace(b"<e>", b"\xfe").replace(b"<s>", b"\xff")
        return tuple({0xFE: END, 0xFF: START}.get(byte, byte) for byte in whole)

    def tokenize_segments(self, segments: Iterable[Segment], continued: bool = False) -> tuple[int, ...]:
        return tuple(token for text, special in segments for token in self.tokenize(text, special))


Works = Callable[[str, "SpeakingLane"], object]


def chosen(value: int, mask: Any = None) -> int:
    """What a chain says in this state, among the tokens under 50 that a mask allows."""
    allowed = [token for token in range(50) if mask is None or mask[token // 32] >> (token % 32) & 1]
    return allowed[value % len(allowed)]


class SpeakingLane(Chain):
    """See `engine.Lane`."""

    def __init__(self, engine: Speaking, number: int, pool: Pool) -> None:
        super().__init__(pool=pool)
        self.number = number
        self.begun: Sampling | None = None
        self.drawn: int | None = None
        self.mask: Any = None
        self.said = 0
        self._engine = engine

    def evaluate(self, ids: Sequence[int], cancelled: CancelCheck) -> bool:
        self._engine.log.append(("read", (self.number,)))
        self._engine.latest = (self,)
        return self.append(ids, cancelled)

    def append(self, ids: Sequence[int], cancelled: CancelCheck) -> bool:
        self._engine.works("evaluate", self)
        assert len(ids) <= self._engine.batch
        return super().evaluate(ids, cancelled)

    def begin(self, sampling: Sampling, history: Sequence[int]) -> None:
        self._engine.works("begin", self)
        self._engine.histories.append(history)
        assert self.ids == list(history), "the prompt is evaluated, and nothing else"
        self.begun, self.said = sampling, 0

    def end(self) -> None:
        if self.begun is not None:
            self._engine.ended += 1
        self.begun = self.drawn = self.mask = None

    def draw(self) -> int:
        """Evaluate the token drawn last, and draw one."""
        assert self.begun is not None, "nothing is drawn before `begin` or after `end`"
        if self.drawn is None:
            assert self in self._engine.latest, "the logits after its prompt have been overwritten"
        else:
            self._engine.latest = ()
            super().evaluate([self.drawn], lambda: False)
        self._engine.works("draw", self)
        script = self._engine.script
        if script is None:
            self.drawn = chosen(self.value, self.mask)
        else:
            self.drawn = script[self.said] if self.said < len(script) else END
        self.said += 1
        self.mask = None
        return self.drawn

    def bound(self, mask: Any, otherwise: int | None = None) -> None:
        assert self.begun is not None
        assert otherwise is None, "real engines are tried with it"
        self.mask = mask

    def force(self, tokens: Sequence[int]) -> None:
        self._engine.log.append(("force", (self.number,)))
        self._engine.works("force", self)
        assert self.begun is not None
        assert self.mask is None
        assert 1 < len(tokens) <= self._engine.chunk
        self._engine.latest = ()
        super().evaluate([*([] if self.drawn is None else [self.drawn]), *tokens[:-1]], lambda: False)
        self.drawn = tokens[-1]
        self.said += len(tokens)

    @property
    def can_verify(self) -> bool:
        return self._engine.drafts and self.drawn is not None

    def verify(self, draft: Sequence[int], last: Callable[[int], bool]) -> Sequence[int]:
        """As a real one does: what was not drawn is not evaluated."""
        self._engine.log.append(("verify", (self.number,)))
        drawn: list[int] = []
        for expected in [*draft, None]:
            drawn.append(self.draw())
            if drawn[-1] != expected or last(drawn[-1]):
                break
        return drawn

    def logprobs(self) -> Any:
        """Falling from the token that is drawn `len(self.ids)`-th on; all others are equally unlikely."""
        import numpy

        self._engine.works("logprobs", self)
        scores = numpy.full(Bytes.size, -9.0, dtype=numpy.float32)
        scores[len(self.ids) % 200] = -0.5
        return scores


class Speaking:
    """See `engine.Engine`. Every lane says `script`, token by token, and then the end; without one, see `spoken`.

    `works` is called for everything that takes an engine time: "evaluate", "begin", "draw", "logprobs" with the lane,
    and "step" with the first of them. An EngineFailed that it raises for a draw is about that lane alone.
    """

    def __init__(
        self,
        script: Sequence[int] | None = (),
        works: Works = lambda *_: None,
        *,
        lanes: int = 1,
        chunk: int = 16,
        context_size: int = 1000,
        capacity: int | None = None,
        drafts: bool = False,
        joint: bool = False,
        batch: int | None = None,
        anywhere: bool = False,
    ) -> None:
        """`joint`: it evaluates chunks of several lanes at once. `batch`: a prompt may be cut wherever one likes; so
        it may with `anywhere`, and lanes need no checkpoints.
        """
        self.drafts = drafts
        self.joint = joint
        self.threads, self.short, self.rewinds = None, 0, False
        self.divisible = anywhere or batch is not None
        self.batch = batch or chunk
        self.script = None if script is None else [*script]
        self.works = works
        self.chunk = chunk
        self.spacing = None if anywhere else chunk
        self.context_size = context_size
        self.capacity = lanes * context_size if capacity is None else capacity
        self.vocabulary = Bytes()
        pool = Pool(self.capacity)
        self.lanes = [SpeakingLane(self, number, pool) for number in range(lanes)]
        self.log: list[tuple[str, tuple[int, ...]]] = []
        """What was asked of it: "read" or "draw" and the lanes, or "force" or "verify" and one lane."""
        self.latest: tuple[SpeakingLane, ...] = ()
        """Whose prompts were evaluated last: the logits are theirs."""
        self.histories: list[Sequence[int]] = []
        self.ended = 0
        """How many generations have been ended."""
        self.closed = self.rests = 0

    def evaluate(
        self, lanes: Sequence[SpeakingLane], chunks: Sequence[Sequence[int]], cancelled: CancelCheck
    ) -> bool:
        self.log.append(("read", tuple(lane.number for lane in lanes)))
        assert len({len(chunk) for chunk in chunks}) == 1
        assert self.joint
        assert len(chunks[0]) > 1
        assert sum(map(len, chunks)) <= self.batch
        self.latest = tuple(lanes)
        whole = [lane.append(chunk, cancelled) for lane, chunk in zip(lanes, chunks, strict=True)]
        return all(whole)

    def advance(self, lanes: Sequence[SpeakingLane]) -> Sequence[int | EngineFailed]:
        self.log.append(("draw", tuple(lane.number for lane in lanes)))
        self.works("step", lanes[0])
        return [_drawn(lane) for lane in lanes]

    def rest(self) -> None:
        self.rests += 1

    @property
    def evaluated(self) -> int:
        """How many tokens were computed."""
        return sum(lane.evaluated for lane in self.lanes)

    def close(self) -> None:
        self.closed += 1


def _drawn(lane: SpeakingLane) -> int | EngineFailed:
    try:
        return lane.draw()
    except EngineFailed as error:
        return error


def speaking_host(
    engine: Speaking, reuse: Reuse | None = None, template: str | None = TEMPLATE
) -> EngineHost:
    """A host of that engine."""
    identity = Identity("speaking", "chain", template, "chain 1", lambda: "weights", "")
    return EngineHost(OwnerThread("test-speaking"), lambda: engine, identity, reuse)


def failing(work: str, at: int, lane: int | None = None, error: type[Exception] = EngineFailed) -> Works:
    """The `at`-th time that the engine is to do `work` (in that lane), from 1, it gives up."""
    left = at

    def works(done: str, where: SpeakingLane) -> None:
        nonlocal left
        if done != work or lane not in (None, where.number):
            return
        left -= 1
        if left == 0:
            raise error("the engine gave up")

    return works
