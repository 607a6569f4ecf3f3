"""The frameworks that agents are written in: a loop of two turns, structured answers, reasoning, errors."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.agent.replaying import block
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

pytestmark = pytest.mark.filterwarnings("ignore")
"""What the packages warn of among themselves is theirs to mend."""


@pytest.fixture(autouse=True)
def gone() -> Iterator[None]:
    """Let go of the packages' connections while their warnings are still ignored."""
    yield
    gc.collect()


# -- openai-agents -----------------------------------------------------------------------------------------


def agents_of(server: Running, api: str, model: str = "model-1", **options: Any) -> Any:
    import agents
    import openai

    agents.set_tracing_disabled(True)
    kind: Any = {
        "chat": agents.OpenAIChatCompletionsModel,
        "responses": agents.OpenAIResponsesModel,
    }[api]

    @agents.function_tool
    def get_weather(place: str) -> str:
        return RAIN if place == "Oslo" else "unknown"

    talks = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", timeout=LONGEST, max_retries=0)
    return agents.Agent(name="porter", model=kind(model, talks), **{"tools": [get_weather], **options})


async def run_agents(agent: Any, prompt: str, stream: bool) -> Any:
    import agents

    try:
        if not stream:
            return await agents.Runner.run(agent, prompt)
        running = agents.Runner.run_streamed(agent, prompt)
        async for _ in running.stream_events():
            pass
        return running
    finally:
        await agent.model._client.close()


@client("openai-agents", "openai")
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_openai_agents(client: str, api: str, stream: bool, nano_server: Running) -> None:
    with playing(CALL, ANSWER) as server:
        result = asyncio.run(run_agents(agents_of(server, api), QUESTION, stream))
        assert result.final_output == ANSWER
        assert [spoken(each) for each in heard(server)] == [LOOP[:1], LOOP]
    with playing(THOUGHT) as server:
        result = asyncio.run(run_agents(agents_of(server, api), QUESTION, stream))
        assert result.final_output == "Yes."
        thoughts = [item.raw_item for item in result.new_items if item.type == "reasoning_item"]
        assert len(thoughts) == 1
        assert "Oslo is wet." in thoughts[0].model_dump_json()
    agent = agents_of(nano_server, api, output_type=Paint, tools=[])
    assert isinstance(asyncio.run(run_agents(agent, QUESTION, stream)).final_output, Paint)


@client("openai-agents", "openai")
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_errors_reach_openai_agents(
    client: str, api: str, stream: bool, two_models: Running, nano_server: Running
) -> None:
    import openai

    with pytest.raises(openai.NotFoundError, match="model-2"):
        asyncio.run(run_agents(agents_of(two_models, api, "gpt-9"), QUESTION, stream))
    # The responses API tells of it in the stream, where Codex looks for it.
    kind: Any = Exception if (api, stream) == ("responses", True) else openai.BadRequestError
    with pytest.raises(kind, match="4096"):
        asyncio.run(run_agents(agents_of(nano_server, api), TOO_LONG, stream))


# -- pydantic-ai -------------------------------------------------------------------------------------------


def pydantic_agent(server: Running, api: str, model: str = "model-1", **options: Any) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    chosen: Any
    if api == "messages":
        chosen = AnthropicModel(model, provider=AnthropicProvider(base_url=server.url, api_key="any"))
    else:
        provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="any")
        kind: Any = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
        chosen = kind(model, provider=provider)

    def get_weather(place: str) -> str:
        return RAIN if place == "Oslo" else "unknown"

    return Agent(chosen, **{"tools": [get_weather], **options})


async def run_pydantic(agent: Any, prompt: str, stream: bool) -> tuple[Any, list[Any]]:
    """The answer, and the parts of all messages of the model."""
    if stream:
        async with agent.run_stream(prompt) as running:
            output, messages = await running.get_output(), running.all_messages()
    else:
        result = await agent.run(prompt)
        output, messages = result.output, result.all_messages()
    return output, [part for message in messages if message.kind == "response" for part in message.parts]


