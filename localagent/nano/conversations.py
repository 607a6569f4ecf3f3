"""Whole conversations of every kind: a system text, a tool list, exchanges, and the turn they are made for.

Training and evaluation draw from the same functions; the lexicon decides which words may appear as values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from localagent.nano import exchanges
from localagent.nano.exchanges import Turn
from localagent.nano.phrases import (
    CHAINS,
    FOREIGN,
    INTRODUCTIONS,
    NAME_QUESTIONS,
    NAMED,
    REPEATS,
    SMALL_TALK,
    SYSTEMS,
    THINK,
)
from localagent.nano.skills import SKILLS, Form, Tool, tool, written
from localagent.nano.values import SORTS
from localagent.nano.words import Lexicon


@dataclass(frozen=True, slots=True)
class Plan:
    """How conversations of one kind are made.

    `exchange` names what is asked last, `turn` which assistant turn of that exchange is wanted, counted from
    zero; `skills` are the tools it may be about, `before` the least and most exchanges in front of it.
    """

    exchange: str
    turn: int = 0
    skills: tuple[str, ...] = tuple(SKILLS)
    before: tuple[int, int] = (0, 0)
    think: bool = False


_SIMPLE = ("get_weather", "search_files", "read_file", "find_contact", "set_timer")
_TYPED = ("set_timer", "switch_light", "convert", "place_order", "search_files", "read_file")

PLANS: dict[str, Plan] = {
    "single": Plan("call", skills=_SIMPLE),
    "strings": Plan("call", skills=("add_items",)),
    "mapping": Plan("call", skills=("save_record",)),
    "mappings": Plan("call", skills=("place_order",)),
    "typed": Plan("call", skills=_TYPED),
    "quoted": Plan("call", skills=("send_message", "translate")),
    "named": Plan("named"),
    "parallel": Plan("two"),
    "answer": Plan("call", turn=1),
    "answers": Plan("two", turn=1),
    "failed": Plan("failing", turn=1),
    "sequence": Plan("chain", turn=1),
    "chain": Plan("chain", turn=2),
    "greeting": Plan("small talk"),
    "repeat": Plan("repeat"),
    "recall": Plan("recall", before=(0, 2)),
    "no_tool": Plan("foreign"),
    "think_call": Plan("call", think=True),
    "think_answer": Plan("call", turn=1, think=True),
    "third_turn": Plan("call", before=(2, 2)),
    "long": Plan("any", before=(9, 9)),
}
"""Every kind of request by its name."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation whose last exchange is complete. `wanted` is the index in `turns` of the wanted turn."""

    system: str
    tools: tuple[Tool, ...]
    turns: tuple[Turn, ...]
    wanted: int
    think: bool


@cache
def common_words() -> tuple[str, ...]:
    """The longer words of all phrases and descriptions: those with tokens of their own."""
    texts = [
        *FOREIGN,
        *INTRODUCTIONS,
        *NAME_QUESTIONS,
        *NAMED,
        *REPEATS,
        *SMALL_TALK,
        *SMALL_TALK.values(),
        *SYSTEMS,
    ]
    for skill in SKILLS.values():
        texts += [skill.name, *skill.descriptions, *skill.phrases, *skill.sorts, skill.answer]
    texts += [phrase for phrases in CHAINS.values() for phrase in phrases]
    words = dict.fromkeys(word.lower() for text in texts for word in re.findall(r"[A-Za-z]{4,}", text))
    return tuple(word for word in words if word not in ("with", "into", "from", "then", "that"))


