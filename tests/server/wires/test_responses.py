"""The responses API: every item is announced, written and done, and the last event is the whole answer."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.errors import ContextOverflow, EngineFailed
from localagent.messages import AssistantMessage, SystemMessage, ToolMessage, UserMessage
from localagent.server.exchange import BadRequest, Limits
from localagent.server.wires.chat import CHAT_WIRE
from localagent.server.wires.responses import OPTIONS, RESPONSES_WIRE
from localagent.tools.bounds import ToolBounds
from localagent.turn import Done
from parsers import CallStart, Malformed, Reason
from tests.parsers import outputs
from tests.server.wires.rules import check_response
from tests.server.wires.test_chat import TURNS, E, S, clean
from tests.server.wires.turns import ANSWER, answered, data_of, scored, spell, tokens_of, turn_of

WIRE = RESPONSES_WIRE
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}
CUSTOM = {"type": "custom", "name": "f", "description": "d", "format": {"type": "text"}}
ASK: dict[str, Any] = {"input": "Go.", "tools": [FUNCTION]}


def respond(turn: Any, body: Any = ASK, **answer: Any) -> tuple[list[Any], dict[str, Any]]:
    """The data of the stream, and the whole answer."""
    events = turn_of(turn) if isinstance(turn, str) else turn
    frames, whole = answered(WIRE, body, events, dataclasses.replace(ANSWER, **answer))
    assert [frame.event for frame in frames] == [data["type"] for data in data_of(frames)]
    return data_of(frames), whole


def said(item: dict[str, Any]) -> Any:
    """One item of the output, in short."""
    text = "".join(part["text"] for part in [*item.get("content", ()), *item.get("summary", ())])
    return item["type"], item.get("name"), text or item.get("arguments") or item.get("input")


OPTION_ROWS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "logprobs": {"include": ["message.output_text.logprobs"]},
    "top_logprobs": {"top_logprobs": 3},
    "sealed reasoning": {"include": ["reasoning.encrypted_content"], "store": False},
    "custom tool": {"tools": [CUSTOM]},
    "namespace": {"tools": [{"type": "namespace", "name": "f", "description": "", "tools": [FUNCTION]}]},
    "format": {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}},
    "numbers": {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 1000, "instructions": "Be kind."},
    "choice": {"tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": False},
    "reasoning": {"reasoning": {"effort": "xhigh", "summary": "auto"}},
}


@pytest.mark.parametrize("option", OPTION_ROWS)
@pytest.mark.parametrize("turn", TURNS)
def test_the_stream_keeps_all_rules_and_ends_in_the_whole_answer(turn, option):
    body = ASK | OPTION_ROWS[option]
    tokens = tokens_of(TURNS[turn])
    check_response(*respond(scored(turn_of(tokens), 3), body, spell=spell(tokens)))


@pytest.mark.parametrize("turn", TURNS)
def test_held_calls_keep_the_rules_too(turn):
    data, whole = respond(TURNS[turn], buffer_tool_calls=True)
    check_response(data, whole)
    done = [event["item"] for event in data if event["type"] == "response.output_item.done"]
    assert done == whole["output"]


@given(st.data())
@pytest.mark.parametrize("dialect", ["lfm2", "hermes"])
def test_any_output_in_any_pieces_keeps_the_rules(dialect, data):
    output = clean(data.draw(outputs.noise(dialect)))
    tokens = tokens_of(output, dialect, data.draw(outputs.cuts))
    inside = data.draw(st.sampled_from([None, "reasoning"]))
    limit = data.draw(st.none() | st.integers(1, 30))
    option = OPTION_ROWS[
        data.draw(
            st.sampled_from(["nothing", "top_logprobs", "custom tool", "sealed reasoning", "reasoning"])
        )
    ]
    events = scored(turn_of(tokens, dialect, inside, max_tokens=limit, tools=data.draw(outputs.tools)))
    chunks, whole = respond(
        events, ASK | option, buffer_tool_calls=data.draw(st.booleans()), spell=spell(tokens)
    )
    check_response(chunks, whole)
    done = events[-1]
    assert isinstance(done, Done)
    texts = {
        kind: "".join(said(item)[2] or "" for item in whole["output"] if item["type"] == kind)
        for kind in ("message", "reasoning")
    }
    assert texts == {"message": done.message.text, "reasoning": done.message.reasoning}
    calls = [json.loads(item["arguments"]) for item in whole["output"] if item["type"] == "function_call"]
    if option is not OPTION_ROWS["custom tool"]:
        assert calls == [call.arguments for call in done.message.tool_calls]


# -- the rules, one by one --------------------------------------------------------------------------------


def test_rule_3_and_17_ids_never_change_and_are_never_used_twice():
    data, _ = respond(TURNS["everything"])
    items = [event["item"] for event in data if "item" in event]
    ids = [item["id"] for item in items]
    assert len(set(ids)) == len(ids) // 2
    calls = {(item["id"], item["call_id"]) for item in items if "call_id" in item}
    assert len(calls) == len({call for _, call in calls}) == 3
    assert {event["response"]["id"] for event in data if "response" in event} == {"resp_k3y"}


def test_rule_17_everything_that_is_announced_is_done_in_its_order():
    data, whole = respond(TURNS["everything"])
    assert [said(item) for item in whole["output"]] == [
        ("reasoning", None, "so"),
        ("message", None, "First."),
        ("function_call", "f", '{"a": 1}'),
        ("message", None, "then"),
        ("message", None, "last"),
    ]
    done = [event["item"] for event in data if event["type"] == "response.output_item.done"]
    assert [(item["status"], item["arguments"]) for item in done if item not in whole["output"]] == [
        ("incomplete", '{"a": 2, "b": '),
        ("incomplete", '{"a": '),
    ]
    assert [(each["id"], each["arguments"], each["raw"]) for each in whole["malformed_tool_calls"]] == [
        ("call_k3y1", '{"a": 2, "b": ', "f(a=2, b=]"),
        ("call_k3y2", '{"a": ', "f(a=3"),
    ]


def test_rule_17_the_events_of_an_answer_one_by_one():
    data, _ = respond(TURNS["everything"])
    told = [event["type"].removeprefix("response.") for event in data]
    message = [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    thought = [kind.replace("output_text", "reasoning_text") for kind in message]
    call = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    broken = [kind for kind in call if kind != "function_call_arguments.done"]
    once = [kind for kind, before in zip(told, [None, *told], strict=False) if kind != before]
    assert once == [
        *("created", "in_progress"), *thought, *message, *call, *message, *broken, *message, *broken, "completed"
    ]  # fmt: skip
    parts = [event["part"]["text"] for event in data if event["type"] == "response.content_part.done"]
    assert parts == ["so", "First.", "then", "last"]
    assert all(event["content_index"] == 0 for event in data if ".content_part." in event["type"])


def test_rule_17_a_call_that_breaks_before_its_arguments_is_no_call_without_arguments():
    """Clients take no text at all for an empty object."""
    broken = [CallStart(0, "f", 0, 2), Malformed("f(1)", Reason.POSITIONAL_ARGUMENT, "f", 0, {}, 2, 4)]
    data, whole = respond([*broken, turn_of("")[-1]])
    check_response(data, whole)
    assert whole["output"] == [] and whole["malformed_tool_calls"][0]["arguments"] == "{"


def test_rule_17_completed_has_usage():
    _, whole = respond(TURNS["thinking"])
    assert whole["usage"]["total_tokens"] == whole["usage"]["input_tokens"] + whole["usage"]["output_tokens"]
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}
    assert whole["usage"]["input_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("limit", range(1, 18, 3))
def test_a_turn_cut_off_at_a_limit_is_incomplete(limit):
    data, whole = respond(turn_of(TURNS["everything"], max_tokens=limit))
    check_response(data, whole)
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_rule_10_hosted_tools_are_left_out_and_namespaces_are_flattened():
    tools = [
        {"type": "web_search"},
        {
            "type": "namespace",
            "name": "mcp__docs__",
            "description": "",
            "tools": [FUNCTION, {"type": "web_search"}],
        },
        {"type": "namespace", "name": "git", "description": "", "tools": [FUNCTION, {**CUSTOM, "name": "g"}]},
        {"type": "local_shell"},
    ]
    body = {"input": "Go.", "tools": tools}
    request = WIRE.read(body)
    assert [tool["function"]["name"] for tool in request.tools] == ["mcp__docs__f", "git__f", "git__g"]
    assert request.ignored == ("web_search", "web_search", "local_shell")
    _, whole = respond(f"{S}[mcp__docs__f(a=1), git__g(input='x')]{E}", body)
    assert [(each["type"], each["namespace"], each["name"]) for each in whole["output"]] == [
        ("function_call", "mcp__docs__", "f"),
        ("custom_tool_call", "git", "g"),
    ]
    again = WIRE.read({"input": whole["output"]}).messages[0]
    assert [call.name for call in again.tool_calls] == ["mcp__docs__f", "git__g"]
    searched = {"type": "web_search_call", "id": "w", "status": "completed"}
    assert WIRE.read({"input": [searched, *whole["output"]]}).ignored == ("web_search_call",)
    chosen = WIRE.read(body | {"tool_choice": {"type": "function", "namespace": "git", "name": "f"}})
    assert chosen.tool_choice == {"type": "function", "function": {"name": "git__f"}}
    assert chosen.details["echo"]["tool_choice"] == {"type": "function", "name": "git__f"}
    with pytest.raises(BadRequest, match="one more than the 2 that are taken"):
        WIRE.read({"input": "Go.", "tools": tools[1:3]}, Limits(tools=ToolBounds(count=2)))


def test_rule_11_the_output_of_a_function_may_be_a_list_of_parts():
    parts = [{"type": "input_text", "text": "four"}, {"type": "output_text", "text": " or five"}]
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    for output in ("four or five", parts):
        items = [call, {"type": "function_call_output", "call_id": "a", "output": output}]
        _, answer = WIRE.read({"input": items}).messages
        assert (answer.text, answer.results[0].name) == ("four or five", "f")


def test_rule_12_codex_is_told_in_the_stream_that_the_prompt_is_too_long():
    error = ContextOverflow(5000, 4096)
    assert WIRE.fails_in_stream(error) and not WIRE.fails_in_stream(EngineFailed("no"))
    writer = WIRE.writer(WIRE.read(ASK), ANSWER)
    *_, failed, last = data_of([*writer.begin(), *writer.fail(error)])
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {
        "code": "context_length_exceeded",
        "message": WIRE.error(error)[1]["error"]["message"],
    }
    assert last["type"] == "error" and last["error"]["code"] == "context_length_exceeded"
    assert WIRE.error(error)[0] == 400 and WIRE.error(error)[1]["error"]["code"] == "context_length_exceeded"


def test_rule_13_an_event_keeps_the_connection_alive_at_any_time():
    writer = WIRE.writer(WIRE.read(ASK), ANSWER)
    frames = writer.begin() + writer.keep_alive()
    for event in turn_of(TURNS["everything"]):
        frames += writer.feed(event)
        if not isinstance(event, Done):
            frames += writer.keep_alive()
    data = data_of(frames)
    assert data[2]["type"] == "response.in_progress" and data[2]["response"]["output"] == []
    check_response(data, writer.whole())


def test_rule_22_an_error_in_mid_stream_keeps_what_was_done():
    writer = WIRE.writer(WIRE.read(ASK), ANSWER)
    frames = writer.begin()
    for event in turn_of("<think>so</think>First.")[:-1]:
        frames += writer.feed(event)
    *_, failed, last = data_of(frames + writer.fail(EngineFailed("the engine broke")))
    assert [said(item) for item in failed["response"]["output"]] == [("reasoning", None, "so")]
    assert failed["response"]["error"] == {"code": "server_error", "message": "the engine broke"}
    assert last["error"] == {
        "message": "the engine broke",
        "type": "server_error",
        "param": None,
        "code": None,
    }
    assert last["sequence_number"] == failed["sequence_number"] + 1
    assert WIRE.error(BadRequest("no", "input"))[1] == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "input", "code": None}
    }


def test_rule_22_the_openai_package_raises_what_the_stream_says():
    """As the package's own `Stream` does it: an event with an `error` is raised."""
    import httpx2
    import openai
    from openai.types.responses import ResponseStreamEvent

    writer = WIRE.writer(WIRE.read(ASK), ANSWER)
    body = b"".join(frame.encode() for frame in [*writer.begin(), *writer.fail(EngineFailed("it broke"))])
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, content=body, headers={"content-type": "text/event-stream"})
    )
    with openai.OpenAI(
        api_key="k", base_url="http://x/v1", http_client=httpx2.Client(transport=transport)
    ) as client:
        stream = client.responses.create(model="m", input="Go.", stream=True)
        with pytest.raises(openai.APIError, match="it broke"):
            list[ResponseStreamEvent](stream)


