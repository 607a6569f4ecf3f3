"""Servers that are not ours: what each leaves out or writes otherwise is read all the same, or is a clear error."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import time
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.agent import Agent
from localagent.chat_model import UNKNOWN_CONTEXT
from localagent.errors import (
    ContextOverflow,
    LocalAgentError,
    ServerFailed,
    ServerRefused,
    ServerUnreachable,
    StreamBroken,
    UnknownModel,
    Unsupported,
    UsageError,
)
from localagent.messages import AssistantMessage, Prices, ToolCallPart
from localagent.prompt.request import RequestWarning
from localagent.remote import RemoteModel, Server
from localagent.remote.turn import RemoteTurn
from localagent.tools import tool
from localagent.turn import BrokenOff, Done
from parsers import ArgumentEnd, CallEnd, CallStart, Malformed, Reasoning, Text
from tests.remote.scripted import DONE, HANG, chunk, event, head, scripted, stream, whole
from tests.server.wires.turns import TOOL

HELLO = stream(
    chunk({"role": "assistant", "content": "Hel"}), chunk({"content": "lo"}), chunk({}, "stop"), DONE
)


def call(piece: str | None = None, index: int | None = 0, **fields: Any) -> dict[str, Any]:
    function = {"name": fields.pop("name", None), "arguments": piece}
    place = {} if index is None else {"index": index}
    return {
        "tool_calls": [{**place, **fields, "function": {k: v for k, v in function.items() if v is not None}}]
    }


def answer(*pieces: bytes, **options: Any) -> AssistantMessage:
    with scripted(list(pieces)) as server, RemoteModel.open(server.url) as model:
        return model.respond("Go.", tools=[TOOL], **options)


# -- answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, 1, 7, 64])
def test_a_stream_however_it_is_cut(size: int | None) -> None:
    used = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}
    message = answer(
        *stream(
            b": OPENROUTER PROCESSING\r\n\r\n",
            chunk({"role": "assistant", "content": ""}),
            chunk({"reasoning": "Hm \u00e9."}),
            chunk({"content": "Wait \U0001f600. "}),
            chunk(call("", id="c1", name="f", type="function")),
            chunk(call('{"a": "x')),
            chunk(call('y"}')),
            chunk(call('{"a": 2}', 1, id="c2", name="f")),
            chunk({}, "tool_calls"),
            event({"choices": [], "usage": used}),
            DONE,
            size=size,
        )
    )
    assert (message.reasoning, message.text) == ("Hm \u00e9.", "Wait \U0001f600. ")
    assert [(each.id, each.arguments) for each in message.tool_calls] == [
        ("c1", {"a": "xy"}),
        ("c2", {"a": 2}),
    ]
    assert (message.stop_reason, message.model, message.id) == ("tool_calls", "theirs", "chatcmpl-1")
    assert (message.usage.input, message.usage.output, message.usage.cache_read) == (9, 4, 5)
    assert message.timings.decode > 0


CALLS: dict[str, tuple[list[dict[str, Any]], list[Any]]] = {
    "no arguments": ([call("", id="c", name="f")], [("f", {})]),
    "no arguments at all": ([call(None, id="c", name="f")], [("f", {})]),
    "an object": ([{"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}]}], [("f", {"a": 1})]),
    "without an index": ([call('{"a": 1}', None, id="c", name="f"), call('{"a": 2}', None, id="d", name="f")], [("f", {"a": 1}), ("f", {"a": 2})]),
    "without an index, in pieces": ([call('{"a":', None, id="c", name="f"), call("1}", None)], [("f", {"a": 1})]),
    "all with index 0": ([call('{"a": 1}', id="c", name="f"), call('{"a": 2}', id="d", name="g")], [("f", {"a": 1}), ("g", {"a": 2})]),
    "the name again and again": ([call('{"a"', id="c", name="f"), call(": 1}", id="c", name="f")], [("f", {"a": 1})]),
    "in turns": ([call("", 0, id="c", name="f"), call("", 1, id="d", name="g"), call('{"a"', 0), call('{"b"', 1), call(":1}", 0), call(":2}", 1)], [("f", {"a": 1}), ("g", {"b": 2})]),
    "loose JSON": ([call("{'a': True}", id="c", name="f")], [("f", {"a": True})]),
    "cut": ([call('{"a": 1, "b', id="c", name="f")], ["truncated"]),
    "no object": ([call("[1]", id="c", name="f")], ["not_a_call"]),
    "more than an object": ([call('{"a": 1}} {"a": 2}', id="c", name="f")], ["syntax"]),
    "too large a number": ([call('{"a": 1e999}', id="c", name="f")], ["not_finite"]),
    "a broken one and a good one": ([call('{"a": ', 0, id="c", name="f"), call('{"b": 2}', 1, id="d", name="g")], ["truncated", ("g", {"b": 2})]),
}  # fmt: skip


@pytest.mark.parametrize(("deltas", "expected"), CALLS.values(), ids=[*CALLS])
def test_calls_however_they_are_written(deltas: list[dict[str, Any]], expected: list[Any]) -> None:
    message = answer(*stream(*map(chunk, deltas), chunk({}, "tool_calls"), DONE))
    found = [
        (part.name, part.arguments) if isinstance(part, ToolCallPart) else part.reason
        for part in message.content
    ]
    assert found == expected
    assert message.stop_reason == ("tool_calls" if message.tool_calls else "stop")
    assert [part.id for part in message.content] == ["c", "d"][: len(found)]  # type: ignore[union-attr]


def test_partial_arguments_come_as_soon_as_they_are_there() -> None:
    pieces = [*stream(chunk(call('{"a": "x", "b": [1', id="c", name="f"))), HANG]
    with scripted(pieces) as server, RemoteModel.open(server.url) as model:
        events = model.stream("Go.", tools=[TOOL])
        assert isinstance(next(events), CallStart)
        ended = next(each for each in events if isinstance(each, ArgumentEnd))
        assert (ended.key, ended.value) == ("a", "x")
        events.close()
        assert server.left.wait(60)


def test_a_call_that_the_limit_cuts_off_is_malformed() -> None:
    message = answer(*stream(chunk(call('{"a": "x", "b": "ha', id="c", name="f")), chunk({}, "length"), DONE))
    assert message.stop_reason == "length"
    (part,) = message.malformed_tool_calls
    assert (part.reason, part.name, part.partial, part.id) == ("truncated", "f", {"a": "x"}, "c")


def test_a_server_that_does_not_stream() -> None:
    said = {
        "role": "assistant",
        "content": "Hello",
        "reasoning_content": "Hm.",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
    message = answer(*whole({"choices": [{"index": 0, "message": said, "finish_reason": "tool_calls"}]}))
    assert (message.text, message.reasoning, message.tool_calls[0].arguments) == ("Hello", "Hm.", {"a": 1})


def test_what_a_provider_adds_to_a_call_goes_back_with_it() -> None:
    signed = {"google": {"thought_signature": "abc"}}
    first = stream(
        chunk(call('{"a": 1}', id="c", name="f", extra_content=signed)), chunk({}, "tool_calls"), DONE
    )

    @tool
    def f(a: int) -> str:
        """Does f."""
        return "done"

    with scripted(first, HELLO) as server, RemoteModel.open(server.url) as model:
        assert Agent(model, [f]).respond("Go.").text == "Hello"
    sent = server.chats[1]["messages"]
    assert sent[1]["tool_calls"][0]["extra_content"] == signed
    assert sent[2] == {"role": "tool", "tool_call_id": "c", "content": "done"}


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"), ("whatever", "error")],
)
def test_stop_reasons(reason: str, expected: str) -> None:
    message = answer(*stream(chunk({"content": "a"}), chunk({}, reason), DONE))
    assert message.stop_reason == expected
    assert (message.error is None) == (expected != "error")


def test_half_a_surrogate_pair_is_text_all_the_same() -> None:
    message = answer(
        *stream(event('{"choices": [{"delta": {"content": "a\\ud800b"}, "finish_reason": "stop"}]}'))
    )
    assert message.text == "a\\ud800b"


def test_a_stream_may_end_without_done() -> None:
    assert answer(*stream(chunk({"content": "a"}, "stop"))).text == "a"


def test_log_probabilities() -> None:
    score = {
        "token": "a",
        "logprob": -0.5,
        "top_logprobs": [{"token": "b", "logprob": -1}, {"token": "c"}, 3],
    }
    with scripted(stream(chunk({"content": "a"}, "stop", logprobs={"content": [score, {}, 1]}))) as server:
        *_, done = RemoteModel.open(server.url).stream("Go.", logprobs=2)
    assert isinstance(done, Done)
    (one,) = done.logprobs
    assert (one.token, one.text, one.alternatives) == (-0.5, "a", (("b", -1.0),))  # type: ignore[attr-defined]


# -- requests ---------------------------------------------------------------------------------------------


def test_nothing_is_sent_that_was_not_asked_for() -> None:
    with scripted(HELLO) as server, RemoteModel.open(server.url) as model:
        model.respond("Go.")
        model.respond(
            "Go.", system="Be kind.", tools=[TOOL["function"]], tool_choice="f", parallel_tool_calls=False,
            strict=True, temperature=0.5, top_k=3, stop="x", logprobs=1, max_tokens=5, thinking="low",
        )  # fmt: skip
        model.respond(
            "Go.", thinking=False, thinking_budget=None, response_format={"type": "json_object"}, stop=None
        )
    plain, full, last = server.chats
    assert plain == {
        "model": "theirs",
        "messages": [{"role": "user", "content": "Go."}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert full["messages"][0] == {"role": "system", "content": "Be kind."}
    assert full["tools"][0]["function"] == {**TOOL["function"], "strict": True}  # type: ignore[dict-item]
    assert full["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    wanted = {
        "temperature": 0.5,
        "top_k": 3,
        "stop": ["x"],
        "logprobs": True,
        "top_logprobs": 1,
        "max_tokens": 5,
    }
    assert full | wanted | {"reasoning_effort": "low", "parallel_tool_calls": False} == full
    assert last["chat_template_kwargs"] == {"enable_thinking": False}
    assert last["response_format"] == {"type": "json_object"}
    assert "stop" not in last


def test_the_defaults_of_a_remote_model_are_its_own() -> None:
    with scripted(HELLO) as server, RemoteModel.open(server.url, sampling={"temperature": 0.3}) as model:
        model.respond("Go.")
        model.respond("Go.", temperature=0.9)
    assert [each["temperature"] for each in server.chats] == [0.3, 0.9]


@pytest.mark.parametrize("how", ["stream", "astream"])
def test_a_server_is_not_asked_to_continue_a_message(how: str) -> None:
    with scripted(HELLO) as server, RemoteModel.open(server.url) as model:
        with pytest.raises(Unsupported, match="is not asked to continue a message: few servers can"):
            getattr(model, how)([AssistantMessage.text("He")], continue_final_message=True)
        assert server.chats == []


def test_what_an_answer_costs() -> None:
    used = event({"choices": [], "usage": {"prompt_tokens": 2_000_000, "completion_tokens": 1_000_000}})
    with scripted(stream(chunk({"content": "a"}, "stop"), used, DONE)) as server:
        cost = RemoteModel.open(server.url, prices=Prices(input=1, output=7)).respond("Go.").usage.cost
        assert RemoteModel.open(server.url).respond("Go.").usage.cost != cost
    assert cost is not None and (cost.input, cost.output) == (2, 7)


def test_the_key_goes_in_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALAGENT_API_KEY", " k-1\n")
    with scripted(HELLO) as server:
        RemoteModel.open(server.url).respond("Go.")
        RemoteModel.open(server.url, key="k-2").respond("Go.")
    assert [each.headers["authorization"] for each in server.asked] == ["Bearer k-1"] * 2 + ["Bearer k-2"] * 2


@pytest.mark.parametrize(
    ("models", "context"),
    [
        ([{"id": "a", "max_model_len": 4096}], 4096),
        ([{"id": "a", "meta": {"n_ctx": 512}}], 512),
        ([{"id": "a", "context_length": 8192}, {"id": "b"}], 8192),
        ([{"id": "a", "context_length": None}], UNKNOWN_CONTEXT),
        ([{"id": "a", "context_length": 0, "max_model_len": True, "context_window": 207}], 207),
        ([{"id": "a", "context_length": 205, "meta": {"n_ctx": 512}}], 205),
        ([{"id": "a", "context_length": "many"}, 3, {"id": "\x1b[31m"}], UNKNOWN_CONTEXT),
    ],
)
def test_the_context_as_servers_tell_it(models: list[Any], context: int) -> None:
    with scripted(HELLO, models={"data": models}) as server:
        model = RemoteModel.open(server.url)
        assert (model.name, model.host.context) == ("a", context)
        assert RemoteModel.open(server.url, "b").host.context == UNKNOWN_CONTEXT
        assert RemoteModel.open(server.url, context=100).host.context == 100


@pytest.mark.parametrize(
    ("told", "name", "lanes"),
    [
        ({"lanes": 4}, "a", 4),
        ({"lanes": 0}, "a", 1),
        ({"lanes": "4"}, "a", 1),
        ({}, "a", 1),
        ({"lanes": 4, "owned_by": "localagent"}, "any", 4),
        ({"lanes": 4, "owned_by": "somebody"}, "any", 1),
    ],
)
def test_the_lanes_as_our_server_tells_them(told: dict[str, Any], name: str, lanes: int) -> None:
    """Which answers to any name where it has one model."""
    with scripted(models={"data": [{"id": "a", "context_length": 9, **told}]}) as server:
        host = RemoteModel.open(server.url, name).host
    known = name == "a" or lanes > 1
    assert (host.name, host.lanes, host.context) == (name, lanes, 9 if known else UNKNOWN_CONTEXT)


def test_of_two_models_the_name_says_which() -> None:
    models = [{"id": name, "owned_by": "localagent", "lanes": 2, "context_length": 9} for name in "ab"]
    with scripted(models={"data": models}) as server:
        assert RemoteModel.open(server.url, "any").lanes == 1
        assert RemoteModel.open(server.url, "b", context=5).host.context == 5
        assert RemoteModel.open(server.url, "b", context=50).host.context == 9


@pytest.mark.parametrize(
    "listing",
    [[], {}, {"data": {}}, {"data": [7, {"id": 7}, {"id": "a\nb"}, {"name": "a"}]}],
)
def test_a_list_of_models_that_names_none(listing: Any) -> None:
    with scripted(HELLO, models=listing) as server:
        with pytest.raises(UnknownModel, match=f"^{server.url} does not say which models it has: name one$"):
            RemoteModel.open(server.url)
        assert RemoteModel.open(server.url, "x").host.context == UNKNOWN_CONTEXT


@pytest.mark.parametrize("status", [401, 403])
def test_who_may_not_see_the_models_is_told_at_once(status: int) -> None:
    routes = {"/v1/models": [whole({}, status)]}
    with scripted(models=None, routes=routes) as server, pytest.raises(ServerRefused) as caught:
        RemoteModel.open(server.url, "x")
    assert caught.value.status == status


def test_tokens_are_estimated_where_nobody_counts_them() -> None:
    with scripted(HELLO) as server, RemoteModel.open(server.url) as model:
        counts = [model.count_tokens("word " * length) for length in (10, 1000)]
        told = len(json.dumps([{"role": "user", "content": "Go."}, TOOL], ensure_ascii=False))
        assert model.count_tokens("Go.", tools=[TOOL], limit=-(-told // 3)) == -(-told // 3)
        with pytest.raises(ContextOverflow) as caught:
            model.count_tokens("Go.", tools=[TOOL], limit=-(-told // 3) - 1)
    assert (caught.value.prompt_tokens, caught.value.context) == (-(-told // 3), 2048)
    assert counts[0] < 50 < 1000 < counts[1] < 2500
    assert sum("count_tokens" in each.line for each in server.asked) == 1


@pytest.mark.parametrize("status", [400, 404, 405, 422, 501])
def test_a_server_that_cannot_count_is_asked_once(status: int) -> None:
    with scripted(HELLO, counts=whole({}, status)) as server, RemoteModel.open(server.url) as model:
        assert model.count_tokens("Go.") == model.count_tokens("Go.") > 5
    assert sum("count_tokens" in each.line for each in server.asked) == 1


@pytest.mark.parametrize("status", [401, 423, 500, 503])
def test_a_server_that_fails_to_count_says_so(status: int) -> None:
    with scripted(HELLO, counts=whole({}, status)) as server, RemoteModel.open(server.url) as model:
        for _ in range(2):
            with pytest.raises(ServerRefused) as caught:
                model.count_tokens("Go.")
            assert caught.value.status == status


@pytest.mark.parametrize(
    ("told", "count", "asked"),
    [
        ({"input_tokens": 7}, 7, 2),
        ({"input_tokens": 0}, None, 2),
        ({"input_tokens": True}, None, 2),
        ({"tokens": 7}, None, 1),
        ([], None, 1),
        (b"<html>", None, 1),
    ],
)
def test_what_a_server_counts_is_taken_where_it_is_a_count(told: Any, count: int | None, asked: int) -> None:
    with scripted(HELLO, counts=whole(told)) as server, RemoteModel.open(server.url) as model:
        found = {model.count_tokens("Go.", system="Hm.") for _ in range(2)}
    assert found == {count} if count is not None else min(found) > 10
    bodies = [each.body for each in server.asked if "count_tokens" in each.line]
    assert len(bodies) == asked
    assert (bodies[0]["model"], bodies[0]["system"]) == ("theirs", "Hm.")


@pytest.mark.parametrize(
    ("ignored", "warnings"),
    [
        ("reasoning_effort", ["thinking"]),
        ("user, chat_template_kwargs.enable_thinking, reasoning.effort", ["thinking"]),
        ("thinking_budget_tokens ,image", ["thinking", "images_removed"]),
        ("tool_choice", ["tool_choice"]),
        ("images, my_tool_choice,, user", []),
    ],
)
def test_what_our_server_ignores_is_a_warning(ignored: str, warnings: list[str]) -> None:
    answer = stream(chunk({"content": "a"}, "stop"), more=f"x-localagent-ignored: {ignored}\r\n")
    says = {
        "thinking": "theirs cannot be told how to think: its chat template has no switch",
        "images_removed": "theirs sees no images: those of tools were left out",
        "tool_choice": "theirs ignores tool_choice",
    }
    with scripted(answer) as server:
        events = [*RemoteModel.open(server.url).stream("Go.")]
    told = [event for event in events if isinstance(event, RequestWarning)]
    assert told == [RequestWarning(kind, says[kind]) for kind in warnings]  # type: ignore[arg-type]
    assert events[: len(told)] == told


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_address_with_or_without_v1(suffix: str) -> None:
    with scripted(HELLO) as server:
        assert RemoteModel.open(server.url + suffix).respond("Go.").text == "Hello"


@pytest.mark.parametrize(
    "url", ["", "localhost:8080", "ftp://x", "http://", "http://x y", "http://a:b@c", "http://[::1", "http://x:99999", "http://x?y=1"]
)  # fmt: skip
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        Server.at(url)
    assert "\n" not in str(caught.value)
    assert "a:b" not in str(caught.value)


# -- failures ---------------------------------------------------------------------------------------------


def refused(kind: type[LocalAgentError], *pieces: bytes, says: str) -> LocalAgentError:
    with pytest.raises(kind) as caught:
        answer(*pieces)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def test_nobody_listens() -> None:
    with socket.socket() as deaf, pytest.raises(ServerUnreachable) as caught:
        deaf.bind(("127.0.0.1", 0))  # which keeps the port from others
        port = deaf.getsockname()[1]
        RemoteModel.open(f"http://127.0.0.1:{port}")
    assert str(caught.value) == (
        f"no server answers at http://127.0.0.1:{port} (Connection refused): start it with `localagent serve`, "
        "or correct the address"
    )


@pytest.mark.parametrize(
    ("status", "body", "more", "says"),
    [
        (400, {"error": {"message": "tools: no\nway"}}, "", "refuses the request (400): tools: no way"),
        (401, {}, "", "wants a key (401): put it into LOCALAGENT_API_KEY"),
        (404, {"detail": "Not Found"}, "", "has no /v1/chat/completions (404)"),
        (429, {"error": "slow down"}, "retry-after: 7\r\n", "(429): slow down: ask again in 7 seconds"),
        (503, {"error": {"message": "full"}}, "retry-after: soon\r\n", "(503): full: ask again later"),
        (500, b"<html>", "", "failed (500): its log says more"),
        (500, {"error": "it failed; its log says more"}, "", "failed (500): it failed; its log says more"),
        (302, {}, "location: http://elsewhere/\r\n", "sends its clients to http://elsewhere/ (302)"),
    ],
)
def test_http_errors(status: int, body: Any, more: str, says: str) -> None:
    error = refused(ServerRefused, *whole(body, status, more), says=says)
    assert isinstance(error, ServerRefused)
    assert error.status == status
    assert str(error).count("log") <= 1


def test_a_key_that_is_refused() -> None:
    with (
        scripted(whole({}, 401)) as server,
        pytest.raises(ServerRefused, match="refuses the key in LOCALAGENT_"),
    ):
        RemoteModel.open(server.url, key="k").respond("Go.")


def test_a_model_that_there_is_not() -> None:
    said = {"error": {"message": "no model 'x': there is y", "code": "model_not_found"}}
    refused(UnknownModel, *whole(said, 404), says="no model 'x': there is y")
    with scripted(models={"data": []}) as server, pytest.raises(UnknownModel, match="name one"):
        RemoteModel.open(server.url)
    with scripted(HELLO, models=None) as server:
        with pytest.raises(ServerRefused):
            RemoteModel.open(server.url)
        assert RemoteModel.open(server.url, "x").respond("Go.").text == "Hello"


@pytest.mark.parametrize(
    "error",
    [
        {
            "message": "This model's maximum context length is 4096 tokens. However, your prompt has 5000 tokens."
        },
        {"message": "the request exceeds the context", "n_prompt_tokens": 5000, "n_ctx": 4096},
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_prompt_that_is_too_long(error: dict[str, Any], streamed: bool) -> None:
    pieces = stream(event({"error": error})) if streamed else whole({"error": error}, 400)
    overflow = refused(ContextOverflow, *pieces, says="5,000 tokens and the context window holds 4,096")
    assert isinstance(overflow, ContextOverflow)
    assert (overflow.prompt_tokens, overflow.context) == (5000, 4096)


BROKEN: dict[str, tuple[list[bytes], str]] = {
    "no end": (stream(chunk({"content": "a"})), "broke the answer off in the midst"),
    "nothing": (stream(), "broke the answer off in the midst"),
    "an error": (stream(chunk({"content": "a"}), event({"error": {"message": "engine died"}})), "engine died: ask again"),
    "no JSON": (stream(event("{oops")), "something else than JSON"),
    "no object": (stream(event([1])), "no chat completion"),
    "no choices": (stream(event({"choices": 3})), "no chat completion"),
    "no calls": (stream(chunk({"tool_calls": "f"})), "no chat completion"),
    "no length": ([b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"], "something else than JSON"),
    "no HTTP": ([b"SSH-2.0-OpenSSH_9.6\r\n"], "does not answer as an HTTP server"),
    "closed": ([], "closed the connection without an answer"),
    "cut chunk": ([head(more="transfer-encoding: chunked\r\n"), b"ff\r\ndata: {"], "ask again"),
    "deep": (stream(event("[" * 100_000)), "something else than JSON"),
}  # fmt: skip


@pytest.mark.parametrize(("pieces", "says"), BROKEN.values(), ids=[*BROKEN])
def test_a_stream_that_breaks_off(pieces: list[bytes], says: str) -> None:
    refused(StreamBroken, *pieces, says=says)


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
@pytest.mark.parametrize(
    "size", [b"f" * 15, b"7" + b"f" * 15, b"8" + b"0" * 15, b"f" * 200, b"-1", b"-5", b"", b"1_0", b"0x5"]
)
def test_a_chunk_of_an_absurd_size(kind: str, size: bytes) -> None:
    """Python's number of one is any integer, and its sockets take none that does not fit into a word."""
    opening = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n" % kind.encode()
    refused(StreamBroken, opening, size + b"\r\n" + b"data: {}\n\n" * 3, says="")


