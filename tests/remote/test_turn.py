"""One remote turn without a server: every field of a chunk becomes what it says, and nothing more."""

from __future__ import annotations

import re
from typing import Any

import pytest

from localagent.constraint.schema import Relaxed
from localagent.control import Control
from localagent.errors import StreamBroken
from localagent.messages import (
    AssistantMessage,
    MalformedToolCallPart,
    Prices,
    SystemMessage,
    TextPart,
    Timings,
    ToolCallPart,
    Usage,
    UserMessage,
)
from localagent.remote import RemoteLogprobs, Server
from localagent.remote.calls import RemoteCalls
from localagent.remote.request import chat_body, counting_body
from localagent.remote.turn import RemoteTurn
from localagent.turn import BrokenOff, Done
from parsers import (
    ArgumentEnd,
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Malformed,
    Misfit,
    MisfitKind,
    Reason,
    Reasoning,
    Text,
)
from tests.server.wires.turns import TOOL

URL = "http://there:1"


def turn(prices: Prices | None = None) -> RemoteTurn:
    return RemoteTurn(Server(URL), "asked", prices)


def test_a_call_says_whether_it_fits_the_tools_that_were_declared() -> None:
    made = RemoteTurn(Server(URL), "asked", None, [TOOL])
    for each in (call(0, "x", "f", '{"b": 1}'), call(1, "y", "f", '{"a": 1}')):
        made.feed(chunk({"tool_calls": [each]}))
    made.feed(chunk(finish="tool_calls"))
    end = made.close()[-1]
    assert isinstance(end, Done)
    assert [part.fits for part in end.message.tool_calls] == [(Misfit(MisfitKind.UNKNOWN, "/b"),), True]


def chunk(delta: Any = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta or {}, "finish_reason": finish}], **fields}


def done(*chunks: Any, prices: Prices | None = None) -> Done:
    """The end of a turn of these chunks, which stops by itself if none of them says otherwise."""
    made = turn(prices)
    for each in (*chunks, *(() if any(_ends(each) for each in chunks) else [chunk(finish="stop")])):
        made.feed(each)
    end = made.close()[-1]
    assert isinstance(end, Done)
    return end


def _ends(each: Any) -> bool:
    return any(choice.get("finish_reason") for choice in each.get("choices", ()))


def call(
    index: Any = None, call_id: str | None = None, name: str | None = None, piece: Any = None, **more: Any
) -> Any:
    return {"index": index, "id": call_id, "function": {"name": name, "arguments": piece}, **more}


# -- numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}, (9, 4, 5)),
        ({"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 10}}, (9, 1, 9)),
        ({"prompt_tokens": 1, "prompt_tokens_details": 3}, (1, 0, 0)),
        ({"prompt_tokens": -1, "completion_tokens": True}, (0, 0, 0)),
        ({"prompt_tokens": "9", "completion_tokens": 2.5}, (0, 0, 0)),
        ([], (0, 0, 0)),
    ],
)  # fmt: skip
def test_the_tokens_that_a_server_counts(used: Any, expected: tuple[int, int, int]) -> None:
    usage = done(chunk({"content": "a"}, usage=used)).message.usage
    assert (usage.input, usage.output, usage.cache_read) == expected


def test_what_they_cost() -> None:
    used = {"prompt_tokens": 3_000_000, "completion_tokens": 2_000_000}
    cost = done(chunk(usage=used), prices=Prices(input=1, output=10)).message.usage.cost
    assert cost is not None and (cost.input, cost.output) == (3, 20)
    assert done(chunk(usage=used)).message.usage.cost == Usage().cost


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"prompt_ms": 1500, "predicted_ms": 250.5}, Timings(prefill=1.5, decode=0.2505)),
        ({"prompt_ms": -1, "predicted_ms": 1e12}, Timings(prefill=0, decode=0)),
        ({"prompt_ms": "1", "predicted_ms": 0}, Timings(prefill=0, decode=0)),
    ],
)
def test_the_times_that_a_server_measures(told: Any, expected: Timings) -> None:
    assert done(chunk(timings=told)).message.timings == expected


