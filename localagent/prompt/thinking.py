"""Whether a model thinks before it answers: what its chat template can be told, and what a turn tells it.

Templates have no common switch. The names below are those in use; which of them a template reads, and what it
does with their values, is found out by rendering a small conversation with each. A value counts only if the
template makes something else of it than of a word that it cannot know. The words that a model's card
recommends for the prompt are tried only where the template itself reacts to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from localagent.errors import TemplateFailed, UsageError
from localagent.messages import ModelMessage, SystemMessage, TextPart
from localagent.parsers import Dialect
from localagent.prompt.probe import QUESTION, REASONING, TOOL
from localagent.prompt.request import RequestWarning

Level = Literal["low", "medium", "high"]
Thinking = bool | Level | None
"""Whether the model thinks before it answers, or how much. None: what its template does by default."""

LEVELS: tuple[Level, ...] = get_args(Level)
_SWITCHES: tuple[tuple[str, Any, Any], ...] = (  # the variable, and its values for on and off
    ("enable_thinking", True, False),
    ("thinking", True, False),
    ("thinking_mode", "enabled", "disabled"),
    ("thinking_option", "on", "off"),
    ("reasoning", True, False),
    ("thinking_budget", -1, 0),
)
_WORDS = ("/think", "/no_think")  # in the system message
_EFFORTS = ("reasoning_effort", "thinking_effort", "reasoning_strength")  # variables for a level
_NO_EFFORT = ("none", "no_think")  # the values of these that switch thinking off
_LOW_EFFORT = "low_effort"  # a variable that is True for less than all
_BUDGET = "thinking_budget"  # a variable for the tokens that it may take

_UNKNOWN = "probe_word"
_INSTRUCTIONS = {"role": "system", "content": "probe_system"}
_THOUGHT, _ANSWER = "probe_thought", "probe_answer"


@dataclass(frozen=True, slots=True)
class Switch:
    """What a template is told: variables, and a word at the end of the system message."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    word: str = ""

    def __or__(self, more: Mapping[str, Any]) -> Switch:
        return Switch({**self.variables, **more}, self.word)

    def said_in(self, messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
        """The conversation with the word in it."""
        if not self.word:
            return messages
        first = messages[0] if messages else None
        if not isinstance(first, SystemMessage):
            return (SystemMessage(content=self.word), *messages)
        content = (*first.content, TextPart(text=f" {self.word}"))
        return (first.model_copy(update={"content": content}), *messages[1:])


@dataclass(frozen=True, slots=True)
class ThinkingSupport:
    """What a template can be told about thinking; None for what it cannot."""

    on: Switch | None = None
    off: Switch | None = None
    levels: Mapping[Level, Switch] = field(default_factory=dict)
    budget: str = ""
    """The variable that it takes the number of tokens from."""
    opened: bool = False
    """By default, the prompt ends inside the reasoning."""
    closing: str = ""
    """How it ends the reasoning: the marker, with the white space around it."""
    beside: str = ""
    """What else the conversation held for which this was found out; some templates drop a switch for it."""


@dataclass(frozen=True, slots=True)
class ThinkingPlan:
    """What comes of the wishes for one turn."""

    switch: Switch = Switch()
    budget: int | None = None
    """The reasoning is ended after so many tokens."""
    closing: str = ""
    """The text that ends it."""
    warnings: tuple[RequestWarning, ...] = ()


def check_thinking(thinking: Thinking, budget: int | None, flag: Any = None) -> None:
    """Raises UsageError for values that mean nothing, or that contradict each other."""
    if not (thinking is None or isinstance(thinking, bool) or thinking in LEVELS):
        raise UsageError(
            f"thinking is {thinking!r:.40}: it must be True, False, {', '.join(map(repr, LEVELS))} or None"
        )
    if flag is not None and not callable(getattr(flag, "is_set", None)):
        raise UsageError(f"end_thinking is {flag!r:.40}: it must be a flag, such as a threading.Event")
    if budget is None:
        return
    if type(budget) is not int or budget < 0:
        raise UsageError(f"thinking_budget is {budget!r:.40}: it must be tokens, 0 or more")
    if thinking is False and budget:
        raise UsageError(f"thinking is off, and thinking_budget is {budget}: choose one of them")
    if thinking and not budget:
        raise UsageError(f"thinking is {thinking!r}, and thinking_budget is 0: choose one of them")


def plan_thinking(
    support: ThinkingSupport, thinking: Thinking, budget: int | None, name: str
) -> ThinkingPlan:
    """What a template that has this support is told, and what has to be done without it.

    `name`: of the model, for the warnings about what it cannot be told.
    """
    switch, told = Switch(), ""
    no_switch = "its chat template has no switch for it"
    if support.beside:
        no_switch += f", or none that works beside {support.beside}"
    if thinking is False:
        if support.off is not None:
            switch = support.off
        elif support.closing:
            budget = 0
            told = (
                f"{name} cannot be told not to think: {no_switch}; what it begins to think is ended at once"
            )
    elif thinking is not None:
        switch = support.on or switch
        if support.on is None and not support.opened:
            told = f"{name} cannot be told to think: {no_switch}"
        elif thinking in support.levels:
            switch = support.levels[thinking]  # type: ignore[index]
        elif thinking is not True:
            known = " and ".join(support.levels)
            told = f"{name} has no thinking level {thinking!r}{f', only {known}' if known else ''}: "
            told += "it thinks as it does when thinking is just switched on"
    warnings = [RequestWarning("thinking", told)] if told else []
    if budget is not None and not support.closing:
        unbounded = f"{name} has no reasoning that thinking_budget could bound: what it writes is all answer"
        warnings.append(RequestWarning("thinking", unbounded))
        budget = None
    if budget is not None and support.budget:
        switch |= {support.budget: budget}
    return ThinkingPlan(switch, budget, support.closing, tuple(warnings))


def opens_reasoning(dialect: Dialect, prompt: str) -> bool:
    """Whether a prompt that ends like this leaves the reasoning of `dialect` open."""
    span = dialect.reasoning
    if span is None:
        return False
    spelled = (marker for marker in dialect.spellings if dialect.means(marker) == span.open)
    return prompt.rstrip().endswith(tuple(marker.rstrip() for marker in (span.open, *spelled)))


Render = Callable[..., str]
"""Messages, tools and template variables to text; may raise TemplateFailed."""


def probe_thinking(render: Render, dialect: Dialect, *, tools: bool, system: bool) -> ThinkingSupport:
    """What a template can be told in a conversation of this kind. `dialect`: what its model writes."""
    offered = [TOOL] if tools else None

    def shown(switch: Switch) -> str | None:
        """The prompt with this switch, without its word; None if the template refuses it."""
        instructions = [_INSTRUCTIONS] if system else []
        if switch.word:
            instructions = [_INSTRUCTIONS | {"content": f"{_INSTRUCTIONS['content']} {switch.word}"}]
        try:
            prompt = render([*instructions, QUESTION], offered, **switch.variables)
        except TemplateFailed:
            return None
        return prompt.replace(switch.word, "") if switch.word else prompt

    beside = " and ".join(["tools"] * tools + ["instructions"] * system)
    closing = _closing(render, dialect)
    plain = shown(Switch())
    if plain is None:
        return ThinkingSupport(closing=closing, beside=beside)
    on, off = _find_switch(shown)
    levels = _find_levels(shown, on or Switch())
    if off is None:
        off = _find_no_effort(shown)
        if off is not None:  # where that is the default, another level is what switches thinking on
            on = levels.get("high") if shown(off) == plain else Switch()
        elif levels:
            on = Switch()
    return ThinkingSupport(
        on=on,
        off=off,
        levels=levels,
        budget=_BUDGET if shown(Switch({_BUDGET: 1000})) not in (plain, None) else "",
        opened=opens_reasoning(dialect, plain),
        closing=closing,
        beside=beside,
    )


_Shown = Callable[[Switch], str | None]


def _find_switch(shown: _Shown) -> tuple[Switch | None, Switch | None]:
    """The first variable or pair of words with which thinking is switched on and off."""
    for name, *values in _SWITCHES:
        on, off = (Switch({name: value}) for value in values)
        prompts = shown(on), shown(off)
        if None not in prompts and prompts[0] != prompts[1]:
            return on, off
    on, off = (Switch(word=word) for word in _WORDS)
    if shown(on) != shown(off) != shown(Switch(word=_UNKNOWN)):
        return on, off
    return None, None


def _find_levels(shown: _Shown, on: Switch) -> Mapping[Level, Switch]:
    """The levels that the template knows, with thinking switched on."""
    for name in _EFFORTS:
        unknown = shown(on | {name: _UNKNOWN})
        tried = {level: on | {name: level} for level in LEVELS}
        known = {level: switch for level, switch in tried.items() if shown(switch) not in (unknown, None)}
        if known:
            return known
    if shown(on | {_LOW_EFFORT: True}) not in (shown(on), None):
        return {"low": on | {_LOW_EFFORT: True}}
    return {}


def _find_no_effort(shown: _Shown) -> Switch | None:
    """The level that is none. A template that writes whatever it is given knows none of them."""
    for name in _EFFORTS:
        unknown = shown(Switch({name: _UNKNOWN}))
        for value in _NO_EFFORT:
            prompt = shown(off := Switch({name: value}))
            if prompt is not None and (unknown is None or prompt != unknown.replace(_UNKNOWN, value)):
                return off
    return None


def _closing(render: Render, dialect: Dialect) -> str:
    """What stands between reasoning and an answer, up to the white space after the marker.

    Where the template shows no reasoning, it is what the dialect takes for a part of the marker.
    """
    span = dialect.reasoning
    if span is None:
        return ""
    answer = {"role": "assistant", "content": _ANSWER, **dict.fromkeys(REASONING, _THOUGHT)}
    try:
        written = render([QUESTION, answer], None, add_generation_prompt=False)
    except TemplateFailed:
        written = ""
    between = written.rpartition(_THOUGHT)[2].partition(_ANSWER)[0]
    before, marker, after = between.partition(span.close)
    if marker and not before.strip():
        return before + marker + after[: len(after) - len(after.lstrip())]
    return "".join((*span.before_close[:1], span.close, *span.after_close[:1]))
