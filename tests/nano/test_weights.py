"""The committed weights: small, the same in both forms, and able to do what they are for."""

from __future__ import annotations

import json
import random

import pytest

pytest.importorskip("llama_cpp")

from benchmarks.training.tokenizer import SPECIAL
from localagent.hosts.llamacpp import LlamaCppHost
from localagent.hosts.sampling import Sampling
from localagent.nano import GGUF, MLX
from localagent.nano.measure import answer, wrong
from localagent.nano.requests import KINDS, make_requests

pytestmark = pytest.mark.engine

PIECES = [
    *("a", "B", "the", "ing", "Paris", " ", "  ", "\n", "\n\n", "\t", "\r\n", "1", "23", "4567", "'s", "n't"),
    *(
        '"',
        '",',
        "é",
        "日本",
        "😀",
        "\u0301",
        "\u00a0",
        "\u3000",
        "\u0627",
        "½",
        ".",
        "!?",
        '[f(x="',
        '{"a":',
    ),
    *("<|im_", "<think", "\x00", *SPECIAL),
]


@pytest.fixture(scope="module")
def host():
    with LlamaCppHost.load(GGUF, context=4096, threads=1) as host:
        yield host


def test_the_weights_fit_in_a_wheel():
    folder = GGUF.parent
    assert sum(path.stat().st_size for path in folder.rglob("*")) < 4_800_000
    assert {path.name for path in MLX.iterdir()} == {
        *(
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
        )
    }


def test_both_tokenizers_agree(host):
    tokenizers = pytest.importorskip("tokenizers")
    huggingface = tokenizers.Tokenizer.from_file(str(MLX / "tokenizer.json"))
    rng = random.Random(1)
    texts = ["".join(rng.choices(PIECES, k=rng.randint(1, 12))) for _ in range(1500)]
    texts += [request.output for kind in KINDS for request in make_requests(kind, 5, seed=11)]
    for text in texts:
        ids = huggingface.encode(text, add_special_tokens=False).ids
        assert list(host.tokenize(text, special=True)) == ids, text
        assert huggingface.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("kind", KINDS)
def test_requests_are_answered_exactly(host, kind):
    requests = make_requests(kind, 4, seed=12)
    missed = list(wrong(host, requests))
    assert len(missed) <= 1, missed


def test_a_conversation_by_hand(host):
    asked = [{"role": "user", "content": "Hello!"}]
    prompt = host.render(asked)
    assert "".join(t.text for t in host.generate(prompt, Sampling())) == "Hello! How can I help?<|im_end|>"


@pytest.mark.filterwarnings("ignore")
def test_mlx_writes_the_same(host):
    pytest.importorskip("mlx_lm")
    from mlx_lm import load, stream_generate

    model, tokenizer = load(str(MLX))
    for kind in ("single", "answers", "think_call"):
        (request,) = make_requests(kind, 1, seed=13)
        prompt = tokenizer.apply_chat_template(
            list(request.messages), tools=list(request.tools) or None, add_generation_prompt=True
        )
        ids = [step.token for step in stream_generate(model, tokenizer, prompt, max_tokens=200)]
        assert tokenizer.decode(ids, skip_special_tokens=False).removesuffix("<|im_end|>") == answer(
            host, request
        )


def test_config_says_what_the_file_is():
    config = json.loads((MLX / "config.json").read_text())
    assert config["model_type"] == "lfm2"
    assert config["max_position_embeddings"] == 4096
