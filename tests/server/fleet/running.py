"""A fleet of real replicas on Ray Serve, started from the command line, and what its log says of them."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import psutil

PATIENCE = 120.0
_LOADED = re.compile(r":models pid=(\d+)\) \S+ (\S+) is loaded")
_TURN = re.compile(r":models pid=(\d+)\) \S+ (\S+) (\d+) \((\d+) cached\) \+ (\d+) tokens")


class Fleet:
    """A running one. `log`: what it writes."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, port: int) -> None:
        self.process = process
        self.log = log
        self.url = f"http://127.0.0.1:{port}"

    def loaded(self, model: str) -> list[int]:
        """The processes that have loaded it, in order."""
        return [int(pid) for pid, name in _LOADED.findall(self.log.read_text()) if name == model]

    def turns(self, since: int = 0) -> list[int]:
        """The process of each answer, in the order in which they ended."""
        return [int(found[0]) for found in _TURN.findall(self.log.read_text())[since:]]

    def counted(self, number: int, since: int) -> Counter[int]:
        """How many of the `number` answers after the first `since` each process has given."""
        self.until(lambda: len(self.turns(since)) >= number, "answers in the log")
        return Counter(self.turns(since))

    def until(self, done: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
        end = time.monotonic() + patience
        while not done():
            assert self.process.poll() is None, f"it has ended:\n{self.log.read_text()[-4000:]}"
            assert time.monotonic() < end, f"no {what}:\n{self.log.read_text()[-4000:]}"
            time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def started(
    command: Sequence[str | Path], folder: Path, port: int, environment: dict[str, str] | None
) -> Iterator[Fleet]:
    """The fleet that the command starts, when it answers; it and all its processes are ended at the end."""
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*map(str, command)], stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=folder
        )
    fleet = Fleet(process, log, port)
    try:
        fleet.until(lambda: answers(port), "answer")
        yield fleet
    finally:
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        for each in [*below, process]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


def answers(port: int) -> bool:
    try:
        return httpx2.request("GET", f"http://127.0.0.1:{port}/health", timeout=60).status_code == 200
    except httpx2.ConnectError:
        return False
