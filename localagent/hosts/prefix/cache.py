"""Finds the evaluated state that a prompt can continue from, in all lanes, in memory and on disk.

`open(ids)` gives a lane that holds a strict prefix of `ids`, the longest available; the caller evaluates the
rest, calls `mark` after every chunk, and `release` at the end. What a lane holds stays there until the lane
is needed.

Recurrent state cannot be cut, so a sequence is re-entered only at its end or at a checkpoint. Attention-only
models follow the same rule, since floating-point sums, and so tokens, depend on where a prompt is cut into
chunks. A prefix that is held by a lane in use, or by one whose rest is worth keeping, is forked: engines
share what two lanes have in common, or copy it faster than they compute it. Before a lane is cut for another
prompt, the part that would be lost is saved, within a limit of bytes; the least recently used state is
dropped first.

Every sequence belongs to a scope, and is found only for prompts of the same one: how fast a prompt is read
tells whether somebody has asked the same before. Only sequences of the scope "", which is everybody's, go to
disk.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from localagent.errors import LocalAgentError
from localagent.hosts.engine import Lane, State
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


@dataclass(eq=False, slots=True)
class Seat:
    """A lane and its checkpoints. `need`: tokens that its generation may come to; None when it is free."""

    lane: Lane
    checkpoints: list[Checkpoint] = field(default_factory=list)
    need: int | None = None
    used: int = 0
    """When it was used last, as a number that grows."""
    scope: str = ""

    def reach(self, wanted: list[int], scope: str = "") -> int:
        """How many tokens of `wanted` it leads to."""
        return _reach(self.lane.ids, self.checkpoints, wanted) if self.scope == scope else 0


@dataclass(eq=False, slots=True)
class _Saved:
    """A sequence that is in no lane."""

    ids: list[int]
    state: State
    checkpoints: list[Checkpoint] = field(default_factory=list)
    source: Path | None = None
    """The file that it came from."""
    scope: str = ""

    def reach(self, wanted: list[int], scope: str = "") -> int:
        return _reach(self.ids, self.checkpoints, wanted) if self.scope == scope else 0


class Loading:
    """A snapshot that is read in a thread of its own: that takes longer than a step may."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        """None where nothing has to be read, or no longer."""
        self._outcome: Snapshot | Exception | None = None

    def start(self, read: Callable[[], Snapshot], then: Callable[[], None]) -> None:
        """Begin; `then` is called in that thread at the end."""

        def run() -> None:
            try:
                self._outcome = read()
            except Exception as error:
                self._outcome = error
            then()

        threading.Thread(target=run, name="localagent-snapshot", daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether it has been read, or could not be, or need not be."""
        return self._outcome is not None or self.path is None

    def result(self) -> Snapshot:
        """What was read. Raises OSError and ValueError."""
        if isinstance(self._outcome, Exception):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome


