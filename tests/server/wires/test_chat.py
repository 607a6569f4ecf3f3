"""Chat completions: what is streamed keeps the rules that clients lean on, and equals the whole answer."""

from __future__ import annotations

import dataclasses
import json
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.constraint.schema import Relaxed
from localagent.errors import ContextOverflow, EngineFailed, UnknownModel, UsageError
from localagent.hosts.protocol import Logprobs, Prefilled, Queued
from localagent.messages import AssistantMessage, MalformedToolCallPart, ReasoningPart, Usage
from localagent.prompt.request import RequestWarning, build_request
from localagent.prompt.variables import TARGET, to_wire
from localagent.server.exchange import BadRequest
from localagent.server.wires.chat import CHAT_WIRE, OPTIONS
from localagent.server.wires.completions import COMPLETIONS_WIRE
from localagent.server.wires.openai import Scores, Spans
from localagent.server.wires.responses import RESPONSES_WIRE
from localagent.turn import Done, Scored
from parsers import DIALECTS, CallStart, Malformed, Reason
from tests.parsers import outputs
from tests.server.wires.rules import check_chat, deltas_of
from tests.server.wires.turns import ANSWER, TOOL, answered, data_of, scored, spell, tokens_of, turn_of

WIRE = CHAT_WIRE
USER = {"role": "user", "content": "Go."}
ASK: dict[str, Any] = {"messages": [USER], "tools": [TOOL]}
S, E = "<|tool_call_start|>", "<|tool_call_end|>"
TURNS = {
    "text": "Good morning.",
    "nothing": "",
    "thinking": "<think>Hm, let me see.</think>It is four.",
    "only thinking": "<think>Hm</think>",
    "a call": f"{S}[f(a=1)]{E}",
    "a call without arguments": f"{S}[f()]{E}",
    "text and calls": f"Let me look.{S}[f(a='x y'), g(b=[1, {{'c': None}}])]{E} Done.",
    "everything": f"<think>so</think>First.{S}[f(a=1)]{E}then{S}[f(a=2, b=]{E}last{S}[f(a=3",
    "malformed": f"{S}[f(a=1, ]{E}",
    "malformed from its name on": f"{S}[f(1)]{E}",
    "malformed without a name": f"{S}[1 + 2]{E}",
    "cut off": f"{S}[f(a='abc",
    "no end marker": f"{S}[f(a=1)]",
}


def chat(turn: Any, body: Any = ASK, **answer: Any) -> tuple[list[Any], dict[str, Any]]:
    """The data of the stream, and the whole answer."""
    events = turn_of(turn) if isinstance(turn, str) else turn
    frames, whole = answered(WIRE, body, events, dataclasses.replace(ANSWER, **answer))
    return data_of(frames), whole


def message_of(whole: dict[str, Any]) -> dict[str, Any]:
    return whole["choices"][0]["message"]


@pytest.mark.parametrize("buffer", [False, True], ids=["streamed", "held"])
@pytest.mark.parametrize("turn", TURNS)
def test_the_stream_keeps_all_rules_and_equals_the_whole_answer(turn, buffer):
    check_chat(*chat(TURNS[turn], buffer_tool_calls=buffer))


OPTION_ROWS: dict[str, dict[str, Any]] = {
    "usage": {"stream_options": {"include_usage": True}},
    "logprobs": {"logprobs": True},
    "top_logprobs": {"logprobs": True, "top_logprobs": 3, "stream_options": {"include_usage": True}},
    "custom tool": {"tools": [{"type": "custom", "custom": {"name": "f", "description": "d"}}]},
    "format": {"response_format": {"type": "json_object"}, "tools": None},
    "hints": {"user": "x", "store": True, "metadata": {"a": "b"}, "seed": 3, "temperature": 0.5},
}


@pytest.mark.parametrize("option", OPTION_ROWS)
@pytest.mark.parametrize("turn", TURNS)
def test_the_stream_equals_the_whole_answer_with_every_option(turn, option):
    body = ASK | OPTION_ROWS[option]
    tokens = tokens_of(TURNS[turn])
    events = scored(turn_of(tokens), body.get("top_logprobs", 0))
    data, whole = chat(events, body, spell=spell(tokens))
    check_chat(data, whole, usage="stream_options" in body)


