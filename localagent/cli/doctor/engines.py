"""Findings on the engines, each tried in a separate process (see `localagent.engines`)."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from localagent.cli.doctor.findings import Finding
from localagent.distribution import install_command
from localagent.engines.check import Backend, Report, check_engine, mending_command
from localagent.hosts.llamacpp.compiling import build_command, first_install_command


def engine_findings(timeout: float) -> list[Finding]:
    """Try all engines at the same time, for at most `timeout` seconds each."""
    backends: tuple[Backend, ...] = ("llamacpp", "mlx")
    with ThreadPoolExecutor(len(backends)) as pool:
        llamacpp, mlx = pool.map(lambda backend: check_engine(backend, timeout), backends)
    return [
        describe_llamacpp(llamacpp, alone=mlx.outcome != "works", gpu=_gpu()),
        describe_mlx(mlx, native=_apple()),
    ]


def describe_llamacpp(found: Report, *, alone: bool, gpu: str | None) -> Finding:
    """`alone`: no other engine works. `gpu`: the build option for this machine's GPU, if it has one."""
    say = _finding("llama.cpp", found)
    if found.outcome == "missing":
        return say("problem" if alone else "note", "not installed", first_install_command())
    if found.outcome == "broken":
        return say("problem", f"installed, but broken: {found.error}", mending_command("llamacpp"))
    if found.outcome == "untried":
        return say("note", f"installed, but could not be tried: {found.error}")
    text = f"llama-cpp-python {found.facts['version']}, {_ran(found)}"
    text += f", {_places(found.facts, 'GPU offload', 'no GPU offload')}"
    if uses := found.facts.get("uses"):
        text += f", built with {' '.join(uses)}"
    if gpu and not found.facts["gpu"]:
        text += "; there is a GPU, and this build cannot use it"
        return say("problem", text, build_command(gpu))
    return say("ok", text)


def describe_mlx(found: Report, *, native: bool) -> Finding:
    """`native`: on Apple silicon."""
    say = _finding("MLX", found)
    if found.outcome == "missing":
        if not native:
            return say("note", "not installed; it is made for Apple silicon")
        return say("problem", "not installed; fast on this machine", install_command("mlx"))
    if found.outcome == "broken":
        return say("problem", f"installed, but broken: {found.error}", mending_command("mlx"))
    if found.outcome == "untried":
        return say("note", f"installed, but could not be tried: {found.error}")
    text = f"mlx {found.facts['version']}, mlx-lm {found.facts['mlx_lm']}, {_ran(found)}"
    text += f", {_places(found.facts, 'Metal', 'no Metal')}"
    return say("ok", text) if found.facts["gpu"] else say("note", f"{text}: slow on the CPU")


def _finding(name: str, found: Report) -> Callable[..., Finding]:
    """A function that makes this engine's finding from a status, a text and perhaps a fix."""
    data = {
        "backend": found.backend,
        "outcome": found.outcome,
        "error": found.error or None,
        "ran": list(found.ran),
        **found.facts,
    }

    def say(status: Literal["ok", "note", "problem"], text: str, fix: str | None = None) -> Finding:
        return Finding("engines", name, status, text, fix, data)

    return say


def _ran(found: Report) -> str:
    """Which models gave the right tokens: "ran lfm2-nano, also quantized to Q8_0 and Q4_0"."""
    plain, *quantized = found.ran
    kinds = " and ".join(model.removeprefix(f"{plain} quantized to ") for model in quantized)
    return f"ran {plain}{f', also quantized to {kinds}' if kinds else ''}"


def _places(answer: dict[str, Any], on: str, off: str) -> str:
    return f"{on if answer['gpu'] else off} ({', '.join(answer['devices']) or 'devices unknown'})"


def _apple() -> bool:
    return sys.platform == "darwin" and platform.machine() == "arm64"


def _gpu() -> str | None:
    """The option that builds llama.cpp for the GPU of this machine; None without one."""
    if _apple():
        return "-DGGML_METAL=on"
    cards = Path("/proc/driver/nvidia/gpus")
    if (cards.is_dir() and any(cards.iterdir())) or shutil.which("nvidia-smi"):
        return "-DGGML_CUDA=on"
    return None
