"""Requests to every API in which any value may be anything: they are read, or refused."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.hosts.sampling import SamplingOptions
from localagent.server.exchange import BadRequest, Limits, TurnRequest, Wire, dump, header_word
from localagent.server.wires.messages import COUNT_TOKENS_WIRE, MESSAGES_WIRE
from localagent.server.wires.ollama import OLLAMA_CHAT_WIRE, OLLAMA_GENERATE_WIRE
from tests.server.wires.telling import ANSWER
from tests.server.wires.test_requests import WIRES as OPENAI

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "enum": [1, 2]}}, "required": ["a"]}
PNG = "iVBORw0KGgo="
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 100,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
        {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        {"role": "user", "content": "Hi."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "d"},
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": "x"}},
                {"type": "text", "text": "Let me."},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "is_error": False,
                    "content": [
                        {"type": "text", "text": "4"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                        {"type": "tool_reference", "tool_name": "g"},
                    ],
                },
                {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
                {"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "x"}]},
            ],
        },
        {"role": "system", "content": "Go on."},
    ],
    "tools": [
        {"name": "f", "description": "d", "input_schema": SCHEMA, "strict": True, "type": "custom"},
        {"type": "web_search_20260318", "name": "web_search", "max_uses": 3},
    ],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 2000, "display": "omitted"},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": copy.deepcopy(SCHEMA)}},
    "output_format": {"type": "json_schema", "schema": copy.deepcopy(SCHEMA)},
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "stop_sequences": ["a", "b"],
    "stream": True,
    "metadata": {"user_id": "u"},
    "of tomorrow\r\n": 1,
}  # fmt: skip
OPTIONS: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.05,
    "repeat_penalty": 1.1,
    "seed": 7,
    "num_predict": 100,
    "stop": ["a"],
    "mirostat": 0,
    "presence_penalty": 0,
    "num_ctx": 8192,
}
BOTH: dict[str, Any] = {
    "model": "m:latest",
    "options": OPTIONS,
    "stream": False,
    "think": "high",
    "keep_alive": "5m",
    "logprobs": True,
    "top_logprobs": 3,
}
CHAT: dict[str, Any] = {
    **BOTH,
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi.", "images": [PNG]},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "tool_name": "f", "content": "4"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}],
    "format": copy.deepcopy(SCHEMA),
}  # fmt: skip
GENERATE: dict[str, Any] = {
    **BOTH,
    "prompt": "Hi.",
    "system": "Be kind.",
    "raw": False,
    "images": [PNG],
    "format": "json",
    "suffix": "",
    "template": "",
    "context": [],
}
WIRES: dict[str, tuple[Wire, dict[str, Any]]] = {
    wire.path: (wire, body)
    for wire, body in (
        *OPENAI.values(),
        (MESSAGES_WIRE, MESSAGES),
        (COUNT_TOKENS_WIRE, MESSAGES),
        (OLLAMA_CHAT_WIRE, CHAT),
        (OLLAMA_GENERATE_WIRE, GENERATE),
    )
}
LIMITS = Limits(images=True)
MISSED = {"tools": "tool_choice", "raw": "images", "logprobs": "top_logprobs"}
"""Fields that may be wrong once another one is: a choice misses its tool, and raw text has no place for images."""


def deep(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


JUNK = [
    None, True, False, 0, -1, 1.5, 1e300, float("nan"), float("inf"), 10**400, 10**5000, "", "x", "\ud800", "\x00", "a\r\nb: c",
    [], [[]], [None], {}, {"type": "x"}, {"type": None}, {"": 1}, {"\ud800": 1}, {"role": "wizard", "content": "x"},
    deep(70), deep(190), deep(300), "x" * 100_000, [1] * 1000, {"type": "function"}, {"type": "object", "properties": 3}, b"bytes", object(),
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in this one."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in items:
        found += places(item, (*path, step))
    return found


def put(body: dict[str, Any], path: tuple[Any, ...], junk: Any) -> dict[str, Any]:
    body = copy.deepcopy(body)
    inside: Any = body
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = junk
    return body


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=6) | st.sampled_from([each for each in JUNK if not isinstance(each, int | bytes) and type(each) is not object]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.sampled_from(["type", "role", "content", "name"]), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


def survives(name: str, body: Any, field: str | None) -> None:
    """The body is read, or refused with the name of the field that is wrong."""
    wire, _ = WIRES[name]
    try:
        request = wire.read(body, LIMITS)
    except BadRequest as refusal:
        status, said = wire.error(refusal)
        assert status == 400
        assert refusal.message and "\n" not in refusal.message and len(refusal.message) < 1000
        assert json.loads(dump(said).encode()) == said
        if isinstance(error := said["error"], dict):
            assert error["type"] == "invalid_request_error"
        if field is not None:
            assert refusal.param is not None, refusal.message
            tops = {header_word(field), MISSED.get(field, "")}
            assert re.split(r"[.\[]", refusal.param)[0] in tops, refusal.message
        return
    assert isinstance(request, TurnRequest)
    assert request.options.keys() <= SamplingOptions.__annotations__.keys()
    assert all(each.isascii() and each.isprintable() for each in request.ignored)
    dump([list(request.tools), request.response_format, request.options, request.tool_choice]).encode()
    wire.writer(request, ANSWER).begin()


@pytest.mark.parametrize("name", WIRES)
def test_the_body_itself_is_read(name):
    wire, body = WIRES[name]
    assert not wire.read(body, LIMITS).only_loads


@pytest.mark.parametrize("name", WIRES)
def test_every_value_of_a_body_may_be_anything(name):
    _, body = WIRES[name]
    for path in places(body)[1:]:
        for junk in JUNK:
            survives(name, put(body, path, junk), path[0])


@pytest.mark.parametrize("name", WIRES)
def test_every_field_may_be_absent(name):
    _, body = WIRES[name]
    for path in places(body)[1:]:
        less = copy.deepcopy(body)
        inside: Any = less
        for step in path[:-1]:
            inside = inside[step]
        del inside[path[-1]]
        survives(name, less, path[0])


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("body", [None, 1, "x", [], [{}], {}, {"\ud800": 1}, deep(5), float("nan")])
def test_a_body_that_is_no_request_is_refused_or_loads_the_model(name, body):
    survives(name, body, None)
    if not name.startswith("/api/"):
        with pytest.raises(BadRequest):
            WIRES[name][0].read(body)


@given(st.data())
@pytest.mark.parametrize("name", WIRES)
def test_several_values_may_be_anything_at_once(name, data):
    _, body = WIRES[name]
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(body)[1:]))
        body = put(body, path, data.draw(json_values))
    survives(name, body, None)
