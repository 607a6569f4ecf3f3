"""What the constraint of one generation asks of its draws, as the scheduler uses it.

Whatever a constraint raises becomes ConstraintFailed, and a mask that cannot be meant is refused before an
engine sees it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from localagent.errors import ConstraintFailed
from localagent.hosts.protocol import Constraint


class Bounds:
    """A `protocol.Constraint` that is checked."""

    __slots__ = ("_constraint", "_scored")

    def __init__(self, constraint: Constraint, scored: bool) -> None:
        """`scored`: log-probabilities are asked for, which are those of a call for one token: then forced
        tokens are drawn one by one, under a mask that allows no other.
        """
        self._constraint = constraint
        self._scored = scored

    def forced(self, most: int) -> Sequence[int]:
        """Tokens to evaluate in one call, because there is no choice: two or more, at most `most`, or none.
        A single one is drawn, together with those of the other lanes.
        """
        if self._scored:
            return ()
        with _failing_typed():
            tokens = self._constraint.forced()
            return tokens[:most] if len(tokens) > 1 else ()

    def mask(self, size: int) -> Any | None:
        """Which tokens may be drawn next, of a vocabulary of `size`: see `protocol.Constraint`."""
        with _failing_typed():
            mask = self._constraint.mask()
            if mask is not None:
                if len(mask) != -(-size // 32):
                    raise ConstraintFailed("the constraint's mask is for another vocabulary")
                if not mask.any():
                    raise ConstraintFailed("the constraint allows no token")
            return mask

    def otherwise(self) -> int | None:
        """What comes in place of a token that is not in the mask: see `protocol.Constraint`."""
        with _failing_typed():
            return self._constraint.otherwise()

    def accept(self, token: int) -> None:
        """This token came."""
        with _failing_typed():
            self._constraint.accept(token)

    def frees(self) -> bool:
        """Whether the next token may be any. An error is not raised here: it comes up again with the mask."""
        with suppress(Exception):
            return not self._constraint.forced() and self._constraint.mask() is None
        return False

    def will_force(self) -> bool:
        """Whether `forced` gives any. An error is not raised here: it comes up again there."""
        with suppress(ConstraintFailed):
            return bool(self.forced(2))
        return False


@contextmanager
def _failing_typed() -> Iterator[None]:
    try:
        yield
    except ConstraintFailed:
        raise
    except Exception as error:
        raise ConstraintFailed(f"the constraint failed: {type(error).__name__}: {error}") from error
