"""The interface of an engine adapter: a vocabulary, and one live sequence of evaluated tokens.

The rest of a host (the owner thread, templates, prefix reuse, stop strings, the loop) is shared and uses only
these two. Every method is called on the owner thread, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from localagent.hosts.sampling import Sampling
from localagent.hosts.utf8 import Piece
from localagent.prompt.segments import Segment

Cancelled = Callable[[], bool]


class Vocabulary(Protocol):
    """Text to ids and back."""

    @property
    def size(self) -> int:
        """The number of ids."""

    @property
    def special(self) -> Mapping[int, str]:
        """Id to text of the tokens that content must not spell."""

    @property
    def bos(self) -> str:
        """Text of the begin-of-sequence token; empty when there is none."""

    @property
    def eos(self) -> str:
        """Text of the end-of-sequence token; empty when there is none."""

    def piece(self, token: int) -> Piece:
        """The bytes and flags of a token, cached. Raises IndexError for an id outside the vocabulary."""

    def tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        """The ids of `text` with nothing added; control tokens are recognised only when `special`."""

    def tokenize_segments(self, segments: Iterable[Segment], continued: bool = False) -> tuple[int, ...]:
        """The ids of a rendered prompt, with one BOS in front where the vocabulary asks for it.

        `continued`: the text follows other tokens, so no BOS and no leading space is added.
        """


@dataclass(frozen=True, slots=True)
class State:
    """An engine's state of a sequence at one position, opaque to other code.

    Either the whole state (`LiveSequence.save`), or only the part that cannot be rewound
    (`LiveSequence.checkpoint`).
    """

    data: Any
    nbytes: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A `State` as bytes: a JSON-shaped description and the buffers that it describes."""

    layout: Any
    buffers: tuple[bytes | memoryview, ...]


class LiveSequence(Protocol):
    """The sequence that the engine holds evaluated: KV cache and, in hybrid models, recurrent state."""

    @property
    def ids(self) -> list[int]:
        """The tokens that have been evaluated, in order. Only the adapter writes to the list."""

    def evaluate(self, ids: Sequence[int], cancelled: Cancelled) -> bool:
        """Append `ids` in one chunk. Returns False if cancelled midway: the state is then undefined, and the
        caller must `rewind`, `restore` or `clear` next. Raises EngineFailed.
        """

    def decode(
        self, ids: Sequence[int], sampling: Sampling, history: Sequence[int], cancelled: Cancelled
    ) -> Iterator[int]:
        """Append `ids` (at least one) and yield sampled tokens without end.

        A token is evaluated when the next one is requested, or earlier. `history`: the whole prompt, for the
        repetition penalty. Yields nothing when cancelled within `ids`. Raises EngineFailed.
        """

    def logprobs(self) -> Any:
        """numpy float32 [size]: the log-probabilities (natural) from which the last token was drawn, before
        penalties, temperature and truncation. Valid until the next token is requested.
        """

    def checkpoint(self) -> State:
        """The state that `rewind` needs to return here. Cheap; empty for pure attention."""

    def rewind(self, length: int, checkpoint: State) -> bool:
        """Return to the first `length` tokens, where `checkpoint` was taken. False if the engine cannot."""

    def save(self) -> State:
        """A copy of the whole state, for a return after other sequences were evaluated."""

    def restore(self, ids: Sequence[int], saved: State) -> bool:
        """Replace the sequence by `ids` and the state saved for them. False if the engine refuses it."""

    def clear(self) -> None:
        """Forget all tokens."""

    def pack(self, state: State) -> Packed:
        """A state as bytes, for a file."""

    def unpack(self, packed: Packed) -> State:
        """A state from bytes. Raises ValueError if they do not hold one."""


class Engine(Protocol):
    """A loaded model."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's vocabulary."""

    @property
    def sequence(self) -> LiveSequence:
        """The one live sequence."""

    @property
    def context_size(self) -> int:
        """Context window in tokens."""

    @property
    def chunk(self) -> int:
        """The most tokens that `LiveSequence.evaluate` and `decode` are given at once."""

    def close(self) -> None:
        """Free everything. Safe to call twice."""
