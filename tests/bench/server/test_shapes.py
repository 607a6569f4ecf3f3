"""What fails a check, one change of a right answer at a time, and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from localagent.remote import Server
from localagent_bench.server import of_answers, of_calls, of_http, of_streams
from localagent_bench.server.hearing import Caller
from localagent_bench.server.rules import Fails, Probe, Verdict
from localagent_bench.server.target import MeasuredServer
from tests.bench.server.imitation import CONTEXT, KEY, Handler, Turn, imitation

Edit = Callable[[Any], object]
Check = Callable[[Probe], str]


def judged(check: Check, *faults: str) -> Verdict:
    """What the check says of the server as it is patched now."""
    with imitation(*faults) as server, pytest.raises(Verdict) as verdict:
        target = MeasuredServer("imitation", Server.at(server.url, KEY, 5), "words", CONTEXT)
        check(Probe(target, Caller(target.server, 10)))
    return verdict.value


def fails(verdict: Verdict, says: str) -> bool:
    return isinstance(verdict, Fails) and re.search(says, str(verdict)) is not None


# -- whole answers ----------------------------------------------------------------------------------------


def first(answer: dict[str, Any]) -> dict[str, Any]:
    return answer["choices"][0]


def entry(answer: dict[str, Any]) -> dict[str, Any]:
    return first(answer)["logprobs"]["content"][0]


SHAPE, LOGPROBS, SCHEMA = (
    of_answers.an_answer_has_its_shape,
    of_answers.logprobs_are_given_or_refused,
    of_answers.a_schema_is_kept_or_refused,
)
ANSWERS: dict[str, tuple[Check, Edit, str]] = {
    "models of no list": (of_http.models_are_listed, lambda told: told.update(object="x"), 'no object "list"'),
    "models in no list": (of_http.models_are_listed, lambda told: told.update(data={}), 'no object "list"'),
    "no id of a model": (of_http.models_are_listed, lambda told: told["data"][0].pop("id"), "without an id"),
    "a time in words": (SHAPE, lambda told: told.update(created="now"), "wrong type: created"),
    "no model": (SHAPE, lambda told: told.pop("model"), "wrong type: model"),
    "another object": (SHAPE, lambda told: told.update(object="chat"), "object chat, index 0"),
    "another index": (SHAPE, lambda told: first(told).update(index=1), "index 1"),
    "another role": (SHAPE, lambda told: first(told)["message"].update(role="user"), "the message is"),
    "content of parts": (SHAPE, lambda told: first(told)["message"].update(content=[]), "the message is"),
    "no message": (SHAPE, lambda told: first(told).pop("message"), "no message in the answer"),
    "no choice": (SHAPE, lambda told: told.update(choices=[]), "no choice in the answer"),
    "more than the limit": (
        of_answers.a_limit_ends_with_length,
        lambda told: told["usage"].update(completion_tokens=4),
        "finish_reason length, 4 tokens of 3",
    ),
    "another end": (
        of_answers.a_stop_text_ends_and_is_left_out,
        lambda told: first(told).update(finish_reason="length"),
        "finish_reason length",
    ),
    "no token": (LOGPROBS, lambda told: entry(told).pop("token"), "an entry without a token"),
    "more than certain": (LOGPROBS, lambda told: entry(told).update(logprob=0.5), "a logprob of 0.5"),
    "no score": (LOGPROBS, lambda told: entry(told).update(logprob=None), "a logprob of None"),
    "one alternative": (LOGPROBS, lambda told: entry(told)["top_logprobs"].pop(), "1 alternatives of 2"),
    "no alternatives": (LOGPROBS, lambda told: entry(told).pop("top_logprobs"), "no alternatives of 2"),
    "a number for a text": (
        SCHEMA,
        lambda told: first(told)["message"].update(content='{"colour": 7, "hot": true}'),
        "does not fit the schema",
    ),
    "a key too many": (
        SCHEMA,
        lambda told: first(told)["message"].update(content='{"colour": "red", "hot": true, "x": 1}'),
        "does not fit the schema",
    ),
    "a list for an object": (
        of_answers.a_json_object_is_given_or_refused,
        lambda told: first(told)["message"].update(content="[1]"),
        "the answer is no object",
    ),
    "an end of calls": (
        of_calls.none_forbids_calls,
        lambda told: first(told).update(finish_reason="tool_calls"),
        "finish_reason is tool_calls, without a call",
    ),
    "no content": (
        of_calls.a_turn_of_calls_alone_has_null_content,
        lambda told: first(told)["message"].pop("content"),
        "content is missing",
    ),
    "more tokens than asked for": (
        of_streams.usage_is_right,
        lambda told: told["usage"].update(completion_tokens=25, total_tokens=told["usage"]["prompt_tokens"] + 25),
        "25 tokens, and 24 were the most",
    ),
    "another prompt than streamed": (
        of_streams.usage_is_right,
        lambda told: told["usage"].update(prompt_tokens=99, total_tokens=99 + told["usage"]["completion_tokens"]),
        "tokens of a prompt, streamed, and 99",
    ),
    "no prompt": (
        of_streams.usage_is_right,
        lambda told: told["usage"].update(prompt_tokens=0, total_tokens=told["usage"]["completion_tokens"]),
        r"0 \+ 18 is not 18",
    ),
    "a sum of another type": (
        of_streams.usage_is_right,
        lambda told: told["usage"].update(total_tokens="many"),
        "usage is",
    ),
}  # fmt: skip
"""Of answers to all requests: the rule that is broken, how, and what is said of it."""


@pytest.mark.parametrize("what", ANSWERS)
def test_a_whole_answer_of_another_shape_fails(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check, edit, says = ANSWERS[what]
    send = Handler.send

    def edited(handler: Handler, status: int, value: Any, *kind: str) -> None:
        if status == 200 and isinstance(value, dict):
            edit(value)
        send(handler, status, value, *kind)

    monkeypatch.setattr(Handler, "send", edited)
    verdict = judged(check)
    assert fails(verdict, says), verdict


@pytest.mark.parametrize("check", [SHAPE, of_streams.a_stream_is_an_event_stream])
def test_another_content_type_fails(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    head = Handler.send_header

    def edited(handler: Handler, name: str, value: str) -> None:
        head(handler, name, "text/html" if name == "content-type" else value)

    monkeypatch.setattr(Handler, "send_header", edited)
    verdict = judged(check)
    assert fails(verdict, "^text/html$"), verdict


# -- streams ----------------------------------------------------------------------------------------------

TOGETHER, ROLE, END, USAGE, REASONING = (
    of_streams.chunks_belong_together,
    of_streams.the_role_comes_once_and_first,
    of_streams.the_end_is_a_chunk_of_its_own,
    of_streams.usage_comes_last_when_asked_for,
    of_streams.reasoning_has_one_name,
)


def delta(chunk: dict[str, Any]) -> dict[str, Any]:
    return first(chunk)["delta"]


def end(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The chunk that has the finish_reason."""
    return next(chunk for chunk in chunks if chunk["choices"] and first(chunk)["finish_reason"])


