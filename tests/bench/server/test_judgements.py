"""Each rule by answers at its edges: what passes, fails, is not offered or not seen, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from localagent.remote import Server
from localagent_bench.server import hearing, of_answers, of_calls, of_http, of_streams
from localagent_bench.server.hearing import Heard
from localagent_bench.server.rules import Verdict
from localagent_bench.server.target import MeasuredServer
from tests.bench.server.test_rules import ERROR, answer, choices, streamed


class Scripted:
    """A probe whose answers are known: the same one to everything, or one after the other to the same request."""

    def __init__(self, *answers: Heard, streams: Heard | None = None, context: int | None = None) -> None:
        self.target = MeasuredServer("t", Server.at("http://127.0.0.1:9", None, 5), "m", context)
        self.answers, self.streams = list(answers), streams
        self.asked: list[dict[str, Any]] = []

    def chat(self, **fields: Any) -> Heard:
        self.asked.append(fields)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    call = post = chat

    def stream(self, **fields: Any) -> Heard:
        self.asked.append(fields)
        return self.streams or self.chat()

    def get(self, path: str) -> Heard:
        return self.chat(path=path)


def saying(text: Any, finish: str = "stop", **more: Any) -> Heard:
    return answer(choices({"message": {"content": text}, "finish_reason": finish}) | more)


def limited(finish: str, written: Any) -> Heard:
    return saying("x", finish, usage={"completion_tokens": written})


def said_in(*texts: str) -> Heard:
    return streamed(*(choices({"delta": {"content": text}}) for text in texts), "[DONE]")


def calling(*names: str, finish: str = "tool_calls", **more: Any) -> Heard:
    calls = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for at, name in enumerate(names)
    ]
    return answer(
        choices({"message": {"content": None, "tool_calls": calls, **more}, "finish_reason": finish})
    )


def entries(*each: Any, finish: str = "tool_calls") -> Heard:
    told = [choices({"delta": {"tool_calls": [entry]}}) for entry in each]
    return streamed(*told, choices({"delta": {}, "finish_reason": finish}))


PIECE = {"index": 0, "id": "c0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
WRONG = answer(ERROR, 404)
A, B = of_answers, of_calls

JUDGED: list[tuple[Any, Scripted, str, str]] = [
    (of_http.models_are_listed, Scripted(answer({"object": "list", "data": [{"id": i} for i in "abcd"]})), "passes", "a, b, c"),
    (of_http.a_model_is_described, Scripted(answer({"object": "list", "data": []})), "not seen", "the list is empty"),
    *((of_http.a_model_is_described, Scripted(answer({"object": "list", "data": [{"id": "a/b"}]}), answer(ERROR, status)),
       "not offered", f"{status}: too long") for status in (404, 405, 501)),
    (of_http.a_model_is_described, Scripted(answer({"object": "list", "data": [{"id": "a"}]}), answer(ERROR, 500)), "fails", "500: too long"),
    (of_http.an_unknown_path_is_an_error, Scripted(answer(ERROR, 405)), "fails", "405: too long"),
    (of_http.a_wrong_method_is_an_error, Scripted(WRONG), "passes", "404: too long"),
    (of_http.a_wrong_method_is_an_error, Scripted(answer(ERROR, 406)), "fails", "406: too long"),
    (of_http.an_unknown_model_is_an_error, Scripted(answer({}), answer({"object": "list", "data": [{"id": "a"}]})), "passes",
     "the one model answers to any name"),
    (of_http.an_unknown_model_is_an_error, Scripted(answer({}), answer({"object": "list", "data": [{"id": "a"}, {"id": "b"}]})),
     "fails", "it answers, and serves 2 models"),
    (of_http.too_long_a_prompt_is_an_error_with_both_numbers, Scripted(answer({"usage": {"prompt_tokens": 20}}), context=10),
     "not seen", "a prompt of 20 tokens fits"),
    (of_http.too_long_a_prompt_is_an_error_with_both_numbers, Scripted(answer({"usage": {"prompt_tokens": 19}}), context=10),
     "fails", "20 words were answered as if they fitted; it counts 19 tokens"),
    (of_http.too_long_a_prompt_is_an_error_with_both_numbers, Scripted(answer({"usage": 7})), "fails",
     "300,000 words were answered as if they fitted; it counts None tokens"),
    (of_http.too_long_a_prompt_is_an_error_with_both_numbers,
     Scripted(answer({"error": {"message": "1,024 of 12", "type": "t", "n": 123456789}}, 400)), "passes", "400: 1,024 of 12"),
    (of_http.too_long_a_prompt_is_an_error_with_both_numbers,
     Scripted(answer({"error": {"message": "1024 of 99", "type": "t", "at": 1234567890}}, 400)), "fails",
     "without the length of the prompt and what fits: 400: 1024 of 99"),
    (of_http.several_choices_are_given_or_refused, Scripted(answer(choices({}, {}))), "passes", "2 choices"),
    (of_http.several_choices_are_given_or_refused, Scripted(answer({})), "fails", "n = 2 is accepted, and 0 choices come"),
    (A.a_limit_ends_with_length, Scripted(limited("length", 3)), "passes", "length"),
    (A.a_limit_ends_with_length, Scripted(limited("length", None)), "passes", "length"),
    (A.a_limit_ends_with_length, Scripted(limited("stop", 2)), "not seen", "the model wrote 2 tokens"),
    (A.a_limit_ends_with_length, Scripted(limited("stop", 3)), "fails", "finish_reason stop, 3 tokens of 3"),
    (A.a_limit_ends_with_length, Scripted(limited("length", 4)), "fails", "finish_reason length, 4 tokens of 3"),
    (A.a_limit_ends_with_length, Scripted(limited("tool_calls", 2)), "fails", "finish_reason tool_calls, 2 tokens of 3"),
    (A.a_stop_text_ends_and_is_left_out, Scripted(saying("Go a to b"), saying("Go a ")), "passes", "ended before to"),
    (A.a_stop_text_ends_and_is_left_out, Scripted(saying("Go a to b"), saying("Go a to b")), "fails",
     "stop to is not where it ends: Go a to b and 'Go a '"),
    (A.a_stop_text_ends_and_is_left_out, Scripted(saying("Go a to b"), saying("Come"), saying("Went")), "not seen",
     "the likeliest tokens are not the same each time"),
    (A.a_stop_text_ends_and_is_left_out, Scripted(saying("Go a to b"), saying("Come"), saying("Go a to b")), "fails",
     "stop to is not where it ends: Come and 'Go a '"),
    (A.a_stop_text_ends_and_is_left_out, Scripted(saying("Go a to b"), saying("Go a", "length")), "fails", "finish_reason length"),
    (A.a_stop_text_ends_and_is_left_out, Scripted(saying("Go a b c")), "not seen", "the model wrote Go a b c"),
    (A.a_seed_repeats, Scripted(saying("a"), saying("b")), "fails", "the same seed, other words: a and b"),
    (A.a_seed_repeats, Scripted(saying("x" * 50)), "passes", "x" * 39),
    (A.a_json_object_is_given_or_refused, Scripted(saying("{", "length")), "not seen", "the answer was cut before its end"),
    (A.a_json_object_is_given_or_refused, Scripted(saying("x")), "fails", "it is accepted, and the answer is x"),
    (A.a_schema_is_kept_or_refused, Scripted(saying('{"colour": "a", "hot": 1}')), "fails", "the answer does not fit the schema: "),
    (A.a_schema_is_kept_or_refused, Scripted(saying('{"colour": "a"}')), "fails", "the answer does not fit the schema: "),
    (A.a_schema_is_kept_or_refused, Scripted(saying("[]")), "fails", "the answer does not fit the schema: []"),
    (B.a_call_has_its_shape, Scripted(calling("get_time", finish="length")), "not seen", "the call was cut before its end"),
    (B.a_call_has_its_shape, Scripted(calling("get_time", "fly")), "fails", "it calls 'fly'"),
    (B.a_turn_of_calls_ends_with_tool_calls, Scripted(calling("f", finish="stop")), "fails", "finish_reason stop"),
    (B.a_turn_of_calls_ends_with_tool_calls, Scripted(saying("x" * 90)), "not seen", f"the model made no call: {'x' * 59}"),
    (B.a_turn_of_calls_alone_has_null_content, Scripted(calling("f", content="hm")), "passes", "text beside the call"),
    (B.a_turn_of_calls_alone_has_null_content, Scripted(calling("f", content="")), "fails", 'content is ""'),
    (B.entries_have_dense_indices, Scripted(entries(PIECE)), "passes", "1 call"),
    (B.entries_have_dense_indices, Scripted(entries(PIECE, PIECE | {"index": 1}, PIECE)), "passes", "2 calls"),
    (B.entries_have_dense_indices, Scripted(entries(PIECE, PIECE | {"index": 2})), "fails", "an entry has the index 2, after 1 calls"),
    (B.entries_have_dense_indices, Scripted(entries(PIECE | {"index": -1})), "fails", "an entry has the index -1, after 0 calls"),
    (B.a_call_is_announced_once, Scripted(entries(PIECE, {"index": 0, "id": "c0", "function": {}})), "passes", "id, type and name"),
    (B.a_stream_of_calls_ends_with_tool_calls, Scripted(entries(PIECE, finish="length")), "not seen", "the call was cut before its end"),
    (B.pieces_join_to_the_whole, Scripted(entries(PIECE), calling("f")), "passes", "1 piece"),
    (B.pieces_join_to_the_whole, Scripted(entries(PIECE, {"index": 0, "function": {}}, {"index": 0}), calling("f")), "passes", "1 piece"),
    (B.pieces_join_to_the_whole, Scripted(entries(PIECE), calling("g")), "fails", "the stream and the answer differ: "),
    (B.pieces_join_to_the_whole, Scripted(entries(PIECE), calling("g"), calling("h")), "not seen", "the likeliest tokens are not"),
    (B.none_forbids_calls, Scripted(calling("f")), "fails", "it calls f"),
    (B.required_forces_a_call, Scripted(saying("hm", "length")), "not seen", "the answer was cut before its end"),
    (B.required_forces_a_call, Scripted(saying("hm")), "fails", "it is accepted, and the answer is hm"),
    (B.required_forces_a_call, Scripted(calling("f")), "passes", "1 calls"),
    (B.a_named_tool_is_called, Scripted(saying("hm", "length")), "not seen", "the answer was cut before its end"),
    (B.a_named_tool_is_called, Scripted(saying("hm")), "fails", "get_time was demanded, and it calls []"),
    (B.a_named_tool_is_called, Scripted(calling("get_time", "f")), "fails", "get_time was demanded, and it calls "),
    (B.a_named_tool_is_called, Scripted(calling("get_time", "get_time")), "passes", "get_time"),
    (B.one_call_where_no_more_are_allowed, Scripted(calling("f", "g")), "fails", "2 calls"),
    (of_streams.a_stream_ends_with_done, Scripted(streams=streamed(choices(), "[DONE]", choices())), "fails", "something comes after [DONE]"),
    (of_streams.a_stream_ends_with_done, Scripted(streams=streamed(choices(), "[DONE]", "[DONE]")), "fails", "something comes after [DONE]"),
    (of_streams.a_stream_ends_with_done, Scripted(streams=streamed(choices())), "fails", "there is no [DONE]"),
    (of_streams.a_stream_ends_with_done, Scripted(streams=streamed(choices(), "[DONE]")), "passes", "1 chunks"),
    (of_streams.a_stream_says_what_the_answer_says, Scripted(saying("ab"), streams=said_in("a", "b")), "passes", "ab"),
    (of_streams.a_stream_says_what_the_answer_says, Scripted(saying("ac"), streams=said_in("a", "b")), "fails",
     "the stream and the answer differ: ab and ac"),
    (of_streams.a_stream_is_utf8, Scripted(saying("a"), streams=said_in("a")), "passes", "UTF-8, of plain ASCII"),
    (of_streams.a_stream_is_utf8, Scripted(saying("a"), streams=said_in("\ufffd")), "fails", "a character was cut where two chunks meet"),
    (of_streams.a_stream_is_utf8, Scripted(streams=replace(said_in("a"), lines=[b'data: {"choices": []}\n', b"\xff\n"], times=[0.0, 1.0])),
     "fails", "the body is no UTF-8: invalid start byte"),
    (of_streams.usage_comes_last_when_asked_for,
     Scripted(streams=streamed(*(choices() | {"usage": {}} for _ in range(7)))), "fails", "usage is in chunks 0, 1, 2, 3, 4 of 7"),
    (of_streams.usage_comes_last_when_asked_for, Scripted(streams=streamed(choices())), "fails", "usage is nowhere"),
    (of_streams.a_long_prompt_does_not_look_dead, Scripted(streams=answer(ERROR, 400)), "not seen", "the prompt is too long: 400: too long"),
    (of_streams.a_long_prompt_does_not_look_dead, Scripted(streams=answer(ERROR, 499)), "not seen", "the prompt is too long: 499: too long"),
    (of_streams.a_long_prompt_does_not_look_dead, Scripted(streams=answer(ERROR, 500)), "fails", "500: too long"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "scripted_", "outcome", "says"), JUDGED, ids=[each[0].__name__ for each in JUDGED]
)
def test_a_rule_is_judged_by_what_is_answered(
    check: Any, scripted_: Scripted, outcome: str, says: str
) -> None:
    try:
        found, seen = "passes", check(scripted_)
    except Verdict as verdict:
        found, seen = verdict.outcome, str(verdict)
    assert (found, seen.replace("'", "")[: len(says)]) == (outcome, says.replace("'", ""))


@pytest.mark.parametrize(
    ("times", "lines", "outcome", "says"),
    [
        ((1.0, 2.0), (b"data: {}", b"data: {}"), "not seen", "it took only 2.0 s"),
        ((1.0, 2.0), (b": here", b"data: {}"), "passes", "at most 1.0 s without a byte"),
        ((15.0, 16.0), (b"data: {}", b"data: {}"), "passes", "at most 15.0 s without a byte"),
        ((1.0, 16.5), (b": here", b"data: {}"), "fails", "16 s without a byte"),
        ((15.5, 16.0), (b"data: {}", b"data: {}"), "fails", "16 s without a byte"),
    ],
)
def test_a_server_that_says_nothing_for_long_looks_dead(
    times: Any, lines: Any, outcome: str, says: str
) -> None:
    told = [line.replace(b"{}", b'{"choices": []}') + b"\n" for line in lines]
    heard = Heard(200, "text/event-stream", told, list(times))
    for context, words in ((None, 2666), (900, 300), (10**6, 6000)):
        asking = Scripted(streams=heard, context=context)
        try:
            found, seen = "passes", of_streams.a_long_prompt_does_not_look_dead(asking)  # type: ignore[arg-type]
        except Verdict as verdict:
            found, seen = verdict.outcome, str(verdict)
        assert (found, seen) == (outcome, says)
        (body,) = asking.asked
        assert len(body["messages"][0]["content"].split()) == words // 3 * 3
        assert body["max_tokens"] == 2


def test_what_is_kept_of_one_answer_is_bounded() -> None:
    assert (hearing._MOST_LINES, hearing._MOST_BYTES, of_streams._SILENCE) == (100_000, 1 << 28, 15)