# -- what a client sends back -----------------------------------------------------------------------------


def test_an_answer_sent_back_is_the_turn_that_the_model_wrote():
    _, whole = respond(f"<think>so</think>First.{S}[f(a='x'), f(a='y')]{E}")
    results = [{"type": "function_call_output", "call_id": f"call_k3y{n}", "output": f"{n}"} for n in (1, 0)]
    question = {"role": "user", "content": [{"type": "input_text", "text": "Go."}]}
    first, said, answer = WIRE.read({"input": [question, *whole["output"], *results]}).messages
    assert isinstance(first, UserMessage) and isinstance(said, AssistantMessage)
    assert (said.reasoning, said.text) == ("so", "First.")
    assert [call.arguments for call in said.tool_calls] == [{"a": "x"}, {"a": "y"}]
    assert isinstance(answer, ToolMessage) and [result.text for result in answer.results] == ["1", "0"]


@pytest.mark.parametrize("length", ["auto", "concise", "detailed"])
def test_reasoning_is_the_summary_of_whoever_asks_for_one(length):
    data, whole = respond("<think>so it is</think>First.", ASK | {"reasoning": {"summary": length}})
    check_response(data, whole)
    part = {"type": "summary_text", "text": "so it is"}
    assert (whole["output"][0]["summary"], "content" in whole["output"][0]) == ([part], False)
    kinds = [event["type"].removeprefix("response.") for event in data]
    assert list(dict.fromkeys(kinds))[2:8] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    assert {event["summary_index"] for event in data if "summary" in event["type"]} == {0}
    assert WIRE.read({"input": [whole["output"][0]]}).messages[0].reasoning == "so it is"
    assert whole["reasoning"]["summary"] == length


