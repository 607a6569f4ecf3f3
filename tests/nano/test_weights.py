"""The committed weights: small, the same in both forms, and able to do what they are for."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace

import pytest

pytest.importorskip("llama_cpp")

from localagent.hosts.llamacpp.host import LlamaCppHost
from localagent.hosts.sampling import Sampling
from localagent.nano import GGUF, MLX
from localagent.nano.requests import KINDS, make_requests
from localagent_bench.training import measure
from localagent_bench.training.measure import answer, wrong
from localagent_bench.training.tokenizer import SPECIAL

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


def test_a_measurement_takes_the_likeliest_tokens(host):
    """Of a request that the model does not know: at random it would answer otherwise each time."""
    (known,) = make_requests("single", 1, seed=12)
    odd = replace(known, messages=({"role": "user", "content": "x"},))
    assert len({answer(host, odd) for _ in range(12)}) == 1


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


@pytest.fixture
def measured(monkeypatch, capsys, tmp_path):
    """The answers to a kind's requests are right if the list says so; what is printed is the result."""

    class Loaded:
        closed = 0

        def close(self):
            self.closed += 1

    def run(*options, right=()):
        host, loads, asked, told = Loaded(), [], [], iter(right)
        monkeypatch.setattr(sys, "argv", ["measure", *options])
        monkeypatch.setattr(
            LlamaCppHost, "load", lambda *given, **named: loads.append((given, named)) or host
        )

        def answered(_, request):
            asked.append(request)
            return request.output if next(told, True) else "something else"

        monkeypatch.setattr(measure, "answer", answered)
        measure.main()
        assert host.closed == 1
        return loads, asked, capsys.readouterr().out.splitlines()

    return run


def test_a_measurement_asks_as_many_of_each_kind_as_it_says(measured, tmp_path):
    file = tmp_path / "trained.gguf"
    options = ("--count", "2", "--seed", "9", "--threads", "3", "--weights", str(file))
    loads, asked, lines = measured(*options, right=[True, False, False, False])
    assert loads == [((file,), {"threads": 3})]
    assert asked == [request for kind in KINDS for request in make_requests(kind, 2, 9)]
    assert [line.split() for line in lines] == [
        [kind, right, "of", "2"]
        for kind, right in zip(KINDS, ["1", "0", *"2" * (len(KINDS) - 2)], strict=True)
    ]


def test_a_measurement_is_of_the_weights_in_the_package(measured):
    loads, asked, lines = measured()
    assert loads == [((GGUF,), {"threads": 1})]
    assert asked == [request for kind in KINDS for request in make_requests(kind, 200, 1)]
    assert {line.split(maxsplit=1)[1] for line in lines} == {"200 of 200"}


def test_wrong_answers_are_shown_on_request(measured):
    _, (request, *_), lines = measured("--count", "1", "--show", right=[False])
    assert [line.split() for line in lines[1:4]] == [
        ["asked", *repr(request.messages[-1]["content"]).split()],
        ["wanted", *repr(request.output).split()],
        ["wrote", "'something", "else'"],
    ]
    assert len(lines) == len(KINDS) + 3


def test_a_measurement_says_what_can_be_asked_of_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["measure", "--help"])
    with pytest.raises(SystemExit):
        measure.main()
    told = " ".join(capsys.readouterr().out.split())
    for said in (
        *("Measure lfm2-nano on llama.cpp.", "--count COUNT requests of each kind", "--weights WEIGHTS"),
        *("--threads THREADS one is quickest for so small a model", "--show print the wrong answers"),
    ):
        assert said in told
