"""Each way in which a server may fail, of each kind of server: a typed error in one line, and nothing that came is lost."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest

from localagent.errors import ServerRefused, ServerUnreachable, StreamBroken
from localagent.hosts.sampling import Sampling
from localagent.model import Model
from localagent.nano import MLX
from localagent.remote.server import Server
from localagent.remote.tokens import generation as module
from localagent.remote.tokens.apis import LlamaServer, Sglang, VllmCompletions, VllmTokens
from localagent.remote.tokens.host import TokenHost
from localagent.remote.tokens.vocabulary import read_model_files
from localagent.turn import BrokenOff, Done
from parsers import DIALECTS
from tests.remote.scripted import DONE, HANG, event, head, scripted, whole

APIS = [VllmTokens, VllmCompletions, Sglang, LlamaServer]
TEXT = 'Well. <|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>'
ALIEN = 1 << 20


@pytest.fixture(scope="module")
def files():
    return read_model_files(MLX)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(module, "_PAUSE", 0.01)


def said(api: type[Any], ids: list[int], count: int, reason: str | None = None) -> bytes:
    """The event that brings these tokens; so many have come with them."""
    if api in (VllmTokens, VllmCompletions):
        return event({"choices": [{"index": 0, "token_ids": ids, "finish_reason": reason}]})
    if api is Sglang:
        told = {"completion_tokens": count, "finish_reason": reason and {"type": reason}, "cached_tokens": 0}
        return event({"output_ids": ids, "meta_info": told})
    stop = {"stop_type": "eos", "timings": {"cache_n": 0}} if reason else {}
    return event({"content": "x", "tokens": ids, "tokens_predicted": count, "stop": bool(reason), **stop})


def begun(api, files):
    """Half an answer, two tokens in each event."""
    ids = list(files.vocabulary.tokenize(TEXT, special=True))
    return ids, [said(api, ids[at : at + 2], len(ids[: at + 2])) for at in range(0, len(ids), 2)]


def host_at(url, files, api):
    return TokenHost(Server.at(url, None, 0.4), api, files, name="nano", model="m", context=512)


def follow(model, asynchronous):
    """The events of a turn, and the error that ended it."""
    seen: list[Any] = []

    async def follow_on_a_loop():
        async for each in model.astream("Hi."):
            seen.append(each)

    try:
        if asynchronous:
            asyncio.run(follow_on_a_loop())
        else:
            seen += model.stream("Hi.")
    except (StreamBroken, ServerRefused, ServerUnreachable) as error:
        return seen, error
    return seen, None


FAULTS = {
    "dies": ([], "broke the answer off in the midst"),
    "ends before its end": ([DONE], "broke the answer off in the midst"),
    "half an event": ([b'data: {"choices": [{"tok'], "broke the answer off in the midst"),
    "an event that is cut within a character": (["data: \u20ac".encode()[:-1]], "broke the answer off"),
    "stalls": ([HANG], r"has said nothing for 0\.4 seconds"),
    "says what went wrong": ([event({"error": {"message": "out of memory"}})], "out of memory"),
    "says something else": ([event({"choices": 3, "meta_info": 3, "tokens": 3})], "makes no sense"),
    "says no JSON": ([event("{]")], "streams something else than JSON"),
    "lies about ids": ("alien", "which the tokenizer here does not have"),
    "lies about kinds": ("kinds", "makes no sense"),
    "lies about how many": ("fewer", "tokens than it sends"),
}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["thread", "loop"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("api", APIS)
def test_what_came_is_kept_and_the_error_is_typed(files, api, fault, asynchronous):
    ids, events = begun(api, files)
    end, says = FAULTS[fault]
    if end == "alien":
        end = [said(api, [ALIEN], len(ids) + 1)]
    elif end == "kinds":
        end = [said(api, ["7"], len(ids) + 1)]  # type: ignore[list-item]
    elif end == "fewer":
        if api in (VllmTokens, VllmCompletions):
            pytest.skip("it counts no tokens")
        end = [said(api, [5], 1)]
    with scripted(routes={api.path: [[head(), *events, *end]]}) as server:
        model = Model(host_at(server.url, files, api), DIALECTS["lfm2"])
        seen, error = follow(model, asynchronous)
    assert isinstance(error, StreamBroken)
    assert "\n" not in str(error)
    assert re.search(says, str(error)), error
    assert not any(isinstance(each, Done) for each in seen)
    assert isinstance(seen[-1], BrokenOff)
    assert seen[-1].message.raw == TEXT
    assert seen[-1].message.stop_reason == "error"
    assert [call.name for call in seen[-1].message.tool_calls] == ["get_weather"]
    assert len([each for each in server.asked if api.path in each.line]) == 1, "nothing is drawn twice"


@pytest.mark.parametrize("api", APIS)
def test_what_might_have_begun_a_stop_string_is_kept_too(files, api):
    _, events = begun(api, files)
    with scripted(routes={api.path: [[head(), *events]]}) as server:
        seen = []
        with pytest.raises(StreamBroken):
            for each in Model(host_at(server.url, files, api), DIALECTS["lfm2"]).stream(
                "Hi.", stop=["<|tool_call_end|> And"]
            ):
                seen.append(each)
    assert seen[-1].message.raw == TEXT


@pytest.mark.parametrize(("most", "kept"), [(0, ()), (2, ((6, -0.5), (5, -1.0)))])
def test_the_likeliest_tokens_are_told_in_their_order_and_no_more_than_were_asked_for(files, most, kept):
    """Servers tell others too, such as the one that was drawn."""
    one, two, *_ = files.vocabulary.tokenize("one two three", special=False)
    likely = [{"id": one, "logprob": -3.0}, {"id": 5, "logprob": -1.0}, {"id": 6, "logprob": -0.5}]
    events = [
        event(
            {"content": "x", "tokens": [one], "tokens_predicted": 1, "stop": False,
             "completion_probabilities": [{"id": one, "logprob": -3.0, "top_logprobs": likely}]}
        ),
        event({"content": "y", "tokens": [two], "tokens_predicted": 2, "stop": False}),
        said(LlamaServer, [], 2, "eos"),
    ]  # fmt: skip
    with scripted(routes={LlamaServer.path: [[head(), *events]]}) as server:
        host = host_at(server.url, files, LlamaServer)
        first, second = host.generate(host.raw_prompt("Hi."), Sampling(logprobs=most))
    assert (first.logprobs.token, first.logprobs.top) == (-3.0, kept)
    assert second.logprobs.top == ()
    assert second.logprobs.token != second.logprobs.token, "no number: the server did not say"


@pytest.mark.parametrize("after", ["end", "more", "nothing", "nonsense"])
def test_what_comes_after_the_last_token_that_was_asked_for(files, after):
    """Only how much of the prompt was reused is missing, if it does not come."""
    ids = list(files.vocabulary.tokenize(TEXT, special=True))
    told = {
        "end": [event({"content": "", "tokens": [], "tokens_predicted": 3, "stop": True, "stop_type": "limit", "timings": {"cache_n": 2}})],
        "more": [said(LlamaServer, [ids[3]], 4), HANG],
        "nothing": [],
        "nonsense": [event([])],
    }[after]  # fmt: skip
    events = [said(LlamaServer, [ids[at]], at + 1) for at in range(3)]
    with scripted(routes={LlamaServer.path: [[head(), *events, *told]]}) as server:
        model = Model(host_at(server.url, files, LlamaServer), DIALECTS["lfm2"])
        done = list(model.stream("Hi.", max_tokens=3))[-1]
    assert isinstance(done, Done)
    assert done.token_ids == tuple(ids[:3])
    assert done.message.stop_reason == "length"
    assert done.message.usage.cache_read == (2 if after == "end" else 0)


def test_who_leaves_after_the_last_token_has_a_whole_turn(files):
    ids = list(files.vocabulary.tokenize(TEXT, special=True))
    events = [said(LlamaServer, [ids[at]], at + 1) for at in range(3)]
    with scripted(routes={LlamaServer.path: [[head(), *events, HANG]]}) as server:
        host, flag = host_at(server.url, files, LlamaServer), threading.Event()
        generation = host.generate(host.raw_prompt("Hi."), Sampling(max_tokens=3), flag)
        tokens = [next(generation) for _ in range(3)]
        flag.set()
        assert list(generation) == []
    assert [token.id for token in tokens] == ids[:3]
    assert generation.finish.stop_reason == "length"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("api", APIS)
def test_a_server_that_is_busy_is_asked_again_and_then_given_up(files, api, status):
    busy = whole({"error": {"message": "too many"}}, status, "retry-after: 0\r\n")
    ids, events = begun(api, files)
    end = said(api, [], len(ids), "stop")
    with scripted(routes={api.path: [busy, busy, [head(), *events, end, DONE]]}) as server:
        seen, error = follow(Model(host_at(server.url, files, api), DIALECTS["lfm2"]), False)
        assert error is None
        assert seen[-1].message.raw == TEXT
    with scripted(routes={api.path: [busy]}) as server:
        seen, error = follow(Model(host_at(server.url, files, api), DIALECTS["lfm2"]), False)
    assert isinstance(error, ServerRefused)
    assert (error.status, error.wait) == (status, 0.0)
    assert seen == []
    assert len([each for each in server.asked if api.path in each.line]) == module.ATTEMPTS


@pytest.mark.parametrize("api", APIS)
def test_a_server_that_is_gone(files, api):
    with scripted() as server:
        url = server.url
    _, error = follow(Model(host_at(url, files, api), DIALECTS["lfm2"]), False)
    assert isinstance(error, ServerUnreachable)
