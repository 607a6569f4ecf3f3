"""Finds the evaluated state that a prompt can continue from, in all lanes and among what is saved.

`open(ids)` gives a lane that holds a strict prefix of `ids`, the longest in memory; the caller evaluates the
rest, calls `mark` after every chunk, and `release` at the end. What a lane holds stays there until the lane
is needed. What is on disk is found after a `load`, when `loaded` says so.

Recurrent state cannot be cut, so a sequence is re-entered only at its end or at a checkpoint. So is that of
an engine whose sums, and with them the tokens, depend on where a prompt is cut into chunks. Others are
entered anywhere, but for the last token of a prompt: a chunk of one token has a kernel of its own. A prefix
that is held by a lane in use, or by one whose rest is worth keeping, is forked: engines share what two lanes
have in common, or copy it faster than they compute it. Before a lane is cut for another prompt, the part that
would be lost is saved, within a limit of bytes; the least recently used state is dropped first.

Every sequence belongs to a scope, and is found only for prompts of the same one: how fast a prompt is read
tells whether somebody has asked the same before. Only sequences of the scope "", which all share, go to disk.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from operator import itemgetter

from localagent.errors import LocalAgentError
from localagent.hosts.engine import NOTHING, Lane, State
from localagent.hosts.prefix.matching import (
    WORTH_FORKING,
    common,
    enter_anywhere,
    enter_at_checkpoints,
    worth_forking,
)
from localagent.hosts.prefix.saved import (
    BEYOND,
    WORTH_SAVING,
    Checkpoint,
    Evaluated,
    Loading,
    Saved,
    SavedStates,
    reach,
)
from localagent.hosts.prefix.snapshots import Snapshots
from localagent.hosts.prefix.transcripts import Transcripts

DEFAULT_BUDGET = 512 << 20
"""Bytes of saved states and checkpoints per loaded model."""
_MOST_CHECKPOINTS = 64

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Seat:
    """A lane and its checkpoints. `need`: the most tokens of its generation; None when it is free."""

    lane: Lane
    checkpoints: list[Checkpoint] = field(default_factory=list)
    need: int | None = None
    used: int = 0
    """When it was used last, as a number that grows."""
    scope: str = ""

    @property
    def ids(self) -> list[int]:
        """What the lane holds."""
        return self.lane.ids


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
        anywhere: bool = False,
        left: int = 1,
    ) -> None:
        """`budget`: bytes; 0 turns all reuse off. `snapshots`: where sequences survive the process, with what
        `transcripts` say of them. `context`: the longest sequence that fits into a lane, in tokens;
        `capacity`: how many tokens fit into all lanes together. `anywhere`: lanes need no checkpoints, see
        `Engine.spacing`. `left`: the fewest tokens of a prompt that are left to be evaluated.
        """
        self._anywhere = anywhere
        self._entering = enter_anywhere if anywhere else partial(enter_at_checkpoints, left=left)
        self._seats = [Seat(lane) for lane in lanes]
        self._budget = budget
        self._context = context
        self._capacity = capacity
        self._saved = SavedStates(lanes, snapshots if budget else None, transcripts, self._entering)
        self._ticks = count(1)

    @property
    def nbytes(self) -> int:
        """Bytes held beside what is in the lanes themselves."""
        holders: list[Seat | Saved] = [*self._seats, *self._saved]
        # A fork has the checkpoints of the lane that it comes from: they are there once.
        states = {id(point.state): point.state.nbytes for each in holders for point in each.checkpoints}
        return sum(states.values()) + sum(saved.state.nbytes for saved in self._saved)

    def open(self, ids: Sequence[int], need: int = 0, scope: str = "") -> Seat | None:
        """A lane that holds a strict prefix of `ids`, as long as there is one in this scope.

        `need`: the most tokens that it may hold. None if no lane is free, or if so many tokens do not fit
        beside what the others need.
        """
        if not self.fits(ids, need):
            return None
        need, room = max(need, len(ids)), self._room
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

    def fits(self, ids: Sequence[int], need: int = 0) -> bool:
        """Whether `open` would find a free lane, and room for so many tokens."""
        return max(need, len(ids)) <= self._room and any(seat.need is None for seat in self._seats)

    def reach(self, ids: Sequence[int], scope: str = "") -> int:
        """How many tokens of `ids` a lane or a saved state of this scope holds, for `open` to go on from."""
        if not self._budget:
            return 0
        wanted = list(ids)
        return max(self._reach(each, wanted, scope) for each in (*self._seats, *self._saved))

    def load(self, ids: Sequence[int], then: Callable[[], None], scope: str = "") -> Loading:
        """Begin to read a longer prefix of `ids` from disk, if there is one and it fits.

        `then` is called in another thread at the end.
        """
        if scope or not self._saved.on_disk:
            return Loading(None)
        return self._saved.load(list(ids), self.reach(ids), min(self._context, self._room), then)

    def loaded(self, loading: Loading) -> bool:
        """Whether it has been read. If so, `open` will find it in memory."""
        return self._saved.loaded(loading)

    def release(self, seat: Seat) -> None:
        """The generation is over; what the lane holds is kept for the next one, if anything is."""
        seat.need = None
        if not self._budget:
            self.clear(seat)

    def mark(self, seat: Seat, length: int | None = None) -> None:
        """Take a checkpoint here, where lanes need any. `length`: an earlier one, see `Engine.rewinds`."""
        points, length = seat.checkpoints, length or len(seat.lane.ids)
        if self._budget and not self._anywhere and not (points and points[-1].length >= length):
            points.append(Checkpoint(length, seat.lane.checkpoint()))
            self._thin(points)

    def recover(self, seat: Seat, length: int) -> None:
        """After a chunk was cancelled midway, return to the `length` tokens before it, or to the last
        checkpoint among them.
        """
        last = seat.checkpoints[-1].length if seat.checkpoints else 0
        self._rewind(seat, length if self._anywhere else last)

    def clear(self, seat: Seat) -> None:
        """Forget what a lane holds."""
        seat.lane.clear()
        seat.checkpoints = []

    def write(self, written: Callable[[], None] = lambda: None) -> None:
        """Put the sequences on disk, the one used last at the end, so that it counts as the newest.

        `written` is called after each: many gigabytes may take minutes.
        """
        seats = sorted(self._seats, key=lambda seat: seat.used)
        try:
            in_lanes = (
                Saved(list(seat.lane.ids), seat.lane.save(), seat.checkpoints)
                for seat in seats
                if len(seat.lane.ids) >= WORTH_SAVING and not seat.scope
            )
            self._saved.write(in_lanes, written)
        except LocalAgentError as error:
            log.warning("what was evaluated is not kept: %s", error)

    def drop(self) -> None:
        """Drop all saved states, but not what is in the lanes."""
        self._saved.clear()
        for seat in self._seats:
            seat.checkpoints = []

    @property
    def _room(self) -> int:
        """How many tokens fit beside what is in use."""
        return self._capacity - sum(seat.need for seat in self._seats if seat.need is not None)

    def _reach(self, have: Evaluated, wanted: list[int], scope: str) -> int:
        return reach(self._entering, have, wanted, scope)

    # -- choosing a lane --------------------------------------------------------------------------------

    def _lead(self, wanted: list[int], need: int, room: int, scope: str) -> Seat:
        """A free lane with the longest prefix of `wanted` that there is here.

        It may hold up to `need` tokens, and all free lanes together `room`.
        """
        if not self._budget:
            return self._spare()
        while True:
            # Of equals a free lane, and of those the one used last.
            length, _, _, nearest = max(
                (
                    (self._reach(seat, wanted, scope), seat.need is None, seat.used, seat)
                    for seat in self._seats
                ),
                key=itemgetter(0, 1, 2),
            )
            least = length + (WORTH_FORKING if self._anywhere else 0)
            saved = self._saved.furthest(wanted, least, room, scope)
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
        if self._anywhere and (nearest.need is not None or lost >= WORTH_SAVING):
            length = worth_forking(length, len(nearest.lane.ids))
        both = len(nearest.lane.ids) + need <= room
        if length and nearest.need is None and (lost < WORTH_SAVING or seat.lane.ids or not both):
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
        if seat.lane.fork(nearest.lane, length, self._checkpoint(points) if lost else None):
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

    def _cut(self, seat: Seat, length: int) -> None:
        """Rewind a lane to `length` tokens, saving what is lost."""
        if length == len(seat.lane.ids):
            return
        self._retire(seat, length)
        seat.checkpoints = [point for point in seat.checkpoints if point.length <= length]
        self._rewind(seat, length)

    def _rewind(self, seat: Seat, length: int) -> None:
        """Back to `length` tokens, where the last checkpoint was taken; to nothing where that fails."""
        if not length or not seat.lane.rewind(length, self._checkpoint(seat.checkpoints)):
            self.clear(seat)

    def _checkpoint(self, points: Sequence[Checkpoint]) -> State:
        return NOTHING if self._anywhere else points[-1].state

    def _switch(self, seat: Seat, saved: Saved, wanted: list[int], room: int) -> bool:
        """Put a saved sequence into a lane, beside `room` tokens in other free ones.

        A whole one moves; of a part, the rest stays saved, too.

        False when the engine refuses it: it is then forgotten, and the lane is empty.
        """
        length = self._reach(saved, wanted, saved.scope)
        # Before anything is saved: that drops what the lane goes on from.
        self._saved.remove(saved)
        self._retire(seat, _common(seat, saved.scope, saved.ids[:length]))
        self.clear(seat)
        self._make_room(room, seat)
        if not seat.lane.restore(saved.ids, saved.state):
            self._saved.refused(saved)
            self.clear(seat)
            return False
        seat.checkpoints = [point for point in saved.checkpoints if point.length <= length]
        if length < len(saved.ids):
            self._saved.add(saved)
            self._rewind(seat, length)
        return True

    def _retire(self, seat: Seat, kept: int) -> None:
        """Save what a lane holds if more than a few tokens beyond `kept` would be lost."""
        ids, scope = seat.lane.ids, seat.scope
        others = [other for other in self._seats if other is not seat]
        if (
            len(ids) - kept < WORTH_SAVING
            or self._saved.holds(ids, scope)
            or any(self._reach(other, [*ids, *BEYOND], scope) == len(ids) for other in others)
        ):
            return
        self._saved.supersede(Saved(list(ids), seat.lane.save(), list(seat.checkpoints), scope=scope))

    def _shrink(self) -> None:
        for saved in list(self._saved):
            if self.nbytes <= self._budget:
                return
            self._saved.remove(saved)

    def _thin(self, points: list[Checkpoint]) -> None:
        """Drop every second of the older checkpoints when they are many or large; the first one stays."""
        large = 2 * len(self._seats) * sum(point.state.nbytes for point in points) > self._budget
        if len(points) > _MOST_CHECKPOINTS or (large and len(points) > 2):
            del points[1 : max(2, len(points) // 2) : 2]


def _common(seat: Seat, scope: str, ids: list[int]) -> int:
    """How much of what a lane holds is in `ids`, too, and may be found there."""
    return common(seat.lane.ids, ids) if seat.scope == scope else 0