@client("pydantic-ai-slim", "openai", "anthropic")
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_pydantic_ai(client: str, api: str, stream: bool, nano_server: Running) -> None:
    from pydantic_ai import NativeOutput

    with playing(CALL, ANSWER) as server:
        agent = pydantic_agent(server, api)
        if stream:  # run_stream ends at the first text, which here comes before the call
            output = asyncio.run(streamed_loop(agent))
        else:
            output, _ = asyncio.run(run_pydantic(agent, QUESTION, stream))
        assert output == ANSWER
        assert [spoken(each) for each in heard(server)] == [LOOP[:1], LOOP]
    with playing(THOUGHT) as server:
        output, parts = asyncio.run(run_pydantic(pydantic_agent(server, api), QUESTION, stream))
        assert output == "Yes."
        (thought,) = (part for part in parts if part.part_kind == "thinking")
        # Of the responses API the package takes summaries for the thought, and keeps the thought itself apart.
        said = thought.provider_details["raw_content"] if api == "responses" else [thought.content]
        assert said == ["Oslo is wet."]
    if api != "messages":  # of unknown models the package believes that they have no structured answers there
        agent = pydantic_agent(nano_server, api, output_type=NativeOutput(Paint), tools=[])
        output, _ = asyncio.run(run_pydantic(agent, QUESTION, stream))
        assert isinstance(output, Paint)


async def streamed_loop(agent: Any) -> Any:
    async with agent.run_stream_events(QUESTION) as events:
        *_, last = [event async for event in events]
    return last.result.output


@client("pydantic-ai-slim", "openai", "anthropic")
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_errors_reach_pydantic_ai(client: str, api: str, two_models: Running, nano_server: Running) -> None:
    from pydantic_ai.exceptions import ModelHTTPError

    with pytest.raises(ModelHTTPError, match="model-2") as failed:
        asyncio.run(run_pydantic(pydantic_agent(two_models, api, "gpt-9"), QUESTION, False))
    assert failed.value.status_code == 404
    with pytest.raises(ModelHTTPError, match="4096") as failed:
        asyncio.run(run_pydantic(pydantic_agent(nano_server, api), TOO_LONG, False))
    assert failed.value.status_code == 400


# -- langchain ---------------------------------------------------------------------------------------------


def langchain_model(server: Running, api: str, model: str = "model-1") -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model=model,
        base_url=f"{server.url}/v1",
        api_key="any",  # type: ignore[arg-type]
        timeout=LONGEST,
        max_retries=0,
        use_responses_api=api == "responses",
        stream_usage=True,
    )


def invoked(runnable: Any, prompt: Any, stream: bool) -> Any:
    if not stream:
        return runnable.invoke(prompt)
    whole = None
    for chunk in runnable.stream(prompt):
        whole = chunk if whole is None else whole + chunk
    return whole


@client("langchain-openai", "openai")
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_langchain(client: str, api: str, stream: bool, nano_server: Running) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def get_weather(place: str) -> str:
        """The weather in a place."""
        return RAIN if place == "Oslo" else "unknown"

    with playing(CALL, ANSWER) as server:
        model = langchain_model(server, api).bind_tools([get_weather])
        asked = HumanMessage(QUESTION)
        first = invoked(model, [asked], stream)
        (call,) = first.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"place": "Oslo"})
        assert first.usage_metadata["output_tokens"] > 0
        result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
        last = invoked(model, [asked, first, result], stream)
        assert last.text == ANSWER
        assert [spoken(each) for each in heard(server)] == [LOOP[:1], LOOP]
    with playing(THOUGHT) as server:
        answered = invoked(langchain_model(server, api), QUESTION, stream)
        assert answered.text == "Yes."
        if (api, stream) == ("responses", False):  # elsewhere the package drops all thought but summaries
            assert "Oslo is wet." in json.dumps(answered.content)
    model = langchain_model(nano_server, api).with_structured_output(Paint, method="json_schema")
    assert isinstance(model.invoke(QUESTION), Paint)


@client("langchain-openai", "openai")
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_langchain_has_no_call_that_broke_off(client: str, api: str, stream: bool) -> None:
    """It runs what it has of a call when a stream ends, whatever the finish reason."""
    from langchain_core.tools import tool

    @tool
    def delete_file(path: str) -> str:
        """Delete a file or folder."""
        raise AssertionError(path)

    cut = block('delete_file(path="/home/me/proj').removesuffix("]<|tool_call_end|>")
    with playing(cut) as server:
        said = invoked(langchain_model(server, api).bind_tools([delete_file]), QUESTION, stream)
        assert (said.tool_calls, said.invalid_tool_calls) == ([], [])


