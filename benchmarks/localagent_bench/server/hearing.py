"""What a server answers to one request, as it came: checks judge bytes, not what a client makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic
from typing import Any

from localagent.errors import LocalAgentError, ServerUnreachable, StreamBroken
from localagent.hosts.protocol import Cancelled
from localagent.remote.refusals import error_in
from localagent.remote.server import Server
from localagent.wording import one_line, quoted

_MOST_LINES = 100_000
_MOST_BYTES = 1 << 28
"""Of one answer, which is kept whole."""
_MOST_SILENT = 3
"""Answers in a row that never came: so many, and a server is given up."""


class ServerGone(Exception):
    """The server has stopped answering; the text says how."""


@dataclass
class Heard:
    """An answer, as far as it came. Times are seconds since the request was sent."""

    status: int = 0
    content_type: str = ""
    lines: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each line was there."""
    problem: str = ""
    """Why the answer did not come to its end; "" if it did."""

    @cached_property
    def body(self) -> bytes:
        """All that came."""
        return b"".join(self.lines)

    @cached_property
    def json(self) -> Any:
        """The body as JSON; None if it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @cached_property
    def data(self) -> list[tuple[float, str]]:
        """The data of the server-sent events, each with its time."""
        found: list[tuple[float, str]] = []
        for at, line in zip(self.times, self.lines, strict=True):
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if text.startswith("data:"):
                found.append((at, text[5:].removeprefix(" ")))
        return found

    @cached_property
    def chunks(self) -> list[Any]:
        """The JSON of the events; None for what is no JSON. "[DONE]" is left out."""
        found: list[Any] = []
        for _, text in self.data:
            if text.strip() != "[DONE]":
                try:
                    found.append(json.loads(text))
                except (ValueError, RecursionError):
                    found.append(None)
        return found

    def told(self) -> str:
        """The answer in a few words."""
        said, _ = error_in(self.json)
        start = said or self.body[:200].decode("utf-8", "replace")
        return one_line(self.problem or f"{self.status}: {quoted(start, 120) if start else 'nothing'}", 200)


class Caller:
    """Sends requests to a server, and gives it up when it is gone."""

    def __init__(self, server: Server, limit: float) -> None:
        """`limit`: seconds that an answer may take."""
        self.server = server
        self.limit = limit
        self._silent = 0

    def hear(
        self,
        method: str,
        path: str,
        data: bytes | Iterable[bytes] | None = None,
        enough: Callable[[bytes], bool] | None = None,
    ) -> Heard:
        """One request. `enough`: tells of a line whether the client leaves when it has come.

        Raises ServerGone when nobody listens there any more, or several answers in a row never came.
        """
        heard, began, size = Heard(), monotonic(), 0
        try:
            with self.server.send(method, path, data, _Until(began + self.limit)) as answer:
                heard.status, heard.content_type = answer.status, answer.header("content-type")
                for line in answer.lines():
                    heard.lines.append(line)
                    heard.times.append(monotonic() - began)
                    size += len(line)
                    if len(heard.lines) > _MOST_LINES or size > _MOST_BYTES:
                        raise StreamBroken(f"{self.server.url} does not come to an end")
                    if enough is not None and enough(line):
                        break
        except ServerUnreachable as error:
            raise ServerGone(str(error)) from error
        except Cancelled:
            heard.problem = f"no end after {self.limit:g} seconds"
        except LocalAgentError as error:
            heard.problem = str(error)
        self._silent = self._silent + 1 if heard.problem and not heard.lines else 0
        if self._silent >= _MOST_SILENT:
            raise ServerGone(f"{_MOST_SILENT} requests in a row were not answered: {heard.problem}")
        return heard


@dataclass(frozen=True, slots=True)
class _Until:
    """A flag that is set when the time is over."""

    end: float

    def is_set(self) -> bool:
        """Whether it is."""
        return monotonic() > self.end
