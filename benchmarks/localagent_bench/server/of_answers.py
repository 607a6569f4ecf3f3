"""Checks of whole answers, of the options that shape them, and of what may stand in a conversation."""

from __future__ import annotations

import json
from typing import Any

from localagent.wording import quoted
from localagent_bench.server.hearing import Heard
from localagent_bench.server.rules import (
    CALL,
    CALLED,
    QUESTION,
    Check,
    Fails,
    NotSeen,
    Probe,
    choice,
    differs,
    finish_of,
    message,
    offered,
    said,
    text_of,
    whole,
)

_SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string", "maxLength": 12}, "hot": {"type": "boolean"}},
    "required": ["colour", "hot"],
    "additionalProperties": False,
}


def an_answer_has_its_shape(probe: Probe) -> str:
    """A whole answer has its fields and types."""
    heard = probe.chat()
    answer = whole(heard)
    if not heard.content_type.startswith("application/json"):
        raise Fails(quoted(heard.content_type or "no content type"))
    kinds: dict[str, type] = {"id": str, "object": str, "created": int, "model": str, "choices": list}
    if wrong := [name for name, kind in kinds.items() if type(answer.get(name)) is not kind]:
        raise Fails(f"missing or of a wrong type: {', '.join(wrong)}")
    if answer["object"] != "chat.completion" or choice(heard).get("index") != 0:
        raise Fails(f"object {quoted(answer['object'])}, index {choice(heard).get('index')!r:.20}")
    told = message(heard)
    # An answer may be cut while the model still reasons: there is no content then.
    reasons = bool(told.get("reasoning_content") or told.get("reasoning"))
    if told.get("role") != "assistant" or not isinstance(
        told.get("content"), (str | None) if reasons else str
    ):
        raise Fails(f"the message is {quoted(str(told))}")
    return quoted(answer["id"])


def a_limit_ends_with_length(probe: Probe) -> str:
    """A limit ends it with length."""
    heard = probe.chat(messages=said("Count from one to a hundred."), max_tokens=3)
    usage, finish = whole(heard).get("usage") or {}, finish_of(heard)
    written = usage.get("completion_tokens")
    if finish == "stop" and isinstance(written, int) and written < 3:
        raise NotSeen(f"the model wrote {written} tokens")
    if finish != "length" or (isinstance(written, int) and written > 3):
        raise Fails(f"finish_reason {finish}, {written} tokens of 3")
    return "length"


def a_stop_text_ends_and_is_left_out(probe: Probe) -> str:
    """A stop text ends the answer, and is left out."""
    answered = text_of(probe.chat())
    words = answered.split()
    stop = next((word for word in words[1:] if len(word) > 1), None)
    if stop is None:
        raise NotSeen(f"the model wrote {quoted(answered, 30)}")
    heard = offered(probe.chat(stop=[stop]))
    text = text_of(heard)
    if not answered.startswith(text) and text_of(probe.chat(again=1)) != answered:
        raise NotSeen("the likeliest tokens are not the same each time")
    expected = answered[: answered.index(stop)]
    if text.rstrip() != expected.rstrip():
        differs(f"stop {quoted(stop, 20)} is not where it ends", text, expected)
    if finish_of(heard) != "stop":
        raise Fails(f"finish_reason {finish_of(heard)}")
    return f"ended before {quoted(stop, 20)}"


def a_seed_repeats(probe: Probe) -> str:
    """The same seed gives the same words."""
    asked: dict[str, Any] = {
        "temperature": 1.0,
        "seed": 7,
        "messages": said("Write a short poem."),
        "max_tokens": 16,
    }
    first, second = (text_of(offered(probe.chat(again=at, **asked))) for at in (1, 2))
    if first != second:
        differs("the same seed, other words", first, second)
    if not first:
        raise NotSeen("the model wrote nothing")
    return quoted(first, 40)


def logprobs_are_given_or_refused(probe: Probe) -> str:
    """Log-probabilities are given or refused, not ignored."""
    heard = offered(probe.chat(logprobs=True, top_logprobs=2, max_tokens=4))
    scores = choice(heard).get("logprobs")
    entries = scores.get("content") if isinstance(scores, dict) else None
    if not isinstance(entries, list) or not entries:
        if not text_of(heard):
            raise NotSeen("the model wrote nothing")
        raise Fails("logprobs are accepted, and none come")
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("token"), str):
            raise Fails(f"an entry without a token: {quoted(str(entry))}")
        score, top = entry.get("logprob"), entry.get("top_logprobs")
        if not isinstance(score, int | float) or score > 1e-6:
            raise Fails(f"a logprob of {score!r:.20}")
        if not isinstance(top, list) or len(top) != 2:
            raise Fails(f"{len(top) if isinstance(top, list) else 'no'} alternatives of 2")
    return f"{len(entries)} tokens"


