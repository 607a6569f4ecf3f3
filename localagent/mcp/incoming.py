"""The messages from a server, before the `mcp` package gets them.

The package reads messages from a stream, in which a bad line appears as the exception that it caused. This
stream adds two things. It reports the end at once, so that a dead server is noticed before the next call. And
an answer that is not strict JSON (with half of an emoji, say) or is nested too deep does not leave its call
waiting for ever: it is read leniently, or the call with its number fails.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from mcp.client._transport import ReadStream
    from mcp.shared.message import SessionMessage

SHOWN = 200
"""Characters of an unreadable line that an error shows."""
MOST_TOKENS = 1_000_000
"""Tokens of broken JSON to search for the call's number, which takes about a second."""
_TOKEN = re.compile(r'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]:,]|[^\s{}\[\]:,"]+|".*')
UNREADABLE = "the answer cannot be read: it is not a valid message, or is nested too deep"


class Incoming:
    """Wraps a transport's stream. `on_end` runs once, when nothing more can come."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end
        self.nonsense: str | None = None
        """The beginning of the first line that was not a message."""

    @property
    def last_context(self) -> Any:
        """The HTTP transport's context of the last message."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """The next message, or the exception that a line made."""
        try:
            item = await self._stream.receive()
        except BaseException:
            self._on_end()
            raise
        return self._read(item) if isinstance(item, Exception) else item

    async def aclose(self) -> None:
        """Close the stream below."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        from anyio import EndOfStream

        try:
            return await self.receive()
        except EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _read(self, error: Exception) -> SessionMessage | Exception:
        value = written(error)
        message = salvage(value)
        if message is None and self.nonsense is None and isinstance(value, str) and value.strip():
            self.nonsense = " ".join(value[:SHOWN].split())
        return error if message is None else message


def written(error: Exception) -> Any:
    """What the server wrote, recovered from the exception: the parsed JSON, or the line itself."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return None
    for found in error.errors(include_url=False):
        if found["type"] == "json_invalid":
            try:
                return json.loads(found["input"])
            except (ValueError, RecursionError):
                return str(found["input"])
        if found["type"] == "missing":  # an error within one kind of message has only a part of the object
            return found["input"]
    return None


def salvage(value: Any) -> SessionMessage | None:
    """The message that JSON, or almost JSON, was meant to be; None if it answers no call."""
    from mcp.shared.message import SessionMessage
    from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

    number = _number(value)
    if number is None:
        return None
    try:  # half of a surrogate pair becomes a question mark
        strict = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        return SessionMessage(jsonrpc_message_adapter.validate_json(strict, by_name=False))
    except (ValueError, RecursionError):
        if isinstance(value, dict) and "method" in value:
            return None
        said = ErrorData(code=PARSE_ERROR, message=UNREADABLE)
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=said))


def _number(value: Any) -> int | str | None:
    """The number of the call that a message answers."""
    if isinstance(value, str):
        value = _outermost(value)
    number = value.get("id") if isinstance(value, dict) else None
    return None if isinstance(number, bool) or not isinstance(number, int | str) else number


def _outermost(text: str) -> dict[str, Any]:
    """The plain values at the top level of an object, as far as it can be read; empty if it is no answer."""
    found: dict[str, Any] = {}
    depth, name, before = 0, "", ""
    for at in itertools.islice(_TOKEN.finditer(text), MOST_TOKENS):
        token = at[0]
        if token in "{[":
            depth += 1
        elif token in "}]":
            depth -= 1
        elif depth == 1 and before in "{," and token.startswith('"'):
            name = token
        elif depth == 1 and before == ":":
            with suppress(ValueError):
                found[json.loads(name)] = json.loads(token)
        before = token
        if depth == 0 and token != "{":
            break
    return found if "jsonrpc" in found and "method" not in found else {}
