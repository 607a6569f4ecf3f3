"""Bounds on what a client may send and on how long he may take, and the reading of a body within them.

A server on one machine is asked by whatever runs there, pages in a browser included. Nothing that arrives may
take memory or time without bound before it is refused.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, NoReturn

from localagent.server.exchange import BadRequest

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

CROWDED = "crowded"
"""Set in the state of a request that came on one connection too many."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LONE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Gone(Exception):
    """The client has left: there is nobody to answer."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one client may take. Times are seconds."""

    body: int = 8 << 20
    """Bytes, counted while they arrive: a chunked body announces no length."""
    depth: int = 64
    """Arrays and objects within each other."""
    header_bytes: int = 32 << 10
    headers: int = 100
    header_time: float = 15
    """From the connection, or from the first byte of a further request on it, to the end of its headers."""
    body_time: float = 60
    drain_time: float = 5
    """What is left of a refused body is read for so long, so that the client comes to read the answer."""
    write_time: float = 60
    """A client that reads nothing for so long is taken to be gone: it holds a lane."""
    keep_alive: float = 5
    """Between two signs of life while a prompt waits or is read."""
    deadline: float = 3600
    """From the arrival of a request to the end of its answer. A long answer of a slow model is no fault."""
    queue: int = 64
    """Requests that wait for a lane, of all clients and for each model."""
    connections: int = 512
    """Open at once; a process may often have no more than 1,024 files. Those above get 503 and are closed."""


DEFAULT_BOUNDS = Bounds()


async def read_body(receive: Receive, bounds: Bounds, announced: str | None = None) -> bytes:
    """The body of a request. `announced`: its Content-Length.

    Raises BadRequest (413 and 408), and Gone where the client leaves before the end.
    """
    if announced is not None and announced.isdecimal() and int(announced) > bounds.body:
        _too_large(bounds)
    body = bytearray()
    try:
        async with asyncio.timeout(bounds.body_time):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                body += message.get("body", b"")
                if len(body) > bounds.body:
                    _too_large(bounds)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        said = f"the body did not arrive within {bounds.body_time:g} seconds"
        raise BadRequest(said, status=408) from None


def parse_json(body: bytes, most: int) -> Any:
    """The value, at most `most` levels deep. Raises BadRequest.

    Half a surrogate pair, which JavaScript writes when it cuts a text inside an emoji, becomes U+FFFD.
    """
    if depth(body, most) > most:
        raise BadRequest(f"the JSON is more than {most} levels deep")
    try:
        value = json.loads(body.decode(), parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    return _mended(value) if _ESCAPED_SURROGATE.search(body) else value


def depth(body: bytes, most: int) -> int:
    """How deep the brackets outside strings go; looking stops above `most`. Parsing would recurse first."""
    deepest = now = 0
    for bracket in _STRING.sub(b"", body).translate(None, _NOT_BRACKETS):
        if bracket in b"[{":
            now += 1
            if now > deepest:
                deepest = now
                if deepest > most:
                    break
        else:
            now -= 1
    return deepest


def _mended(value: Any) -> Any:
    match value:
        case str():
            return _LONE.sub("\ufffd", value)
        case list():
            return [_mended(each) for each in value]
        case dict():
            return {_mended(key): _mended(each) for key, each in value.items()}
    return value


def _too_large(bounds: Bounds) -> NoReturn:
    raise BadRequest(f"the body is larger than {bounds.body:,} bytes", status=413)


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
