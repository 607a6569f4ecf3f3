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

from localagent.messages.values import MAX_REQUEST_DEPTH, refuse_constant
from localagent.server.exchange import BadRequest

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

CROWDED = "crowded"
"""Set in the state of a request that came on one connection too many."""
BACKED_UP = "backed up"
"""In the state of a request: tells whether the client has to read before more is taken for it."""

SMALL = 1 << 16
"""Bytes of a body that is read and parsed like nothing."""
_FIRST = 5
"""Seconds in which a large body may come as slowly as it likes."""
_WINDOW = 1 << 16
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_WHOLE_STRINGS = re.compile(rb'(?:[^"]++|%s)*+' % _STRING.pattern, re.DOTALL)
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+("?)', re.DOTALL)
_NOT_MARKS = bytes(set(range(256)) - set(b"[]{},"))
_LONE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Gone(Exception):
    """The client has left: there is nobody to answer."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one client may take. Times are seconds."""

    body: int = 8 << 20
    """Bytes, counted while they arrive: a chunked body announces no length."""
    bodies: int = 64 << 20
    """Bytes of all bodies above 64 kB that are held at once, from their arrival to the end of the answer."""
    depth: int = MAX_REQUEST_DEPTH
    """Arrays and objects within each other: whatever a model has written may be sent back."""
    values: int = 1 << 18
    """Texts, numbers, arrays and so on in one body. Python takes 80 bytes for an array of two."""
    parsing: float = 0.25
    """The share of the event loop's time in which the requests of all connections are parsed, in turns."""
    header_bytes: int = 32 << 10
    headers: int = 100
    header_time: float = 15
    """From the connection, or from the first byte of a further request on it, to the end of its headers."""
    body_time: float = 60
    pace: int = 1 << 16
    """Bytes a second, after five seconds, at which a body above 64 kB has to come: there is room for few."""
    drain_time: float = 5
    """What is left of a refused body is taken for so long, so that the client comes to read the answer."""
    write_time: float = 60
    """A client that reads nothing for so long is taken to be gone: it holds a lane."""
    keep_alive: float = 5
    """Between two signs of life while a prompt waits or is read."""
    deadline: float = 3600
    """From the arrival of a request to the end of its answer. A long answer of a slow model is no fault."""
    drain: float = 4
    """For running answers to end when the server is told to stop by SIGTERM. After it come two seconds in
    which the others say that they are ended, and one in which that is taken; Docker and others wait for 10
    before they kill.
    """
    queue: int = 64
    """Requests that wait for a lane, of all clients and for each model."""
    connections: int = 512
    """Open at once; a process may often have no more than 1,024 files. Those above get 503 and are closed."""


DEFAULT_BOUNDS = Bounds()


async def left(receive: Receive) -> None:
    """Wait until the client has gone.

    One that has shut down its writing side and still reads looks the same from here: uvicorn learns of both
    by the end of what it reads, and only writing would tell them apart.
    """
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(
    receive: Receive,
    bounds: Bounds,
    announced: str | None = None,
    make_room: Callable[[int], Awaitable[object]] | None = None,
) -> bytes:
    """The body of a request. `announced`: its Content-Length. `make_room`: waited for where it has more bytes
    than `SMALL`, with the most that it may have.

    Raises BadRequest (413 and 408), and Gone where the client leaves before the end.
    """
    most = int(announced) if announced is not None and announced.isdecimal() else bounds.body
    if most > bounds.body:
        _too_large(bounds)
    body, now, allowed = bytearray(), asyncio.get_running_loop().time, bounds.body_time
    began = now()
    try:
        async with asyncio.timeout(allowed) as limit:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                body += message.get("body", b"")
                if len(body) > bounds.body:
                    _too_large(bounds)
                if len(body) > SMALL:
                    if make_room is not None:
                        limit.reschedule(None)  # its time begins again when there is room
                        await make_room(most)
                        make_room, began = None, now()
                    allowed = min(bounds.body_time, _FIRST + len(body) / bounds.pace)
                    limit.reschedule(began + allowed)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        said = f"the body did not arrive within {allowed:g} seconds"
        raise BadRequest(said, status=408) from None


def parse_json(body: bytes, bounds: Bounds) -> Any:
    """The value. Raises BadRequest.

    Half a surrogate pair, which JavaScript writes when it cuts a text inside an emoji, becomes U+FFFD.
    """
    _check_size(body, bounds)
    try:
        # Where Python's own functions are called, other threads have their turn: the parser is C and gives
        # the interpreter to nobody until it is done.
        value = json.loads(
            body.decode(), parse_constant=refuse_constant, parse_int=_integer, object_hook=_object
        )
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    return _mended(value) if _ESCAPED_SURROGATE.search(body) else value


def _check_size(body: bytes, bounds: Bounds) -> None:
    """Raise BadRequest for JSON of too many values, or so deep that parsing would recurse.

    It is looked at in windows, since other threads wait while a pattern is matched.
    """
    level = values = at = 0
    while at < len(body):
        whole = _WHOLE_STRINGS.match(body, at, at + _WINDOW)
        assert whole is not None  # if nothing else, it matches nothing
        if whole.end() == at:
            at = _end_of_string(body, at)
            continue
        marks = _STRING.sub(b"", whole[0]).translate(None, _NOT_MARKS)
        at = whole.end()
        values += sum(map(marks.count, (b"[", b"{", b",")))
        if values > bounds.values:
            raise BadRequest(f"the JSON has more than {bounds.values:,} values", status=413)
        for bracket in marks.translate(None, b","):
            level += 1 if bracket in b"[{" else -1
            if level > bounds.depth:
                raise BadRequest(f"the JSON is more than {bounds.depth} levels deep")


def _end_of_string(body: bytes, at: int) -> int:
    """The index after the string that begins at `at`, or the end."""
    at += 1
    while (rest := _REST_OF_STRING.match(body, at, at + _WINDOW)) and rest.end() > at:
        at = rest.end()
        if rest[1]:
            return at
    return len(body)


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


def _integer(digits: str) -> int:
    return int(digits)


def _object(value: dict[str, Any]) -> dict[str, Any]:
    return value
