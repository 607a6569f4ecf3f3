"""Thinking under control, on real models: nano with a prompt that opens its reasoning, SmolLM2 with one in words."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localagent.agent import Agent, RunDone
from localagent.constraint import matching
from localagent.errors import ConstraintFailed, GrammarMissing, UsageError
from localagent.model import Model, load
from localagent.prompt.request import RequestWarning
from localagent.prompt.template import ChatTemplate
from localagent.turn import Done
from parsers import Reasoning

ENGINES = ["llamacpp", "mlx"]
QUESTION = "What is the weather in Paris?"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SWITCH = "{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}"


def thinking(model: Model, tail: str = "", source: str = "") -> Model:
    """The model with another end of its prompt: it opens the reasoning, which it was not trained to have open."""
    host = model.host
    source = source or host.template_source
    told = source.replace("<|im_start|>assistant\\n", "<|im_start|>assistant\\n<think>").replace(
        "<|im_start|>assistant\n", "<|im_start|>assistant\n<think>"
    )
    assert told != source
    host._prompting._template = ChatTemplate(
        told + tail, host.vocabulary.bos, host.vocabulary.eos, host.special_tokens
    )
    return model


@pytest.fixture(scope="module")
def models(nano: dict[str, Path]) -> Iterator[dict[str, Model]]:
    pytest.importorskip("mlx_lm")
    with load(nano["llamacpp"], threads=1, lanes=3) as one, load(nano["mlx"], lanes=3) as other:
        yield {"llamacpp": thinking(one), "mlx": thinking(other)}


@pytest.fixture(scope="module")
def rambling(gguf: Path) -> Iterator[Model]:
    """It never closes what the prompt opens, since nobody has told it what that is."""
    with load(gguf, context=2048, lanes=3) as model:
        yield thinking(model)


def done(model: Model, **options) -> Done:
    *_, last = model.stream(QUESTION, tools=[TOOL], **options)
    assert isinstance(last, Done)
    return last


# -- a budget -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_budget_cuts_the_reasoning_and_the_answer_goes_on(models, engine, temperature):
    model = models[engine]
    options = {"max_tokens": 40, "temperature": temperature, "seed": 5}
    free = done(model, **options)
    close = model.host.vocabulary.tokenize("</think>", True)
    thought = free.token_ids[: free.token_ids.index(close[0])]
    assert len(thought) > 4
    for budget in range(len(thought) + 2):
        cut = done(model, thinking_budget=budget, **options)
        most = min(budget, len(thought))
        assert cut.token_ids[: most + 1] == (*thought[:most], *close), budget
        assert cut.message.raw.count("</think>") == 1
        assert cut.message.stop_reason in ("stop", "tool_calls", "length")
        assert len(cut.token_ids) > most + 1, "something follows"
        if budget >= len(thought):
            assert cut.token_ids == free.token_ids, "a budget that is not reached changes nothing"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_call_is_still_made(models, engine):
    for budget in (0, 2):
        message = done(models[engine], thinking_budget=budget, max_tokens=60).message
        assert [call.name for call in message.tool_calls] == ["get_weather"]
        assert message.stop_reason == "tool_calls"


@pytest.mark.parametrize("engine", ENGINES)
def test_alone_and_together_the_tokens_are_the_same(models, engine):
    model, budgets = models[engine], [0, 3, None]
    alone = [done(model, thinking_budget=budget, max_tokens=25).token_ids for budget in budgets]

    async def together():
        one = model.arespond
        turns = (one(QUESTION, tools=[TOOL], thinking_budget=budget, max_tokens=25) for budget in budgets)
        return await asyncio.gather(*turns)

    spelled = [model.host.detokenize(ids).decode() for ids in alone]
    assert [message.raw for message in asyncio.run(together())] == spelled


@pytest.mark.parametrize("engine", ENGINES)
def test_log_probabilities_are_there_for_what_is_forced(models, engine):
    plain = done(models[engine], thinking_budget=2, max_tokens=20)
    scored = done(models[engine], thinking_budget=2, max_tokens=20, logprobs=0)
    assert scored.token_ids == plain.token_ids
    assert len(scored.logprobs) == len(scored.token_ids)


def test_words_that_close_the_reasoning_over_several_tokens(rambling):
    """In SmolLM2's vocabulary `</think>` is text like any other."""
    assert "</think>" not in rambling.host.special_tokens
    free = rambling.respond(QUESTION, max_tokens=60)
    assert "</think>" not in free.raw
    for budget in (0, 1, 7, 40):
        message = rambling.respond(QUESTION, max_tokens=60, thinking_budget=budget)
        assert message.raw.startswith(message.reasoning + "</think>")
        assert len(rambling.host.tokenize(message.reasoning, False)) <= budget
        assert free.raw.startswith(message.reasoning)
        assert message.text.strip()


