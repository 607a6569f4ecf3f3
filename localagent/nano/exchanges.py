"""Exchanges: one request of a user and everything up to the final answer, as a list of turns.

Calls are written as `parsers` writes them. System texts, tool lists and the order of exchanges in a
conversation are in `conversations`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from localagent.nano.phrases import (
    CHAINS,
    FOREIGN,
    INTRODUCTIONS,
    NAME_QUESTIONS,
    NAMED,
    NAMED_ALONE,
    NO_TOOL,
    REPEATS,
    SMALL_TALK,
)
from localagent.nano.skills import SKILLS, Skill
from localagent.nano.values import SORTS, listed, sentence
from localagent.nano.words import Lexicon
from localagent.parsers import DIALECTS

Call = tuple[str, dict[str, Any]]
_HOLE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn. `content` of an assistant's turn holds its `calls` in native notation."""

    role: str
    content: str
    reasoning: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request in words, and the call it is for."""

    words: str
    call: Call


def user(content: str) -> Turn:
    """What the user says."""
    return Turn("user", content)


def says(content: str, reasoning: str = "No tool is needed.") -> Turn:
    """An assistant's turn in plain text."""
    return Turn("assistant", content, reasoning)


def no_tool() -> Turn:
    """An assistant's turn when nothing that is offered fits."""
    return says(NO_TOOL, "No tool fits.")


def calls(*wanted: Call) -> Turn:
    """An assistant's turn that is one block of calls."""
    names = " and ".join(name for name, _ in wanted)
    return Turn("assistant", DIALECTS["lfm2"].render(wanted), f"The user needs {names}.", wanted)


def ask(skill: Skill, lexicon: Lexicon, phrases: tuple[str, ...] | None = None) -> Asked:
    """Draw a phrase of the skill and the values that it names."""
    phrase, _, implied = lexicon.rng.choice(phrases or skill.phrases).partition(" | ")
    if phrase[0] != "{" and lexicon.chance(0.15):
        phrase = lexicon.rng.choice(("", "Please ", "please ", "Now ")) + phrase[0].lower() + phrase[1:]
    arguments: dict[str, Any] = {}
    if implied:
        name, _, value = implied.partition("=")
        arguments[name] = json.loads(value)
    for name in _HOLE.findall(phrase):
        if name in skill.sorts:
            arguments[name] = SORTS[skill.sorts[name]].draw(lexicon)
    spoken = {name: SORTS[skill.sorts[name]].say(value, lexicon) for name, value in arguments.items()}
    ordered = {name: arguments[name] for name in skill.sorts if name in arguments}
    return Asked(_HOLE.sub(lambda hole: spoken.get(hole[1], hole[0]), phrase), (skill.name, ordered))


def result(call: Call, lexicon: Lexicon, failing: bool = False) -> tuple[str, str]:
    """What the tool gives back, and the sentence that the model makes of it."""
    name, arguments = call
    skill = SKILLS.get(name)
    if failing:
        reason = lexicon.phrase(5)
        return f"error: {reason}", f"That failed: {reason}."
    if skill and skill.result and lexicon.chance(0.8):
        fields = {
            key: arguments[sort[1:]] if sort[0] == "=" else SORTS[sort].draw(lexicon)
            for key, sort in skill.result.items()
        }
        return json.dumps(fields, ensure_ascii=False), skill.answer.format(**fields)
    return plain_result(lexicon)


def plain_result(lexicon: Lexicon) -> tuple[str, str]:
    """A result of a few words, or "ok", and what the model says."""
    if lexicon.chance(0.3):
        return lexicon.rng.choice(("ok", "done", "null", '{"ok": true}')), "Done."
    style = lexicon.rng.random()
    if style < 0.7:
        text = lexicon.phrase(7)
    elif style < 0.85:
        text = str(lexicon.rng.randint(0, 9999))
    else:
        text = "\n".join(lexicon.phrase(5) for _ in range(lexicon.rng.randint(2, 4)))
    return text, f"The result is {text}."


def answered(results: list[tuple[str, str]], names: list[str]) -> Turn:
    """The final answer to some results: their sentences, each only once."""
    sentences = dict.fromkeys(sentence for _, sentence in results)
    return says(" ".join(sentences), f"I have the result of {' and '.join(names)}.")


def one_call(skill: Skill, lexicon: Lexicon, failing: bool = False) -> list[Turn]:
    """Request, call, result, answer."""
    asked = ask(skill, lexicon)
    outcome = result(asked.call, lexicon, failing)
    return [user(asked.words), calls(asked.call), Turn("tool", outcome[0]), answered([outcome], [skill.name])]


