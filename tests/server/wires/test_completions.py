"""Completions: text in, text out, and log-probabilities in the API's older shape."""

from __future__ import annotations

import dataclasses
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion

from localagent.errors import EngineFailed, Unsupported
from localagent.hosts.protocol import Logprobs
from localagent.prompt.segments import Gap
from localagent.server.exchange import BadRequest
from localagent.server.raw import continuing
from localagent.server.wires.completions import COMPLETIONS_WIRE
from localagent.turn import Done
from tests.agent.replaying import scripted
from tests.server.wires.rules import check_completion
from tests.server.wires.test_chat import E, S, clean
from tests.server.wires.turns import ANSWER, answered, data_of, scored, spell, tokens_of, turn_of

WIRE = COMPLETIONS_WIRE
ASK: dict[str, Any] = {"prompt": "Once upon"}
OUTPUTS = ["", " a time", "<think>hm</think>", f"text {S}[f(a=1)]{E}", "日本語 🌍\u2028 end"]


def complete(events: Any, body: Any = ASK, **answer: Any) -> tuple[list[Any], dict[str, Any]]:
    frames, whole = answered(WIRE, body, events, dataclasses.replace(ANSWER, **answer))
    return data_of(frames), whole


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("output", OUTPUTS)
def test_the_stream_equals_the_whole_answer_and_all_is_text(output, usage):
    body = ASK | {"stream_options": {"include_usage": usage}}
    data, whole = complete(turn_of(output, "text"), body)
    check_completion(data, whole, usage)
    assert whole["choices"][0]["text"] == output


@given(st.text(max_size=60), st.lists(st.integers(1, 60)), st.none() | st.integers(1, 9), st.booleans())
def test_any_text_in_any_pieces_comes_through(output, cuts, limit, logprobs):
    tokens = tokens_of(clean(output), "text", cuts)
    events = turn_of(tokens, "text", max_tokens=limit)
    body = ASK | ({"logprobs": 2} if logprobs else {})
    data, whole = complete(scored(events, 2), body, spell=spell(tokens))
    check_completion(data, whole)
    done = events[-1]
    assert isinstance(done, Done)
    (choice,) = whole["choices"]
    assert choice["text"] == done.message.raw == done.message.text
    cut = limit is not None and limit < len(tokens)
    assert choice["finish_reason"] == ("length" if cut else "stop")
    if logprobs:
        scores = choice["logprobs"]
        assert "".join(scores["tokens"]) == choice["text"]
        ends = [at + len(text) for at, text in zip(scores["text_offset"], scores["tokens"], strict=True)]
        assert [0, *ends][:-1] == scores["text_offset"] if ends else scores["text_offset"] == []


@pytest.mark.parametrize(("limit", "text", "reason"), [(1, "abcd", "length"), (2, "abcdefgh", "stop")])
def test_a_limit_that_cuts_the_text_is_the_reason_for_its_end(limit, text, reason):
    data, whole = complete(turn_of("abcdefgh", "text", max_tokens=limit))
    check_completion(data, whole)
    assert (whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]) == (text, reason)


def test_logprobs_have_the_shape_of_the_older_api():
    tokens = tokens_of("abcdefgh", "text")
    _, whole = complete(scored(turn_of(tokens, "text"), 2), ASK | {"logprobs": 2}, spell=spell(tokens))
    assert whole["choices"][0]["logprobs"] == {
        "tokens": ["abcd", "efgh"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"abcd": -0.5, "efgh": -1.5}, {"efgh": -0.5, "?": -1.5}],
        "text_offset": [0, 4],
    }
    _, whole = complete(scored(turn_of(tokens, "text"), 0), ASK | {"logprobs": 0}, spell=spell(tokens))
    assert whole["choices"][0]["logprobs"]["top_logprobs"] is None


def test_rule_13_and_22_a_comment_keeps_it_alive_and_errors_have_the_shape_of_the_api():
    writer = WIRE.writer(WIRE.read(ASK), ANSWER)
    assert writer.begin() == []
    assert writer.keep_alive()[0].encode() == b": working\n\n"
    assert data_of(writer.fail(EngineFailed("no"))) == [
        {"error": {"message": "no", "type": "server_error", "param": None, "code": None}}
    ]
    assert WIRE.error(EngineFailed("no"))[0] == 500
    assert not WIRE.fails_in_stream(EngineFailed("no"))


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Once", ("Once",)),
        (["Once", "Twice"], ("Once", "Twice")),
        ([5, 6], ((5, 6),)),
        ([[5, 6], "Once", [7]], ((5, 6), "Once", (7,))),
    ],
)
def test_a_prompt_is_text_or_ids_or_a_list_of_them(prompt, prompts):
    request = WIRE.read({"prompt": prompt})
    assert (request.raw_prompts, request.messages) == (prompts, ())


def test_with_a_suffix_a_prompt_is_a_gap():
    request = WIRE.read({"prompt": ["def f(", ""], "suffix": "return 1"})
    assert request.raw_prompts == (Gap("def f(", "return 1"), Gap("", "return 1"))
    assert WIRE.read(ASK | {"suffix": ""}).raw_prompts == ("Once upon",)


