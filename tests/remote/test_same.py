"""A remote model gives the events and the message of the same model on this machine, over a real socket."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from localagent.agent import Agent, Compaction, RunDone
from localagent.errors import ContextOverflow, UsageError
from localagent.hosts.replay import ReplayHost
from localagent.messages import AssistantMessage, SystemMessage, UserMessage
from localagent.model import Model, load
from localagent.prompt.segments import Prompt
from localagent.remote import RemoteModel
from localagent.server.wires.chat import CHAT_WIRE
from localagent.tools import tool
from localagent.turn import Done, TurnEvent
from parsers import ArgumentEnd, ArgumentsDelta, Malformed, Markup, Reasoning, Text
from tests.server.serving import serving
from tests.server.test_serve import served
from tests.server.wires.turns import named, tokens_of

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
OPTIONS: dict[str, Any] = {"temperature": 0, "max_tokens": 60}


def told(message: AssistantMessage, *but: str) -> dict[str, Any]:
    """All of a message that does not differ from one turn to the next."""
    left_out = {"id", "timestamp", "timings", "raw", *but}
    data = message.model_dump(exclude=left_out)
    for part in data["content"]:
        part.pop("id", None)
    return data


def shape(events: Sequence[TurnEvent]) -> list[Any]:
    """What events say, without spans and markup, which only the raw output has; neighbouring pieces joined."""
    found: list[Any] = []
    failed = {event.index for event in events if isinstance(event, Malformed)}
    for event in events:
        if isinstance(event, Markup | Done):
            continue
        if isinstance(event, ArgumentsDelta | ArgumentEnd) and event.index in failed:
            continue  # how much of the argument that breaks was told before it broke, is nobody's concern
        if isinstance(event, Malformed) and event.index is None and not event.raw:
            continue  # a forgotten end marker, which the server does not tell
        told = event
        if hasattr(event, "end"):
            told = dataclasses.replace(event, start=0, end=0)
        if isinstance(told, Malformed):
            told = dataclasses.replace(told, partial={})
        same = found and type(found[-1]) is type(told)
        if same and isinstance(told, Text | Reasoning):
            told = dataclasses.replace(told, text=found.pop().text + told.text)
        elif same and isinstance(told, ArgumentsDelta):
            told = dataclasses.replace(told, json=found.pop().json + told.json)
        found.append(told)
    return found


# -- a real server, with the model in the package ---------------------------------------------------------


@pytest.fixture(scope="module")
def nanos(
    nano: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Model, RemoteModel]]:
    """lfm2-nano on this machine, and in `localagent serve`."""
    home = tmp_path_factory.mktemp("home")
    with (
        served("--model", "lfm2-nano", "--lanes", "1", "--stream-tool-calls", home=home) as server,
        RemoteModel.open(server.client.url) as remote,
        load("lfm2-nano", lanes=1) as local,
    ):
        yield local, remote


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        ("Hello, who are you?", {}),
        ("What is the weather in Paris?", {"tools": [WEATHER]}),
        ("What is the weather in Oslo?", {"tools": [WEATHER], "tool_choice": "required"}),
        ("What is the weather in Rome?", {"tools": [WEATHER], "tool_choice": "get_weather", "strict": True}),
        ("What is the weather in Bonn?", {"tools": [WEATHER], "tool_choice": "none"}),
        ("What is the weather in Bern?", {"tools": [WEATHER], "max_tokens": 7}),
        ("Name three colours.", {"system": "Answer briefly.", "max_tokens": 3}),
        ("Say hi, please.", {"stop": [" ", "."]}),
        ("Say something.", {"temperature": 1.0, "seed": 7, "top_p": 0.9, "top_k": 20, "min_p": 0.01}),
        ("Again and again.", {"repetition_penalty": 1.3}),
        ("Give me JSON.", {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}}),
        ([SystemMessage(content="Be kind."), UserMessage(content="Hello."), AssistantMessage(content="Hi."), UserMessage(content="Thanks!")], {}),
    ],
)  # fmt: skip
def test_n8_the_same_prompt_gives_the_same_message(
    nanos: tuple[Model, RemoteModel], messages: Any, options: dict[str, Any]
) -> None:
    local, remote = nanos
    asked = {**OPTIONS, **options}
    here, there = list(local.stream(messages, **asked)), list(remote.stream(messages, **asked))
    assert isinstance(here[-1], Done)
    assert isinstance(there[-1], Done)
    assert told(there[-1].message) == told(here[-1].message)
    assert shape(there) == shape(here)
    assert there[-1].relaxed == here[-1].relaxed
    assert there[-1].message.timings.decode > 0


def test_what_is_kept_of_a_prompt_is_counted_alike(nanos: tuple[Model, RemoteModel]) -> None:
    prompt = "A prompt that nobody else asks, of some length, to be read a second time."
    here, there = ([model.respond(prompt, **OPTIONS).usage for _ in range(2)] for model in nanos)
    assert here == there
    assert here[1].cache_read > 0


def test_log_probabilities_are_those_of_the_tokens_of_the_text(nanos: tuple[Model, RemoteModel]) -> None:
    local, remote = nanos
    *_, here = local.stream("Hello?", logprobs=2, **OPTIONS)
    *_, there = remote.stream("Hello?", logprobs=2, **OPTIONS)
    assert isinstance(here, Done)
    assert isinstance(there, Done)
    assert "".join(each.text for each in there.logprobs) == here.message.text  # type: ignore[attr-defined]
    scores = [each.token for each in there.logprobs]
    assert scores == pytest.approx([each.token for each in here.logprobs][: len(scores)], rel=1e-3, abs=1e-5)
    assert all(len(each.alternatives) == 2 for each in there.logprobs)  # type: ignore[attr-defined]


def test_tokens_are_counted_by_the_server(nanos: tuple[Model, RemoteModel]) -> None:
    local, remote = nanos
    conversation = [UserMessage(content="One."), AssistantMessage(content="Two."), UserMessage(content="3")]
    for messages, options in (
        ("Hello.", {}),
        ("Hello.", {"tools": [WEATHER]}),
        (conversation, {"system": "Hm."}),
    ):
        assert remote.count_tokens(messages, **options) == local.count_tokens(messages, **options)
    with pytest.raises(ContextOverflow):
        remote.count_tokens("word " * 200, limit=20)


def test_a_prompt_that_is_too_long_is_the_same_error(nanos: tuple[Model, RemoteModel]) -> None:
    problems = []
    for model in nanos:
        with pytest.raises(ContextOverflow) as caught:
            model.respond("word " * 6000)
        problems.append((caught.value.context, caught.value.prompt_tokens, str(caught.value)))
    assert problems[0] == problems[1]


def test_what_is_known_of_the_model(nanos: tuple[Model, RemoteModel]) -> None:
    local, remote = nanos
    assert (remote.name, remote.host.context, remote.lanes) == ("lfm2-nano", local.host.context, 1)
    with pytest.raises(UsageError, match="rendered by http://127"):
        remote.render("Hello.")
    with pytest.raises(UsageError, match="no sampling option 'warmth'"):
        remote.stream("Hello.", warmth=3)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="prompt is empty"):
        remote.stream(" ")


def test_an_agent_runs_its_tools_with_either(nanos: tuple[Model, RemoteModel]) -> None:
    @tool
    def get_weather(city: str) -> str:
        """Get the weather in a city."""
        return f"Rain in {city}."

    runs = []
    for model in nanos:
        agent = Agent(model, [get_weather], middleware=[Compaction()])
        history: list[Any] = []
        for prompt in ("What is the weather in Paris?", "And in Oslo?"):
            done = agent.respond(prompt, history=history, temperature=0, max_tokens=60)
            assert isinstance(done, RunDone)
        runs.append([(each.role, each.text) for each in history])
    assert runs[0] == runs[1]
    assert ("tool", "Rain in Paris.") in runs[1]


async def _all(model: Any, prompt: str) -> list[TurnEvent]:
    return [event async for event in model.astream(prompt, tools=[WEATHER], **OPTIONS)]


def test_turns_on_an_event_loop_are_the_same(nanos: tuple[Model, RemoteModel]) -> None:
    async def both() -> list[list[TurnEvent]]:
        return await asyncio.gather(
            *(_all(nanos[1], f"What is the weather in {city}?") for city in ("Paris", "Oslo"))
        )

    for city, events in zip(("Paris", "Oslo"), asyncio.run(both()), strict=True):
        alone = list(nanos[0].stream(f"What is the weather in {city}?", tools=[WEATHER], **OPTIONS))
        assert shape(events) == shape(alone)


# -- a server whose model writes what was recorded --------------------------------------------------------

OUTPUTS = {
    "text": "Just words, with ünïcode \U0001f600.",
    "reasoning": "<think>Let me see.</think>It is 4.",
    "call": '<|tool_call_start|>[f(a=1, b={"c": [1, 2.5, None]}, d="x\\ny")]<|tool_call_end|>',
    "text around": 'Before <|tool_call_start|>[f(a=1), f(a="two")]<|tool_call_end|> after',
    "no arguments": "<|tool_call_start|>[f()]<|tool_call_end|>",
    "broken value": "<|tool_call_start|>[f(a=1, b=g(2))]<|tool_call_end|>",
    "one of two": "<|tool_call_start|>[f(a=1), f(b=), f(c=3)]<|tool_call_end|> there",
    "cut off": '<|tool_call_start|>[f(a=1, b="hal',
    "cut before the end": "<|tool_call_start|>[f(a=1)",
    "cut at the start": "<|tool_call_start|>[f(",
    "no call": "<|tool_call_start|>[hello]<|tool_call_end|>",
    "stray": "Done.<|tool_call_end|> Yes.",
    "nothing": "",
    "marker in a string": '<|tool_call_start|>[f(a="<|tool_call_end|>")]<|tool_call_end|>',
    "thinks and calls": "<think>I need f.</think><|tool_call_start|>[f(a=1)]<|tool_call_end|>",
}


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("output", OUTPUTS.values(), ids=[*OUTPUTS])
def test_n8_whatever_the_model_writes_comes_to_the_same(output: str, held: bool) -> None:
    def model() -> Model:
        host = ReplayHost([tokens_of(output, size=3)], named("lfm2").markers, Prompt((1, 2, 3), ""))
        return Model(host, named("lfm2"), name="model-1")

    here = list(model().stream("Go.", tools=[WEATHER]))
    with serving(model(), wires=[CHAT_WIRE], buffer_tool_calls=held) as server:
        there = list(RemoteModel.open(server.url, "model-1").stream("Go.", tools=[WEATHER]))
    assert isinstance(here[-1], Done)
    assert isinstance(there[-1], Done)
    local, remote_ = told(here[-1].message), told(there[-1].message)
    for message in (local, remote_):  # a forgotten end marker cost nothing, and is not told
        message["content"] = [part for part in message["content"] if part.get("raw") != ""]
    for known, found in zip(local["content"], remote_["content"], strict=True):
        if found["kind"] == "malformed_tool_call":
            whole, partial = known.pop("partial"), found.pop("partial")
            if held:  # of a call that fails, nothing was streamed then
                assert partial == {}
            elif (
                output == OUTPUTS["cut before the end"]
            ):  # a 1 in JSON may go on as 12: that it ended is not told
                assert (whole, partial) == ({"a": 1}, {})
            else:
                assert partial == whole
    assert remote_ == local
    if not held:
        assert shape(there) == shape(here)
