"""How a turn is controlled: its options beside the sampling, as `Model.stream` and `Agent` take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from localagent.hosts.protocol import CancelFlag
from localagent.hosts.sampling import SamplingOptions
from localagent.prompt.thinking import Thinking, check_thinking


class TurnOptions(SamplingOptions, total=False):
    """All options of a turn, for type checkers: those of the sampling, and those of `Control`."""

    thinking: Thinking
    thinking_budget: int | None
    end_thinking: CancelFlag | None


@dataclass(frozen=True, slots=True)
class Control:
    """What a turn is told beside its sampling. None leaves it to the model.

    `thinking`: whether the model thinks before it answers, or how much: "low", "medium" or "high". Each
    template has its own switch, or none; what it cannot be told, a RequestWarning says. `thinking_budget`:
    the reasoning is ended after so many tokens. `end_thinking`: when this flag is set, from any thread, the
    reasoning that runs is ended, and any that begins later in the turn; the answer follows.
    """

    thinking: Thinking = None
    thinking_budget: int | None = None
    end_thinking: CancelFlag | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for a value that means nothing."""
        check_thinking(self.thinking, self.thinking_budget, self.end_thinking)


CONTROLS = tuple(each.name for each in fields(Control))


def prompt_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a turn's options that the prompt depends on, as `Model.render` takes them."""
    return {name: options[name] for name in ("thinking", "thinking_budget") if name in options}