@pytest.mark.parametrize("limit", range(1, 30, 3))
def test_a_turn_cut_off_at_a_limit_says_length_unless_a_good_call_was_sent(limit):
    data, whole = chat(turn_of(TURNS["everything"], max_tokens=limit))
    check_chat(data, whole)
    called = bool(message_of(whole).get("tool_calls"))
    assert whole["choices"][0]["finish_reason"] == ("tool_calls" if called else "length")


# Pieces that do not come from an engine are left out: it makes text of whatever bytes a model writes.
def clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@given(st.data())
@pytest.mark.parametrize("dialect", ["lfm2", "hermes"])
def test_any_output_in_any_pieces_keeps_the_rules(dialect, data):
    output = clean(data.draw(outputs.noise(dialect)))
    tokens = tokens_of(output, dialect, data.draw(outputs.cuts))
    limit = data.draw(st.none() | st.integers(1, 30))
    inside = data.draw(st.sampled_from([None, "reasoning"]))
    custom = data.draw(st.sampled_from([{}, OPTION_ROWS["custom tool"], OPTION_ROWS["top_logprobs"]]))
    events = turn_of(tokens, dialect, inside, max_tokens=limit, tools=data.draw(outputs.tools))
    if "logprobs" in custom:
        events = scored(events)
    chunks, whole = chat(
        events, ASK | custom, buffer_tool_calls=data.draw(st.booleans()), spell=spell(tokens)
    )
    check_chat(chunks, whole, usage="stream_options" in custom)
    done = events[-1]
    assert isinstance(done, Done)
    message = message_of(whole)
    assert (message["content"] or "") == done.message.text
    assert message.get("reasoning_content", "") == done.message.reasoning
    if not custom:
        written = [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())]
        assert written == [call.arguments for call in done.message.tool_calls]


@pytest.mark.parametrize("buffer", [False, True], ids=["streamed", "held"])
@pytest.mark.parametrize("dialect", outputs.CALLING)
def test_the_calls_of_every_dialect_keep_the_rules_wherever_they_are_cut_off(dialect, buffer):
    tools = outputs.declaring(outputs.SAMPLE)
    for sample in outputs.samples(dialect):
        for limit in (None, *range(1, 40, 6)):
            events = turn_of(tokens_of(sample, dialect), dialect, max_tokens=limit, tools=tools)
            data, whole = chat(events, buffer_tool_calls=buffer)
            check_chat(data, whole)
            if limit is None:
                names = [call["function"]["name"] for call in message_of(whole)["tool_calls"]]
                assert names == [name for name, _ in outputs.SAMPLE]


# -- the rules, one by one --------------------------------------------------------------------------------


def test_rule_1_role_id_and_name_come_once_and_arguments_after_them():
    data, _ = chat(TURNS["text and calls"])
    assert deltas_of(data, "role") == ["assistant"]
    entries = [entry for (entry,) in deltas_of(data, "tool_calls")]
    first = [entry for entry in entries if "id" in entry]
    assert [(entry["index"], entry["function"]) for entry in first] == [
        (0, {"name": "f", "arguments": ""}),
        (1, {"name": "g", "arguments": ""}),
    ]
    assert all(
        set(entry) == {"index", "function"} and set(entry["function"]) == {"arguments"}
        for entry in entries
        if entry not in first
    )


def test_rule_2_every_entry_has_an_index_and_the_numbers_of_ours_stand_beside_the_choices():
    data, whole = chat(TURNS["everything"])
    assert [entry["index"] for (entry,) in deltas_of(data, "malformed_tool_calls")] == [0, 1]
    assert [chunk["choices"][0]["delta"] for chunk in data[:-1] if "timings" in chunk] == [{}]
    assert set(whole["timings"]) == {
        "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second",
        "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second",
    }  # fmt: skip


def test_rule_3_the_id_stands_in_the_first_delta_alone():
    data, whole = chat(TURNS["text and calls"])
    ids = [entry["id"] for (entry,) in deltas_of(data, "tool_calls") if "id" in entry]
    assert ids == [call["id"] for call in message_of(whole)["tool_calls"]]
    assert len(set(ids)) == 2