def test_what_came_before_the_break_is_kept() -> None:
    with scripted(stream(chunk({"content": "Half an ans"}))) as server:
        events = RemoteModel.open(server.url).stream("Go.")
        assert isinstance(next(events), Text)
        broken = next(events)
        assert isinstance(broken, BrokenOff)
        assert (broken.message.text, broken.message.stop_reason) == ("Half an ans", "error")
        with pytest.raises(StreamBroken):
            next(events)


def test_a_server_that_falls_silent() -> None:
    with scripted([*stream(chunk({"content": "a"})), HANG]) as server:
        model = RemoteModel.open(server.url, silence=0.3)
        with pytest.raises(StreamBroken, match=r"said nothing for 0\.3 seconds"):
            model.respond("Go.")


def test_a_line_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localagent.remote.server._LONGEST", 1 << 20)
    says = "answers with more than 1 MB at once: it is no such server"
    refused(StreamBroken, *stream(b"data: " + b"x" * 3_000_000), says=says)
    refused(StreamBroken, *stream(*[b"data: " + b"x" * 100_000 + b"\n"] * 12), says=says)
    refused(StreamBroken, *whole(b'"' + b"x" * 3_000_000 + b'"'), says=says)


# -- stopping ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [[HANG], [*stream(chunk({"content": "Some"})), HANG]])
def test_cancelling_closes_the_connection(pieces: list[bytes]) -> None:
    cancel = threading.Event()
    with scripted(pieces) as server:
        model = RemoteModel.open(server.url)
        threading.Timer(0.2, cancel.set).start()
        began = time.monotonic()
        message = model.respond("Go.", cancel=cancel)
        assert message.stop_reason == "cancelled"
        assert message.text == ("Some" if len(pieces) > 1 else "")
        assert time.monotonic() - began < 10
        assert server.left.wait(60)


