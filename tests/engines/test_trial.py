"""What lfm2-nano must write is far from anything else it could write, so that rounding cannot change it.

And what a trial tells on the way, however it ends.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp")

from localagent.engines import trial
from localagent.engines.trial import GREETING, WEATHER, ask
from localagent.errors import EngineMissing
from localagent.hosts.backend import Trial
from localagent.hosts.backends import BACKENDS
from localagent.hosts.llamacpp.backend import LLAMACPP
from localagent.hosts.llamacpp.host import LlamaCppHost
from localagent.hosts.llamacpp.library import quantize
from localagent.hosts.sampling import Sampling
from localagent.nano import GGUF

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("kind", [None, "Q8_0", "Q4_0"])
@pytest.mark.parametrize("question", [WEATHER, GREETING], ids=["weather", "greeting"])
def test_the_next_best_token_is_never_close(tmp_path, kind, question):
    path = GGUF if kind is None else quantize(GGUF, tmp_path / "quantized.gguf", kind)
    with LlamaCppHost.load(path, context=512, threads=1) as host:
        prompt = host.render([{"role": "user", "content": question.text}], tools=question.tools)
        generation = host.generate(prompt, Sampling(max_tokens=40, logprobs=2))
        tokens = list(generation)
    assert "".join(token.text for token in tokens) == question.wanted
    for token in tokens:
        (_, best), (_, second) = token.logprobs.top[:2]
        assert best - second > 1.0, (token.text, best, second)


def test_the_host_is_closed_afterwards():
    host = LlamaCppHost.load(GGUF, context=512, threads=1)
    assert ask(host, GREETING) == GREETING.wanted
    with pytest.raises(Exception, match="closed"):
        host.tokenize("x", special=False)


@pytest.mark.parametrize(
    ("backend", "importing", "models"),
    [
        ("llamacpp", "llama_cpp", ["", " quantized to Q8_0", " quantized to Q4_0"]),
        ("mlx", "mlx and mlx_lm", ["", " quantized to 8 bit"]),
    ],
)
def test_every_step_is_told_before_it_is_taken(backend: str, importing: str, models: list[str]) -> None:
    if backend == "mlx":
        pytest.importorskip("mlx_lm")
    told: list[tuple[str, Any]] = []
    trial.try_engine(backend, lambda what, value: told.append((what, value)))
    facts = told.pop(1)
    assert facts[0] == "facts"
    assert {"version", "gpu", "devices"} < {*facts[1]}
    steps = [
        (what, f"{word}lfm2-nano{each}")
        for each in models
        for what, word in (("doing", "running "), ("ran", ""))
    ]
    assert told == [("doing", f"importing {importing}"), *steps, ("done", True)]


def test_wrong_tokens_end_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, Any]] = []
    answers = {"plain": WEATHER.wanted, "second": "x" * 200}

    def quantize(source: Path, target: Path, kind: str) -> Path:
        assert target.name == f"second{source.suffix}"
        return Path(kind)

    def engine() -> Trial:
        return Trial({"version": "1"}, lambda path: path, quantize, ("second", "third"), slow=True)  # type: ignore[arg-type, return-value]

    monkeypatch.setitem(BACKENDS, "llamacpp", dataclasses.replace(LLAMACPP, trial=engine))
    monkeypatch.setattr(trial, "ask", lambda path, _: answers.get(str(path), WEATHER.wanted))
    trial.try_engine("llamacpp", lambda what, value: told.append((what, value)))
    assert told == [
        ("doing", "importing llama_cpp"),
        ("facts", {"version": "1"}),
        ("doing", "running lfm2-nano"),
        ("ran", "lfm2-nano"),
        ("doing", "running lfm2-nano quantized to second"),
        (
            "wrong",
            f"computes wrong tokens: lfm2-nano quantized to second wrote '{'x' * 119} and must write "
            "'Hello! How can I help?<|im_end|>'",
        ),
    ]


def missing(cause: Exception) -> EngineMissing:
    error = EngineMissing("install it")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("backend", "error", "told"),
    [
        ("llamacpp", missing(ModuleNotFoundError("no", name="llama_cpp")), {"missing": True}),
        ("mlx", missing(ModuleNotFoundError("no", name="mlx.core")), {"missing": True}),
        ("mlx", missing(ModuleNotFoundError("no", name="mlx_lm")), {"missing": True}),
        (
            "llamacpp",
            missing(ModuleNotFoundError("no mlx", name="mlx")),
            {"wrong": "cannot be imported: ModuleNotFoundError: no mlx"},
        ),
        (
            "mlx",
            missing(ImportError("libmlx.so", name="mlx")),
            {"wrong": "cannot be imported: ImportError: libmlx.so"},
        ),
        ("mlx", MemoryError("no room"), {"error": "MemoryError: no room"}),
    ],
)
def test_what_prevents_a_trial_is_told(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    backend: str,
    error: Exception,
    told: Any,
) -> None:
    """After half a line of the engine's own, too."""

    def fail(name: str, tell: Any) -> None:
        assert name == backend
        print("half", end="")
        tell("doing", "something")
        raise error

    monkeypatch.setattr(trial, "try_engine", fail)
    assert trial.main(backend) == 0
    assert capsys.readouterr().out == f'half\n{{"doing": "something"}}\n\n{json.dumps(told)}\n'
