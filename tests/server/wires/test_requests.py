"""Requests to OpenAI's API: what is read of them, and what is refused."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest

from localagent.server.exchange import BadRequest, Limits
from localagent.server.wires.chat import CHAT_WIRE
from localagent.server.wires.completions import COMPLETIONS_WIRE
from localagent.server.wires.completions import OPTIONS as COMPLETION_OPTIONS
from localagent.server.wires.responses import RESPONSES_WIRE
from localagent.tools.bounds import ToolBounds

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "enum": [1, 2]}}, "required": ["a"]}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "ann"},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "4"}]},
        {"role": "assistant", "content": "4", "malformed_tool_calls": [{"index": 0, "raw": "f(", "reason": "truncated", "id": None}]},
        {"role": "user", "content": "And now?"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}},
        {"type": "custom", "custom": {"name": "g", "description": "d", "format": {"type": "text"}}},
    ],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": False,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": copy.deepcopy(SCHEMA), "strict": True}},
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "repeat_penalty": 1.1,
    "seed": 7,
    "stop": ["a", "b"],
    "max_completion_tokens": 100,
    "logprobs": True,
    "top_logprobs": 3,
    "reasoning_effort": "medium",
    "reasoning": {"effort": "low", "max_tokens": 50},
    "chat_template_kwargs": {"enable_thinking": True},
    "n": 1,
    "logit_bias": {},
    "user": "u",
    "modalities": ["text"],
}  # fmt: skip
RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "Be kind.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}], "content": [{"type": "reasoning_text", "text": "t"}], "encrypted_content": "localagent:t"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}', "id": "fc"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "ls", "namespace": "n"},
        {"type": "function_call_output", "call_id": "c1", "output": "4"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "x"}]},
        {"role": "developer", "content": "Go on."},
    ],
    "tools": [
        {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": False},
        {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
        {"type": "namespace", "name": "n", "description": "", "tools": [{"type": "function", "name": "f"}]},
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
    "parallel_tool_calls": True,
    "text": {"format": {"type": "json_object"}, "verbosity": "low"},
    "reasoning": {"effort": "high", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "max_output_tokens": 9,
    "temperature": 0,
    "top_p": 1,
    "top_logprobs": 2,
    "stream": True,
    "store": False,
    "background": False,
}  # fmt: skip
COMPLETIONS: dict[str, Any] = {
    "model": "m",
    "prompt": "Once",
    "max_tokens": 5,
    "temperature": 0,
    "logprobs": 2,
    "stop": "\n",
    "echo": False,
    "suffix": "",
    "best_of": 1,
    "stream": True,
    "stream_options": {"include_usage": True},
}
WIRES = {
    "chat": (CHAT_WIRE, CHAT),
    "responses": (RESPONSES_WIRE, RESPONSES),
    "completions": (COMPLETIONS_WIRE, COMPLETIONS),
}


ROWS: list[tuple[str, dict[str, Any], str, str]] = [
    ("chat", {"messages": None}, "messages", "a list belongs"),
    ("chat", {"messages": []}, "messages", "at least one message"),
    ("chat", {"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "no role"),
    ("chat", {"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "a number"),
    ("chat", {"messages": [{"role": "tool", "tool_call_id": "x", "content": "4"}]}, "messages[0]", "'x'"),
    ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}]}]}, "messages", "cannot see"),
    ("chat", {"temperature": "hot"}, "temperature", "a number, at least 0"),
    ("chat", {"temperature": -1}, "temperature", "at least 0"),
    ("chat", {"top_p": 2}, "top_p", "at most 1"),
    ("chat", {"max_tokens": 0, "max_completion_tokens": None}, "max_tokens", "at least 1"),
    ("chat", {"stop": ["a", ""]}, "stop", "none of them empty"),
    ("chat", {"stop": ["a"] * 101}, "stop", "takes 100"),
    ("chat", {"top_logprobs": 21, "logprobs": True}, "top_logprobs", "at most 20"),
    ("chat", {"top_logprobs": 2, "logprobs": False}, "top_logprobs", "logprobs to be true"),
    ("chat", {"n": 200}, "n", "at most 128"),
    ("chat", {"n": True}, "n", "at least 1"),
    ("chat", {"logit_bias": {"50256": -101}}, "logit_bias", "a number from -100 to 100"),
    ("chat", {"logit_bias": {"Hello": 1}}, "logit_bias", "an object of token ids"),
    ("chat", {"logit_bias": [["Hello", 1]]}, "logit_bias", "an object of token ids"),
    ("chat", {"logit_bias": 7}, "logit_bias", "an object of token ids"),
    ("chat", {"logit_bias": {"5": True}}, "logit_bias", "a number from -100 to 100"),
    ("chat", {"logit_bias": {str(n): 1 for n in range(301)}}, "logit_bias", "301 tokens, and the server takes 300"),
    ("chat", {"presence_penalty": 0.5}, "presence_penalty", "no such penalty"),
    ("chat", {"modalities": ["text", "audio"]}, "modalities", "text alone"),
    ("chat", {"audio": {"voice": "x"}}, "audio", "text alone"),
    ("chat", {"functions": [{"name": "f"}]}, "functions", "use tools"),
    ("chat", {"guided_json": {}}, "guided_json", "response_format"),
    ("chat", {"reasoning_effort": "low", "thinking_budget_tokens": 0, "reasoning": None}, "thinking_budget_tokens", "reasoning_effort asks for thinking"),
    ("chat", {"thinking_budget_tokens": -2}, "thinking_budget_tokens", "at least 0"),
    ("chat", {"n": 1.5}, "n", "a whole number"),
    ("chat", {"n": 3, "best_of": 2}, "best_of", "at least n, which is 3"),
    ("chat", {"echo": True}, "echo", "no prompt in it"),
    ("chat", {"top_logprobs": 2.5}, "top_logprobs", "a count belongs"),
    ("chat", {"reasoning_effort": "furious"}, "reasoning_effort", "none of none, minimal"),
    ("chat", {"tool_choice": "maybe"}, "tool_choice", "none of none, auto, required"),
    ("chat", {"tool_choice": {"type": "function", "function": {"name": "h"}}}, "tool_choice", "no tool 'h'"),
    ("chat", {"tool_choice": "required", "tools": None}, "tool_choice", "there are none"),
    ("chat", {"tools": [CHAT["tools"][1], *[CHAT["tools"][0]] * 2]}, "tools", "named 'f'"),
    ("chat", {"tools": [{"type": "function", "function": {"name": " "}}]}, "tools[0].function.name", "without a name"),
    ("chat", {"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}, "tools[0].function.parameters", "JSON Schema"),
    ("chat", {"response_format": {"type": "xml"}}, "response_format.type", "none of text, json_object"),
    ("chat", {"response_format": {"type": "json_schema"}}, "response_format.schema", "missing"),
    ("chat", {"stream": "yes"}, "stream", "true or false"),
    ("chat", {"user": float("nan")}, "user", "nan"),
    ("responses", {"input": None}, "input", "a list belongs"),
    ("responses", {"input": []}, "input", "at least one"),
    ("responses", {"input": [{"role": "wizard", "content": "x"}]}, "input[0].role", "no role"),
    ("responses", {"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "no items are kept"),
    ("responses", {"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].type", "only the server"),
    ("responses", {"input": [{"type": "function_call_output", "call_id": "x", "output": "4"}]}, "input[0].call_id", "'x'"),
    ("responses", {"include": "x"}, "include", "a list of texts"),
    ("responses", {"prompt": {"id": "p"}}, "prompt", "stored prompts"),
    ("responses", {"top_logprobs": 30}, "top_logprobs", "at most 20"),
    ("responses", {"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "missing"),
    ("responses", {"reasoning": {"summary": "long"}}, "reasoning.summary", "none of auto, concise"),
    ("responses", {"reasoning": {"effort": "furious"}}, "reasoning.effort", "none of none"),
    ("completions", {"prompt": None}, "prompt", "a text or token ids"),
    ("completions", {"prompt": []}, "prompt", "not be empty"),
    ("completions", {"prompt": [[]]}, "prompt", "none empty"),
    ("completions", {"prompt": ["a", [1], True]}, "prompt", "a text or token ids"),
    ("completions", {"prompt": [1, -2]}, "prompt", "a text or token ids"),
    ("completions", {"prompt": ["a"] * 129}, "prompt", "129 of them, and the server takes 128"),
    ("completions", {"prompt": [1], "suffix": "x"}, "prompt", "it must be a text"),
    ("completions", {"prompt": ""}, "prompt", "none empty"),
    ("completions", {"echo": True, "logprobs": 1}, "echo", "no log-probabilities here"),
    ("completions", {"best_of": 3, "stream": True}, "best_of", "ask without stream"),
    ("completions", {"logprobs": 30}, "logprobs", "at most 20"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "param", "why"), ROWS)
def test_what_cannot_be_had_is_refused_by_name(name, change, param, why):
    wire, body = WIRES[name]
    with pytest.raises(BadRequest, match=re.escape(why)) as caught:
        wire.read(body | change)
    assert caught.value.param == param
    assert wire.error(caught.value)[1]["error"]["param"] == param


@pytest.mark.parametrize(
    ("limits", "param"),
    [(Limits(messages=3), "messages"), (Limits(tools=ToolBounds(count=1)), "tools"), (Limits(tools=ToolBounds(schema=9)), "tools[0].function.parameters")],
)  # fmt: skip
def test_requests_are_bounded(limits, param):
    with pytest.raises(BadRequest) as caught:
        CHAT_WIRE.read(CHAT, limits)
    assert caught.value.param == param


def test_the_items_of_a_response_are_bounded():
    with pytest.raises(BadRequest, match="8 items") as caught:
        RESPONSES_WIRE.read(RESPONSES, Limits(messages=7))
    assert caught.value.param == "input"


@pytest.mark.parametrize(
    ("form", "read"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "json_object"}),
        ({"type": "json_object", "schema": SCHEMA}, SCHEMA),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA}}, SCHEMA),
    ],
)
def test_formats_of_other_servers_are_read_too(form, read):
    request = CHAT_WIRE.read({"messages": CHAT["messages"], "response_format": form})
    if read is SCHEMA:
        read = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": False}}
    assert request.response_format == read


def test_everything_of_a_chat_completion_is_read():
    request = CHAT_WIRE.read(CHAT)
    assert (request.model, request.stream) == ("m", True)
    assert request.tool_choice == {"type": "function", "function": {"name": "f"}}
    assert (request.parallel_tool_calls, request.strict, request.thinking) == (False, True, "medium")
    assert request.thinking_budget == 50 and request.ignored == ("user", "reasoning.effort")
    assert request.options == {
        "max_tokens": 100, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05,
        "repetition_penalty": 1.1, "seed": 7, "stop": ["a", "b"], "logprobs": 3,
    }  # fmt: skip
    assert [tool["function"]["name"] for tool in request.tools] == ["f", "g"]
    assert request.tools[0]["function"]["parameters"] == SCHEMA
    assert request.response_format == CHAT["response_format"]
    assert [message.role for message in request.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


def test_everything_of_a_response_is_read():
    request = RESPONSES_WIRE.read(RESPONSES)
    assert (request.system, request.stream, request.tool_choice, request.thinking) == (
        "Be kind.",
        True,
        "required",
        "high",
    )
    assert request.options == {"max_tokens": 9, "temperature": 0, "top_p": 1, "logprobs": 2}
    assert [tool["function"]["name"] for tool in request.tools] == ["f"]
    assert request.response_format == {"type": "json_object"}
    assert request.ignored == (
        "store",
        "tools[1].format",
        "web_search",
        "text.verbosity",
    )
    assert [message.role for message in request.messages] == ["user", "assistant", "tool", "system"]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"max_tokens": -1}, {}),
        ({"max_tokens": 256.0}, {"max_tokens": 256}),
        ({"max_tokens": 5, "max_completion_tokens": 7}, {"max_tokens": 7}),
        ({"max_tokens": 10**9}, {"max_tokens": 10**9}),
        ({"top_k": 0}, {}),
        ({"top_k": -1}, {}),
        ({"top_p": 0}, {"top_p": None, "top_k": 1}),
        ({"seed": -1}, {}),
        ({"repetition_penalty": 1.2, "repeat_penalty": 1.3}, {"repetition_penalty": 1.2}),
        ({"stop": "a"}, {"stop": ["a"]}),
        ({"stop": []}, {}),
        ({"stop": None, "temperature": None}, {}),
        ({"logit_bias": {"50256": -100, "7": 1.0}}, {"logit_bias": {50256: -100, 7: 1}}),
        ({"logit_bias": [[7, 1.5], ["8", False]]}, {"logit_bias": {7: 1.5, 8: -100}}),
        ({"n": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}}, {}),
    ],
)
def test_what_clients_send_for_no_limit_and_no_choice_is_understood(given, options):
    request = CHAT_WIRE.read({"messages": CHAT["messages"], **given})
    assert (request.options, request.ignored) == (options, ())


@pytest.mark.parametrize(
    ("given", "level", "budget"),
    [
        ({}, None, None),
        ({"reasoning_effort": "none"}, False, None),
        ({"reasoning_effort": "xhigh"}, "high", None),
        ({"reasoning": {"effort": "low"}}, "low", None),
        ({"reasoning": {"enabled": False}}, False, None),
        ({"reasoning": {"max_tokens": 70}}, None, 70),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False, None),
        ({"chat_template_kwargs": {"thinking": True}}, True, None),
        ({"thinking_budget_tokens": 30, "reasoning_effort": "low"}, "low", 30),
        ({"thinking_budget_tokens": 0}, False, None),
        ({"thinking_budget_tokens": 0, "chat_template_kwargs": {"enable_thinking": False}}, False, None),
        ({"thinking_budget_tokens": -1}, None, None),
        ({"thinking_budget_tokens": -1.0, "reasoning_effort": "low"}, "low", None),
        ({"reasoning": {"max_tokens": 0}}, False, None),
        ({"reasoning": {"max_tokens": 70.0, "enabled": True}}, True, 70),
    ],
)
def test_thinking_is_asked_for_in_many_ways(given, level, budget):
    request = CHAT_WIRE.read({"messages": CHAT["messages"], **given})
    assert (request.thinking, request.thinking_budget) == (level, budget)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning_effort"),
        ({"reasoning": {"enabled": True}}, "reasoning.enabled"),
        ({"reasoning": {"max_tokens": 7}}, "reasoning.max_tokens"),
        ({"thinking_budget_tokens": 7}, "thinking_budget_tokens"),
        ({"chat_template_kwargs": {"thinking": True}}, "chat_template_kwargs.thinking"),
        ({}, ""),
    ],
)
def test_the_field_that_asks_for_thinking_is_known(given, field):
    assert CHAT_WIRE.read({"messages": CHAT["messages"], **given}).thinking_field == field


WHOLE = {"max_tokens": 9, "top_k": 40, "seed": 7, "logprobs": 2, "n": 1, "best_of": 1, "presence_penalty": 0}


@pytest.mark.parametrize("kind", [int, float])
def test_a_whole_number_may_have_a_point(kind):
    given = {name: kind(value) for name, value in WHOLE.items()}
    request = COMPLETIONS_WIRE.read({"prompt": "Once", **given})
    assert request.options == {"max_tokens": 9, "top_k": 40, "seed": 7, "logprobs": 2}
    assert all(type(value) is int for value in request.options.values())
    scored = RESPONSES_WIRE.read({"input": "Hi", "top_logprobs": kind(3)})
    assert repr(scored.options) == "{'logprobs': 3}"


def test_only_the_tools_that_are_allowed_are_offered():
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "custom", "custom": {"name": "g"}}]},
    }
    request = CHAT_WIRE.read(CHAT | {"tool_choice": allowed})
    assert ([tool["function"]["name"] for tool in request.tools], request.tool_choice) == (["g"], "auto")


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_a_tool_that_is_allowed_must_be_there(mode):
    entry = {"type": "function", "function": {"name": "nobody"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [entry]}}
    with pytest.raises(BadRequest, match="there is no tool 'nobody'"):
        CHAT_WIRE.read(CHAT | {"tool_choice": allowed})


def test_variables_of_a_template_and_wishes_for_thinking_that_are_not_read_are_named():
    asked = {"chat_template_kwargs": {"enable_thinking": False, "mood": 1}, "reasoning": {"exclude": True}}
    request = CHAT_WIRE.read({"messages": CHAT["messages"]} | asked)
    assert request.thinking is False
    assert request.ignored == ("reasoning.exclude", "chat_template_kwargs.mood")


def test_wishes_for_thinking_that_an_earlier_one_overrules_are_named():
    wishes = {
        "reasoning_effort": "low",
        "reasoning": {"effort": "high", "enabled": True, "max_tokens": 9},
        "thinking_budget_tokens": 7,
        "chat_template_kwargs": {"enable_thinking": False, "thinking": True},
    }
    request = CHAT_WIRE.read({"messages": CHAT["messages"]} | wishes)
    assert (request.thinking, request.thinking_budget) == ("low", 7)
    assert request.ignored == (
        "reasoning.effort",
        "chat_template_kwargs.enable_thinking",
        "reasoning.max_tokens",
    )


def test_a_tool_may_be_named_like_a_choice():
    tools = [{"type": "function", "function": {"name": "none"}}]
    choice = {"type": "function", "function": {"name": "none"}}
    request = CHAT_WIRE.read({"messages": CHAT["messages"], "tools": tools, "tool_choice": choice})
    assert request.tool_choice == choice
    assert CHAT_WIRE.read(CHAT | {"tool_choice": "none"}).tool_choice == "none"


def test_an_image_in_the_result_of_a_tool_does_not_end_the_conversation():
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}
    messages = [
        CHAT["messages"][1],
        CHAT["messages"][2],
        {"role": "tool", "tool_call_id": "c1", "content": [shown]},
    ]
    assert CHAT_WIRE.read({"messages": messages}).messages[2].results[0].parts[0].kind == "image"
    user = [{"role": "user", "content": [shown]}]
    assert CHAT_WIRE.read({"messages": user}, Limits(images=True)).messages[0].images


def test_every_field_of_completions_is_in_the_table():
    from openai.types import completion_create_params

    fields = completion_create_params.CompletionCreateParamsBase.__annotations__
    assert fields.keys() <= COMPLETION_OPTIONS.keys()


def test_what_just_fits_is_taken():
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    tool = {"type": "function", "function": {"name": "n" * 256, "parameters": schema}}
    body = {
        "messages": CHAT["messages"][:2],
        "tools": [tool, {"type": "custom", "custom": {"name": "g"}}],
        "stop": ["a"] * 100,
        "logprobs": True,
        "top_logprobs": 20,
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
    }
    limits = Limits(messages=2, tools=ToolBounds(count=2, schema=len(json.dumps(schema))))
    request = CHAT_WIRE.read(body, limits)
    assert [tool["function"]["name"] for tool in request.tools] == ["n" * 256, "g"]
    assert (len(request.options["stop"]), request.options["logprobs"]) == (100, 20)
    assert request.tools[0]["function"]["description"] == ""
    assert request.tools[1]["function"]["parameters"] == schema
    items = [{"role": "user", "content": "x"}] * 2
    assert RESPONSES_WIRE.read({"input": items, "top_logprobs": 20}, limits).options == {"logprobs": 20}
    assert COMPLETIONS_WIRE.read({"prompt": ["x"], "logprobs": 20}).options["logprobs"] == 20


FUNCTION = {"type": "function", "name": "f"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tools": {}}, "tools: it must be a list"),
        ({"tools": [FUNCTION] * 3}, "tools: 3 of them, and the server takes 2"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [FUNCTION] * 3}]}, "tools[0].tools: 3 of them, and the server takes 2"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "namespace", "name": "m", "tools": 7}]}]}, None),
        ({"tools": [{"type": "namespace", "name": "n"}]}, None),
        ({"tools": [{"type": "function", "name": "n" * 257}]}, f"tools[0].name: tool {chr(39)}{59 * chr(110)}: its name has 257 characters, and at most 256 are taken"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name: a tool without a name: models call tools by name"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools: two tools are named 'f'"),
        ({"tools": [{**FUNCTION, "parameters": {"a": [1] * 50}}]}, "tools[0].parameters: a schema of 157 characters, and the server takes 100"),
        ({"tools": [{**FUNCTION, "parameters": []}]}, "tools[0].parameters: it must be a JSON Schema, which is an object"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "custom", "name": "g"}}, "tool_choice: there is no tool 'g'"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f", "namespace": "n"}}, "tool_choice: there is no tool 'n__f'"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "tools": [FUNCTION] * 3}}, "tool_choice.tools: 3 of them, and the server takes 2"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "mode": "none", "tools": []}}, "tool_choice.mode: 'none' is none of auto, required"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "custom", "name": "g"}]}}, "tool_choice: there is no tool 'g'"),
        ({"tool_choice": "required"}, "tool_choice: a tool is required, and there are none"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}}, "tool_choice: a tool is required, and there are none"),
    ],
)  # fmt: skip
def test_what_is_said_of_tools_that_cannot_be_offered(change, said):
    body = {"input": "Go.", **change}
    if said is None:  # nothing in it to be offered
        assert RESPONSES_WIRE.read(body, Limits(tools=ToolBounds(count=2))).tools == []
        return
    with pytest.raises(BadRequest) as caught:
        RESPONSES_WIRE.read(body, Limits(tools=ToolBounds(count=2, schema=100)))
    assert str(caught.value) == said
    assert caught.value.param == said.partition(":")[0]


@pytest.mark.parametrize(
    ("tools", "choice", "offered", "read", "ignored"),
    [
        ([FUNCTION, {**FUNCTION, "name": "g"}], {"type": "allowed_tools", "tools": [FUNCTION]}, ["f"], "auto", ()),
        ([FUNCTION], {"type": "allowed_tools", "mode": "required", "tools": [FUNCTION]}, ["f"], "required", ()),
        ([FUNCTION], {"type": "allowed_tools", "tools": [FUNCTION, {"type": "web_search"}]}, ["f"], "auto", ()),
        ([FUNCTION, {"type": "web_search"}], {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}, [], "auto", ("web_search", "tool_choice")),
        ([FUNCTION], {"type": "web_search"}, ["f"], "auto", ("tool_choice",)),
        ([FUNCTION], None, ["f"], "auto", ()),
        ([FUNCTION], "none", ["f"], "none", ()),
        ([{"type": "web_search"}], "required", [], "auto", ("web_search", "tool_choice")),
    ],
)  # fmt: skip
def test_which_tools_may_be_called(tools, choice, offered, read, ignored):
    request = RESPONSES_WIRE.read({"input": "Go.", "tools": tools, "tool_choice": choice})
    assert [tool["function"]["name"] for tool in request.tools] == offered
    assert (request.tool_choice, request.ignored) == (read, ignored)
