"""Servers in child processes: how all that measures one starts it, waits for it and ends it.

A server of `running` listens on the loopback, and ends when this process does, however that ends.

    python benchmarks/localagent_bench/harness/servers.py NAME OPTIONS       # such a child; options as JSON
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from time import monotonic, sleep
from typing import Any

import psutil  # type: ignore[import-untyped]

_LOADING = 120.0
_PACKAGES = {"llama-server": "xllamacpp", "mlx_lm.server": "mlx_lm", "localagent": "uvicorn"}
"""What each server needs."""


class SideFailed(Exception):
    """A side gave no answer, or not the one that was asked for."""


@dataclass(frozen=True)
class Settings:
    """What all sides have in common. `lanes`: how many requests are served at once. `threads`: None leaves
    them to each server. `llama_server`: a program to measure instead of the one in the package xllamacpp.
    """

    weights: str
    context: int
    lanes: int
    threads: int | None
    llama_server: str | None = None


@dataclass(frozen=True)
class ServerProcess:
    """A server that runs. `build`: which engine it has, and for which processor that was built."""

    port: int
    build: str
    process: psutil.Process

    def cpu_seconds(self) -> float:
        """What it and its children have computed until now, and the system for them, on all cores."""
        times = [process.cpu_times() for process in (self.process, *self.process.children(recursive=True))]
        return float(sum(time.user + time.system for time in times))


def missing(name: str, llama_server: str | None = None) -> str | None:
    """Why a server cannot take part; None if it can. `llama_server`: see `Settings`."""
    if name == "llama-server" and llama_server is not None:
        return None if which(llama_server) else f"{llama_server} is no program"
    package = _PACKAGES[name]
    return None if find_spec(package) else f"the package {package} is not installed"


@contextmanager
def started(
    what: str,
    command: Sequence[object],
    log: Path,
    ready: Callable[[str], bool],
    *,
    patience: float = _LOADING,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output goes to `log`, once `ready` says of what is written there that it is.

    It is asked to end by the end of its standard input, and then by Ctrl-C, and killed with all that it has
    started if neither helps. Raises Failed if it does not come up.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*map(str, command)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
    assert process.stdin is not None
    try:
        deadline = monotonic() + patience
        while not ready(text := log.read_text(errors="replace")):
            if process.poll() is not None or monotonic() > deadline:
                raise SideFailed(f"{what} does not start: {text[-600:]}")
            sleep(0.1)
        yield process
    finally:
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.stdin.close()
        try:
            process.send_signal(signal.SIGINT)
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for child in below:
            with suppress(psutil.Error):
                child.kill()


@contextmanager
def running(name: str, settings: Settings, work: Path) -> Iterator[ServerProcess]:
    """Run a server as a child process until the context is left. Raises Failed if it does not come up."""
    port, log = free_port(), work / f"{name}.log"
    options = json.dumps({**asdict(settings), "port": port})
    command = [sys.executable, __file__, name, options]
    with started(name, command, log, lambda _: healthy(port)) as process:
        build = log.read_text(errors="replace").partition("\n")[0]
        yield ServerProcess(port, build, psutil.Process(process.pid))


def free_port() -> int:
    """A port of the loopback that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def healthy(port: int) -> bool:
    """Whether the server there answers."""
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
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    {"llama-server": _llama_server, "mlx_lm.server": _mlx_server, "localagent": _localagent}[name](options)


def _end_with_standard_input() -> None:
    sys.stdin.read()
    for child in psutil.Process().children():
        child.kill()
    os._exit(0)


def _llama_server(options: dict[str, Any]) -> None:
    if program := options["llama_server"]:
        _run_llama_server(program, options)
        return
    import xllamacpp

    print(f"xllamacpp {xllamacpp.__version__}, {features(xllamacpp.get_system_info())}", flush=True)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = options["weights"]
    parameters.n_parallel = options["lanes"]
    parameters.n_ctx = options["lanes"] * options["context"]  # divided among them
    if options["threads"]:
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = options["threads"]
    parameters.port = options["port"]
    parameters.ui = False
    parameters.verbosity = 2  # warnings
    _running = xllamacpp.Server(parameters)
    threading.Event().wait()


def _run_llama_server(program: str, options: dict[str, Any]) -> None:
    """The program, with the same settings as the package's."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    print(f"{program}: {' '.join((said.stdout + said.stderr).split())}", flush=True)
    command = [program, "--model", options["weights"], "--port", options["port"], "--no-ui", "-lv", 2]
    command += ["--parallel", options["lanes"], "--ctx-size", options["lanes"] * options["context"]]
    if options["threads"]:
        command += ["--threads", options["threads"]]
    subprocess.run([*map(str, command)], stdin=subprocess.DEVNULL, check=True)


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
        if options[name]:
            sys.argv += [f"--{name}", str(options[name])]
    main()


if __name__ == "__main__":
    _serve(sys.argv[1], json.loads(sys.argv[2]))
