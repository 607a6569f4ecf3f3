"""What wires and the HTTP layer share: frames, bodies, options and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.errors import (
    ContextOverflow,
    EngineFailed,
    GrammarMissing,
    InvalidMessage,
    LocalAgentError,
    ModelMissing,
    NotEnoughMemory,
    ServerFailed,
    UnknownModel,
    Unsupported,
)
from localagent.server.bounds import DEFAULT_BOUNDS, Bounds
from localagent.server.exchange import (
    BadRequest,
    Frame,
    Limits,
    Refused,
    dump,
    header_word,
    message_of,
    open_body,
    refusing,
    sort_options,
    status_of,
)
from localagent.tools.bounds import TOOL_BOUNDS
from tests.server.wires.turns import turn_of


@pytest.mark.parametrize(
    ("frame", "sse", "ndjson"),
    [
        (Frame({"a": "é"}), b'data: {"a":"\xc3\xa9"}\n\n', b'{"a":"\xc3\xa9"}\n'),
        (Frame("[DONE]"), b"data: [DONE]\n\n", b"[DONE]\n"),
        (Frame({}, event="ping"), b"event: ping\ndata: {}\n\n", b"{}\n"),
        (Frame(comment="working"), b": working\n\n", b""),
    ],
)
def test_a_frame_is_an_event_or_a_line(frame, sse, ndjson):
    assert (frame.encode(), frame.encode("ndjson")) == (sse, ndjson)


@given(st.text())
def test_any_text_stays_on_its_line_and_comes_back(text):
    data = Frame({"t": text}).encode().decode()
    assert len(data.splitlines()) == 2
    assert json.loads(data.removeprefix("data: ")) == {"t": text}


def test_a_lone_surrogate_becomes_its_escape():
    assert Frame({"t": "a\ud800b"}).encode() == b'data: {"t":"a\\ud800b"}\n\n'


def deep(levels: int) -> Any:
    value: Any = 7
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        ([], None, "must be a JSON object"),
        ({"a": [{"b": float("nan")}]}, "a[0].b", "nan is not JSON"),
        ({"a": float("-inf")}, "a", "-inf is not JSON"),
        ({"a": {"b": ["x", "\udfff"]}}, "a.b[1]", "lone surrogate"),
        ({"a": {"\ud800": 1}}, "a", "lone surrogate"),
        ({"a": 10**5000}, "a", "4,298 digits"),
        ({"a": 2**14_280}, "a", "4,298 digits"),
        ({"a": -(2**14_280)}, "a", "4,298 digits"),
        ({"a": {1}}, "a", "set is not JSON"),
        ({"a": deep(200)}, "a" + "[0]" * 199, "nested more than 200 deep"),
    ],
)
def test_what_no_body_may_hold_is_refused_with_its_path(body, param, why):
    with pytest.raises(BadRequest, match=why) as caught:
        open_body(body)
    assert caught.value.param == param


def test_any_other_json_is_a_body():
    body = {"a": [1, 2.5, True, None, "é🌍", {"b": {}}], "c": 2**14_280 - 1, "é": ""}
    assert open_body(body).rest() == body
    assert open_body({"a": deep(199)}).rest() == {"a": deep(199)}


def test_what_a_client_may_take_where_nobody_says_otherwise():
    """Clients lean on these: Claude Code sends megabytes, and a large model may write for an hour."""
    assert Bounds() == DEFAULT_BOUNDS == Bounds(
        body=8 * 1024 * 1024, depth=200, header_bytes=32 * 1024, headers=100, header_time=15, body_time=60,
        drain_time=5, write_time=60, keep_alive=5, deadline=60 * 60, queue=64, connections=512,
    )  # fmt: skip
    assert Limits() == Limits(messages=10_000, tools=TOOL_BOUNDS, images=False)


def test_options_are_read_ignored_or_refused():
    table = {"a": "taken", "b": "hint", "c": Refused("no", (1, "x"))}
    assert sort_options({"c": 1.0}, table) == ()
    assert sort_options({"a": 5, "b": 5, "c": 1, "d": 5, "e": None, "c\r\n": 1}, table) == ("b", "d", "c??")
    for value in (2, True, 1.5, [1]):
        with pytest.raises(BadRequest, match=r"^c: no$") as caught:
            sort_options({"c": value}, table)
        assert (caught.value.param, caught.value.code) == ("c", "unsupported_parameter")


def test_a_name_in_a_header_is_short_and_cannot_end_it():
    assert header_word("a\r\nSet-Cookie: b, é;" + "x" * 100) == ("a??Set-Cookie: b? ??" + "x" * 100)[:60]
    assert [header_word(name) for name in (" a b", "a b ", "a b", "\x7f")] == ["?a?b", "a?b?", "a b", "?"]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (BadRequest("no"), 400, "no"),
        (BadRequest("no", status=413), 413, "no"),
        (UnknownModel("no"), 404, "no"),
        (InvalidMessage("no"), 400, "no"),
        (ServerFailed("http://x failed"), 502, "http://x failed"),
        (LocalAgentError("no"), 500, "no"),
        (TimeoutError("no answer of a disk"), 504, "no answer of a disk"),
        (ContextOverflow(5, 4), 400, str(ContextOverflow(5, 4))),
        (Unsupported("no"), 400, "no"),
        (NotEnoughMemory("no"), 503, "no"),
        (ModelMissing("no"), 503, "no"),
        (EngineFailed("no"), 500, "no"),
        (GrammarMissing("no"), 400, "no"),
        (TimeoutError(), 504, "the answer took longer than the server allows"),
        (ValueError("secret"), 500, "the server failed; its log says more"),
    ],
)
def test_every_error_has_a_status_and_only_ours_are_told(error, status, message):
    assert (status_of(error), message_of(error)) == (status, message)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("messages[0].content: a number where a list belongs", "messages[0].content"),
        ("tools: two tools", "tools"),
        ("no path: at all", None),
        ("nothing", None),
    ],
)
def test_what_readers_say_becomes_a_refusal_with_the_path(message, param):
    with pytest.raises(BadRequest) as caught, refusing():
        raise InvalidMessage(message)
    assert (caught.value.message, caught.value.param, caught.value.status) == (message, param, 400)


def test_compact_json_has_no_numbers_that_are_none():
    assert dump({"a": [1, "x"]}) == '{"a":[1,"x"]}'
    with pytest.raises(ValueError, match="JSON"):
        dump(float("nan"))


def test_a_turn_says_what_stopped_it_and_where_its_tokens_end():
    *_, done = turn_of("<think>hm</think>One two", stop="two")
    assert done.stop == "two"
    assert done.message.raw is not None
    assert done.ends[-1] == len(done.message.raw) and list(done.ends) == sorted(done.ends)
    assert turn_of("One two")[-1].stop is None
