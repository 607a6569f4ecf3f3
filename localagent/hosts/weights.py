"""What every reader of weights needs: whether files can be read, and whether the numbers in them are sane."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from localagent.errors import InvalidWeights

MOST_LAYERS: Final = 512
MOST_EXPERTS: Final = 1024


@dataclass(frozen=True, slots=True)
class Range:
    """What a number may be. `layers`: there may be an array of them, one for each layer."""

    least: float
    most: float
    layers: bool = False
    whole: bool = True

    def admits(self, number: Any) -> bool:
        """Whether it is in the range and of the kind. A bool is not a number here; NaN is in no range."""
        kinds = (int,) if self.whole else (int, float)
        return (
            isinstance(number, kinds) and number is not True and number is not False and self._holds(number)
        )

    def _holds(self, number: float) -> bool:
        return self.least <= number <= self.most

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {self.least:,} to {self.most:,}"


def total_size(files: Sequence[Path]) -> int:
    """Bytes of all of them together. Raises InvalidWeights."""
    with reading(files[0]):
        return sum(file.stat().st_size for file in files)


def regular_size(path: Path, most: int | None = None) -> int:
    """The size of the file at `path`. Raises InvalidWeights where it is none, or has more bytes than `most`.

    To be asked before the file is opened: opening a pipe waits for a writer, and a device never ends.
    """
    with reading(path):
        found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise InvalidWeights(f"{path}: cannot be read: not a regular file")
    if most is not None and found.st_size > most:
        raise InvalidWeights(f"{path}: {found.st_size:,} bytes: at most {most:,} are read")
    return found.st_size


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns the system's errors for an unreadable file into InvalidWeights."""
    try:
        yield
    except OSError as error:
        raise InvalidWeights(f"{path}: cannot be read: {error.strerror or error}") from error
