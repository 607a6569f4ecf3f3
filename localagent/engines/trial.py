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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from localagent.hosts.backends import BACKENDS

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
    row = BACKENDS[backend]
    assert row.trial is not None, "only those with a trial are tried"
    tell("doing", f"importing {' and '.join(row.packages)}")
    trial = row.trial()
    tell("facts", trial.facts)
    plain = _weights(backend)
    with tempfile.TemporaryDirectory() as folder:
        for kind in (None, *trial.kinds):
            model = MODEL if kind is None else f"{MODEL} quantized to {kind}"
            question = GREETING if kind is not None and trial.slow else WEATHER
            tell("doing", f"running {model}")
            target = Path(folder) / f"{kind}{plain.suffix}"
            weights = plain if kind is None else trial.quantize(plain, target, kind)
            answer = ask(trial.load(weights), question)
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


def _weights(backend: str) -> Path:
    from localagent.catalog import PathSource, load_catalog

    source = load_catalog().get(MODEL).sources[backend]
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
        if isinstance(cause, ModuleNotFoundError) and cause.name in BACKENDS[backend].modules:
            tell("missing", True)
        else:
            tell("wrong", f"cannot be imported: {type(cause).__name__}: {cause}")
    except Exception as error:
        tell("error", f"{type(error).__name__}: {error}")
    return 0
