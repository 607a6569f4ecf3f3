"""Servers in child processes, for `concurrency.py` and `serving.py`, all with the same weights and threads.

A server listens on the loopback, and ends when this process does, however that ends.

    python benchmarks/servers.py NAME OPTIONS       # such a child; options as JSON
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil

_LOADING = 120.0
_PACKAGES = {"llama-server": "xllamacpp", "mlx_lm.server": "mlx_lm", "localagent": "uvicorn"}
"""What each server needs."""


class Failed(Exception):
    """A side gave no answer, or not the one that was asked for."""


@dataclass(frozen=True)
class Settings:
    """What all sides have in common. `lanes`: how many requests are served at once."""

    weights: str
    context: int
    lanes: int
    threads: int


@dataclass(frozen=True)
class Child:
    """A server that runs. `build`: which engine it has, and for which processor that was built."""

    port: int
    build: str
    process: psutil.Process

    def cpu_seconds(self) -> float:
        """What it has computed until now, for itself and in the system, on all cores."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


def missing(name: str) -> str | None:
    """Why a server cannot take part; None if it can."""
    package = _PACKAGES[name]
    return None if find_spec(package) else f"the package {package} is not installed"


@contextmanager
def running(name: str, settings: Settings, work: Path) -> Iterator[Child]:
    """Run a server as a child process until the context is left. Raises Failed if it does not come up."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = work / f"{name}.log"
    options = json.dumps({**asdict(settings), "port": port})
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, __file__, name, options],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    assert process.stdin is not None
    try:
        deadline = monotonic() + _LOADING
        while not _healthy(port):
            if process.poll() is not None or monotonic() > deadline:
                raise Failed(f"{name} does not start: {log.read_text(errors='replace')[-600:]}")
            sleep(0.1)
        build = log.read_text(errors="replace").partition("\n")[0]
        yield Child(port, build, psutil.Process(process.pid))
    finally:
        process.stdin.close()  # which ends it: see `_serve`
        try:
            process.wait(10)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _healthy(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def features(info: str) -> str:
    """The instructions that a build of llama.cpp uses, from its own description."""
    return " ".join(re.findall(r"(\w+) = 1", info))


def _serve(name: str, options: dict[str, Any]) -> None:
    """Be a server until standard input ends, as it does when the parent ends in any way.

    Ctrl-C goes to both of them; it is for the parent, which then closes the pipe.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    {"llama-server": _llama_server, "mlx_lm.server": _mlx_server, "localagent": _localagent}[name](options)


def _llama_server(options: dict[str, Any]) -> None:
    import xllamacpp

    print(f"xllamacpp {xllamacpp.__version__}, {features(xllamacpp.get_system_info())}", flush=True)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = options["weights"]
    parameters.n_parallel = options["lanes"]
    parameters.n_ctx = options["lanes"] * options["context"]  # divided among them
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = options["threads"]
    parameters.port = options["port"]
    parameters.ui = False
    parameters.verbosity = 2  # warnings
    _running = xllamacpp.Server(parameters)
    threading.Event().wait()


def _mlx_server(options: dict[str, Any]) -> None:
    from mlx_lm.server import main

    print(f"mlx-lm {version('mlx-lm')}", flush=True)
    sys.argv = ["mlx_lm.server", "--model", options["weights"], "--port", str(options["port"])]
    sys.argv += ["--decode-concurrency", str(options["lanes"]), "--log-level", "WARNING"]
    main()


def _localagent(options: dict[str, Any]) -> None:
    """The command itself. Nothing is kept on disk, or a second run would find the prompts of the first."""
    from localagent.cli import main
    from localagent.hosts.llamacpp.library import library

    info = library().llama_print_system_info().decode()
    print(f"llama-cpp-python {version('llama-cpp-python')}, {features(info)}", flush=True)
    sys.argv = ["localagent", "serve", "--model", options["weights"], "--no-snapshots"]
    for name in ("port", "lanes", "context", "threads"):
        sys.argv += [f"--{name}", str(options[name])]
    main()


if __name__ == "__main__":
    _serve(sys.argv[1], json.loads(sys.argv[2]))