def test_rule_4_one_thing_per_chunk_the_role_first_and_nothing_beside_the_finish_reason():
    data, _ = chat(TURNS["everything"])
    deltas = [chunk["choices"][0]["delta"] for chunk in data[:-1]]
    assert deltas[0] == {"role": "assistant"} and deltas[-1] == {}
    assert all(len(delta) == 1 for delta in deltas[:-1])
    assert all(len(entries) == 1 for entries in deltas_of(data, "tool_calls"))


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ("a call", "tool_calls"),
        ("malformed", "stop"),
        ("cut off", "stop"),
        ("everything", "tool_calls"),
        ("text", "stop"),
    ],
)
def test_rule_5_the_finish_reason_is_tool_calls_exactly_when_a_good_call_was_sent(turn, reason):
    data, whole = chat(TURNS[turn])
    assert data[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == reason


def test_rule_6_the_content_of_a_turn_of_calls_is_null_given_and_accepted():
    _, whole = chat(TURNS["a call"])
    assert message_of(whole)["content"] is None
    result = {"role": "tool", "tool_call_id": message_of(whole)["tool_calls"][0]["id"], "content": "4"}
    for content in (None, "", []):
        said = {**message_of(whole), "content": content}
        _, answer, _ = WIRE.read({"messages": [USER, said, result]}).messages
        assert [call.name for call in answer.tool_calls] == ["f"] and answer.text == ""


def test_rule_7_usage_comes_when_asked_for_last_and_without_choices():
    assert all("usage" not in chunk for chunk in chat(TURNS["text"])[0][:-1])
    data, whole = chat(TURNS["text"], ASK | {"stream_options": {"include_usage": True}})
    assert data[-2]["choices"] == [] and data[-2]["usage"] == whole["usage"] and data[-1] == "[DONE]"


def test_rule_8_reasoning_goes_out_under_one_name_and_is_read_under_any():
    data, whole = chat(TURNS["thinking"])
    assert "".join(deltas_of(data, "reasoning_content")) == "Hm, let me see."
    assert "reasoning" not in json.dumps([data, whole]).replace("reasoning_content", "").replace(
        "reasoning_tokens", ""
    )
    for name in ("reasoning_content", "reasoning", "thinking"):
        said = {"role": "assistant", "content": "4", name: "Hm"}
        assert WIRE.read({"messages": [USER, said]}).messages[1].reasoning == "Hm"


def test_rule_9_hints_are_ignored_and_named():
    body = ASK | {"user": "u", "prompt_cache_key": "k", "service_tier": "auto", "nobody_knows": {"a": 1}}
    assert WIRE.read(body).ignored == ("user", "prompt_cache_key", "service_tier", "nobody_knows")


def test_rule_10_tools_that_cannot_be_offered_are_left_out_and_named():
    hosted = [{"type": "web_search"}, {"type": "local_shell"}, {"type": "image_generation", "size": 3}]
    request = WIRE.read(ASK | {"tools": [*hosted, TOOL], "tool_choice": {"type": "web_search"}})
    assert [tool["function"]["name"] for tool in request.tools] == ["f"]
    assert request.ignored == ("web_search", "local_shell", "image_generation", "tool_choice")
    assert request.tool_choice == "auto"
    alone = WIRE.read({"messages": [USER], "tools": hosted, "tool_choice": "required"})
    assert (alone.tools, alone.tool_choice) == ([], "auto")


def test_rule_12_a_prompt_that_is_too_long_is_told_with_both_numbers():
    status, body = WIRE.error(ContextOverflow(5000, 4096))
    assert status == 400 and body["error"]["code"] == "context_length_exceeded"
    # In OpenAI's own words, for which litellm looks, as do others.
    assert body["error"]["message"].startswith("This model's maximum context length is 4096 tokens.")
    assert "the prompt has 5000 tokens" in body["error"]["message"]
    assert not WIRE.fails_in_stream(ContextOverflow(5000, 4096))


def test_rule_13_a_comment_keeps_the_connection_alive():
    (frame,) = WIRE.writer(WIRE.read(ASK), ANSWER).keep_alive()
    assert frame.encode() == b": working\n\n"


def test_rule_18_a_malformed_call_in_the_history_is_rendered_as_text():
    _, whole = chat(TURNS["everything"])
    said = message_of(whole)
    call = said["tool_calls"][0]["id"]
    broken = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}
    results = [{"role": "tool", "tool_call_id": each, "content": "4"} for each in (call, "x")]
    history = [USER, {**said, "tool_calls": [*said["tool_calls"], broken]}, *results, USER]
    messages = WIRE.read({"messages": history}).messages
    raws = [part.raw for part in messages[1].malformed_tool_calls]
    assert raws == ['{"name": "f", "arguments": {"a": }', "f(a=2, b=]", "f(a=3"]
    turns = str(to_wire(build_request(messages, TARGET).messages, DIALECTS["lfm2"]))
    assert all(raw in turns for raw in raws)


