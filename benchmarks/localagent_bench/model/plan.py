"""What is measured, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from localagent.errors import EngineBroken, UsageError
from localagent_bench.bfcl import NoData, find_package
from localagent_bench.model.bfcl import bfcl_tasks
from localagent_bench.model.calling import measure_calling
from localagent_bench.model.conversation import measure_reuse
from localagent_bench.model.sides import Opened, Opener, Side, opened
from localagent_bench.model.speed import Sizes, Tell, measure_speed
from localagent_bench.model.tasks import Task, nano_tasks, sample
from localagent_bench.results import Results

Tools = Literal["nano", "bfcl", "none"]


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """How a benchmark of models was asked for."""

    sides: Sequence[Side]
    """The others are held against the first."""
    sizes: Sizes
    exchanges: int = 10
    """Of the conversation; 0: none."""
    tools: Tools | None = None
    """Which tasks; None: lfm2-nano's own for itself, BFCL's for all others."""
    sample: int | None = 100
    """How many tasks; None: all, which of lfm2-nano's are 2,100."""
    seed: int = 1
    max_tokens: int = 512
    """Of the answer to a task."""


def measure(results: Results, plan: ModelPlan, load: Opener, tell: Tell) -> None:
    """Measure. What cannot be measured is skipped with its reason.

    Raises UsageError, whatever `load` raises, and EngineBroken where reuse has changed what is written.
    """
    sizes = plan.sizes
    if min((*sizes.depths, 0)) < 0 or min(sizes.rounds, sizes.prompt, sizes.decode) < 1 or plan.exchanges < 0:
        raise UsageError("depths must be 0 or more tokens, and there must be a round and a token at least")
    if plan.sample is not None and plan.sample < 1:
        raise UsageError(f"a sample of {plan.sample} tasks: it must be 1 or more")
    tell("loading", 0, len(plan.sides))
    with opened(plan.sides, load) as sides:
        if sizes.depths:
            measure_speed(results, sides, sizes, tell)
        faults = (
            measure_reuse(results, sides, load, plan.exchanges, sizes.rounds, tell) if plan.exchanges else []
        )
        for name, tasks, some in _tasks(results, plan, sides):
            options: dict[str, Any] = {"temperature": 0.0, "top_p": None, "max_tokens": plan.max_tokens}
            measure_calling(results, some, tasks, name, options, plan.seed, tell)
    if faults:
        raise EngineBroken("; ".join(faults))


def _tasks(
    results: Results, plan: ModelPlan, sides: Sequence[Opened]
) -> list[tuple[str, list[Task], list[Opened]]]:
    """The sets of tasks, each with its name and the sides that are given it."""
    if plan.tools == "none":
        return []
    nano = plan.tools == "nano" or (plan.tools is None and all(side.nano for side in sides))
    if nano:
        return [("lfm2-nano", nano_tasks(plan.sample or 2_100, plan.seed), list(sides))]
    try:
        return [("BFCL", sample(bfcl_tasks(find_package()), plan.sample, plan.seed), list(sides))]
    except NoData as why:
        results.skip("BFCL's tasks", str(why))
        return []
