"""The reading of a body within its bounds, and of the JSON in it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from localagent.server.bounds import Bounds, Gone, parse_json, read_body
from localagent.server.exchange import BadRequest

Message = dict[str, Any]


def piece(data: bytes, more: bool = True) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


def read(*messages: Message, announced: str | None = None, **bounds: Any) -> tuple[bytes, int]:
    """The body, and how many messages were read for it."""
    left = [*messages]

    async def receive() -> Message:
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    async def bounded() -> bytes:
        async with asyncio.timeout(10):
            return await read_body(receive, Bounds(**bounds), announced)

    return asyncio.run(bounded()), len(messages) - len(left)


@pytest.mark.parametrize(
    ("messages", "body"),
    [
        ([piece(b"ab", False)], b"ab"),
        ([piece(b"ab"), piece(b""), piece(b"cd", False), piece(b"of the next one")], b"abcd"),
        ([{"type": "http.request"}], b""),
        ([piece(b"ab"), {"type": "http.request", "more_body": True}, {"type": "http.request", "body": b"c"}], b"abc"),
    ],
)  # fmt: skip
def test_a_body_is_all_that_comes_until_its_end(messages: Sequence[Message], body: bytes) -> None:
    assert read(*messages)[0] == body


@pytest.mark.parametrize(
    ("announced", "pieces", "good"),
    [
        (None, [b"abcd"], True),
        ("4", [b"abcd"], True),
        ("5", [b"abcd"], False),
        ("many", [b"abcd"], True),
        ("-5", [b"abcd"], True),
        (None, [b"abcde"], False),
        ("1", [b"abc", b"de"], False),
    ],
)
def test_a_body_may_be_as_large_as_it_may_be(announced: str | None, pieces: list[bytes], good: bool) -> None:
    messages = [*map(piece, pieces[:-1]), piece(pieces[-1], more=not good)]
    if good:
        assert read(*messages, announced=announced, body=4)[0] == b"".join(pieces)
        return
    with pytest.raises(BadRequest) as caught:
        read(*messages, announced=announced, body=4)
    assert (caught.value.status, str(caught.value)) == (413, "the body is larger than 4 bytes")


def test_who_leaves_and_who_takes_too_long() -> None:
    with pytest.raises(Gone):
        read(piece(b"ab"), {"type": "http.disconnect", "body": b"", "more_body": False})
    with pytest.raises(BadRequest) as caught:
        read(piece(b"ab"), body_time=0.01)
    assert (caught.value.status, str(caught.value)) == (408, "the body did not arrive within 0.01 seconds")


def test_a_large_body_waits_for_room_and_then_has_to_come_at_some_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("localagent.server.bounds._FIRST", 0)
    asked = []

    async def reading(announced: str | None, pieces: int, pause: float, **bounds: Any) -> bytes:
        left = pieces

        async def receive() -> Message:
            nonlocal left
            await asyncio.sleep(pause)
            left -= 1
            return piece(b"a" * 50_000, left > 0)

        async def make_room(size: int) -> None:
            asked.append(size)
            await asyncio.sleep(0.3)  # longer than all of it may take

        return await read_body(receive, Bounds(**bounds), announced, make_room)

    assert asyncio.run(reading("50000", 1, 0, body_time=0.2)) == b"a" * 50_000
    assert asked == []
    assert len(asyncio.run(reading("200000", 4, 0, body_time=0.2))) == 200_000
    assert len(asyncio.run(reading(None, 2, 0, body_time=0.2, body=300_000))) == 100_000
    assert asked == [200_000, 300_000]
    with pytest.raises(BadRequest, match=r"within 0\.1 seconds"):
        asyncio.run(reading("200000", 4, 0.2, pace=1_000_000))


def too_much(body: bytes, **bounds: int) -> str:
    """What of it is too much; "" where nothing is, whether it is JSON or not."""
    try:
        parse_json(body, Bounds(**bounds))  # type: ignore[arg-type]
    except BadRequest as refusal:
        assert refusal.status == (413 if "values" in str(refusal) else 400)
        return "" if "not JSON" in str(refusal) else str(refusal)
    return ""


@pytest.mark.parametrize("window", [2, 3, 5, 8, 1 << 16])
@pytest.mark.parametrize(
    ("body", "levels", "values"),
    [
        (b"", 0, 0),
        (b"7", 0, 0),
        (b"[]", 1, 1),
        (b'{"a": [{}, []], "b": {}}', 3, 7),
        (b"[[], [], [[]]]", 3, 7),
        (b'"[[["', 0, 0),
        (b'["\\"[", "\\\\", [{"[": 1}]]', 3, 5),
        (b'["[', 1, 1),
        (b'["[\\', 1, 1),
        (b'["a\\\\\\"[[[", "[,,,"]', 1, 2),
        (b"]]][[[", 0, 3),
        (b"[[[[[[[[", 8, 8),
    ],
)
def test_how_deep_brackets_go_and_how_many_values_there_are(
    body: bytes, levels: int, values: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever strings a window ends in; it has room for an escape."""
    monkeypatch.setattr("localagent.server.bounds._WINDOW", window)
    assert too_much(body, depth=levels, values=values) == ""
    if levels:
        assert too_much(body, depth=levels - 1) == f"the JSON is more than {levels - 1} levels deep"
    if values:
        assert too_much(body, values=values - 1) == f"the JSON has more than {values - 1} values"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[NaN]", "the body is not JSON: NaN is not JSON"),
        (b"-Infinity", "the body is not JSON: -Infinity is not JSON"),
        (b"[1,]", "the body is not JSON: "),
        (b"\xff", "the body is not JSON: 'utf-8' codec"),
    ],
)
def test_what_is_no_json(body: bytes, said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_json(body, Bounds())
    assert str(caught.value).startswith(said)


def test_other_threads_have_their_turn_while_a_large_body_is_parsed() -> None:
    """Python's parser is C, which gives the interpreter to nobody until it is done: 3 s for 8 MB of `[]`."""
    size = 8 << 20
    bodies = [
        b"[%s]" % b",".join([b"[]"] * (size // 3)),
        b"[%s]" % b",".join([b"[]"] * (Bounds().values // 2 - 1)),
        b"[%s]" % b",".join([b"1" * 4000] * (size // 4001)),
        b"[%s]" % b",".join([b'{"role": "user"}'] * (size // 100)),
        b'["%s"]' % (b"a\\n" * (size // 3)),
    ]
    gaps, over = [0.0], threading.Event()

    def beat() -> None:
        last = time.monotonic()
        while not over.wait(0.001):
            now = time.monotonic()
            gaps[0], last = max(gaps[0], now - last), now

    for body in bodies:
        beating = threading.Thread(target=beat)
        beating.start()
        with suppress(BadRequest):
            parse_json(body, Bounds())
        over.set()
        beating.join()
        over.clear()
        assert gaps[0] < 1, body[:20]


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'["\\ud83d", {"\\uDE00k": "a\\ud83d\\ude00b\\udbff"}, 1, null]', ["\ufffd", {"\ufffdk": "a😀b\ufffd"}, 1, None]),
        (b'"\\u00d8"', "Ø"),
        (b'"\\\\ud83d"', "\\ud83d"),
    ],
)  # fmt: skip
def test_half_a_character_is_mended_wherever_it_stands(body: bytes, value: Any) -> None:
    assert parse_json(body, Bounds()) == value
