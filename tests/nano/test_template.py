"""The chat template: the layout, and that a conversation only ever grows at its end."""

from __future__ import annotations

import pytest

from localagent.nano import MLX
from localagent.nano.requests import KINDS, make_requests
from localagent.prompt import ChatTemplate, Trusted
from localagent_bench.training.tokenizer import BOS, EOS, SPECIAL

TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def template():
    return ChatTemplate((MLX / "chat_template.jinja").read_text(), BOS, EOS, SPECIAL)


def text(template, messages, tools=(), **variables):
    return template.render(messages, list(tools) or None, **variables).text


def test_a_conversation_is_laid_out_as_lfm2_does(template):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Ping"},
        {"role": "assistant", "content": Trusted("<|tool_call_start|>[ping()]<|tool_call_end|>")},
        {"role": "tool", "content": "ok"},
    ]
    assert text(template, messages, [TOOL, TOOL]) == (
        "<|startoftext|><|im_start|>system\nBe brief.\nList of tools: ["
        '{"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}, '
        '{"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}'
        "]<|im_end|>\n<|im_start|>user\nPing<|im_end|>\n<|im_start|>assistant\n"
        "<|tool_call_start|>[ping()]<|tool_call_end|><|im_end|>\n<|im_start|>tool\nok<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("system", "tools", "wanted"),
    [
        ([], [], "<|startoftext|><|im_start|>user\n"),
        ([], [TOOL], '<|startoftext|><|im_start|>system\nList of tools: [{"type"'),
        ([{"role": "system", "content": ""}], [], "<|startoftext|><|im_start|>user\n"),
        ([{"role": "system", "content": "Hi."}], [], "<|startoftext|><|im_start|>system\nHi.<|im_end|>\n"),
    ],
)
def test_the_system_turn_is_there_when_it_says_something(template, system, tools, wanted):
    assert text(template, [*system, {"role": "user", "content": "Hi"}], tools).startswith(wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_grows_at_its_end(template, kind):
    for request in make_requests(kind, 5, seed=10):
        messages = [
            message | {"content": Trusted(message["content"])} if message["role"] == "assistant" else message
            for message in request.messages
        ]
        before = text(template, messages, request.tools)
        own = {
            "role": "assistant",
            "content": Trusted(request.content),
            "reasoning_content": request.reasoning,
        }
        after = text(template, [*messages, own, {"role": "user", "content": "Go on."}], request.tools)
        assert after.startswith(before + request.content + EOS)


def test_past_thoughts_are_not_shown(template):
    own = {"role": "assistant", "content": "Pong.", "reasoning_content": "deep", "thinking": "deep"}
    assert "deep" not in text(template, [{"role": "user", "content": "Ping"}, own])


def test_content_may_come_in_parts(template):
    parts = [{"type": "text", "text": "Pi"}, {"type": "text", "text": "ng"}]
    assert "user\nPing<|im_end|>" in text(template, [{"role": "user", "content": parts}])


def test_without_a_generation_prompt(template):
    rendered = text(template, [{"role": "user", "content": "Ping"}], add_generation_prompt=False)
    assert rendered.endswith("Ping<|im_end|>\n")