def test_a_call_that_is_open_when_it_is_cancelled_is_no_call() -> None:
    cancel = threading.Event()
    with scripted([*stream(chunk(call('{"a": 1}', id="c", name="f"))), HANG]) as server:
        threading.Timer(0.2, cancel.set).start()
        message = RemoteModel.open(server.url).respond("Go.", tools=[TOOL], cancel=cancel)
    assert not message.tool_calls
    assert [part.reason for part in message.malformed_tool_calls] == ["truncated"]


def test_leaving_the_iterator_closes_the_connection() -> None:
    with scripted([*stream(chunk({"content": "Some"})), HANG]) as server:
        events = RemoteModel.open(server.url).stream("Go.")
        next(events)
        events.close()
        assert server.left.wait(60)


def test_ctrl_c_keeps_what_was_written() -> None:
    with scripted([*stream(chunk({"content": "Some"})), HANG]) as server:
        events = RemoteModel.open(server.url).stream("Go.")
        next(events)
        threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
        broken = next(events)
        assert isinstance(broken, BrokenOff)
        assert (broken.message.text, broken.message.stop_reason) == ("Some", "cancelled")
        with pytest.raises(KeyboardInterrupt):
            next(events)
        assert server.left.wait(60)


def test_the_end_of_a_task_closes_the_connection() -> None:
    async def ask(model: RemoteModel) -> None:
        async with aclosing(model.astream("Go.")) as events, asyncio.timeout(0.5):
            async for _ in events:
                pass

    with scripted([*stream(chunk({"content": "Some"})), HANG]) as server:
        with pytest.raises(TimeoutError):
            asyncio.run(ask(RemoteModel.open(server.url)))
        assert server.left.wait(60)


