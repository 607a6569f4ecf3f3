"""Who takes part in `concurrency.py`: localagent in this process, and other servers (see `servers`).

A side is asked for a number of tokens after a prompt, and notes in `Tokens` when each of them arrived. All
have the same weights, threads and context, take the likeliest token, and keep what they have evaluated, as
they do by default.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from localagent.hosts.host import EngineHost
from localagent.hosts.protocol import Token
from localagent.hosts.sampling import Sampling
from localagent.model import Model, load
from localagent.prompt import Prompt
from localagent_bench.harness.scenarios import Tokens
from localagent_bench.harness.servers import Settings, SideFailed, features
from localagent_bench.server.load import LoadRequest

_LARGEST_LINE = 1 << 22  # llama-server repeats the whole prompt in its last event
_HEAD = (
    "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    "Connection: close\r\nContent-Length: {length}\r\n\r\n"
)


class Localagent:
    """A model in this process. It is asked below its parser, where a completion is asked of a server."""

    def __init__(self, settings: Settings) -> None:
        mlx = Path(settings.weights).is_dir()
        self.name = "localagent"
        model = load(
            settings.weights,
            context=settings.context,
            threads=None if mlx else settings.threads,
            lanes=settings.lanes,
        )
        assert isinstance(model, Model) and isinstance(model.host, EngineHost)
        self.model, self.host = model, model.host
        self.build = self.host.engine
        if not mlx:
            from localagent.hosts.llamacpp.library import library

            self.build += f", {features(library().llama_print_system_info().decode())}"

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

    async def complete(self, request: LoadRequest, seen: Tokens) -> None:
        """Tokens as the host gives them."""
        generation = self.host.generate(Prompt(request.ids, ""), Sampling(max_tokens=request.count))
        async for (step,) in generation.asteps(1):
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

    async def complete(self, request: LoadRequest, seen: Tokens) -> None:
        """When those before it are done."""
        async with self._turn:
            await self._side.complete(request, seen)


class LlamaServerSide:
    """llama-server, as the package xllamacpp brings it ready-made. Its completions take ids."""

    name = "llama-server"

    def __init__(self, port: int, build: str) -> None:
        self.build = build
        self._port = port

    async def complete(self, request: LoadRequest, seen: Tokens) -> None:
        """Greedy by its quickest sampler: its default chain looks at forty candidates for every token."""
        body = {
            "prompt": request.ids,
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

    async def complete(self, request: LoadRequest, seen: Tokens) -> None:
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


SERVERS = {side.name: side for side in (LlamaServerSide, MlxServer)}


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
            raise SideFailed(
                f"{status.decode().strip()}: {(await reader.read(500)).decode(errors='replace')}"
            )
        rest = b""
        while data := await _piece(reader, chunked):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise SideFailed(f"the server says {event['error']}")
                    yield event
    finally:
        writer.close()


async def _piece(reader: asyncio.StreamReader, chunked: bool) -> bytes:
    """The next bytes of the body; none at its end."""
    if not chunked:
        return await reader.read(1 << 16)
    size = int(await reader.readline() or b"0", 16)
    return (await reader.readexactly(size + 2))[:size]
