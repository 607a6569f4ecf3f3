"""How many generations a model may run at once, and whether it fits into memory; decided before it is loaded.

A lane holds one generation, at most a context of tokens. What all lanes hold together, their capacity, is
settled when the model is loaded; a generation that may come to need more than is left waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from localagent.errors import CannotBatch, NotEnoughMemory, UsageError
from localagent.hosts.memory.estimate import Estimate
from localagent.settings import MEMORY_CHECK, switched_off
from localagent.wording import size_text

DEFAULT_LANES: Final = 8
MOST_LANES: Final = 64
_MOST_CELLS: Final = (1 << 31) - 1

Limit = Literal["asked", "default", "memory", "model"]


@dataclass(frozen=True, slots=True)
class Lanes:
    """How many lanes a model gets, and why not more."""

    count: int
    context: int
    """The most tokens that one holds."""
    capacity: int
    """The tokens that they hold together."""
    limit: Limit
    """What decided: the caller, what `default_lanes` gives at most, half of the memory, or the model."""
    why: str = ""
    """What it is about the model that decided."""

    def __str__(self) -> str:
        text = "1 lane"
        if self.count > 1:
            whole = self.capacity == self.count * self.context
            text = f"{self.count} lanes"
            text += f" of {self.context:,} tokens each" if whole else f" that share {self.capacity:,} tokens"
        reasons = {"asked": "", "default": "the default", "memory": "limited by memory", "model": self.why}
        return f"{text} ({reason})" if (reason := reasons[self.limit]) else text


def memory_checked() -> bool:
    """Whether to check memory before loading: unless LOCALAGENT_MEMORY_CHECK is 0, no, off or false.

    Turn it off if you know better than the estimate.
    """
    return not switched_off(MEMORY_CHECK)


def check_lanes(asked: int | None) -> None:
    """Raise UsageError unless `asked` is None or a number of lanes."""
    if asked is not None and (type(asked) is not int or not 1 <= asked <= MOST_LANES):
        raise UsageError(f"lanes is {asked!r:.40}: it must be a whole number from 1 to {MOST_LANES}")


def admit(name: str, estimate: Estimate, asked: int | None, available: int | None, alone: str = "") -> Lanes:
    """The lanes that the model called `name` is to be loaded with.

    `estimate`: its need with one lane. `asked`: a number of lanes; None: see `default_lanes`. `available`:
    bytes of memory; None where nobody knows. `alone`: why the model can have only one lane, if that is so.
    Raises UsageError, CannotBatch, NotEnoughMemory.
    """
    check_lanes(asked)
    if asked is not None and asked > 1 and alone:
        raise CannotBatch(f"{name} can have only one lane, not {asked}: {alone}")
    if asked is None:
        lanes = default_lanes(estimate, available, alone)
    else:
        lanes = Lanes(asked, estimate.context, asked * estimate.context, "asked")
    if lanes.capacity > _MOST_CELLS:
        raise UsageError(
            f"{asked} lanes of {estimate.context:,} tokens: more than {_MOST_CELLS:,} cannot be held"
        )
    if available is not None and memory_checked():
        whole = lanes.capacity == lanes.count * lanes.context
        shared = estimate.shared(lanes.count, None if whole else lanes.capacity)
        require_memory(name, shared, available)
    return lanes


def default_lanes(estimate: Estimate, available: int | None, alone: str = "") -> Lanes:
    """As many lanes as fit into half of the memory, at least one and at most 8. Arguments as for `admit`.

    Each has a whole context. Where there is not even room for two of those, lanes share what there is: enough
    for a few short generations at once, or for one of any length.
    """
    context = estimate.context
    if alone:
        return Lanes(1, context, context, "model", alone)
    if available is None:  # only what is needed without lanes is sure to be there
        return Lanes(DEFAULT_LANES, context, context, "default")
    budget = available // 2
    count = estimate.most_lanes(budget, DEFAULT_LANES)
    if count > 1:
        limit: Limit = "default" if count == DEFAULT_LANES else "memory"
        return Lanes(count, context, count * context, limit)
    sharing_one = (estimate.shared(count, context) for count in range(2, DEFAULT_LANES + 1))
    count = 1 + sum(each.total <= budget for each in sharing_one)
    return Lanes(count, context, estimate.shared(count).largest_capacity(budget), "memory")


def require_memory(name: str, estimate: Estimate, available: int) -> None:
    """Raise NotEnoughMemory unless `estimate` fits into `available` bytes. `name`: the model's.

    Weights mapped from a file count in full: the system could drop their pages, but every token needs them
    all again. The message says what is needed, what there is and what would fit.
    """
    if estimate.total <= available:
        return
    lanes = f"{estimate.lanes} lanes, each with " if estimate.lanes > 1 else ""
    raise NotEnoughMemory(
        f"{name} needs about {size_text(estimate.total)} of memory with {lanes}a context of "
        f"{estimate.context:,} tokens ({_parts(estimate)}), but only {size_text(available)} are available: "
        f"{_advice(estimate, available)} "
        f"({MEMORY_CHECK}=0 loads it anyway)"
    )


def _parts(estimate: Estimate) -> str:
    parts = {
        "weights": estimate.weights,
        "KV cache": estimate.kv_cache,
        "state": estimate.states,
        "compute": estimate.compute,
    }
    return ", ".join(f"{name} {size_text(size)}" for name, size in parts.items() if size)


def _advice(estimate: Estimate, available: int) -> str:
    fits = estimate.largest_context(available)
    shorter = fits is not None and fits < estimate.context
    if lanes := estimate.most_lanes(available, estimate.lanes):
        less = f"{lanes} lane{'s' if lanes > 1 else ''} would fit: lanes={lanes}"
        return f"{less}, or lanes={estimate.lanes} with context={fits}" if shorter else less
    if estimate.lanes > 1:
        return f"not even one lane fits; with one, {_advice(estimate.shared(1), available)}"
    if shorter:
        return f"a context of {fits:,} tokens would fit: context={fits} or --context {fits}"
    if estimate.weights > available:
        return "the weights alone do not fit: choose a smaller model or a smaller quantization"
    return "not even a short context fits: free memory, or choose a smaller model or quantization"