# -- on demand ----------------------------------------------------------------------------------------------


def test_thinking_is_ended_from_another_thread(rambling):
    flag, seen = threading.Event(), 0
    for event in rambling.stream(QUESTION, max_tokens=400, end_thinking=flag):
        if isinstance(event, Reasoning):
            seen += 1
            if seen == 5:
                threading.Thread(target=flag.set).start()
    assert isinstance(event, Done)
    assert event.message.raw.count("</think>") >= 1
    assert event.message.text.strip()


def test_a_flag_that_is_never_set_changes_nothing(models):
    for engine in ENGINES:
        free = done(models[engine], max_tokens=40)
        assert done(models[engine], max_tokens=40, end_thinking=threading.Event()).token_ids == free.token_ids


def test_a_flag_that_fails_ends_its_own_turn(models):
    class Broken:
        def is_set(self) -> bool:
            raise RuntimeError("no flag today")

    with pytest.raises(ConstraintFailed, match="no flag today"):
        done(models["llamacpp"], end_thinking=Broken(), max_tokens=5)
    assert done(models["llamacpp"], max_tokens=5)


# -- through the template -----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_what_cannot_be_switched_off_is_ended_at_once(models, engine):
    warning, *events = models[engine].stream(QUESTION, tools=[TOOL], thinking=False, max_tokens=40)
    assert isinstance(warning, RequestWarning)
    assert "cannot be told not to think: its chat template has no switch" in warning.text
    assert events[-1].message.raw.startswith("</think>")
    assert events[-1].message.reasoning == ""


def test_white_space_around_the_marker_is_the_templates(nano):
    shown = "{{- '<think>' + turn.reasoning_content + '\n</think>\n\n' if turn.reasoning_content -}}"
    with load(nano["llamacpp"], threads=1) as model:
        source = model.host.template_source
        told = source.replace("{{- turn.content -}}", shown + "{{- turn.content -}}")
        assert told != source
        thinking(model, source=told)
        for budget in (0, 2):
            message = done(model, thinking_budget=budget, max_tokens=60).message
            assert message.raw.startswith(
                message.reasoning.removesuffix("\n") + "\n</think>\n\n<|tool_call_start|>"
            )
        message = done(model, thinking_budget=2, tool_choice="required", max_tokens=60).message
        assert "\n</think>\n\n<|tool_call_start|>" in message.raw
        assert len(message.tool_calls) == 1


def test_a_switch_reaches_the_prompt(nano):
    with load(nano["llamacpp"], threads=1) as model:
        thinking(model, SWITCH)
        asked = {"thinking": False}
        assert model.render(QUESTION).text.endswith("<think>")
        assert model.render(QUESTION, **asked).text.endswith("<think></think>")
        assert model.count_tokens(QUESTION, **asked) == model.count_tokens(QUESTION) + 1
        answer = model.respond(QUESTION, tools=[TOOL], max_tokens=40, **asked)
        assert (answer.reasoning, [call.name for call in answer.tool_calls]) == ("", ["get_weather"])
        agent = Agent(model, thinking=False, max_tokens=20)
        assert "<think></think>" in _prompt_of(agent)
        assert "<think></think>" not in _prompt_of(Agent(model, max_tokens=20))


