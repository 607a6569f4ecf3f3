"""What a flood of one kind costs everybody else who uses the server.

    python benchmarks/floods.py [FLOOD ...] [--seconds 10] [--parser h11|auto] [--json]

`localagent serve` runs on lfm2-nano with a key. Beside each flood somebody reads a stream, somebody else asks
for short answers, and `/health` is asked five times a second: first for a while alone, then during the flood,
then after it. Chunks of one byte come at less than 1 MB/s. Medians and maxima are in ms, memory in MB.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from time import monotonic, sleep

import psutil
from bare_loops import endless_weights
from servers import Failed

KEY = "the-key"
CHAT = "/v1/chat/completions"


class Flood:
    """What attackers share: where the server is, and when to stop."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.over = threading.Event()

    def head(self, key: str | None = KEY, path: str = CHAT, **headers: str) -> bytes:
        """The head of a request with a body."""
        given = {"host": "127.0.0.1", "content-type": "application/json", **headers}
        if key is not None:
            given["authorization"] = f"Bearer {key}"
        lines = [
            f"POST {path} HTTP/1.1",
            *(f"{name.replace('_', '-')}: {value}" for name, value in given.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode()

    def chunks(self, key: str | None) -> None:
        """Chunks of one byte, on one connection after the other."""
        burst = b"1\r\n \r\n" * 10_000
        while not self.over.is_set():
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection,
            ):
                connection.sendall(self.head(key, transfer_encoding="chunked"))
                while not self.over.is_set():
                    connection.sendall(burst)
                    self.over.wait(len(burst) / 900_000)
            self.over.wait(0.05)

    def slow_head(self) -> None:
        """A head that comes in lines, a few a second."""
        while not self.over.is_set():
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection,
            ):
                connection.sendall(b"POST / HTTP/1.1\r\n")
                while not self.over.wait(0.2):
                    connection.sendall(b"x-more: and more\r\n")

    def idle(self) -> None:
        """A connection on which nothing comes."""
        while not self.over.is_set():
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection,
            ):
                connection.settimeout(0.2)
                while not self.over.is_set():
                    with suppress(TimeoutError):
                        if not connection.recv(100):
                            break

    def body(self, body: bytes) -> None:
        """One large body after the other."""
        while not self.over.is_set():
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection,
            ):
                connection.sendall(self.head(content_length=str(len(body)), connection="close") + body)
                while not self.over.is_set() and connection.recv(1 << 16):
                    pass