def test_rule_18_the_half_of_a_call_that_a_client_kept_is_not_read_twice():
    data, whole = chat(TURNS["cut off"])
    (start, *rest) = [entry for (entry,) in deltas_of(data, "tool_calls")]
    half = {
        **start,
        "function": {"name": "f", "arguments": "".join(e["function"]["arguments"] for e in rest)},
    }
    said = message_of(whole) | {"tool_calls": [half]}
    (part,) = WIRE.read({"messages": [USER, said]}).messages[1].content
    assert isinstance(part, MalformedToolCallPart) and (part.raw, part.id) == ("f(a='abc", half["id"])


@pytest.mark.parametrize("turn", ["malformed", "malformed from its name on", "cut off", "everything"])
def test_rule_19_no_client_can_take_what_was_sent_of_a_malformed_call_for_a_call(turn):
    data, whole = chat(TURNS[turn])
    back = [entry for (entry,) in deltas_of(data, "malformed_tool_calls") if entry["id"]]
    assert back == [entry for entry in message_of(whole)["malformed_tool_calls"] if entry["id"]] != []
    for entry in back:
        with pytest.raises(ValueError, match=r"."):
            json.loads(entry["arguments"])


def test_rule_19_a_call_that_breaks_before_its_arguments_is_no_call_without_arguments():
    """Clients take no text at all for an empty object."""
    broken = [CallStart(0, "f", 0, 2), Malformed("f(1)", Reason.POSITIONAL_ARGUMENT, "f", 0, {}, 2, 4)]
    data, whole = chat([*broken, turn_of("")[-1]])
    check_chat(data, whole)
    (entry,) = message_of(whole)["malformed_tool_calls"]
    assert (entry["id"], entry["arguments"], entry["raw"]) == ("call_k3y0", "{", "f(1)")


def test_rule_19_held_calls_never_begin_when_they_are_malformed():
    data, whole = chat(TURNS["everything"], buffer_tool_calls=True)
    assert {entry["index"] for (entry,) in deltas_of(data, "tool_calls")} == {0}
    malformed = message_of(whole)["malformed_tool_calls"]
    assert [(each["id"], each["arguments"], each["raw"]) for each in malformed] == [
        (None, "", "f(a=2, b=]"),
        (None, "", "f(a=3"),
    ]


@pytest.mark.parametrize(
    ("problem", "status", "error"),
    [
        (BadRequest("no", "tools[0].type", "bad"), 400, {"message": "no", "type": "invalid_request_error", "param": "tools[0].type", "code": "bad"}),
        (UsageError("no"), 400, {"message": "no", "type": "invalid_request_error", "param": None, "code": None}),
        (UnknownModel("no"), 404, {"message": "no", "type": "invalid_request_error", "param": "model", "code": "model_not_found"}),
        (EngineFailed("no"), 500, {"message": "no", "type": "server_error", "param": None, "code": None}),
        (TimeoutError(), 504, {"message": "the answer took longer than the server allows", "type": "server_error", "param": None, "code": None}),
        (KeyError("/home/me"), 500, {"message": "the server failed; its log says more", "type": "server_error", "param": None, "code": None}),
    ],
)  # fmt: skip
def test_rule_22_errors_have_the_shape_of_the_api_before_and_in_the_stream(problem, status, error):
    assert WIRE.error(problem) == (status, {"error": error})
    writer = WIRE.writer(WIRE.read(ASK), ANSWER)
    assert data_of([*writer.begin(), *writer.fail(problem)])[1:] == [{"error": error}]


