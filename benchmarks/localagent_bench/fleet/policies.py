"""How a replica is chosen for a conversation: as the fleet does it, and simpler ways to hold that against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Protocol

from localagent.server.fleet.affinity import Affinity

Load = Callable[[int], float]
"""How many requests a replica has."""


class Policy(Protocol):
    """Which replicas are tried, by rank, as `Affinity.ranks`; `note` is told who took the request."""

    name: str

    def ranks(
        self, marks: Sequence[str], alive: Sequence[int], load: Load, random: Random
    ) -> list[list[int]]:
        """Those of a later rank are tried when all of one are full."""

    def note(self, marks: Sequence[str], replica: int) -> None:
        """This one has taken the conversation with these marks."""


class ByPrefix(Policy):
    """What the fleet does, with this slack. `knowing`: whether it remembers; else it is the power of two."""

    def __init__(self, slack: float, knowing: bool = True) -> None:
        self.name = f"slack {slack:g}" if knowing else "two drawn"
        self._affinity: Affinity[int] = Affinity()
        self._slack = slack
        self._knowing = knowing

    def ranks(
        self, marks: Sequence[str], alive: Sequence[int], load: Load, random: Random
    ) -> list[list[int]]:
        return self._affinity.ranks(marks if self._knowing else (), alive, load, self._slack, random)

    def note(self, marks: Sequence[str], replica: int) -> None:
        if self._knowing:
            self._affinity.note(marks, replica)


class Blindly(Policy):
    """One of all, whatever it has to do: drawn, or the next one."""

    def __init__(self, in_turn: bool) -> None:
        self.name = "in turn" if in_turn else "one drawn"
        self._turn = count() if in_turn else None

    def ranks(
        self, marks: Sequence[str], alive: Sequence[int], load: Load, random: Random
    ) -> list[list[int]]:
        return [[random.choice(alive) if self._turn is None else alive[next(self._turn) % len(alive)]]]

    def note(self, marks: Sequence[str], replica: int) -> None:
        """It makes no difference."""