def _as_json(heard: Heard) -> Any:
    text = text_of(offered(heard))
    try:
        return json.loads(text)
    except ValueError as error:
        if finish_of(heard) == "length":
            raise NotSeen("the answer was cut before its end") from error
        raise Fails(f"it is accepted, and the answer is {quoted(text)}") from error


def a_schema_is_kept_or_refused(probe: Probe) -> str:
    """A JSON Schema is kept or refused, not ignored."""
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA, "strict": True}}
    asked = said("Which colour is the sun, and is it hot? Answer in JSON.")
    found = _as_json(probe.chat(messages=asked, response_format=form, max_tokens=128))
    fits = isinstance(found, dict) and set(found) == {"colour", "hot"}
    if not fits or not isinstance(found["colour"], str) or not isinstance(found["hot"], bool):
        raise Fails(f"the answer does not fit the schema: {quoted(json.dumps(found))}")
    return quoted(json.dumps(found))


def a_json_object_is_given_or_refused(probe: Probe) -> str:
    """A JSON object is given or refused."""
    asked = said('Answer with a JSON object that has the key "colour".')
    found = _as_json(probe.chat(messages=asked, response_format={"type": "json_object"}, max_tokens=128))
    if not isinstance(found, dict):
        raise Fails(f"the answer is no object: {quoted(json.dumps(found))}")
    return quoted(json.dumps(found))


# -- conversations ----------------------------------------------------------------------------------------


def _takes(probe: Probe, messages: list[dict[str, Any]]) -> str:
    whole(probe.chat(messages=messages, max_tokens=2))
    return "answered"


def null_content_is_taken(probe: Probe) -> str:
    """Calls with content null are taken."""
    return _takes(probe, CALLED)


def empty_content_is_taken(probe: Probe) -> str:
    """Calls with empty content are taken."""
    return _takes(probe, [CALLED[0], {**CALLED[1], "content": ""}, CALLED[2]])


def parts_are_taken(probe: Probe) -> str:
    """Lists of parts are taken, of results too."""
    user = {"role": "user", "content": [{"type": "text", "text": QUESTION}]}
    result = {**CALLED[2], "content": [{"type": "text", "text": "Sunny."}]}
    whole(probe.chat(messages=[user], max_tokens=2))
    return _takes(probe, [*CALLED[:2], result])


def a_malformed_call_is_taken(probe: Probe) -> str:
    """A malformed call is taken."""
    function = {"name": "get_weather", "arguments": '{"city": "Os'}
    return _takes(
        probe, [CALLED[0], {**CALLED[1], "tool_calls": [{**CALL, "function": function}]}, CALLED[2]]
    )


def reasoning_is_taken(probe: Probe) -> str:
    """Reasoning is taken back."""
    answer = {"role": "assistant", "content": "Red.", "reasoning_content": "Let me think."}
    return _takes(probe, [*said(QUESTION), answer, *said("And two more?")])


def several_texts_of_one_role_are_taken(probe: Probe) -> str:
    """Several messages of one role are taken."""
    system = [{"role": "system", "content": text} for text in ("Be brief.", "Be kind.")]
    heard = probe.chat(messages=[*system, *said("Hello."), *said("Are you there?")], max_tokens=2)
    whole(offered(heard))  # a chat template may not allow it
    return "answered"


CHECKS = (
    Check("answer", "a question", an_answer_has_its_shape),
    Check("answer", "max_tokens: 3", a_limit_ends_with_length),
    Check("options", "a word of the answer as stop", a_stop_text_ends_and_is_left_out),
    Check("options", "seed: 7, twice", a_seed_repeats),
    Check("options", "top_logprobs: 2", logprobs_are_given_or_refused),
    Check("options", "response_format", a_schema_is_kept_or_refused),
    Check("options", "response_format", a_json_object_is_given_or_refused),
    Check("history", "a call and its result", null_content_is_taken),
    Check("history", 'the same with ""', empty_content_is_taken),
    Check("history", "text parts", parts_are_taken),
    Check("history", "half of its arguments", a_malformed_call_is_taken),
    Check("history", "reasoning_content", reasoning_is_taken),
    Check("history", "two of system, two of user", several_texts_of_one_role_are_taken),
)  # fmt: skip
