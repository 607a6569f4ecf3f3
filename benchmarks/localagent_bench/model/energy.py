"""What the processor says of the energy that it takes: RAPL on Linux, where this user may read it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from localagent.errors import LocalAgentError

_RAPL = Path("/sys/class/powercap")


class NotTold(LocalAgentError):
    """Nothing on this machine tells its energy to this user."""


@dataclass(frozen=True, slots=True)
class _Counter:
    """One processor package: a counter of microjoules that begins again at `most`."""

    file: Path
    most: int

    def read(self) -> int:
        return int(self.file.read_text())


class EnergyMeter:
    """Joules of all processor packages, of the whole machine: nothing else should be running."""

    def __init__(self, root: Path = _RAPL) -> None:
        """`root`: where the counters are, for tests. Raises NotTold."""
        if sys.platform == "darwin":
            raise NotTold("not told here: macOS tells it to root alone (powermetrics)")
        try:
            packages = [
                each
                for each in sorted(root.glob("intel-rapl:*"))
                if (each / "name").read_text().startswith("package")
            ]
            self._counters = [
                _Counter(each / "energy_uj", int((each / "max_energy_range_uj").read_text()))
                for each in packages
            ]
            for counter in self._counters:
                counter.read()
        except PermissionError as error:
            raise NotTold(f"not told here: {error.filename} may be read by root alone") from error
        except (OSError, ValueError) as error:
            raise NotTold(f"not told here: {root} cannot be read ({error})") from error
        if not self._counters:
            raise NotTold(f"not told here: {root} has no counters of energy (RAPL)")

    def read(self) -> list[int]:
        """The counters now, for `since`."""
        return [counter.read() for counter in self._counters]

    def since(self, before: list[int]) -> float:
        """Joules since `before`, if no counter has come round twice."""
        pairs = zip(self._counters, before, self.read(), strict=True)
        return sum((now - then) % counter.most for counter, then, now in pairs) / 1e6