class Author:
    """Writes conversations with the words of one lexicon."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon
        self._rng = lexicon.rng

    def write(self, kind: str, form: Form = "openai", before: int | None = None) -> Conversation:
        """A conversation of this kind. `before`: how many exchanges stand in front, by default as planned."""
        plan, rng = PLANS[kind], self._rng
        exchange = rng.choice(_ANY) if plan.exchange == "any" else plan.exchange
        names = self._needed(exchange, plan)
        if before is None:
            before = rng.randint(*plan.before)
        offered = self._offer(exchange, names, before)
        invented = (
            self._inventions() if exchange == "named" or (offered and self._lexicon.chance(0.1)) else {}
        )
        called = self._lexicon.name() if exchange == "recall" else ""
        fillers = [self._filler(offered, invented) for _ in range(before)]
        if called:
            fillers.insert(rng.randint(0, before), exchanges.introduction(called, self._lexicon))
        last = self._exchange(exchange, names, offered, invented, called)
        turns = [turn for filler in fillers for turn in filler]
        spoken = [at for at, turn in enumerate(last) if turn.role == "assistant"]
        turn = rng.choice(spoken) if plan.exchange == "any" else spoken[plan.turn]
        tools = self._tools(offered, invented, form)
        system = self._system(plan.think)
        return Conversation(system, tools, (*turns, *last), len(turns) + turn, plan.think)

    def choose(self, form: Form) -> Conversation:
        """A short conversation about a tool that is offered or, as often, is not."""
        rng = self._rng
        names = list(SKILLS)
        rng.shuffle(names)
        wanted, others = names[0], names[1 : 1 + rng.choice((0, 1, 1, 2, 2, 3))]
        invented = self._inventions() if self._lexicon.chance(0.15) else {}
        if invented:
            wanted = rng.choice(list(invented))
            asked, called, *_ = exchanges.named(wanted, invented[wanted], self._lexicon)
        else:
            asked, called, *_ = exchanges.one_call(SKILLS[wanted], self._lexicon)
        offered = [*others, *invented, wanted]
        if self._lexicon.chance(0.5):
            offered = [name for name in offered if name != wanted]
            called = exchanges.no_tool()
        known = tuple(name for name in dict.fromkeys(offered) if name in SKILLS)
        tools = self._tools(known, {name: invented[name] for name in invented if name in offered}, form)
        return Conversation(self._system(False), tools, (asked, called), 1, False)

    def _needed(self, exchange: str, plan: Plan) -> tuple[str, ...]:
        """The tools that the last exchange calls, in order."""
        match exchange:
            case "call" | "failing":
                return (self._rng.choice(plan.skills),)
            case "two":
                if self._lexicon.chance(0.2):
                    return ("get_weather", "get_weather")
                return tuple(self._rng.choices(plan.skills, k=2))
            case "chain":
                return tuple(self._rng.choice(list(CHAINS)).split())
        return ()

    def _offer(self, exchange: str, names: tuple[str, ...], before: int) -> tuple[str, ...]:
        """The tools of the prompt: the needed ones and some others, in any order."""
        rng = self._rng
        if exchange in ("small talk", "repeat", "recall", "foreign", "named") and self._lexicon.chance(0.35):
            return ()
        offered = list(dict.fromkeys(names))
        count = rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6))
        count = max(count, 2) if before > 2 else count
        others = [name for name in SKILLS if name not in offered]
        rng.shuffle(others)
        offered += others[: max(0, count - len(offered))]
        rng.shuffle(offered)
        return tuple(offered)

    def _inventions(self) -> dict[str, dict[str, str]]:
        """Tools with invented names and parameters: tool to parameter to sort."""
        sorts = ("word", "word", "phrase", "many", "number", "flag", "words")
        tools: dict[str, dict[str, str]] = {}
        for _ in range(self._rng.choice((1, 1, 2))):
            name = "_".join(self._lexicon.key() for _ in range(self._rng.choice((1, 2, 2))))
            count = self._rng.choice((0, 1, 1, 2, 2, 3, 3))
            tools[name] = {self._lexicon.key(): self._rng.choice(sorts) for _ in range(count)}
        return tools

    def _tools(
        self, offered: tuple[str, ...], invented: dict[str, dict[str, str]], form: Form
    ) -> tuple[Tool, ...]:
        tools = [tool(SKILLS[name], form, self._rng) for name in offered]
        for name, sorts in invented.items():
            properties = {parameter: dict(SORTS[sort].schema) for parameter, sort in sorts.items()}
            description = f"{self._lexicon.phrase(3)}." if self._lexicon.chance(0.7) else "A tool."
            tools.append(written(name, description, properties, list(sorts), form))
        self._rng.shuffle(tools)
        return tuple(tools)

    def _system(self, think: bool) -> str:
        rng = self._rng
        count = rng.choice((0, 0, 0, 1, 1, 1, 2, 3))
        sentences = rng.sample(SYSTEMS, count)
        if think:
            sentences.insert(rng.randint(0, count), THINK)
        fields = {
            "name": self._lexicon.name(),
            "word": self._lexicon.word(),
            "phrase": self._lexicon.phrase(5),
        }
        return rng.choice((" ", " ", "\n")).join(sentences).format(**fields)

    def _filler(self, offered: tuple[str, ...], invented: dict[str, dict[str, str]]) -> list[Turn]:
        """An exchange in front of the last one: mostly about the offered tools, and seldom about none."""
        rng = self._rng
        if not offered or self._lexicon.chance(0.3):
            exchange = rng.choice(("small talk", "repeat", "foreign", "foreign"))
            return self._exchange(exchange, (), offered, invented, "")
        exchange = rng.choice(("call", "call", "call", "call", "two", "chain", "failing"))
        names: tuple[str, ...] = (rng.choice(offered), rng.choice(offered))
        if exchange == "chain":
            chains = [tuple(names.split()) for names in CHAINS if set(names.split()) <= set(offered)]
            exchange, names = ("chain", rng.choice(chains)) if chains else ("call", names)
        return self._exchange(exchange, names, offered, invented, "")

    def _exchange(
        self,
        exchange: str,
        names: tuple[str, ...],
        offered: tuple[str, ...],
        invented: dict[str, dict[str, str]],
        called: str,
    ) -> list[Turn]:
        lexicon, rng = self._lexicon, self._rng
        match exchange:
            case "call" | "failing":
                return exchanges.one_call(SKILLS[names[0]], lexicon, exchange == "failing")
            case "two":
                return exchanges.two_calls(SKILLS[names[0]], SKILLS[names[1]], lexicon)
            case "chain":
                return exchanges.chain(" ".join(names), lexicon)
            case "named":
                name = rng.choice(list(invented))
                return exchanges.named(name, invented[name], lexicon)
            case "foreign":
                return exchanges.foreign(offered, lexicon)
            case "repeat":
                return exchanges.repeat(lexicon, rng.choice((1, 1, 1, 1, 2, 2, 3, 5, 8)))
            case "recall":
                return exchanges.recall(called, lexicon)
        return exchanges.small_talk(lexicon)


_ANY = ("call", "call", "call", "two", "chain", "failing", "small talk", "repeat", "foreign")
