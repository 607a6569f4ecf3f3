"""Who takes part in `concurrency.py`: localagent in this process, and other servers in child processes.

A side is asked for a number of tokens after a prompt, and notes in a `Seen` when each of them arrived. All
have the same weights, threads and context, take the likeliest token, and keep what they have evaluated, as
they do by default. A server listens on the loopback, and ends when this process does, however that ends.

    python benchmarks/sides.py llama-server|mlx_lm.server OPTIONS      # such a child, with options as JSON
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection, HTTPException
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any, Protocol

from localagent.hosts.host import EngineHost
from localagent.hosts.protocol import Token
from localagent.hosts.sampling import Sampling
from localagent.model import Model, load
from localagent.prompt import Prompt

_LOADING = 120.0
_LARGEST_LINE = 1 << 22  # llama-server repeats the whole prompt in its last event
_HEAD = (
    "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    "Connection: close\r\nContent-Length: {length}\r\n\r\n"
)


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
class Request:
    """`count` tokens to be written after a prompt, which sides that take no ids are sent as text."""

    system: str
    user: str
    prompt: Prompt
    count: int


@dataclass
class Seen:
    """What came of a request. Times are those of the tokens, in seconds."""

    started: float = 0.0
    times: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    """Empty where the side does not say."""
    written: int = 0
    """Tokens; more than there are times where a server sends none for a token that is no text yet."""
    evaluated: int = 0
    """Tokens of the prompt that were computed, not taken from elsewhere."""
    mark: int = 0
    marked: asyncio.Event | None = None
    """Set when `mark` tokens have come."""

    def arrived(self, ids: Sequence[int] | None) -> None:
        """Tokens came together; None for one whose id is not known."""
        now = perf_counter()
        self.times += [now] * (1 if ids is None else len(ids))
        self.ids += ids or ()
        if self.marked is not None and len(self.times) >= self.mark:
            self.marked.set()


class Side(Protocol):
    """Serves requests, many at once."""

    name: str
    build: str
    """Which engine it is, and for which processor it was built."""

    async def complete(self, request: Request, seen: Seen) -> None:
        """Note every token in `seen` as it arrives."""


class Localagent:
    """A model in this process. It is asked below its parser, where a completion is asked of a server."""

    def __init__(self, settings: Settings) -> None:
        mlx = Path(settings.weights).is_dir()
        self.name = "localagent"
        self.model: Model = load(
            settings.weights,
            context=settings.context,
            threads=None if mlx else settings.threads,
            lanes=settings.lanes,
        )
        assert isinstance(self.model.host, EngineHost)
        self.host = self.model.host
        self.build = self.host.engine
        if not mlx:
            from localagent.hosts.llamacpp.library import library

            self.build += f", {_features(library().llama_print_system_info().decode())}"

    def forget(self) -> None:
        """Keep nothing of what was evaluated: `OneAtATime` is asked the same."""
        prefix = self.host._prefix

        def clear() -> None:
            prefix.drop()
            for seat in prefix._seats:
                prefix.clear(seat)

        self.host._owner.run(clear)

    def one_at_a_time(self) -> OneAtATime:
        """The same model for one request after the other, as if it had one lane."""
        return OneAtATime(self)

    async def complete(self, request: Request, seen: Seen) -> None:
        """Tokens as the host gives them."""
        generation = self.host.generate(request.prompt, Sampling(max_tokens=request.count))
        async for step in generation.asteps():
            if isinstance(step, Token):
                seen.arrived((step.id,))
        assert generation.finish is not None
        seen.written, seen.evaluated = generation.finish.generated, generation.finish.prefilled

    def close(self) -> None:
        """Free the weights."""
        self.model.close()


class OneAtATime:
    """A model of `Localagent` whose requests wait for each other.

    A second copy of the model in this process would have half of the cores when both are at work.
    """

    def __init__(self, side: Localagent) -> None:
        self.name, self.build = f"{side.name}, one lane", side.build
        self._side = side
        self._turn = asyncio.Lock()

    async def complete(self, request: Request, seen: Seen) -> None:
        """When those before it are done."""
        async with self._turn:
            await self._side.complete(request, seen)


class LlamaServer:
    """llama-server, as the package xllamacpp brings it ready-made. Its completions take ids."""

    name = "llama-server"

    def __init__(self, port: int, build: str) -> None:
        self.build = build
        self._port = port

    async def complete(self, request: Request, seen: Seen) -> None:
        """Greedy by its quickest sampler: its default chain looks at forty candidates for every token."""
        body = {
            "prompt": request.prompt.ids,
            "n_predict": request.count,
            "stream": True,
            "return_tokens": True,
            "cache_prompt": True,
            "samplers": ["top_k"],
            "top_k": 1,
        }
        async with aclosing(_events(self._port, "/completion", body)) as events:
            async for event in events:
                if event["stop"]:
                    seen.written, seen.evaluated = event["tokens_predicted"], event["timings"]["prompt_n"]
                else:
                    seen.arrived(event["tokens"])


class MlxServer:
    """mlx_lm.server. It takes no ids, so it renders the messages itself, and it gives none."""

    name = "mlx_lm.server"

    def __init__(self, port: int, build: str) -> None:
        self.build = build
        self._port = port

    async def complete(self, request: Request, seen: Seen) -> None:
        """A chunk for each token that completes a text, and a last one, in which the text may be empty."""
        body = {
            "messages": [
                {"role": "system", "content": request.system},
                {"role": "user", "content": request.user},
            ],
            "max_tokens": request.count,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        usage: dict[str, Any] = {}
        async with aclosing(_events(self._port, "/v1/chat/completions", body)) as events:
            async for event in events:
                usage = event.get("usage") or usage
                if any(
                    set(choice["delta"]) - {"role"} or choice["finish_reason"] for choice in event["choices"]
                ):
                    seen.arrived(None)
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        seen.written, seen.evaluated = usage["completion_tokens"], usage["prompt_tokens"] - cached


SERVERS: dict[str, tuple[str, type[LlamaServer] | type[MlxServer]]] = {
    "llama-server": ("xllamacpp", LlamaServer),
    "mlx_lm.server": ("mlx_lm", MlxServer),
}
"""By name, the package that it comes with and the side."""


async def _events(port: int, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """POST `body`, and the server-sent events of the answer.

    Read by hand, which costs a third of the 100 us that an HTTP library takes for every token: the server
    computes on the same processor.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_LARGEST_LINE)
    try:
        data = json.dumps(body).encode()
        writer.write(_HEAD.format(path=path, length=len(data)).encode() + data)
        status = await reader.readline()
        chunked = False
        while (line := await reader.readline()).strip():
            chunked |= line.lower().startswith(b"transfer-encoding: chunked")
        if b" 200 " not in status:
            raise Failed(f"{status.decode().strip()}: {(await reader.read(500)).decode(errors='replace')}")
        rest = b""
        while data := await _piece(reader, chunked):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise Failed(f"the server says {event['error']}")
                    yield event
    finally:
        writer.close()


