"""Streams of a real vLLM, recorded by `record.py`, read wherever the network cuts them; and as SGLang, of which there
is no recording, sends the same tokens by its definition, in both of its modes.
"""

from __future__ import annotations

import json
from itertools import accumulate, pairwise
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.errors import ContextOverflow, StreamBroken
from localagent.hosts.protocol import Logprobs
from localagent.hosts.sampling import Sampling
from localagent.nano import MLX
from localagent.remote.server import Answer, Server
from localagent.remote.tokens import generation as module
from localagent.remote.tokens.apis import Api, Chunk, Sglang, VllmCompletions, VllmTokens
from localagent.remote.tokens.host import TokenHost
from localagent.remote.tokens.vocabulary import read_model_files
from tests.remote.scripted import head, scripted, whole
from tests.remote.tokens.record import FOLDER

FILES = sorted(FOLDER.glob("*.json"))
RECORDED = {path.stem: json.loads(path.read_text()) for path in FILES}
WHOLE = [name for name, entry in RECORDED.items() if entry["whole"]]
APIS: dict[str, type[Api]] = {api.path: api for api in (VllmTokens, VllmCompletions)}
CUTS = st.lists(st.integers(1, 400), max_size=40)


def frames(data: bytes, sizes: list[int]) -> list[Any]:
    """The events of an answer that arrives in pieces of these sizes, and then all the rest."""
    ends = [0, *accumulate(sizes), len(data)]
    pieces = (data[begin:end] for begin, end in pairwise(ends) if begin < len(data))
    response = httpx2.Response(200, content=pieces)
    return list(Answer(Server.at("http://127.0.0.1:1"), response).frames())


def joined(api: Api, events: list[Any]) -> tuple[tuple[int, ...], tuple[Logprobs, ...], Chunk]:
    """The tokens and scores of all events, and the reason and counts, wherever they stood."""
    chunks = [api.read(each) for each in events]
    [ended] = [each.ended for each in chunks if each.ended is not None]
    cached = [each.cached for each in chunks if each.cached is not None]
    return (
        tuple(token for each in chunks for token in each.ids),
        tuple(score for each in chunks for score in each.scores),
        Chunk(ended=ended, cached=cached[-1] if cached else None),
    )


def test_there_are_recordings_of_both_addresses():
    assert {entry["path"] for entry in RECORDED.values()} == set(APIS)
    assert len(WHOLE) >= 10
    assert all(entry["server"].startswith("vLLM ") for entry in RECORDED.values())


@pytest.mark.parametrize("name", WHOLE)
@given(sizes=CUTS)
def test_cut_anywhere_it_is_what_the_server_gives_at_once(name, sizes):
    entry = RECORDED[name]
    api = APIS[entry["path"]]()
    ids, scores, last = joined(api, frames(entry["answer"].encode(), sizes))
    [choice] = entry["whole"]["choices"]
    assert list(ids) == choice["token_ids"]
    assert last.ended == choice["finish_reason"]
    assert last.cached == entry["whole"]["usage"]["prompt_tokens_details"]["cached_tokens"]
    told = choice["logprobs"] or {}
    expected = told.get("token_logprobs") or [each["logprob"] for each in told.get("content") or ()]
    assert [score.token for score in scores] == pytest.approx(expected, abs=1e-4)
    assert len(scores) in (0, len(ids))


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("size", [None, 1, 7, 64])
def test_through_a_host_it_is_the_same_turn(name, size):
    entry = RECORDED[name]
    files = read_model_files(MLX)
    data = entry["answer"].encode()
    pieces = [data] if size is None else [data[at : at + size] for at in range(0, len(data), size)]
    with scripted(routes={entry["path"]: [[head(), *pieces]]}) as server:
        host = TokenHost(
            Server.at(server.url), APIS[entry["path"]], files, name="nano", model="nano", context=2048
        )
        sampling = Sampling(max_tokens=100, logprobs=2 if "logprobs" in json.dumps(entry["asked"]) else None)
        generation = host.generate(host.raw_prompt("Hi."), sampling)
        tokens = list(generation)
    [choice] = entry["whole"]["choices"]
    assert [token.id for token in tokens] == choice["token_ids"]
    assert generation.finish.stop_reason == choice["finish_reason"]
    text = "".join(token.text for token in tokens)
    if "completions" in name:  # its text is without the token that ended it
        assert text.removesuffix("<|im_end|>") == choice["text"]
    assert "required" not in name or text.startswith("<think>")


