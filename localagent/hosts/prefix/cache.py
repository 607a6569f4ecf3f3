"""Finds the evaluated state that a prompt can continue from.

After `resume(ids)` the live sequence holds a strict prefix of `ids`, the longest available; the caller
evaluates the rest and calls `mark` after every chunk.

Recurrent state cannot be cut, so a sequence is re-entered only at its end or at a checkpoint. Attention-only
models follow the same rule, since floating-point sums, and so tokens, depend on where a prompt is cut into
chunks. Before the live sequence is cut for another prompt, the part that would be lost is saved, within a
limit of bytes; the least recently used state is dropped first.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localagent.errors import LocalAgentError
from localagent.hosts.engine import LiveSequence, State
from localagent.hosts.prefix.matching import common, reach
from localagent.hosts.prefix.snapshots import Snapshot, Snapshots
from localagent.hosts.prefix.transcripts import Transcripts

DEFAULT_BUDGET = 512 << 20
"""Bytes of saved states and checkpoints per loaded model."""
_MOST_CHECKPOINTS = 64
_WORTH_SAVING = 32  # tokens: fewer are evaluated again more cheaply than copied
_WORTH_LOADING = 32  # tokens by which a file must be ahead of memory to be worth reading

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state that brings a sequence back to its first `length` tokens."""

    length: int
    state: State


@dataclass(slots=True)
class _Saved:
    """A sequence that is not the live one."""

    ids: list[int]
    state: State
    checkpoints: list[Checkpoint] = field(default_factory=list)
    source: Path | None = None
    """The file that it came from."""

    def reach(self, wanted: list[int]) -> int:
        return _reach(self.ids, self.checkpoints, wanted)

    @property
    def nbytes(self) -> int:
        return self.state.nbytes + sum(checkpoint.state.nbytes for checkpoint in self.checkpoints)


