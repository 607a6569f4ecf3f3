"""The lanes in MLX: sequences of tokens, each with prompt caches of its own or a row in those of a batch.

They are `engine.Lane`s. A lane that draws alone has its own caches. Lanes that draw together are joined in a
batch, and stay joined as long as they are the same: one forward pass and one wait for all. A lane that goes
elsewhere copies its row out of the batch, which closes up in the next step.

A step is one ahead: before a token is handed out, the forward pass for it is queued, and in that the next one
is drawn. So the caches hold exactly `ids`, the last token drawn included, and the one drawn ahead may be
dropped at any time. A chunk of the prompt is computed in one piece; it can be cancelled only before that.
"""

from __future__ import annotations

import sys
import traceback
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from localagent.errors import EngineFailed
from localagent.hosts.engine import CancelCheck, Packed, State
from localagent.hosts.mlx.caches import Caches, CacheSnapshot
from localagent.hosts.mlx.library import Library, first_line
from localagent.hosts.mlx.packing import pack, unpack
from localagent.hosts.mlx.sampling import Drawn, Sampler, draw
from localagent.hosts.sampling import Sampling

_TIDY = 256
"""Steps after which MLX frees the buffers that it keeps: those of shorter sequences do not fit any more."""


class Context:
    """A model, its kind of caches, and every state that was taken of them."""

    def __init__(self, lib: Library, model: Any) -> None:
        self.lib = lib
        self.model = model
        with lib.mx.stream(lib.generation_stream):
            self.caches = Caches(lib, model)
        self.capacity = sys.maxsize
        """The tokens that all lanes hold together."""
        self._snapshots: weakref.WeakSet[CacheSnapshot] = weakref.WeakSet()
        self._steps = 0

    def read_weights(self) -> None:
        """Read the model's weights into memory."""
        try:
            self.lib.mx.eval(self.model.parameters())
        except Exception as error:
            raise EngineFailed(f"MLX cannot read the weights: {first_line(error)}") from error

    def forward(self, tokens: Any, caches: list[Any]) -> Any:
        """[rows, size], not computed: the logits after `tokens` [rows, count], which the caches then hold."""
        return self.model(tokens, cache=caches)[:, -1, :]

    def state(self, snapshot: CacheSnapshot) -> State:
        """As the prefix cache holds it."""
        self._snapshots.add(snapshot)
        return State(snapshot, sum(array.nbytes for array in snapshot.arrays()))

    def stepped(self) -> None:
        """A step has been queued."""
        self._steps += 1
        if self._steps % _TIDY == 0:
            self.lib.mx.clear_cache()

    def close(self) -> None:
        """Let go of the model, and of the arrays of every state that anybody still holds."""
        for snapshot in self._snapshots:
            snapshot.entries = None
        self.model = None
        self.caches.close()


@dataclass(eq=False, slots=True)
class Rows:
    """Lanes that are computed together, their caches, and what was drawn for them that those do not hold yet.

    One lane alone has caches of its own; in a batch they are `joined`. None stands for a lane that has left.
    """

    lanes: list[MlxLane | None]
    caches: list[Any]
    drawn: Drawn | None = None
    joined: bool = False