def test_no_summary_may_be_asked_for_by_its_name():
    _, whole = respond("<think>so it is</think>First.", ASK | {"reasoning": {"summary": "none"}})
    reasoning = whole["output"][0]
    assert (reasoning["summary"], reasoning["content"][0]["text"]) == ([], "so it is")
    assert whole["reasoning"]["summary"] == "none"


def test_codex_gets_its_reasoning_back():
    """It sends back `encrypted_content` and drops `content`."""
    _, whole = respond("<think>so</think>First.", ASK | OPTION_ROWS["sealed reasoning"])
    reasoning = {**whole["output"][0], "content": None}
    assert WIRE.read({"input": [reasoning]}).messages[0].reasoning == "so"
    foreign = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "gAAAAABo"}
    assert WIRE.read({"input": [foreign, {"role": "user", "content": "Hi"}]}).messages[0].content == ()


def test_logprobs_stand_in_the_part_of_the_text():
    tokens = tokens_of("<think>hm</think>Good day")
    data, whole = respond(scored(turn_of(tokens), 2), ASK | OPTION_ROWS["top_logprobs"], spell=spell(tokens))
    (part,) = whole["output"][1]["content"]
    assert [entry["token"] for entry in part["logprobs"]] == ["Good", " day"]
    (done,) = [event for event in data if event["type"] == "response.output_text.done"]
    assert done["logprobs"] == part["logprobs"]
    (added,) = [
        event
        for event in data
        if event["type"] == "response.content_part.added" and "annotations" in event["part"]
    ]
    assert (added["part"]["text"], added["part"]["logprobs"]) == ("", []), "the first delta is not told twice"


@pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
def test_chat_completions_are_stateless_too(field):
    with pytest.raises(BadRequest, match=rf"^{field}: .*stateless"):
        CHAT_WIRE.read({"messages": [{"role": "user", "content": "Go."}], field: "resp_1"})


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "background"])
def test_the_server_is_stateless(field):
    with pytest.raises(BadRequest, match=rf"^{field}: .*stateless") as caught:
        WIRE.read(ASK | {field: True if field == "background" else "resp_1"})
    assert (caught.value.param, caught.value.status) == (field, 400)
    assert WIRE.read(ASK | {field: False if field == "background" else None}).ignored == ()


def test_instructions_roles_and_limits():
    body = {
        "model": "m",
        "instructions": "Be kind.",
        "input": [
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": "Hi"},
        ],
        "max_output_tokens": 7,
        "stream": True,
        "reasoning": {"effort": "minimal"},
        "parallel_tool_calls": False,
    }
    request = WIRE.read(body)
    assert (request.model, request.system, request.stream) == ("m", "Be kind.", True)
    assert (request.options, request.thinking, request.parallel_tool_calls) == (
        {"max_tokens": 7},
        "low",
        False,
    )
    assert [type(message) for message in request.messages] == [SystemMessage, UserMessage]


def test_every_field_of_the_api_is_in_the_table():
    from openai.types.responses import response_create_params

    fields = response_create_params.ResponseCreateParamsBase.__annotations__
    assert fields.keys() <= OPTIONS.keys()