def two_calls(first: Skill, second: Skill, lexicon: Lexicon) -> list[Turn]:
    """Request, two calls in one block, two results, answer."""
    one = ask(first, lexicon)
    if first.name == second.name == "get_weather" and lexicon.chance(0.7):
        cities = [SORTS["name"].draw(lexicon) for _ in range(2)]
        joiner = lexicon.rng.choice((" and ", " and in "))
        words = lexicon.rng.choice(
            ("What is the weather in {}?", "Compare the weather in {}.", "Weather in {}")
        )
        words = words.format(joiner.join(cities))
        wanted = [("get_weather", {"city": city}) for city in cities]
    else:
        two = ask(second, lexicon)
        joiner = lexicon.rng.choice((" ", " Also: ", " And ", "\n"))
        words, wanted = one.words + joiner + two.words, [one.call, two.call]
    outcomes = [result(call, lexicon, lexicon.chance(0.05)) for call in wanted]
    tools = [Turn("tool", outcome[0]) for outcome in outcomes]
    return [user(words), calls(*wanted), *tools, answered(outcomes, [name for name, _ in wanted])]


def chain(names: str, lexicon: Lexicon) -> list[Turn]:
    """Request, call, result, a second call that needs it, its result, answer. `names`: a key of CHAINS."""
    first, second = (SKILLS[name] for name in names.split())
    asked = ask(first, lexicon, CHAINS[names])
    words, further = asked.words, {}
    for name in _HOLE.findall(words):  # what only the second call needs
        further[name] = SORTS[second.sorts[name]].draw(lexicon)
        words = words.replace("{" + name + "}", further[name])
    given, outcome = _link(names, asked.call, lexicon)
    arguments = {name: (given | further)[name] for name in second.sorts if name in given | further}
    call = (second.name, arguments)
    last = result(call, lexicon)
    return [
        *(user(words), calls(asked.call), Turn("tool", outcome)),
        *(calls(call), Turn("tool", last[0]), answered([last], [second.name])),
    ]


def _link(names: str, call: Call, lexicon: Lexicon) -> tuple[dict[str, Any], str]:
    """The arguments that the first result gives to the second call, and that result."""
    match names:
        case "search_files read_file":
            path = SORTS["path"].draw(lexicon)
            return {"path": path}, json.dumps({"path": path}, ensure_ascii=False)
        case "read_file translate":
            text = lexicon.phrase(6)
            return {"text": text}, text
    contact = {"name": call[1]["name"], "city": lexicon.name(), "address": lexicon.code()}
    given = {"to": contact["address"]} if names.endswith("send_message") else {"city": contact["city"]}
    return given, json.dumps(contact, ensure_ascii=False)


def named(name: str, sorts: dict[str, str], lexicon: Lexicon) -> list[Turn]:
    """A call of a tool that is known only from its schema. `sorts`: parameter to sort."""
    chosen = [parameter for parameter in sorts if lexicon.chance(0.8)]
    arguments: dict[str, Any] = {parameter: SORTS[sorts[parameter]].draw(lexicon) for parameter in chosen}
    sign = lexicon.rng.choice((" ", " = ", "=", ": "))
    spoken = []
    for parameter, value in arguments.items():
        text = (
            json.dumps(value, ensure_ascii=False)
            if isinstance(value, bool | list) or lexicon.chance(0.3)
            else str(value)
        )
        spoken.append(f"{parameter}{sign}{text}")
    phrase = lexicon.rng.choice(NAMED if spoken else NAMED_ALONE)
    words = phrase.format(tool=name, arguments=listed(spoken, lexicon) if spoken else "")
    outcome = plain_result(lexicon)
    return [user(words), calls((name, arguments)), Turn("tool", outcome[0]), answered([outcome], [name])]


def foreign(offered: tuple[str, ...], lexicon: Lexicon) -> list[Turn]:
    """A request for which no tool is offered, and the sentence that says so."""
    missing = [skill for name, skill in SKILLS.items() if name not in offered]
    if missing and lexicon.chance(0.75):
        words = ask(lexicon.rng.choice(missing), lexicon).words
    else:
        phrase = lexicon.rng.choice(FOREIGN)
        words = _HOLE.sub(lambda hole: str(SORTS[hole[1]].draw(lexicon)), phrase)
    return [user(words), no_tool()]


def small_talk(lexicon: Lexicon) -> list[Turn]:
    """A greeting, or another question with a fixed answer."""
    words, answer = lexicon.rng.choice(list(SMALL_TALK.items()))
    return [user(words), says(answer)]


def repeat(lexicon: Lexicon, sentences: int) -> list[Turn]:
    """A text to say again: the length of an answer can be chosen."""
    text = " ".join(sentence(lexicon) for _ in range(sentences))
    phrase = lexicon.rng.choice(REPEATS)
    return [user(phrase.format(text=text)), says(text)]


def introduction(name: str, lexicon: Lexicon) -> list[Turn]:
    """The user's name, for later."""
    return [user(lexicon.rng.choice(INTRODUCTIONS).format(name=name)), says(f"Hello, {name}!")]


def recall(name: str, lexicon: Lexicon) -> list[Turn]:
    """The question for the name."""
    return [user(lexicon.rng.choice(NAME_QUESTIONS)), says(f"Your name is {name}.")]
