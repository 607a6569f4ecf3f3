"""How much memory this process may use.

The operating system's numbers, and on Linux the limits of control groups, versions 1 and 2. Graphics cards
with memory of their own are not counted. Nothing is cached: every call reads anew.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

APPLE_GPU_SHARE: Final = 0.75
"""About what Metal recommends as the largest working set, of all memory."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory in bytes. `available` can be had without swapping: free, or holding files that can be reread."""

    total: int
    available: int
    limit: int | None = None
    """What a control group allows at most, where that is less than `total`."""
    gpu_share: int | None = None
    """The part of `total` that the GPU of Apple Silicon may use; None on other machines."""


def read_machine(root: Path = Path("/")) -> Machine:
    """The memory of this machine now. `root`: where proc and sys are, for tests."""
    import psutil  # type: ignore[import-untyped]

    memory = psutil.virtual_memory()
    total, available = int(memory.total), int(memory.available)
    limits = list(_cgroups(root)) if sys.platform == "linux" else []
    limits = [(most, left) for most, left in limits if most < total]
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    return Machine(
        total=total,
        available=min([available, *(left for _, left in limits)]),
        limit=min((most for most, _ in limits), default=None),
        gpu_share=int(total * APPLE_GPU_SHARE) if apple else None,
    )


def available_memory(*, gpu: bool = False, machine: Machine | None = None) -> int:
    """Bytes that a model may take now. `gpu`: it computes on Apple's GPU (MLX, Metal), which may use less.

    The memory of a graphics card with its own is not known here: for weights that go there, do not ask.
    """
    machine = machine or read_machine()
    if gpu and machine.gpu_share is not None:
        return min(machine.available, machine.gpu_share)
    return machine.available


def _cgroups(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes left) of every control group that this process is in; each limits those below it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    base = root / "sys/fs/cgroup"
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            top, names = base, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            top = base / "memory"
        else:
            continue
        # In a container the path may be the host's and lead nowhere; the top is then the container's own.
        group = PurePosixPath(path.lstrip("/"))
        for folder in dict.fromkeys([group, *group.parents]):
            if ".." not in folder.parts and (found := _limit(top / folder, *names)) is not None:
                yield found


def _limit(folder: Path, most: str, used: str, reclaimable: str) -> tuple[int, int] | None:
    with suppress(OSError, ValueError):  # no such group, or "max"
        limit, usage = int((folder / most).read_text()), int((folder / used).read_text())
        files = 0
        with suppress(OSError, ValueError):
            for line in (folder / "memory.stat").read_text().splitlines():
                name, _, value = line.partition(" ")
                files = int(value) if name == reclaimable else files
        return limit, max(0, limit - max(0, usage - files))
    return None
