"""The one place that imports llama_cpp, and keeps what it logs.

`library()` returns the low-level ctypes module, ready to use, or raises EngineMissing. llama.cpp reports an
error as NULL and gives the reason only in its log, so the log is kept instead of printed: `reason` returns
the errors logged since `forget`, on one line.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from localagent.errors import EngineFailed, EngineMissing
from localagent.hosts.llamacpp.compiling import first_install_command

WAITING: Final = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
"""What tells an OpenMP library how its threads wait for each other."""

_SPINS = "1000"
_ERROR = 4  # ggml_log_level; llama_cpp._logger has it wrong

_lock = threading.Lock()
_loaded: Any = None
_callback: Any = None  # C holds only the address
_lines: deque[str] = deque(maxlen=8)


def library() -> Any:
    """The module `llama_cpp.llama_cpp`, imported and initialised once. Raises EngineMissing."""
    global _loaded, _callback  # noqa: PLW0603  (one C library per process)
    with _lock:
        if _loaded is None:
            try:
                with _short_waits():
                    import llama_cpp.llama_cpp as native
            except ImportError as error:
                raise EngineMissing(
                    f"llama.cpp is not installed: {first_install_command()} (builds from source: "
                    f"takes minutes, and needs a C/C++ compiler and cmake) [{_first_line(error)}]"
                ) from error
            _callback = native.llama_log_callback(_keep_errors)
            native.llama_log_set(_callback, ctypes.c_void_p(0))
            native.llama_backend_init()
            _loaded = native
        return _loaded


def version() -> str:
    """The version of llama-cpp-python."""
    from importlib.metadata import version

    return version("llama-cpp-python")


def describe() -> dict[str, Any]:
    """What the engine reports of itself, for people and reports: version, instruction sets, devices."""
    native = library()
    build = native.llama_print_system_info().decode("utf-8", "replace").strip(" |")
    return {
        "version": version(),
        "build": build,
        "uses": re.findall(r"(\w+) = 1\b", build),
        "gpu": bool(native.llama_supports_gpu_offload()),
        "devices": _devices(),
    }


def cuts_measured() -> bool:
    """Whether the build computes by the kernels with which cuts of a prompt were seen to change nothing.

    ARM's take rows by twos, so that an odd one may differ; BLAS and AMX have kernels of their own for many.
    """
    facts = describe()
    return (
        platform.machine().lower() in ("x86_64", "amd64")
        and not any(use.startswith(("BLAS", "ACCELERATE", "AMX")) for use in facts["uses"])
        # BLAS is a device, too, and so is a graphics card, which may compute large products of any model.
        and bool(facts["devices"])
        and all(device.startswith("CPU") for device in facts["devices"])
    )


KINDS: Final = ("Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "IQ4_NL")
"""What `quantize` makes: kinds of which llama.cpp computes several rows at once on a processor."""


def quantize(source: Path, target: Path, kind: str, *, threads: int = 1, pure: bool = True) -> Path:
    """Write the GGUF file `source` to `target` with its weights as one of `KINDS`, and return `target`.

    `pure`: all of them; else llama.cpp keeps more of those that matter most. Weights that are quantized lose
    something once more. Raises EngineFailed.
    """
    native = library()
    options = native.llama_model_quantize_default_params()
    options.ftype = getattr(native, f"LLAMA_FTYPE_MOSTLY_{kind}")
    options.nthread = threads
    options.pure = pure
    options.allow_requantize = True
    forget()
    if native.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(options)):
        raise EngineFailed(f"{source}: cannot be quantized to {kind}: {reason('no reason given')}")
    return target


def forget() -> None:
    """Drop the errors logged so far."""
    _lines.clear()


def reason(fallback: str) -> str:
    """What llama.cpp logged as errors since `forget`, or `fallback`."""
    lines = [line.split(": ", 1)[-1] for line in (" ".join(line.split()) for line in _lines) if line]
    return (lines[0] if lines else fallback)[:300]


@contextmanager
def _short_waits() -> Iterator[None]:
    """Threads wait for each other in a short loop, then asleep, unless the environment says how they wait.

    A token has hundreds of barriers. By itself libgomp loops 300,000 times at each, some milliseconds, in
    which a thread that waits keeps the one that it waits for off the core, if other programs compute as well.
    Threads that sleep at once lose more than half of the speed of a quiet machine.

    libgomp reads the environment once, when it is loaded, so processes started later find it unchanged.
    """
    unsaid = not any(name in os.environ for name in WAITING)
    if unsaid:
        os.environ["GOMP_SPINCOUNT"] = _SPINS
    try:
        yield
    finally:
        if unsaid:
            os.environ.pop("GOMP_SPINCOUNT", None)


def _devices() -> list[str]:
    """What ggml can compute on, as `name: description`; empty where the package does not tell."""
    try:
        from llama_cpp._ggml import libggml as ggml

        ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
        ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
        ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
        ask = (ggml.ggml_backend_dev_name, ggml.ggml_backend_dev_description)
    except (ImportError, AttributeError):
        return []
    for function in ask:
        function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    devices = (ggml.ggml_backend_dev_get(number) for number in range(ggml.ggml_backend_dev_count()))
    return [
        ": ".join((function(device) or b"").decode("utf-8", "replace").strip() for function in ask)
        for device in devices
    ]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _keep_errors(level: int, text: bytes | None, _data: Any) -> None:
    if level == _ERROR and text:
        _lines.append(text.decode("utf-8", "replace").strip())
