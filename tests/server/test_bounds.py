"""The reading of a body within its bounds, and of the JSON in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from localagent.server.bounds import Bounds, Gone, depth, parse_json, read_body
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


@pytest.mark.parametrize(
    ("body", "levels"),
    [
        (b"", 0),
        (b"7", 0),
        (b"[]", 1),
        (b'{"a": [{}, []], "b": {}}', 3),
        (b"[[], [], [[]]]", 3),
        (b'"[[["', 0),
        (b'["\\"[", "\\\\", [{"[": 1}]]', 3),
        (b'["[', 1),
        (b"]]][[", 0),
        (b"[[[[[[[[", 5),  # above the most, nobody looks any further
    ],
)
def test_how_deep_brackets_go(body: bytes, levels: int) -> None:
    assert depth(body, 4) == levels


def test_json_as_deep_as_it_may_be() -> None:
    assert parse_json(b'{"a": [1]}', 2) == {"a": [1]}
    with pytest.raises(BadRequest) as caught:
        parse_json(b'{"a": [1]}', 1)
    assert (caught.value.status, str(caught.value)) == (400, "the JSON is more than 1 levels deep")


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
        parse_json(body, 9)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'["\\ud83d", {"\\uDE00k": "a\\ud83d\\ude00b\\udbff"}, 1, null]', ["\ufffd", {"\ufffdk": "a😀b\ufffd"}, 1, None]),
        (b'"\\u00d8"', "Ø"),
        (b'"\\\\ud83d"', "\\ud83d"),
    ],
)  # fmt: skip
def test_half_a_character_is_mended_wherever_it_stands(body: bytes, value: Any) -> None:
    assert parse_json(body, 9) == value