def test_an_event_of_asyncio_cancels() -> None:
    async def ask(model: RemoteModel) -> AssistantMessage:
        cancel = asyncio.Event()
        asyncio.get_running_loop().call_later(0.2, cancel.set)
        return await model.arespond("Go.", cancel=cancel)

    with scripted([*stream(chunk({"content": "Some"})), HANG]) as server:
        assert asyncio.run(ask(RemoteModel.open(server.url))).stop_reason == "cancelled"


def test_errors_come_through_an_event_loop() -> None:
    async def ask(model: RemoteModel) -> None:
        await model.arespond("Go.")

    with scripted(whole({}, 500)) as server, pytest.raises(ServerFailed):
        asyncio.run(ask(RemoteModel.open(server.url)))


def test_thinking_that_is_to_end_is_a_warning() -> None:
    flag = threading.Event()
    flag.set()
    with scripted(stream(chunk({"reasoning": "Hm."}), chunk({"content": "a"}, "stop"))) as server:
        events = list(RemoteModel.open(server.url).stream("Go.", end_thinking=flag))
    (warning,) = [each for each in events if isinstance(each, RequestWarning)]
    says = "the thinking of theirs cannot be ended from here, since it runs on a server: stop the answer, or wait"
    assert warning == RequestWarning("thinking", says)


