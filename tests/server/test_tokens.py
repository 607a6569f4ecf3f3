"""llama-server's endpoints for tokens, text and prompts, with a real model over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localagent.model import Model, load
from localagent.server.app import all_wires
from tests.server.serving import Running, serving

pytestmark = pytest.mark.engine

TEXT = "Grüße, 🦊<|im_end|>"
MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "name": "get_weather",
    "description": "Weather.",
    "parameters": {"type": "object", "properties": {}},
}


@pytest.fixture(scope="module")
def model(nano: dict[str, Path]) -> Iterator[Model]:
    with load(nano["llamacpp"], context=1024) as loaded:
        assert isinstance(loaded, Model)
        yield loaded


@pytest.fixture(scope="module")
def server(model: Model) -> Iterator[Running]:
    with serving(model, wires=all_wires()) as running:
        yield running


def ask(server: Running, path: str, **body: Any) -> Any:
    answer = server.ask(body, path=path)
    assert answer.status == 200, answer.json
    return answer.json


def test_a_text_to_tokens_and_back(server: Running, model: Model) -> None:
    ids = ask(server, "/tokenize", content=TEXT)["tokens"]
    assert tuple(ids) == model.host.tokenize(TEXT, True)
    assert ask(server, "/detokenize", tokens=ids) == {"content": TEXT}
    plain = ask(server, "/tokenize", content=TEXT, parse_special=False)["tokens"]
    assert len(plain) > len(ids)
    begun = ask(server, "/tokenize", content="Hello", add_special=True)["tokens"]
    assert tuple(begun) == model.host.raw_prompt("Hello").ids  # type: ignore[attr-defined]
    assert ask(server, "/tokenize", content="") == {"tokens": []}


def test_each_token_with_its_text_or_its_bytes(server: Running) -> None:
    tokens = ask(server, "/tokenize", content=TEXT, with_pieces=True)["tokens"]
    pieces = [each["piece"] for each in tokens]
    assert pieces[-1] == "<|im_end|>"
    assert (
        b"".join(each.encode() if isinstance(each, str) else bytes(each) for each in pieces).decode() == TEXT
    )
    assert any(isinstance(each, list) for each in pieces), "the fox is several tokens"


def test_the_prompt_of_a_conversation(server: Running, model: Model) -> None:
    tools = [{"type": "function", "function": WEATHER}]
    prompt = ask(server, "/apply-template", messages=MESSAGES, tools=tools)["prompt"]
    assert prompt == model.render(MESSAGES[0]["content"], tools=tools).text
    assert "get_weather" in prompt
    assert prompt.endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/tokenize", {}, "content: "),
        ("/tokenize", {"content": ["a"]}, "content: "),
        ("/detokenize", {"tokens": ["a"]}, "tokens: "),
        ("/detokenize", {"tokens": [-1]}, "tokens: "),
        ("/detokenize", {"tokens": [1 << 40]}, "no token "),
        ("/apply-template", {"messages": []}, "messages: "),
    ],
)
def test_what_is_wrong_is_said(server: Running, path: str, body: Any, said: str) -> None:
    answer = server.ask(body, path=path)
    assert answer.status == 400
    assert said in answer.json["error"]["message"]