@pytest.mark.parametrize(("asked", "most"), [({}, 16), ({"max_tokens": None}, 16), ({"max_tokens": 3}, 3)])
def test_the_length_has_the_default_of_the_api(asked, most):
    assert WIRE.read(ASK | asked).options["max_tokens"] == most
    assert "max_tokens" not in WIRE.read(ASK | {"max_tokens": -1}).options


def several(body: Any, turns: Any, **answer: Any) -> tuple[list[Any], dict[str, Any]]:
    """The stream and the whole answer of turns whose events come one from each in turn."""
    writer = WIRE.writer(WIRE.read(body), dataclasses.replace(ANSWER, **answer))
    frames = writer.begin()
    for events in zip_longest(*turns):
        for number, event in enumerate(events):
            frames += [] if event is None else writer.feed_choice(number, event)
    return data_of(frames), writer.whole()


@pytest.mark.parametrize("usage", [False, True])
def test_what_was_cached_of_a_prompt_does_not_depend_on_which_choice_read_it(usage):
    body = {"prompt": ["One", "Two"], "n": 2, "stream_options": {"include_usage": usage}}
    turns = []
    for cached in (2, 0, 1, 3):
        *events, done = turn_of("text", "text")
        message = done.message.model_copy(
            update={"usage": done.message.usage.model_copy(update={"cache_read": cached})}
        )
        turns.append([*events, dataclasses.replace(done, message=message)])
    _, whole = several(body, turns)
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 0 + 1


@pytest.mark.parametrize("usage", [False, True])
def test_every_choice_is_told_with_its_number_and_all_are_counted(usage):
    body = {"prompt": ["One", "Two"], "n": 2, "stream_options": {"include_usage": usage}}
    texts = ["", " a time", "text of twelve", "end"]
    data, whole = several(body, [turn_of(text, "text") for text in texts])
    assert data[-1] == "[DONE]"
    for index, text in enumerate(texts):
        told = [choice for chunk in data[:-1] for choice in chunk["choices"] if choice["index"] == index]
        assert "".join(choice["text"] for choice in told) == text
        assert [choice["finish_reason"] for choice in told][-1] == "stop"
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [*enumerate(texts)]
    done = [turn_of(text, "text")[-1].message.usage for text in texts]
    assert whole["usage"]["prompt_tokens"] == done[0].input + done[2].input, "a prompt counts once"
    assert whole["usage"]["completion_tokens"] == sum(each.output for each in done)
    assert whole["timings"]["predicted_n"] == sum(each.output for each in done)
    assert [chunk["usage"] for chunk in data[:-1] if "usage" in chunk] == [whole["usage"]] * usage
    assert [chunk["timings"] for chunk in data[:-1] if "timings" in chunk] == [whole["timings"]]
    Completion.model_validate(whole, strict=True)


def test_of_several_answers_the_likeliest_are_given():
    texts = ["poor", "best", "good"]
    turns = [turn_of(text, "text") for text in texts]
    for events, score in zip(turns, (-3.0, -1.0, -2.0), strict=True):
        events[-1] = dataclasses.replace(events[-1], logprobs=(Logprobs(score),))
    request = WIRE.read(ASK | {"n": 2, "best_of": 3})
    assert (request.choices, request.options["logprobs"]) == (3, 0)
    _, whole = several(ASK | {"n": 2, "best_of": 3}, turns)
    assert [(each["index"], each["text"]) for each in whole["choices"]] == [(0, "best"), (1, "good")]
    assert whole["choices"][0]["logprobs"] is None
    assert whole["usage"]["completion_tokens"] == 3, "all that were made are paid for"


def test_an_echo_comes_before_the_text():
    body = {"prompt": ["One", "Two"], "echo": True}
    data, whole = several(body, [turn_of(" a", "text"), turn_of("", "text")], prompts=["One", "Two"])
    assert [choice["text"] for choice in whole["choices"]] == ["One a", "Two"]
    told = [(choice["index"], choice["text"]) for chunk in data[:-1] for choice in chunk["choices"]]
    assert [each for each in told if each[1]] == [(0, "One"), (0, " a"), (1, "Two")]


@pytest.mark.engine
def test_a_model_continues_a_text_without_its_template(nano):
    from localagent.model import load

    with load(nano["llamacpp"], context=256) as model:
        template = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
        raw = continuing(model, template)
        *events, done = raw.stream("-", max_tokens=4)
        assert done.message.text == done.message.raw
        assert done.message.usage.input == model.count_tokens("Hello")
        assert events and raw.name == model.name


def test_a_host_that_takes_no_text_says_so():
    with pytest.raises(Unsupported, match="replay takes conversations"):
        continuing(scripted("x"), "Once")


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": {"type": "json_object"}},
        {"guided_json": {"type": "object"}},
        {"grammar": "root ::= [0-9]"},
        {"ignore_eos": True},
        {"min_tokens": 5},
    ],
)
def test_what_would_change_the_text_is_refused(asked):
    (name,) = asked
    with pytest.raises(BadRequest) as caught:
        WIRE.read(ASK | asked)
    assert caught.value.param == name
    assert WIRE.read(ASK | {"response_format": {"type": "text"}, "ignore_eos": False}).ignored == ()
