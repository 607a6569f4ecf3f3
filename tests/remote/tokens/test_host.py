"""A model on a server of tokens: the same text, calls and messages as from a model on this machine, whatever the server does."""

from __future__ import annotations

import asyncio
import gc
import threading
from time import monotonic

import pytest

from localagent.errors import (
    ContextOverflow,
    ServerRefused,
    ServerUnreachable,
    StreamBroken,
    Unsupported,
    UsageError,
)
from localagent.hosts.sampling import Sampling
from localagent.model import Model
from localagent.nano import MLX
from localagent.prompt.segments import Prompt
from localagent.remote.server import Server
from localagent.remote.tokens import generation as module
from localagent.remote.tokens.apis import Chunk, Sglang, VllmTokens
from localagent.remote.tokens.host import TokenHost
from localagent.remote.tokens.vocabulary import TokenFinder, read_model_files
from localagent.turn import BrokenOff, Done
from parsers import DIALECTS
from tests.mcp.conftest import eventually
from tests.remote.scripted import DONE, HANG, event, head, scripted, whole

PATH = "/inference/v1/generate"
CALL = '<|tool_call_start|>[get_weather(city="Paris \u20ac")]<|tool_call_end|>Done.<|im_end|>'
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]  # fmt: skip


@pytest.fixture(scope="module")
def files():
    return read_model_files(MLX)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(module, "_PAUSE", 0.02)


def host_at(url, files, api=VllmTokens, context=512, silence=5.0):
    return TokenHost(Server.at(url, "key", silence), api, files, name="nano", model="m", context=context)


