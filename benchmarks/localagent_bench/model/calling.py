"""Tool calling, task by task: every side is given the same requests and tools, the real way, and judged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from localagent.errors import ConstraintFailed, EngineFailed, GrammarMissing, TemplateFailed, UsageError
from localagent.model import Model
from localagent.turn import Done
from localagent_bench.model.sides import Arrivals, Opened
from localagent_bench.model.speed import Tell
from localagent_bench.model.tasks import Task
from localagent_bench.results import Chart, Column, Results, Table
from localagent_bench.statistics import bootstrap, mcnemar, spread, wilson

_EVERY = "all"
_SHOWN = 500  # characters of an answer that is not exact
TOOLS = Table(
    "model.tools",
    "Tool calling",
    (
        Column("side", "model"),
        Column("set", "tasks of"),
        Column("group", "which"),
        Column("tasks", "tasks"),
        Column("exact", "exact", "%", "more", 1),
        Column("low", "from", "%", decimals=1),
        Column("high", "to", "%", decimals=1),
        Column("calls", "calls"),
        Column("missed", "without a call", "", "less"),
        Column("needless", "needless calls", "", "less"),
        Column("malformed", "malformed", "", "less"),
        Column("refused", "refused", "", "less"),
        Column("cut", "cut off", "", "less"),
        Column("relaxed", "not wholly bounded"),
        Column("tokens", "tokens"),
        Column("seconds", "per task", "s", "less", 3),
        Column("first", "first token", "s", "less", 3),
    ),
    "Exact: names and arguments are right, with Wilson's interval of 95 %. Without a call: one was wanted. "
    "Needless: none was; constraint=required leaves no choice. Malformed: calls that could not be read, "
    "such as those cut off. Refused: the request could not be made, such as a prompt that does not fit. Cut "
    "off: at the limit of tokens. Not wholly bounded: with a constraint, tasks with a tool of whose schema "
    "something is not enforced. Tokens: written in all. Seconds are medians.",
    (Chart("bars", "group", ("exact",), "Exact, %", "side"),),
    within="group",
)
PAIRED = Table(
    "model.paired",
    "The same tasks, side by side",
    (
        Column("side", "model"),
        Column("against", "against"),
        Column("set", "tasks of"),
        Column("tasks", "tasks"),
        Column("exact", "exact", "%", "more", 1),
        Column("other", "against", "%", "more", 1),
        Column("difference", "difference", "points", "more", 1),
        Column("low", "from", "points", decimals=1),
        Column("high", "to", "points", decimals=1),
        Column("gained", "gained"),
        Column("lost", "lost"),
        Column("p", "p", decimals=4),
        Column("time", "seconds, ratio", "", "less", 3),
    ),
    "Gained: tasks that the model does exactly and the one it is held against does not; lost: the other way "
    "round. The difference has the interval of 95 % of 2,000 samples drawn from the tasks anew; p is "
    "McNemar's, exact and two-sided. Seconds: the median of the ratios, task by task.",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a side made of one task."""

    fault: str = ""
    """Why it is not exact; "" if it is."""
    calls: int = 0
    malformed: int = 0
    refused: bool = False
    cut: bool = False
    relaxed: bool = False
    tokens: int = 0
    seconds: float = 0.0
    first: float | None = None
    wrote: str = ""

    @property
    def exact(self) -> bool:
        """Whether the answer is right."""
        return not self.fault


def measure_calling(
    results: Results,
    sides: Sequence[Opened],
    tasks: Sequence[Task],
    name: str,
    options: dict[str, Any],
    seed: int,
    tell: Tell,
) -> None:
    """Add the rows of `TOOLS` and `PAIRED`. `name`: of the set of tasks; `options`: of every turn.

    Each task is given to all sides before the next one, so that what was done is comparable whenever it ends.
    """
    askers: list[Asker] = []
    for side in sides:
        if side.model.dialect.renderers:
            askers.append(asker := Asker(side, options))
            if tasks and not asker.shows(tasks[0]):
                results.skip(
                    f"the chat template of {side.name}",
                    "shows no tools: a system message tells of them instead",
                )
        else:
            results.skip(
                f"tool calling of {side.name}",
                f"its dialect {side.model.dialect.name!r} has no calls: if it does write some, name the "
                "dialect with --dialect",
            )
    done: list[tuple[Task, list[Outcome]]] = []
    try:
        for at, task in enumerate(tasks if askers else ()):
            tell(f"tool calling, {name}", at, len(tasks))
            found = {asker.name: asker.ask(task) for asker in (askers if at % 2 else askers[::-1])}
            outcomes = [found[asker.name] for asker in askers]
            done.append((task, outcomes))
            for asker, outcome in zip(askers, outcomes, strict=True):
                if not outcome.exact:
                    told = {"fault": outcome.fault, "wrote": outcome.wrote[:_SHOWN]}
                    results.case(TOOLS, side=asker.name, id=task.id, group=task.kind, **told)
        tell(f"tool calling, {name}", len(tasks), len(tasks))
    finally:
        for number, asker in enumerate(askers):
            mine = [(task, outcomes[number]) for task, outcomes in done]
            for group, some in _grouped(mine):
                _add(results, asker.name, name, group, some)
        for number, asker in enumerate(askers[1:] if done else (), 1):
            pairs = [(outcomes[number], outcomes[0]) for _, outcomes in done]
            _add_pairs(results, (asker.name, askers[0].name), name, pairs, seed)


