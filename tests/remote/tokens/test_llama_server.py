"""lfm2-nano on a real llama-server writes what it writes on this machine; 200 requests by hand, some in CI."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localagent.errors import ConstraintFailed
from localagent.messages import UserMessage
from localagent.model import Model, load
from localagent.nano.tasks import TASKS, make_tasks
from localagent.turn import Done
from tests.conftest import LONG

pytest.importorskip("xllamacpp", reason="the package xllamacpp, which has a llama-server, is not installed")
from localagent_bench.harness.servers import Settings, running

pytestmark = pytest.mark.engine
REQUESTS = 200 if LONG else 20
WEATHER = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
                "required": ["city", "unit"],
            },
        },
    }
]


@pytest.fixture(scope="module")
def both(nano: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Model, Model]]:
    """The model here, and there."""
    settings = Settings(str(nano["llamacpp"]), context=2048, lanes=2, threads=1)
    folder = tmp_path_factory.mktemp("server")
    with (
        running("llama-server", settings, folder) as child,
        load("lfm2-nano", context=2048, threads=1) as here,
    ):
        yield here, load(f"llama-server://127.0.0.1:{child.port}", tokenizer=nano["mlx"])


def test_the_same_tokens_and_calls(both: tuple[Model, Model]) -> None:
    here, there = both
    assert there.dialect.name == here.dialect.name
    called = 0
    each = -(-REQUESTS // len(TASKS))
    tasks = [task for kind in TASKS for task in make_tasks(kind, each, seed=21)][:REQUESTS]
    for task in tasks:
        first, second = (
            list(
                model.stream(
                    task.prompt, system=task.system or None, tools=task.tools, max_tokens=500, temperature=0
                )
            )[-1]
            for model in both
        )
        assert isinstance(first, Done)
        assert isinstance(second, Done)
        assert second.token_ids == first.token_ids
        assert second.message.raw == first.message.raw
        assert [(c.name, c.arguments) for c in second.message.tool_calls] == [
            (c.name, c.arguments) for c in first.message.tool_calls
        ]
        called += bool(first.message.tool_calls)
    assert called > REQUESTS / 4


def test_cancelled_and_gone_on_with(both: tuple[Model, Model]) -> None:
    _, there = both
    flag, seen = threading.Event(), []
    for event in there.stream("Tell me a long story.", cancel=flag, max_tokens=200, temperature=0):
        seen.append(event)
        if len(seen) == 3:
            flag.set()
    assert isinstance(seen[-1], Done)
    assert seen[-1].message.stop_reason == "cancelled"
    first = there.respond("What is the weather in Paris?", temperature=0, max_tokens=60)
    history = [UserMessage.text("What is the weather in Paris?"), first, UserMessage.text("And in Rome?")]
    second, alone = (model.respond(history, temperature=0, max_tokens=60) for model in (there, both[0]))
    assert second.raw == alone.raw


WISHES = [
    {"tool_choice": "required"},
    {"tool_choice": "none"},
    {"tool_choice": "get_weather"},
    {"tool_choice": "required", "parallel_tool_calls": False},
    {"parallel_tool_calls": False},
    {"strict": True},
    {"response_format": {"type": "json_object"}},
]


@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_what_it_is_told_to_hold_it_holds_as_this_machine_does(both, wish):
    for prompt in ("What is the weather in Paris and in Rome?", "Say hello.", "What is 12 plus 7?"):
        here, there = (
            list(model.stream(prompt, tools=WEATHER, temperature=0, max_tokens=60, **wish))[-1]
            for model in both
        )
        assert there.token_ids == here.token_ids
        assert there.relaxed == here.relaxed
        if wish.get("tool_choice") in ("required", "get_weather") and there.message.stop_reason != "length":
            assert {call.name for call in there.message.tool_calls} == {"get_weather"}


@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_a_build_without_llguidance_holds_it_as_well(both, wish, monkeypatch):
    """Built with it, too, it reads GBNF: it is asked as if it were not. In that a marker may stand in a string,
    where it ends nothing: then the turn ends with an error.
    """
    _, there = both
    monkeypatch.setattr(there.host, "_taken", ("gbnf", "schema"))
    held = 0
    for prompt in ("What is the weather in Rome and in Oslo?", "Say hello.", "What is 12 plus 7?"):
        try:
            message = there.respond(prompt, tools=WEATHER, temperature=0, max_tokens=60, **wish)
        except ConstraintFailed as error:
            assert "_end|>', which may not come there" in str(error)
            continue
        if message.stop_reason != "length":
            held += 1
            names = [call.name for call in message.tool_calls]
            if wish.get("tool_choice") in ("required", "get_weather"):
                assert set(names) == {"get_weather"}
            if wish.get("tool_choice") == "none":
                assert not names
            if wish.get("parallel_tool_calls") is False:
                assert len(names) <= 1
    assert held


def test_what_it_takes_is_found_out_without_losing_its_cache(nano, tmp_path):
    settings = Settings(str(nano["llamacpp"]), context=2048, lanes=1, threads=1)
    with running("llama-server", settings, tmp_path) as child:
        model = load(f"llama-server://127.0.0.1:{child.port}", tokenizer=nano["mlx"])

        def reused() -> int:
            return model.respond(
                "Say hello to all who are here.", temperature=0, max_tokens=3
            ).usage.cache_read

        assert reused() == 0
        warm = reused()
        assert warm > 10
        assert model.host.takes(model.render("Something else.")) == ("lark", "schema")
        assert reused() == warm


def test_an_answer_fits_its_schema(both):
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [12, 19]}, "sure": {"type": "boolean"}},
        "required": ["n", "sure"],
    }
    asked = {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}}
    for model in both:
        message = model.respond("What is 12 plus 7?", response_format=asked, temperature=0, max_tokens=80)
        assert message.stop_reason == "stop"
        answer = json.loads(message.text)
        assert answer["n"] in (12, 19)
        assert isinstance(answer["sure"], bool)


def test_what_no_grammar_says_there_is_told_as_a_schema(both, monkeypatch):
    _, there = both
    monkeypatch.setattr(there.host, "_taken", ("gbnf", "schema"))
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 12, "maximum": 19}},
        "required": ["n"],
        "additionalProperties": False,
    }
    asked = {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}}
    message = there.respond("What is 12 plus 7?", response_format=asked, temperature=0, max_tokens=200)
    assert message.stop_reason == "stop"
    assert 12 <= json.loads(message.text)["n"] <= 19


async def together(model: Model, prompts: list[str]) -> list[str]:
    return [
        message.raw or ""
        for message in await asyncio.gather(
            *(model.arespond(prompt, temperature=0, max_tokens=60) for prompt in prompts)
        )
    ]


def test_many_at_once(both: tuple[Model, Model]) -> None:
    prompts = [f"What is {a} plus {b}?" for a, b in ((1, 2), (17, 4), (100, 5), (6, 6), (40, 2))]
    here, there = (asyncio.run(together(model, prompts)) for model in both)
    assert here == there