def chunks(files, text, each=1, reason="stop"):
    """The events of a vLLM that writes this text, so many tokens in each."""
    ids = files.vocabulary.tokenize(text, special=True)
    parts = [list(ids[at : at + each]) for at in range(0, len(ids), each)]
    return [
        event(
            {
                "choices": [
                    {"index": 0, "token_ids": part, "finish_reason": reason if part is parts[-1] else None}
                ]
            }
        )
        for part in parts
    ] + [event({"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 3}}}), DONE]


def ask(host, **options):
    return list(Model(host, DIALECTS["lfm2"]).stream("Hi.", tools=TOOLS, **options))


def generate(host, **sampling):
    return host.generate(host.render([{"role": "user", "content": "Hi."}]), Sampling(**sampling))


@pytest.mark.parametrize("size", [None, 1, 2, 3, 7, 64])
def test_a_turn_wherever_the_bytes_are_cut(files, size):
    data = b"".join(chunks(files, CALL))
    pieces = [data] if size is None else [data[at : at + size] for at in range(0, len(data), size)]
    with scripted(routes={PATH: [[head(), *pieces]]}) as server:
        message = ask(host_at(server.url, files))[-1].message
    [call] = message.tool_calls
    assert (call.name, call.arguments, message.text) == ("get_weather", {"city": "Paris \u20ac"}, "Done.")
    assert (message.raw, message.stop_reason) == (CALL, "tool_calls")
    [asked] = [each for each in server.asked if PATH in each.line]
    assert asked.headers["authorization"] == "Bearer key"
    assert tuple(asked.body["token_ids"][:2]) == files.vocabulary.tokenize(
        "<|startoftext|><|im_start|>", True
    )


@pytest.mark.parametrize("each", [1, 2, 5, 100])
def test_a_turn_however_many_tokens_come_at_once(files, each):
    with scripted(routes={PATH: [[head(), *chunks(files, CALL, each)]]}) as server:
        done = ask(host_at(server.url, files))[-1]
    assert done.message.raw == CALL
    assert done.token_ids == files.vocabulary.tokenize(CALL, special=True)
    assert done.message.usage.output == len(done.token_ids)


def test_on_an_event_loop_the_same(files):
    async def turn(host):
        return [each async for each in Model(host, DIALECTS["lfm2"]).astream("Hi.", tools=TOOLS)]

    with scripted(routes={PATH: [[head(), *chunks(files, CALL)]]}) as server:
        assert asyncio.run(turn(host_at(server.url, files)))[-1].message.raw == CALL


def test_a_server_that_keeps_its_end_token(files):
    with scripted(routes={PATH: [[head(), *chunks(files, "Done.")]]}) as server:
        message = ask(host_at(server.url, files))[-1].message
    assert (message.text, message.stop_reason) == ("Done.", "stop")
    with scripted(routes={PATH: [[head(), *chunks(files, "Done.", reason="length")]]}) as server:
        assert ask(host_at(server.url, files))[-1].message.stop_reason == "length"


def test_an_empty_answer_is_an_answer_and_not_asked_for_again(files):
    ended = event({"choices": [{"index": 0, "token_ids": [], "finish_reason": "stop"}]})
    with scripted(routes={PATH: [[head(), ended, DONE]]}) as server:
        message = ask(host_at(server.url, files))[-1].message
    assert (message.text, message.stop_reason) == ("", "stop")
    assert len(server.asked) == 1


def test_a_turn_that_is_cancelled_before_its_first_token(files):
    with scripted(routes={PATH: [[head(), HANG]], "abort_requests": [whole({})]}) as server:
        cancel = threading.Event()
        threading.Timer(0.2, cancel.set).start()
        message = ask(host_at(server.url, files), cancel=cancel)[-1].message
    assert (message.text, message.stop_reason) == ("", "cancelled")


def test_what_is_closed_before_it_began_is_never_sent(files):
    with scripted(routes={PATH: [[head(), *chunks(files, "Yes.<|im_end|>")]]}) as server:
        generation = generate(host_at(server.url, files))
        generation.close()
        assert generation.finish.stop_reason == "cancelled"
        assert list(generation) == []
    assert server.asked == []


def test_stop_strings_and_limits_are_kept_here(files):
    with scripted(routes={PATH: [[head(), *chunks(files, "One two three.<|im_end|>")]]}) as server:
        host = host_at(server.url, files)
        done = ask(host, stop=["two"])[-1]
        assert (done.message.text, done.stop) == ("One ", "two")
        assert ask(host, max_tokens=2)[-1].message.usage.output == 2
        assert server.asked[-1].body.get("sampling_params", {}).get("max_tokens", 2) == 2


def test_a_character_that_is_split_over_tokens_comes_whole(files):
    with scripted(routes={PATH: [[head(), *chunks(files, "\u6f22\u5b57\U0001f600<|im_end|>")]]}) as server:
        tokens = list(generate(host_at(server.url, files)))
    assert "".join(token.text for token in tokens) == "\u6f22\u5b57\U0001f600<|im_end|>"
    assert "\ufffd" not in "".join(token.text for token in tokens)


@pytest.mark.parametrize("how", ["flag", "close", "drop", "aclose"])
def test_who_leaves_closes_the_connection_and_gives_the_request_up(files, how):
    routes = {PATH: [[head(), *chunks(files, "On and on")[:2], HANG]], "abort_requests": [whole({})]}
    with scripted(routes=routes) as server:
        host, flag = host_at(server.url, files), threading.Event()
        generation = host.generate(host.render([{"role": "user", "content": "Hi."}]), Sampling(), flag)
        if how == "aclose":

            async def leave(generation=generation):
                steps = generation.asteps()
                await anext(steps)
                await steps.aclose()

            asyncio.run(leave())
        else:
            next(generation)
        began = monotonic()
        if how == "flag":
            threading.Timer(0.1, flag.set).start()
            assert [token.text for token in generation][1:] == []
            assert generation.finish.stop_reason == "cancelled"
        elif how == "close":
            generation.close()
        del generation
        gc.collect()
        assert server.left.wait(60)
        assert monotonic() - began < 10
        eventually(lambda: len(server.asked) == 2)
        assert "abort_requests" in server.asked[1].line
        assert server.asked[1].body["request_ids"][1] == server.asked[0].body["request_id"]


def test_a_busy_server_is_asked_again_until_something_came(files):
    busy = whole({"error": {"message": "too many"}}, 503, "retry-after: 0\r\n")
    with scripted(routes={PATH: [busy, [b""], busy, [head(), *chunks(files, "Yes.<|im_end|>")]]}) as server:
        assert ask(host_at(server.url, files))[-1].message.text == "Yes."
    assert len(server.asked) == 4


def test_a_busy_server_is_not_asked_for_ever(files):
    with scripted(routes={PATH: [whole({"error": {"message": "too many"}}, 429)]}) as server:
        host = host_at(server.url, files)
        with pytest.raises(ServerRefused, match="cannot answer now"):
            ask(host)
    assert len(server.asked) == module.ATTEMPTS
    with pytest.raises(ServerUnreachable):
        ask(host_at(server.url, files))


def test_what_is_the_requests_own_fault_is_not_sent_again(files):
    with scripted(routes={PATH: [whole({"error": {"message": "bad"}}, 400)]}) as server:
        host = host_at(server.url, files)
        with pytest.raises(ServerRefused, match="refuses the request"):
            ask(host)
    assert len(server.asked) == 1


@pytest.mark.parametrize(("code", "error", "times"), [(400, ServerRefused, 1), (500, StreamBroken, 2)])
def test_a_stream_that_says_whose_fault_it_is(files, code, error, times, monkeypatch):
    monkeypatch.setattr(module, "ATTEMPTS", 2)
    told = event({"error": {"message": "bad grammar", "type": "BadRequestError", "code": code}})
    with scripted(routes={PATH: [[head(), told, DONE]]}) as server, pytest.raises(error, match="bad grammar"):
        ask(host_at(server.url, files))
    assert len([each for each in server.asked if PATH in each.line]) == times


def test_a_server_that_asks_for_too_much_patience_is_not_waited_for(files):
    with (
        scripted(
            routes={PATH: [whole({"error": {"message": "later"}}, 503, "retry-after: 3600\r\n")]}
        ) as server,
        pytest.raises(ServerRefused, match="in 3600 seconds"),
    ):
        ask(host_at(server.url, files))
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "end",
    [
        [],
        [b'data: {"choices": [{"token_'],
        [event({"error": {"message": "it died"}})],
        [event({"choices": 3})],
    ],
)
def test_after_the_first_token_nothing_is_sent_again_and_nothing_is_lost(files, end):
    begun = chunks(files, "Half an answer")[:-2]
    begun[-1] = begun[-1].replace(b'"stop"', b"null")
    with scripted(routes={PATH: [[head(), *begun, *end]]}) as server:
        events = Model(host_at(server.url, files), DIALECTS["lfm2"]).stream("Hi.")
        seen = []
        with pytest.raises(StreamBroken):
            for each in events:
                seen.append(each)
    assert isinstance(seen[-1], BrokenOff)
    assert seen[-1].message.text == "Half an answer"
    assert len([each for each in server.asked if PATH in each.line]) == 1


def test_a_server_that_stalls_is_given_up(files):
    with scripted(routes={PATH: [[head(), *chunks(files, "Half an answer")[:2], HANG]]}) as server:
        host = host_at(server.url, files, silence=0.3)
        with pytest.raises(StreamBroken, match=r"has said nothing for 0\.3 seconds"):
            ask(host)


@pytest.mark.parametrize("token", [1 << 20, -1])
def test_a_server_that_lies_about_ids(files, token):
    with scripted(routes={PATH: [[head(), event({"choices": [{"token_ids": [token]}]}), DONE]]}) as server:
        host = host_at(server.url, files)
        with pytest.raises(StreamBroken, match=r"sent token -?\d+, which the tokenizer here does not have"):
            ask(host)


def test_logprobs_come_in_our_order(files):
    [token] = files.vocabulary.tokenize("<|im_end|>", special=True)
    content = [{"token_id": token, "logprob": -3.0, "top_logprobs": [{"token_id": token, "logprob": -3.0}, {"token_id": 5, "logprob": -0.1}, {"token_id": 6, "logprob": -1.0}]}]  # fmt: skip
    told = event(
        {"choices": [{"token_ids": [token], "logprobs": {"content": content}, "finish_reason": "stop"}]}
    )
    with scripted(routes={PATH: [[head(), told, DONE]]}) as server:
        [last] = list(generate(host_at(server.url, files), logprobs=2))
    assert (last.logprobs.token, last.logprobs.top) == (-3.0, ((5, -0.1), (6, -1.0)))


def test_tokens_are_spelled_here(files):
    host = host_at("http://127.0.0.1:1", files)
    ids = host.tokenize("<think>caf\u00e9", special=True)
    assert host.detokenize(ids) == "<think>caf\u00e9".encode()
    with pytest.raises(UsageError, match="no token"):
        host.detokenize([1 << 40])


def test_sglang_too(files):
    ids = list(files.vocabulary.tokenize("Yes.<|im_end|>", special=True))
    told = [
        event({"output_ids": ids[: at + 1], "meta_info": {"completion_tokens": at + 1, "cached_tokens": 1, "finish_reason": {"type": "stop"} if at + 1 == len(ids) else None}})
        for at in range(len(ids))
    ]  # fmt: skip
    with scripted(routes={"/generate": [[head(), *told, DONE]]}) as server:
        message = ask(host_at(server.url, files, Sglang))[-1].message
    assert (message.text, message.usage.cache_read) == ("Yes.", 1)


def test_what_it_wrote_keeps_its_tokens_in_the_next_prompt(files):
    ids = (
        files.vocabulary.tokenize("Yes", True)
        + files.vocabulary.tokenize(".", True)
        + files.vocabulary.tokenize("<|im_end|>", True)
    )
    odd = tuple(token for letter in "Yes." for token in files.vocabulary.tokenize(letter, False))
    assert odd != ids[:-1], "the same text in other tokens"
    told = event({"choices": [{"token_ids": [*odd, ids[-1]], "finish_reason": "stop"}]})
    with scripted(routes={PATH: [[head(), told, DONE]]}) as server:
        model = Model(host_at(server.url, files), DIALECTS["lfm2"])
        first = list(model.stream("Hi."))[-1].message
        assert isinstance(
            list(
                model.stream([{"role": "user", "content": "Hi."}, first, {"role": "user", "content": "So?"}])
            )[-1],
            Done,
        )
    sent = tuple(server.asked[-1].body["token_ids"])
    assert any(sent[at : at + len(odd)] == odd for at in range(len(sent)))


def test_what_cannot_be_asked_is_refused_before_anything_is_sent(files):
    host = host_at("http://127.0.0.1:1", files, context=32)
    with pytest.raises(ContextOverflow):
        host.generate(host.render([{"role": "user", "content": "word " * 40}]), Sampling())
    prompt = host.render([{"role": "user", "content": "Hi."}])
    with pytest.raises(Unsupported, match="which no mask can bound"):
        host.generate(prompt, Sampling(), None, object())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="empty"):
        host.generate(Prompt((), ""), Sampling())
    size = files.vocabulary.size
    for wrong in ((1, -1), (-1,), (1, size)):
        with pytest.raises(UsageError, match=f"holds an id outside the vocabulary of {size:,}$"):
            host.generate(Prompt(wrong, ""), Sampling())
    for fits in ((0,), (size - 1,), (7,) * 32):
        host.generate(Prompt(fits, ""), Sampling()).close()
    with pytest.raises(ContextOverflow):
        host.generate(Prompt((7,) * 33, ""), Sampling())


@pytest.mark.parametrize("text", ["\u6f22", "\U0001f600", "\u20ac"])
def test_tokens_that_a_server_leaves_out_are_found_by_what_they_spell(files, text):
    ids = files.vocabulary.tokenize(text, special=False)
    assert len(ids) > 1
    spelling = TokenFinder(files.vocabulary)
    assert list(spelling.lost(Chunk(ids[-1:], lost=len(ids) - 1, text=text))) == list(ids[:-1])
    letters = [files.vocabulary.tokenize(letter, special=False)[0] for letter in "Yes"]
    found = spelling.lost(Chunk(letters[-1:], lost=2, text="Yes"))
    assert list(found) == letters[:-1], "not as the tokenizer has it"
    endless = Chunk((), lost=1500, text="a" * 3000)
    for chunk in (
        Chunk(ids[-1:], lost=40, text=text),
        Chunk((5,), lost=1, text=text),
        Chunk((), lost=1),
        endless,
    ):
        with pytest.raises(StreamBroken, match="cannot be told"):
            spelling.lost(chunk)
