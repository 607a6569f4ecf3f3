"""Evaluated sequences that are in no lane: in memory, and on disk where they survive the process.

A file is read in a thread of its own, since that takes longer than a step of the scheduler may: `load` begins
it, and once `loaded` says so, what was read is in memory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Protocol

from localagent.hosts.engine import Lane, State
from localagent.hosts.prefix.matching import Enter
from localagent.hosts.prefix.snapshots import Snapshot, Snapshots
from localagent.hosts.prefix.transcripts import Transcripts

WORTH_SAVING = 32
"""Tokens: fewer are evaluated again more cheaply than copied."""
BEYOND = (-1, -1)
"""Tokens that no sequence has: with them behind it, one can be entered at its very end."""
_WORTH_LOADING = 32  # tokens by which a file must be ahead of memory to be worth reading

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state that brings a sequence back to its first `length` tokens."""

    length: int
    state: State


@dataclass(eq=False, slots=True)
class Saved:
    """A sequence with its whole state."""

    ids: list[int]
    state: State
    checkpoints: list[Checkpoint] = field(default_factory=list)
    source: Path | None = None
    """The file that it came from."""
    scope: str = ""


class Evaluated(Protocol):
    """A sequence that is evaluated, in a lane or saved."""

    @property
    def ids(self) -> list[int]:
        """Its tokens."""

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Where it can be entered, if that needs one."""

    @property
    def scope(self) -> str:
        """Whose prompts may go on from it."""


def reach(enter: Enter, have: Evaluated, wanted: list[int], scope: str) -> int:
    """How many tokens of `wanted`, a prompt of `scope`, can be continued from."""
    if have.scope != scope:
        return 0
    return enter(have.ids, (point.length for point in have.checkpoints), wanted)


class Loading:
    """A snapshot that is being read."""

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


class SavedStates:
    """All that is saved for the lanes of one engine."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        snapshots: Snapshots | None,
        transcripts: Transcripts | None,
        enter: Enter,
    ) -> None:
        """`lanes`: any of them turns states into bytes and back. `snapshots`: what is on disk, written with
        what `transcripts` say of it. `enter`: see `matching`.
        """
        self._lanes = lanes
        self._enter = enter
        self._snapshots = snapshots
        self._transcripts = transcripts or Transcripts()
        self._states: list[Saved] = []  # the least recently used first

    @property
    def on_disk(self) -> bool:
        """Whether sequences are kept on disk."""
        return self._snapshots is not None

    def __iter__(self) -> Iterator[Saved]:
        return iter(self._states)

    def furthest(self, wanted: list[int], least: int, room: int, scope: str) -> Saved | None:
        """The sequence with the longest prefix of `wanted`, if that is more than `least` tokens. The sequence
        itself has at most `room`, since it is put back whole.
        """
        fitting = [saved for saved in self._states if len(saved.ids) <= room]
        reached = {id(saved): reach(self._enter, saved, wanted, scope) for saved in fitting}
        best = max(fitting, key=lambda saved: reached[id(saved)], default=None)
        return best if best and reached[id(best)] > least else None

    def holds(self, ids: list[int], scope: str) -> bool:
        """Whether a sequence begins with `ids`."""
        return any(saved.scope == scope and saved.ids[: len(ids)] == ids for saved in self._states)

    def add(self, saved: Saved) -> None:
        """Keep a sequence, as the one used last."""
        self._states.append(saved)

    def supersede(self, fresh: Saved) -> None:
        """Keep a sequence in place of those that it goes on from, if it can be entered at their end."""
        self._states = [
            saved
            for saved in self._states
            if reach(self._enter, fresh, [*saved.ids, *BEYOND], saved.scope) < len(saved.ids)
        ]
        self.add(fresh)

    def remove(self, saved: Saved) -> None:
        """Keep it no longer in memory."""
        self._states.remove(saved)

    def clear(self) -> None:
        """Keep nothing in memory."""
        self._states = []

    # -- disk -----------------------------------------------------------------------------------------

    def load(self, ids: list[int], known: int, most: int, then: Callable[[], None]) -> Loading:
        """Begin to read a longer prefix of `ids` than `known`, if there is one, of at most `most` tokens.

        `then` is called in another thread at the end. Only where anything is kept `on_disk`.
        """
        assert self._snapshots is not None
        loading = Loading(self._snapshots.find(ids, known + _WORTH_LOADING, most, self._enter))
        if loading.path is not None:
            loading.start(self._snapshots.reader(loading.path), then)
        return loading

    def loaded(self, loading: Loading) -> bool:
        """Whether it has been read. If so, it is in memory, unless it is damaged or for another adapter."""
        if loading.done and loading.path is not None:
            path, loading.path = loading.path, None
            unpack = self._lanes[0].unpack
            try:
                snapshot = loading.result()
                points = [Checkpoint(length, unpack(packed)) for length, packed in snapshot.checkpoints]
                self.add(Saved(list(snapshot.ids), unpack(snapshot.full), points, path))
            except (OSError, ValueError) as error:
                self._reject(path, getattr(error, "strerror", None) or str(error))
        return loading.done

    def refused(self, saved: Saved) -> None:
        """The engine refused it: its file is not offered again."""
        log.warning("the engine refused a saved state of %d tokens: dropped", len(saved.ids))
        if saved.source:
            self._reject(saved.source, "the engine refused it")

    def write(self, newer: Iterable[Saved], written: Callable[[], None]) -> None:
        """Put the sequences of the scope "" on disk, and after them `newer` ones; `written` is called after
        each.
        """
        if self._snapshots is None:
            return
        pack = self._lanes[0].pack
        for saved in chain((saved for saved in self._states if not saved.scope), newer):
            checkpoints = [(point.length, pack(point.state)) for point in saved.checkpoints]
            turns = self._transcripts.along(saved.ids)
            self._snapshots.write(saved.ids, pack(saved.state), checkpoints, turns)
            written()

    def _reject(self, path: Path, why: str) -> None:
        assert self._snapshots is not None
        self._snapshots.reject(path, why)
