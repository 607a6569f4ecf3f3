"""Anthropic's messages: its rules of the wire, against the official package, and requests of every sort."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message as OfficialMessage
from anthropic.types import MessageTokensCount, RawMessageStreamEvent
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from anthropic.types.beta.message_create_params import (
    MessageCreateParamsStreaming as BetaMessageCreateParamsStreaming,
)
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from anthropic.types.shared import ErrorResponse
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from localagent.constraint.schema import Relaxed
from localagent.errors import ContextOverflow, EngineFailed, NotEnoughMemory, UnknownModel
from localagent.hosts.protocol import Prefilled, Queued
from localagent.messages import (
    AssistantMessage,
    MalformedToolCallPart,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    Usage,
    UserMessage,
)
from localagent.server.exchange import BadRequest, Frame, Limits
from localagent.server.wires.message_writer import SIGNATURE
from localagent.server.wires.messages import COUNT_TOKENS_WIRE, MESSAGES_WIRE, OPTIONS
from localagent.tools.bounds import ToolBounds
from localagent.turn import BrokenOff, Done
from parsers import DIALECTS, CallStart, Reasoning, Text
from parsers.events import MAX_DEPTH
from tests.agent.replaying import block
from tests.messages.strategies import json_values
from tests.server.wires.telling import ANSWER, Told, models, tell

MESSAGES, COUNT_TOKENS = MESSAGES_WIRE, COUNT_TOKENS_WIRE
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
BETA_EVENT: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)
THINK, THOUGHT = DIALECTS["lfm2"].reasoning.open, DIALECTS["lfm2"].reasoning.close
ADD = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
HELLO = {"role": "user", "content": "Hello."}


def body(**more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 1000, "messages": [HELLO], **more}


def read(**more: Any) -> Any:
    return MESSAGES.read(body(**more))


def without_timings(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "timings"}


def said(output: str, **more: Any) -> Told:
    told = tell(MESSAGES, body(**more), output)
    keeps_the_rules(told)
    return told


def kinds(told: Told) -> list[str]:
    """The types of the events, and of the deltas instead of the events that carry them."""
    return [
        data["delta"]["type"] if "index" in data and "delta" in data else data["type"] for data in told.data
    ]


# -- the rules of the wire ----------------------------------------------------------------------------------


def folded(told: Told) -> dict[str, Any]:
    """What the official package makes of the stream."""
    snapshot, buffers = None, {}
    for data in told.data:
        event = EVENT.validate_python(data)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    return snapshot.to_dict(mode="json")


OURS = ("malformed_tool_calls", "unfit_tool_calls", "timings", "relaxed_schemas")
"""The fields that are not of the API."""


def keeps_the_rules(told: Told) -> None:
    """The rules that hold for every answer whatever."""
    ours = {name: told.whole[name] for name in OURS if name in told.whole}
    whole = {name: value for name, value in told.whole.items() if name not in OURS}
    OfficialMessage.model_validate(told.whole, strict=True)
    BetaMessage.model_validate(told.whole)
    assert folded(told) == whole  # 21: what was streamed is in the whole message
    assert [frame.event for frame in told.frames] == [data["type"] for data in told.data]  # 22
    for data in told.data:
        BETA_EVENT.validate_python(data)
    assert ours == {name: told.data[-2][name] for name in OURS if name in told.data[-2]}
    blocks_are_in_order(told)
    calls = [part for part in whole["content"] if part["type"] == "tool_use"]
    assert len({call["id"] for call in calls}) == len(calls)
    assert whole["stop_reason"] in ("end_turn", "tool_use", "max_tokens", "stop_sequence")  # 16
    assert calls or whole["stop_reason"] != "tool_use"
    assert (whole["stop_sequence"] is not None) == (whole["stop_reason"] == "stop_sequence")


def blocks_are_in_order(told: Told) -> None:
    """One block after the other, each opened, written and closed, with indexes that count from 0."""
    first, *events, delta, stop = told.data
    assert [first["type"], delta["type"], stop["type"]] == ["message_start", "message_delta", "message_stop"]
    blocks: list[list[dict[str, Any]]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append([])
        assert event["index"] == len(blocks) - 1
        blocks[-1].append(event)
    for start, *deltas, end in blocks:
        assert (start["type"], end["type"]) == ("content_block_start", "content_block_stop")
        assert all(event["type"] == "content_block_delta" for event in deltas)
        match opened := start["content_block"]:
            case {"type": "thinking"}:  # 14
                assert opened["signature"] == ""
                assert deltas[-1]["delta"] == {"type": "signature_delta", "signature": SIGNATURE}
                assert {event["delta"]["type"] for event in deltas[:-1]} == {"thinking_delta"}
            case {"type": "tool_use"}:  # 19
                assert opened["input"] == {}
                joined = "".join(event["delta"]["partial_json"] for event in deltas)
                assert isinstance(json.loads(joined), dict)
            case _:
                assert {event["delta"]["type"] for event in deltas} == {"text_delta"}


@settings(max_examples=300)
@given(models(), st.sampled_from([{}, {"max_tokens": 3}, {"stop_sequences": ["a", "</"]}]))
def test_whatever_the_model_writes_keeps_the_rules(model, options):
    keeps_the_rules(tell(MESSAGES, body(**options), model))


EVERYTHING = (
    f"{THINK}so{THOUGHT}First."
    + block("add(a=1)")
    + "then"
    + block("add(a=2, b=)")
    + "last"
    + block("add(a=3")
)
OPTION_ROWS: dict[str, dict[str, Any]] = {
    "sampling": {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "seed": 7},
    "a limit": {"max_tokens": 12},
    "stop sequences": {"stop_sequences": ["then"]},
    "tools": {"tools": [ADD], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    "no tools": {"tools": [ADD], "tool_choice": {"type": "none"}},
    "one tool": {"tools": [ADD], "tool_choice": {"type": "tool", "name": "add"}},
    "thinking": {"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}},
    "no thinking": {"thinking": {"type": "disabled"}},
    "effort": {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
    "a format": {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
    "a system prompt": {"system": "Be kind."},
    "hints": {"metadata": {"user_id": "u"}, "service_tier": "auto", "betas": ["x"]},
}


@pytest.mark.parametrize("output", [EVERYTHING, "Hello.", "", block("add(a=1)"), f"{THINK}so"])
@pytest.mark.parametrize("option", OPTION_ROWS)
def test_rule_21_the_stream_equals_the_whole_message_with_every_option(option, output):
    streamed, asked_whole = (said(output, stream=stream, **OPTION_ROWS[option]) for stream in (True, False))
    assert without_timings(streamed.whole) == without_timings(asked_whole.whole)


def test_every_field_of_the_api_is_in_the_table():
    fields = MessageCreateParamsStreaming.__annotations__ | BetaMessageCreateParamsStreaming.__annotations__
    assert fields.keys() <= OPTIONS.keys()


def test_rule_2_and_4_blocks_come_one_after_the_other():
    told = said(f"{THINK}hm{THOUGHT}I add." + block("add(a=1)", "add(a=2)") + "Done.")
    assert kinds(told) == [
        "message_start",
        *("content_block_start", "thinking_delta", "signature_delta", "content_block_stop"),
        *("content_block_start", "text_delta", "text_delta", "content_block_stop"),
        *("content_block_start", "input_json_delta", "content_block_stop"),
        *("content_block_start", "input_json_delta", "content_block_stop"),
        *("content_block_start", "text_delta", "content_block_stop"),
        "message_delta",
        "message_stop",
    ]
    assert told.whole["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
        {"type": "text", "text": "I add."},
        {"type": "tool_use", "id": "toolu_K_0", "name": "add", "input": {"a": 1}},
        {"type": "tool_use", "id": "toolu_K_1", "name": "add", "input": {"a": 2}},
        {"type": "text", "text": "Done."},
    ]


def test_rule_9_hints_are_ignored_and_named():
    request = read(
        metadata={"user_id": "u"},
        service_tier="auto",
        context_management={"edits": []},
        output_config={"effort": "high", "task_budget": 7},
        betas=["x"],
        of_tomorrow=1,
        container=None,
        system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
    )
    assert request.ignored == (
        *("metadata", "service_tier", "context_management", "betas", "of_tomorrow", "cache_control"),
        *("output_config.effort", "output_config.task_budget"),
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("thread", {"type": "create"}),
        ("thread", {"type": "continue", "previous_message_id": "msg_1"}),
        ("container", "container_1"),
        ("container", {"skills": [{"type": "anthropic", "skill_id": "pdf"}]}),
        ("fallbacks", [{"model": "other"}]),
        ("fallback_credit_token", "token"),
        ("compaction", {"type": "summarize"}),
    ],
)
def test_nothing_that_needs_a_memory_is_ignored(field, value):
    with pytest.raises(BadRequest, match=f"^{field}: ") as caught:
        read(**{field: value})
    status, body = MESSAGES.error(caught.value)
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    # The official clients look for this, and then send the whole conversation.
    threads = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert body["error"].get("details") == (threads if field == "thread" else None)


def test_fields_for_a_memory_may_ask_for_nothing():
    assert read(thread=None, container=None, fallbacks="default", compaction=None).ignored == ()
    counted = COUNT_TOKENS.read({"messages": [HELLO], "compaction": {"type": "summarize"}})
    assert counted.ignored == ("compaction",)


def test_rule_10_tools_of_servers_are_left_out_and_named():
    request = read(
        tools=[
            {"type": "web_search_20260318", "name": "web_search"},
            {**ADD, "type": "custom"},
            {"type": "mcp_toolset"},
        ]
    )
    assert [tool["function"]["name"] for tool in request.tools] == ["add"]
    assert request.ignored == ("web_search", "mcp_toolset")


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "web_search"}])
def test_rule_10_a_choice_of_what_was_left_out_is_left_out(choice):
    search = {"type": "web_search_20260318", "name": "web_search"}
    request = read(tools=[search], tool_choice=choice)
    assert (request.tool_choice, request.ignored) == ("auto", ("web_search", "tool_choice"))


def test_rule_12_a_large_max_tokens_is_taken_and_a_long_prompt_refused_with_both_numbers():
    assert read(max_tokens=32_000).options == {"max_tokens": 32_000}  # the host gives what room there is
    status, answer = MESSAGES.error(ContextOverflow(9_000, 4_096))
    assert status == 400
    assert answer["error"]["message"] == "prompt is too long: 9000 tokens > 4096 maximum"


BLOCK_OF_TEXT = ["content_block_start", "content_block_delta"]


def test_rule_13_pings_keep_a_client_waiting():
    writer = MESSAGES.writer(read(stream=True), ANSWER)
    start, ping = writer.keep_alive()
    assert start.event == "message_start"  # nothing may come before it
    assert start.data["message"]["usage"]["input_tokens"] == 0
    assert ping.encode() == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert writer.keep_alive() == [ping]
    assert writer.feed(Prefilled(0, 10, 7)) == []
    assert [frame.event for frame in writer.feed(Text("Hi", 0, 2))] == BLOCK_OF_TEXT


@pytest.mark.parametrize("before", [(), (Queued(2), Queued(1))])
def test_the_start_tells_how_long_the_prompt_is(before):
    writer = MESSAGES.writer(read(stream=True), ANSWER)
    assert [frame for event in before for frame in writer.feed(event)] == writer.begin() == []
    (start,) = writer.feed(Prefilled(7, 10, 7))
    usage = {
        "input_tokens": 3,
        "cache_read_input_tokens": 7,
        "cache_creation_input_tokens": 0,
        "output_tokens": 0,
    }
    assert start.data["message"]["usage"] == usage
    assert writer.feed(Prefilled(9, 10, 7)) == []
    assert [frame.event for frame in writer.feed(Text("Hi", 0, 2))] == BLOCK_OF_TEXT


@pytest.mark.parametrize("signature", ["", SIGNATURE, "of another provider"])
@pytest.mark.parametrize("thinking", ["hm", "", "edited"])
def test_rule_14_any_thinking_comes_back(signature, thinking):
    thought = {"type": "thinking", "thinking": thinking, "signature": signature}
    request = read(messages=[HELLO, {"role": "assistant", "content": [thought]}, HELLO])
    assert request.messages[1].reasoning == thinking
    unsigned = {"type": "thinking", "thinking": thinking}
    assert (
        read(messages=[HELLO, {"role": "assistant", "content": [unsigned]}, HELLO]).messages[1].reasoning
        == thinking
    )


BILLING = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=36ee5;"


@pytest.mark.parametrize(
    "system",
    [
        f"{BILLING}\nBe kind.",
        [{"type": "text", "text": BILLING}, {"type": "text", "text": "Be kind."}],
        [{"type": "text", "text": f"{BILLING}\nBe kind."}],
        "Be kind.",
    ],
)
def test_rule_15_the_billing_line_is_not_in_the_prompt(system):
    assert read(system=system).messages[0] == SystemMessage.text("Be kind.")


def test_rule_15_the_billing_line_may_stand_below_others():
    assert read(system=f"Be kind.\n{BILLING}\nBe brief.").messages[0].text == "Be kind.\nBe brief."


def test_rule_15_what_only_mentions_the_billing_line_stays():
    text = f"Never write {BILLING!r}."
    assert read(system=text).messages[0].text == text
    assert read(messages=[{"role": "user", "content": BILLING}]).messages[0].text == BILLING


def test_rule_15_a_system_prompt_of_nothing_else_is_none():
    assert read(system=[{"type": "text", "text": BILLING}]).messages == [UserMessage.text("Hello.")]


@pytest.mark.parametrize(
    ("output", "options", "reason", "sequence"),
    [
        ("Hello.", {}, "end_turn", None),
        (block("add(a=1)"), {}, "tool_use", None),
        (block("add(a=1)") + "Fine. END", {"stop_sequences": ["END"]}, "tool_use", None),
        ("Hello there, you", {"max_tokens": 2}, "max_tokens", None),
        (block("add(a=1") + "x", {}, "end_turn", None),
        ("One. END Two.", {"stop_sequences": ["STOP", "END"]}, "stop_sequence", "END"),
    ],
)
def test_rule_16_the_stop_reason(output, options, reason, sequence):
    told = said(output, **options)
    assert (told.whole["stop_reason"], told.whole["stop_sequence"]) == (reason, sequence)


def test_rule_18_a_malformed_call_of_the_history_is_read():
    broken = {"type": "tool_use", "id": "a", "name": "add", "input": "[1"}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "no"}]}
    messages = [HELLO, {"role": "assistant", "content": [broken]}, result]
    assert isinstance(read(messages=messages).messages[1].content[0], MalformedToolCallPart)
    assert said("Sorry.", messages=messages).whole["content"][0]["text"] == "Sorry."


def test_rule_19_a_malformed_call_never_opens_a_block():
    told = said(block("add(a=1)", "add(a=2, b=)") + block("add("))
    assert kinds(told).count("content_block_start") == 1
    assert [block["input"] for block in told.whole["content"]] == [{"a": 1}]
    entry = {"id": None, "name": "add", "arguments": ""}
    assert told.whole["malformed_tool_calls"] == [
        {"index": 0, "reason": "missing_value", "raw": "add(a=2, b=)", **entry},
        {"index": 1, "reason": "positional_argument", "raw": "add(]", **entry},
    ]
    assert told.whole["stop_reason"] == "tool_use"


def test_rule_19_a_call_without_arguments_has_an_empty_object():
    told = said(block("add()"))
    assert told.whole["content"][0]["input"] == {}
    assert [data["delta"]["partial_json"] for data in told.data if "delta" in data and "index" in data] == [
        "{}"
    ]


@pytest.mark.parametrize(
    ("problem", "status", "kind"),
    [
        (BadRequest("no"), 400, "invalid_request_error"),
        (BadRequest("no", status=401), 401, "authentication_error"),
        (BadRequest("no", status=403), 403, "permission_error"),
        (BadRequest("no", status=404, type="not_found_error"), 404, "not_found_error"),
        (BadRequest("no", status=429), 429, "rate_limit_error"),
        (UnknownModel("no"), 404, "not_found_error"),
        (NotEnoughMemory("no"), 503, "overloaded_error"),
        (EngineFailed("no"), 500, "api_error"),
        (TimeoutError(), 504, "timeout_error"),
        (ZeroDivisionError("secret"), 500, "api_error"),
    ],
)
def test_rule_22_errors_have_the_shape_of_the_api_also_in_a_stream(problem, status, kind):
    found, answer = MESSAGES.error(problem)
    assert (found, answer["type"], answer["error"]["type"]) == (status, "error", kind)
    assert ErrorResponse.model_validate(answer).error.message == answer["error"]["message"]
    assert "secret" not in answer["error"]["message"]
    writer = MESSAGES.writer(read(), ANSWER)
    writer.begin()
    writer.feed(Text("Hel", 0, 3))
    writer.feed(BrokenOff(AssistantMessage(content="Hel")))
    assert [(frame.event, frame.data) for frame in writer.fail(problem)] == [("error", answer)]


# -- the official client ------------------------------------------------------------------------------------


def client_of(answer: bytes, kind: str = "text/event-stream", status: int = 200) -> anthropic.Anthropic:
    """A client whose every request gets these bytes."""
    headers = {"content-type": kind}
    transport = httpx2.MockTransport(lambda request: httpx2.Response(status, content=answer, headers=headers))
    return anthropic.Anthropic(api_key="k", max_retries=0, http_client=httpx2.Client(transport=transport))


def streamed(frames: Iterable[Frame]) -> bytes:
    return b"".join(frame.encode() for frame in frames)


OUTPUT = f"{THINK}hm{THOUGHT}It\u2028adds." + block("add(a='é')", "add(a=)")


@pytest.mark.parametrize("beta", [False, True])
def test_the_official_client_reads_the_stream(beta):
    told = said(OUTPUT)
    start, *others = told.frames
    _, ping = MESSAGES.writer(read(), ANSWER).keep_alive()
    client = client_of(streamed([start, ping, *others]))
    messages = client.beta.messages if beta else client.messages
    with messages.stream(model="m", max_tokens=9, messages=[HELLO]) as stream:
        final = stream.get_final_message().to_dict(mode="json", exclude_unset=True)
    assert final["content"] == told.whole["content"]
    assert (final["stop_reason"], final["usage"]) == (told.whole["stop_reason"], told.whole["usage"])


def test_the_official_client_reads_the_whole_message():
    told = said(OUTPUT)
    client = client_of(json.dumps(told.whole).encode(), "application/json")
    message = client.messages.create(model="m", max_tokens=9, messages=[HELLO])
    assert message.to_dict(mode="json") == told.whole


def test_the_official_client_raises_what_breaks_a_stream_off():
    writer = MESSAGES.writer(read(), ANSWER)
    frames = [*writer.begin(), *writer.feed(Text("Hel", 0, 3)), *writer.fail(EngineFailed("out of order"))]
    client = client_of(streamed(frames))
    with (
        pytest.raises(anthropic.APIStatusError, match="out of order"),
        client.messages.stream(model="m", max_tokens=9, messages=[HELLO]) as stream,
    ):
        stream.until_done()


@pytest.mark.parametrize(
    ("problem", "raised"),
    [
        (BadRequest("top_k: no", "top_k"), anthropic.BadRequestError),
        (UnknownModel("no such model"), anthropic.NotFoundError),
        (BadRequest("slow down", status=429), anthropic.RateLimitError),
        (NotEnoughMemory("full"), anthropic.InternalServerError),
    ],
)
def test_the_official_client_raises_what_is_refused(problem, raised):
    status, answer = MESSAGES.error(problem)
    client = client_of(json.dumps(answer).encode(), "application/json", status)
    with pytest.raises(raised, match=str(problem)):
        client.messages.create(model="m", max_tokens=9, messages=[HELLO])


# -- answers ------------------------------------------------------------------------------------------------


def test_the_usage_tells_what_was_reused():
    usage = Usage(input=10, output=4, cache_read=7)
    writer = MESSAGES.writer(read(), ANSWER)
    *_, delta, _ = writer.feed(Done(AssistantMessage(usage=usage), ()))
    assert delta.data["usage"] == writer.whole()["usage"]
    assert delta.data["usage"] == {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 7,
        "output_tokens": 4,
    }


def test_what_was_not_enforced_of_a_schema_is_told():
    relaxed = Relaxed("add", "/properties/a", "pattern", "too large")
    writer = MESSAGES.writer(read(), ANSWER)
    *_, delta, _ = writer.feed(Done(AssistantMessage(), (), relaxed=(relaxed,)))
    entry = {"tool": "add", "path": "/properties/a", "keyword": "pattern", "reason": "too large"}
    assert delta.data["relaxed_schemas"] == writer.whole()["relaxed_schemas"] == [entry]
    assert delta.data["timings"]["cache_n"] == 0


def test_a_call_is_held_until_it_is_complete():
    writer = MESSAGES.writer(read(), ANSWER)
    writer.begin()
    assert writer.feed(CallStart(0, "add", 0, 4)) == []


def test_a_piece_of_nothing_opens_no_block():
    writer = MESSAGES.writer(read(), ANSWER)
    assert [writer.feed(kind("", 0, 0)) for kind in (Text, Reasoning)] == [[], []]


def test_a_turn_of_nothing_is_a_message_without_content():
    assert said("").whole["content"] == []


def test_the_ids_of_two_answers_differ():
    ids = [tell(MESSAGES, body(), block("add()"), replace(ANSWER, key=key)).whole for key in ("K", "L")]
    assert ids[0]["id"] != ids[1]["id"]
    assert ids[0]["content"][0]["id"] != ids[1]["content"][0]["id"]


def test_an_answer_comes_back_as_it_was_written():
    """What a client sends back renders to what the model wrote, so that the evaluated prompt is reused."""
    told = said(f"{THINK}hm{THOUGHT} I add.\n\n" + block("add(a=1)"))
    result = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "toolu_K_0", "content": "1"}],
    }
    request = read(messages=[HELLO, {"role": "assistant", "content": told.whole["content"]}, result])
    assert request.messages[1].content == (
        ReasoningPart(text="hm", signature=SIGNATURE),
        TextPart(text=" I add.\n\n"),
        ToolCallPart(id="toolu_K_0", name="add", arguments={"a": 1}),
    )


# -- requests -----------------------------------------------------------------------------------------------


def test_the_sampling_of_a_request():
    request = read(temperature=0.5, top_p=0.9, top_k=40, stop_sequences=["END"], stream=True)
    assert request.options == {
        "max_tokens": 1000,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "stop": ["END"],
    }
    assert (request.model, request.stream, request.ignored) == ("m", True, ())
    least = MESSAGES.read({"messages": [HELLO]})
    assert (least.model, least.options, least.stream) == ("", {}, False)


NAMED = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        (None, "auto", True),
        ({"type": "auto"}, "auto", True),
        ({"type": "any"}, "required", True),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "add"}, NAMED, True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
    ],
)
def test_the_choice_of_tools(choice, expected, parallel):
    request = read(tools=[ADD], tool_choice=choice)
    assert (request.tool_choice, request.parallel_tool_calls) == (expected, parallel)


def test_a_tool_as_templates_know_it():
    request = read(tools=[{**ADD, "strict": True, "cache_control": {}, "input_examples": []}])
    function = {"name": "add", "description": "Adds.", "parameters": ADD["input_schema"]}
    assert request.tools == [{"type": "function", "function": function}]
    assert request.strict
    assert not read(tools=[ADD]).strict


@pytest.mark.parametrize(
    ("options", "thinking", "budget", "ignored"),
    [
        ({}, None, None, ()),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, True, 2048, ()),
        ({"thinking": {"type": "enabled", "budget_tokens": 9.0}}, True, 9, ()),
        ({"thinking": {"type": "enabled"}}, True, None, ()),
        ({"thinking": {"type": "disabled"}}, False, None, ()),
        ({"thinking": {"type": "adaptive"}}, None, None, ()),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "high", None, ()),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "x"}},
            None,
            None,
            ("output_config.effort",),
        ),
        (
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}},
            False,
            None,
            ("output_config.effort",),
        ),
        ({"output_config": {"effort": "low"}}, None, None, ("output_config.effort",)),
        ({"output_config": {"effort": ["?"]}}, None, None, ("output_config.effort",)),
        ({"thinking": {"type": "of tomorrow"}}, None, None, ("thinking.type",)),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, None, None, ("thinking.display",)),
    ],
)
def test_thinking(options, thinking, budget, ignored):
    request = read(**options)
    assert (request.thinking, request.thinking_budget, request.ignored) == (thinking, budget, ignored)


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_the_format_of_the_answer(field):
    schema = {"type": "object"}
    wanted = {"type": "json_schema", "schema": schema}
    request = read(**{field: {"format": wanted} if field == "output_config" else wanted})
    described = {"name": "answer", "schema": schema, "strict": True}
    assert request.response_format == {"type": "json_schema", "json_schema": described}


def test_blocks_of_a_prompt_are_lines():
    two = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": two}
    request = read(
        system=two,
        messages=[
            {"role": "user", "content": two},
            {"role": "assistant", "content": [*two, call]},
            {"role": "user", "content": [result]},
        ],
    )
    system, user, assistant, tool = request.messages
    assert system.text == user.text == tool.results[0].text == "One.\nTwo."
    assert assistant.text == "One.Two."  # which the model wrote, and which stays as it is


def test_text_in_other_blocks_is_read():
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A text."}}
    found = {
        "type": "search_result",
        "title": "T",
        "source": "S",
        "content": [{"type": "text", "text": "Found."}],
    }
    call = {"type": "tool_use", "id": "a", "name": "ToolSearch", "input": {}}
    result = {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": [{"type": "tool_reference", "tool_name": "add"}],
    }
    request = read(
        messages=[
            {"role": "user", "content": [document, found]},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
    )
    assert request.messages[0].text == "A text.\nT\nS\nFound."
    assert request.messages[2].results[0].text == "add"


@pytest.mark.parametrize("picture", [IMAGE, PDF])
def test_what_a_tool_shows_never_ends_the_conversation(picture):
    call = {"type": "tool_use", "id": "a", "name": "Read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [picture]}
    messages = [HELLO, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    request = read(messages=messages)
    kind = picture["type"]
    assert request.messages[-1].results[0].text == f"[Not shown: this model reads no {kind}s.]"
    assert request.ignored == (kind,)


def test_a_model_with_eyes_is_shown_images():
    messages = [{"role": "user", "content": [IMAGE]}]
    assert len(MESSAGES.read(body(messages=messages), Limits(images=True)).messages[0].images) == 1


def test_blocks_of_server_tools_are_left_out_and_named():
    used = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    text = {"type": "text", "text": "It rains."}
    request = read(messages=[HELLO, {"role": "assistant", "content": [used, found, text]}, HELLO])
    assert request.messages[1].content == (TextPart(text="It rains."),)
    assert request.ignored == ("server_tool_use", "web_search_tool_result")


def test_results_stand_before_the_words_beside_them():
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "1", "is_error": True}
    request = read(
        messages=[
            HELLO,
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result, {"type": "text", "text": "Go on."}]},
        ]
    )
    assert [type(message) for message in request.messages[2:]] == [ToolMessage, UserMessage]
    assert request.messages[2].results[0].is_error


def test_a_prompt_that_is_counted_may_end_with_the_assistant():
    messages = [HELLO, {"role": "assistant", "content": "{"}]
    assert read(messages=messages).continue_final_message
    request = COUNT_TOKENS.read({"model": "m", "messages": messages})
    assert len(request.messages) == 2
    model = SimpleNamespace(count_tokens=lambda messages, **_: 7)
    assert MessageTokensCount.model_validate(COUNT_TOKENS.tell(model, request, {})).input_tokens == 7


# -- bodies that are wrong ----------------------------------------------------------------------------------


@given(st.integers(1, MAX_DEPTH))
def test_whatever_a_model_may_write_may_be_sent_back(levels):
    deep: Any = 1
    for _ in range(levels):
        deep = [deep]
    call = {"type": "tool_use", "id": "a", "name": "add", "input": {"a": deep}}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "no"}]}
    messages = [HELLO, {"role": "assistant", "content": [call]}, result]
    assert read(messages=messages).messages[1].tool_calls[0].arguments == {"a": deep}


DEEP: Any = 1
for _ in range(200):
    DEEP = [DEEP]


def user(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": [7]}, "messages[0]"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [HELLO] * 4}, "messages"),
        (user(7), "messages[0].content[0]"),
        (user({}), "messages[0].content[0].type"),
        (user({"type": 7}), "messages[0].content[0].type"),
        (user({"type": "video"}), "messages[0].content[0].type"),
        (user({"type": "text"}), "messages[0].content[0].text"),
        (user(IMAGE), "messages[0].content[0]"),
        (user(PDF), "messages[0].content[0]"),
        (user({"type": "text", "text": "\ud800"}), "messages[0].content[0].text"),
        (user({"type": "tool_result", "tool_use_id": "a", "content": "x"}), "messages[0].content"),
        ({"system": 7}, "system"),
        ({"system": [IMAGE]}, "system[0]"),
        ({"system": [{"type": "text", "text": 7}]}, "system[0].text"),
        ({"model": 7}, "model"),
        ({"model": "\ud800"}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": "7"}, "top_k"),
        ({"stop_sequences": 7}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 101}, "stop_sequences"),
        ({"stop_sequences": ["\ud800"]}, "stop_sequences[0]"),
        ({"tools": {}}, "tools"),
        ({"tools": [7]}, "tools[0]"),
        ({"tools": [{}]}, "tools[0].name"),
        ({"tools": [{"type": 7}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "f", "input_schema": {"x": DEEP}}]}, "tools[0].input_schema.x" + "[0]" * 196),
        ({"tools": [{"name": "", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{**ADD, "description": 7}]}, "tools[0].description"),
        ({"tools": [{**ADD, "strict": "yes"}]}, "tools[0].strict"),
        ({"tools": [ADD, ADD]}, "tools[1].name"),
        ({"tools": [{"name": "f", "input_schema": {"enum": [0] * 30}}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "\ud800", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{**ADD, "name": str(number)} for number in range(9)]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice.type"),
        ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "tool", "name": "add"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice.disable_parallel_tool_use"),
        ({"thinking": True}, "thinking"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"output_config": []}, "output_config"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_format": {"type": "json_schema", "schema": 7}}, "output_format.schema"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_field(more, param):
    limits = Limits(messages=3, tools=ToolBounds(count=5, schema=80))
    with pytest.raises(BadRequest) as caught:
        MESSAGES.read(body(**more), limits)
    assert caught.value.param == param
    assert str(caught.value).startswith(param)
    status, answer = MESSAGES.error(caught.value)
    assert status == 400
    json.dumps(answer).encode("ascii")


@pytest.mark.parametrize("given", [None, 7, "x", [], [body()]])
def test_a_body_is_an_object(given):
    with pytest.raises(BadRequest, match="JSON object"):
        MESSAGES.read(given)


blocks = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["text", "image", "document", "thinking", "tool_use", "tool_result", "search_result"]
        )
    },
    optional={
        name: json_values | st.sampled_from(["a", {"type": "text", "data": "x"}])
        for name in ("text", "source", "thinking", "id", "name", "input", "tool_use_id", "content", "title")
    },
)
turns = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]) | json_values,
        "content": st.lists(blocks) | json_values,
    }
)
hostile = st.fixed_dictionaries(
    {"messages": st.lists(turns) | json_values},
    optional=dict.fromkeys((*(OPTIONS.keys() - {"messages"}), "metadata"), json_values),
)


@settings(max_examples=500)
@given(hostile | json_values)
def test_any_body_is_read_or_refused(given):
    for wire in (MESSAGES, COUNT_TOKENS):
        try:
            wire.read(given)
        except BadRequest as error:
            wire.error(error)