STREAMS: dict[str, tuple[Check, Edit, str]] = {
    "no list of choices": (TOGETHER, lambda chunks: chunks[1].update(choices={}), "chunk 2 is no chunk"),
    "no delta": (TOGETHER, lambda chunks: first(chunks[1]).pop("delta"), "a choice of chunk 2 has no delta"),
    "another time": (TOGETHER, lambda chunks: chunks[2].update(created=2), "created is 1, 2"),
    "another model": (TOGETHER, lambda chunks: chunks[2].update(model="x"), "model is words, x"),
    "times in words": (TOGETHER, lambda chunks: [each.update(created="n") for each in chunks], "created is n"),
    "another object": (TOGETHER, lambda chunks: [each.update(object="x") for each in chunks], "object is x"),
    "no role": (ROLE, lambda chunks: delta(chunks[0]).clear(), "there is no role"),
    "another role": (ROLE, lambda chunks: delta(chunks[0]).update(role="user"), "the first delta is"),
    "text beside the role": (ROLE, lambda chunks: delta(chunks[0]).update(content="a"), "the first delta is"),
    "two ends": (END, lambda chunks: chunks.append(end(chunks)), "2 chunks have a finish_reason"),
    "no end": (END, lambda chunks: end(chunks)["choices"][0].update(finish_reason=None), "0 chunks have"),
    "text after the end": (END, lambda chunks: chunks.append(chunks[2]), "follow the one with finish_reason"),
    "usage beside the end": (
        USAGE,
        lambda chunks: (chunks.pop(), end(chunks).update(usage={"prompt_tokens": 1})),
        "has choices",
    ),
    "usage before the end": (
        USAGE,
        lambda chunks: chunks.insert(1, chunks.pop()),
        "usage is in chunks 1 of",
    ),
    "usage that is no object": (USAGE, lambda chunks: chunks[-1].update(usage=7), "usage is 7"),
    "a chunk without choices": (
        of_streams.usage_is_not_sent_unasked,
        lambda chunks: chunks[1].update(choices=[]),
        "a chunk without choices",
    ),
    "reasoning and text": (
        REASONING,
        lambda chunks: delta(chunks[1]).update(content="a"),
        "holds both reasoning and content",
    ),
    "a marker": (REASONING, lambda chunks: delta(chunks[2]).update(content="<think>"), "with its marker"),
    "an end of calls with text": (
        of_calls.a_stream_of_calls_ends_with_tool_calls,
        lambda chunks: delta(end(chunks)).update(content="a"),
        "finish_reason tool_calls, delta",
    ),
}  # fmt: skip
"""The same of the chunks of a stream."""