# -- anything at all --------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["id", "model", "choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments",
         "index", "reasoning_content", "malformed_tool_calls", "raw", "reason", "finish_reason", "usage",
         "prompt_tokens", "prompt_tokens_details", "cached_tokens", "timings", "prompt_ms", "logprobs", "logprob",
         "top_logprobs", "token", "error", "relaxed_schemas"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
PIECES = st.builds(
    lambda delta, finish: {"choices": [{"delta": delta, "finish_reason": finish}]},
    st.dictionaries(st.sampled_from(["content", "reasoning", "tool_calls", "malformed_tool_calls"]), JSON),
    st.sampled_from([None, "stop", "length", "x"]),
)


@given(st.lists(JSON | PIECES, max_size=5))
def test_no_chunk_does_more_than_break_the_stream(chunks: list[Any]) -> None:
    turn = RemoteTurn(Server("http://x"), "theirs", None)
    events: list[Any] = []
    try:
        for each in chunks:
            events += turn.feed(json.loads(json.dumps(each)))
        events += turn.close()
    except LocalAgentError as error:
        assert "\n" not in str(error)
        assert len(turn.broken(error)) <= 1
    else:
        assert isinstance(events[-1], Done)
    begun = [each.index for each in events if isinstance(each, CallStart)]
    ended = [
        each.index for each in events if isinstance(each, CallEnd | Malformed) and each.index is not None
    ]
    assert begun == sorted(set(begun))
    assert set(ended) <= set(begun)
    assert all(isinstance(each.text, str) for each in events if isinstance(each, Text | Reasoning))
