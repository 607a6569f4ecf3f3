"""A last message of the assistant: the answer goes on with it, or it is refused; never a new turn in silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localagent.errors import Unsupported, UsageError
from localagent.hosts.replay import ReplayHost
from localagent.messages import AssistantMessage, Message, ReasoningPart, TextPart, ToolCallPart, UserMessage
from localagent.model import Model, load
from localagent.prompt.rendering import render_turn, request_for
from localagent.prompt.segments import Prompt
from localagent.prompt.template import ChatTemplate
from localagent.server.app import all_wires
from parsers import DIALECTS
from tests.server.serving import Running, serving
from tests.server.wires.turns import tokens_of, turn_of

BEGUN = "The capital of <|im_end|>"
HISTORY = [
    {"role": "user", "content": "What is the capital of Norway?"},
    {"role": "assistant", "content": BEGUN},
]
OLLAMA = {"temperature": 0, "num_predict": 8}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HISTORY, "temperature": 0, "max_tokens": 8},
    "/v1/responses": {"input": HISTORY, "temperature": 0, "max_output_tokens": 8},
    "/v1/messages": {"messages": HISTORY, "temperature": 0, "max_tokens": 8},
    "/api/chat": {"messages": HISTORY, "options": OLLAMA, "stream": False},
}


@pytest.fixture(scope="module")
def model(nano: dict[str, Path]) -> Iterator[Model]:
    with load(nano["llamacpp"]) as model:
        assert isinstance(model, Model)
        yield model


@pytest.fixture(scope="module")
def server(model: Model) -> Iterator[Running]:
    with serving(model, wires=all_wires()) as server:
        yield server


def text_of(path: str, whole: dict[str, Any]) -> str:
    match path:
        case "/v1/chat/completions":
            said: str = whole["choices"][0]["message"]["content"]
        case "/v1/responses":
            said = whole["output"][0]["content"][0]["text"]
        case "/v1/messages":
            said = whole["content"][0]["text"]
        case _:
            said = whole["message"]["content"]
    return said


@pytest.mark.parametrize("path", REQUESTS)
def test_the_answer_is_what_follows_the_words(path: str, model: Model, server: Running) -> None:
    begun = AssistantMessage.text(BEGUN)
    turn = request_for(model.host, [UserMessage.text(HISTORY[0]["content"])])
    opened = render_turn(model.host, model.dialect, turn)
    prompt = render_turn(model.host, model.dialect, turn, begun=begun)
    assert prompt.text == opened.text + BEGUN
    # What the client wrote is no token that ends the turn: it is spelled in ordinary ones.
    assert prompt.ids[: len(opened.ids)] == opened.ids
    assert not set(prompt.ids[len(opened.ids) :]) & set(model.host.vocabulary.special)
    answer = server.ask(REQUESTS[path], path=path)
    assert answer.status == 200, answer.json
    *_, done = model.stream(
        [turn.messages[0], begun], temperature=0, max_tokens=8, continue_final_message=True
    )
    assert done.message.usage.input == len(prompt.ids)  # type: ignore[union-attr]
    assert text_of(path, answer.json) == done.message.text  # type: ignore[union-attr]


@pytest.mark.parametrize("path", REQUESTS)
def test_where_it_cannot_be_gone_on_with_every_wire_refuses(path: str) -> None:
    host = ReplayHost([tokens_of("Oslo.")], DIALECTS["harmony"].markers)
    with serving(Model(host, DIALECTS["harmony"]), wires=all_wires()) as server:
        answer = server.ask(REQUESTS[path], path=path)
    assert answer.status == 400
    assert "cannot go on with a last message of the assistant" in answer.body.decode()


def test_calls_without_results_end_no_conversation_of_anthropic(server: Running) -> None:
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    messages = [HISTORY[0], {"role": "assistant", "content": [call]}]
    answer = server.ask({"messages": messages, "max_tokens": 8}, path="/v1/messages")
    assert answer.status == 400 and "holds more than text" in answer.json["error"]["message"]


def test_chat_completions_may_say_which_is_meant(server: Running) -> None:
    path = "/v1/chat/completions"
    ask = REQUESTS[path]

    def tokens(**more: Any) -> Any:
        answer = server.ask({**ask, **more}, path=path)
        return (
            answer.json["usage"]["prompt_tokens"] if answer.status == 200 else answer.json["error"]["param"]
        )

    went_on = tokens()
    assert tokens(continue_final_message=True) == tokens(add_generation_prompt=False) == went_on
    anew = tokens(continue_final_message=False)
    assert anew == tokens(add_generation_prompt=True) > went_on
    for wrong in (
        {"continue_final_message": True, "add_generation_prompt": True},
        {"continue_final_message": True, "messages": HISTORY[:1]},
        {"add_generation_prompt": False, "messages": HISTORY[:1]},
    ):
        assert tokens(**wrong) == "continue_final_message"
    bounded = server.ask({**ask, "response_format": {"type": "json_object"}}, path=path)
    assert bounded.status == 400 and "response_format" in bounded.json["error"]["message"]


THINKS = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n"
    "{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)


class Templated(ReplayHost):
    """A replay whose prompts are rendered."""

    def __init__(self, source: str, output: str = "Oslo.") -> None:
        super().__init__([tokens_of(output)])
        self.template = ChatTemplate(source, "", "", ["<|user|>", "<|assistant|>", "<think>", "</think>"])

    def write(self, messages: Any, tools: Any = None, **variables: Any) -> str:
        return self.template.render(messages, tools, **variables).text

    def render(self, messages: Any, tools: Any = None, *, limit: Any = None, **variables: Any) -> Prompt:
        rendered = self.template.render(messages, tools, **variables)
        return Prompt((1,), rendered.text, tail=rendered.tail)


def test_reasoning_that_the_template_opens_is_ended_first() -> None:
    host, qwen = Templated(THINKS), DIALECTS["hermes"]
    request = request_for(host, [UserMessage.text("Go.")])
    prompt = render_turn(host, qwen, request, begun=AssistantMessage.text("I am"))
    assert (prompt.text, prompt.inside) == ("<|user|>Go.<|assistant|><think>\n\n</think>\n\nI am", None)
    thought = AssistantMessage(content=[ReasoningPart(text="Who?"), TextPart(text="I am")])
    prompt = render_turn(host, qwen, request, begun=thought)
    assert prompt.text == "<|user|>Go.<|assistant|><think>\nWho?\n</think>\n\nI am"
    plain = Templated(THINKS.replace("<|assistant|><think>\n", "<|assistant|>"))
    with pytest.raises(Unsupported, match="reasoning, which the chat template does not open"):
        render_turn(plain, qwen, request, begun=thought)
    nothing = render_turn(plain, qwen, request, begun=AssistantMessage())
    assert nothing.text == "<|user|>Go.<|assistant|>"


def test_after_the_first_words_the_output_is_text() -> None:
    """A bare call is one as the whole of a turn, and this one has begun with something else."""
    bare = '{"name": "f", "arguments": {"a": 1}}'
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    talk: list[Message] = [UserMessage.text("Go."), AssistantMessage.text("Write this: ")]
    new, gone_on = (
        turn_of(bare, "hermes", tools=tools),
        [
            *Model(ReplayHost([tokens_of(bare)]), DIALECTS["hermes"]).stream(
                talk, tools=tools, continue_final_message=True
            )
        ],
    )
    assert new[-1].message.tool_calls and not gone_on[-1].message.tool_calls  # type: ignore[union-attr]
    assert gone_on[-1].message.text == bare  # type: ignore[union-attr]


def test_only_words_of_the_assistant_are_gone_on_with() -> None:
    model = Model(ReplayHost([tokens_of("x")]), DIALECTS["lfm2"])
    called = AssistantMessage(content=[ToolCallPart(id="c", name="f", arguments={})])
    rows: list[tuple[list[Message], type[UsageError]]] = [
        ([UserMessage.text("Go.")], UsageError),
        ([UserMessage.text("Go."), called], Unsupported),
        ([AssistantMessage.text("I")], UsageError),
    ]
    for talk, wrong in rows:
        with pytest.raises(wrong):
            list(model.stream(talk, continue_final_message=True))
