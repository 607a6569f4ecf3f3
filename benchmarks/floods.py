"""What a flood costs everybody else who uses the server.

    python benchmarks/floods.py [FLOOD ...] [--seconds 10] [--parser auto|h11] [--json]

`localagent serve` runs on lfm2-nano with a key. Somebody reads a stream, somebody else asks for short
answers, and `/health` is asked five times a second: for a while alone, then during the flood, then after it.
Chunks of one byte come at less than 1 MB/s. Medians and maxima are in ms, memory in MB.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from socket import create_connection, socket
from statistics import median
from time import monotonic, sleep

import psutil  # type: ignore[import-untyped]

from localagent_bench.harness.bare_loops import endless_weights
from localagent_bench.harness.servers import started

KEY = "the-key"
_SIZE = (8 << 20) - 200
_VALUES = b'{"messages": [{"role": "user", "content": "a"}], "metadata": [%s]}'
_BODIES = {
    "text": b'{"messages": [{"role": "user", "content": "%s"}]}' % (b"word " * (_SIZE // 5)),
    "messages": b'{"messages": [%s]}' % b",".join([b'{"role": "user", "content": "a b"}'] * (_SIZE // 35)),
    "values": _VALUES % b",".join([b"[]"] * (_SIZE // 3)),
}


def request(data: bytes = b"", key: str | None = KEY, chunked: bool = False) -> bytes:
    """A request for an answer, with as much of its body as `data` is."""
    length = "transfer-encoding: chunked" if chunked else f"content-length: {len(data)}"
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: 127.0.0.1",
        "content-type: application/json",
        length,
    ]
    lines += ["connection: close", *([f"authorization: Bearer {key}"] if key else [])]
    return "\r\n".join([*lines, "", ""]).encode() + data


def chunks(key: str | None, connection: socket, over: threading.Event) -> None:
    """Chunks of one byte, as long as the server takes them."""
    connection.sendall(request(key=key, chunked=True))
    while not over.wait(1 / 15):
        connection.sendall(b"1\r\n \r\n" * 10_000)


def slow_head(connection: socket, over: threading.Event) -> None:
    """A head that comes in lines, a few a second."""
    connection.sendall(b"POST / HTTP/1.1\r\n")
    while not over.wait(0.2):
        connection.sendall(b"x-more: and more\r\n")


def send(data: bytes, connection: socket, over: threading.Event) -> None:
    """A request at once; nothing, if it is empty."""
    connection.sendall(data)
    connection.settimeout(1)
    while not over.is_set():
        with suppress(TimeoutError):
            if not connection.recv(1 << 16):
                break


FLOODS: dict[str, tuple[int, Callable[[socket, threading.Event], None]]] = {
    "nothing": (0, slow_head),
    "chunks-1-no-key": (1, partial(chunks, None)),
    "chunks-4-no-key": (4, partial(chunks, None)),
    "chunks-1-key": (1, partial(chunks, KEY)),
    "chunks-4-key": (4, partial(chunks, KEY)),
    "slow-heads-100": (100, slow_head),
    "idle-200": (200, partial(send, b"")),
    **{f"bodies-16-{name}": (16, partial(send, request(body))) for name, body in _BODIES.items()},
}
"""How many connections there are, and what is sent on each. One that is closed is followed by another."""


class Watch:
    """Clients who do nothing unusual: how long they wait, in each phase."""

    def __init__(self, port: int, process: psutil.Process) -> None:
        self.phase = "before"
        self.seen: dict[str, list[float]] = defaultdict(list)
        self._port = port
        self._process = process
        self._over = threading.Event()
        watches = (self._stream, self._first, self._health, self._memory)
        self._threads = [threading.Thread(target=each, daemon=True) for each in watches]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop watching."""
        self._over.set()
        for thread in self._threads:
            thread.join(40)

    def _answer(self, asked: bytes) -> Iterator[bytes]:
        with suppress(OSError), create_connection(("127.0.0.1", self._port), timeout=30) as connection:
            connection.sendall(asked)
            while data := connection.recv(1 << 16):
                yield data

    def _chat(self, tokens: int) -> Iterator[bytes]:
        """The pieces of an answer in which there is text."""
        words = (
            b'{"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": %d, "stream": true}'
        )
        for data in self._answer(request(words % tokens)):
            if b'"content":"' in data.replace(b'"content":""', b""):
                yield data

    def _stream(self) -> None:
        while not self._over.is_set():
            last = None
            for _ in self._chat(1500):
                if last is not None:
                    self.seen[f"gap {self.phase}"].append(monotonic() - last)
                last = monotonic()
                if self._over.is_set():
                    break

    def _first(self) -> None:
        while not self._over.wait(0.2):
            began = monotonic()
            came = next(self._chat(4), None)
            self.seen[f"first {self.phase}"].append(monotonic() - began if came else float("inf"))

    def _health(self) -> None:
        while not self._over.wait(0.2):
            began = monotonic()
            came = next(self._answer(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"), None)
            self.seen[f"health {self.phase}"].append(monotonic() - began if came else float("inf"))

    def _memory(self) -> None:
        while not self._over.wait(0.1):
            with suppress(psutil.Error):
                self.seen[f"memory {self.phase}"].append(self._process.memory_info().rss)


@contextmanager
def server(parser: str, weights: Path, log: Path) -> Iterator[tuple[int, psutil.Process]]:
    """`localagent serve` in a process of its own."""
    without = "" if parser == "auto" else "import sys; sys.modules['httptools'] = None; "
    options = ["--model", str(weights), "--port", "0", "--no-snapshots", "--lanes", "4", "--threads", "1"]
    serve = f"{without}from localagent.cli import main; main()"
    command = [sys.executable, "-c", serve, "serve", *options]
    environment = {"LOCALAGENT_API_KEYS": KEY}
    with started("serve", command, log, lambda text: "API key" in text, environment=environment) as process:
        port = log.read_text().partition("http://127.0.0.1:")[2].split()[0]
        yield int(port), psutil.Process(process.pid)


def measure(name: str, parser: str, seconds: float, folder: Path) -> dict[str, str]:
    """One flood against a new server: what was waited for, and the memory."""
    count, attack = FLOODS[name]
    over = threading.Event()

    def attacker(port: int) -> None:
        while not over.wait(0.05):
            with suppress(OSError), create_connection(("127.0.0.1", port), timeout=60) as connection:
                attack(connection, over)

    with server(parser, endless_weights("nano", folder), folder / "log") as (port, process):
        watch = Watch(port, process)
        sleep(seconds / 3)
        attackers = [threading.Thread(target=attacker, args=(port,), daemon=True) for _ in range(count)]
        watch.phase = "during"
        for thread in attackers:
            thread.start()
        sleep(seconds)
        over.set()
        watch.phase = "after"
        sleep(seconds)
        watch.end()
    row = {"flood": name}
    for what in (f"{each} {phase}" for each in ("first", "gap", "health") for phase in ("before", "during")):
        waits = [1000 * each for each in watch.seen[what]] or [float("inf")]
        row[what] = f"{median(waits):.0f} / {max(waits):.0f}"
    memory = {phase: watch.seen[f"memory {phase}"] for phase in ("before", "during", "after")}
    highest = max(memory["before"]), max(memory["during"]), memory["after"][-1]
    return {**row, "memory before, during, after": " / ".join(f"{each / 2**20:.0f}" for each in highest)}


def main() -> None:
    """Measure each flood; print a table, or JSON lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("floods", nargs="*", metavar="FLOOD", help=f"of {', '.join(FLOODS)}: all")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="that each lasts, and is watched after it"
    )
    parser.add_argument("--parser", choices=["auto", "h11"], default="auto", help="what reads the requests")
    parser.add_argument("--json", action="store_true", help="print JSON lines, and no table")
    options = parser.parse_args()
    if unknown := set(options.floods).difference(FLOODS):
        parser.error(f"no flood {', '.join(sorted(unknown))}: there are {', '.join(FLOODS)}")
    for number, name in enumerate(options.floods or FLOODS):
        with tempfile.TemporaryDirectory() as folder:
            row = measure(name, options.parser, options.seconds, Path(folder))
        if not number and not options.json:
            print(f"| {' | '.join(row)} |\n{'|---' * len(row)}|")
        print(json.dumps(row) if options.json else f"| {' | '.join(row.values())} |", flush=True)


if __name__ == "__main__":
    main()
