"""What servers of tokens are asked, and what their events mean: written by their own definitions of both."""

from __future__ import annotations

import pytest

from localagent.errors import StreamBroken
from localagent.hosts.protocol import Logprobs
from localagent.hosts.sampling import Sampling
from localagent.remote.tokens.apis import Asked, Chunk, LlamaServer, Sglang, VllmCompletions, VllmTokens

GREEDY = Asked((1, 2), Sampling(), 9, (7, 2), "m", "r1")
DRAWN = Asked((1, 2), Sampling(temperature=0.7, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=1.1, seed=3, logprobs=2), 9, (7,), "m", "r1")  # fmt: skip


def vllm(ids, reason=None, **more):
    return {"request_id": "r1", "choices": [{"index": 0, "token_ids": ids, "finish_reason": reason, **more}]}


def sglang(ids, count, reason=None, **more):
    return {
        "text": "",
        "output_ids": ids,
        "meta_info": {"completion_tokens": count, "finish_reason": reason, **more},
    }


def test_vllm_is_asked_for_ids():
    body = VllmTokens().body(GREEDY)
    assert body == {
        "request_id": "r1",
        "token_ids": [1, 2],
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "sampling_params": {
            "max_tokens": 9, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
            "stop_token_ids": [7, 2], "skip_special_tokens": False, "detokenize": False,
        },
    }  # fmt: skip
    chosen = VllmTokens().body(DRAWN)["sampling_params"]
    assert (chosen["temperature"], chosen["top_k"], chosen["min_p"], chosen["seed"], chosen["logprobs"]) == (
        0.7, 20, 0.05, 3, 2,
    )  # fmt: skip
    assert VllmTokens().abort("r1") == (
        "/inference/v1/abort_requests",
        {"request_ids": ["generate-tokens-r1", "r1"]},  # by what its answers call it, and by our name
    )


