"""The packages of OpenAI and Anthropic: a conversation with tools, errors, and each option, streamed and whole."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.server.acceptance import installed
from tests.server.acceptance.scenes import (
    ANSWER,
    ASK,
    CALL,
    LONGEST,
    LOOP,
    PLACE,
    QUESTION,
    RAIN,
    THOUGHT,
    TOO_LONG,
    Paint,
    client,
    heard,
    playing,
    spoken,
)
from tests.server.serving import Running
from tests.server.test_faults import until

MOST = 24
"""Tokens of an answer of lfm2-nano."""
FUNCTION = {"name": "get_weather", "description": "The weather in a place.", "parameters": PLACE}
SHAPE = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "litres": {"enum": [1, 2]}},
    "required": ["colour", "litres"],
    "additionalProperties": False,
}
VARYING = {
    "parsed",
    "parsed_arguments",
    "id",
    "item_id",
    "call_id",
    "created",
    "created_at",
    "completed_at",
    "timings",
    "usage",
    "signature",
    "index",
}
"""What differs between two answers that say the same."""


def openai_client(server: Running) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", timeout=LONGEST, max_retries=0)


def anthropic_client(server: Running) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=server.url, api_key="any", timeout=LONGEST, max_retries=0)


def ask(
    server: Running, api: str, stream: bool, said: Any = QUESTION, model: str = "model-1", **options: Any
) -> Any:
    """One answer of an API by its official package, streamed or whole. `said`: a text, or messages."""
    messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
    if api == "messages":
        with anthropic_client(server) as talks:
            given = {"model": model, "messages": messages, "max_tokens": MOST, **options}
            if not stream:
                return talks.messages.create(**given)
            with talks.messages.stream(**given) as events:
                return events.get_final_message()
    with openai_client(server) as talks:
        if api == "responses":
            given = {"model": model, "input": said, "max_output_tokens": MOST, **options}
            if not stream:
                return talks.responses.create(**given)
            *_, last = talks.responses.create(**given, stream=True)
            return last.response
        given = {"model": model, "messages": messages, "max_tokens": MOST, **options}
        if not stream:
            return talks.chat.completions.create(**given)
        state = (
            ChatCompletionStreamState()
        )  # what `stream` folds with, which raises for answers that were cut
        for chunk in talks.chat.completions.create(**given, stream=True):
            state.handle_chunk(chunk)
        return state.current_completion_snapshot


def same(value: Any) -> Any:
    """What an answer says, without what varies and what is null."""
    if isinstance(value, dict):
        kept = {name: same(item) for name, item in value.items() if name not in VARYING and item is not None}
        return {name: item for name, item in kept.items() if item != []}
    return [same(item) for item in value] if isinstance(value, list) else value


def whole_of(answer: Any) -> dict[str, Any]:
    return same(json.loads(answer.model_dump_json(warnings=False)))  # type: ignore[no-any-return]


# -- a conversation ----------------------------------------------------------------------------------------


@client("openai")
@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_of_chat_completions(client: str, stream: bool) -> None:
    tools = [{"type": "function", "function": FUNCTION}]
    with playing(CALL, ANSWER) as server:
        message = ask(server, "chat", stream, tools=tools).choices[0].message
        (call,) = message.tool_calls
        assert json.loads(call.function.arguments) == {"place": "Oslo"}
        said = message.model_dump(include={"role", "content", "tool_calls"})
        result = {"role": "tool", "tool_call_id": call.id, "content": RAIN}
        last = ask(server, "chat", stream, [*ASK, said, result], tools=tools)
        assert (last.choices[0].message.content, last.choices[0].finish_reason) == (ANSWER, "stop")
        assert spoken(heard(server)[-1]) == LOOP
    with playing(THOUGHT) as server:
        message = ask(server, "chat", stream).choices[0].message
        assert (message.reasoning_content, message.content) == ("Oslo is wet.", "Yes.")


@client("openai")
@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_of_responses(client: str, stream: bool) -> None:
    tools = [{"type": "function", **FUNCTION}]
    with playing(CALL, ANSWER) as server:
        first = ask(server, "responses", stream, tools=tools)
        call = first.output[-1]
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"place": "Oslo"})
        result = {"type": "function_call_output", "call_id": call.call_id, "output": RAIN}
        items = [*ASK, *(item.model_dump(exclude_none=True) for item in first.output), result]
        assert ask(server, "responses", stream, items, tools=tools).output_text == ANSWER
        assert spoken(heard(server)[-1]) == LOOP
    with playing(THOUGHT) as server:
        thought, text = ask(server, "responses", stream).output
        assert (thought.content[0].text, text.content[0].text) == ("Oslo is wet.", "Yes.")


@client("anthropic")
@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_of_messages(client: str, stream: bool) -> None:
    tools = [{"name": "get_weather", "input_schema": PLACE}]
    with playing(CALL, ANSWER) as server:
        first = ask(server, "messages", stream, tools=tools)
        text, call = first.content
        assert (first.stop_reason, text.text, call.input) == ("tool_use", "Let me see.", {"place": "Oslo"})
        said = {
            "role": "assistant",
            "content": [each.model_dump(exclude_none=True) for each in first.content],
        }
        result = {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": RAIN}],
        }
        last = ask(server, "messages", stream, [*ASK, said, result], tools=tools)
        assert (last.content[0].text, last.stop_reason) == (ANSWER, "end_turn")
        assert spoken(heard(server)[-1]) == LOOP
    with playing(THOUGHT) as server:
        thought, text = ask(server, "messages", stream).content
        assert (thought.thinking, text.text) == ("Oslo is wet.", "Yes.")


@client("anthropic")
@pytest.mark.parametrize("stream", [False, True])
def test_the_tool_runner(client: str, stream: bool) -> None:
    """It first asks the server to keep the conversation, and goes on without that where it is refused."""
    import anthropic

    @anthropic.beta_tool
    def get_weather(place: str) -> str:
        """The weather in a place."""
        return RAIN if place == "Oslo" else "unknown"

    with playing(CALL, ANSWER) as server, anthropic_client(server) as talks:
        runner = talks.beta.messages.tool_runner(
            model="any", max_tokens=MOST, messages=ASK, tools=[get_weather], stream=stream
        )
        assert runner.until_done().content[0].text == ANSWER
        assert [spoken(each) for each in heard(server)] == [LOOP[:1], LOOP]


NODE = """
import Anthropic from '@anthropic-ai/sdk';
const [baseURL, stream] = process.argv.slice(2);
const schema = { type: 'object', properties: { place: { type: 'string' } }, required: ['place'] };
const tool = {
  type: 'custom', name: 'get_weather', description: 'The weather in a place.', input_schema: schema,
  parse: (given) => given, run: ({ place }) => (place === 'Oslo' ? process.env.RAIN : 'unknown'),
};
const runner = new Anthropic({ baseURL, apiKey: 'any', maxRetries: 0 }).beta.messages.toolRunner({
  model: 'any', max_tokens: 99, tools: [tool], stream: stream === 'true',
  messages: [{ role: 'user', content: process.env.QUESTION }],
});
console.log(JSON.stringify((await runner.runUntilDone()).content));
"""


@installed.client("@anthropic-ai/sdk")
@pytest.mark.parametrize("stream", ["false", "true"])
def test_the_tool_runner_of_node(client: str, stream: str) -> None:
    with playing(CALL, ANSWER) as server:
        ended = subprocess.run(
            [installed.node(), "--input-type=module", "--eval", NODE, "-", server.url, stream],
            cwd=installed.folder(),  # where it finds the package
            env={**os.environ, "RAIN": RAIN, "QUESTION": QUESTION},
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)[0]["text"] == ANSWER
        assert [spoken(each) for each in heard(server)] == [LOOP[:1], LOOP]


@client("openai", "anthropic")
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_errors(client: str, api: str, stream: bool, two_models: Running, nano_server: Running) -> None:
    import anthropic
    import openai

    package: Any = anthropic if api == "messages" else openai
    with pytest.raises(package.NotFoundError, match="model-2"):
        ask(two_models, api, stream, model="gpt-9")
    if (api, stream) == ("responses", True):  # where Codex looks for it
        with pytest.raises(openai.APIError, match="4096") as failed:
            ask(nano_server, api, stream, TOO_LONG)
        assert failed.value.code == "context_length_exceeded"
        return
    with pytest.raises(package.BadRequestError, match="4096"):
        ask(nano_server, api, stream, TOO_LONG)


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
@client("openai", "anthropic")
def test_the_model_stops_when_a_stream_is_closed(client: str, api: str) -> None:
    given: dict[str, Any] = {"model": "any", "stream": True}
    with (
        playing("word " * 100_000) as server,
        openai_client(server) as openai,
        anthropic_client(server) as anthropic,
    ):
        if api == "chat":
            stream = openai.chat.completions.create(**given, messages=ASK)
        elif api == "responses":
            stream = openai.responses.create(**given, input=QUESTION)
        else:
            stream = anthropic.messages.create(**given, messages=ASK, max_tokens=100_000)
        assert next(iter(stream))
        stream.close()
        until(lambda: server.service.metrics.totals().get("model-1", {}).get("cancelled"), LONGEST)


@client("openai")
def test_a_structured_answer_is_parsed(client: str, nano_server: Running) -> None:
    with openai_client(nano_server) as talks:
        given: dict[str, Any] = {"model": "any", "temperature": 0}
        chat = talks.chat.completions.parse(**given, messages=ASK, response_format=Paint)
        assert isinstance(chat.choices[0].message.parsed, Paint)
        response = talks.responses.parse(**given, input=QUESTION, text_format=Paint)
        assert isinstance(response.output_parsed, Paint)
        with talks.chat.completions.stream(**given, messages=ASK, response_format=Paint) as events:
            assert isinstance(events.get_final_completion().choices[0].message.parsed, Paint)


# -- every option, streamed and whole ----------------------------------------------------------------------

CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
CHAT_NAMED = {"type": "function", "function": {"name": "get_weather"}}
CHAT_SHAPE = {"type": "json_schema", "json_schema": {"name": "paint", "schema": SHAPE, "strict": True}}
RESPONSE_TOOLS = [{"type": "function", **FUNCTION, "strict": False}]
MESSAGE_TOOLS = [{"name": "get_weather", "input_schema": PLACE}]
OPTIONS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "chat": {
        "none": {},
        "temperature": {"temperature": 1.5},
        "top_p": {"temperature": 1, "top_p": 0.5},
        "max_completion_tokens": {"max_completion_tokens": 3},
        "stop": {"stop": ["e", "the"]},
        "logprobs": {"logprobs": True, "top_logprobs": 2},
        "tools": {"tools": CHAT_TOOLS},
        "tool_choice none": {"tools": CHAT_TOOLS, "tool_choice": "none"},
        "tool_choice required": {"tools": CHAT_TOOLS, "tool_choice": "required"},
        "tool_choice named": {"tools": CHAT_TOOLS, "tool_choice": CHAT_NAMED},
        "one call": {"tools": CHAT_TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        "schema": {"response_format": CHAT_SHAPE},
        "object": {"response_format": {"type": "json_object"}},
        "hints": {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        "others": {"extra_body": {"top_k": 3, "min_p": 0.1, "repeat_penalty": 1.2}, "temperature": 1},
    },
    "responses": {
        "none": {},
        "temperature": {"temperature": 1.5},
        "top_p": {"temperature": 1, "top_p": 0.5},
        "instructions": {"instructions": "Answer in one word."},
        "logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        "tools": {"tools": RESPONSE_TOOLS},
        "tool_choice none": {"tools": RESPONSE_TOOLS, "tool_choice": "none"},
        "tool_choice required": {"tools": RESPONSE_TOOLS, "tool_choice": "required"},
        "tool_choice named": {
            "tools": RESPONSE_TOOLS,
            "tool_choice": {"type": "function", "name": "get_weather"},
        },
        "one call": {"tools": RESPONSE_TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        "schema": {"text": {"format": {"type": "json_schema", "name": "paint", "schema": SHAPE}}},
        "object": {"text": {"format": {"type": "json_object"}}},
        "hints": {"store": False, "prompt_cache_key": "k", "safety_identifier": "me"},
        "tools that are not here": {"tools": [{"type": "web_search"}, *RESPONSE_TOOLS]},
    },
    "messages": {
        "none": {},
        "temperature": {"extra_body": {"temperature": 0.9}},  # the package no longer names these
        "top_p": {"extra_body": {"temperature": 1, "top_p": 0.5, "top_k": 3}},
        "system": {"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
        "stop_sequences": {"stop_sequences": ["e", "the"]},
        "tools": {"tools": MESSAGE_TOOLS},
        "tool_choice none": {"tools": MESSAGE_TOOLS, "tool_choice": {"type": "none"}},
        "tool_choice any": {"tools": MESSAGE_TOOLS, "tool_choice": {"type": "any"}},
        "tool_choice tool": {"tools": MESSAGE_TOOLS, "tool_choice": {"type": "tool", "name": "get_weather"}},
        "one call": {
            "tools": MESSAGE_TOOLS,
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        },
        "hints": {"metadata": {"user_id": "me"}, "extra_headers": {"anthropic-beta": "none-such-2026"}},
    },
}


@client("openai", "anthropic")
@pytest.mark.parametrize(("api", "option"), [(api, option) for api in OPTIONS for option in OPTIONS[api]])
def test_a_stream_says_what_the_whole_answer_says(
    client: str, api: str, option: str, nano_server: Running
) -> None:
    given = dict(OPTIONS[api][option])
    settled = {"seed": 7} if "temperature" in given else {"seed": 7, "temperature": 0}
    given["extra_body"] = settled | given.get("extra_body", {})
    whole, streamed = (whole_of(ask(nano_server, api, stream, **given)) for stream in (False, True))
    assert streamed == whole
    if option.startswith(("tool_choice required", "tool_choice any", "one call")):
        assert "get_weather" in json.dumps(whole)
