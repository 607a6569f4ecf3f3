"""Calls on their way to a wire: held until they are complete, or as they are written; no key twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.server.app import all_wires
from localagent.server.calls import HeldCalls, StreamedCalls
from parsers import ArgumentEnd, ArgumentsDelta, CallEnd, CallStart, Malformed, Reason, Text
from tests.agent.replaying import block, scripted
from tests.server.serving import Running, serving

MESSAGES = [{"role": "user", "content": "Go."}]
SCHEMA = {"type": "object", "properties": {"a": {}, "b": {}}}
FUNCTION = {"name": "f", "description": "", "parameters": SCHEMA}
OPENAI = {"messages": MESSAGES, "tools": [{"type": "function", "function": FUNCTION}]}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": OPENAI,
    "/v1/responses": {"input": "Go.", "tools": [{"type": "function", **FUNCTION}]},
    "/v1/messages": {
        "messages": MESSAGES,
        "max_tokens": 99,
        "tools": [{"name": "f", "input_schema": SCHEMA}],
    },
    "/api/chat": OPENAI,
}
REPEATING = {
    "at the top": (block("f(a=2, b='x', a=2)"), {"a": 2, "b": "x"}),
    "in an object": (block("f(a={'k': [{'j': 1}, {'j': 1}], 'l': 2, 'k': 3})"), {"a": {"k": 3, "l": 2}}),
}


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: an object in which no key stands twice."""
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


def arguments_in(event: dict[str, Any]) -> Iterator[str]:
    """The text of arguments in one event of any stream."""
    match event:
        case {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": str(text)}}]}}]}:
            yield text
        case {"type": "response.function_call_arguments.delta", "delta": str(text)}:
            yield text
        case {"delta": {"partial_json": str(text)}}:
            yield text
        case {"message": {"tool_calls": [{"function": {"arguments": arguments}}]}}:
            yield json.dumps(arguments)


def streamed(server: Running, path: str, **options: Any) -> tuple[str, str]:
    """The arguments of the call as they were streamed, and all that came."""
    answer = server.ask({**REQUESTS[path], "stream": True, **options}, path=path)
    assert answer.status == 200
    body = answer.body.decode()
    lines = (line.removeprefix("data: ") for line in body.splitlines())
    events = (json.loads(line, object_pairs_hook=once) for line in lines if line.startswith("{"))
    return "".join(text for event in events for text in arguments_in(event)), body


@pytest.mark.parametrize("case", REPEATING)
@pytest.mark.parametrize("path", REQUESTS)
def test_a_key_that_the_model_writes_twice_goes_out_once(path: str, case: str) -> None:
    output, arguments = REPEATING[case]
    with serving(scripted(output), wires=all_wires()) as server:
        text, _ = streamed(server, path)
    assert json.loads(text, object_pairs_hook=once) == arguments


@pytest.mark.parametrize("case", REPEATING)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_call_that_is_streamed_ends_before_a_key_that_it_has(path: str, case: str) -> None:
    output, arguments = REPEATING[case]
    with serving(scripted(output), wires=all_wires(), buffer_tool_calls=False) as server:
        text, body = streamed(server, path)
        # What is not streamed can still be put right.
        whole = server.ask({**REQUESTS[path], "stream_tool_calls": True}, path=path).body.decode()
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    assert '"malformed_tool_calls"' in body and '"tool_calls","' not in body
    assert text.count('"a"') == text.count('"k"') + (case == "at the top") == 1
    assert json.dumps(json.dumps(arguments)) in whole and "malformed" not in whole


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_arguments_are_streamed_only_for_those_who_ask(path: str) -> None:
    broken = block("f(a='/home/me/proj").removesuffix("]<|tool_call_end|>")
    with serving(scripted(broken), wires=all_wires()) as server:
        for held in ({}, {"stream_tool_calls": None}, {"stream_tool_calls": False}):
            text, body = streamed(server, path, **held)
            assert text == "" and "/home/me/proj" in body
        assert streamed(server, path, stream_tool_calls=True)[0].startswith('{"a": "/home/me')
        refused = server.ask({**REQUESTS[path], "stream_tool_calls": 1}, path=path)
        assert (refused.status, refused.json["error"]["param"]) == (400, "stream_tool_calls")
    with serving(scripted(broken), wires=all_wires(), buffer_tool_calls=False) as server:
        assert streamed(server, path)[0].startswith('{"a": "/home/me')
        assert streamed(server, path, stream_tool_calls=False)[0] == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_any_arguments_pass_in_any_pieces_until_a_key_is_repeated(data: st.DataObject) -> None:
    inner = data.draw(st.dictionaries(st.text(max_size=4), JSON, min_size=1))
    again = json.dumps(data.draw(st.sampled_from([*inner])), ensure_ascii=data.draw(st.booleans()))
    text = json.dumps({"a": [inner, inner]}, ensure_ascii=data.draw(st.booleans()))
    repeated = data.draw(st.booleans())
    if repeated:
        text = f"{text.removesuffix('}]}')}, {again}: 1}}]}}"
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text))))})
    pieces = [text[begin:end] for begin, end in pairwise(cuts)]
    calls, sent = StreamedCalls(), ""
    for _ in range(2):  # a call begins anew
        calls.feed(CallStart(0, "f", 0, 0))
        sent = "".join(each.json for piece in pieces for each in calls.feed(ArgumentsDelta(0, piece, 0, 0)))  # type: ignore[union-attr]
        (end,) = calls.feed(CallEnd(0, "f", {}, repeated, 0, 0))
        assert isinstance(end, Malformed if repeated else CallEnd)
    assert (sent == text) is not repeated and text.startswith(sent)
    if repeated:
        assert f"{again}: 1}}" not in sent


def test_held_calls_are_written_when_they_are_complete() -> None:
    start, delta = CallStart(0, "f", 0, 1), ArgumentsDelta(0, "{", 1, 2)
    argument = ArgumentEnd(0, "a", 1, 1, 2)
    end, text = CallEnd(0, "f", {}, False, 2, 3), Text("x", 3, 4)
    held = HeldCalls()
    assert [held.feed(event) for event in (start, delta, argument, end, text)] == [
        *([], [], []),
        [start, delta, argument, end],
        [text],
    ]
    assert [held.feed(event) for event in (delta, argument, end)] == [[delta], [argument], [end]]
    broken = Malformed("f(", Reason.TRUNCATED, "f", 1, {}, 4, 5)
    stray = Malformed("x", Reason.SYNTAX, None, None, {}, 5, 6)
    again = CallStart(1, "f", 4, 4)
    assert [held.feed(event) for event in (again, delta, broken, stray)] == [
        [],
        [],
        [Malformed("f(", Reason.TRUNCATED, "f", None, {}, 4, 5)],
        [stray],
    ]