def test_without_them_the_times_are_those_seen_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 102.0, 109.0])
    monkeypatch.setattr("localagent.remote.turn.monotonic", lambda: next(clock))
    began = chunk({"tool_calls": [call(0, "c", "f", "{}")]})
    assert done(began, chunk({"content": "a"}, "stop")).message.timings == Timings(prefill=2, decode=7)


def test_what_was_not_enforced_of_schemas() -> None:
    entry = {"tool": "f", "path": "/a", "keyword": "pattern", "reason": "no"}
    relaxed = done(chunk(relaxed_schemas=[entry, 7, {"tool": 3}]), chunk(relaxed_schemas=9)).relaxed
    assert relaxed == (Relaxed("f", "/a", "pattern", "no"), Relaxed("", "", "", ""))


def test_the_scores_of_tokens() -> None:
    content = [
        {"token": "a", "logprob": -1, "top_logprobs": [{"token": "a", "logprob": -1}, {"token": "b", "logprob": "no"}]},
        {"logprob": -2.5},
        {"token": "c"},
        7,
    ]  # fmt: skip
    choice = {"delta": {"content": "a"}, "logprobs": {"content": content}, "finish_reason": "stop"}
    found = done({"choices": [choice, choice]}).logprobs
    assert found == (RemoteLogprobs(-1.0, (), "a", (("a", -1.0),)), RemoteLogprobs(-2.5, (), "", ()))


# -- texts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delta", "events"),
    [
        ({"content": "ab"}, [Text("ab", 0, 2)]),
        ({"content": ""}, []),
        ({"content": [{"type": "text", "text": "ab"}, {"type": "x"}, 7, {"text": "c"}]}, [Text("ab", 0, 2), Text("c", 2, 3)]),
        ({"content": None, "refusal": "no"}, [Text("no", 0, 2)]),
        ({"content": "a", "refusal": "no"}, [Text("a", 0, 1), Text("no", 1, 3)]),
        ({"reasoning_content": "hm", "reasoning": "hm"}, [Reasoning("hm", 0, 2)]),
        ({"reasoning_content": None, "reasoning": "", "thinking": "so"}, [Reasoning("so", 0, 2)]),
        ({"reasoning": "hm", "content": "a"}, [Reasoning("hm", 0, 2), Text("a", 2, 3)]),
        ({"malformed_tool_calls": [{"raw": "f(", "name": "f", "reason": "truncated"}]},
         [Malformed("f(", Reason.TRUNCATED, "f", None, {}, 0, 2)]),
        ({"malformed_tool_calls": [{"raw": "f(", "reason": "of tomorrow", "id": "nobody"}]},
         [Malformed("f(", Reason.SYNTAX, None, None, {}, 0, 2)]),
        ({"malformed_tool_calls": [{}], "tool_calls": None}, [Malformed("", Reason.SYNTAX, None, None, {}, 0, 0)]),
    ],
)  # fmt: skip
def test_the_events_of_a_delta(delta: Any, events: list[Any]) -> None:
    assert turn().feed(chunk(delta)) == events
    assert (
        turn().feed({"choices": [{"message": delta}, {"message": {"content": "of another choice"}}]})
        == events
    )


def test_pieces_follow_each_other_and_a_call_ends_when_something_else_comes() -> None:
    made = turn()
    told = [
        *made.feed(chunk({"content": "ab"})),
        *made.feed(chunk({"tool_calls": [call(0, "c", "f", '{"a": 1')]})),
        *made.feed(chunk({"tool_calls": [call(0, piece="}")]})),
        *made.feed(chunk({"content": "z"})),
    ]
    assert [type(event) for event in told] == [
        Text, CallStart, ArgumentsDelta, *(type(e) for e in told[3:-2]), CallEnd, Text
    ]  # fmt: skip
    assert [event.start for event in told[1:]] == [event.end for event in told[:-1]]
    assert [event.value for event in told if isinstance(event, ArgumentEnd)] == [1]
    *_, ended, last = told
    assert isinstance(ended, CallEnd) and (ended.index, ended.name, ended.arguments) == (0, "f", {"a": 1})
    assert last == Text("z", ended.end, ended.end + 1)


