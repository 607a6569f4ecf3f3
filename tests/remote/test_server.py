"""The connection to a server: through a proxy where the environment names one, and not waited for by who leaves."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from contextlib import contextmanager

import pytest

from localagent.errors import LocalAgentError, ServerUnreachable, StreamBroken, UnknownModel
from localagent.hosts.protocol import Cancelled
from localagent.remote import server as module
from localagent.remote.server import Server, proxy_for
from tests.remote.scripted import head, scripted, whole
from tests.toolbox.serving import CERTIFICATE
from tests.toolbox.serving import Server as Served


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_a_model_that_the_server_does_not_have_is_an_unknown_model():
    refusal = whole({"error": {"message": "no model x", "code": "model_not_found"}}, status=404)
    with scripted(refusal) as server, pytest.raises(UnknownModel) as error:
        Server.at(server.url).ask("/v1/chat/completions", {"model": "x"})
    assert str(error.value) == f"{server.url}: no model x"


def test_the_key_is_not_shown():
    server = Server.at("http://127.0.0.1:1", "secret")
    assert "secret" not in f"{server} {server!r}"
    assert server != Server.at("http://127.0.0.1:1")


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_proxy_is_asked_for_the_whole_address(monkeypatch, scheme):
    with scripted() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("http://", scheme))
        with pytest.raises(LocalAgentError):
            Server.at("http://models.example:8000/base").ask("/v1/other")
        assert proxy.asked[0].line == "GET http://models.example:8000/base/v1/other HTTP/1.1"
        assert proxy.asked[0].headers["host"] == "models.example:8000"


def test_a_proxy_makes_a_tunnel_for_what_is_secured(monkeypatch):
    with scripted() as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        with pytest.raises(LocalAgentError, match="no server answers at https"):
            Server.at("https://models.example").ask("/v1/models")
        assert proxy.asked[0].line.startswith("CONNECT models.example:443 HTTP/1.")


def test_this_machine_and_those_that_are_excepted_are_asked_directly(monkeypatch):
    with scripted() as proxy, scripted() as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert Server.at(server.url).ask("/v1/models")["object"] == "list"
        monkeypatch.setenv("no_proxy", "models.example")
        with pytest.raises(LocalAgentError, match="no server answers"):
            Server.at("http://models.example:1").ask("/v1/models")
        assert not proxy.asked


@pytest.mark.parametrize(
    ("url", "proxy", "through"),
    [
        ("http://models.example", None, None),
        ("http://models.example", "http://proxy.example", "http://proxy.example"),
        ("https://models.example:9", "http://user:word@proxy.example:3", "http://user:word@proxy.example:3"),
        ("https://models.example", "proxy.example:3", "http://proxy.example:3"),
        ("https://localhost", "proxy.example:3", None),
        ("http://[::1]:80", "proxy.example:3", None),
        ("http://127.9.9.9", "proxy.example:3", None),
    ],
)
def test_which_proxy_is_asked(monkeypatch, url, proxy, through):
    if proxy:
        monkeypatch.setenv(f"{url.partition(':')[0]}_proxy", proxy)
    assert proxy_for(url) == through


def test_what_every_request_says():
    accept = {"Accept": "text/event-stream, application/json"}
    with scripted(routes={"/x": [whole({})]}) as server:
        for key in (None, "secret"):
            at = Server.at(server.url, key)
            bearer = {"Authorization": f"Bearer {key}"} if key else {}
            assert at.headers(False) == accept | bearer
            assert at.headers(True) == accept | bearer | {"Content-Type": "application/json"}
            at.ask("/x")
            at.ask("/x", {"lone": "\ud800", "euro": "\u20ac"})
    get, post = server.asked[2:]
    assert (get.line, post.line) == ("GET /x HTTP/1.1", "POST /x HTTP/1.1")
    assert {"content-type", "content-length"} & {*get.headers} == set()
    assert post.headers["connection"] == get.headers["connection"] == "close"
    assert post.headers["authorization"] == get.headers["authorization"] == "Bearer secret"
    assert post.headers["content-length"] == str(len('{"lone": "\\ud800", "euro": "\u20ac"}'.encode()))
    assert post.body == {"lone": "\ud800", "euro": "\u20ac"}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", []),
        (b'data: {"a": 1}\n\ndata: 2\n\n', [{"a": 1}, 2]),
        (b'data:{"a":\r\ndata:  1}\r\n\r\n', [{"a": 1}]),
        (b": a comment\nevent: x\nid: 7\ndata: 1\nretry: 3\n\n\n\ndata:\n\ndata: 2\n\n", [1, 2]),
        (b"data: 1\n\ndata:  [DONE] \n\ndata: 2\n\n", [1]),
        (b"data: 1\n\ndata: 2\n", [1, 2]),
        (b"data: 1\n\ndata: 2", [1, 2]),
        (b'data: 1\n\ndata: {"a"', [1]),
        (b'data: "\xff"\n\n', ["\ufffd"]),
        (b"date: 1\n\ndata 2\n\n", []),
    ],
)
def test_the_events_of_a_stream(body, found):
    with scripted(routes={"/x": [[head(), body]]}) as server, Server.at(server.url).open("/x") as answer:
        assert answer.streams
        assert list(answer.frames()) == found


def test_an_event_that_is_no_json_is_shown():
    body = b"data: 1\n\ndata:   what's this? \n\n"
    with scripted(routes={"/x": [[head(), body]]}) as server, Server.at(server.url).open("/x") as answer:
        frames = answer.frames()
        assert next(frames) == 1
        with pytest.raises(StreamBroken) as caught:
            next(frames)
    assert str(caught.value) == (f"{server.url} streams something else than JSON (what's this?): ask again")


@pytest.mark.parametrize(
    ("kind", "body", "fits"),
    [
        ("body", b"7" * 200, True),
        ("body", b"7" * 201, False),
        ("lines", b"7" * 199 + b"\n" + b"8" * 200, True),
        ("lines", b"7" * 200 + b"\n", False),
        ("frames", b"data: 1\n\n" * 100, True),  # each by itself
        ("frames", b"data:" + b" " * 92 + b"1\n" + b"data:" + b" " * 94 + b"\n\n", True),
        ("frames", b"data:" + b" " * 92 + b"1\n" + b"data:" + b" " * 95 + b"\n\n", False),
    ],
)
def test_a_server_that_never_ends_does_not_fill_the_memory(monkeypatch, kind, body, fits):
    monkeypatch.setattr(module, "_LONGEST", 200)
    with scripted(routes={"/x": [[head(), body]]}) as server, Server.at(server.url).open("/x") as answer:
        read = getattr(answer, kind)
        if fits:
            assert b"".join(read()) == body if kind == "lines" else read()
            return
        with pytest.raises(StreamBroken, match="answers with more than 0 MB at once: it is no such server"):
            list(read())


def test_how_much_is_too_much_is_said(monkeypatch):
    monkeypatch.setattr(module, "_LONGEST", 3 << 20)
    routes = {"/x": [[head(), bytes(4 << 20)]]}
    with scripted(routes=routes) as server, pytest.raises(StreamBroken) as caught:
        Server.at(server.url).ask("/x")
    assert str(caught.value) == f"{server.url} answers with more than 3 MB at once: it is no such server"


def test_an_answer_has_headers_and_a_kind():
    for pieces, streams, wait in (
        (whole({}, more="retry-after: 7\r\n"), False, "7"),
        ([head(), b""], True, ""),
    ):
        with scripted(routes={"/x": [pieces]}) as server, Server.at(server.url).open("/x") as answer:
            assert (answer.status, answer.streams, answer.header("Retry-After")) == (200, streams, wait)


@pytest.mark.parametrize("host", ["a..b", "a" * 70 + ".example"])
def test_a_name_that_no_host_can_have_is_no_server(host):
    with pytest.raises(LocalAgentError, match="no server answers"):
        Server.at(f"http://{host}:1").ask("/v1/models")


@contextmanager
def deaf():
    """A server that takes connections, and never reads what comes."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


