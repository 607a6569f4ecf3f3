"""The interface of an engine adapter: a vocabulary, and lanes of evaluated tokens.

The rest of a host (the owner thread, the scheduler, templates, prefix reuse, stop strings) is shared and uses
only these. Every method is called on the owner thread, one at a time, but for those of the vocabulary that
say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from localagent.errors import EngineFailed
from localagent.hosts.markers import GapMarks
from localagent.hosts.sampling import Sampling
from localagent.hosts.utf8 import Piece
from localagent.prompt.segments import Segment

CancelCheck = Callable[[], bool]


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

    @property
    def gap(self) -> GapMarks | None:
        """The tokens of a prompt with a gap; None where the model was not trained to fill one."""

    def piece(self, token: int) -> Piece:
        """The bytes and flags of a token, cached. Raises IndexError for an id outside the vocabulary."""

    def tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        """The ids of `text` with nothing added; control tokens are recognised only when `special`.

        Called in any thread, several at a time. A long text is to leave other threads running meanwhile.
        """

    def tokenize_segments(self, segments: Iterable[Segment], continued: bool = False) -> tuple[int, ...]:
        """The ids of a rendered prompt, with one BOS in front where the vocabulary asks for it. Called as
        `tokenize` is.

        `continued`: the text follows other tokens, so no BOS and no leading space is added.
        """


@dataclass(frozen=True, slots=True)
class State:
    """An engine's state of a sequence at one position, opaque to other code.

    Either the whole state (`Lane.save`), or only the part that cannot be rewound
    (`Lane.checkpoint`).
    """

    data: Any
    nbytes: int


NOTHING = State(None, 0)
"""The checkpoint of a lane that needs none."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A `State` as bytes: a JSON-shaped description and the buffers that it describes."""

    layout: Any
    buffers: tuple[bytes | memoryview, ...]


class Lane(Protocol):
    """A place for one sequence that the engine holds evaluated: KV cache and, in hybrid models, recurrent
    state.
    """

    @property
    def ids(self) -> list[int]:
        """The tokens that have been evaluated, in order. Only the adapter writes to the list."""

    @property
    def can_verify(self) -> bool:
        """Whether `verify` can be called now: a token was drawn and is not evaluated yet."""

    def evaluate(self, ids: Sequence[int], cancelled: CancelCheck) -> bool:
        """Append `ids`, at most a chunk. Returns False if cancelled midway: the state is then undefined, and
        the caller must `rewind`, `restore` or `clear` next. Raises EngineFailed.
        """

    def begin(self, sampling: Sampling, history: Sequence[int]) -> None:
        """The prompt is evaluated: have `Engine.advance` draw like this. `history`: the whole prompt, for the
        repetition penalty. The first token must be drawn before any lane evaluates anything more. Raises
        EngineFailed.
        """

    def end(self) -> None:
        """Draw no more. Safe to call twice and without `begin`."""

    def bound(self, mask: Any, otherwise: int | None = None) -> None:
        """Draw the next token, and only that one, among those in `mask`, or as without it, with `otherwise`
        in place of a token that is not in it: see `protocol.Constraint`.
        """

    def force(self, tokens: Sequence[int]) -> None:
        """Append `tokens`, at most a chunk, as if they had been drawn one by one. The repetition penalty
        sees them, and the next draw is the one after them. Raises EngineFailed.

        Only after `begin`. It evaluates, so no other lane may be waiting for its first token.
        """

    def verify(self, draft: Sequence[int], last: Callable[[int], bool]) -> Sequence[int]:
        """Draw several tokens at once: evaluate the one drawn last and `draft` after it, and draw at each
        place as `Engine.advance` would, as long as what is drawn is what the draft says and not `last`.

        Returns what was drawn, at least one token. Only for lanes that `can_verify`. Raises EngineFailed.
        """

    def logprobs(self) -> Any:
        """numpy float32 [size]: the log-probabilities (natural) from which the last token was drawn, before
        a mask, penalties, temperature and truncation. Valid until any lane evaluates something.
        """

    def checkpoint(self) -> State:
        """The state that `rewind` needs to return here. Cheap; empty for pure attention."""

    def rewind(self, length: int, checkpoint: State) -> bool:
        """Return to the first `length` tokens, where `checkpoint` was taken. False if the engine cannot.

        With the engine's `spacing` None, `NOTHING` stands for any checkpoint, here and in `fork`.
        """

    def save(self) -> State:
        """A copy of the whole state, for a return after other sequences were evaluated."""

    def restore(self, ids: Sequence[int], saved: State) -> bool:
        """Replace the sequence by `ids` and the state saved for them. False if the engine refuses it."""

    def fork(self, other: Self, length: int, checkpoint: State | None) -> bool:
        """Make an empty lane hold the first `length` tokens of another one, which may be drawing meanwhile.

        `checkpoint`: taken there in the other lane; None when these are all of its tokens. False if the
        engine cannot; the lane is then to be cleared.
        """

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
    def lanes(self) -> Sequence[Lane]:
        """The lanes; at least one."""

    @property
    def context_size(self) -> int:
        """Context window in tokens: the most that a lane holds."""

    @property
    def capacity(self) -> int:
        """The most tokens that all lanes hold together, at least `context_size`."""

    @property
    def chunk(self) -> int:
        """The most tokens that are evaluated at once while other lanes wait for their next token."""

    @property
    def batch(self) -> int:
        """The most tokens that are evaluated at once while none do: at least `chunk`. Where the engine is not
        `divisible`, chunks of several prompts.
        """

    @property
    def divisible(self) -> bool:
        """Whether a prompt has the same logits wherever it is cut into chunks, if none is a single token.

        If not, it is always cut in the same places.
        """

    @property
    def short(self) -> int:
        """Chunks of fewer tokens may be divided all the same, if none is a single token; 0 if none may."""

    @property
    def rewinds(self) -> bool:
        """Whether a lane has nothing but its cells, so that a checkpoint may be taken when more has been
        evaluated.
        """

    @property
    def joint(self) -> bool:
        """Whether `evaluate` may be called: it gives the logits of one chunk after the other, but for what
        rounding makes of quantized weights where the engine is not `divisible`.
        """

    @property
    def spacing(self) -> int | None:
        """Tokens between two checkpoints within a message. If the engine is not `divisible`, a multiple of
        `chunk`, so that the cuts after a checkpoint are those of the whole prompt.

        None where a lane needs no checkpoints to `rewind` to any length. Only for a `divisible` engine: else
        the logits would not be those of a prompt that is read from its beginning.
        """

    @property
    def threads(self) -> int | None:
        """CPU threads that computed last; None where the engine does not tell. Any thread may ask."""

    def evaluate(
        self, lanes: Sequence[Lane], chunks: Sequence[Sequence[int]], cancelled: CancelCheck
    ) -> bool:
        """`Lane.evaluate` for several lanes, whose chunks have the same length, two tokens or more. Each may
        then `begin`. Only where `joint`. False and EngineFailed are about all of them.
        """

    def advance(self, lanes: Sequence[Lane]) -> Sequence[int | EngineFailed]:
        """Draw a token for each of `lanes`, all of which have begun, computing them together.

        A token is evaluated before the next one is drawn, or earlier. An error stands in place of the token
        of the one lane that it is about; what that lane holds is then undefined. Raises EngineFailed where
        all of them are concerned.
        """

    def rest(self) -> None:
        """There is nothing to compute for a while. Cheap, and safe to call again."""

    def close(self) -> None:
        """Free everything. Safe to call twice."""