@client("langchain-openai", "openai")
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_the_model_stops_when_langchain_does(client: str, api: str) -> None:
    with playing("word " * 100_000) as server:
        words = langchain_model(server, api).stream(QUESTION)
        assert next(words)
        words.close()
        until(lambda: server.service.metrics.totals().get("model-1", {}).get("cancelled"), LONGEST)


@client("langchain-openai", "openai")
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_errors_reach_langchain(
    client: str, api: str, stream: bool, two_models: Running, nano_server: Running
) -> None:
    import openai

    with pytest.raises(openai.NotFoundError, match="model-2"):
        invoked(langchain_model(two_models, api, "gpt-9"), QUESTION, stream)
    kind: Any = Exception if (api, stream) == ("responses", True) else openai.BadRequestError
    with pytest.raises(kind, match="4096"):
        invoked(langchain_model(nano_server, api), TOO_LONG, stream)


# -- litellm -----------------------------------------------------------------------------------------------

LITELLM = """
import json, sys
import litellm
out, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    url, options = json.loads(line)
    base = f"{url}/v1" if options["model"].startswith("openai/") else url
    try:
        answer = litellm.completion(api_base=base, api_key="any", timeout=60, max_retries=0, **options)
        if options["stream"]:
            answer = litellm.stream_chunk_builder(list(answer))
        said = answer.choices[0].message.model_dump()
    except Exception as error:
        said = {"error": type(error).__name__, "said": str(error)}
    print(json.dumps(said), file=out, flush=True)
"""
"""Runs in an environment of its own, since litellm pins an older openai. A line for each answer."""
Litellm = Callable[..., Any]


@pytest.fixture(scope="module")
def litellm() -> Iterator[Litellm]:
    """Asks a server through litellm, which takes many seconds to import: all tests share one process."""
    with subprocess.Popen(
        [installed.program("frameworks"), "-c", LITELLM],
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def completion(server: Running, **options: Any) -> Any:
            late = threading.Timer(9 * LONGEST, child.kill)
            late.start()
            print(json.dumps([server.url, options]), file=child.stdin, flush=True)
            line = child.stdout.readline()  # type: ignore[union-attr]
            late.cancel()
            return json.loads(line)

        yield completion
        child.stdin.close()


@installed.client("litellm")
@pytest.mark.parametrize("api", ["openai", "anthropic", "ollama_chat"])
@pytest.mark.parametrize("stream", [False, True])
def test_litellm(client: str, api: str, stream: bool, litellm: Litellm, nano_server: Running) -> None:
    turn = {"model": f"{api}/model-1", "stream": stream}
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": PLACE}}]
    with playing(CALL, ANSWER) as server:
        called = litellm(server, **turn, messages=ASK, tools=tools)
        assert called["content"] == "Let me see."
        (call,) = called["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"place": "Oslo"}
        said = {"role": "assistant", "content": called["content"], "tool_calls": called["tool_calls"]}
        result = {"role": "tool", "tool_call_id": call["id"], "content": RAIN}
        last = litellm(server, **turn, messages=[*ASK, said, result], tools=tools)
        assert last["content"] == ANSWER
        assert [spoken(each) for each in heard(server)] == [LOOP[:1], LOOP]
    with playing(THOUGHT) as server:
        thought = litellm(server, **turn, messages=ASK)
        assert (thought["content"], thought["reasoning_content"]) == ("Yes.", "Oslo is wet.")
    shape = {"type": "json_schema", "json_schema": {"name": "paint", "schema": Paint.model_json_schema()}}
    painted = litellm(nano_server, **turn, messages=ASK, response_format=shape)
    assert Paint.model_validate_json(painted["content"])
    failed = litellm(nano_server, **turn, messages=[{"role": "user", "content": TOO_LONG}])
    # Of this provider it maps no error to a window that is too small.
    kind = "BadRequestError" if api == "ollama_chat" else "ContextWindowExceededError"
    assert failed["error"] == kind, failed["said"]
    assert "4,096" in failed["said"] or "4096" in failed["said"]


@installed.client("litellm")
@pytest.mark.parametrize("api", ["ollama", "ollama_chat"])
@pytest.mark.parametrize("stream", [False, True])
def test_litellm_on_ollamas_api(client: str, api: str, stream: bool, litellm: Litellm) -> None:
    """These providers name no type of the body, or that of any bytes."""
    with playing(ANSWER) as server:
        said = litellm(server, model=f"{api}/model-1", stream=stream, messages=ASK)
        assert said.get("content") == ANSWER, said
