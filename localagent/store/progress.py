"""The seam between fetching weights and showing it.

Knows no terminal and no widget. A pull calls one function with a phase and two byte counts, from the thread
that pulls. "download" is heard of before the first byte is asked for; `done` may fall when a server cannot
resume.
"""

from __future__ import annotations

from typing import Literal, Protocol

Phase = Literal["wait", "download", "extract", "verify"]
"""wait: another process pulls the same model; extract: out of a wheel; verify: hashing."""


class Progress(Protocol):
    """What a pull reports to."""

    def __call__(self, phase: Phase, done: int, total: int | None) -> None:
        """`done` of `total` bytes of this phase; `total` is None while it is unknown."""


def silent(phase: Phase, done: int, total: int | None) -> None:
    """A Progress that shows nothing."""