class PrefixCache:
    """The live sequence, its checkpoints, and the sequences saved beside it."""

    def __init__(
        self,
        sequence: LiveSequence,
        budget: int = DEFAULT_BUDGET,
        snapshots: Snapshots | None = None,
        transcripts: Transcripts | None = None,
        context: int = sys.maxsize,
    ) -> None:
        """`budget`: bytes; 0 turns all reuse off. `snapshots`: where sequences survive the process, with what
        `transcripts` say of them. `context`: the longest sequence that fits, in tokens.
        """
        self._sequence = sequence
        self._budget = budget
        self._context = context
        self._snapshots = snapshots if budget else None
        self._transcripts = transcripts or Transcripts()
        self._checkpoints: list[Checkpoint] = []
        self._saved: list[_Saved] = []  # the least recently used first

    @property
    def nbytes(self) -> int:
        """Bytes held beside the live sequence itself."""
        live = sum(checkpoint.state.nbytes for checkpoint in self._checkpoints)
        return live + sum(saved.nbytes for saved in self._saved)

    def resume(self, ids: Sequence[int]) -> int:
        """Make the live sequence a strict prefix of `ids`; returns how many tokens it holds."""
        if not self._budget:
            self.clear()
            return 0
        wanted = list(ids)
        while True:
            length = _reach(self._sequence.ids, self._checkpoints, wanted)
            saved = self._furthest(wanted, length)
            if saved is None:
                length = self._cut(length)
                break
            if (found := self._switch(saved, wanted)) is not None:
                length = found
                break  # else the engine refused it, and it is gone
        if length:
            self.mark()  # often the end of the model's last turn: to come back to
        self._shrink()
        return length

    def mark(self) -> None:
        """Take a checkpoint here."""
        length = len(self._sequence.ids)
        if self._budget and not (self._checkpoints and self._checkpoints[-1].length == length):
            self._checkpoints.append(Checkpoint(length, self._sequence.checkpoint()))
            self._thin()

    def recover(self) -> None:
        """Return to the last checkpoint after a chunk was cancelled midway."""
        last = self._checkpoints[-1] if self._checkpoints else None
        if last is None or not self._sequence.rewind(last.length, last.state):
            self.clear()

    def clear(self) -> None:
        """Forget the live sequence."""
        self._sequence.clear()
        self._checkpoints = []

    def write(self) -> None:
        """Put the sequences on disk, the live one last, so that it counts as the newest."""
        if not self._snapshots:
            return
        try:
            for saved in self._saved:
                self._write(saved)
            if len(self._sequence.ids) >= _WORTH_SAVING:
                self._write(_Saved(list(self._sequence.ids), self._sequence.save(), self._checkpoints))
        except LocalAgentError as error:
            log.warning("what was evaluated is not kept: %s", error)

    def drop(self) -> None:
        """Drop all saved states, but not the live sequence."""
        self._saved, self._checkpoints = [], []

    # -- moving between sequences ---------------------------------------------------------------------

    def _furthest(self, wanted: list[int], least: int) -> _Saved | None:
        """What leads further into `wanted` than `least`, from memory or, if it is worth it, from disk."""
        best = max(self._saved, key=lambda saved: saved.reach(wanted), default=None)
        longest = max(least, best.reach(wanted) if best else 0)
        if self._snapshots:
            stored = self._snapshots.find(wanted, longest + _WORTH_LOADING, self._context)
            if stored and (adopted := self._adopt(stored)):
                return adopted
        return best if best and longest > least else None

    def _cut(self, length: int) -> int:
        """Rewind the live sequence to `length` tokens, saving what is lost."""
        if length == len(self._sequence.ids):
            return length
        self._retire(length)
        self._checkpoints = [point for point in self._checkpoints if point.length <= length]
        return self._rewind(length)

    def _rewind(self, length: int) -> int:
        """Back to the last checkpoint, which is that of `length` tokens; to nothing where that fails."""
        if not length or not self._sequence.rewind(length, self._checkpoints[-1].state):
            self.clear()
            return 0
        return length

    def _switch(self, saved: _Saved, wanted: list[int]) -> int | None:
        """Make a saved sequence the live one. A whole one moves; of a part, the rest stays saved, too.

        None when the engine refuses it: it is then forgotten, and the live sequence is empty.
        """
        length = saved.reach(wanted)
        # By identity, and before anything is saved: that drops what the live sequence goes on from.
        self._saved = [other for other in self._saved if other is not saved]
        self._retire(common(self._sequence.ids, saved.ids[:length]))
        if not self._sequence.restore(saved.ids, saved.state):
            log.warning("the engine refused a saved state of %d tokens: dropped", len(saved.ids))
            if saved.source and self._snapshots:
                self._snapshots.reject(saved.source, "the engine refused it")
            self.clear()
            return None
        self._checkpoints = [point for point in saved.checkpoints if point.length <= length]
        if length == len(saved.ids):
            return length
        self._saved.append(saved)
        return self._rewind(length)

    def _retire(self, kept: int) -> None:
        """Save the live sequence if more than a few tokens beyond `kept` would be lost."""
        ids = self._sequence.ids
        if len(ids) - kept < _WORTH_SAVING or any(saved.ids[: len(ids)] == ids for saved in self._saved):
            return
        fresh = _Saved(list(ids), self._sequence.save(), list(self._checkpoints))
        # A sequence that this one goes on from is not needed where a checkpoint leads back to its end.
        ends = {point.length for point in self._checkpoints}
        self._saved = [
            saved for saved in self._saved if len(saved.ids) not in ends or ids[: len(saved.ids)] != saved.ids
        ]
        self._saved.append(fresh)

    def _shrink(self) -> None:
        while self._saved and self.nbytes > self._budget:
            del self._saved[0]

    def _thin(self) -> None:
        """Drop every second of the older checkpoints when they are many or large; the first one stays."""
        points = self._checkpoints
        large = sum(point.state.nbytes for point in points) > self._budget // 2
        if len(points) > _MOST_CHECKPOINTS or (large and len(points) > 2):
            del points[1 : max(2, len(points) // 2) : 2]

    # -- disk -----------------------------------------------------------------------------------------

    def _adopt(self, snapshot: Snapshot) -> _Saved | None:
        """A snapshot as a saved sequence. None for one that the adapter does not understand."""
        unpack = self._sequence.unpack
        try:
            saved = _Saved(
                list(snapshot.ids),
                unpack(snapshot.full),
                [Checkpoint(length, unpack(packed)) for length, packed in snapshot.checkpoints],
                snapshot.path,
            )
        except ValueError as error:
            assert self._snapshots is not None
            self._snapshots.reject(snapshot.path, str(error))
            return None
        self._saved.append(saved)
        return saved

    def _write(self, saved: _Saved) -> None:
        assert self._snapshots is not None
        pack = self._sequence.pack
        if len(saved.ids) >= _WORTH_SAVING:
            checkpoints = [(point.length, pack(point.state)) for point in saved.checkpoints]
            turns = self._transcripts.along(saved.ids)
            self._snapshots.write(saved.ids, pack(saved.state), checkpoints, turns)


def _reach(have: list[int], checkpoints: Sequence[Checkpoint], wanted: list[int]) -> int:
    return reach(have, (point.length for point in checkpoints), wanted)
