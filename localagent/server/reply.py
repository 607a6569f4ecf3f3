"""One HTTP answer: a whole one, a stream, or a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from time import monotonic
from typing import Any

from localagent.server.access import Head
from localagent.server.bounds import Bounds, Gone
from localagent.server.exchange import Frame, Framing, Wire, dump, header_word
from localagent.server.queue import Overloaded

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

_MEDIA = {"sse": b"text/event-stream; charset=utf-8", "ndjson": b"application/x-ndjson"}
_MOST_NAMES = 30
"""Ignored fields that are named in the header."""
_RETRY_AFTER = 5
"""Seconds, where nothing is known of how long it takes."""


class Reply:
    """One HTTP answer. Its head goes out with the first bytes, so that an error before them has a status."""

    def __init__(
        self,
        send: Send,
        bounds: Bounds,
        framing: Framing = "sse",
        backed_up: Callable[[], bool] = lambda: True,
    ) -> None:
        """`backed_up`: whether sending may have to wait for the client."""
        self._send = send
        self._backed_up = backed_up
        self._bounds = bounds
        self.framing = framing
        self.opening: list[Frame] = []
        self._one_at_a_time = asyncio.Lock()
        self.headers: list[tuple[bytes, bytes]] = []
        self.ignored: list[str] = []
        """What the head names as ignored."""
        self.started = False
        self.touched = monotonic()
        """When something was last sent."""

    async def json(self, status: int, value: Any, more: Headers = ()) -> None:
        """A whole answer."""
        body = dump(value).encode("utf-8", "replace")
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
        self.started = True
        await self._give({"type": "http.response.start", "status": status, "headers": [*head, *self._more()]})
        await self._give({"type": "http.response.body", "body": body, "more_body": False})

    async def write(self, frames: Iterable[Frame], last: bool = False) -> None:
        """A part of a stream; the first one brings what the writer begins with."""
        async with self._one_at_a_time:  # the turn and the keep-alive both write
            if not self.started:
                self.started = True
                head = [
                    (b"content-type", _MEDIA[self.framing]),
                    (b"cache-control", b"no-cache"),
                    *self._more(),
                ]
                await self._give({"type": "http.response.start", "status": 200, "headers": head})
                frames = [*self.opening, *frames]
            data = b"".join(frame.encode(self.framing) for frame in frames)
            if data or last:
                await self._give({"type": "http.response.body", "body": data, "more_body": not last})

    def _more(self) -> Headers:
        """The headers that are not about the body."""
        yield from self.headers
        if self.ignored:
            yield b"x-localagent-ignored", ", ".join(map(header_word, self.ignored[:_MOST_NAMES])).encode()

    async def _give(self, message: MutableMapping[str, Any]) -> None:
        if not self._backed_up():  # a timeout costs as much as a token's way to its frame
            await self._send(message)
        else:
            try:
                async with asyncio.timeout(self._bounds.write_time):
                    await self._send(message)
            except TimeoutError:
                raise Gone from None
        self.touched = monotonic()


async def refuse(
    wire: Wire, refusal: Exception, head: Head | None, bounds: Bounds, send: Send, headers: Headers = ()
) -> None:
    """Answer in the API's own shape. `head`: of a request whose body was not read, and will not be: its
    connection is closed. `headers`: more of them.
    """
    status, said = wire.error(refusal)
    close = [(b"connection", b"close")] if head is not None and head.has_body else []
    with suppress(Gone):
        await Reply(send, bounds).json(status, said, [*retry_after(refusal, status), *headers, *close])


def retry_after(error: Exception, status: int) -> Headers:
    """When to ask again, where that may help."""
    if status != 503:
        return []
    return [
        (b"retry-after", str(error.retry_after if isinstance(error, Overloaded) else _RETRY_AFTER).encode())
    ]
