"""The openai package against a real model over a real socket: calls, formats, both APIs, and what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from localagent.server.wires.chat import CHAT_WIRE
from localagent.server.wires.completions import COMPLETIONS_WIRE
from localagent.server.wires.responses import RESPONSES_WIRE
from tests.server.serving import serving

pytestmark = pytest.mark.engine

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "description": "The weather in a city.", "parameters": CITY, "strict": True}
TOOLS: Any = [{"type": "function", "function": WEATHER}]
FLAT: Any = [{"type": "function", **WEATHER}]
QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
LONG: Any = [{"role": "user", "content": "word " * 3000}]


@pytest.fixture(scope="module")
def client(nano: dict[str, Path]) -> Iterator[openai.OpenAI]:
    from localagent.model import load

    wires = [CHAT_WIRE, RESPONSES_WIRE, COMPLETIONS_WIRE]
    with (
        load(nano["llamacpp"], context=1024) as model,
        serving(model, wires=wires) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
    ):
        yield client


def test_a_call_and_its_result_in_both_apis(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="m", messages=QUESTION, tools=TOOLS, tool_choice="required"
    ) as stream:
        (choice,) = stream.until_done().get_final_completion().choices
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather" and call.function.parsed_arguments.keys() == {"city"}
    said = choice.message.to_dict(exclude_none=True)
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    answer = client.chat.completions.create(
        model="m", messages=[*QUESTION, said, result], tools=TOOLS, max_tokens=20
    )
    assert answer.choices[0].message.content and answer.usage.prompt_tokens_details.cached_tokens > 0

    choice_of_one: Any = {"type": "function", "name": "get_weather"}
    with client.responses.stream(model="m", input=QUESTION, tools=FLAT, tool_choice=choice_of_one) as events:
        response = events.until_done().get_final_response()
    (item,) = [each for each in response.output if each.type == "function_call"]
    assert json.loads(item.arguments).keys() == {"city"}
    output: Any = {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
    sent = [*QUESTION, *(each.to_dict() for each in response.output), output]
    again = client.responses.create(model="m", input=sent, tools=FLAT, max_output_tokens=20)
    assert again.output_text and again.usage.input_tokens_details.cached_tokens > 0


def test_a_format_is_kept_in_both_apis(client: openai.OpenAI) -> None:
    form: Any = {"name": "place", "schema": CITY, "strict": True}
    asked: Any = {"type": "json_schema", "json_schema": form}
    answer = client.chat.completions.create(model="m", messages=QUESTION, response_format=asked)
    assert json.loads(answer.choices[0].message.content or "").keys() == {"city"}
    flat: Any = {"format": {"type": "json_schema", **form}}
    assert json.loads(client.responses.create(model="m", input=QUESTION, text=flat).output_text).keys() == {
        "city"
    }


def test_log_probabilities_and_the_older_api(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="m", messages=QUESTION, max_tokens=4, logprobs=True, top_logprobs=2
    )
    (choice,) = answer.choices
    tokens = choice.logprobs.content
    assert "".join(each.token for each in tokens) == choice.message.content
    assert all(each.top_logprobs[0].logprob >= each.top_logprobs[1].logprob for each in tokens)
    older = client.completions.create(model="m", prompt="Once upon", max_tokens=4, logprobs=1)
    assert "".join(older.choices[0].logprobs.tokens) == older.choices[0].text


def test_a_prompt_that_is_too_long(client: openai.OpenAI) -> None:
    said = "1024"
    with pytest.raises(openai.BadRequestError, match=said) as caught:
        client.chat.completions.create(model="m", messages=LONG, stream=True)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match=said):
        client.responses.create(model="m", input=LONG)
    seen: list[str] = []
    with pytest.raises(openai.APIError, match=said):
        for event in client.responses.create(model="m", input=LONG, stream=True):
            seen.append(event.type)
    assert seen == ["response.created", "response.in_progress", "response.failed"]


def test_hints_are_named_in_a_header(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="m", messages=QUESTION, max_tokens=1, user="u"
    )
    assert raw.headers["x-localagent-ignored"] == "user"