class Soon:
    """A flag that is set when it has been looked at so often."""

    def __init__(self, looks):
        self.looks = looks

    def is_set(self):
        self.looks -= 1
        return self.looks < 0


def test_a_turn_that_is_cancelled_does_not_wait_for_a_connection(monkeypatch):
    begun, free = threading.Event(), threading.Event()
    ours, theirs = socket.socketpair()

    def connect(*_):
        begun.set()
        assert free.wait(20)
        return ours

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(Cancelled), Server.at("http://127.0.0.1:1").open("/x", {}, Soon(2)):
        pass
    assert begun.is_set()
    free.set()  # what it got in the end is closed
    theirs.settimeout(10)
    assert theirs.recv(1) == b""
    theirs.close()


def test_what_fails_while_connecting_is_told_with_a_flag_as_without():
    for cancel in (None, threading.Event()):
        with (
            pytest.raises(LocalAgentError, match=r"no server answers at http://127\.0\.0\.1:1 "),
            Server.at("http://127.0.0.1:1").open("/x", {}, cancel),
        ):
            pass


def test_a_turn_that_is_cancelled_does_not_wait_for_what_it_sends():
    body = {"prompt": "x" * (1 << 24)}
    with deaf() as url, pytest.raises(Cancelled), Server.at(url).open("/x", body, Soon(50)):
        pass


def test_a_turn_that_is_cancelled_does_not_wait_for_a_handshake():
    with (
        deaf() as url,
        pytest.raises(Cancelled),
        Server.at(url.replace("http://", "https://")).open("/x", {}, Soon(20)),
    ):
        pass


def test_a_certificate_that_is_not_trusted_is_no_server_that_is_missing(tmp_path, monkeypatch):
    (tmp_path / "certificate.pem").write_text(CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem")
    with Served(context) as served:
        served.answers["/v1/models"] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
        server = Server.at(served.url.replace("http://127.0.0.1", "https://localhost"))
        with pytest.raises(ServerUnreachable, match=r"has a certificate that is not trusted \(self.signed"):
            server.models()
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        assert server.models() == {}


def test_a_server_that_takes_nothing_is_given_up():
    body = {"prompt": "x" * (1 << 24)}
    with (
        deaf() as url,
        pytest.raises(StreamBroken, match=r"the connection to .* broke"),
        Server.at(url, silence=0.2).open("/x", body, threading.Event()),
    ):
        pass


def test_a_long_request_arrives_as_it_is():
    body = {"prompt": "\u20ac\U0001f600" * 300_000}
    with scripted(routes={"/x": [whole({"ok": True})]}) as server:
        with Server.at(server.url).open("/x", body, threading.Event()) as answer:
            assert answer.json() == {"ok": True}
        assert json.dumps(server.asked[0].body) == json.dumps(body)