def test_rule_22_the_openai_package_raises_what_the_stream_says():
    import httpx2
    import openai

    writer = WIRE.writer(WIRE.read(ASK), ANSWER)
    body = b"".join(frame.encode() for frame in [*writer.begin(), *writer.fail(EngineFailed("it broke"))])
    answer = httpx2.Response(200, content=body, headers={"content-type": "text/event-stream"})
    web = httpx2.Client(transport=httpx2.MockTransport(lambda _: answer))
    with openai.OpenAI(api_key="k", base_url="http://x/v1", http_client=web) as client:
        stream = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Go."}], stream=True
        )
        with pytest.raises(openai.APIError, match="it broke"):
            list(stream)


# -- numbers ----------------------------------------------------------------------------------------------


def test_usage_counts_cached_and_reasoning_tokens():
    *events, done = turn_of(tokens_of("<think>abcdefgh</think>four", size=4))
    assert isinstance(done, Done)
    message = done.message.model_copy(update={"usage": Usage(input=10, output=5, cache_read=4)})
    _, whole = chat([*events, dataclasses.replace(done, message=message)])
    assert whole["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert (whole["timings"]["cache_n"], whole["timings"]["prompt_n"]) == (4, 6)


@pytest.mark.parametrize(
    ("stretches", "ends", "found"),
    [
        ([(0, 4)], [2, 4, 6], [0, 1]),
        ([(2, 4), (4, 6)], [2, 4, 6, 8], [1, 2]),
        ([(1, 2), (5, 7)], [3, 5, 8], [0, 2]),
        (
            [(2, 4)],
            [2, 2, 3, 3, 4, 4],
            [1, 2, 3, 4],
        ),  # a token that only begins a character ends where it began
        ([(3, 3)], [2, 4], []),
        ([(3, 4)], [2, 2, 4], [2]),
        ([], [2], []),
    ],
)
def test_a_token_belongs_to_a_stretch_if_some_of_its_text_or_its_character_does(stretches, ends, found):
    spans = Spans()
    for stretch in stretches:
        spans.add(*stretch)
    assert spans.tokens(Done(AssistantMessage(), (0,) * len(ends), ends=tuple(ends))) == found


def test_tokens_that_nobody_can_spell_and_that_cannot_come_are_still_json():
    events = [Scored(0, 4, Logprobs(float("-inf"))), *turn_of("Good")]
    _, whole = chat(events, ASK | {"logprobs": True})
    (entry,) = whole["choices"][0]["logprobs"]["content"]
    assert entry == {"token": "", "logprob": -9999.0, "bytes": [], "top_logprobs": []}


def test_progress_and_warnings_are_no_part_of_an_answer():
    others = [Queued(1), Prefilled(1, 2, 0), RequestWarning("images_removed", "no eyes")]
    for wire, body in (
        (WIRE, ASK),
        (RESPONSES_WIRE, {"input": "Go."}),
        (COMPLETIONS_WIRE, {"prompt": "Go."}),
    ):
        writer = wire.writer(wire.read(body), ANSWER)
        assert [writer.feed(event) for event in others] == [[], [], []]


def test_what_was_not_enforced_of_a_schema_is_told_beside_the_choices():
    *events, done = turn_of("Good")
    assert isinstance(done, Done)
    relaxed = {"tool": "f", "path": "/properties/a", "keyword": "pattern", "reason": "no regular expression"}
    events.append(dataclasses.replace(done, relaxed=(Relaxed(**relaxed),)))
    for body in (ASK, ASK | {"stream_options": {"include_usage": True}}):
        data, whole = chat(events, body)
        assert whole["relaxed_schemas"] == [relaxed]
        assert [chunk["relaxed_schemas"] for chunk in data[:-1] if "relaxed_schemas" in chunk] == [[relaxed]]
    writer = RESPONSES_WIRE.writer(RESPONSES_WIRE.read({"input": "Go."}), ANSWER)
    assert [writer.feed(event) for event in events] and writer.whole()["relaxed_schemas"] == [relaxed]


def test_logprobs_are_those_of_the_tokens_of_the_content():
    tokens = tokens_of(f"<think>hm</think>Good day{S}[f(a=1)]{E}")
    body = ASK | {"logprobs": True, "top_logprobs": 2}
    _, whole = chat(scored(turn_of(tokens), 2), body, spell=spell(tokens))
    logprobs = whole["choices"][0]["logprobs"]
    assert [entry["token"] for entry in logprobs["content"]] == ["Good", " day"]
    assert logprobs["content"][0] == {
        "token": "Good",
        "logprob": -0.5,
        "bytes": [71, 111, 111, 100],
        "top_logprobs": [
            {"token": "Good", "logprob": -0.5, "bytes": [71, 111, 111, 100]},
            {"token": " day", "logprob": -1.5, "bytes": [32, 100, 97, 121]},
        ],
    }


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 12), max_size=6), st.booleans())
def test_every_token_of_a_text_is_told_once_beside_the_piece_where_it_begins(sizes, cuts, early):
    """Tokens without text are parts of a character. `early`: all tokens come before the first piece."""
    ends = [*accumulate(sizes)]
    size = ends[-1] if ends else 0
    places = sorted({0, *(cut for cut in cuts if cut < size), size})
    pieces = [*pairwise(places)]
    scores, told = Scores(ANSWER), []
    waiting = [Scored(number, end, Logprobs(0.0)) for number, end in enumerate(ends)]
    before = 0
    for start, end in pieces:
        while waiting and (early or before < end):
            before = waiting[0].end
            scores.note(waiting.pop(0))
        told += [(begin, (start, end)) for begin, _ in scores.beside(start, end)]
    begins = [0, *ends][:-1] if ends else []
    assert [begin for begin, _ in told] == [begin for begin in begins if begin < size]
    assert all(start <= begin < end for begin, (start, end) in told)


