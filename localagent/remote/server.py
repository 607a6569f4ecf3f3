"""A server that speaks OpenAI's API over HTTP: what it is asked, and what it answers while that comes.

A turn that is cancelled closes its connection within a moment, also while nothing comes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from localagent.errors import LocalAgentError, ServerUnreachable, StreamBroken, UsageError
from localagent.hosts.protocol import CancelFlag, Cancelled
from localagent.remote.address import LOCAL
from localagent.remote.refusals import refusal
from localagent.settings import API_KEY
from localagent.wording import one_line, quoted, writable

if TYPE_CHECKING:
    import httpx2

    from localagent.transport import Transport

_CONNECT = 10.0
"""Seconds for making a connection."""
_LONGEST = 1 << 26
"""Bytes of a line or a body: a server that sends more is broken, and must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server listens. `silence`: seconds without any sign of life after which it is given up."""

    url: str
    key: str | None = field(default=None, repr=False)
    silence: float = 600.0

    @classmethod
    def at(cls, url: str, key: str | None = None, silence: float = 600.0) -> Server:
        """The server at `url`, with or without /v1 at its end. Raises UsageError."""
        base = url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
        example = "it must be like http://127.0.0.1:8080"
        if not base.isascii() or not base.isprintable() or " " in base:
            raise UsageError(f"the address {quoted(url)} is no URL: {example}")
        try:
            parts = urlsplit(base)
            wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
        except ValueError:  # a port that is no number, a bracket that is not closed
            wrong = True
        if wrong or parts.query or parts.fragment:
            raise UsageError(f"the address {quoted(url)} is no URL of a server: {example}")
        if parts.username is not None:  # it would be in every error message
            raise UsageError(f"the address has a name or a password in it: put the key into {API_KEY}")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise UsageError(f"the key in {API_KEY} has characters that no HTTP header can carry")
        return cls(base, key, silence)

    def ask(self, path: str, body: Any = None) -> Any:
        """The JSON that the server answers. Raises as `open`."""
        with self.open(path, body) as answer:
            return answer.json()

    def models(self) -> dict[str, Mapping[str, Any]]:
        """What /v1/models says of each model, by name; what cannot be read is left out. Raises as `open`."""
        listing = self.ask("/v1/models")
        data = listing.get("data") if isinstance(listing, Mapping) else None
        return {
            entry["id"]: entry
            for entry in (data if isinstance(data, list) else ())
            if isinstance(entry, Mapping) and isinstance(entry.get("id"), str) and entry["id"].isprintable()
        }

    @contextmanager
    def open(self, path: str, body: Any = None, cancel: CancelFlag | None = None) -> Iterator[Answer]:
        """Ask, and read the answer while it comes. Leaving closes the connection, which stops the server.

        A GET without a body, a POST with one. Raises ServerUnreachable, ServerRefused, StreamBroken,
        UnknownModel and ContextOverflow; Cancelled.
        """
        data = None if body is None else writable(json.dumps(body, ensure_ascii=False)).encode()
        with self.send("GET" if body is None else "POST", path, data, cancel) as answer:
            if answer.status != 200:
                raise self._refusal(path, answer)
            yield answer

    @contextmanager
    def send(
        self,
        method: str,
        path: str,
        data: bytes | Iterable[bytes] | None = None,
        cancel: CancelFlag | None = None,
    ) -> Iterator[Answer]:
        """The same for any method and bytes, and with the answer whatever its status is.

        Pieces are sent as a chunked body. Raises ServerUnreachable, StreamBroken; Cancelled.
        """
        import httpx2

        from localagent.transport import Transport

        def look() -> None:
            if cancel is not None and cancel.is_set():
                raise Cancelled

        transport = Transport(look, proxy=proxy_for(self.url), secure=self.url.startswith("https:"))
        waits = httpx2.Timeout(self.silence, connect=_CONNECT)
        headers = _HEADERS | self.headers(data is not None)
        with (
            self._failures(transport),
            httpx2.Client(transport=transport, timeout=waits) as client,
            client.stream(method, f"{self.url}{path}", content=data, headers=headers) as response,
        ):
            yield Answer(self, response)

    @contextmanager
    def _failures(self, transport: Transport) -> Iterator[None]:
        """Turns what goes wrong on the way into errors that say what to do."""
        import httpcore2

        from localagent.transport import Unconnected, Untrusted

        try:
            yield
        except Untrusted as error:
            raise ServerUnreachable(
                f"{self.url} has a certificate that is not trusted ({_reason(error)}): name one that signed "
                "it in SSL_CERT_FILE, or correct the address"
            ) from error
        except (Unconnected, httpcore2.ProxyError) as error:
            raise ServerUnreachable(
                f"no server answers at {self.url} ({_reason(error)}): start it with `localagent serve`, or "
                "correct the address"
            ) from error
        except httpcore2.ReadTimeout as error:
            raise StreamBroken(
                f"{self.url} has said nothing for {self.silence:g} seconds: look at its log, or ask again"
            ) from error
        except httpcore2.RemoteProtocolError as error:
            if not transport.received:
                what = "closed the connection without an answer: its log says why; ask again"
            elif str(error).startswith("peer closed connection"):
                what = "broke the answer off in the midst: its log says why; ask again"
            else:
                what = f"does not answer as an HTTP server does ({_reason(error)}): correct the address"
            raise StreamBroken(f"{self.url} {what}") from error
        except (OSError, httpcore2.WriteTimeout) as error:
            raise StreamBroken(f"the connection to {self.url} broke ({_reason(error)}): ask again") from error

    def _refusal(self, path: str, answer: Answer) -> LocalAgentError:
        try:
            body = json.loads(answer.body())
        except (ValueError, RecursionError, StreamBroken):
            body = None
        return refusal(self.url, path, answer.status, body, answer.header, bool(self.key))

    def headers(self, body: bool) -> dict[str, str]:
        """What every request says. `body`: it has one, of JSON."""
        headers = {"Accept": "text/event-stream, application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        if body:
            headers["Content-Type"] = "application/json"
        return headers


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for `url` (HTTPS_PROXY, HTTP_PROXY, NO_PROXY), if it names one.

    Never for this machine.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in LOCAL or host.startswith("127."):
        return None
    from urllib.request import getproxies, proxy_bypass  # slow to load, and most servers are here

    proxy = "" if proxy_bypass(host) else getproxies().get(parts.scheme, "")
    return None if not proxy else proxy if "://" in proxy else f"http://{proxy}"


_HEADERS = {"User-Agent": "localagent", "Accept-Encoding": "identity", "Connection": "close"}


class Answer:
    """What a server answers, while it comes."""

    def __init__(self, server: Server, response: httpx2.Response) -> None:
        self.status = response.status_code
        self.streams = response.headers.get("content-type", "").split(";")[0].strip() == "text/event-stream"
        self._server = server
        self._response = response

    def header(self, name: str) -> str:
        """A header's value; "" if there is none."""
        return str(self._response.headers.get(name, ""))

    def json(self) -> Any:
        """The whole body. Raises StreamBroken for one that is no JSON."""
        try:
            return json.loads(self.body())
        except (ValueError, RecursionError):
            raise StreamBroken(
                f"{self._server.url} answers with something else than JSON: correct the address"
            ) from None

    def body(self) -> bytes:
        """The whole body. Raises StreamBroken for one that is too large."""
        body = bytearray()
        for piece in self._response.iter_raw():
            body += piece
            self._require(len(body))
        return bytes(body)

    def frames(self) -> Iterator[Any]:
        """The JSON of every server-sent event, up to "[DONE]" or the end; comments are skipped."""
        data: list[str] = []
        size = 0
        for line in self.lines():
            size += len(line)
            self._require(size)
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if not text:
                event, size = "\n".join(data).strip(), 0
                data.clear()
                if event == "[DONE]":
                    return
                if event:
                    yield self._parsed(event)
            elif text.startswith("data:"):
                data.append(text[5:])
        with suppress(ValueError, RecursionError):  # half an event at the end is no event
            if data:
                yield json.loads("\n".join(data))

    def lines(self) -> Iterator[bytes]:
        """The lines of the body, with their ends, as they come. Raises StreamBroken for too long a one."""
        rest = bytearray()
        for piece in self._response.iter_raw():
            begin = len(rest)
            rest += piece
            while (end := rest.find(b"\n", begin)) >= 0:
                self._require(end + 1)
                yield bytes(rest[: end + 1])
                del rest[: end + 1]
                begin = 0
            self._require(len(rest))
        if rest:
            yield bytes(rest)

    def _parsed(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise StreamBroken(
                f"{self._server.url} streams something else than JSON ({quoted(text)}): ask again"
            ) from None

    def _require(self, size: int) -> None:
        if size > _LONGEST:
            raise StreamBroken(
                f"{self._server.url} answers with more than {_LONGEST >> 20} MB at once: it is no such server"
            )


def _reason(error: Exception) -> str:
    reason = getattr(error, "verify_message", None) or getattr(error, "strerror", None) or str(error)
    return one_line(str(reason or type(error).__name__), 100).rstrip(".")