def test_who_answered_and_with_which_id() -> None:
    message = done({"id": "one", "model": "theirs"}, {"id": "two", "model": ""}, {"model": "other"}).message
    assert (message.id, message.model) == ("one", "other")
    message = done(chunk({"content": "a"})).message
    assert message.model == "asked"
    assert re.fullmatch(r"msg_[0-9a-f]{16}", message.id or "")
    assert message.timestamp is not None and message.raw is None


def test_what_a_provider_adds_is_kept_with_its_call_alone() -> None:
    given = [
        call(0, "a", "f", '{"x": 1}', type="function", extra_content={"s": 1}, nothing=None),
        call(1, "b", "g", '{"x": ', more=2),
        call(2, "c", "h", "{}"),
    ]
    message = done(chunk({"content": "t", "tool_calls": given})).message
    assert [(type(part), part.provider_metadata) for part in message.content] == [
        (TextPart, {}),
        (ToolCallPart, {"openai": {"extra_content": {"s": 1}}}),
        (MalformedToolCallPart, {"openai": {"more": 2}}),
        (ToolCallPart, {}),
    ]
    assert [part.id for part in message.content[1:]] == ["a", "b", "c"]  # type: ignore[union-attr]


# -- ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finish", "calls", "reason", "error"),
    [
        ("stop", False, "stop", None),
        ("stop", True, "tool_calls", None),
        ("tool_calls", False, "stop", None),
        ("function_call", True, "tool_calls", None),
        ("length", True, "length", None),
        ("content_filter", False, "content_filter", None),
        ("bored", True, "error", "the server stopped for a reason that is not known here: 'bored'"),
    ],
)
def test_why_it_ended(finish: str, calls: bool, reason: str, error: str | None) -> None:
    delta = {"tool_calls": [call(0, "c", "f", "{}")]} if calls else {"content": "a"}
    message = done(chunk(delta, finish), chunk()).message
    assert (message.stop_reason, message.error) == (reason, error)
    assert bool(message.tool_calls) is calls


def test_an_answer_without_an_end_is_broken() -> None:
    made = turn()
    made.feed(chunk({"content": "a"}))
    with pytest.raises(StreamBroken) as caught:
        made.close()
    assert str(caught.value) == f"{URL} broke the answer off in the midst: its log says why; ask again"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ([], "a chunk that is no object"),
        ({"choices": "x"}, "choices that are no list"),
        ({"choices": 7}, "choices that are no list"),
        ({"choices": [7]}, "a choice that is no object"),
        (chunk("x"), "a delta that is no object"),
        (chunk({"tool_calls": {}, "content": "a"}), "tool_calls that are no list of objects"),
        (chunk({"tool_calls": {"a": 1}}), "tool_calls that are no list of objects"),
        (chunk({"malformed_tool_calls": [7]}), "malformed_tool_calls that are no list of objects"),
    ],
)
def test_what_is_no_chunk_is_named(given: Any, what: str) -> None:
    if given == chunk({"tool_calls": {}, "content": "a"}):  # an empty one says nothing
        assert turn().feed(given) == [Text("a", 0, 1)]
        return
    with pytest.raises(StreamBroken) as caught:
        turn().feed(given)
    assert str(caught.value) == f"{URL} streams {what}, which is no chat completion: correct the address"


def test_a_turn_that_is_left_or_breaks_keeps_what_was_written() -> None:
    made = turn()
    assert made.broken(OSError("gone")) == []
    made.feed(chunk({"content": "Half"}))
    (broken,) = made.broken(OSError("gone"))
    assert isinstance(broken, BrokenOff)
    message = broken.message
    assert (message.text, message.stop_reason, message.error) == ("Half", "error", "gone")
    assert made.broken(OSError())[0].message.error == "OSError"  # type: ignore[union-attr]
    assert made.broken(KeyboardInterrupt())[0].message.stop_reason == "cancelled"  # type: ignore[union-attr]
    (end,) = made.cancelled()
    assert isinstance(end, Done)
    assert (end.message.text, end.message.stop_reason, end.message.error) == ("Half", "cancelled", None)


