"""`localagent` in a process of its own, forked from one that has imported it: 20 ms in place of half a second.

The process has its own standard streams, environment and end. What Python reads when it starts (PYTHONPATH and
the like), what a command imports, terminals and signals are for tests that start `localagent` themselves. Linux
alone: elsewhere a forked process may not use the GPU.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

COMMAND = Path(sys.executable).with_name("localagent")
Result = subprocess.CompletedProcess[bytes]


def run(
    arguments: Sequence[str], stdin: bytes, environment: Mapping[str, str], timeout: float = 120
) -> Result:
    """What `localagent` does with these arguments, and with no other environment than this one."""
    python = _read_at_start(environment)
    if sys.platform == "linux" and python == _read_at_start(os.environ):
        return _parent(python).run(arguments, stdin, environment, timeout)
    return subprocess.run(
        [COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        timeout=timeout,
        env=dict(environment),
        check=False,
    )


class Parent:
    """The process that imports once and is forked then. It ends when its socket is closed."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forking", str(theirs.fileno())],
            cwd=Path(__file__).parents[1],
            pass_fds=[theirs.fileno()],
            # Pipes, since its streams find out what they are: its children's are pipes.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        theirs.close()
        self._answers = self._socket.makefile("r")

    def run(
        self, arguments: Sequence[str], stdin: bytes, environment: Mapping[str, str], timeout: float
    ) -> Result:
        (its_in, given), (out, its_out), (err, its_err) = os.pipe(), os.pipe(), os.pipe()
        request = {"arguments": arguments, "environment": dict(environment), "folder": str(Path.cwd())}
        streams = its_in, its_out, its_err
        socket.send_fds(self._socket, [json.dumps(request).encode() + b"\n"], streams)
        for each in streams:
            os.close(each)
        process = int(self._answers.readline())
        with ThreadPoolExecutor(3) as pool:
            pool.submit(_write, given, stdin)
            reading = [pool.submit(_read, each) for each in (out, err)]
            try:
                printed = [each.result(timeout) for each in reading]
            except BaseException:
                os.kill(process, signal.SIGKILL)
                raise
            finally:
                status = int(self._answers.readline())
        return Result([str(COMMAND), *arguments], os.waitstatus_to_exitcode(status), *printed)

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
        self._process.communicate()


def _read_at_start(environment: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(item for item in environment.items() if item[0].startswith("PYTHON"))


@cache
def _parent(python: frozenset[tuple[str, str]]) -> Parent:
    """The one that was started with these variables of Python: they also say whether it finds engines."""
    parent = Parent()
    atexit.register(parent.close)
    return parent


def _write(pipe: int, content: bytes) -> None:
    with open(pipe, "wb", buffering=0) as stream:
        try:
            while content:
                content = content[stream.write(content) :]
        except BrokenPipeError:
            pass  # it ended without reading all


def _read(pipe: int) -> bytes:
    with open(pipe, "rb") as stream:
        return stream.read()


def become_a_command(asked: socket.socket) -> bool:
    """Fork for every request. Returns True in the processes that are forked, and False at the end."""
    while True:
        request, streams, *_ = socket.recv_fds(asked, 1 << 20, 3)
        if not request:
            return False
        while not request.endswith(b"\n"):
            request += asked.recv(1 << 20)
        process = os.fork()
        if process == 0:
            break
        for each in streams:
            os.close(each)
        asked.sendall(b"%d\n" % process)
        asked.sendall(b"%d\n" % os.waitpid(process, 0)[1])
    asked.close()
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    told = json.loads(request)
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["environment"])
    sys.argv = [str(COMMAND), *told["arguments"]]
    return True


if __name__ == "__main__":
    import localagent.cli.models
    import localagent.cli.parse
    import localagent.cli.sessions
    import localagent.cli.talk.chat

    gc.freeze()
    if become_a_command(socket.socket(fileno=int(sys.argv[1]))):
        localagent.cli.main()
