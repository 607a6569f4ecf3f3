"""The processor's name, and those of its instructions that matter to inference engines."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# The vector and matrix extensions that ggml and MLX have kernels for, as /proc/cpuinfo spells them.
_RELEVANT = re.compile(
    r"(amx|avx)\w*|fma|f16c|bmi2|ssse3|sse4_[12]|asimd\w*|i8mm|bf16|sve2?|sme2?|fphp|rvv?|v"
)

_IMPLIED = {"avx", "bmi2", "f16c", "sse4_1", "sse4_2", "ssse3"}  # implied by avx2, which is shown


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor as compilers and kernels see it."""

    architecture: str
    """As Python's `platform.machine()` spells it, such as `x86_64` or `arm64`."""
    name: str
    """The manufacturer's name for it."""
    features: tuple[str, ...]
    """Vector and matrix extensions, sorted; empty where the system does not tell."""

    def __str__(self) -> str:
        """The name and the families of its instructions, short enough for a line."""
        families = {re.sub(r"^(amx|avx512|asimd|sve|sme).*", r"\1", word) for word in self.features}
        return f"{self.name} ({' '.join(sorted(families - _IMPLIED)) or self.architecture})"

    @property
    def key(self) -> str:
        """16 hexadecimal digits, the same for processors on which the same build runs alike."""
        text = "\n".join((self.architecture, self.name, *self.features))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def read_processor() -> Processor:
    """The processor that this program runs on."""
    if sys.platform == "darwin":
        name = _sysctl(b"machdep.cpu.brand_string")
        return Processor(platform.machine(), name or platform.processor(), ())
    with suppress(OSError):
        return parse_cpuinfo(Path("/proc/cpuinfo").read_text("utf-8", "replace"), platform.machine())
    return Processor(platform.machine(), platform.processor() or "unknown processor", ())


def parse_cpuinfo(text: str, architecture: str) -> Processor:
    """The first processor in Linux's /proc/cpuinfo, whose keys differ between architectures."""
    entries: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            entries.setdefault(key.strip().lower(), " ".join(value.split()))
    # Arm cores have no name there, only the numbers of a manufacturer and a part.
    name = entries.get("model name") or " ".join(
        f"{key} {entries[key]}" for key in ("cpu implementer", "cpu part") if key in entries
    )
    words = (entries.get("flags") or entries.get("features") or "").split()
    features = tuple(sorted({word for word in words if _RELEVANT.fullmatch(word)}))
    return Processor(architecture, name or "unknown processor", features)


def _sysctl(name: bytes) -> str:
    """The value of a macOS sysctl; empty if there is none."""
    buffer = ctypes.create_string_buffer(256)
    size = ctypes.c_size_t(len(buffer))
    found = ctypes.CDLL(None).sysctlbyname(name, buffer, ctypes.byref(size), None, ctypes.c_size_t(0))
    return buffer.value.decode("utf-8", "replace") if found == 0 else ""