# -- calls -------------------------------------------------------------------------------------------------


def fed(*deltas: Any) -> tuple[RemoteCalls, list[Any]]:
    calls, events = RemoteCalls(), []
    for delta in deltas:
        events += calls.feed(delta)
    return calls, events


def test_calls_that_are_given_up_were_all_announced() -> None:
    calls, told = fed(call(0, "a", "f", '{"x": '), call(1, "b", "g", '{"y": 2}'), call(2, "c", "h"))
    assert [event.index for event in told if isinstance(event, CallStart)] == [0]
    ends = calls.abandon()
    assert [(type(event), event.index) for event in ends if isinstance(event, CallStart | Malformed)] == [
        *((Malformed, 0), (CallStart, 1), (Malformed, 1), (CallStart, 2), (Malformed, 2)),
    ]
    broken = [event for event in ends if isinstance(event, Malformed)]
    assert {event.reason for event in broken} == {Reason.TRUNCATED}
    assert [event.raw for event in broken] == [
        '{"name": "f", "arguments": {"x": ',
        '{"name": "g", "arguments": {"y": 2}',
        '{"name": "h", "arguments": ',
    ]
    assert calls.abandon() == calls.close("stop") == []


def test_a_call_that_is_taken_back_never_was_and_the_next_one_begins() -> None:
    calls, _ = fed(call(0, "a", "é", '{"x": '), call(1, "b", "g", '{"y": 2}'))
    assert calls.take_back("nobody", "", "syntax", None) is None
    events = calls.take_back("a", "é(x=", "of tomorrow", None)
    assert events is not None
    assert events[0] == Malformed("é(x=", Reason.SYNTAX, "é", 0, {}, 0, 0)
    assert isinstance(events[1], CallStart) and (events[1].index, events[1].name) == (1, "g")
    events = calls.take_back("b", "g(", "truncated", "other")
    assert events == [Malformed("g(", Reason.TRUNCATED, "other", 1, {"y": 2}, 0, 0)]
    assert calls.close("stop") == []


@pytest.mark.parametrize("end", ["more", "close", "leave"])
def test_one_that_waits_is_taken_back_when_the_call_before_it_is_told(end: str) -> None:
    made = turn()
    pieces = [call(0, "a", "f", '{"x": '), call(1, "b", "g", '{"y": 2'), call(2, "c", "h", "{}")]
    events = made.feed(chunk({"tool_calls": pieces}))
    back = {"raw": "g(", "name": "g", "reason": "syntax", "id": "b"}
    assert made.feed(chunk({"malformed_tool_calls": [back]})) == []
    if end == "more":
        events += made.feed(chunk({"tool_calls": [call(0, piece="1}")]}, "tool_calls"))
        events += made.feed(chunk({"content": "x"}))
    events += made.cancelled() if end == "leave" else made.feed(chunk(finish="stop")) + made.close()
    assert [event.index for event in events if isinstance(event, CallStart)] == [0, 1, 2]
    done = events[-1]
    assert isinstance(done, Done)
    content = [part for part in done.message.content if not isinstance(part, TextPart)]
    assert [part.id for part in content] == ["a", "b", "c"]  # type: ignore[union-attr]
    broken = content[1]
    assert isinstance(broken, MalformedToolCallPart)
    assert (broken.raw, broken.reason, broken.name) == ("g(", "syntax", "g")
    assert len(done.message.tool_calls) == {"more": 2, "close": 1, "leave": 0}[end]


