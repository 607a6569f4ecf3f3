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
from dataclasses import replace

import pytest

from localagent.errors import ToolError
from localagent.messages import ImagePart
from localagent.toolbox import web
from localagent.toolbox.fetching import Fetched, Limits
from localagent.toolbox.web import make_http_get, readable
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
    with socket.socket() as deaf:  # which keeps the port from others
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
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
        assert "within 0.5 seconds" in quick(brief, f"https://127.0.0.1:{silent.getsockname()[1]}/")


def test_the_request(server):
    text_of(f"  {server.answer('/a?b=c', b'hello')}#fragment\n")
    assert server.seen == [
        (
            "/a?b=c",
            {
                "Host": f"127.0.0.1:{server.port}",
                "User-Agent": "localagent",
                "Accept": "text/html, text/*, application/json, image/*;q=0.8, */*;q=0.1",
                "Accept-Encoding": "identity",
                "Connection": "close",
            },
        )
    ]


def test_the_limits_of_the_tool_that_ships_and_of_ones_own(monkeypatch):
    def fetch(url, limits, cancel):
        asked.append(limits)
        return Fetched(url, 200, "OK", "text/plain", b"hello")

    asked: list = []
    monkeypatch.setattr(web, "fetch", fetch)
    own = make_http_get(
        allow_private=True, seconds=1, connect_seconds=2, idle_seconds=3, max_bytes=4, max_redirects=6
    )
    for tool in (web.http_get, own, make_http_get(max_bytes=10**12)):
        call(tool, url="http://example.com/")
    shipped = Limits(
        allow_private=False, connect_seconds=10.0, idle_seconds=15.0, seconds=30.0, max_bytes=2_000_000,
        max_redirects=5,
    )  # fmt: skip
    assert asked == [
        shipped,
        Limits(
            allow_private=True, seconds=1, connect_seconds=2, idle_seconds=3, max_bytes=4, max_redirects=6
        ),
        replace(shipped, max_bytes=web.MAX_BYTES),
    ]
    assert [(tool.timeout, tool.kind, tool.side_effects) for tool in (web.http_get, own)] == [
        (35, "fetch", True),
        (6, "fetch", True),
    ]
    text = "x" * 20_001
    monkeypatch.setattr(web, "fetch", lambda url, *_: Fetched(url, 200, "OK", "text/plain", text.encode()))
    shown = call(web.http_get, url="http://h/").content
    assert shown == f"http://h/\n\n{text[:20_000]}\n(the first 20,000 of 20,001 characters)"
    assert len(call(make_http_get(max_text=20_001), url="http://h/").content) == len("http://h/\n\n") + 20_001


@pytest.mark.parametrize("status", [200, 299, 199, 300, 404])
def test_which_answers_are_shown(status):
    answer = Fetched("http://h/", status, "Why", "text/plain", b"hello")
    if 200 <= status < 300:
        assert readable(answer, 10) == "http://h/\n\nhello"
        return
    with pytest.raises(ToolError, match=f"^http://h/ answered {status} Why: hello$"):
        readable(answer, 10)


def test_how_much_of_an_error_is_told():
    for url, reason, body, length in (
        ("http://h/", "Why", b"", 26),
        ("http://h/" + "u" * 1000, "r" * 1000, b"", 200 + len(" answered 404 ") + 100),
        ("http://h/", "Why", b"b" * 3000, 800),
    ):
        with pytest.raises(ToolError) as refused:
            readable(Fetched(url, 404, reason, "text/plain", body), 10)
        assert len(str(refused.value)) == length
        assert not str(refused.value).endswith(":")


@pytest.mark.parametrize(
    ("content_type", "charset"),
    [
        ("text/plain", "utf-8-sig"),
        ("text/plain; charset=utf8", "utf-8-sig"),
        ("text/plain; charset=UTF-16LE", "utf-16le"),
        ("text/plain;charset = 'iso-8859-15'", "iso-8859-15"),
        ("text/plain; charset=windows-1251", "cp1251"),
        ("text/plain; charset=macintosh", "mac-roman"),
        ("text/plain; charset=koi8-r", "koi8-r"),
        ("text/plain; charset=cp999", "utf-8-sig"),
        ("text/plain; charset=" + "a" * 50, "utf-8-sig"),
        ("text/plain; xcharset=koi8-r", "utf-8-sig"),
    ],
)
def test_which_charset_a_header_names(content_type, charset):
    assert web.charset_of(content_type) == charset


@pytest.mark.parametrize(("more", "cut"), [(0, False), (1, True)])
@pytest.mark.parametrize("packed", [False, True])
def test_a_body_of_just_the_size_that_is_read(server, more, cut, packed):
    body = b"x" * (50_000 + more)
    exact = make_http_get(allow_private=True, max_bytes=50_000, max_text=60_000)
    headers = {"Content_Encoding": "gzip"} if packed else {}
    text = text_of(server.answer("/x", gzip.compress(body) if packed else body, **headers), exact)
    assert text == "x" * 50_000 + ("\n(cut after 50,000 bytes)" if cut else "")


@pytest.mark.parametrize(("bad", "reached"), [(3, True), (4, False)])
def test_how_many_addresses_of_a_host_are_tried(server, monkeypatch, bad, reached):
    server.answer("/x", b"hello")
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        ports = [deaf.getsockname()[1]] * bad + [server.port]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]
        monkeypatch.setattr("localagent.toolbox.addresses.socket.getaddrinfo", lambda *_, **__: found)
        if reached:
            assert text_of("http://example.com/x") == "hello"
        else:
            assert "refused" in refused(get, "http://example.com/x").lower()
    assert len(server.seen) == reached


def test_the_most_headers(server):
    for more, broken in ((99, False), (100, True)):
        lines = b"".join(b"X-%d: y\r\n" % number for number in range(more))
        server.answers["/x"] = HEAD + lines + b"\r\nhello"
        if broken:
            assert refused(get, server.url + "/x") == "127.0.0.1: the answer is broken HTTP"
        else:
            assert text_of(server.url + "/x") == "hello"


def test_of_headers_that_are_said_twice_the_first_counts(server):
    server.answers["/x"] = HEAD + b"Content-Type: image/png\r\n\r\nhello"
    assert text_of(server.url + "/x") == "hello"


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
