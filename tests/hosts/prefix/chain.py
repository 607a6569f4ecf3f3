"""Lanes whose whole state is one number that every token changes: wrong state is wrong at once.

The recurrent part cannot be cut, as in a hybrid model, but where `NOTHING` is the checkpoint, as in one that has
attention alone; the list of ids stands for the KV cache, which can. Lanes of one
`Pool` share its room, and each token takes some, also where two lanes hold the same ones.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any

from localagent.errors import EngineFailed
from localagent.hosts.engine import NOTHING, CancelCheck, Packed, State
from localagent.hosts.sampling import Sampling

_PRIME = (1 << 61) - 1


def folded(ids: Sequence[int], value: int = 7) -> int:
    """What the state must be after `ids`."""
    for token in ids:
        value = (value * 1_000_003 + token + 1) % _PRIME
    return value


def spoken(ids: Sequence[int], count: int) -> list[int]:
    """What a chain says after `ids`: numbers under 50 that follow from its state."""
    value, said = folded(ids), []
    for _ in range(count):
        said.append(value % 50)
        value = folded(said[-1:], value)
    return said


class Pool:
    """How many tokens all lanes in it may hold together."""

    def __init__(self, capacity: int = sys.maxsize) -> None:
        self.capacity = capacity
        self.lanes: list[Chain] = []

    def fits(self, lane: Chain, length: int) -> bool:
        """Whether `lane` may hold `length` tokens now."""
        return sum(len(each.ids) for each in self.lanes if each is not lane) + length <= self.capacity


class Chain:
    """See `engine.Lane`.

    `evaluated` counts what was computed and `forks` what was shared; `refusing` makes `restore` and `fork` fail.
    """

    def __init__(self, nbytes: int = 8, pool: Pool | None = None) -> None:
        self.ids: list[int] = []
        self.value = folded([])
        self.evaluated = 0
        self.forks = 0
        self.refusing = False
        self._nbytes = nbytes
        self._pool = pool or Pool()
        self._pool.lanes.append(self)

    def evaluate(self, ids: Sequence[int], cancelled: CancelCheck) -> bool:
        if not self._pool.fits(self, len(self.ids) + len(ids)):
            raise EngineFailed("there is no room in the pool")
        self.value = folded(ids, self.value)
        self.ids += ids
        self.evaluated += len(ids)
        if cancelled():
            self.value ^= 1  # undefined, until the lane is rewound or emptied
            return False
        return True

    def begin(self, sampling: Sampling, history: Sequence[int]) -> None:
        pass

    def end(self) -> None:
        pass

    def logprobs(self) -> Any:
        raise NotImplementedError

    def checkpoint(self) -> State:
        return State(self.value, self._nbytes)

    def rewind(self, length: int, checkpoint: State) -> bool:
        assert length <= len(self.ids)
        del self.ids[length:]
        self.value = folded(self.ids) if checkpoint is NOTHING else checkpoint.data
        return True

    def save(self) -> State:
        return State((self.value, list(self.ids)), self._nbytes * (1 + len(self.ids)))

    def restore(self, ids: Sequence[int], saved: State) -> bool:
        if self.refusing or not self._pool.fits(self, len(ids)):
            return False
        self.value, kept = saved.data
        assert kept == list(ids)
        self.ids[:] = ids
        return True

    def fork(self, other: Chain, length: int, checkpoint: State | None) -> bool:
        assert self is not other
        assert self.ids == []
        self.ids[:] = other.ids[:length]
        if self.refusing or not self._pool.fits(self, length):
            return False
        self.forks += 1
        assert (checkpoint is None) == (length == len(other.ids))
        if checkpoint is NOTHING:
            self.value = folded(self.ids)
        else:
            self.value = other.value if checkpoint is None else checkpoint.data
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
