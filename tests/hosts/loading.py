"""Loads models in a child process, where they can do no harm: `python -m tests.hosts.loading`.

The child reads one path a line, a GGUF file or an MLX folder, loads what is there, draws three tokens, and
answers with one JSON line. `Loader` is the parent's side: it sees a child that dies, hangs or grows.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

MOST = 2 << 30
"""Bytes that a child may hold."""
LONGEST = 60.0
"""Seconds that it may take for one model."""


@dataclass(frozen=True)
class Outcome:
    """What became of one model. `kind`: the type of the error, "ran", or how the child ended."""

    kind: str
    text: str = ""

    @property
    def sound(self) -> bool:
        """Whether it ran or was refused as it should be: by a type of ours, in one line."""
        return self.kind == "ran" or (self.kind[0].isupper() and "\n" not in self.text)


class Loader:
    """A child that loads one model after the other. Where it ends, the next model gets a new one."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def load(self, path: Path) -> Outcome:
        """What becomes of the model at `path`."""
        child = self._child
        if child is None:
            command = [sys.executable, "-m", "tests.hosts.loading"]
            child = self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, "GGML_NO_BACKTRACE": "1"},  # or an abort starts a debugger
            )
        assert child.stdin is not None
        child.stdin.write(f"{path}\n".encode())
        line, ended = self._answer(child)
        if ended is None and line:
            return Outcome(**json.loads(line))
        said = self._end().strip().splitlines()
        code = child.returncode
        how = ended or (signal.Signals(-code).name.lower() if code < 0 else f"exit {code}")
        return Outcome(how, said[-1] if said else "")

    def _answer(self, child: subprocess.Popen[bytes]) -> tuple[bytes, str | None]:
        """The child's line, or why there is none."""
        assert child.stdout is not None
        process, until = psutil.Process(child.pid), time.monotonic() + LONGEST
        with selectors.DefaultSelector() as ready:
            ready.register(child.stdout, selectors.EVENT_READ)
            while not ready.select(timeout=0.02):
                if process.memory_info().rss > MOST:
                    return b"", "grew"
                if time.monotonic() > until:
                    return b"", "hung"
        return child.stdout.readline(), None

    def _end(self) -> str:
        """End the child; what it wrote on standard error."""
        child, self._child = self._child, None
        if child is None:
            return ""
        if child.poll() is None:
            try:  # it may be on its way out
                assert child.stdin is not None
                child.stdin.close()
                child.stdin = None
                return child.communicate(timeout=2)[1].decode("utf-8", "replace")
            except subprocess.TimeoutExpired:
                child.kill()
        return child.communicate()[1].decode("utf-8", "replace")


def _try(path: Path) -> Outcome:
    from localagent.errors import LocalAgentError
    from localagent.model import load

    try:
        with load(path, threads=None if path.is_dir() else 1) as model:
            reply = model.respond("Name a colour.", max_tokens=3)
    except LocalAgentError as error:
        return Outcome(type(error).__name__, str(error))
    except Exception as error:  # any other kind is what these tests look for
        return Outcome(f"untyped {type(error).__name__}", str(error)[:500])
    return Outcome("ran", reply.raw or "")


def main() -> None:
    """Answer until there is nothing more to read."""
    for line in sys.stdin:
        outcome = _try(Path(line.rstrip("\n")))
        print(json.dumps({"kind": outcome.kind, "text": outcome.text}), flush=True)


if __name__ == "__main__":
    main()
