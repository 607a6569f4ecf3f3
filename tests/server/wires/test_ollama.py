"""Ollama's API: its lines against the official package, its requests, and what it tells of models."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import httpx
import ollama
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ollama import ChatResponse, GenerateResponse, ListResponse, Options, ProcessResponse, ShowResponse
from ollama._types import ChatRequest, GenerateRequest

from localagent.constraint.schema import Relaxed
from localagent.errors import ContextOverflow, EngineFailed, NotEnoughMemory, UnknownModel
from localagent.hosts.protocol import Logprobs
from localagent.messages import (
    AssistantMessage,
    ReasoningPart,
    SystemMessage,
    TextPart,
    Timings,
    ToolCallPart,
    Usage,
    UserMessage,
)
from localagent.prompt.segments import Gap
from localagent.server.exchange import BadRequest, Frame, Limits
from localagent.server.wires.ollama import (
    CHAT_OPTIONS,
    GENERATE_OPTIONS,
    MODEL_OPTIONS,
    OLLAMA_CHAT_WIRE,
    OLLAMA_GENERATE_WIRE,
)
from localagent.server.wires.ollama_models import (
    RUNNING,
    Described,
    asked_model,
    ps,
    show,
    tags,
    version,
)
from localagent.tools.bounds import ToolBounds
from localagent.turn import Done, Scored
from parsers import DIALECTS, Text
from tests.agent.replaying import block
from tests.messages.strategies import json_values
from tests.server.wires.telling import ANSWER, Told, models, tell

CHAT, GENERATE = OLLAMA_CHAT_WIRE, OLLAMA_GENERATE_WIRE
THINK, THOUGHT = DIALECTS["lfm2"].reasoning.open, DIALECTS["lfm2"].reasoning.close
HELLO = {"role": "user", "content": "Hello."}
NAMED = {"model": "replay", "created_at": "2023-11-14T22:13:20.250000Z"}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [HELLO], **more}


def generate(**more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "Hello.", **more}


def body_of(wire: Any, **more: Any) -> dict[str, Any]:
    return chat(**more) if wire is CHAT else generate(**more)


def without_durations(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if not name.endswith(("_duration", "timings"))}


# -- the rules of the wire ----------------------------------------------------------------------------------


def folded(told: Told, chats: bool) -> dict[str, Any]:
    """What a client puts together from the lines: texts joined, lists one after the other, the rest as it is."""
    whole: dict[str, Any] = {}
    for line in told.data:
        said = line["message"] if chats else line
        mine = whole.setdefault("message", {}) if chats else whole
        for name, value in said.items():
            if name in ("content", "thinking", "response"):
                mine[name] = mine.get(name, "") + value
            elif name in ("tool_calls", "malformed_tool_calls", "unfit_tool_calls"):
                mine[name] = mine.get(name, []) + value
            else:
                mine[name] = value
        whole |= {name: value for name, value in line.items() if name not in mine and name != "message"}
        if chats:
            whole |= {name: value for name, value in line.items() if name != "message"}
    return whole


def keeps_the_rules(told: Told, wire: Any) -> None:
    """The rules that hold for every answer whatever."""
    chats = wire is CHAT
    official = ChatResponse if chats else GenerateResponse
    for line in (*told.data, told.whole):
        official.model_validate(line, strict=True)
        assert list(line)[:2] == ["model", "created_at"]
    *lines, last = told.data
    assert [line["done"] for line in lines] == [False] * len(lines)
    assert last["done"] and last["done_reason"] in ("stop", "length")
    assert folded(told, chats) == told.whole  # 21: what was streamed is in the whole answer
    said = told.whole["message"] if chats else told.whole
    for at, call in enumerate(said.get("tool_calls", [])):  # 2, 3
        assert call["function"]["index"] == at
        assert isinstance(call["function"]["arguments"], dict)
    assert [entry["index"] for entry in said.get("malformed_tool_calls", [])] == list(
        range(len(said.get("malformed_tool_calls", [])))
    )
    for frame in told.frames:  # one line each, whatever is in it
        encoded = frame.encode("ndjson").decode()
        assert encoded.splitlines(keepends=True) == [encoded]
        assert json.loads(encoded) == frame.data


@settings(max_examples=200)
@given(
    models(),
    st.sampled_from([CHAT, GENERATE]),
    st.sampled_from([{}, {"num_predict": 3}, {"stop": ["a", "</"]}]),
)
def test_whatever_the_model_writes_keeps_the_rules(model, wire, options):
    keeps_the_rules(tell(wire, body_of(wire, options=options), model), wire)


EVERYTHING = (
    f"{THINK}so{THOUGHT}First."
    + block("add(a=1)")
    + "then"
    + block("add(a=2, b=)")
    + "last"
    + block("add(a=3")
)
OPTION_ROWS: dict[str, dict[str, Any]] = {
    "sampling": {"options": {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "seed": 7, "repeat_penalty": 1.1}},
    "a limit": {"options": {"num_predict": 12}},
    "stop": {"options": {"stop": ["then"]}},
    "thinking": {"think": "high"},
    "no thinking": {"think": False},
    "a format": {"format": {"type": "object"}},
    "json": {"format": "json"},
    "hints": {"keep_alive": "5m", "truncate": True, "options": {"num_ctx": 8192}},
}


@pytest.mark.parametrize("output", [EVERYTHING, "Hello.", "", block("add(a=1)"), f"{THINK}so"])
@pytest.mark.parametrize("option", OPTION_ROWS)
@pytest.mark.parametrize("wire", [CHAT, GENERATE])
def test_rule_21_the_stream_equals_the_whole_answer_with_every_option(wire, option, output):
    streamed, asked_whole = (
        tell(wire, body_of(wire, stream=stream, **OPTION_ROWS[option]), output) for stream in (True, False)
    )
    keeps_the_rules(streamed, wire)
    assert without_durations(streamed.whole) == without_durations(asked_whole.whole)


def test_every_field_of_the_api_is_in_the_tables():
    assert ChatRequest.model_fields.keys() <= CHAT_OPTIONS.keys()
    assert GenerateRequest.model_fields.keys() <= GENERATE_OPTIONS.keys()
    assert Options.model_fields.keys() <= MODEL_OPTIONS.keys()


def test_a_chat_line_by_line():
    told = tell(CHAT, chat(), f"{THINK}hm{THOUGHT}Yes." + block("add(a=1)", "add(b='x')"))
    keeps_the_rules(told, CHAT)
    calls = [
        {"id": "call_K0", "function": {"index": 0, "name": "add", "arguments": {"a": 1}}},
        {"id": "call_K1", "function": {"index": 1, "name": "add", "arguments": {"b": "x"}}},
    ]
    said = {"role": "assistant", "content": ""}
    assert told.data[:-1] == [
        {**NAMED, "message": {**said, "thinking": "hm"}, "done": False},
        {**NAMED, "message": {**said, "content": "Yes."}, "done": False},
        {**NAMED, "message": {**said, "tool_calls": calls[:1]}, "done": False},
        {**NAMED, "message": {**said, "tool_calls": calls[1:]}, "done": False},
    ]
    end = {"done": True, "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 12}
    assert without_durations(told.data[-1]) == {**NAMED, "message": said, **end}
    whole = {**said, "content": "Yes.", "thinking": "hm", "tool_calls": calls}
    assert without_durations(told.whole) == {**NAMED, "message": whole, **end}


def test_a_generated_text_line_by_line():
    told = tell(GENERATE, generate(), f"{THINK}hm{THOUGHT}Yes.")
    keeps_the_rules(told, GENERATE)
    assert told.data[:-1] == [
        {**NAMED, "response": "", "thinking": "hm", "done": False},
        {**NAMED, "response": "Yes.", "done": False},
    ]
    assert (told.whole["response"], told.whole["thinking"]) == ("Yes.", "hm")


def test_rule_5_a_malformed_call_is_no_call():
    told = tell(CHAT, chat(), block("add(a=2, b=)", "add(a=1)"))
    keeps_the_rules(told, CHAT)
    (call,) = told.whole["message"]["tool_calls"]
    assert call["function"] == {"index": 0, "name": "add", "arguments": {"a": 1}}
    (entry,) = told.whole["message"]["malformed_tool_calls"]
    assert (entry["name"], entry["reason"], entry["raw"]) == ("add", "missing_value", "add(a=2, b=)")


def test_rule_6_calls_come_back_without_content():
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    for content in ({}, {"content": None}, {"content": ""}):
        said = {"role": "assistant", "thinking": "hm", "tool_calls": [call], **content}
        request = CHAT.read(
            chat(messages=[HELLO, said, {"role": "tool", "tool_name": "add", "content": "1"}])
        )
        assert request.messages[1].content == (
            ReasoningPart(text="hm"),
            ToolCallPart(id="", name="add", arguments={"a": 1}),
        )
        assert request.messages[2].results[0].name == "add"


def test_rule_6_results_find_their_calls_by_id_or_by_name():
    calls = [{"id": f"c{n}", "function": {"name": name, "arguments": {}}} for n, name in enumerate("fg")]
    said = {"role": "assistant", "tool_calls": calls}
    results = [
        {"role": "tool", "tool_call_id": "c1", "content": "of g"},
        {"role": "tool", "tool_name": "f", "content": "of f"},
    ]
    tool = CHAT.read(chat(messages=[HELLO, said, *results])).messages[2]
    assert [(result.name, result.text) for result in tool.results] == [("g", "of g"), ("f", "of f")]


def test_rule_6_results_without_ids_find_their_calls_by_name_alone():
    calls = [{"function": {"name": name, "arguments": {}}} for name in "fg"]
    results = [{"role": "tool", "tool_name": name, "content": f"of {name}"} for name in "gf"]
    messages = [HELLO, {"role": "assistant", "tool_calls": calls}, *results]
    tool = CHAT.read(chat(messages=messages)).messages[2]
    assert [(result.name, result.text) for result in tool.results] == [("g", "of g"), ("f", "of f")]


def test_a_message_without_content_is_empty():
    assert CHAT.read(chat(messages=[{"role": "user"}])).messages[0].text == ""


def test_rule_9_and_10_hints_and_foreign_tools_are_named():
    request = CHAT.read(
        chat(
            options={"num_ctx": 8192, "num_gpu": 1, "mirostat": 0, "typical_p": 1.0, "of_tomorrow": 1},
            tools=[ADD, {"type": "web_search"}],
            truncate=True,
            shift=None,
        )
    )
    assert request.ignored == (
        *("truncate", "options.num_ctx", "options.num_gpu", "options.of_tomorrow", "web_search"),
    )
    assert [tool["function"]["name"] for tool in request.tools] == ["add"]


def test_rule_13_a_line_without_words_keeps_a_client_waiting():
    writer = CHAT.writer(CHAT.read(chat()), ANSWER)
    (frame,) = writer.keep_alive()
    assert frame.data == {**NAMED, "message": {"role": "assistant", "content": ""}, "done": False}


@pytest.mark.parametrize(
    ("problem", "status"),
    [
        (BadRequest("no", status=413), 413),
        (UnknownModel("no"), 404),
        (ContextOverflow(9_000, 4_096), 400),
        (NotEnoughMemory("no"), 503),
        (EngineFailed("no"), 500),
        (ZeroDivisionError("secret"), 500),
    ],
)
@pytest.mark.parametrize("wire", [CHAT, GENERATE])
def test_rule_22_errors_have_the_shape_of_the_api_also_in_a_stream(wire, problem, status):
    found, answer = wire.error(problem)
    assert (found, list(answer)) == (status, ["error"])
    assert "secret" not in answer["error"]
    writer = wire.writer(wire.read(body_of(wire)), ANSWER)
    writer.feed(Text("Hel", 0, 3))
    assert [frame.data for frame in writer.fail(problem)] == [answer]


# -- the official client ------------------------------------------------------------------------------------


def client_of(answer: bytes, status: int = 200) -> ollama.Client:
    """A client whose every request gets these bytes."""
    transport = httpx.MockTransport(lambda request: httpx.Response(status, content=answer))
    return ollama.Client(host="http://127.0.0.1:1", transport=transport)


def streamed(frames: Iterable[Frame]) -> bytes:
    return b"".join(frame.encode("ndjson") for frame in frames)


def test_the_official_client_reads_the_stream():
    told = tell(CHAT, chat(), f"{THINK}hm{THOUGHT}It\u2028adds." + block("add(a='é')", "add(a=)"))
    client = client_of(streamed([*CHAT.writer(CHAT.read(chat()), ANSWER).keep_alive(), *told.frames]))
    lines = list(client.chat(model="m", messages=[HELLO], stream=True))
    assert "".join(line.message.content for line in lines) == "It\u2028adds."
    assert "".join(line.message.thinking or "" for line in lines) == "hm"
    (call,) = (call for line in lines for call in line.message.tool_calls or ())
    assert (call.function.name, call.function.arguments) == ("add", {"a": "é"})
    assert (lines[-1].done, lines[-1].done_reason) == (True, "stop")


def test_the_official_client_reads_the_whole_answer():
    told = tell(GENERATE, generate(), "Hello.")
    answer = client_of(json.dumps(told.whole).encode()).generate(model="m", prompt="x")
    assert (answer.response, answer.eval_count) == ("Hello.", told.whole["eval_count"])


def test_the_official_client_raises_what_is_refused_or_breaks_off():
    problem = EngineFailed("out of order")
    status, answer = CHAT.error(problem)
    with pytest.raises(ollama.ResponseError, match="out of order"):
        client_of(json.dumps(answer).encode(), status).chat(model="m", messages=[HELLO])
    writer = CHAT.writer(CHAT.read(chat()), ANSWER)
    client = client_of(streamed([*writer.feed(Text("Hel", 0, 3)), *writer.fail(problem)]))
    with pytest.raises(ollama.ResponseError, match="out of order"):
        list(client.chat(model="m", messages=[HELLO], stream=True))


def test_the_official_client_reads_what_is_said_of_models():
    assert client_of(json.dumps(tags([NANO])).encode()).list().models[0].model == "lfm2-nano"
    assert client_of(json.dumps(ps([NANO])).encode()).ps().models[0].name == "lfm2-nano"
    assert client_of(json.dumps(show(NANO)).encode()).show("lfm2-nano").capabilities == [
        "completion",
        "tools",
    ]


# -- answers ------------------------------------------------------------------------------------------------


def done(**fields: Any) -> Done:
    return Done(AssistantMessage(**fields), ())


def test_durations_are_nanoseconds():
    writer = CHAT.writer(CHAT.read(chat()), replace(ANSWER, load_seconds=2.0))
    usage, timings = Usage(input=10, output=4, cache_read=7), Timings(prefill=3.25, decode=4.5)
    (frame,) = writer.feed(done(usage=usage, timings=timings))
    numbers = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
    assert [frame.data[name] for name in numbers] == [
        9_750_000_000,
        2_000_000_000,
        3_250_000_000,
        4_500_000_000,
    ]
    assert (frame.data["prompt_eval_count"], frame.data["eval_count"]) == (10, 4)


def test_what_was_not_enforced_of_a_schema_is_told():
    writer = CHAT.writer(CHAT.read(chat()), ANSWER)
    relaxed = Relaxed("add", "/properties/a", "pattern", "too large")
    (frame,) = writer.feed(Done(AssistantMessage(), (), relaxed=(relaxed,)))
    assert [entry["path"] for entry in frame.data["relaxed_schemas"]] == ["/properties/a"]
    assert frame.data["timings"] == writer.whole()["timings"]


def test_no_duration_that_clients_divide_by_is_zero():
    writer = CHAT.writer(CHAT.read(chat()), ANSWER)
    (frame,) = writer.feed(done())
    assert (frame.data["prompt_eval_duration"], frame.data["eval_duration"]) == (1, 1)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("stop", "stop"), ("tool_calls", "stop"), ("length", "length"), ("cancelled", "length")],
)
def test_why_it_is_done(reason, expected):
    (frame,) = CHAT.writer(CHAT.read(chat()), ANSWER).feed(done(stop_reason=reason))
    assert frame.data["done_reason"] == expected


def test_log_probabilities_are_beside_the_text():
    answer = replace(ANSWER, spell=lambda ids: [str(each).encode() for each in ids])
    writer = CHAT.writer(CHAT.read(chat(logprobs=True, top_logprobs=1)), answer)
    assert writer.feed(Scored(7, 2, Logprobs(-0.5, ((9, -1.0),)))) == []
    (frame,) = writer.feed(Text("Hi", 0, 2))
    assert frame.data["logprobs"] == [
        {
            "token": "7",
            "logprob": -0.5,
            "bytes": [55],
            "top_logprobs": [{"token": "9", "logprob": -1.0, "bytes": [57]}],
        }
    ]
    writer.feed(Scored(8, 2, Logprobs(-0.5)))
    (last,) = writer.feed(Done(AssistantMessage(content="Hi"), (7, 8), ends=(2, 2)))
    assert "logprobs" not in last.data
    assert writer.whole()["logprobs"] == frame.data["logprobs"]
    ChatResponse.model_validate(frame.data)


@pytest.mark.parametrize(
    ("keep_alive", "reason"), [(None, "load"), ("5m", "load"), (0, "unload"), ("0", "unload")]
)
@pytest.mark.parametrize("wire", [CHAT, GENERATE])
def test_a_request_without_words_loads_or_unloads_the_model(wire, keep_alive, reason):
    empty = {"messages": []} if wire is CHAT else {"prompt": ""}
    request = wire.read(body_of(wire, keep_alive=keep_alive, **empty))
    assert request.only_loads
    assert not wire.read(body_of(wire)).only_loads
    whole = wire.writer(request, ANSWER).whole()
    assert (whole["done"], whole["done_reason"]) == (True, reason)
    (ChatResponse if wire is CHAT else GenerateResponse).model_validate(whole, strict=True)


def test_an_answer_comes_back_as_it_was_written():
    told = tell(CHAT, chat(), f"{THINK}hm{THOUGHT} Yes.\n\n" + block("add(a=1)"))
    result = {"role": "tool", "content": "1", "tool_call_id": "call_K0"}
    request = CHAT.read(chat(messages=[HELLO, told.whole["message"], result]))
    thought, text, call = request.messages[1].content
    assert (thought, text) == (ReasoningPart(text="hm"), TextPart(text=" Yes.\n\n"))
    assert (call.id, call.name, call.arguments) == ("call_K0", "add", {"a": 1})
    assert request.messages[2].results[0].call_id == "call_K0"


# -- requests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", [CHAT, GENERATE])
def test_the_sampling_of_a_request(wire):
    shared = {"temperature": 0.5, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "seed": 7, "stop": ["END"]}
    request = wire.read(body_of(wire, options={**shared, "repeat_penalty": 1.1, "num_predict": 100}))
    assert request.options == {**shared, "repetition_penalty": 1.1, "max_tokens": 100}
    assert request.ignored == ()


@pytest.mark.parametrize("endless", [-1, -2])
def test_no_limit_is_none(endless):
    assert CHAT.read(chat(options={"num_predict": endless})).options == {}


def test_a_stream_is_the_default():
    assert CHAT.read(chat()).stream
    assert not GENERATE.read(generate(stream=False)).stream


def test_a_tag_that_every_model_has_is_left_out():
    assert CHAT.read(chat(model="lfm2-nano:latest")).model == "lfm2-nano"
    assert CHAT.read(chat(model="qwen3:8b")).model == "qwen3:8b"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (None, None),
        ("", None),
        ("json", {"type": "json_object"}),
        (
            {"type": "array"},
            {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": {"type": "array"}, "strict": True},
            },
        ),
    ],
)
@pytest.mark.parametrize("wire", [CHAT, GENERATE])
def test_the_format_of_the_answer(wire, form, expected):
    assert wire.read(body_of(wire, format=form)).response_format == expected


@pytest.mark.parametrize(
    ("think", "expected"),
    [
        (None, None),
        (True, True),
        (False, False),
        ("low", "low"),
        ("high", "high"),
        ("max", "high"),
        ("none", False),
    ],
)
def test_thinking(think, expected):
    assert CHAT.read(chat(think=think)).thinking == expected


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None),
        (300, 300.0),
        (0, 0.0),
        (-1, math.inf),
        (2.5, 2.5),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        ("-1", math.inf),
        ("-1m", math.inf),
        ("60", 60.0),
        ("0", 0.0),
    ],
)
def test_how_long_the_model_stays(given, seconds):
    assert CHAT.read(chat(keep_alive=given)).keep_alive == seconds


def test_a_prompt_with_instructions():
    request = GENERATE.read(generate(system="Be kind."))
    assert request.messages == [SystemMessage.text("Be kind."), UserMessage.text("Hello.")]
    assert GENERATE.read(generate(system="")).messages == [UserMessage.text("Hello.")]


def test_a_raw_prompt_is_text_alone():
    request = GENERATE.read(generate(raw=True, system="Be kind.", suffix="", template="", context=[]))
    assert (request.raw_prompts, list(request.messages), request.only_loads) == (("Hello.",), [], False)
    told = tell(GENERATE, generate(raw=True), "Yes.")
    assert told.whole["response"] == "Yes."


def test_a_suffix_asks_for_a_gap_to_be_filled():
    request = GENERATE.read(generate(suffix="return 1", system="Be kind."))
    assert (request.raw_prompts, list(request.messages)) == ((Gap("Hello.", "return 1"),), [])
    assert "system" in request.ignored


PNG = "iVBORw0KGgo="


@pytest.mark.parametrize("wire", [CHAT, GENERATE])
def test_images_are_for_models_with_eyes(wire):
    body = chat(messages=[{**HELLO, "images": [PNG]}]) if wire is CHAT else generate(images=[PNG])
    with pytest.raises(BadRequest, match="no images") as caught:
        wire.read(body)
    assert caught.value.param == ("messages[0].images" if wire is CHAT else "images")
    with pytest.raises(BadRequest, match=r"images\[0\]: .*base64"):
        wire.read(json.loads(json.dumps(body).replace(PNG, "?")), Limits(images=True))
    message = wire.read(body, Limits(images=True)).messages[0]
    assert (message.text, message.images[0].media_type) == ("Hello.", "image/png")


# -- bodies that are wrong ----------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": 7}, "model"),
    ({"model": "\ud800"}, "model"),
    ({"stream": "yes"}, "stream"),
    ({"options": []}, "options"),
    ({"options": {"temperature": -1}}, "options.temperature"),
    ({"options": {"temperature": float("nan")}}, "options.temperature"),
    ({"options": {"num_predict": 0}}, "options.num_predict"),
    ({"options": {"num_predict": "many"}}, "options.num_predict"),
    ({"options": {"stop": 7}}, "options.stop"),
    ({"options": {"mirostat": 2}}, "options.mirostat"),
    ({"options": {"presence_penalty": 0.5}}, "options.presence_penalty"),
    ({"format": "xml"}, "format"),
    ({"format": 7}, "format"),
    ({"format": {"enum": [0] * 30}}, "format"),
    ({"think": "hard"}, "think"),
    ({"think": 1}, "think"),
    ({"think": []}, "think"),
    ({"keep_alive": "soon"}, "keep_alive"),
    ({"keep_alive": ""}, "keep_alive"),
    ({"keep_alive": True}, "keep_alive"),
    ({"keep_alive": []}, "keep_alive"),
    ({"keep_alive": "5m later"}, "keep_alive"),
    ({"keep_alive": "9" * 400 + "h"}, "keep_alive"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": "yes"}, "logprobs"),
]  # fmt: skip
WRONG_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": {}}, "messages"),
    ({"messages": [HELLO] * 4}, "messages"),
    ({"messages": [7]}, "messages[0]"),
    ({"messages": [{}]}, "messages[0].role"),
    ({"messages": [{"role": "robot"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x", "images": 7}]}, "messages[0].images"),
    ({"messages": [{"role": "user", "content": "x", "images": [7]}]}, "messages[0].images"),
    ({"messages": [HELLO, {"role": "tool", "content": "x"}]}, "messages[1]"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
    ({"tools": {}}, "tools"),
    ({"tools": [7]}, "tools[0]"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [ADD, ADD]}, "tools"),
]  # fmt: skip
WRONG_TEXTS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": 7}, "prompt"),
    ({"system": 7}, "system"),
    ({"raw": "yes"}, "raw"),
    ({"raw": True, "images": [PNG]}, "images"),
    ({"images": {"a": 1}}, "images"),
    ({"suffix": 7}, "suffix"),
    ({"suffix": "return", "images": [PNG]}, "suffix"),
    ({"template": "{{ .Prompt }}"}, "template"),
    ({"context": [1, 2]}, "context"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wire", "more", "param"),
    [
        (wire, *row)
        for wire, rows in ((CHAT, WRONG + WRONG_CHATS), (GENERATE, WRONG + WRONG_TEXTS))
        for row in rows
    ],
)
def test_what_is_wrong_is_refused_with_its_field(wire, more, param):
    with pytest.raises(BadRequest) as caught:
        wire.read(body_of(wire, **more), Limits(messages=3, tools=ToolBounds(schema=80)))
    assert caught.value.param == param
    assert str(caught.value).startswith(param)
    assert wire.error(caught.value) == (400, {"error": str(caught.value)})


@pytest.mark.parametrize("given", [None, 7, "x", [], [chat()]])
def test_a_body_is_an_object(given):
    for wire in (CHAT, GENERATE):
        with pytest.raises(BadRequest, match="JSON object"):
            wire.read(given)
    with pytest.raises(BadRequest, match="JSON object"):
        asked_model(given)


turns = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"]) | json_values},
    optional=dict.fromkeys(
        ("content", "thinking", "images", "tool_calls", "tool_name", "tool_call_id"), json_values
    ),
)
hostile = st.fixed_dictionaries(
    {"messages": st.lists(turns) | json_values},
    optional={
        **dict.fromkeys((CHAT_OPTIONS | GENERATE_OPTIONS).keys() - {"messages", "options"}, json_values),
        "options": st.dictionaries(st.sampled_from(list(MODEL_OPTIONS)), json_values) | json_values,
        "keep_alive": st.text("0123456789.-mhsn") | json_values,
    },
)


@settings(max_examples=500)
@given(hostile | json_values, st.sampled_from([Limits(), Limits(images=True)]))
def test_any_body_is_read_or_refused(given, limits):
    for wire in (CHAT, GENERATE):
        try:
            request = wire.read(given, limits)
        except BadRequest as error:
            wire.error(error)
        else:
            assert request.keep_alive is None or request.keep_alive >= 0


# -- models -------------------------------------------------------------------------------------------------

NANO = Described(
    name="lfm2-nano",
    architecture="lfm2",
    context=4096,
    size=1_000_000,
    parameters=1_170_000_000,
    quantization="F16",
    modified=1_700_000_000,
    template="{{ messages }}",
    license="MIT",
    tools=True,
    loaded=2_000_000,
)


def test_the_models_that_can_be_asked():
    official = ListResponse.model_validate(tags([NANO]))
    (model,) = official.models
    assert (model.model, model.size) == ("lfm2-nano", 1_000_000)
    assert model.details.parameter_size == "1.2B"
    assert tags([NANO])["models"][0]["name"] == "lfm2-nano"  # which the package does not read
    assert tags([]) == {"models": []}


def test_the_digest_of_a_model_is_always_there_and_always_the_same():
    (first,), (again,) = tags([NANO])["models"], tags([NANO])["models"]
    (other,) = tags([replace(NANO, name="other")])["models"]
    assert first["digest"] == again["digest"] != other["digest"]
    assert len(first["digest"]) == 64
    assert tags([replace(NANO, digest="abc")])["models"][0]["digest"] == "abc"


def test_the_models_in_memory():
    (model,) = ProcessResponse.model_validate(ps([NANO])).models
    assert (model.name, model.size, model.size_vram, model.context_length) == (
        "lfm2-nano",
        2_000_000,
        2_000_000,
        4096,
    )
    assert model.expires_at.year == 2999
    (soon,) = ps([replace(NANO, expires=1_700_000_300.0)])["models"]
    assert soon["expires_at"] == "2023-11-14T22:18:20.000000Z"


@pytest.mark.parametrize(
    ("has", "capabilities"),
    [
        ({}, ["completion", "tools"]),
        ({"thinking": True, "images": True}, ["completion", "tools", "thinking", "vision"]),
        ({"tools": False}, ["completion"]),
    ],
)
def test_what_a_model_can_do(has, capabilities):
    shown = show(replace(NANO, **has))
    assert ShowResponse.model_validate(shown).capabilities == capabilities
    assert shown["model_info"]["lfm2.context_length"] == 4096
    assert shown["model_info"]["general.architecture"] == "lfm2"


@pytest.mark.parametrize("body", [{"model": "m"}, {"name": "m"}, {"model": "m:latest", "verbose": True}])
def test_which_model_is_to_be_shown(body):
    assert asked_model(body) == "m"


@pytest.mark.parametrize("body", [{}, {"model": ""}, {"model": 7}])
def test_which_model_is_not_said(body):
    with pytest.raises(BadRequest) as caught:
        asked_model(body)
    assert caught.value.param == "model"


def test_the_version_is_new_enough_for_clients():
    assert tuple(map(int, version()["version"].split("."))) >= (0, 6, 4)  # which editors ask for
    assert RUNNING == "Ollama is running"


def test_raw_text_has_no_place_for_a_system_message():
    assert GENERATE.read(generate(raw=True, system="Be brief.")).ignored == ("system",)
    assert GENERATE.read(generate(raw=True, system="")).ignored == ()
