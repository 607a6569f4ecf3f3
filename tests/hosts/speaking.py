"""An engine without weights: its state is one number, and it says what it was told to say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from localagent.errors import EngineFailed
from localagent.hosts.engine import Cancelled
from localagent.hosts.host import EngineHost, Identity, Reuse
from localagent.hosts.owner import OwnerThread
from localagent.hosts.sampling import Sampling
from localagent.hosts.utf8 import Piece, make_piece
from localagent.prompt import Segment
from tests.hosts.prefix.chain import Chain

END, START, HEL, LO = 256, 257, 258, 259
TEMPLATE = "{% for m in messages %}<s>{{ m.content }}<e>{% endfor %}<s>"


class Bytes:
    """A vocabulary with a token for every byte, one that ends a turn, and one that begins it.

    Two more stand for several letters. `tokenize` never uses them: only a model that says them shows them.
    """

    size = 260
    bos = eos = ""

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


class Speaking(Chain):
    """See `engine.LiveSequence`. Says `script`, token by token, and then the end; `fails` says when it fails.

    `works` is called for everything that takes an engine time: "evaluate" and "draw".
    """

    def __init__(self, script: Sequence[int] = (), works: Callable[[str], object] = lambda _: None) -> None:
        super().__init__()
        self.script = [*script]
        self.works = works
        self.cuts: list[int] = []
        """The lengths of the chunks that it was given."""
        self.closed = 0
        self.histories: list[Sequence[int]] = []

    def evaluate(self, ids: Sequence[int], cancelled: Cancelled) -> bool:
        self.works("evaluate")
        return super().evaluate(ids, cancelled)

    def decode(
        self, ids: Sequence[int], sampling: Sampling, history: Sequence[int], cancelled: Cancelled
    ) -> Iterator[int]:
        self.histories.append(history)
        self.draws = self._draws(ids, cancelled)  # held, so that only `close` ends it
        return self.draws

    def _draws(self, ids: Sequence[int], cancelled: Cancelled) -> Iterator[int]:
        try:
            if not self.evaluate(ids, cancelled):
                return
            for token in [*self.script, *[END] * 1000]:
                self.works("draw")
                yield token
                super().evaluate([token], cancelled)
        finally:
            self.closed += 1

    def logprobs(self) -> Any:
        """Falling from the token that is drawn `len(self.ids)`-th on; all others are equally unlikely."""
        import numpy

        scores = numpy.full(Bytes.size, -9.0, dtype=numpy.float32)
        scores[len(self.ids) % 200] = -0.5
        return scores


@dataclass
class SpeakingEngine:
    """See `engine.Engine`."""

    sequence: Speaking
    chunk: int = 16
    context_size: int = 1000
    vocabulary: Bytes = field(default_factory=Bytes)
    closed: int = 0

    def close(self) -> None:
        self.closed += 1


def speaking_host(
    sequence: Speaking, reuse: Reuse | None = None, template: str | None = TEMPLATE, **options: Any
) -> EngineHost:
    """A host of that engine."""
    engine = SpeakingEngine(sequence, **options)
    identity = Identity("speaking", "chain", template, "chain 1", lambda: "weights", "")
    return EngineHost(OwnerThread("test-speaking"), lambda: engine, identity, reuse)


def failing(work: str, at: int) -> Callable[[str], None]:
    """The `at`-th time that the engine is to do `work`, from 1, it gives up."""
    left = at

    def works(done: str) -> None:
        nonlocal left
        left -= done == work
        if done == work and left == 0:
            raise EngineFailed("the engine gave up")

    return works
