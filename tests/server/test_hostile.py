"""What hostile requests get, over a real socket: a table of their heads, bodies and manners.

Each row is refused with its status and in the API's own shape, or is shown to do no harm; and after each of
them the server still answers.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest

from localagent.errors import UsageError
from localagent.server.access import Access, read_keys
from localagent.server.app import all_wires
from localagent.server.bounds import Bounds
from localagent.server.exchange import BadRequest
from tests.agent.replaying import scripted
from tests.server.serving import PATH, Running, each_parser, read, serving

SMALL = Bounds(body=10_000, header_time=1, body_time=1, drain_time=1, header_bytes=4096)
GOOD = {"prompt": "Hello."}


pytestmark = pytest.mark.usefixtures(each_parser.__name__)


@pytest.fixture(scope="module")
def server(each_parser: None) -> Iterator[Running]:
    with serving(scripted("Good day."), bounds=SMALL) as running:
        yield running


@pytest.fixture(scope="module")
def locked(each_parser: None) -> Iterator[Running]:
    access = Access(keys=("first-key", "second-key"))
    with serving(scripted("Good day."), bounds=SMALL, access=access) as running:
        yield running


@pytest.fixture(scope="module")
def ollama(each_parser: None) -> Iterator[Running]:
    with serving(scripted("Good day."), bounds=SMALL, wires=all_wires()) as running:
        yield running


@pytest.fixture(autouse=True)
def still_answers(request: pytest.FixtureRequest) -> Iterator[None]:
    """After the hostile request comes an ordinary one."""
    yield
    if "server" in request.fixturenames:
        answer = request.getfixturevalue("server").ask(GOOD)
        assert (answer.status, answer.json["text"]) == (200, "Good day.")


def code(answer) -> str | None:
    return answer.json["plain"]["code"]


# -- the head of a request -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200),
        ("[::1]evil.example", 403),
        ("[::1]:evil.example", 403),
        ("[::1]:80", 200),
        ("localhost", 200),
        ("LOCALHOST:{port}", 200),
        ("localhost.:{port}", 200),
        ("app.localhost:1", 200),
        ("127.8.8.8", 200),
        ("[::1]:{port}", 200),
        ("host.docker.internal:{port}", 200),
        ("host.containers.internal:{port}", 200),
        ("host.docker.internal.evil.example", 403),
        ("evil.example", 403),
        ("evil.example:{port}", 403),
        ("localhost.evil.example", 403),
        ("evillocalhost", 403),
        ("127.0.0.1.evil.example", 403),
        ("192.168.0.7", 403),
        ("0.0.0.0", 403),
        ("2130706433", 403),
        ("127.1", 403),
        ("[::ffff:127.0.0.1", 403),
        ("localhost@evil.example", 403),
        ("", 403),
    ],
)
def test_only_our_own_host_names_are_answered(server, host, status):
    """A page of evil.example whose name is made to mean 127.0.0.1 sends its own name."""
    answer = server.ask(GOOD, host=host.format(port=server.port))
    assert answer.status == status
    if status == 403:
        assert code(answer) == "host_not_allowed"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:{port}", 200),
        ("https://evil.example", 403),
        ("http://127.0.0.1:1", 403),
        ("http://localhost:{port}", 403),  # not the name in this request's Host
        ("null", 403),
        ("NULL", 403),
        ("file://", 403),
        ("127.0.0.1:{port}", 403),
        ("", 403),
    ],
)
def test_pages_of_other_sites_are_refused(server, origin, status):
    answer = server.ask(GOOD, origin=origin.format(port=server.port))
    assert answer.status == status
    assert "access-control" not in answer.head
    if status == 403:
        assert code(answer) == "origin_not_allowed"


def test_listed_origins_are_told_that_they_may_ask():
    access = Access(origins=("http://localhost:3000",))
    with serving(scripted("Yes."), access=access) as server:
        asked = {"access_control_request_method": "POST", "access_control_request_headers": "x-api-key"}
        before = server.ask(method="OPTIONS", origin="http://localhost:3000", **asked)
        assert before.status == 204
        assert "access-control-allow-origin: http://localhost:3000" in before.head
        assert "access-control-allow-headers: x-api-key" in before.head
        answer = server.ask(GOOD, origin="http://localhost:3000")
        assert answer.status == 200
        assert "access-control-allow-origin: http://localhost:3000" in answer.head
        refused = server.ask(b"", origin="http://localhost:3000", content_type="text/plain")
        assert refused.status == 415
        assert "access-control-allow-origin: http://localhost:3000" in refused.head
        assert server.ask(GOOD, origin="http://localhost:3001").status == 403
        assert server.ask(GOOD, origin="http://LOCALHOST:3000").status == 403
        assert server.ask(method="OPTIONS", origin="https://evil.example", **asked).status == 403
    with serving(scripted("Yes."), access=Access(origins=("*",))) as server:
        assert server.ask(GOOD, origin="https://any.example").status == 200
        assert server.ask(GOOD, origin="null").status == 403


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("text/json", 415),
        ("application/json, text/plain", 415),
        ("", 415),
        (None, 415),
    ],
)
def test_a_body_must_be_declared_as_json(server, kind, status):
    """The other types can be sent by any page without asking first."""
    assert server.ask(GOOD, content_type=kind).status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_type": None}, 200),
        ({"content_type": "text/plain"}, 200),
        ({"content_type": "application/x-www-form-urlencoded"}, 200),
        ({"content_type": "text/plain", "origin": "https://evil.example"}, 403),
        ({"content_type": "text/plain", "origin": "null"}, 403),
        ({"content_type": None, "sec_fetch_site": "cross-site"}, 415),
        ({"content_type": "multipart/form-data; boundary=x", "sec_fetch_site": "same-site"}, 415),
    ],
)
def test_a_page_elsewhere_reaches_ollamas_api_no_more_than_the_others(ollama, headers, status):
    """Clients of that API do not say that they send JSON; what a browser adds tells a page from them."""
    answer = ollama.ask({"model": "model-1"}, path="/api/show", **headers)
    assert answer.status == status


@pytest.mark.parametrize("coding", ["gzip", "zstd", "identity, gzip"])
def test_a_body_is_not_unpacked(server, coding):
    """A kilobyte could unpack to a gigabyte."""
    answer = server.ask(b"\x1f\x8b" + b"a" * 50, content_encoding=coding)
    assert answer.status == 415
    assert "as it is" in answer.json["plain"]["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer first-key"}, 200),
        ({"authorization": "bearer second-key"}, 200),
        ({"x_api_key": "second-key"}, 200),
        ({}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "Bearer first-ke"}, 401),
        ({"authorization": "Bearer first-key-and-more"}, 401),
        ({"authorization": "Bearer first-key,second-key"}, 401),
        ({"authorization": "Basic first-key"}, 401),
        ({"authorization": "first-key"}, 401),
        ({"authorization": "Bearer \xff\xfe"}, 401),
        ({"x_api_key": ""}, 401),
        ({"x_api_key": "wrong", "authorization": "Bearer first-key"}, 200),
        ({"x_api_key": "first-key", "authorization": "Bearer wrong"}, 200),
        ({"x_api_key": "", "authorization": "Bearer second-key"}, 200),
        ({"x_api_key": "wrong", "authorization": "Bearer wrong"}, 401),
        ({"cookie": "key=first-key"}, 401),
    ],
)
def test_a_key_is_needed_where_there_are_keys(locked, headers, status):
    answer = locked.ask(GOOD, **headers)
    assert answer.status == status
    if status == 401:
        assert code(answer) == "invalid_api_key"
        assert b"first-key" not in answer.data


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/health", 200),
        ("/health?x=1", 200),
        ("/", 401),
        ("/v1/models", 401),
        ("/openapi.json", 401),
        ("/nothing", 401),
        ("/health/", 401),
        ("//health", 401),
        ("/health/../v1/models", 401),
        ("/health%2f..%2fv1/models", 401),
        ("/HEALTH", 401),
        ("/health%00", 401),
        ("/health;a=b", 401),
        ("http://127.0.0.1/health", 200),
        ("http://127.0.0.1/v1/models", 401),
        ("http://127.0.0.1//health", 401),
        ("http://evil.example/health", 403),
    ],
)
def test_only_health_is_open(locked, path, status):
    assert locked.ask(path=path, method="GET").status == status


def test_health_says_nothing_of_the_models_without_a_key(locked):
    assert locked.ask(path="/health", method="GET").json == {"status": "ok"}


def test_all_keys_are_compared_to_the_end(monkeypatch):
    """What the first one says must not show in the time, nor how much of a key was right."""
    import hmac

    compared = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return left == right

    monkeypatch.setattr(hmac, "compare_digest", compare)
    from localagent.server.access import Head

    access = Access(keys=("a", "bb", "ccc"))
    for given in ("a", "ccc", "nothing of the kind"):
        head = Head("GET", "/v1/models", [(b"host", b"localhost"), (b"x-api-key", given.encode())])
        try:
            access.admit(head)
        except BadRequest:
            assert given == "nothing of the kind"
    assert compared == [(32, 32)] * 18  # also with the other header, which nobody sent


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/v1/%2e%2e/%2e%2e/etc/passwd",
        "/v1/echo/../echo",
        "/v1/echo%00",
        "/v1/echo%0d%0aset-cookie:x",
        "/v1/models/../../etc/passwd",
        "/http://127.0.0.1/v1/echo",
        "http%3A//127.0.0.1/v1/echo",
        "ftp://127.0.0.1/v1/echo",
        "/V1/ECHO",
        "*",
    ],
)
def test_path_tricks_lead_nowhere(server, path):
    for method, body in (("GET", None), ("POST", GOOD)):
        answer = server.ask(body, path=path, method=method)
        assert answer.status in (400, 404, 405)
        assert "location:" not in answer.head
        assert "set-cookie" not in answer.head
        assert b"root:" not in answer.data
        assert answer.status == 400 or "plain" in answer.json


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://127.0.0.1:{port}/v1/echo", 200),
        ("HTTP://localhost/v1/echo?beta=true", 200),
        ("https://[::1]:{port}/v1/echo", 200),
        ("http://127.0.0.1/v1/e%63ho", 200),
        ("http://127.0.0.1", 405),
        ("http://evil.example/v1/echo", 403),
        ("http://evil.example:{port}/v1/echo", 403),
        ("http://127.0.0.1@evil.example/v1/echo", 403),
        ("http://evil.example@127.0.0.1/v1/echo", 403),
        ("http://127.0.0.1.evil.example/v1/echo", 403),
        ("http:///v1/echo", 403),
    ],
)
def test_a_target_may_name_our_host_and_no_other(server, target, status):
    target = target.format(port=server.port)
    answer = server.ask(GOOD, path=target)
    assert answer.status == status
    if status == 403:
        assert code(answer) == "host_not_allowed"
    # The host of the target does not stand in for that of the header.
    assert server.ask(GOOD, path=target, host="evil.example").status == 403


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "TRACE", "BREW"])
def test_other_methods_are_refused(server, method):
    answer = server.ask(GOOD if method != "GET" else None, method=method)
    if method == "BREW" and answer.status == 400:
        return  # to httptools it is no method
    assert answer.status == 405
    assert code(answer) == "method_not_allowed"
    assert "\r\nallow: post\r\n" in f"{answer.head}\r\n"


def test_what_is_allowed_is_said(server):
    (allowed,) = [
        line for line in server.ask(GOOD, path="/v1/models").head.split("\r\n") if line.startswith("allow:")
    ]
    assert set(allowed.removeprefix("allow: ").split(", ")) == {"get", "head"}


def test_a_flood_of_headers_is_refused_before_it_is_whole(server):
    lines = "".join(f"x-{number}: {'a' * 50}\r\n" for number in range(2000))
    answer = server.send(
        f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{lines}\r\n".encode()
    )
    assert answer.status in (400, 431) or (answer.closed and not answer.data)
    one = server.send(b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 100_000)
    assert one.status in (400, 431) or (one.closed and not one.data)


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 20\r\ntransfer-encoding: chunked",
        b"transfer-encoding: chunked\r\ncontent-length: 20",
        b"content-length: 20\r\ncontent-length: 21",
        b"content-length: 20, 21",
        b"content-length: -1",
        b"content-length: +20",
        b"content-length: 0x14",
        b"content-length: 2 0",
        b"content-length : 20",
        b"transfer-encoding: chunked, chunked",
        b"transfer-encoding: identity",
        b"transfer-encoding: xchunked",
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity",
        b"transfer-encoding:\x0bchunked",
        b"transfer-encoding: gzip, chunked",
        b"transfer-encoding : chunked\r\ncontent-length: 20",
        b"host: localhost",
        b"x: a\r\n b: c\x00",
        b"x\ny: z",
    ],
)
def test_smuggled_requests_are_not_answered(server, head):
    """One request that a proxy in front may read as two: it is refused, and what follows is not read."""
    hidden = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    body = b"5\r\n{}   \r\n0\r\n\r\n"
    start = b"POST " + PATH.encode() + b" HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    answer = server.send(start + head + b"\r\n\r\n" + body + hidden, wait=3)
    assert answer.status in (400, 501)
    assert answer.data.count(b"HTTP/1.1 ") == 1
    assert answer.closed


@pytest.mark.parametrize(
    "rest", [b"", b"\r\n", b"g\r\n", b"-1\r\n{}\r\n0\r\n\r\n", b"ffffffffffffffffffff\r\n"]
)
def test_broken_chunks_end_the_connection(server, rest):
    start = b"POST " + PATH.encode() + b" HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    answer = server.send(start + b"transfer-encoding: chunked\r\n\r\n" + rest, wait=5)
    assert answer.status in (400, 408)
    assert answer.closed


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\x00", b"\r\n" * 5000, b"GET\r\n\r\n", b"\0" * 5000]
)
def test_what_is_not_http_ends_the_connection(server, data):
    answer = server.send(data, wait=5)
    assert answer.status in (0, 400, 408, 431)
    assert answer.closed


# -- bodies ------------------------------------------------------------------------------------------------


def chunked(data: bytes, size: int = 1000) -> bytes:
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def big(size: int) -> bytes:
    return json.dumps({"prompt": "a" * (size - 14)}).encode()


@pytest.mark.parametrize("size", [9_999, 10_000, 10_001, 50_000, 1_000_000])
@pytest.mark.parametrize("how", ["length", "chunked"])
def test_a_body_is_counted_while_it_arrives(server, size, how):
    body = big(size)
    assert len(body) == size
    if how == "length":
        answer = server.ask(body)
    else:
        head = server.request(path=PATH, content_type="application/json", transfer_encoding="chunked")
        answer = server.send(head + chunked(body))
    assert answer.status == (200 if size <= 10_000 else 413)
    assert "plain" in answer.json or answer.json["text"]


REFUSED = {
    "announced": (413, {}),
    "chunked": (413, {"content_length": None, "transfer_encoding": "chunked"}),
    "host": (403, {"host": "evil.example"}),
    "origin": (403, {"origin": "null"}),
    "type": (415, {"content_type": "text/plain"}),
    "key": (401, {"x_api_key": "wrong"}),
    "announced, not for the model": (413, {"path": "/v1/models/load"}),
    "chunked, not for the model": (
        413,
        {"path": "/v1/models/load", "content_length": None, "transfer_encoding": "chunked"},
    ),
    "endpoint": (404, {"path": "/v1/nothing"}),
    "method": (405, {"method": "PUT"}),
}


@pytest.mark.parametrize("why", REFUSED)
def test_who_sends_everything_first_still_sees_why_it_was_refused(why):
    """What is left of the body is read. Closing the connection would fail the client, which is still sending:
    most then report that, and never look for an answer.
    """
    status, given = REFUSED[why]
    with serving(scripted("Yes."), access=Access(keys=("k",)), bounds=Bounds(body=4_000_000)) as server:
        body = big(15_000_000)
        head = server.request(b"", **{"x_api_key": "k", "content_length": str(len(body)), **given})
        with server.connect() as connection:
            connection.sendall(head + (chunked(body, 100_000) if why.startswith("chunked") else body))
            answer = read(connection, 10, time.monotonic())
        assert (answer.status, answer.closed) == (status, True)
        assert (answer.json.get("plain") or answer.json["error"])["message"]


def test_a_refused_body_is_not_read_for_ever():
    with serving(scripted("Yes."), bounds=Bounds(body=500_000)) as server, server.connect() as connection:
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            connection.sendall(server.request(big(100_000_000)))
        assert time.monotonic() - began < 4 * Bounds().drain_time  # on a busy machine


def test_an_announced_body_that_is_too_large_is_not_waited_for(server):
    head = server.request(b"", content_length="99999999", expect="100-continue")
    answer = server.send(head)
    assert answer.status == 413
    assert answer.seconds < 1


def test_a_client_that_waits_for_permission_to_send_gets_it(server):
    with server.connect() as connection:
        body = json.dumps(GOOD).encode()
        connection.sendall(server.request(b"", content_length=str(len(body)), expect="100-continue"))
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert read(connection, 5, time.monotonic()).status == 200


def test_who_goes_on_sending_after_a_refusal_is_cut_off(server):
    with server.connect() as connection:
        connection.sendall(server.request(b"", content_length="999999999"))
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            while time.monotonic() - began < 10:
                connection.sendall(b"a" * 1000)
                time.sleep(0.01)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[" * 201 + b"]" * 201, "levels deep"),
        (b'{"prompt":' * 300 + b"1" + b"}" * 300, "levels deep"),
        (b"[" * 9_000, "levels deep"),
        (b"{" * 9_000, "levels deep"),
        (b'{"a":"' + b"[" * 5000 + b'"}', "prompt"),
        (b'{"a":"\\\\","b":' + b"[" * 210 + b"]" * 210 + b"}", "levels deep"),
        (b"[" * 200 + b"]" * 200, "prompt"),
        (b'{"prompt": NaN}', "not JSON"),
        (b'{"prompt": Infinity}', "not JSON"),
        (b'{"prompt": "a', "not JSON"),
        (b'{"prompt": 1' + b"0" * 9000 + b"}", "not JSON"),
        (b'{"prompt": "\xff"}', "not JSON"),
        (b"\xff\xfe{\x00}\x00", "not JSON"),
        (b"", "not JSON"),
        (b"null", "prompt"),
        (b"[]", "prompt"),
        (b'"text"', "prompt"),
    ],
)
def test_bodies_that_are_no_request(server, body, said):
    answer = server.ask(body)
    assert answer.status == 400
    assert said in answer.json["plain"]["message"]


def test_half_a_surrogate_pair_is_mended(server):
    """JavaScript writes one where it cuts a text in the middle of an emoji; the client could not go on."""
    assert server.ask(b'{"prompt": "cut \\ud83d"}').status == 200
    assert server.ask(b'{"prompt": "whole \\ud83d\\ude00"}').status == 200


# -- manners -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [b"", b"POST ", b"POST / HTTP/1.1\r\nhost: localhost\r\n"])
def test_headers_that_do_not_come_are_not_waited_for(server, first):
    answer = server.send(first, wait=5)
    assert answer.closed
    assert 0.8 < answer.seconds < 3
    assert answer.status == (408 if first else 0)


def test_headers_that_come_a_byte_at_a_time_have_the_same_time(server):
    with server.connect() as connection:
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            for byte in server.request(GOOD) * 9:
                connection.sendall(bytes([byte]))
                time.sleep(0.02)
        assert time.monotonic() - began < 4


def test_a_second_request_on_a_connection_has_the_same_time(server):
    with server.connect() as connection:
        connection.sendall(server.request(GOOD, connection="keep-alive"))
        while b'"text"' not in connection.recv(10_000):
            pass
        began = time.monotonic()
        connection.sendall(b"POST /v1/echo HTTP/1.1\r\nho")
        answer = read(connection, 5, began)
        assert answer.closed
        assert answer.status == 408
        assert answer.seconds < 3


def test_a_body_that_does_not_come_is_not_waited_for(server):
    answer = server.send(server.request(b'{"prompt', content_length="500"), wait=5)
    assert answer.status == 408
    assert answer.closed
    assert answer.seconds < 4


def test_a_body_that_trickles_is_not_waited_for(server):
    with server.connect() as connection:
        connection.sendall(server.request(b"", content_length="5000"))
        began = time.monotonic()
        try:
            while time.monotonic() - began < 8:
                connection.sendall(b" ")
                time.sleep(0.05)
        except ConnectionError:
            pass
        assert time.monotonic() - began < 5


def test_who_leaves_in_the_middle_of_a_body_is_forgotten(server):
    with server.connect() as connection:
        connection.sendall(server.request(b'{"prompt', content_length="500"))


@pytest.mark.parametrize("path", ["/api/show", "/v1/models/load", "/v1/models/unload"])
def test_who_leaves_in_the_middle_of_a_body_is_no_failure(server, path, caplog):
    with server.connect() as connection:
        connection.sendall(server.request(b'{"model', path=path, content_length="500"))
    assert server.ask(GOOD).status == 200
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


def test_the_rest_of_a_request_that_was_answered_is_not_waited_for(server):
    """Nobody read its body, so that nothing else counts the time that it takes."""
    with server.connect() as connection:
        head = server.request(path="/health", method="GET", connection="keep-alive", content_length="500")
        connection.sendall(head)
        while b'"status"' not in connection.recv(10_000):
            pass
        connection.sendall(b" ")
        answer = read(connection, 5, time.monotonic())
        assert answer.closed
        assert answer.seconds < 4


def test_many_idle_connections_hinder_nobody(server):
    """Each is closed after its time; meanwhile others are served."""
    idle = [server.connect() for _ in range(200)]
    try:
        began = time.monotonic()
        assert server.ask(GOOD).status == 200
        assert time.monotonic() - began < 2
        idle[0].settimeout(5)
        assert idle[0].recv(100) == b""
    finally:
        for connection in idle:
            connection.close()


def test_a_reset_in_the_middle_of_a_stream_is_no_failure(server):
    connection = server.connect()
    connection.sendall(server.request({**GOOD, "stream": True}))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


def test_a_connection_too_many_is_told_so_and_closed():
    with serving(scripted("Yes."), bounds=Bounds(connections=3)) as server:
        held = [server.connect() for _ in range(3)]
        held[0].sendall(server.request(GOOD, connection="keep-alive"))
        assert held[0].recv(10_000).startswith(b"HTTP/1.1 200 ")
        for body, method in ((GOOD, "POST"), (None, "GET")):
            answer = server.ask(body, method=method, connection="keep-alive", wait=5)
            assert (answer.status, code(answer), answer.closed) == (503, "overloaded", True)
            assert "retry-after: " in answer.head
            assert answer.head.count("connection: close") == 1
        held.pop().close()
        until_answered = time.monotonic() + 5
        while server.ask(GOOD).status != 200:
            assert time.monotonic() < until_answered


# -- settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_a_server_for_other_machines_needs_a_key(host):
    with pytest.raises(UsageError, match="give a key"):
        Access(host=host)
    Access(host=host, keys=("k",))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.5"])
def test_a_server_for_this_machine_needs_none(host):
    Access(host=host)


@pytest.mark.parametrize("origin", ["null", "localhost:3000", "http://localhost:3000/", ""])
def test_origins_are_written_as_browsers_send_them(origin):
    with pytest.raises(UsageError, match="origin"):
        Access(origins=(origin,))


def test_keys_in_a_file():
    assert read_keys("# ours\nfirst\n\n  second  \nfirst\n") == ("first", "second")
    with pytest.raises(UsageError, match="ASCII"):
        Access(keys=("naïve",))
