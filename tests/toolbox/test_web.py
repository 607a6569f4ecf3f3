"""HTTP GET: what comes of it, and servers that do what they should not."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import ssl
import threading
import time
import tracemalloc
import zlib
from collections.abc import Iterator

import pytest

from localagent.errors import ToolError
from localagent.messages import ImagePart
from localagent.toolbox.web import make_http_get
from tests.toolbox.calling import call
from tests.toolbox.serving import CERTIFICATE, PNG, Server, brief, get, refused, small, text_of


def quick(tool, url: str) -> str:
    begin = time.monotonic()
    try:
        return refused(tool, url)
    finally:
        assert time.monotonic() - begin < 20, "it waits for the server"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


def test_endless_bodies_are_cut(server):
    text = text_of(server.drip("/x", HEAD + b"\r\n", b"x" * 8192), small)
    assert text.startswith("x" * 2000) and text.endswith(
        "(cut after 50,000 bytes; the first 2,000 of 50,000 characters)"
    )
    text = text_of(server.drip("/c", HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"4\r\nabcd\r\n"), small)
    assert text.endswith("(cut after 50,000 bytes; the first 2,000 of 50,000 characters)")


def test_slow_servers(server):
    assert "within 0.5 seconds" in quick(brief, server.drip("/body", HEAD + b"\r\n", b"x", 0.1))
    assert "within 0.5 seconds" in quick(brief, server.drip("/head", b"HTTP/1.1 200 OK\r\nX: ", b"x", 0.1))
    assert "within 0.5 seconds" in quick(brief, server.drip("/more", HEAD, b"X: y\r\n", 0.1))
    assert "within 0.5 seconds" in quick(brief, server.drip("/status", b"", b"H", 0.1))
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    assert "within 0.5 seconds" in quick(brief, server.drip("/chunk", chunked, b"0", 0.1))
    assert "within 0.5 seconds" in quick(
        brief, server.drip("/continue", b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.1)
    )
    server.answers["/silent"] = lambda connection: server.stop.wait(60)
    idle = make_http_get(allow_private=True, idle_seconds=0.3)
    assert "nothing came for 0.3 seconds" in quick(idle, server.url + "/silent")


def test_headers_without_end(server):
    assert "HTTP" in quick(get, server.drip("/many", HEAD, b"X: y\r\n"))
    assert "HTTP" in quick(get, server.drip("/long", HEAD + b"X: ", b"x" * 8192))


def test_a_cancelled_call_ends(server):
    cancel = threading.Event()

    def write(connection: socket.socket) -> None:
        cancel.set()
        server.stop.wait(60)

    server.answers["/x"] = write
    with pytest.raises(ToolError, match="cancelled"):
        call(get, cancel, url=server.url + "/x")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"\0" * 100,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    ],
)
def test_answers_that_are_no_http(server, answer):
    server.answers["/x"] = answer
    try:
        assert "ended before" in text_of(server.url + "/x")
    except ToolError as error:
        assert ("HTTP" in str(error) or not answer) and "\n" not in str(error)
        assert ("ended before" in str(error)) == (not answer)


def test_bodies_that_end_early(server):
    server.answers["/x"] = HEAD + b"Content-Length: 100\r\n\r\nhalf of"
    assert text_of(server.url + "/x") == "half of\n(the connection ended before the answer did)"
    server.answers["/c"] = HEAD + b"Transfer-Encoding: chunked\r\n\r\n7\r\nhalf of\r\n"
    assert text_of(server.url + "/c") == "half of\n(the connection ended before the answer did)"
    for length in ("-1", "abc", "9" * 5000):
        server.answers["/l"] = HEAD + f"Content-Length: {length}\r\n\r\nall".encode()
        with contextlib.suppress(ToolError):
            assert text_of(server.url + "/l").startswith("all")


def test_nobody_listens(server):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "refused" in refused(get, f"http://127.0.0.1:{port}/").lower()


@pytest.fixture
def secure(tmp_path) -> Iterator[Server]:
    """A server with TLS, whose certificate is for localhost and vouched for by itself alone."""
    (tmp_path / "certificate.pem").write_text(CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem")
    with Server(context) as server:
        yield server


def test_tls(secure, monkeypatch, tmp_path):
    url = secure.answer("/x", b"hello").replace("http://127.0.0.1", "https://localhost")
    assert "self-signed" in refused(get, url).replace(" ", "-")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    assert text_of(url) == "hello"
    assert "not valid for '127.0.0.1'" in refused(get, url.replace("localhost", "127.0.0.1"))


def test_tls_with_a_server_that_speaks_none(server):
    assert "127.0.0.1: " in refused(get, server.url.replace("http:", "https:"))


def test_a_tls_handshake_that_hangs(server):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "timed out" in quick(brief, f"https://127.0.0.1:{silent.getsockname()[1]}/")


def test_the_request(server):
    text_of(server.answer("/a?b=c", b"hello") + "#fragment")
    path, headers = server.seen[0]
    assert path == "/a?b=c"
    assert headers["Accept-Encoding"] == "identity"
    assert not {"Cookie", "Authorization", "Referer"} & set(headers)


def test_errors_say_what_the_server_says(server):
    assert refused(get, server.url + "/no").endswith("/no answered 404 Not Found: nothing here")
    server.answers["/x"] = b"HTTP/1.1 500 \x1b[31mBad\r\nContent-Type: image/png\r\n\r\n" + PNG
    assert refused(get, server.url + "/x").endswith("answered 500 [31mBad")
    server.answers["/y"] = (
        b"HTTP/1.1 503 Busy\r\nContent-Type: text/html\r\n\r\n<p>come <b>back</b><script>x</script>"
    )
    assert refused(get, server.url + "/y").endswith("answered 503 Busy: come back")
    server.answers["/z"] = b"HTTP/1.1 400 No\r\nContent-Type: text/plain\r\n\r\n\x1b[2J\0bad\x07"
    assert "answered 400 No: [2J bad" in refused(get, server.url + "/z")
    server.answers["/304"] = b"HTTP/1.1 304 Not Modified\r\n\r\n"
    assert "304" in refused(get, server.url + "/304")


def test_json_as_it_is(server):
    body = json.dumps({"a": [1, "<b>ü</b>"]}, ensure_ascii=False)
    for media_type in ("application/json", "application/problem+json; charset=utf-8"):
        assert text_of(server.answer("/x", body.encode(), media_type)) == body


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("text/plain", "grüße".encode(), "grüße"),
        ("text/plain; charset=latin-1", "grüße".encode("latin-1"), "grüße"),
        ('text/plain; charset="windows-1252"', "“grüße”".encode("cp1252"), "“grüße”"),
        ("text/plain; CHARSET=Shift_JIS", "日本".encode("shift_jis"), "日本"),
        ("text/plain; charset=utf-16", "grüße".encode("utf-16"), "grüße"),
        ("text/plain; charset=utf-8", "grüße".encode("latin-1"), "gr��e"),
        ("text/plain; charset=nonsense", "grüße".encode(), "grüße"),
        ("text/plain; charset=punycode", b"abc", "abc"),
        ("text/plain; charset=unicode_escape", b"\\x41", "\\x41"),
        ("text/plain; charset=zip", b"abc", "abc"),
        ("text/plain; charset=cp999", b"abc", "abc"),
        ("text/plain; charset=../../x", b"abc", "abc"),
        ("text/plain; charset=", b"abc", "abc"),
        ("text/plain", b"\xef\xbb\xbfabc", "abc"),
        ("text/plain", b"", "(the answer is empty)"),
        (None, b"plain", "plain"),
        (None, b"<!DOCTYPE html><p>page", "page"),
        ("application/xml", b"<a>b</a>", "<a>b</a>"),
        ("image/svg+xml", b"<svg/>", "<svg/>"),
    ],
)
def test_texts(server, content_type, body, expected):
    assert text_of(server.answer("/x", body, content_type)) == expected


def test_what_is_packed_is_not_unpacked_beyond_the_limit(server):
    bomb = gzip.compress(b" " * 50_000_000)
    url = server.answer("/bomb", bomb, Content_Encoding="gzip")
    text_of(server.answer("/warm", b"x", Content_Encoding="identity"), small)
    tracemalloc.start()
    try:
        text = text_of(url, small)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert text.endswith("(cut after 50,000 bytes; the first 2,000 of 50,000 characters)")
    assert peak < 5_000_000, "of the 50 MB that it would be"


def test_images(server):
    output = call(get, url=server.answer("/x", PNG, "application/octet-stream"))
    text, image = output.content
    assert text.text == server.url + "/x"
    assert isinstance(image, ImagePart) and (image.data, image.media_type) == (PNG, "image/png")
    huge = server.answer("/huge", PNG + bytes(60_000), "image/png")
    assert "the image is not whole: cut after 50,000 bytes" in refused(small, huge)


@pytest.mark.parametrize(
    ("content_type", "body", "words"),
    [
        ("application/octet-stream", b"\0\1", "application/octet-stream"),
        ("application/zip", b"PK\3\4", "application/zip"),
        ("application/pdf", b"%PDF-1.4", "application/pdf"),
        ("text/plain", b"%PDF-1.4", "application/pdf"),
        ("image/png", b"no image", "image/png"),
        ("video/mp4", b"x", "video/mp4"),
        (None, b"\0\1\2", "binary data"),
        ("text/plain", b"MZ\0\1\2", "text/plain"),
        ("text/html", b"MZ\0\1\2", "text/html"),
        ("\x1b[2Jx/y", b"x", "binary data"),
        ("x" * 5000, b"x", "cannot be shown"),
    ],
)
def test_what_a_model_cannot_read_is_refused_by_name(server, content_type, body, words):
    assert words in refused(get, server.answer("/x", body, content_type))


def test_packed_although_not_asked(server):
    body = b"hello " * 1000
    for encoding, packed in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
        assert text_of(server.answer("/x", packed, Content_Encoding=encoding)) == body.decode()
    assert "cannot be decompressed" in refused(get, server.answer("/x", body, Content_Encoding="gzip"))
    assert "compressed as 'br'" in refused(get, server.answer("/x", body, Content_Encoding="br"))
    half = gzip.compress(bytes(range(97, 123)) * 99)[:-20]
    assert text_of(server.answer("/x", half, Content_Encoding="gzip")).endswith(
        "(the connection ended before the answer did)"
    )
