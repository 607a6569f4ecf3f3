"""Asks the installed engines what they are, each in a process of its own.

Knows which questions each engine answers, and what goes wrong with installations: a package that is missing,
raises, crashes the process or hangs. Contract: `probe` always returns, within `timeout` seconds.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from localagent.cli.doctor.findings import Finding
from localagent.distribution import install_command

TIMEOUT: Final = 60.0
Outcome = Literal["works", "missing", "broken"]

# The last line of output is the answer: packages may print while they are imported.
_LLAMACPP: Final = """
import ctypes, importlib.metadata, json
try:
    import llama_cpp.llama_cpp as native
except ModuleNotFoundError as error:
    if error.name != "llama_cpp":
        raise
    print(json.dumps(None))
    raise SystemExit
silent = native.llama_log_callback(lambda level, text, data: None)
native.llama_log_set(silent, ctypes.c_void_p(0))
native.llama_backend_init()
devices = []
try:
    from llama_cpp._ggml import libggml as ggml
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    for name in ("ggml_backend_dev_name", "ggml_backend_dev_description"):
        getattr(ggml, name).restype = ctypes.c_char_p
        getattr(ggml, name).argtypes = [ctypes.c_void_p]
    for number in range(ggml.ggml_backend_dev_count()):
        device = ggml.ggml_backend_dev_get(number)
        words = ggml.ggml_backend_dev_name(device), ggml.ggml_backend_dev_description(device)
        devices.append(": ".join(word.decode("utf-8", "replace").strip() for word in words))
except (ImportError, AttributeError):
    pass
print()
print(json.dumps({
    "version": importlib.metadata.version("llama-cpp-python"),
    "build": native.llama_print_system_info().decode("utf-8", "replace").strip(" |"),
    "gpu": bool(native.llama_supports_gpu_offload()),
    "devices": devices,
}))
"""
_MLX: Final = """
import importlib.metadata, json
try:
    import mlx.core as mx
    import mlx_lm
except ModuleNotFoundError as error:
    if error.name not in ("mlx", "mlx.core", "mlx_lm"):
        raise
    print(json.dumps(None))
    raise SystemExit
mx.eval(mx.ones(2) + 1)
print()
print(json.dumps({
    "version": importlib.metadata.version("mlx"),
    "mlx_lm": importlib.metadata.version("mlx-lm"),
    "gpu": bool(mx.metal.is_available()),
    "devices": [str(mx.default_device())],
}))
"""
PROBES: Final = {"llamacpp": _LLAMACPP, "mlx": _MLX}


@dataclass(frozen=True, slots=True)
class Probe:
    """What became of the question. `answer` is filled when the engine works, `error` when it is broken."""

    outcome: Outcome
    answer: dict[str, Any] = field(default_factory=dict)
    error: str = ""


def engine_findings(timeout: float = TIMEOUT) -> list[Finding]:
    """Ask all engines, side by side. An engine takes at most `timeout` seconds."""
    from localagent.catalog import HOSTED

    with ThreadPoolExecutor(len(PROBES)) as pool:
        probes = dict(zip(PROBES, pool.map(lambda code: probe(code, timeout), PROBES.values()), strict=True))
    works = any(probes[backend].outcome == "works" for backend in HOSTED)
    return [
        describe_llamacpp(probes["llamacpp"], alone=not works, gpu=_gpu()),
        describe_mlx(probes["mlx"], hosted="mlx" in HOSTED, native=_apple()),
    ]


def probe(code: str, timeout: float) -> Probe:
    """Run `code` in a fresh interpreter that sees what this one sees."""
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-P",
                "-c",
                code,
            ],  # -P: a folder that happens to be called llama_cpp is no engine
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Probe("broken", error=f"gave no answer in {timeout:g} seconds")
    except OSError as error:
        return Probe("broken", error=f"cannot start {sys.executable}: {error.strerror or error}")
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    last = said[-1].strip()[:300] if said else ""
    if done.returncode:
        how = _ended(done.returncode)
        return Probe("broken", error=": ".join(part for part in (how, last) if part) or "failed")
    try:
        answer = json.loads(done.stdout.decode("utf-8", "replace").strip().splitlines()[-1])
    except (ValueError, IndexError):
        return Probe("broken", error=f"gave no answer{': ' + last if last else ''}")
    return Probe("works", answer) if isinstance(answer, dict) else Probe("missing")


def describe_llamacpp(found: Probe, *, alone: bool, gpu: str | None) -> Finding:
    """`alone`: no engine works yet. `gpu`: the build option for the graphics card that is here."""
    section, name, answer = "engines", "llama.cpp", found.answer
    data = {"backend": "llamacpp", "outcome": found.outcome, "error": found.error or None, **answer}
    if found.outcome == "missing":
        status: Literal["problem", "note"] = "problem" if alone else "note"
        return Finding(section, name, status, "not installed", install_command("llamacpp"), data)
    options = ("--force-reinstall", "--no-cache-dir", "--no-deps")
    rebuild = install_command("llamacpp", only=["llama-cpp-python"], options=options)
    if found.outcome == "broken":
        return Finding(section, name, "problem", f"installed, but broken: {found.error}", rebuild, data)
    text = f"llama-cpp-python {answer['version']}, {_places(answer, 'GPU offload', 'no GPU offload')}"
    if uses := re.findall(r"(\w+) = 1\b", answer["build"]):
        text += f", built with {' '.join(uses)}"
    if gpu and not answer["gpu"]:
        text += "; there is a GPU, and this build cannot use it"
        return Finding(section, name, "problem", text, f'CMAKE_ARGS="{gpu}" {rebuild}', data)
    return Finding(section, name, "ok", text, data=data)


def describe_mlx(found: Probe, *, hosted: bool, native: bool) -> Finding:
    """`hosted`: this version of localagent can use MLX. `native`: on Apple Silicon."""
    section, name, answer, fix = "engines", "MLX", found.answer, install_command("mlx")
    data = {"backend": "mlx", "outcome": found.outcome, "error": found.error or None, **answer}
    if found.outcome == "missing":
        if not native or not hosted:
            why = "it is made for Apple Silicon" if not native else "this version has no host for it"
            return Finding(section, name, "note", f"not installed; {why}", None, data)
        return Finding(section, name, "problem", "not installed; fast on this machine", fix, data)
    if found.outcome == "broken":
        options = ("--force-reinstall", "--no-cache-dir")
        fix = install_command("mlx", only=["mlx", "mlx-lm"], options=options)
        return Finding(section, name, "problem", f"installed, but broken: {found.error}", fix, data)
    text = f"mlx {answer['version']}, mlx-lm {answer['mlx_lm']}, {_places(answer, 'Metal', 'no Metal')}"
    if not hosted:
        return Finding(section, name, "note", f"{text}; this version has no host for it", None, data)
    if not answer["gpu"]:
        return Finding(section, name, "note", f"{text}: slow on the CPU", None, data)
    return Finding(section, name, "ok", text, data=data)


def _places(answer: dict[str, Any], on: str, off: str) -> str:
    return f"{on if answer['gpu'] else off} ({', '.join(answer['devices']) or 'devices unknown'})"


def _ended(code: int) -> str:
    """How a process that failed ended; "" when it said so itself."""
    if code > 0:
        return ""
    try:
        return f"it crashes ({signal.Signals(-code).name})"
    except ValueError:
        return f"it crashes (signal {-code})"


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