def test_a_stream_has_log_probabilities_beside_the_text():
    tokens = tokens_of(f"<think>hm</think>Good day{S}[f(a=1)]{E}")
    data, _ = chat(scored(turn_of(tokens), 0), ASK | {"logprobs": True}, spell=spell(tokens))
    choices = [choice for chunk in data[:-1] for choice in chunk["choices"]]
    told = [
        (each["delta"]["content"], each["logprobs"]["content"]) for each in choices if each.get("logprobs")
    ]
    assert [(text, [entry["token"] for entry in entries]) for text, entries in told] == [
        ("Good", ["Good"]),
        (" day", [" day"]),
    ]


def test_a_custom_tool_is_given_its_input_as_plain_text():
    body = ASK | OPTION_ROWS["custom tool"]
    data, whole = chat(f"{S}[f(input='ls -l')]{E}", body)
    call = {"id": "call_k3y0", "type": "custom", "custom": {"name": "f", "input": "ls -l"}}
    assert message_of(whole)["tool_calls"] == [call]
    assert [entry for (entry,) in deltas_of(data, "tool_calls")] == [
        {"index": 0, "id": "call_k3y0", "type": "custom", "custom": {"name": "f", "input": ""}},
        {"index": 0, "custom": {"input": "ls -l"}},
    ]
    result = {"role": "tool", "tool_call_id": "call_k3y0", "content": "x"}
    (_, said, _) = WIRE.read({"messages": [USER, message_of(whole), result]}).messages
    assert [(part.name, part.arguments) for part in said.tool_calls] == [("f", {"input": "ls -l"})]


def test_what_a_client_sends_back_is_what_the_model_wrote():
    _, whole = chat(f"<think>so</think>First.{S}[f(a='x')]{E}")
    result = {"role": "tool", "tool_call_id": "call_k3y0", "content": "4"}
    _, said, _ = WIRE.read({"messages": [USER, message_of(whole), result]}).messages
    assert isinstance(said, AssistantMessage)
    assert isinstance(said.content[0], ReasoningPart) and said.reasoning == "so"
    assert said.text == "First." and said.tool_calls[0].arguments == {"a": "x"}


def test_every_field_of_the_api_is_in_the_table():
    from openai.types.chat import completion_create_params

    fields = completion_create_params.CompletionCreateParamsBase.__annotations__
    assert fields.keys() <= OPTIONS.keys()