async def _piece(reader: asyncio.StreamReader, chunked: bool) -> bytes:
    """The next bytes of the body; none at its end."""
    if not chunked:
        return await reader.read(1 << 16)
    size = int(await reader.readline() or b"0", 16)
    return (await reader.readexactly(size + 2))[:size]


@contextmanager
def server(name: str, settings: Settings, work: Path) -> Iterator[Side]:
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
        yield SERVERS[name][1](port, build)
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


def missing(name: str) -> str | None:
    """Why a server cannot take part; None if it can."""
    package = SERVERS[name][0]
    return None if find_spec(package) else f"the package {package} is not installed"


def _features(info: str) -> str:
    """The instructions that a build of llama.cpp uses, from its own description."""
    return " ".join(re.findall(r"(\w+) = 1", info))


def _serve(name: str, options: dict[str, Any]) -> None:
    """Be a server until standard input ends, as it does when the parent ends in any way.

    Ctrl-C goes to both of them; it is for the parent, which then closes the pipe.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    if name == "mlx_lm.server":
        from mlx_lm.server import main

        print(f"mlx-lm {version('mlx-lm')}", flush=True)
        sys.argv = [name, "--model", options["weights"], "--port", str(options["port"])]
        sys.argv += ["--decode-concurrency", str(options["lanes"]), "--log-level", "WARNING"]
        main()
        return
    import xllamacpp

    print(f"xllamacpp {xllamacpp.__version__}, {_features(xllamacpp.get_system_info())}", flush=True)
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


if __name__ == "__main__":
    _serve(sys.argv[1], json.loads(sys.argv[2]))