@pytest.mark.parametrize(
    ("deltas", "found"),
    [
        ([call("x", "a", "f", '{"x": 1}'), call("y", "b", "g", "{}")], [("f", {"x": 1}), ("g", {})]),
        ([call([7], "a", "f", "{}"), call([7], "a", None, " ")], [("f", {}), ("", {})]),
        ([call(None, None, "f", "{"), call(None, None, None, "}")], [("f", {})]),
        ([call(None, "a", "f", "{"), call(None, "a", None, "}")], [("f", {})]),
        ([call(0, "a", "f", {"x": "é"})], [("f", {"x": "é"})]),
        ([call(0, "a", 7, "{}"), {"index": 0, "function": 3}], [("", {})]),
        ([{"index": 0, "id": 5, "function": {"name": "f"}}], [("f", {})]),
        ([call(0, "a", "f", "{}"), call(0, "", None, " ")], [("f", {})]),
    ],
)
def test_which_pieces_belong_together(deltas: list[Any], found: list[Any]) -> None:
    calls, events = fed(*deltas)
    events += calls.close("stop")
    ends = [event for event in events if isinstance(event, CallEnd | Malformed)]
    assert [(event.name, event.arguments) for event in ends if isinstance(event, CallEnd)] == found


# -- requests ----------------------------------------------------------------------------------------------

GO = [UserMessage.text("Go.")]
FORM = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("sampling", "control", "more"),
    [
        ({"temperature": None, "top_k": 0}, {}, {"top_k": 0}),
        ({"stop": "x"}, {}, {"stop": ["x"]}),
        ({"stop": ("x", "y")}, {}, {"stop": ["x", "y"]}),
        ({"logprobs": 0}, {}, {"logprobs": True, "top_logprobs": 0}),
        ({}, {"tool_choice": "required"}, {"tool_choice": "required"}),
        ({}, {"tool_choice": "none", "parallel_tool_calls": False}, {"tool_choice": "none", "parallel_tool_calls": False}),
        ({}, {"tool_choice": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ({}, {"strict": True}, {"tools": [{"type": "function", "function": {**TOOL["function"], "strict": True}}]}),
        ({}, {"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
        ({}, {"response_format": FORM}, {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", **FORM["json_schema"]}}}),
        ({}, {"response_format": {**FORM, "json_schema": {"name": "n", "schema": {}}}}, {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}}),
        ({}, {"thinking": True}, {"chat_template_kwargs": {"enable_thinking": True}}),
        ({}, {"thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({}, {"thinking": "low", "thinking_budget": 9}, {"reasoning_effort": "low", "thinking_budget_tokens": 9}),
    ],
)  # fmt: skip
def test_what_is_asked_of_a_server_is_what_was_asked_for(
    sampling: Any, control: Any, more: dict[str, Any]
) -> None:
    least = {
        "model": "m",
        "messages": [{"role": "user", "content": "Go."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": TOOL["function"]}],
    }
    assert chat_body("m", GO, [TOOL["function"]], sampling, Control(**control)) == {**least, **more}  # type: ignore[list-item]
    assert "strict" not in TOOL["function"]


def test_without_tools_there_is_no_choice_among_them() -> None:
    body = chat_body("m", GO, [], {}, Control(tool_choice="none", parallel_tool_calls=False))
    assert body.keys() == {"model", "messages", "stream", "stream_options"}


def test_what_is_asked_to_count_tokens() -> None:
    history = [SystemMessage.text("Hm."), *GO, AssistantMessage.text("Yes."), *GO]
    bare = {"type": "function", "function": {"name": "g"}}
    body = counting_body("m", history, [TOOL, bare])
    assert body == {
        "model": "m",
        "system": "Hm.",
        "messages": [
            {"role": role, "content": [{"type": "text", "text": text}]}
            for role, text in (("user", "Go."), ("assistant", "Yes."), ("user", "Go."))
        ],
        "tools": [
            {"name": "f", "description": "", "input_schema": TOOL["function"]["parameters"]},  # type: ignore[index]
            {"name": "g", "description": "", "input_schema": {"type": "object", "properties": {}}},
        ],
    }
    assert "tools" not in counting_body("m", GO, None)
