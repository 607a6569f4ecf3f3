"""The child process of a check: it runs the engine through the host that models run on.

lfm2-nano answers one question, first with its own weights, then with weights that the engine quantizes, since
quantized weights use other kernels and most models are quantized. The child writes lines of JSON: `doing`
before each step, so that a crash can be located, `facts`, `ran` for each model, and at the end `done`,
`missing`, `wrong` with what is wrong with the engine, or `error` with what prevented the trial.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from localagent.hosts.host import EngineHost

MODEL: Final = "lfm2-nano"


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt for the model, and the text that it must write when decoding greedily.

    The second-best token is never close (see tests/engines/test_trial.py), so rounding that differs between
    processors changes nothing.
    """

    text: str
    tools: tuple[dict[str, Any], ...]
    wanted: str


WEATHER: Final = Question(
    "What is the weather in Paris?",
    (
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "The weather in a city.",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}},
                    "required": ["city"],
                },
            },
        },
    ),
    '<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|><|im_end|>',
)
GREETING: Final = Question("Hello!", (), "Hello! How can I help?<|im_end|>")


def try_engine(backend: str, tell: Callable[[str, Any], None]) -> None:
    """Run the engine and report each step through `tell`."""
    load, quantized = _ENGINES[backend](tell)
    plain = _weights(backend)
    with tempfile.TemporaryDirectory() as folder:
        trials: list[tuple[str, Callable[[], Path], Question]] = [(MODEL, lambda: plain, WEATHER)]
        for kind, quantize, question in quantized:
            target = Path(folder) / f"{kind}{plain.suffix}"
            trials.append((f"{MODEL} quantized to {kind}", partial(quantize, plain, target, kind), question))
        for model, weights, question in trials:
            tell("doing", f"running {model}")
            answer = ask(load(weights()), question)
            if answer != question.wanted:
                wrong = f"{model} wrote {answer!r:.120} and must write {question.wanted!r}"
                tell("wrong", f"computes wrong tokens: {wrong}")
                return
            tell("ran", model)
    tell("done", True)


def ask(host: EngineHost, question: Question) -> str:
    """What the model writes when decoding greedily. Closes the host."""
    from localagent.hosts.sampling import Sampling

    with host:
        prompt = host.render([{"role": "user", "content": question.text}], tools=question.tools)
        return "".join(token.text for token in host.generate(prompt, Sampling(max_tokens=40)))


Quantize = Callable[[Path, Path, str], Path]
Loader = Callable[[Path], "EngineHost"]
Trials = tuple[Loader, list[tuple[str, Quantize, Question]]]


def _llamacpp(tell: Callable[[str, Any], None]) -> Trials:
    tell("doing", "importing llama_cpp")
    from localagent.hosts.llamacpp import LlamaCppHost
    from localagent.hosts.llamacpp.library import describe, quantize

    tell("facts", describe())
    return partial(LlamaCppHost.load, context=512, threads=1), [
        ("Q8_0", quantize, WEATHER),
        ("Q4_0", quantize, WEATHER),
    ]


def _mlx(tell: Callable[[str, Any], None]) -> Trials:
    tell("doing", "importing mlx and mlx_lm")
    from localagent.hosts.mlx.host import MlxHost
    from localagent.hosts.mlx.library import describe, quantize

    tell("facts", describe())
    # The short question: without Metal, quantized weights take 0.1 s a token.
    return partial(MlxHost.load, context=512), [("8 bit", quantize, GREETING)]


_ENGINES: Final = {"llamacpp": _llamacpp, "mlx": _mlx}
_PACKAGES: Final = {"llamacpp": ("llama_cpp",), "mlx": ("mlx", "mlx.core", "mlx_lm")}


def _weights(backend: str) -> Path:
    from localagent.catalog import PathSource, load_catalog

    source = load_catalog().get(MODEL).sources[backend]  # type: ignore[index]
    assert isinstance(source, PathSource), "lfm2-nano comes with the package"
    return source.path


def main(backend: str) -> int:
    """Try the engine and report on stdout. The exit code is 0 whatever the result."""
    from localagent.errors import EngineMissing

    def tell(what: str, value: Any) -> None:
        # A newline first, as the engine may have printed half a line; flushed, as the next step may crash.
        sys.stdout.write(f"\n{json.dumps({what: value})}\n")
        sys.stdout.flush()

    try:
        try_engine(backend, tell)
    except EngineMissing as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name in _PACKAGES[backend]:
            tell("missing", True)
        else:
            tell("wrong", f"cannot be imported: {type(cause).__name__}: {cause}")
    except Exception as error:
        tell("error", f"{type(error).__name__}: {error}")
    return 0
