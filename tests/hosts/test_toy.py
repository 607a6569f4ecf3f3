"""A third engine is a folder and a row: with nothing else it loads, streams, calls tools, and reads nothing twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import localagent
from localagent.cli.doctor.models import estimate_weights
from localagent.engines.check import require_engine
from localagent.errors import InvalidWeights, UsageError
from localagent.hosts.backends import BACKENDS, backend_for
from localagent.model import Model, locate
from localagent.parsers import Text
from localagent.server.weights import read_weights
from localagent.settings import ENGINE_CHECK
from tests.hosts.toy.backend import TOY

TEMPLATE = """\
{%- if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
ANSWERS = {
    "Hello!": "Hi, how are you?",
    "Fine.": "Good to hear. 👋",
    "Count.": "one, two, three, four, five",
    "Will it rain in Paris?": '<|tool_call_start|>[get_weather(city="Paris", days=[1, 2])]<|tool_call_end|>',
}
GET_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "array", "items": {"type": "integer"}},
            },
        },
    },
}


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The row is in the table, and a file of weights is there."""
    monkeypatch.setitem(BACKENDS, "toy", TOY)
    text = "".join(
        f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
        for asked, answer in ANSWERS.items()
    )
    path = tmp_path / "parrot.toy"
    path.write_text(json.dumps({"chat_template": TEMPLATE, "text": text, "context_length": 2048}))
    return path


@pytest.fixture
def model(weights: Path) -> Iterator[Model]:
    loaded = localagent.load(weights, lanes=3)
    assert isinstance(loaded, Model)
    with loaded:
        yield loaded


def test_it_streams_text(model: Model) -> None:
    *events, done = model.stream("Hello!")
    assert "".join(event.text for event in events if isinstance(event, Text)) == "Hi, how are you?"
    assert done.message.text == "Hi, how are you?"
    assert (model.name, model.host.engine, model.host.lanes, model.dialect.name) == (
        "parrot",
        "Toy (1)",
        3,
        "lfm2",
    )


def test_its_calls_are_parsed(model: Model) -> None:
    message = model.respond("Will it rain in Paris?", tools=[GET_WEATHER])
    (call,) = message.tool_calls
    assert (call.name, call.arguments) == ("get_weather", {"city": "Paris", "days": [1, 2]})


def test_streams_at_once_are_those_of_each_alone(model: Model) -> None:
    asked = [*ANSWERS][:3] * 3
    with ThreadPoolExecutor(len(asked)) as pool:
        texts = list(pool.map(lambda words: model.respond(words).text, asked))
    assert texts == [ANSWERS[words] for words in asked]


def test_a_conversation_is_not_read_twice(model: Model) -> None:
    first = model.respond("Hello!")
    messages: list[Any] = [{"role": "user", "content": "Hello!"}, first, {"role": "user", "content": "Fine."}]
    second = model.respond(messages)
    assert second.text == ANSWERS["Fine."]
    assert first.usage.cache_read == 0
    assert second.usage.cache_read >= first.usage.input + first.usage.output - 1


def test_everybody_else_finds_it_in_the_table(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENGINE_CHECK, "1")
    require_engine("toy")  # it has no trial
    assert locate(weights, None) == locate(weights, "toy") == (weights, "toy")
    assert backend_for(weights.with_suffix(".gguf")).name == "llamacpp"
    with pytest.raises(UsageError, match=r"backend is 'mlx', but .*parrot.toy is a file, which Toy loads"):
        locate(weights, "mlx")
    with pytest.raises(UsageError, match="no backend 'tot': choose llamacpp or mlx or toy"):
        locate(weights, "tot")
    described = read_weights(weights, None, None)
    assert (described.architecture, described.context, described.format) == ("toy", 2048, "toy")
    assert estimate_weights(weights, 2048).kv_cache == 2048 * 8
    weights.write_text("{}")
    with pytest.raises(InvalidWeights, match="not a toy"):
        localagent.load(weights)
