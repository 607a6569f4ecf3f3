"""One turn, as each API tells all of it; and the least request to each, as it is read."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from localagent.messages import Timings, Usage, UserMessage
from localagent.server.exchange import TurnRequest, Wire
from localagent.server.wires.chat import CHAT_WIRE
from localagent.server.wires.completions import COMPLETIONS_WIRE
from localagent.server.wires.messages import COUNT_TOKENS_WIRE, MESSAGES_WIRE
from localagent.server.wires.offer import Offer
from localagent.server.wires.ollama import OLLAMA_CHAT_WIRE, OLLAMA_GENERATE_WIRE
from localagent.server.wires.responses import RESPONSES_WIRE
from localagent.turn import Done, TurnEvent
from tests.server.wires.test_requests import RESPONSES, SCHEMA
from tests.server.wires.turns import ANSWER, TOOL, answered, turn_of

USER = [{"role": "user", "content": "Go."}]
GO = [UserMessage.text("Go.")]
S, E = "<|tool_call_start|>", "<|tool_call_end|>"
ECHO = {
    "instructions": None, "max_output_tokens": None, "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None}, "temperature": None, "text": {"format": {"type": "text"}},
    "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": None,
}  # fmt: skip
LEAST: list[tuple[Wire, dict[str, Any], TurnRequest]] = [
    (
        CHAT_WIRE,
        {"messages": USER},
        TurnRequest(
            model="", messages=GO, tools=[], details={"offer": Offer(), "include_usage": False, "logprobs": False, "wanted": 1},
        ),
    ),
    (
        RESPONSES_WIRE,
        {"input": "Go."},
        TurnRequest(
            model="", messages=GO, tools=[], thinking_field="reasoning.effort",
            details={"offer": Offer(), "logprobs": False, "sealed": False, "summary": False, "echo": ECHO},
        ),
    ),
    (
        COMPLETIONS_WIRE,
        {"prompt": "Go."},
        TurnRequest(
            model="", raw_prompts=("Go.",), options={"max_tokens": 16},
            details={"include_usage": False, "logprobs": None, "wanted": 1},
        ),
    ),
    (MESSAGES_WIRE, {"messages": USER}, TurnRequest(model="", messages=GO, tools=[], thinking_field="thinking")),
    (COUNT_TOKENS_WIRE, {"messages": USER}, TurnRequest(model="", messages=GO, tools=[], thinking_field="thinking")),
    (OLLAMA_CHAT_WIRE, {"messages": USER}, TurnRequest(model="", messages=GO, tools=[], stream=True, thinking_field="think")),
    (OLLAMA_GENERATE_WIRE, {"prompt": "Go."}, TurnRequest(model="", messages=GO, tools=[], stream=True, thinking_field="think")),
    (OLLAMA_CHAT_WIRE, {}, TurnRequest(model="", messages=[], tools=[], stream=True, thinking_field="think")),
    (
        OLLAMA_GENERATE_WIRE,
        {"prompt": "Go.", "raw": True},
        TurnRequest(model="", messages=[], tools=[], stream=True, thinking_field="think", raw_prompts=("Go.",)),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "body", "request_"), LEAST, ids=[each[0].path for each in LEAST])
def test_the_least_request_asks_for_nothing_else(wire: Wire, body: Any, request_: TurnRequest) -> None:
    assert wire.read(body) == request_
    assert wire.read({**body, "stream": True}).stream is True
    assert wire.read({**body, "stream": False, "model": "m"}) == dataclasses.replace(
        request_, stream=False, model="m"
    )
    assert [wire.fails_in_stream(error) for error in (ValueError(), TimeoutError())] == [False, False]


def test_the_answer_repeats_what_the_request_asked_for() -> None:
    assert RESPONSES_WIRE.read(RESPONSES).details["echo"] == {
        **ECHO,
        "instructions": "Be kind.",
        "max_output_tokens": 9,
        "reasoning": {"effort": "high", "summary": "auto"},
        "temperature": 0,
        "text": {"format": {"type": "json_object"}},
        "tool_choice": "required",
        "tools": [
            {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": False}
        ],
        "top_logprobs": 2,
        "top_p": 1,
    }
    custom = {"type": "custom", "name": "g", "description": "Runs."}
    form = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
    body = {
        "input": "Go.",
        "tools": [custom],
        "tool_choice": {"type": "custom", "name": "g"},
        "text": {"format": form},
    }
    echo = RESPONSES_WIRE.read(body | {"parallel_tool_calls": False}).details["echo"]
    assert (echo["tools"], echo["tool_choice"]) == ([custom], {"type": "custom", "name": "g"})
    assert (echo["text"], echo["parallel_tool_calls"]) == ({"format": form}, False)


# -- answers -----------------------------------------------------------------------------------------------

TIMES = {
    "cache_n": 4, "prompt_n": 6, "prompt_ms": 250.0, "prompt_per_token_ms": 41.667, "prompt_per_second": 24.0,
    "predicted_n": 8, "predicted_ms": 2000.0, "predicted_per_token_ms": 250.0, "predicted_per_second": 4.0,
}  # fmt: skip
BROKEN = {"index": 0, "id": None, "name": "f", "reason": "truncated", "raw": "f(a=", "arguments": ""}
TAKEN_BACK = {**BROKEN, "id": "call_k3y1", "arguments": '{"a": '}
NUMBERS = {
    "done": True, "done_reason": "stop", "total_duration": 2_250_000_000, "load_duration": 0, "prompt_eval_count": 10,
    "prompt_eval_duration": 250_000_000, "eval_count": 8, "eval_duration": 2_000_000_000, "timings": TIMES,
}  # fmt: skip
SAID = {"thinking": "hm", "tool_calls": [{"id": "call_k3y0", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}], "malformed_tool_calls": [BROKEN]}  # fmt: skip
MADE = {"model": "lfm2-nano", "created_at": "2023-11-14T22:13:20.500000Z"}
ANSWERS: list[tuple[Wire, dict[str, Any], dict[str, Any]]] = [
    (
        CHAT_WIRE,
        {"messages": USER, "tools": [TOOL]},
        {
            "id": "chatcmpl-k3y", "object": "chat.completion", "created": 1_700_000_000, "model": "lfm2-nano",
            "choices": [{
                "index": 0, "logprobs": None, "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant", "content": "Yes.", "refusal": None, "reasoning_content": "hm",
                    "tool_calls": [{"id": "call_k3y0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
                    "malformed_tool_calls": [TAKEN_BACK],
                },
            }],
            "usage": {
                "prompt_tokens": 10, "completion_tokens": 8, "total_tokens": 18,
                "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 1},
            },
            "timings": TIMES,
        },
    ),
    (
        RESPONSES_WIRE,
        {"input": "Go.", "tools": [{"type": "function", "name": "f"}]},
        {
            **ECHO, "id": "resp_k3y", "object": "response", "created_at": 1_700_000_000, "status": "completed",
            "background": False, "error": None, "incomplete_details": None, "metadata": {}, "model": "lfm2-nano",
            "output": [
                {"id": "rs_k3y0", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}], "status": "completed"},
                {"id": "msg_k3y1", "type": "message", "role": "assistant", "status": "completed",
                 "content": [{"type": "output_text", "text": "Yes.", "annotations": [], "logprobs": []}]},
                {"id": "fc_k3y2", "type": "function_call", "call_id": "call_k3y0", "name": "f", "arguments": '{"a": 1}', "status": "completed"},
            ],
            "previous_response_id": None, "store": False, "truncation": "disabled",
            "usage": {
                "input_tokens": 10, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
                "output_tokens": 8, "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 18,
            },
            "tools": [{"type": "function", "name": "f", "description": "", "parameters": {"type": "object", "properties": {}}, "strict": False}],
            "timings": TIMES, "malformed_tool_calls": [TAKEN_BACK],
        },
    ),
    (
        MESSAGES_WIRE,
        {"messages": USER},
        {
            "id": "msg_k3y", "type": "message", "role": "assistant", "model": "lfm2-nano",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "localagent"},
                {"type": "text", "text": "Yes."},
                {"type": "tool_use", "id": "toolu_k3y_0", "name": "f", "input": {"a": 1}},
            ],
            "stop_reason": "tool_use", "stop_sequence": None, "stop_details": None,
            "usage": {"input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 8},
            "timings": TIMES, "malformed_tool_calls": [BROKEN],
        },
    ),
    (OLLAMA_CHAT_WIRE, {"messages": USER}, {**MADE, "message": {"role": "assistant", "content": "Yes.", **SAID}, **NUMBERS}),
    (OLLAMA_GENERATE_WIRE, {"prompt": "Go."}, {**MADE, "response": "Yes.", **SAID, **NUMBERS}),
]  # fmt: skip


def measured(events: list[TurnEvent], usage: Usage, timings: Timings) -> list[TurnEvent]:
    *others, done = events
    assert isinstance(done, Done)
    message = done.message.model_copy(update={"usage": usage, "timings": timings})
    return [*others, dataclasses.replace(done, message=message)]


@pytest.mark.parametrize(("wire", "body", "whole"), ANSWERS, ids=[each[0].path for each in ANSWERS])
def test_the_whole_answer_letter_for_letter(wire: Wire, body: Any, whole: dict[str, Any]) -> None:
    events = turn_of(f"<think>hm</think>Yes.{S}[f(a=1)]{E}{S}[f(a=")
    usage, timings = Usage(input=10, output=8, cache_read=4), Timings(prefill=0.25, decode=2)
    assert answered(wire, body, measured(events, usage, timings))[1] == whole


UNFIT = [
    {"index": 1, "reasons": [{"kind": "unknown_key", "path": "/b"}]},
    {"index": 2, "reasons": [{"kind": "undeclared_name", "path": ""}]},
]


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    ("wire", "body"), [each[:2] for each in ANSWERS], ids=[each[0].path for each in ANSWERS]
)
def test_calls_that_do_not_fit_are_named_with_their_reasons(wire: Wire, body: Any, buffered: bool) -> None:
    answer = dataclasses.replace(ANSWER, buffer_tool_calls=buffered)
    events = turn_of(f"{S}[f(a=1), f(b=2), g()]{E}", tools=[TOOL])
    frames, whole = answered(wire, body, events, answer)
    message = whole["choices"][0]["message"] if "choices" in whole else whole.get("message", whole)
    assert message["unfit_tool_calls"] == UNFIT
    told = [entry for frame in frames for entry in _unfit(frame.data)]
    assert told == UNFIT
    _, whole = answered(wire, body, turn_of(f"{S}[f(a=1)]{E}", tools=[TOOL]), answer)
    assert "unfit_tool_calls" not in str(whole)


def _unfit(data: Any) -> list[Any]:
    """The entries in one frame, wherever its API has them."""
    if isinstance(data, list):
        return [entry for item in data for entry in _unfit(item)]
    if not isinstance(data, dict):
        return []
    own = data.get("unfit_tool_calls", [])
    return [*own, *(entry for name in data if name != "unfit_tool_calls" for entry in _unfit(data[name]))]


def test_a_continued_text_letter_for_letter() -> None:
    events = measured(turn_of("Yes.", "text"), Usage(input=3), Timings())
    frames, whole = answered(COMPLETIONS_WIRE, {"prompt": "Go."}, events)
    made = {"id": "cmpl-k3y", "object": "text_completion", "created": 1_700_000_000, "model": "lfm2-nano"}
    bare = {"index": 0, "logprobs": None, "finish_reason": None}
    nothing = {
        "cache_n": 0, "prompt_n": 3, "prompt_ms": 0.0, "prompt_per_token_ms": 0.0, "prompt_per_second": 0.0,
        "predicted_n": 0, "predicted_ms": 0.0, "predicted_per_token_ms": 0.0, "predicted_per_second": 0.0,
    }  # fmt: skip
    usage = {
        "prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    end = {**bare, "finish_reason": "stop"}
    assert whole == {**made, "choices": [{**end, "text": "Yes."}], "usage": usage, "timings": nothing}
    assert [frame.data for frame in frames] == [
        {**made, "choices": [{**bare, "text": "Yes."}]},
        {**made, "choices": [{**end, "text": ""}], "timings": nothing},
        "[DONE]",
    ]
