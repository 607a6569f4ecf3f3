"""The live sequence in MLX: the model's prompt caches, and which tokens they hold.

It is an `engine.LiveSequence`. mlx-lm's `generate_step` runs one step ahead: when it yields a token, the
caches hold that token already. So `ids` always ends with the token drawn last, and a generator may be closed
at any of them. A chunk of the prompt is computed in one piece, so it can be cancelled before it and not
within.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

from localagent.errors import EngineFailed
from localagent.hosts.engine import Cancelled, Packed, State
from localagent.hosts.mlx.caches import Caches, Snapshot
from localagent.hosts.mlx.library import Library, first_line
from localagent.hosts.mlx.packing import pack, unpack
from localagent.hosts.mlx.sampling import Sampler
from localagent.hosts.sampling import Sampling


class MlxSequence:
    """See `engine.LiveSequence`. `close` frees it, and every state taken of it."""

    def __init__(self, lib: Library, model: Any) -> None:
        self.ids: list[int] = []
        self._lib = lib
        self._model = model
        with lib.mx.stream(lib.generation_stream):
            self._caches = Caches(lib, model)
        self.vocabulary_size = self._caches.vocabulary_size
        self._steps: Any = None
        self._logits: deque[Any] = deque(maxlen=2)
        """The logits of the token drawn last, and of the one that is computed ahead."""
        self._snapshots: weakref.WeakSet[Snapshot] = weakref.WeakSet()

    def read_weights(self) -> None:
        """Read the model's weights into memory."""
        try:
            self._lib.mx.eval(self._model.parameters())
        except Exception as error:
            raise EngineFailed(f"MLX cannot read the weights: {first_line(error)}") from error

    def evaluate(self, ids: Sequence[int], cancelled: Cancelled) -> bool:
        """Append one chunk."""
        self._halt()
        if cancelled():
            return False
        mx = self._lib.mx
        try:
            with mx.stream(self._lib.generation_stream):
                self._model(mx.array(list(ids), dtype=mx.uint32)[None], cache=self._caches.all)
                self._caches.evaluate()
            mx.clear_cache()
        except Exception as error:
            raise self._failed(error) from error
        self.ids += ids
        return True

    def decode(
        self, ids: Sequence[int], sampling: Sampling, history: Sequence[int], cancelled: Cancelled
    ) -> Generator[int, None, None]:
        """Append `ids`, then draw and append one token after the other."""
        *before, last = ids
        if (before and not self.evaluate(before, cancelled)) or cancelled():
            return
        self._halt()
        steps = self._steps = self._start(last, Sampler(self._lib, sampling, history))
        append = self.ids.append
        first = True
        try:
            while True:
                try:
                    token = next(steps)[0]
                except StopIteration:  # closed: the sequence went elsewhere
                    return
                except Exception as error:
                    raise self._failed(error) from error
                if first:
                    append(last)
                    first = False
                append(token)
                yield token
        finally:
            steps.close()

    def logprobs(self) -> Any:
        """The log-softmax of the logits from which the last token was drawn."""
        mx = self._lib.mx
        logits = self._logits[0][0].astype(mx.float32)
        return self._lib.numpy.array(logits - mx.logsumexp(logits))

    def checkpoint(self) -> State:
        """Recurrent states and sliding windows; nothing for pure attention."""
        return self._take(whole=False)

    def rewind(self, length: int, checkpoint: State) -> bool:
        """Put back what was copied and cut the rest."""
        snapshot = checkpoint.data
        if length > len(self.ids) or snapshot.length != length:
            return False
        if length == 0:
            self.clear()
            return True
        if not self._caches.can_put(snapshot, whole=False):
            return False
        self._put(snapshot)
        del self.ids[length:]
        return True

    def save(self) -> State:
        """The whole sequence."""
        return self._take(whole=True)

    def restore(self, ids: Sequence[int], saved: State) -> bool:
        """Replace the sequence."""
        snapshot = saved.data
        if snapshot.length != len(ids):
            return False
        if not ids:
            self.clear()
            return True
        if not self._caches.can_put(snapshot, whole=True):
            return False
        self._put(snapshot)
        self.ids[:] = ids
        return True

    def clear(self) -> None:
        """Forget all tokens."""
        self._halt()
        self._caches.clear()
        self.ids.clear()

    def pack(self, state: State) -> Packed:
        """The arrays' bytes, with their types and shapes."""
        return pack(self._lib, state.data, self._caches.kinds)

    def unpack(self, packed: Packed) -> State:
        """Checked against the shapes of this model's own caches."""
        snapshot = unpack(self._lib, packed, self._caches.kinds)
        if not self._caches.fits(snapshot):
            raise ValueError("a state with other shapes than this model's")
        return self._state(snapshot)

    def close(self) -> None:
        """Free the caches, and the arrays of every state that anybody still holds."""
        self.clear()
        self._logits.clear()
        for snapshot in self._snapshots:
            snapshot.entries = None
        self._model = None
        self._caches.close()

    def _start(self, last: int, sampler: Sampler) -> Any:
        lib, model, logits = self._lib, self._model, self._logits

        def tapped(tokens: Any, cache: Any) -> Any:
            # The sampler wants the logits as they are: generate_step hands it normalised ones.
            output = model(tokens, cache=cache)
            logits.append(output[:, -1, :])
            return output

        return lib.generate_step(
            lib.mx.array([last], dtype=lib.mx.uint32),
            tapped,
            max_tokens=-1,
            sampler=lambda _: sampler.draw(logits[-1]),
            prompt_cache=self._caches.all,
        )

    def _halt(self) -> None:
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()

    def _take(self, whole: bool) -> State:
        try:
            with self._lib.mx.stream(self._lib.generation_stream):
                return self._state(self._caches.copy(len(self.ids), whole))
        except Exception as error:
            raise self._failed(error) from error

    def _state(self, snapshot: Snapshot) -> State:
        self._snapshots.add(snapshot)
        return State(snapshot, sum(array.nbytes for array in snapshot.arrays()))

    def _put(self, snapshot: Snapshot) -> None:
        self._halt()
        try:
            with self._lib.mx.stream(self._lib.generation_stream):
                self._caches.put(snapshot)
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> EngineFailed:
        """What the caches hold is not known any more."""
        self.clear()
        return EngineFailed(f"MLX gave up computing: {first_line(error)}")
