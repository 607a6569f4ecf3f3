"""How a turn is controlled: its options beside the sampling, as `Model.stream` and `Agent` take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from localagent.errors import UsageError
from localagent.hosts.protocol import CancelFlag
from localagent.hosts.sampling import SamplingOptions
from localagent.prompt.thinking import Thinking, check_thinking
from localagent.tools.bounds import ToolRoom


class TurnOptions(SamplingOptions, total=False):
    """All options of a turn, for type checkers: those of the sampling, and those of `Control`."""

    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    response_format: Mapping[str, Any] | None
    strict: bool
    thinking: Thinking
    thinking_budget: int | None
    end_thinking: CancelFlag | None
    continue_final_message: bool


_CHOICES = ("auto", "none", "required")
_FORMATS = ("text", "json_object", "json_schema")


@dataclass(frozen=True, slots=True)
class Control:
    """What a turn is told beside its sampling. None leaves it to the model.

    `tool_choice`: "auto" leaves it to the model whether it calls tools, "none" lets it call none, "required"
    has it make a call, and a tool's name has it call that one; also as OpenAI writes it, {"type": "function",
    "function": {"name": ...}}. `parallel_tool_calls`: False for at most one call in a turn.

    `response_format`: {"type": "json_object"} has it answer with a JSON object, {"type": "json_schema",
    "json_schema": {"name": ..., "schema": ...}} with JSON that fits the schema, {"type": "text"} as it likes.
    `strict`: a tool's schema of which something cannot be enforced is an error; without it that is left out,
    and reported in `Done.relaxed`.

    `thinking`: whether the model thinks before it answers, or how much: "low", "medium" or "high". Each
    template has its own switch, or none; what it cannot be told, a RequestWarning says. `thinking_budget`:
    the reasoning is ended after so many tokens. `end_thinking`: when this flag is set, from any thread, the
    reasoning that runs is ended, and any that begins later in the turn; the answer follows.

    `continue_final_message`: the conversation ends with words of the assistant, and the turn goes on after
    them, in place of a new one; its message holds what follows them.
    """

    tool_choice: str | Mapping[str, Any] = "auto"
    parallel_tool_calls: bool = True
    response_format: Mapping[str, Any] | None = None
    strict: bool = False
    thinking: Thinking = None
    thinking_budget: int | None = None
    end_thinking: CancelFlag | None = None
    continue_final_message: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for a value that means nothing."""
        for name in ("parallel_tool_calls", "strict", "continue_final_message"):
            if not isinstance(given := getattr(self, name), bool):
                raise UsageError(f"{name} is {given!r:.40}: it must be True or False")
        if not self.choice and self.named is None:
            raise UsageError(
                f"tool_choice is {self.tool_choice!r:.80}: it must be {', '.join(map(repr, _CHOICES))} or "
                "the name of a tool"
            )
        self._check_format()
        if self.answers and (self.choice == "required" or self.named is not None):
            raise UsageError(
                f"tool_choice is {self.tool_choice!r:.60}, and response_format asks for an answer: a turn "
                "can end in a call or in an answer"
            )
        if self.continue_final_message and (
            self.answers or self.choice == "required" or self.named is not None
        ):
            raise UsageError(
                "continue_final_message goes on with text that is there, and cannot be had with a "
                "response_format or a tool_choice that bounds the whole turn"
            )
        check_thinking(self.thinking, self.thinking_budget, self.end_thinking)

    @property
    def choice(self) -> Literal["auto", "none", "required", ""]:
        """`tool_choice`, if it names no tool."""
        return self.tool_choice if self.tool_choice in _CHOICES else ""  # type: ignore[return-value]

    @property
    def named(self) -> str | None:
        """The one tool that must be called."""
        choice = self.tool_choice
        if isinstance(choice, str):
            return choice if choice and choice not in _CHOICES else None
        if not isinstance(choice, Mapping) or choice.get("type") != "function":
            return None
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, Mapping) else None
        return name if isinstance(name, str) and name else None

    @property
    def answers(self) -> bool:
        """Whether the answer has to be JSON."""
        return self.response_format is not None and self.response_format["type"] != "text"

    @property
    def answer_schema(self) -> Any:
        """The JSON Schema of the answer; None for any object."""
        assert self.response_format is not None
        given = self.response_format.get("json_schema")
        return None if given is None else given["schema"]

    def check_tools(self, tools: Sequence[Mapping[str, Any]] | None) -> None:
        """Raise UsageError for what is no tool or too large, and for a `tool_choice` that is none of them."""
        room = ToolRoom()
        names: dict[str, None] = {}
        for tool in tools or ():
            function = _function_of(tool)
            name = function["name"]
            room.add(name, function.get("description"), function.get("parameters"))
            if name in names:
                raise UsageError(f"two tools are called {name!r:.60}: a call would not say which is meant")
            names[name] = None
        if self.choice == "required" and not names:
            raise UsageError("tool_choice is 'required', and there are no tools: give some")
        if self.named is not None and self.named not in names:
            known = f"there are {', '.join(names)}" if names else "there are none"
            raise UsageError(f"tool_choice is {self.named!r:.60}, and no tool has that name: {known:.300}")

    def _check_format(self) -> None:
        asked = self.response_format
        if asked is None:
            return
        kind = asked.get("type") if isinstance(asked, Mapping) else None
        if kind not in _FORMATS:
            known = ", ".join(f'{{"type": "{name}"}}' for name in _FORMATS)
            raise UsageError(f"response_format is {asked!r:.80}: it must be {known} or None")
        given = asked.get("json_schema")
        if kind == "json_schema" and not (
            isinstance(given, Mapping) and isinstance(given.get("schema"), Mapping | bool)
        ):
            raise UsageError(
                'response_format of the type "json_schema" needs "json_schema": {"name": ..., "schema": ...}'
            )


CONTROLS = tuple(each.name for each in fields(Control))


def _function_of(tool: Any) -> Mapping[str, Any]:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UsageError(
            f"{tool!r:.80} is no tool: it must be "
            '{"type": "function", "function": {"name": ..., "parameters": ...}}'
        )
    return function


def control_of(options: Mapping[str, Any]) -> Control:
    """What a turn's options say beside the sampling. Raises UsageError."""
    return Control(**{name: options[name] for name in CONTROLS if name in options})


def after_calls(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a turn that follows the calls that these required: it may go on as it likes."""
    kept = {**options}
    if kept.get("tool_choice") not in (None, "auto", "none"):
        del kept["tool_choice"]
    return kept


def prose_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a turn that is to be text, whatever these require of others."""
    bounds = ("tool_choice", "parallel_tool_calls", "response_format", "strict")
    return {name: value for name, value in options.items() if name not in bounds}


def prompt_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a turn's options that the prompt depends on, as `Model.render` takes them."""
    return {name: options[name] for name in ("thinking", "thinking_budget") if name in options}
