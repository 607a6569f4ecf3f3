"""Says which model, engine and processor it was when an engine kills its process.

    python -m localagent.engines.children SCRIPT|-m MODULE [ARGUMENT ...]

runs a Python program in a child process, as `make test` and `make bench` do, and prints that line if a
signal ends it. The exit code is the child's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from localagent.engines.processor import read_processor
from localagent.hosts.host import LOADED_VARIABLE


def describe_end(code: int) -> str:
    """The signal that ended a process, from its `subprocess` exit code; "" if it exited by itself."""
    if code >= 0xC0000000:  # Windows reports a crash as the number of an exception
        return f"exception 0x{code:08X}"
    if code >= 0:
        return ""
    try:
        return f"{signal.Signals(-code).name}: {signal.strsignal(-code)}"
    except ValueError:
        return f"signal {-code}"


def describe_death(code: int | None, loaded: str) -> str:
    """A sentence about a process that a signal ended.

    `code`: its exit code, None if unknown. `loaded`: what `read_loaded` returns for it.
    """
    how = "died" if code is None else f"died ({describe_end(code)})"
    return f"{how} with {loaded or 'no model'} loaded; processor: {read_processor()}"


def read_loaded(note: Path) -> str:
    """What was loaded last by the process that ran with `note` as LOADED_VARIABLE; "" for nothing."""
    try:
        return note.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def run_watched(arguments: list[str], environment: Mapping[str, str]) -> int:
    """Run Python with `arguments`; print a line if a signal ends it. Returns an exit code as a shell does."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "loaded"
        child = subprocess.Popen(
            [sys.executable, *arguments], env={**environment, LOADED_VARIABLE: str(note)}
        )
        while True:
            try:
                code = child.wait()
                break
            except KeyboardInterrupt:  # the terminal sent Ctrl-C to the child too, which decides what to do
                continue
        if not describe_end(code):
            return code
        if code not in (-signal.SIGINT, -signal.SIGTERM):  # somebody stopped it, so nothing crashed
            command = " ".join(arguments)
            sys.stderr.write(f"{command}: {describe_death(code, read_loaded(note))}\n")
        return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(run_watched(sys.argv[1:], os.environ))