def test_a_request_that_was_given_up_ends_in_an_error_with_what_came():
    entry = RECORDED["vllm-tokens-aborted"]
    events = frames(entry["answer"].encode(), [])
    api = VllmTokens()
    reasons = [choice["finish_reason"] for each in events for choice in each["choices"]]
    assert reasons[-1] == "abort"
    with pytest.raises(StreamBroken, match="the server gave the request up"):
        for each in events:
            api.read(each)


@pytest.mark.parametrize("name", ["vllm-tokens-refused", "vllm-completions-refused"])
def test_a_prompt_that_is_too_long_is_told_so_and_not_sent_again(name, monkeypatch):
    monkeypatch.setattr(module, "_PAUSE", 0.01)
    entry = RECORDED[name]
    data = entry["answer"].encode()
    answer = [head(), data] if entry["status"] == 200 else whole(data, entry["status"])
    with scripted(routes={entry["path"]: [answer]}) as server:
        files = read_model_files(MLX)
        host = TokenHost(Server.at(server.url), APIS[entry["path"]], files, name="n", model="n", context=4096)
        with pytest.raises(ContextOverflow) as raised:
            list(host.generate(host.raw_prompt("Hi."), Sampling()))
    assert (raised.value.prompt_tokens, raised.value.context) == (2100, 2048)
    assert len(server.asked) == 1


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("name", WHOLE)
@given(data=st.data())
def test_the_same_tokens_as_sglang_sends_them(name, incremental, data):
    """By SGLang's definition of its events; how many tokens one brings depends on how busy it is."""
    [choice] = RECORDED[name]["whole"]["choices"]
    ids = choice["token_ids"]
    ends = sorted({*data.draw(st.lists(st.integers(0, len(ids)), max_size=8)), len(ids)})
    events, begin = [], 0
    for end in ends:
        # What came so far is sent as it stands when it is written down: it may be ahead of the counts beside it.
        ahead = data.draw(st.integers(end, len(ids)))
        sent = ids[begin:end] if incremental else ids[:ahead]
        scores = [[-token / 100, token, None] for token in sent]
        told = {
            "id": "recorded",
            "prompt_tokens": 9,
            "completion_tokens": end,
            "cached_tokens": 4,
            "finish_reason": {"type": choice["finish_reason"]} if end == len(ids) else None,
            "output_token_logprobs": scores,
            "output_top_logprobs": [[score] for score in scores],
        }
        events.append({"text": "", "output_ids": sent, "meta_info": told})
        begin = end
    body = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events) + b"data: [DONE]\n\n"
    found, scored, last = joined(Sglang(), frames(body, data.draw(CUTS)))
    assert list(found) == ids
    assert [score.token for score in scored] == [-token / 100 for token in ids]
    assert (last.ended, last.cached) == (choice["finish_reason"], 4)


@given(name=st.sampled_from(WHOLE), cut=st.floats(0, 1), sizes=CUTS)
def test_half_of_it_is_no_answer_and_none_of_its_tokens_is_another(name, cut, sizes):
    """What ends anywhere has a beginning of the tokens, and no reason to have ended unless that was sent."""
    entry = RECORDED[name]
    data = entry["answer"].encode()
    api = APIS[entry["path"]]()
    [choice] = entry["whole"]["choices"]
    ids: list[int] = []
    ended = None
    for each in frames(data[: int(len(data) * cut)], sizes):
        chunk = api.read(each)
        ids += chunk.ids
        ended = ended or chunk.ended
    assert ids == choice["token_ids"][: len(ids)]
    assert ended is None or ids == choice["token_ids"]
