"""A sequence whose whole state is one number that every token changes: wrong state is wrong at once.

The recurrent part cannot be cut, as in a hybrid model; the list of ids stands for the KV cache, which can.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from localagent.hosts.engine import Cancelled, Packed, State
from localagent.hosts.sampling import Sampling

_PRIME = (1 << 61) - 1


def folded(ids: Sequence[int], value: int = 7) -> int:
    """What the state must be after `ids`."""
    for token in ids:
        value = (value * 1_000_003 + token + 1) % _PRIME
    return value


class Chain:
    """See `engine.LiveSequence`. `evaluated` counts what was computed, `refusing` makes `restore` fail."""

    def __init__(self, nbytes: int = 8) -> None:
        self.ids: list[int] = []
        self.value = folded([])
        self.evaluated = 0
        self.refusing = False
        self._nbytes = nbytes

    def evaluate(self, ids: Sequence[int], cancelled: Cancelled) -> bool:
        self.value = folded(ids, self.value)
        self.ids += ids
        self.evaluated += len(ids)
        return not cancelled()

    def decode(
        self, ids: Sequence[int], sampling: Sampling, history: Sequence[int], cancelled: Cancelled
    ) -> Iterator[int]:
        self.evaluate(ids, cancelled)
        while True:
            token = self.value % 50
            yield token
            self.evaluate([token], cancelled)

    def logprobs(self) -> object:
        raise NotImplementedError

    def checkpoint(self) -> State:
        return State(self.value, self._nbytes)

    def rewind(self, length: int, checkpoint: State) -> bool:
        del self.ids[length:]
        self.value = checkpoint.data
        return True

    def save(self) -> State:
        return State((self.value, list(self.ids)), self._nbytes * (1 + len(self.ids)))

    def restore(self, ids: Sequence[int], saved: State) -> bool:
        if self.refusing:
            return False
        self.value, kept = saved.data
        assert kept == list(ids)
        self.ids[:] = ids
        return True

    def clear(self) -> None:
        self.ids.clear()
        self.value = folded([])

    def pack(self, state: State) -> Packed:
        if isinstance(state.data, int):
            return Packed({"n": 1}, (state.data.to_bytes(8, "little"),))
        value, ids = state.data
        return Packed({"n": len(ids)}, (value.to_bytes(8, "little"), array("H", ids).tobytes()))

    def unpack(self, packed: Packed) -> State:
        if not isinstance(packed.layout, dict):
            raise ValueError("no state of a chain")
        value = int.from_bytes(packed.buffers[0], "little")
        if len(packed.buffers) == 1:
            return State(value, self._nbytes)
        ids = array("H", bytes(packed.buffers[1])).tolist()
        return State((value, ids), self._nbytes * (1 + len(ids)))
