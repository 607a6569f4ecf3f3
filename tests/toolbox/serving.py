"""An HTTP server on loopback that answers whatever a test wants, and tools that may ask it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from localagent.errors import ToolError
from localagent.toolbox.web import make_http_get
from tests.toolbox.calling import call

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
# Made for these tests: for localhost, signed by itself, good until 2126.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgFQqkRbGClsrACqVa
rKbtWY3xPw2rGLDitPY6Xj1WfZihRANCAAR4NRXIQw+rAKXlY6cuny6q6zXz4ZT8
StiEEkEw8TvdxlUMEsGskhoNRah0fvavDCTs98clV7dbMaIEP4xzGgsi
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBlTCCATugAwIBAgIUPJiwBcHquLA32AuJTE4rOJxxZZYwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTIwMDYyN1oYDzIxMjYxMDI4
MjAwNjI3WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAR4NRXIQw+rAKXlY6cuny6q6zXz4ZT8StiEEkEw8TvdxlUMEsGskhoN
Rah0fvavDCTs98clV7dbMaIEP4xzGgsio2kwZzAdBgNVHQ4EFgQU1XpBdV4fspH6
Nm1bnv4UxF/HLkcwHwYDVR0jBBgwFoAU1XpBdV4fspH6Nm1bnv4UxF/HLkcwDwYD
VR0TAQH/BAUwAwEB/zAUBgNVHREEDTALgglsb2NhbGhvc3QwCgYIKoZIzj0EAwID
SAAwRQIgQT6Nb8XVBUH9Ah307kgdh/nf+15a5nvRoGP4V0LeqbQCIQDKEjRr8Z3i
PKNxm9E+kKBnrcluzyhxN1WPVUvM+KChDQ==
-----END CERTIFICATE-----
"""


class Server:
    """Answers by path, with raw bytes or with what a function writes."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.answers: dict[str, bytes | Callable[[socket.socket], None]] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.stop = threading.Event()

    def __enter__(self) -> Server:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.seen.append((self.path, dict(self.headers)))
                answer = server.answers.get(self.path, b"HTTP/1.1 404 Not Found\r\n\r\nnothing here")
                self.close_connection = True
                with contextlib.suppress(OSError):
                    if callable(answer):
                        answer(self.connection)
                    else:
                        self.connection.sendall(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # clients hang up
        if self._tls:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, body: bytes, content_type: str | None = "text/plain", **headers: str) -> str:
        lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}"]
        lines += [f"Content-Type: {content_type}"] if content_type else []
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.answers[path] = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
        return self.url + path

    def redirect(self, path: str, location: str, status: int = 302) -> str:
        head = f"HTTP/1.1 {status} Elsewhere\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
        self.answers[path] = head.encode()
        return self.url + path

    def drip(self, path: str, head: bytes, piece: bytes, pause: float = 0.0) -> str:
        """`head`, and then `piece` without end."""

        def write(connection: socket.socket) -> None:
            connection.sendall(head)
            while not self.stop.is_set():
                connection.sendall(piece)
                if pause:
                    self.stop.wait(pause)

        self.answers[path] = write
        return self.url + path


get = make_http_get(allow_private=True)
small = make_http_get(allow_private=True, max_bytes=50_000, max_text=2_000)
brief = make_http_get(allow_private=True, seconds=0.5)


def text_of(url: str, tool=get) -> str:
    """What the model is shown, below the line with the URL."""
    output = call(tool, url=url)
    head, blank, text = output.content.partition("\n\n")
    assert head == output.metadata["url"] and blank
    return text


def refused(tool, url: str) -> str:
    with pytest.raises(ToolError) as error:
        call(tool, url=url)
    message = str(error.value)
    assert "\n" not in message and message.isprintable() and len(message) < 1000
    return message