class Asker:
    """Gives tasks to one side. What a task before has left evaluated is not reused: times are comparable."""

    def __init__(self, side: Opened, options: dict[str, Any]) -> None:
        self.name = side.name
        self._side = side
        self._options = {**options, **side.side.turn}
        self._asked = 0
        self._shown: bool | None = None

    def shows(self, task: Task) -> bool:
        """Whether the model's chat template shows the tools."""
        if self._shown is None:
            model, self._shown = self._side.model, True
            with suppress(UsageError, TemplateFailed):  # which asking will raise again
                text = model.render("Hello.", tools=task.tools).text
                self._shown = all(tool["function"]["name"] in text for tool in task.tools)
        return self._shown

    def ask(self, task: Task) -> Outcome:
        """One task."""
        self._asked += 1
        model, arrivals = self._side.view(f"{self.name}, task {self._asked}")
        messages = list(task.messages)
        began = perf_counter()
        try:
            if not self.shows(task):
                messages = _with_tools(messages, task, model)
            return self._outcome(task, model, arrivals, messages, began)
        except (UsageError, TemplateFailed, GrammarMissing, ConstraintFailed, EngineFailed) as error:
            fault = f"refused: {type(error).__name__}"
            return Outcome(fault, refused=True, seconds=perf_counter() - began, wrote=str(error))

    def _outcome(
        self, task: Task, model: Model, arrivals: Arrivals, messages: list[dict[str, Any]], began: float
    ) -> Outcome:
        *_, done = model.stream(messages, tools=task.tools, **self._options)
        seconds = perf_counter() - began
        assert isinstance(done, Done)
        message = done.message
        return Outcome(
            task.judge(message),
            len(message.tool_calls),
            len(message.malformed_tool_calls),
            cut=message.stop_reason == "length",
            relaxed=bool(done.relaxed),
            tokens=message.usage.output,
            seconds=seconds,
            first=arrivals.times[0] - began if arrivals.times else None,
            wrote=message.raw or "",
        )


def _with_tools(messages: list[dict[str, Any]], task: Task, model: Model) -> list[dict[str, Any]]:
    """The messages, with a system message of what tools there are and how they are called."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in task.tools)
    example = model.dialect.render([("NAME", {"ARGUMENT": "VALUE"})])
    told = f"You can call these functions:\n{listed}\nTo call one, write:\n{example}"
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n{told}"}, *messages[1:]]
    return [{"role": "system", "content": told}, *messages]


def _grouped(pairs: Sequence[tuple[Task, Any]]) -> Iterable[tuple[str, list[tuple[Task, Any]]]]:
    """All of them, and where there are several kinds those of each."""
    if not pairs:
        return
    kinds = dict.fromkeys(task.kind for task, _ in pairs)
    yield _EVERY, list(pairs)
    if len(kinds) > 1:
        for kind in kinds:
            yield kind, [each for each in pairs if each[0].kind == kind]


def _add(results: Results, side: str, name: str, group: str, found: list[tuple[Task, Outcome]]) -> None:
    outcomes = [outcome for _, outcome in found]
    share = wilson(sum(each.exact for each in outcomes), len(outcomes))
    answered = [(task, each) for task, each in found if not each.refused]
    firsts = [each.first for each in outcomes if each.first is not None]
    results.add(
        TOOLS,
        side=side,
        set=name,
        group=group,
        tasks=len(outcomes),
        exact=100 * share.value,
        low=100 * share.low,
        high=100 * share.high,
        calls=sum(each.calls for each in outcomes),
        missed=sum(task.calls and not each.calls for task, each in answered),
        needless=sum(bool(each.calls) and not task.calls for task, each in answered),
        malformed=sum(each.malformed for each in outcomes),
        refused=sum(each.refused for each in outcomes),
        cut=sum(each.cut for each in outcomes),
        relaxed=sum(each.relaxed for each in outcomes),
        tokens=sum(each.tokens for each in outcomes),
        seconds=median(each.seconds for _, each in answered) if answered else None,
        first=median(firsts) if firsts else None,
    )


def _add_pairs(
    results: Results,
    names: tuple[str, str],
    name: str,
    pairs: Sequence[tuple[Outcome, Outcome]],
    seed: int,
) -> None:
    gained = sum(mine.exact and not other.exact for mine, other in pairs)
    lost = sum(other.exact and not mine.exact for mine, other in pairs)
    difference = bootstrap([100.0 * (mine.exact - other.exact) for mine, other in pairs], seed)
    ratios = [mine.seconds / other.seconds for mine, other in pairs if not (mine.refused or other.refused)]
    results.add(
        PAIRED,
        side=names[0],
        against=names[1],
        set=name,
        tasks=len(pairs),
        exact=100 * sum(mine.exact for mine, _ in pairs) / len(pairs),
        other=100 * sum(other.exact for _, other in pairs) / len(pairs),
        difference=difference.value,
        low=difference.low,
        high=difference.high,
        gained=gained,
        lost=lost,
        p=mcnemar(gained, lost),
        time=spread(ratios).value if ratios else None,
    )