class PrefixCache:
    """The lanes, their checkpoints, and the sequences saved beside them."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        budget: int = DEFAULT_BUDGET,
        snapshots: Snapshots | None = None,
        transcripts: Transcripts | None = None,
        context: int = sys.maxsize,
        capacity: int = sys.maxsize,
    ) -> None:
        """`budget`: bytes; 0 turns all reuse off. `snapshots`: where sequences survive the process, with what
        `transcripts` say of them. `context`: the longest sequence that fits into a lane, in tokens;
        `capacity`: how many tokens fit into all lanes together.
        """
        self._seats = [Seat(lane) for lane in lanes]
        self._budget = budget
        self._context = context
        self._capacity = capacity
        self._snapshots = snapshots if budget else None
        self._transcripts = transcripts or Transcripts()
        self._saved: list[_Saved] = []  # the least recently used first
        self._ticks = count(1)

    @property
    def nbytes(self) -> int:
        """Bytes held beside what is in the lanes themselves."""
        holders: list[Seat | _Saved] = [*self._seats, *self._saved]
        # A fork has the checkpoints of the lane that it comes from: they are there once.
        states = {id(point.state): point.state.nbytes for each in holders for point in each.checkpoints}
        return sum(states.values()) + sum(saved.state.nbytes for saved in self._saved)

    def open(self, ids: Sequence[int], need: int = 0, scope: str = "") -> Seat | None:
        """A lane that holds a strict prefix of `ids`, as long as there is one in this scope.

        `need`: the tokens that it may come to hold. None if no lane is free, or if so many tokens do not fit
        beside what the others need.
        """
        need, room = max(need, len(ids)), self._room
        if not any(seat.need is None for seat in self._seats) or need > room:
            return None
        try:
            seat = self._lead(list(ids), need, room, scope)
            seat.scope = scope
            seat.used = next(self._ticks)
            if seat.lane.ids:
                self.mark(seat)  # often the end of the model's last turn: to come back to
        except Exception:
            # Which lane the engine failed in is not known, nor what that holds.
            for free in self._seats:
                if free.need is None:
                    self.clear(free)
            raise
        seat.need = need
        self._shrink()
        return seat

    def reach(self, ids: Sequence[int], scope: str = "") -> int:
        """How many tokens of `ids` a lane or a saved state of this scope holds, for `open` to go on from."""
        if not self._budget:
            return 0
        wanted = list(ids)
        saved = [state.reach(wanted, scope) for state in self._saved]
        return max([*(seat.reach(wanted, scope) for seat in self._seats), *saved])

    def load(self, ids: Sequence[int], then: Callable[[], None], scope: str = "") -> Loading:
        """Begin to read from disk what leads further into `ids`, if anything does.

        `then` is called in another thread at the end.
        """
        if not self._snapshots or scope:
            return Loading(None)
        least = self.reach(ids) + _WORTH_LOADING
        loading = Loading(self._snapshots.find(list(ids), least, min(self._context, self._room)))
        if loading.path is not None:
            loading.start(self._snapshots.reader(loading.path), then)
        return loading

    def loaded(self, loading: Loading) -> bool:
        """Whether it has been read. If so, `open` will find it in memory."""
        if loading.done and loading.path is not None:
            self._adopt(loading.path, loading.result)
            loading.path = None
        return loading.done

    def release(self, seat: Seat) -> None:
        """The generation is over; what the lane holds is kept for the next one, if anything is."""
        seat.need = None
        if not self._budget:
            self.clear(seat)

    def mark(self, seat: Seat) -> None:
        """Take a checkpoint here."""
        points, length = seat.checkpoints, len(seat.lane.ids)
        if self._budget and not (points and points[-1].length == length):
            points.append(Checkpoint(length, seat.lane.checkpoint()))
            self._thin(points)

    def recover(self, seat: Seat) -> None:
        """Return to the last checkpoint after a chunk was cancelled midway."""
        last = seat.checkpoints[-1] if seat.checkpoints else None
        if last is None or not seat.lane.rewind(last.length, last.state):
            self.clear(seat)

    def clear(self, seat: Seat) -> None:
        """Forget what a lane holds."""
        seat.lane.clear()
        seat.checkpoints = []

    def write(self) -> None:
        """Put the sequences on disk, the one used last at the end, so that it counts as the newest."""
        if not self._snapshots:
            return
        try:
            for saved in self._saved:
                if not saved.scope:
                    self._write(saved)
            for seat in sorted(self._seats, key=lambda seat: seat.used):
                if len(seat.lane.ids) >= _WORTH_SAVING and not seat.scope:
                    self._write(_Saved(list(seat.lane.ids), seat.lane.save(), seat.checkpoints))
        except LocalAgentError as error:
            log.warning("what was evaluated is not kept: %s", error)

    def drop(self) -> None:
        """Drop all saved states, but not what is in the lanes."""
        self._saved = []
        for seat in self._seats:
            seat.checkpoints = []

    @property
    def _room(self) -> int:
        """The tokens that there is room for beside what is in use."""
        return self._capacity - sum(seat.need for seat in self._seats if seat.need is not None)

    # -- choosing a lane --------------------------------------------------------------------------------

    def _lead(self, wanted: list[int], need: int, room: int, scope: str) -> Seat:
        """A free lane that leads into `wanted` as far as anything here does.

        It may come to hold `need` tokens, and all free lanes together `room`.
        """
        if not self._budget:
            return self._spare()
        while True:
            # Of equals a free lane, and of those the one used last.
            nearest = max(
                self._seats, key=lambda seat: (seat.reach(wanted, scope), seat.need is None, seat.used)
            )
            length = nearest.reach(wanted, scope)
            saved = self._furthest(wanted, length, room, scope)
            if saved is None:
                return self._enter(nearest, length, need, room)
            seat = self._spare()
            if self._switch(seat, saved, wanted, room - max(need, len(saved.ids))):
                return seat
            # else the engine refused the saved state, and that is gone

    def _enter(self, nearest: Seat, length: int, need: int, room: int) -> Seat:
        """A free lane with the first `length` tokens of `nearest`: that one, or a fork of it."""
        seat = self._spare()
        lost = len(nearest.lane.ids) - length
        both = len(nearest.lane.ids) + need <= room
        if length and nearest.need is None and (lost < _WORTH_SAVING or seat.lane.ids or not both):
            self._cut(nearest, length)
            self._make_room(room - need, nearest)
            return nearest
        if length:
            nearest.used = next(self._ticks)  # so that it is the last one to be emptied
        self._retire(seat, _common(seat, nearest.scope, nearest.lane.ids[:length]))
        self.clear(seat)
        self._make_room(room - need, seat)
        if not length:
            return seat
        points = [point for point in nearest.checkpoints if point.length <= length]
        if seat.lane.fork(nearest.lane, length, points[-1].state if lost else None):
            seat.checkpoints = points
        else:
            self.clear(seat)
        return seat

    def _spare(self) -> Seat:
        """The free lane that is missed least: an empty one, else the one used longest ago."""
        return min(
            (seat for seat in self._seats if seat.need is None),
            # Of empty lanes the first: llama.cpp computes neighbours together.
            key=lambda seat: (bool(seat.lane.ids), seat.used if seat.lane.ids else 0),
        )

    def _make_room(self, room: int, taken: Seat) -> None:
        """Empty free lanes, the one used longest ago first, until those but `taken` hold `room` tokens."""
        free = [seat for seat in self._seats if seat.need is None and seat is not taken]
        free.sort(key=lambda seat: seat.used)
        held = sum(len(seat.lane.ids) for seat in free)
        for seat in free:
            if held <= room:
                return
            held -= len(seat.lane.ids)
            self._cut(seat, 0)

    # -- moving between sequences ---------------------------------------------------------------------

    def _furthest(self, wanted: list[int], least: int, room: int, scope: str) -> _Saved | None:
        """What leads further into `wanted` than `least`, from memory or, if it is worth it, from disk.

        A sequence is put back whole, so it must fit into `room`.
        """
        fitting = [saved for saved in self._saved if len(saved.ids) <= room]
        best = max(fitting, key=lambda saved: saved.reach(wanted, scope), default=None)
        longest = max(least, best.reach(wanted, scope) if best else 0)
        if self._snapshots and not scope:
            path = self._snapshots.find(wanted, longest + _WORTH_LOADING, min(self._context, room))
            if path and (adopted := self._adopt(path, self._snapshots.reader(path))):
                return adopted
        return best if best and longest > least else None

    def _cut(self, seat: Seat, length: int) -> None:
        """Rewind a lane to `length` tokens, saving what is lost."""
        if length == len(seat.lane.ids):
            return
        self._retire(seat, length)
        seat.checkpoints = [point for point in seat.checkpoints if point.length <= length]
        self._rewind(seat, length)

    def _rewind(self, seat: Seat, length: int) -> None:
        """Back to the last checkpoint, which is that of `length` tokens; to nothing where that fails."""
        if not length or not seat.lane.rewind(length, seat.checkpoints[-1].state):
            self.clear(seat)

    def _switch(self, seat: Seat, saved: _Saved, wanted: list[int], room: int) -> bool:
        """Put a saved sequence into a lane, beside `room` tokens in other free ones.

        A whole one moves; of a part, the rest stays saved, too.

        False when the engine refuses it: it is then forgotten, and the lane is empty.
        """
        length = saved.reach(wanted, saved.scope)
        # Before anything is saved: that drops what the lane goes on from.
        self._saved.remove(saved)
        self._retire(seat, _common(seat, saved.scope, saved.ids[:length]))
        self.clear(seat)
        self._make_room(room, seat)
        if not seat.lane.restore(saved.ids, saved.state):
            log.warning("the engine refused a saved state of %d tokens: dropped", len(saved.ids))
            if saved.source and self._snapshots:
                self._snapshots.reject(saved.source, "the engine refused it")
            self.clear(seat)
            return False
        seat.checkpoints = [point for point in saved.checkpoints if point.length <= length]
        if length < len(saved.ids):
            self._saved.append(saved)
            self._rewind(seat, length)
        return True

    def _retire(self, seat: Seat, kept: int) -> None:
        """Save what a lane holds if more than a few tokens beyond `kept` would be lost."""
        ids, scope = seat.lane.ids, seat.scope
        others = [other for other in self._seats if other is not seat]
        if (
            len(ids) - kept < _WORTH_SAVING
            or any(saved.scope == scope and saved.ids[: len(ids)] == ids for saved in self._saved)
            or any(other.reach([*ids, -1], scope) == len(ids) for other in others)
        ):
            return
        fresh = _Saved(list(ids), seat.lane.save(), list(seat.checkpoints), scope=scope)
        # A sequence that this one goes on from is not needed where a checkpoint leads back to its end.
        ends = {point.length for point in seat.checkpoints}
        self._saved = [
            saved
            for saved in self._saved
            if saved.scope != scope or len(saved.ids) not in ends or ids[: len(saved.ids)] != saved.ids
        ]
        self._saved.append(fresh)

    def _shrink(self) -> None:
        while self._saved and self.nbytes > self._budget:
            del self._saved[0]

    def _thin(self, points: list[Checkpoint]) -> None:
        """Drop every second of the older checkpoints when they are many or large; the first one stays."""
        large = sum(point.state.nbytes for point in points) > self._budget // (2 * len(self._seats))
        if len(points) > _MOST_CHECKPOINTS or (large and len(points) > 2):
            del points[1 : max(2, len(points) // 2) : 2]

    # -- disk -----------------------------------------------------------------------------------------

    def _adopt(self, path: Path, read: Callable[[], Snapshot]) -> _Saved | None:
        """A snapshot as a saved sequence; None for one that is damaged or not understood by the adapter."""
        unpack = self._seats[0].lane.unpack
        try:
            snapshot = read()
            points = [Checkpoint(length, unpack(packed)) for length, packed in snapshot.checkpoints]
            saved = _Saved(list(snapshot.ids), unpack(snapshot.full), points, path)
        except (OSError, ValueError) as error:
            assert self._snapshots is not None
            self._snapshots.reject(path, getattr(error, "strerror", None) or str(error))
            return None
        self._saved.append(saved)
        return saved

    def _write(self, saved: _Saved) -> None:
        assert self._snapshots is not None
        pack = self._seats[0].lane.pack
        if len(saved.ids) >= _WORTH_SAVING:
            checkpoints = [(point.length, pack(point.state)) for point in saved.checkpoints]
            turns = self._transcripts.along(saved.ids)
            self._snapshots.write(saved.ids, pack(saved.state), checkpoints, turns)


def _common(seat: Seat, scope: str, ids: list[int]) -> int:
    """How much of what a lane holds is in `ids`, too, and may be found there."""
    return common(seat.lane.ids, ids) if seat.scope == scope else 0


def _reach(have: list[int], checkpoints: Sequence[Checkpoint], wanted: list[int]) -> int:
    return reach(have, (point.length for point in checkpoints), wanted)
