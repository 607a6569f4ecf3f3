"""llama.cpp's row in the table of engines. No engine is imported before one of its functions is called."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localagent.hosts.backend import Advice, Backend, Trial

if TYPE_CHECKING:
    from localagent.hosts.llamacpp.header import Header
    from localagent.hosts.llamacpp.host import LlamaCppHost
    from localagent.hosts.memory.estimate import Estimate


def _read(path: Path) -> Header:
    from localagent.hosts.llamacpp.gguf import read_header

    return read_header(path)


def _estimate(path: Path, context: int) -> Estimate:
    from localagent.hosts.llamacpp.memory import estimate_gguf

    return estimate_gguf(path, _read(path), context)


def _host() -> type[LlamaCppHost]:
    from localagent.hosts.llamacpp.host import LlamaCppHost

    return LlamaCppHost


def _trial() -> Trial:
    from localagent.hosts.llamacpp.library import describe, quantize

    return Trial(describe(), partial(_host().load, context=512, threads=1), quantize, ("Q8_0", "Q4_0"))


def _mend() -> str:
    from localagent.hosts.llamacpp.compiling import mending_command

    return mending_command()


def _missing(alone: bool) -> Advice:
    from localagent.hosts.llamacpp.compiling import first_install_command

    return Advice("problem" if alone else "note", "not installed", first_install_command())


def _working(facts: Mapping[str, Any], ran: str) -> Advice:
    from localagent.hosts.llamacpp.compiling import build_command

    offload = "GPU offload" if facts["gpu"] else "no GPU offload"
    text = (
        f"llama-cpp-python {facts['version']}, {ran}, "
        f"{offload} ({', '.join(facts['devices']) or 'devices unknown'})"
    )
    if uses := facts.get("uses"):
        text += f", built with {' '.join(uses)}"
    if not facts["gpu"] and (option := gpu_option()):
        text += "; there is a GPU, and this build cannot use it"
        return Advice("problem", text, build_command(option))
    return Advice("ok", text)


def gpu_option() -> str | None:
    """The option that builds llama.cpp for the GPU of this machine; None without one."""
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "-DGGML_METAL=on"
    cards = Path("/proc/driver/nvidia/gpus")
    if (cards.is_dir() and any(cards.iterdir())) or shutil.which("nvidia-smi"):
        return "-DGGML_CUDA=on"
    return None


LLAMACPP = Backend(
    name="llamacpp",
    title="llama.cpp",
    format="gguf",
    weights="GGUF file",
    takes=lambda path: not path.is_dir(),
    read=_read,
    estimate=_estimate,
    host=_host,
    modules=("llama_cpp",),
    distributions=("llama-cpp-python",),
    trial=_trial,
    mend=_mend,
    missing=_missing,
    working=_working,
)