class MlxLane:
    """A sequence that is computed alone or as a row of a batch."""

    def __init__(self, context: Context) -> None:
        self.ids: list[int] = []
        self.rows = Rows([self], context.caches.make())
        self.sampler: Sampler | None = None
        self.source: tuple[Any, int] | None = None
        """The logits from which the last token was drawn, and the row."""
        self.mask: Any = None
        """What bounds the next token; None if nothing does."""
        self.otherwise: int | None = None
        """What comes in place of a token that is not in the mask; None: another one is drawn."""
        self._context = context
        self._logits: Any = None
        """[1, size], not computed: what follows the chunk evaluated last."""

    def evaluate(self, ids: Sequence[int], cancelled: CancelCheck) -> bool:
        """Append one chunk."""
        self.end()  # it lets go of the logits, or the caches could not be written in place
        if cancelled():
            return False
        lib, context = self._context.lib, self._context
        try:
            with lib.mx.stream(lib.generation_stream):
                self.leave()
                tokens = lib.mx.array([list(ids)], dtype=lib.mx.uint32)
                self._logits = context.forward(tokens, self.rows.caches)
                lib.mx.eval([cache.state for cache in self.rows.caches])
            lib.mx.clear_cache()
        except Exception as error:
            self.clear()
            raise failed(error) from error
        self.ids += ids
        return True

    def begin(self, sampling: Sampling, history: Sequence[int]) -> None:
        """Draw the first token from the logits of the chunk just evaluated."""
        lib = self._context.lib
        logits, self._logits = self._logits, None
        try:
            with lib.mx.stream(lib.generation_stream):
                self.sampler = Sampler(lib, sampling, history)
                drawn = self.rows.drawn = draw(lib, [self.sampler], logits)
                lib.mx.async_eval(drawn.tokens, drawn.finite)
        except Exception as error:
            self.clear()
            raise failed(error) from error

    def end(self) -> None:
        """Forget what was drawn ahead. A batch that it is in goes on without it from the next step on."""
        self.sampler = self.source = self.mask = self._logits = None
        if not self.rows.joined:
            self.rows.drawn = None

    def bound(self, mask: Any, otherwise: int | None = None) -> None:
        """The token drawn ahead will be drawn once more, from the same logits, unless `otherwise` takes the
        place of what the mask does not allow.
        """
        self.mask, self.otherwise = mask, otherwise

    def force(self, tokens: Sequence[int]) -> None:
        """Evaluate them all and draw ahead. A lane in a batch leaves it for that."""
        assert self.sampler is not None
        lib, context = self._context.lib, self._context
        try:
            with lib.mx.stream(lib.generation_stream):
                self.leave()
                self.sampler.replace(tokens)
                logits = context.forward(lib.mx.array([list(tokens)], dtype=lib.mx.uint32), self.rows.caches)
                drawn = self.rows.drawn = draw(lib, [self.sampler], logits)
                lib.mx.async_eval(drawn.tokens, drawn.finite)
        except Exception as error:
            self.clear()
            raise failed(error) from error
        self.source = None
        self.ids += tokens

    @property
    def can_verify(self) -> bool:
        """Never: the token drawn last has been evaluated already."""
        return False

    def verify(self, draft: Sequence[int], last: Callable[[int], bool]) -> Sequence[int]:
        """Not to be called: see `can_verify`."""
        raise NotImplementedError

    def logprobs(self) -> Any:
        """The log-softmax of the logits from which the last token was drawn."""
        assert self.source is not None
        mx = self._context.lib.mx
        logits, row = self.source
        logits = logits[row].astype(mx.float32)
        return self._context.lib.numpy.array(logits - mx.logsumexp(logits))

    def checkpoint(self) -> State:
        """Recurrent states and sliding windows; nothing for pure attention."""
        return self._take(len(self.ids), whole=False)

    def rewind(self, length: int, checkpoint: State) -> bool:
        """Put back what was copied and cut the rest."""
        snapshot = checkpoint.data
        if length > len(self.ids) or snapshot.length != length:
            return False
        if length == 0:
            self.clear()
            return True
        if not self._context.caches.can_put(snapshot, whole=False):
            return False
        self.end()
        self._put(snapshot)
        del self.ids[length:]
        return True

    def save(self) -> State:
        """The whole sequence."""
        return self._take(len(self.ids), whole=True)

    def restore(self, ids: Sequence[int], saved: State) -> bool:
        """Replace the sequence."""
        snapshot = saved.data
        if snapshot.length != len(ids):
            return False
        if ids and not self._context.caches.can_put(snapshot, whole=True):
            return False
        self.clear()
        if ids:
            self._put(snapshot)
            self.ids[:] = ids
        return True

    def fork(self, other: MlxLane, length: int, checkpoint: State | None) -> bool:
        """Copy the other lane's caches up to there."""
        rest = None if checkpoint is None else checkpoint.data
        caches = self._context.caches
        if length > len(other.ids) or (rest is not None and not caches.can_put(rest, whole=False)):
            return False
        if length != (len(other.ids) if rest is None else rest.length):
            return False
        return self.restore(other.ids[:length], other._take(length, whole=True, rest=rest))

    def clear(self) -> None:
        """Forget all tokens."""
        self._vacate()
        self.rows = Rows([self], self._context.caches.make())
        self.end()
        self.ids.clear()

    def pack(self, state: State) -> Packed:
        """The arrays' bytes, with their types and shapes."""
        return pack(self._context.lib, state.data, self._context.caches.kinds)

    def unpack(self, packed: Packed) -> State:
        """Checked against the shapes of this model's own caches."""
        snapshot = unpack(self._context.lib, packed, self._context.caches.kinds)
        if not self._context.caches.fits(snapshot):
            raise ValueError("a state with other shapes than this model's")
        return self._context.state(snapshot)

    def close(self) -> None:
        """Let go of the caches, as all other lanes do now."""
        self.rows = Rows([self], [])
        self.end()
        self.ids.clear()

    def leave(self) -> list[Any]:
        """Have caches of its own: if it has a row of a batch, a copy of that."""
        rows = self.rows
        if rows.joined:
            row = rows.lanes.index(self)
            with self._context.lib.mx.stream(self._context.lib.generation_stream):
                caches = self._context.caches.extract(rows.caches, row)
                drawn = rows.drawn and rows.drawn.select(slice(row, row + 1))
            self._vacate()
            self.rows = Rows([self], caches, drawn if self.sampler else None)
        return self.rows.caches

    def _vacate(self) -> None:
        """Give up its row. A batch in which no lane draws is taken apart: nothing else would ever free it."""
        rows = self.rows
        if not rows.joined:
            return
        rows.lanes[rows.lanes.index(self)] = None
        left = [lane for lane in rows.lanes if lane is not None]
        if all(lane.sampler is None for lane in left):
            for lane in left:
                try:
                    lane.leave()
                except Exception:  # what it holds is worth less than the call that this is part of
                    lane.clear()

    def _take(self, length: int, whole: bool, rest: CacheSnapshot | None = None) -> State:
        """A state of the first `length` tokens; see `Caches.copy`. A lane that draws goes on drawing."""
        lib, caches, rows = self._context.lib, self._context.caches, self.rows
        try:
            with lib.mx.stream(lib.generation_stream):
                own = caches.extract(rows.caches, rows.lanes.index(self)) if rows.joined else rows.caches
                return self._context.state(caches.copy(own, length, whole, rest))
        except Exception as error:
            raise failed(error) from error

    def _put(self, snapshot: CacheSnapshot) -> None:
        lib = self._context.lib
        try:
            with lib.mx.stream(lib.generation_stream):
                self._context.caches.put(self.leave(), snapshot)
        except Exception as error:
            self.clear()
            raise failed(error) from error


def failed(error: Exception) -> EngineFailed:
    """`error` for the readers, who are in other threads: what its frames hold is let go of here."""
    traceback.clear_frames(error.__traceback__)
    return EngineFailed(f"MLX gave up computing: {first_line(error)}")