def _bodies() -> dict[str, bytes]:
    size = 8 << 20
    values = (size - 200) // 3
    messages = (size - 200) // 35
    text = {"messages": [{"role": "user", "content": "word " * ((size - 200) // 5)}]}
    return {
        "text": json.dumps(text).encode(),
        "messages": b'{"messages": [' + b",".join([b'{"role": "user", "content": "a b"}'] * messages) + b"]}",
        "values": b'{"messages": [{"role": "user", "content": "a"}], "metadata": ['
        + b",".join([b"[]"] * values)
        + b"]}",
    }


def floods(flood: Flood) -> dict[str, list[Callable[[], None]]]:
    """The attackers of each flood, as threads run them."""
    bodies = _bodies()
    return {
        "nothing": [],
        **{
            f"chunks-{count}-{name}": [lambda key=key: flood.chunks(key)] * count  # type: ignore[misc]
            for name, key in (("no-key", None), ("key", KEY))
            for count in (1, 4)
        },
        "slow-heads-100": [flood.slow_head] * 100,
        "idle-200": [flood.idle] * 200,
        **{f"bodies-16-{name}": [lambda body=body: flood.body(body)] * 16 for name, body in bodies.items()},  # type: ignore[misc]
    }


class Watch:
    """Clients who do nothing unusual: what they wait for, in each phase."""

    def __init__(self, port: int, process: psutil.Process) -> None:
        self.port = port
        self.process = process
        self.phase = "before"
        self.waits: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.rss: dict[str, list[float]] = defaultdict(list)
        self.over = threading.Event()
        self._threads = [
            threading.Thread(target=each, daemon=True)
            for each in (self._stream, self._first, self._health, self._memory)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop watching."""
        self.over.set()
        for thread in self._threads:
            thread.join(40)

    def _note(self, what: str, began: float) -> None:
        self.waits[self.phase, what].append(monotonic() - began)

    def _ask(self, request: bytes) -> Iterator[bytes]:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(request)
            while data := connection.recv(1 << 16):
                yield data

    def _chat(self, tokens: int) -> bytes:
        body = {
            "messages": [{"role": "user", "content": "Name a colour."}],
            "max_tokens": tokens,
            "stream": True,
        }
        data = json.dumps({**body, "temperature": 0}).encode()
        return Flood(self.port).head(content_length=str(len(data)), connection="close") + data

    def _stream(self) -> None:
        while not self.over.is_set():
            last = 0.0
            for data in self._ask(self._chat(1500)):
                if last and b'"content"' in data:
                    self._note("gap", last)
                last = monotonic()
                if self.over.is_set():
                    break

    def _first(self) -> None:
        while not self.over.wait(0.2):
            began = monotonic()
            # The head and the role come before the model has begun.
            for data in self._ask(self._chat(4)):
                if b'"content":"' in data.replace(b'"content":""', b""):
                    self._note("first", began)
                    break
            else:
                self._note("first", began - 1000)

    def _health(self) -> None:
        while not self.over.wait(0.2):
            began = monotonic()
            request = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
            ok = any(b" 200 " in data for data in self._ask(request))
            self._note("health", began if ok else began - 1000)

    def _memory(self) -> None:
        while not self.over.wait(0.1):
            with suppress(psutil.Error):
                self.rss[self.phase].append(self.process.memory_info().rss / 2**20)


@contextmanager
def server(parser: str, weights: Path, log: Path) -> Iterator[tuple[int, psutil.Process]]:
    """`localagent serve` in a process of its own."""
    without = "" if parser == "auto" else "import sys; sys.modules['httptools'] = None; "
    program = f"{without}from localagent.cli import main; main()"
    options = [
        "serve",
        "--model",
        str(weights),
        "--port",
        "0",
        "--no-snapshots",
        "--lanes",
        "4",
        "--threads",
        "1",
    ]
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *options],
            stderr=output,
            env={**os.environ, "LOCALAGENT_API_KEYS": KEY},
        )
    try:
        while "API key" not in (said := log.read_text()):
            if process.poll() is not None:
                raise Failed(f"localagent serve does not start: {said[-500:]}")
            sleep(0.1)
        yield int(said.partition("http://127.0.0.1:")[2].split()[0]), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def measure(name: str, parser: str, seconds: float, weights: Path, log: Path) -> dict[str, object]:
    """One flood against a new server."""
    with server(parser, weights, log) as (port, process):
        flood = Flood(port)
        watch = Watch(port, process)
        sleep(seconds / 3)
        attackers = [threading.Thread(target=each, daemon=True) for each in floods(flood)[name]]
        watch.phase = "during"
        for thread in attackers:
            thread.start()
        sleep(seconds)
        flood.over.set()
        began = monotonic()
        for thread in attackers:
            thread.join(120)
        watch.phase = "after"
        ended = monotonic() - began
        sleep(seconds)
        watch.end()
        row: dict[str, object] = {"flood": name, "parser": parser, "ended_after": round(ended, 1)}
        for phase in ("before", "during"):
            for what in ("first", "gap", "health"):
                waits = watch.waits[phase, what] or [float("inf")]
                row[f"{what}_{phase}"] = [round(1000 * median(waits)), round(1000 * max(waits))]
        for phase, pick in (("before", max), ("during", max), ("after", lambda each: each[-1])):
            row[f"rss_{phase}"] = round(pick(watch.rss[phase] or [0]))
        return row


def main() -> None:
    """Measure each flood; print a table, or JSON lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = list(floods(Flood(0)))
    parser.add_argument("floods", nargs="*", metavar="FLOOD", help=", ".join(names))
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="that each flood lasts, and its end is watched"
    )
    parser.add_argument("--parser", choices=["auto", "h11"], default="auto", help="which reads the requests")
    parser.add_argument("--json", action="store_true", help="print JSON lines, and no table")
    options = parser.parse_args()
    columns = ("first_before", "first_during", "gap_before", "gap_during", "health_before", "health_during")
    columns += ("rss_before", "rss_during", "rss_after")
    if not options.json:
        print(f"| flood, {options.parser} | " + " | ".join(each.replace("_", " ") for each in columns) + " |")
        print("|---" * (len(columns) + 1) + "|")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOCALAGENT_HOME"] = folder
        weights = endless_weights("nano", Path(folder))
        for name in options.floods or names:
            row = measure(name, options.parser, options.seconds, weights, Path(folder) / "log")
            if options.json:
                print(json.dumps(row), flush=True)
                continue
            cells = [
                " / ".join(map(str, cell)) if isinstance(cell := row[each], list) else str(cell)
                for each in columns
            ]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
