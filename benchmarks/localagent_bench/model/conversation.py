"""What a turn of a long conversation costs before its first token, with the prefix reused and without.

A conversation is held with reuse, and then read again turn by turn in a second copy of the model, which keeps
nothing. Both go on with the words of the first. On weights of 16 bits they write the same tokens. With
quantized ones llama.cpp's sums depend on how many tokens it computes at once, and a turn that was written
token by token is read in one piece when nothing is reused: where two tokens are nearly as likely, the other
one may be chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from localagent.errors import ContextOverflow, NotEnoughMemory
from localagent.messages import Message, ToolMessage, UserMessage
from localagent.model import Model
from localagent.nano.requests import Request, make_requests
from localagent.turn import Done
from localagent_bench.model.sides import Arrivals, Opened, Opener, quantized
from localagent_bench.model.speed import Tell
from localagent_bench.results import Chart, Column, Results, Table
from localagent_bench.statistics import spread

REUSE = Table(
    "model.reuse",
    "First token, turn by turn",
    (
        Column("side", "model"),
        Column("turn", "turn"),
        Column("prompt", "prompt", "tokens"),
        Column("new", "new", "tokens"),
        Column("prefilled", "prefilled", "tokens", "less"),
        Column("first", "first token", "ms", "less", 1),
        Column("first_low", "least", "ms", decimals=1),
        Column("first_high", "most", "ms", decimals=1),
        Column("cold", "without reuse", "ms", "less", 1),
        Column("cold_low", "least", "ms", decimals=1),
        Column("cold_high", "most", "ms", decimals=1),
        Column("same", "same tokens"),
    ),
    "The same conversation with its prefix reused and without: from the request to the first token, the "
    "template's rendering included; the median of the rounds, the least and the most. New: tokens that were "
    "not in the turn before. What is prefilled beside them is the last token of that turn, which was drawn "
    "and not evaluated, and what the template writes differently when it shows a turn again.",
    (Chart("lines", "prompt", ("first", "cold"), "Time to the first token, ms", "side"),),
    within="turn",
)
QUESTIONS = (
    "Name three colours of the rainbow.",
    "Which of them is the warmest?",
    "Tell me one fact about the sea.",
    "And one about the moon.",
    "What is a good name for a dog?",
    "Write one sentence about winter.",
    "What do bees make?",
    "Name a city in Italy.",
    "What can I cook with rice?",
    "Say goodbye in three words.",
)
_OPTIONS: dict[str, Any] = {"max_tokens": 60, "temperature": 0.0, "top_p": None}


@dataclass(slots=True)
class MeasuredTurn:
    """One turn of the model: what it was asked, and what it wrote."""

    history: tuple[Message, ...]
    done: Done
    first: list[float] = field(default_factory=list)
    """Milliseconds to the first token, round by round."""
    cold: list[float] = field(default_factory=list)
    same: bool = True


def measure_reuse(
    results: Results, sides: Sequence[Opened], load: Opener, exchanges: int, rounds: int, tell: Tell
) -> list[str]:
    """Add the rows of `REUSE`. Returns the turns that differ although the weights are not quantized."""
    faults = []
    for side in sides:
        if side.own:
            turns = _measure(results, side, load, exchanges, rounds, tell)
            if not all(turn.same for turn in turns) and _exact(side):
                faults.append(f"{side.name}: reusing a prefix has changed the tokens")
    return faults


def _measure(
    results: Results, side: Opened, load: Opener, exchanges: int, rounds: int, tell: Tell
) -> list[MeasuredTurn]:
    asked, tools = _requests(exchanges) if side.nano else ([], [])
    texts = [request.messages[-1]["content"] for request in asked]
    texts = texts or [QUESTIONS[number % len(QUESTIONS)] for number in range(exchanges)]
    what = f"conversation, {side.name}"
    turns: list[MeasuredTurn] = []
    try:
        tell(what, 0, 2 * rounds)
        for turn, first in _hold(side, texts, tools):
            turns.append(turn)
            turn.first.append(first)
        for number in range(1, rounds):
            tell(what, number, 2 * rounds)
            for turn, (done, first) in zip(turns, _again(side, number, turns, tools), strict=True):
                turn.first.append(first)
                turn.same &= done.token_ids == turn.done.token_ids
        with load(side.side.model, {**side.side.loading, "prefix_cache": 0}) as model:
            cold = Opened(side.side, model, None, 0)
            list(model.stream("Warm up. " * 20, max_tokens=2))
            for number in range(rounds):
                tell(what, rounds + number, 2 * rounds)
                for turn, (done, first) in zip(turns, _again(cold, number, turns, tools), strict=True):
                    turn.cold.append(first)
                    turn.same &= done.token_ids == turn.done.token_ids
        tell(what, 2 * rounds, 2 * rounds)
    except ContextOverflow as error:
        results.skip(f"the rest of the conversation with {side.name}", str(error))
    except NotEnoughMemory as error:
        results.skip(f"the conversation with {side.name} without reuse", str(error))
    finally:
        _add(results, side, turns)
    return turns


def _hold(
    side: Opened, texts: Sequence[str], tools: list[dict[str, Any]]
) -> Iterator[tuple[MeasuredTurn, float]]:
    """The conversation, turn by turn, and milliseconds to the first token."""
    model, arrivals = side.view("conversation 0")
    history: list[Message] = []
    for text in texts:
        history.append(UserMessage.text(text))
        done, first = _turn(model, arrivals, history, tools)
        yield MeasuredTurn(tuple(history), done), first
        history.append(message := done.message)
        if message.tool_calls:
            history.append(ToolMessage(content=tuple(call.result("ok") for call in message.tool_calls)))
            done, first = _turn(model, arrivals, history, tools)
            yield MeasuredTurn(tuple(history), done), first
            history.append(done.message)


def _again(
    side: Opened, number: int, turns: Sequence[MeasuredTurn], tools: list[dict[str, Any]]
) -> Iterator[tuple[Done, float]]:
    model, arrivals = side.view(f"conversation {number}")  # of its own: nothing is there to be reused
    for turn in turns:
        yield _turn(model, arrivals, turn.history, tools)


def _turn(
    model: Model, arrivals: Arrivals, history: Sequence[Message], tools: list[dict[str, Any]]
) -> tuple[Done, float]:
    began = perf_counter()
    *_, done = model.stream(list(history), tools=tools or None, **_OPTIONS)
    assert isinstance(done, Done)
    return done, 1e3 * (arrivals.times[0] - began)


def _requests(exchanges: int) -> tuple[list[Request], list[dict[str, Any]]]:
    """Requests that all can be answered with the tools of the first."""
    drawn = iter(make_requests("single", 40 * exchanges + 60, seed=11))
    first = next(request for request in drawn if len(request.tools) == 4)
    names = {tool["function"]["name"] for tool in first.tools}
    fitting = [first, *(request for request in drawn if request.calls[0][0] in names)]
    return fitting[:exchanges], list(first.tools)


def _exact(side: Opened) -> bool:
    return quantized(side.side.model, side.side.loading.get("backend")) is False


def _add(results: Results, side: Opened, turns: Sequence[MeasuredTurn]) -> None:
    before = 0
    for number, turn in enumerate(turns, 1):
        usage = turn.done.message.usage
        cells: dict[str, Any] = {}
        for what, values in (("first", turn.first), ("cold", turn.cold)):
            if values:
                middle = spread(values)
                cells |= {what: middle.value, f"{what}_low": middle.low, f"{what}_high": middle.high}
        results.add(
            REUSE,
            side=side.name,
            turn=number,
            prompt=usage.input,
            new=usage.input - before,
            prefilled=usage.prefilled,
            same=turn.same if turn.cold else None,
            **cells,
        )
        before = usage.input + usage.output
