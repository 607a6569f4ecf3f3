"""One result of the doctor's checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing checked. A problem always has a `fix`: the command that solves it."""

    section: str
    name: str
    status: Status
    text: str
    fix: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    """The same facts for programs; sizes in bytes."""
