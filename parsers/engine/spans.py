"""Stretches of output between two markers: what a dialect's table is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """The markers that open and close a stretch of output, and the white space that belongs to them.

    Each white space is a choice of texts, longest first; the first that fits is markup, nothing else is.
    """

    open: str
    close: str
    before: tuple[str, ...] = ()
    """In front of `open`."""
    after_open: tuple[str, ...] = ()
    """Behind `open`."""
    before_close: tuple[str, ...] = ()
    """In front of `close`."""
    after_close: tuple[str, ...] = ()
    """Behind `close`."""
    closes: tuple[str, ...] = ()
    """The markers that show as well as `close` that a string in a call was never closed."""

    @property
    def markers(self) -> tuple[str, str]:
        """`open` and `close`."""
        return self.open, self.close


NOWHERE = Span("\x00", "\x00")
"""Of calls that stand between no markers: no marker is a NUL, so none of them ends such a call."""

THINK = Span("<think>", "</think>")
QWEN_THINK = Span("<think>", "</think>", after_open=("\n",), before_close=("\n",), after_close=("\n\n",))
"""Reasoning as Qwen's templates write it."""
