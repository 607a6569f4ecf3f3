"""Stretches of output between two markers: what a dialect's table is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """The markers that open and close a stretch of output, as their text."""

    open: str
    close: str
