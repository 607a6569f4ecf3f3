"""The one place that imports llama_cpp, and keeps what it logs.

Knows how the package is installed and how llama.cpp reports errors: as log lines only, behind a NULL.
Contract: `library()` returns the low-level ctypes module, ready to use, or raises EngineMissing. The log is
silent; `reason` gives the errors logged since `forget`, on one line.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from typing import Any

from localagent.distribution import install_command
from localagent.errors import EngineMissing

_ERROR = 4  # ggml_log_level; llama_cpp._logger has it wrong
_CONTINUED = 5

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
                import llama_cpp.llama_cpp as native
            except ImportError as error:
                raise EngineMissing(
                    f"llama.cpp is not installed: {install_command('llamacpp')} (builds from source: "
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


def forget() -> None:
    """Drop the errors logged so far."""
    _lines.clear()


def reason(fallback: str) -> str:
    """What llama.cpp logged as errors since `forget`, or `fallback`."""
    lines = [line.split(": ", 1)[-1] for line in (" ".join(line.split()) for line in _lines) if line]
    return (lines[0] if lines else fallback)[:300]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _keep_errors(level: int, text: bytes | None, _data: Any) -> None:
    if level == _ERROR and text:
        _lines.append(text.decode("utf-8", "replace").strip())
