"""One answer, as its messages go out: whole, in pieces, as a refusal; and clients that take none, or go on sending."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from localagent.errors import EngineFailed, NotEnoughMemory
from localagent.server.access import Head
from localagent.server.bounds import Bounds, Gone
from localagent.server.exchange import BadRequest, Frame
from localagent.server.queue import Overloaded
from localagent.server.reply import Reply, refuse, retry_after
from tests.server.serving import PlainWire

Message = dict[str, Any]


def soon(work: Coroutine[Any, Any, Any]) -> Any:
    """Run it; what waits for ever fails."""

    async def bounded() -> Any:
        async with asyncio.timeout(10):
            return await work

    return asyncio.run(bounded())


class Client:
    """Takes what is sent."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    async def send(self, message: Any) -> None:
        self.got.append(message)


def start(status: int, *headers: tuple[bytes, bytes]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": [*headers]}


def body(data: bytes, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


JSON = (b"content-type", b"application/json")


def test_a_whole_answer_is_a_head_and_a_body() -> None:
    client = Client()
    reply = Reply(client.send, Bounds())
    reply.headers, reply.ignored = [(b"x-localagent-model", b"m")], ["user", "a,b"]
    assert not reply.started
    soon(reply.json(200, {"a": "é\ud800"}, [(b"x", b"y")]))
    more = [(b"x", b"y"), (b"x-localagent-model", b"m"), (b"x-localagent-ignored", b"user, a?b")]
    assert client.got == [
        start(200, JSON, (b"content-length", b"11"), *more),
        body('{"a":"é?"}'.encode(), False),
    ]
    assert reply.started


@pytest.mark.parametrize(
    ("framing", "kind", "data"),
    [
        ("sse", b"text/event-stream; charset=utf-8", [b'data: {"a":1}\n\n: hm\n\n', b"data: x\n\n", b""]),
        ("ndjson", b"application/x-ndjson", [b'{"a":1}\n', b"x\n", b""]),
    ],
)
def test_the_head_and_what_a_writer_begins_with_come_with_the_first_piece(framing, kind, data) -> None:
    client = Client()

    async def stream() -> None:
        reply = Reply(client.send, Bounds(), framing)
        reply.opening, reply.ignored = [Frame({"a": 1})], [f"field{n}" for n in range(40)]
        await reply.write([Frame(comment="hm")])
        await reply.write([])  # there is nothing to tell
        await reply.write([Frame("x")])
        await reply.write((), last=True)

    soon(stream())
    ignored = ", ".join(f"field{n}" for n in range(30)).encode()
    head = ((b"content-type", kind), (b"cache-control", b"no-cache"), (b"x-localagent-ignored", ignored))
    assert client.got == [
        start(200, *head),
        body(data[0], True),
        body(data[1], True),
        body(data[2], False),
    ]


def test_two_who_write_at_once_send_one_head_and_whole_pieces() -> None:
    got: list[Message] = []

    async def send(message: Any) -> None:
        await asyncio.sleep(0)
        got.append(message)

    async def both() -> None:
        reply = Reply(send, Bounds())
        await asyncio.gather(reply.write([Frame("a")]), reply.write([Frame("b")]))

    soon(both())
    assert [each["type"].rpartition(".")[2] for each in got] == ["start", "body", "body"]
    assert [each["body"] for each in got[1:]] == [b"data: a\n\n", b"data: b\n\n"]


def test_who_takes_nothing_for_long_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("localagent.server.reply.monotonic", lambda: next(clock))

    async def never(_: Any) -> None:
        await asyncio.Event().wait()

    async def stuck() -> None:
        reply = Reply(never, Bounds(write_time=0.01))
        assert reply.touched == 0
        with pytest.raises(Gone):
            await reply.write([Frame("x")])
        assert reply.touched == 0, "nothing was sent"

    soon(stuck())
    taken = Reply(Client().send, Bounds())
    soon(taken.json(200, 1))
    assert taken.touched == 3, "when its head and then its body were sent"


def test_who_has_room_for_more_is_not_timed() -> None:
    async def slow(_: Any) -> None:
        await asyncio.sleep(0.05)

    soon(Reply(slow, Bounds(write_time=0.01), backed_up=lambda: False).write([Frame("x")]))


# -- refusals ----------------------------------------------------------------------------------------------

NO = BadRequest("no", code="bad", status=413)
SAID = b'{"plain":{"message":"no","code":"bad"}}'
LENGTH, CLOSE = (b"content-length", b"39"), (b"connection", b"close")


def head(**headers: str) -> Head:
    return Head("POST", "/v1/echo", [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()])


@pytest.mark.parametrize("asked", [None, head(), head(content_length="0")])
def test_a_refusal_of_what_was_read_leaves_the_connection_open(asked) -> None:
    client = Client()
    soon(refuse(PlainWire(), NO, asked, Bounds(), client.send, [(b"allow", b"POST")]))
    assert client.got == [start(413, JSON, LENGTH, (b"allow", b"POST")), body(SAID, False)]


@pytest.mark.parametrize("asked", [head(content_length="99"), head(transfer_encoding="chunked")])
def test_a_refusal_of_what_was_not_read_closes_it(asked) -> None:
    client = Client()
    soon(refuse(PlainWire(), NO, asked, Bounds(), client.send, [(b"x", b"y")]))
    assert client.got == [start(413, JSON, LENGTH, (b"x", b"y"), CLOSE), body(SAID, False)]


def test_who_has_gone_is_not_refused() -> None:
    async def never(_: Any) -> None:
        await asyncio.Event().wait()

    soon(refuse(PlainWire(), NO, None, Bounds(write_time=0.01), never))


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (Overloaded("full", 7), 503, [(b"retry-after", b"7")]),
        (Overloaded("stopping"), 503, [(b"retry-after", b"5")]),
        (NotEnoughMemory("no"), 503, [(b"retry-after", b"5")]),
        (EngineFailed("no"), 500, []),
        (TimeoutError(), 504, []),
        (NO, 413, []),
    ],
)
def test_when_to_ask_again_is_told_where_it_may_help(error, status, told) -> None:
    assert [*retry_after(error, status)] == told