@pytest.mark.parametrize("what", STREAMS)
def test_a_stream_of_another_shape_fails(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check, edit, says = STREAMS[what]
    made = Turn._chunks

    def edited(turn: Turn) -> Iterator[dict[str, Any]]:
        chunks = list(made(turn))
        edit(chunks)
        yield from chunks

    monkeypatch.setattr(Turn, "_chunks", edited)
    verdict = judged(check)
    assert fails(verdict, says), verdict


# -- calls ------------------------------------------------------------------------------------------------

CALL, DENSE, ONCE, JOIN = (
    of_calls.a_call_has_its_shape,
    of_calls.entries_have_dense_indices,
    of_calls.a_call_is_announced_once,
    of_calls.pieces_join_to_the_whole,
)
CALLS: dict[str, tuple[Check, Edit, str]] = {
    "no list": (CALL, lambda calls: calls.insert(0, "get_weather"), "tool_calls is"),
    "the same id twice": (CALL, lambda calls: calls[1].update(id="call_0"), "the ids are"),
    "an id that is no text": (CALL, lambda calls: calls[0].update(id=7), "the ids are"),
    "no type": (CALL, lambda calls: calls[0].pop("type"), "a call is"),
    "another type": (CALL, lambda calls: calls[0].update(type="tool"), "a call is"),
    "no function": (CALL, lambda calls: calls[1].pop("function"), "a call is"),
    "another name": (CALL, lambda calls: calls[1]["function"].update(name="fly"), "it calls 'fly'"),
    "half of the arguments": (CALL, lambda calls: calls[0]["function"].update(arguments='{"c'), "no JSON"),
    "a list of arguments": (CALL, lambda calls: calls[0]["function"].update(arguments="[1]"), "no object"),
}
"""Of the calls of a whole answer."""
ENTRIES: dict[str, tuple[Check, Edit, str]] = {
    "no list": (DENSE, lambda entries: entries.insert(0, "get_weather"), "tool_calls is"),
    "a gap": (DENSE, lambda entries: entries[0].update(index=2 * entries[0]["index"]), "index 2, after 1"),
    "a truth for a number": (DENSE, lambda entries: entries[0].update(index=False), "index False, after 0"),
    "no function": (ONCE, lambda entries: entries[0].pop("function"), "without a function"),
    "no id": (ONCE, lambda entries: entries[0].pop("id", None), "lacks its id"),
    "no type": (ONCE, lambda entries: entries[0].pop("type", None), "lacks its id"),
    "no name": (ONCE, lambda entries: entries[0]["function"].pop("name", None), "lacks its id"),
    "new ids": (ONCE, lambda entries: entries[0].setdefault("id", "call_7"), "the id changes to call_7"),
    "numbers": (JOIN, lambda entries: entries[0]["function"].update(arguments=7), "arguments are no text: 7"),
}
"""The same of the entries of each chunk."""


@pytest.mark.parametrize("what", CALLS)
def test_a_call_of_another_shape_fails(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check, edit, says = CALLS[what]
    made = Turn._calls

    def edited(turn: Turn) -> list[dict[str, Any]]:
        if calls := made(turn):
            edit(calls)
        return calls

    monkeypatch.setattr(Turn, "_calls", edited)
    verdict = judged(check)
    assert fails(verdict, says), verdict


@pytest.mark.parametrize("what", ENTRIES)
def test_an_entry_of_another_shape_fails(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check, edit, says = ENTRIES[what]
    made = Turn._deltas

    def edited(turn: Turn) -> Iterator[dict[str, Any]]:
        for each in made(turn):
            if "tool_calls" in each:
                edit(each["tool_calls"])
            yield each

    monkeypatch.setattr(Turn, "_deltas", edited)
    verdict = judged(check)
    assert fails(verdict, says), verdict


def test_a_forbidden_call_is_named() -> None:
    verdict = judged(of_calls.none_forbids_calls, "calls on none")
    assert fails(verdict, "^it calls get_weather$"), verdict


# -- no occasion ------------------------------------------------------------------------------------------

SILENT, CUT, CALLLESS = (
    {"_words": lambda turn: []},
    {"finish": property(lambda turn: "length")},
    {"_calls": lambda turn: []},
)
UNSEEN: dict[str, tuple[dict[str, Any], str, list[Check]]] = {
    "no text": (
        SILENT,
        "the model wrote nothing",
        [of_answers.a_seed_repeats, LOGPROBS, of_streams.a_stream_says_what_the_answer_says],
    ),
    "one word": ({"_words": lambda turn: ["Hi"]}, "the model wrote Hi", [of_answers.a_stop_text_ends_and_is_left_out]),
    "two words": ({"_words": lambda turn: ["a", "b"]}, "wrote 2 tokens", [of_answers.a_limit_ends_with_length]),
    "half of an object": (
        CUT | {"_words": lambda turn: ['{"colour']},
        "the answer was cut before its end",
        [SCHEMA, of_answers.a_json_object_is_given_or_refused],
    ),
    "half of a call": (
        CUT,
        "the call was cut before its end",
        [CALL, JOIN, of_calls.a_turn_of_calls_ends_with_tool_calls, of_calls.a_stream_of_calls_ends_with_tool_calls],
    ),
    "no call": (
        CALLLESS,
        "the model made no call",
        [CALL, DENSE, ONCE, JOIN, of_calls.one_call_where_no_more_are_allowed],
    ),
    "no call yet": (
        CALLLESS | CUT,
        "the answer was cut before its end",
        [of_calls.required_forces_a_call, of_calls.a_named_tool_is_called],
    ),
    "no reasoning": (
        {"_deltas": lambda turn: iter([{"role": "assistant"}, {"content": "a"}])},
        "the model did not reason",
        [REASONING],
    ),
    "no text in bytes": (
        {"_words": lambda turn: ["\ufffd"]},
        "bytes that are no text",
        [of_streams.a_stream_is_utf8],
    ),
}  # fmt: skip
"""What the model does instead, what is said of it, and the rules that are not judged by that."""


@pytest.mark.parametrize(
    ("what", "check"), [(what, each) for what, (_, _, checks) in UNSEEN.items() for each in checks]
)
def test_a_rule_without_an_occasion_is_not_judged(
    what: str, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, says, _ = UNSEEN[what]
    for name, value in model.items():
        monkeypatch.setattr(Turn, name, value)
    verdict = judged(check)
    assert (verdict.outcome, says in str(verdict)) == ("not seen", True), verdict
