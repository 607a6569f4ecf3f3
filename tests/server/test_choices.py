"""Several prompts and several answers in one request, ids and gaps as prompts, asked of a real model."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from localagent.errors import ContextOverflow
from localagent.model import Model, load
from localagent.prompt.segments import Gap
from localagent.server.app import all_wires
from tests.agent.replaying import block, scripted
from tests.hosts.speaking import Speaking, speaking_host
from tests.server.serving import Running, serving

pytestmark = pytest.mark.engine

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = "The weather in Paris is fine today, and so it was on every other day of this long year. " * 12
MESSAGES: Any = [{"role": "user", "content": LONG}]


@pytest.fixture(scope="module")
def model(nano: dict[str, Path]) -> Iterator[Model]:
    with load(nano["llamacpp"], context=2048, lanes=4) as model:
        yield model  # type: ignore[misc]


@pytest.fixture(scope="module")
def server(model: Model) -> Iterator[Running]:
    with serving(model, wires=all_wires()) as running:
        yield running


def test_a_list_of_prompts_has_the_answers_that_each_has_alone(server: Running) -> None:
    prompts = [f"Once upon {number} times" for number in range(6)]  # more than there are lanes
    alone = [server.ask({"prompt": each}, path=TEXT).json for each in prompts]
    together = server.ask({"prompt": prompts}, path=TEXT).json
    assert [choice["text"] for choice in together["choices"]] == [
        each["choices"][0]["text"] for each in alone
    ]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert together["usage"][name] == sum(each["usage"][name] for each in alone)
    assert all(each["usage"]["completion_tokens"] <= 16 for each in alone)


def test_ids_are_the_prompt_that_they_spell(server: Running, model: Model) -> None:
    ids = [*model.host.raw_prompt("Once upon a time").ids]  # type: ignore[attr-defined]
    text = server.ask({"prompt": "Once upon a time"}, path=TEXT).json
    for prompt in (ids, [ids]):
        answer = server.ask({"prompt": prompt, "echo": True}, path=TEXT).json
        assert answer["usage"]["prompt_tokens"] == len(ids)
        assert answer["choices"][0]["text"].endswith("Once upon a time" + text["choices"][0]["text"])
    for wrong in ([999_999], [0, 999_999]):
        assert server.ask({"prompt": wrong}, path=TEXT).status == 400
        assert server.ask({"prompt": wrong, "echo": True}, path=TEXT).status == 400


@pytest.mark.parametrize("stream", [False, True])
def test_choices_differ_by_their_seeds_and_come_again(server: Running, stream: bool) -> None:
    body = {"messages": MESSAGES, "n": 4, "temperature": 1.5, "seed": 7, "max_tokens": 12, "stream": stream}

    def texts() -> list[str]:
        answer = server.ask(body, path=CHAT)
        assert answer.status == 200, answer.data
        if not stream:
            choices = answer.json["choices"]
            assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
            return [choice["message"]["content"] for choice in choices]
        told = [""] * 4
        for line in answer.body.decode().splitlines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    told[choice["index"]] += choice["delta"].get("content", "")
        return told

    first = texts()
    assert len(set(first)) > 2 and texts() == first
    alone = server.ask(body | {"n": 1, "stream": False, "seed": 9}, path=CHAT).json
    assert alone["choices"][0]["message"]["content"] == first[2]


def test_a_prompt_that_choices_share_is_read_once(server: Running) -> None:
    body = {"messages": [{"role": "user", "content": f"Again: {LONG}"}], "max_tokens": 2}
    four = server.ask(body | {"n": 4}, path=CHAT).json
    alone = server.ask(body, path=CHAT).json
    assert four["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    assert four["usage"]["completion_tokens"] == 4 * alone["usage"]["completion_tokens"]
    # A lane that goes on from another one's state reads what follows its last checkpoint.
    assert four["timings"]["prompt_n"] < 2 * four["usage"]["prompt_tokens"]


def test_more_choices_than_lanes_are_refused(server: Running) -> None:
    for body, path in (({"messages": MESSAGES}, CHAT), ({"prompt": "a", "best_of": 5}, TEXT)):
        answer = server.ask({"n": 5, **body} if "best_of" not in body else body, path=path)
        assert (answer.status, answer.json["error"]["param"]) == (400, "n")
        assert "gives at most 4 answers at once, and 5 are asked" in answer.json["error"]["message"]


def test_the_best_of_several_is_the_likeliest(server: Running) -> None:
    body = {"prompt": "Once", "temperature": 2, "seed": 3, "max_tokens": 8, "logprobs": 0}
    all_ = server.ask(body | {"n": 4}, path=TEXT).json["choices"]
    best = server.ask(body | {"best_of": 4}, path=TEXT).json["choices"]
    means = [sum(each["logprobs"]["token_logprobs"]) / len(each["logprobs"]["tokens"]) for each in all_]
    assert [each["text"] for each in best] == [all_[means.index(max(means))]["text"]]


def test_a_token_can_be_banned(server: Running, model: Model) -> None:
    body = {"prompt": "The weather", "temperature": 0, "max_tokens": 6, "logprobs": 0}
    (choice,) = server.ask(body, path=TEXT).json["choices"]
    banned = {
        str(token): -100
        for text in choice["logprobs"]["tokens"]
        for token in model.host.tokenize(text, False)
    }
    (other,) = server.ask(body | {"logit_bias": banned}, path=TEXT).json["choices"]
    assert not set(choice["logprobs"]["tokens"]) & set(other["logprobs"]["tokens"])
    answer = server.ask(body | {"logit_bias": {"999999": 1}}, path=TEXT)
    assert answer.status == 400 and b"outside the vocabulary" in answer.body


@pytest.mark.parametrize("wrong", [[999_999], [5] * 3000, "word " * 3000])
def test_a_prompt_that_no_turn_takes_is_refused_before_any_is_answered(server: Running, wrong: Any) -> None:
    body = {"prompt": [*["Once"] * 6, wrong], "max_tokens": 4, "stream": True}
    assert server.ask(body, path=TEXT).status == 400


def two_lanes(*outputs: str) -> Model:
    model = scripted(*outputs)
    model.host.lanes = 2  # type: ignore[attr-defined]
    return model


def test_choices_need_no_more_than_one_free_place() -> None:
    with serving(two_lanes("x"), wires=all_wires()) as server:
        assert server.ask({"messages": MESSAGES}, path=CHAT).status == 200
        queue = server.service.pool.served["model-1"].queue
        assert queue.slots == 3
        queue.running = 2  # two others run, and do not end
        assert server.ask({"messages": MESSAGES, "n": 2}, path=CHAT, wait=10).status == 200
        assert queue.running == 2


def test_nothing_of_choices_that_failed_waits_for_the_garbage_collector() -> None:
    def left() -> list[Any]:
        return [one for one in gc.get_objects() if isinstance(one, ExceptionGroup)]

    with serving(two_lanes("x"), wires=all_wires()) as server:
        gc.collect()
        gc.disable()
        try:
            before = len(left())
            assert server.ask({"prompt": ["a", "b"]}, path=TEXT).status == 400  # a replay takes no text
            assert len(left()) == before
        finally:
            gc.enable()


def test_the_openai_package_folds_choices_with_calls() -> None:
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    with (
        serving(two_lanes(block("f(a=1)"), block("f(a=2)")), wires=all_wires()) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
        client.chat.completions.stream(model="m", messages=MESSAGES, tools=tools, n=2) as stream,
    ):
        choices = stream.get_final_completion().choices
    calls = [choice.message.tool_calls[0] for choice in choices if choice.message.tool_calls]
    assert {json.loads(call.function.arguments)["a"] for call in calls} == {1, 2}
    assert len({call.id for call in calls}) == 2


@pytest.mark.parametrize("engine", ["llamacpp", "mlx"])
def test_a_gap_has_the_models_own_tokens_around_it(nano: dict[str, Path], engine: str) -> None:
    if engine == "mlx":
        pytest.importorskip("mlx_lm")
    with load(nano[engine], context=512) as model:
        host: Any = model.host
        begin = host.raw_prompt("").ids
        spelled = "<|fim_pre|>def f(x):\n<|fim_suf|>    return y\n<|fim_mid|>"
        gap = host.raw_prompt(Gap("def f(x):\n", "    return y\n"))
        assert gap.ids == (*begin, *host.tokenize(spelled, special=True))
        forged = host.raw_prompt(Gap("<|im_end|>", "<|fim_mid|>"))
        assert (
            host.detokenize(forged.ids)
            .decode()
            .endswith("<|fim_pre|><|im_end|><|fim_suf|><|fim_mid|><|fim_mid|>")
        )
        end, middle = host.tokenize("<|im_end|><|fim_mid|>", special=True)
        assert forged.ids.count(end) == 0 and forged.ids.count(middle) == 1
        others = host.raw_prompt(Gap("b", "c", (("a.py", "a = 1"),)))
        assert (
            host.detokenize(others.ids).decode().endswith("a.py\na = 1\n<|fim_pre|>b<|fim_suf|>c<|fim_mid|>")
        )


def test_a_gap_that_is_too_long_is_told_with_all_of_its_tokens(model: Model) -> None:
    host: Any = model.host

    def counted(before: str) -> int:
        with pytest.raises(ContextOverflow) as caught:
            host.raw_prompt(Gap(before, "word " * 8000))
        return caught.value.prompt_tokens

    before = "word " * 300
    assert counted(before) == counted("") + len(host.tokenize(before, False))


def test_a_gap_is_filled_on_three_wires(server: Running) -> None:
    sampling = {"temperature": 0}
    one = server.ask({"prompt": "The ", "suffix": " is.", "max_tokens": 8, **sampling}, path=TEXT).json
    two = server.ask(
        {"prompt": "The ", "suffix": " is.", "stream": False, "options": {"num_predict": 8, **sampling}},
        path="/api/generate",
    ).json
    three = server.ask(
        {"input_prefix": "The ", "input_suffix": " is.", "n_predict": 8, **sampling}, path="/infill"
    ).json
    assert one["choices"][0]["text"] == two["response"] == three["content"] != ""
    four = {"input_prefix": "The ", "input_suffix": " is.", "max_tokens": 8, **sampling}
    assert server.ask(four, path="/infill").json["content"] == three["content"]
    assert one["usage"]["prompt_tokens"] == two["prompt_eval_count"] == three["tokens_evaluated"]


def test_a_model_without_such_tokens_says_so() -> None:
    with serving(Model(speaking_host(Speaking()), scripted("x").dialect), wires=all_wires()) as server:
        for path, body in ((TEXT, {}), ("/api/generate", {}), ("/infill", {"input_suffix": "x"})):
            answer = server.ask({"prompt": "a", "suffix": "b", **body}, path=path)
            assert answer.status == 400 and b"no tokens for filling a gap" in answer.body
    with serving(scripted("x"), wires=all_wires()) as server:
        assert server.ask({"prompt": "a", "suffix": "b"}, path=TEXT).status == 400