def test_vllms_events():
    api = VllmTokens()
    content = [{"token_id": 5, "logprob": -0.1, "top_logprobs": [{"token_id": 5, "logprob": -0.1}, {"token_id": 6, "logprob": -2}]}]  # fmt: skip
    assert api.read(vllm([5], logprobs={"content": content})) == Chunk(
        (5,), (Logprobs(-0.1, ((5, -0.1), (6, -2.0))),)
    )
    assert api.read(vllm([7], "stop")) == Chunk((7,), ended="stop")
    assert api.read(vllm(None, "length")) == Chunk(ended="length")
    usage = {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
    assert api.read({"choices": [], "usage": usage}) == Chunk(cached=1)
    assert api.read({"choices": [], "usage": {"prompt_tokens": 2, "prompt_tokens_details": None}}) == Chunk()


def test_an_earlier_vllm_is_asked_for_a_completion_with_ids():
    body = VllmCompletions().body(DRAWN)
    assert (body["prompt"], body["return_token_ids"], body["add_special_tokens"]) == ([1, 2], True, False)
    assert (body["skip_special_tokens"], body["logprobs"], body["return_tokens_as_token_ids"]) == (
        False,
        2,
        True,
    )
    told = {"token_logprobs": [-0.5], "top_logprobs": [{"token_id:5": -0.5, "token_id:9": -1.5}]}
    event = {"choices": [{"text": "x", "token_ids": [5], "logprobs": told, "finish_reason": None}]}
    assert VllmCompletions().read(event) == Chunk((5,), (Logprobs(-0.5, ((5, -0.5), (9, -1.5))),))


def test_sglang_is_asked_for_ids():
    body = Sglang().body(DRAWN)
    assert (body["input_ids"], body["rid"], body["return_logprob"], body["top_logprobs_num"]) == (
        [1, 2],
        "r1",
        True,
        2,
    )
    assert body["sampling_params"] == {
        "max_new_tokens": 9, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1,
        "stop_token_ids": [7], "skip_special_tokens": False, "no_stop_trim": True, "sampling_seed": 3,
    }  # fmt: skip
    assert Sglang().body(GREEDY)["sampling_params"]["top_k"] == -1
    assert Sglang().abort("r1") == ("/abort_request", {"rid": "r1"})


@pytest.mark.parametrize("incremental", [False, True])
def test_sglangs_events_hold_all_ids_so_far_or_the_new_ones(incremental):
    api, all_ids, found = Sglang(), [5, 6, 8, 9, 7], []
    for start, end in ((0, 1), (1, 3), (3, 3), (3, 5)):
        reason = {"type": "stop", "matched": 7} if end == 5 else None
        drawn = [[-0.1 * each, each, None] for each in all_ids[start if incremental else 0 : end]]
        likely = [[one, [-9.0, 3, None]] for one in drawn]
        told = {"output_token_logprobs": drawn, "output_top_logprobs": likely, "cached_tokens": 4}
        found.append(api.read(sglang(all_ids[start if incremental else 0 : end], end, reason, **told)))
    assert [tuple(each.ids) for each in found] == [(5,), (6, 8), (), (9, 7)]
    assert [len(each.scores) for each in found] == [1, 2, 0, 2]
    assert found[1].scores[1] == Logprobs(-0.8, ((8, -0.8), (3, -9.0)))
    assert [each.ended for each in found] == [None, None, None, "stop"]
    assert found[0].cached == 4


def test_llama_server_is_asked_for_ids_with_samplers_in_our_order():
    body = LlamaServer().body(GREEDY)
    assert (body["prompt"], body["n_predict"], body["return_tokens"], body["cache_prompt"]) == (
        [1, 2],
        9,
        True,
        True,
    )
    assert (body["samplers"], body["top_k"]) == (["penalties", "top_k"], 1)
    body = LlamaServer().body(DRAWN)
    assert body["samplers"] == ["penalties", "top_k", "top_p", "min_p", "temperature"]
    assert (body["n_probs"], body["seed"], body["repeat_penalty"]) == (2, 3, 1.1)
    assert LlamaServer().body(Asked((1,), Sampling(logprobs=0), 1, (), None, "r"))["n_probs"] == 1


def test_llama_servers_events():
    api = LlamaServer()
    probability = {
        "id": 5,
        "token": "a",
        "logprob": -0.25,
        "top_logprobs": [{"id": 5, "token": "a", "logprob": -0.25}],
    }
    event = {
        "content": "a",
        "tokens": [5],
        "tokens_predicted": 1,
        "stop": False,
        "completion_probabilities": [probability],
    }
    assert api.read(event) == Chunk((5,), (Logprobs(-0.25, ((5, -0.25),)),))
    last = {
        "content": "",
        "tokens": [],
        "tokens_predicted": 1,
        "stop": True,
        "stop_type": "eos",
        "timings": {"cache_n": 3},
    }
    assert api.read(last) == Chunk((), (), 3, "stop")
    assert api.read({**last, "stop_type": "limit"}).ended == "length"


def test_llama_server_leaves_out_the_tokens_of_a_character_but_the_last():
    api = LlamaServer()
    event = {"content": "a", "tokens": [5], "tokens_predicted": 1, "stop": False}
    assert api.read(event) == Chunk((5,))
    assert api.read({**event, "content": "\u20ac", "tokens": [6], "tokens_predicted": 4}) == Chunk(
        (6,), lost=2, text="\u20ac"
    )
    with pytest.raises(StreamBroken, match="fewer tokens than it sends"):
        api.read({**event, "tokens_predicted": 4})


@pytest.mark.parametrize(
    ("api", "event"),
    [
        (VllmTokens(), []),
        (VllmTokens(), {"choices": [7]}),
        (VllmTokens(), vllm(["5"])),
        (VllmTokens(), vllm([True])),
        (VllmCompletions(), {"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [-1], "top_logprobs": [{"a": -1}]}}]}),
        (Sglang(), {"output_ids": [5]}),
        (Sglang(), sglang([5], 2)),
        (Sglang(), sglang([5.0], 1)),
        (Sglang(), sglang([5], 1, cached_tokens="x")),
        (VllmTokens(), vllm([5]) | {"usage": {"prompt_tokens_details": {"cached_tokens": "x"}}}),
        (LlamaServer(), {"content": "a"}),
        (LlamaServer(), {"tokens": None, "stop": False}),
        (LlamaServer(), {"tokens": [], "stop": True, "stop_type": "eos"}),
        (LlamaServer(), "text"),
    ],
)  # fmt: skip
def test_an_event_that_makes_no_sense_breaks_the_stream(api, event):
    with pytest.raises(StreamBroken, match="makes no sense"):
        api.read(event)


def test_sglang_cannot_take_back_what_it_sent():
    api = Sglang()
    api.read(sglang([5, 6], 2))
    with pytest.raises(StreamBroken, match="other tokens than it sends"):
        api.read(sglang([5], 1))


HOT = Asked([1, 2], Sampling(temperature=0.7, logprobs=0), 9, [7], None, "r1")


@pytest.mark.parametrize(
    ("api", "asked", "body"),
    [
        (VllmTokens, HOT, {
            "request_id": "r1", "token_ids": [1, 2], "stream": True, "stream_options": {"include_usage": True},
            "sampling_params": {
                "max_tokens": 9, "temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
                "stop_token_ids": [7], "skip_special_tokens": False, "detokenize": False, "logprobs": 0,
            },
        }),
        (VllmCompletions, DRAWN, {
            "prompt": [1, 2], "model": "m", "stream": True, "stream_options": {"include_usage": True},
            "return_token_ids": True, "add_special_tokens": False, "logprobs": 2, "return_tokens_as_token_ids": True,
            "max_tokens": 9, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1,
            "stop_token_ids": [7], "skip_special_tokens": False, "seed": 3,
        }),
        (VllmCompletions, GREEDY, {
            "prompt": [1, 2], "model": "m", "stream": True, "stream_options": {"include_usage": True},
            "return_token_ids": True, "add_special_tokens": False,
            "max_tokens": 9, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
            "stop_token_ids": [7, 2], "skip_special_tokens": False,
        }),
        (Sglang, HOT, {
            "rid": "r1", "input_ids": [1, 2], "stream": True, "return_logprob": True, "top_logprobs_num": 0,
            "sampling_params": {
                "max_new_tokens": 9, "temperature": 0.7, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
                "repetition_penalty": 1.0, "stop_token_ids": [7], "skip_special_tokens": False, "no_stop_trim": True,
            },
        }),
        (LlamaServer, HOT, {
            "prompt": [1, 2], "n_predict": 9, "stream": True, "return_tokens": True, "cache_prompt": True,
            "repeat_penalty": 1.0, "repeat_last_n": 64, "temperature": 0.7, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
            "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"], "n_probs": 1,
        }),
        (LlamaServer, DRAWN, {
            "prompt": [1, 2], "n_predict": 9, "stream": True, "return_tokens": True, "cache_prompt": True,
            "repeat_penalty": 1.1, "repeat_last_n": 64, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.05,
            "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"], "n_probs": 2, "seed": 3,
        }),
        (LlamaServer, GREEDY, {
            "prompt": [1, 2], "n_predict": 9, "stream": True, "return_tokens": True, "cache_prompt": True,
            "repeat_penalty": 1.0, "repeat_last_n": 64, "samplers": ["penalties", "top_k"], "top_k": 1,
        }),
    ],
)  # fmt: skip
def test_all_that_a_server_is_asked(api, asked, body):
    assert api().body(asked) == body


def test_seeds_are_as_large_as_a_llama_server_takes():
    """The last number of 32 bits is its word for any."""
    for seed, sent in ((0xFFFFFFFE, 0xFFFFFFFE), (0xFFFFFFFF, 0), (-1, 0xFFFFFFFE), (1 << 40, 256)):
        asked = Asked((1,), Sampling(seed=seed), 1, (), None, "r")
        assert LlamaServer().body(asked)["seed"] == sent


@pytest.mark.parametrize(
    ("reason", "ended"), [(None, None), ("stop", "stop"), ("length", "length"), ("repetition", "stop")]
)
def test_why_a_server_ended(reason, ended):
    assert VllmTokens().read(vllm([5], reason)).ended == ended
    assert VllmCompletions().read(vllm([5], reason)).ended == ended
    assert Sglang().read(sglang([5], 1, reason and {"type": reason})).ended == ended
    assert Sglang().read(sglang([5], 1, reason)).ended == ended


def test_a_request_that_a_server_gave_up_has_not_ended():
    for api, event in ((VllmTokens(), vllm([], "abort")), (Sglang(), sglang([5], 1, {"type": "abort"}))):
        with pytest.raises(StreamBroken) as caught:
            api.read(event)
        assert str(caught.value) == "the server gave the request up: its log says why; ask again"


def test_nonsense_is_told_in_few_words():
    with pytest.raises(StreamBroken) as caught:
        Sglang().read(sglang([5], "x" * 200))
    said = f"invalid literal for int() with base 10: '{'x' * 36}..."
    assert str(caught.value) == (
        f"SGLang sent an event that makes no sense (ValueError: {said}): is it another kind of server, or "
        "another version?"
    )


def test_half_a_character_at_the_end_of_a_llama_server_spells_nothing():
    event = {"content": "", "tokens": [], "tokens_predicted": 2, "stop": True, "stop_type": "limit", "timings": {"cache_n": 0}}  # fmt: skip
    assert LlamaServer().read(event) == Chunk((), (), 0, "length")
    assert LlamaServer().read({**event, "content": "ab"}) == Chunk((), (), 0, "length", 2, "ab")