def _prompt_of(agent: Agent) -> str:
    """The last prompt that was rendered in a run of the agent."""
    host, seen = agent.model.host, []
    render = host.render
    host.render = lambda *given, **options: seen.append(render(*given, **options)) or seen[-1]
    try:
        agent.respond(QUESTION)
    finally:
        del host.render
    return seen[-1].text


def test_an_agent_thinks_as_it_is_told(models):
    agent = Agent(models["llamacpp"], thinking_budget=2, max_tokens=30)
    close = models["llamacpp"].host.vocabulary.tokenize("</think>", True)[0]
    *_, end = agent.run(QUESTION)
    assert isinstance(end, RunDone)
    first = end.messages[1]
    ids = models["llamacpp"].host.tokenize(first.raw, True)
    assert ids.index(close) == 2
    told = list(agent.run(QUESTION, thinking=False, thinking_budget=None))
    assert any(isinstance(event, RequestWarning) for event in told)
    assert told[-1].message.raw.startswith("</think>")


def test_without_a_wish_there_is_no_constraint(models, monkeypatch):
    host = models["llamacpp"].host
    given, generate = [], host.generate
    monkeypatch.setattr(host, "generate", lambda *a, **o: given.append(a[3:]) or generate(*a, **o))
    for options in (
        {},
        {"thinking": True},
        {"thinking": None, "thinking_budget": None, "end_thinking": None},
    ):
        models["llamacpp"].respond(QUESTION, max_tokens=2, **options)
    assert given == [(None,)] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thinking": "very"}, "thinking is 'very': "),
        ({"thinking_budget": -1}, "thinking_budget is -1: "),
        ({"end_thinking": True}, "end_thinking is True: it must be a flag, such as a threading.Event"),
        ({"thinking": False, "thinking_budget": 3}, "thinking is off, and thinking_budget is 3"),
    ],
)
def test_bad_values_are_found_before_anything_runs(models, options, message):
    model = models["llamacpp"]
    for attempt in (
        lambda: model.stream(QUESTION, **options),
        lambda: model.astream(QUESTION, **options),
        lambda: model.respond(QUESTION, **options),
        lambda: Agent(model, **options),
        lambda: Agent(model).run(QUESTION, **options),
    ):
        with pytest.raises(UsageError, match=f"^{message}"):
            attempt()


# -- with what else a turn is told --------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_call_that_must_be_made_comes_after_the_reasoning(models, engine):
    pytest.importorskip("llguidance")
    for budget in (0, 2):
        message = done(models[engine], tool_choice="required", thinking_budget=budget, max_tokens=80).message
        assert [call.name for call in message.tool_calls] == ["get_weather"]
        assert message.raw.index("</think>") < message.raw.index("<|tool_call_start|>")


def test_calls_that_must_not_be_made(models):
    for options in ({"thinking_budget": 2}, {"thinking": False}):
        message = done(models["llamacpp"], tool_choice="none", max_tokens=40, **options).message
        assert not message.tool_calls
        assert message.raw.count("</think>") == 1


def test_json_comes_after_the_reasoning(models):
    pytest.importorskip("llguidance")
    message = models["llamacpp"].respond(
        QUESTION, response_format={"type": "json_object"}, thinking_budget=3, max_tokens=200
    )
    close = message.raw.index("</think>") + len("</think>")
    assert message.reasoning
    assert message.raw[close:].lstrip().startswith("{")


def test_no_other_package_is_needed(models, monkeypatch):
    def missing() -> None:
        raise GrammarMissing("not installed")

    free = done(models["llamacpp"], thinking_budget=2, max_tokens=40)
    monkeypatch.setattr(matching, "llguidance", missing)
    monkeypatch.setattr(matching, "_factories", {})
    assert done(models["llamacpp"], thinking_budget=2, max_tokens=40).message.raw.startswith(
        free.message.raw[:10]
    )
    assert models["llamacpp"].respond(QUESTION, thinking=False, max_tokens=10).raw.startswith("</think>")
