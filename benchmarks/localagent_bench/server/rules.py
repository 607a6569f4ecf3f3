"""What a check is, how its verdict is reached, and what all of them ask with.

A check is a function that returns what it saw, or raises one of the three other verdicts. A server that
refuses an option, in the form in which errors are told, does not offer it; one that takes it and does
something else fails. Where the model wrote nothing that could be judged, nothing was seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from localagent.wording import one_line, quoted
from localagent_bench.server.hearing import Caller, Heard
from localagent_bench.server.target import MeasuredServer

MODELS = "/v1/models"
CHAT = "/v1/chat/completions"
QUESTION = "Name three colours of the rainbow."
WEATHER = "What is the weather in Oslo? Use the tool get_weather."


class Verdict(Exception):
    """Anything but "passes". The text: what was seen."""

    outcome = ""


class Fails(Verdict):
    """The server does it against the rule."""

    outcome = "fails"


class NotOffered(Verdict):
    """The server says that it cannot do this."""

    outcome = "not offered"


class NotSeen(Verdict):
    """There was no occasion to see it."""

    outcome = "not seen"


OUTCOMES = ("passes", "fails", "not offered", "not seen")


@dataclass(frozen=True, slots=True)
class Check:
    """A rule, and how it is checked: the function that does so says the rule in its docstring."""

    about: str
    sent: str
    """The request, in a few words."""
    run: Callable[[Probe], str]

    @property
    def rule(self) -> str:
        """The rule, as a sentence."""
        return self.run.__doc__ or self.run.__name__.replace("_", " ")


class Probe:
    """A server, and what it has answered so far. The same request is sent once."""

    def __init__(self, target: MeasuredServer, caller: Caller) -> None:
        self.target = target
        self.caller = caller
        self._heard: dict[str, Heard] = {}
        self._forced: bool | None = None

    def get(self, path: str) -> Heard:
        """A GET."""
        return self._once(f"GET {path}", lambda: self.caller.hear("GET", path))

    def post(self, data: bytes) -> Heard:
        """Any body, as a chat completion."""
        return self._once(f"POST {data!r}", lambda: self.caller.hear("POST", CHAT, data))

    def chat(self, again: int = 0, **fields: Any) -> Heard:
        """A chat completion. Fields of None are left out; `again`: tells the same requests apart."""
        body = {
            "model": self.target.model,
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 24,
            "temperature": 0,
            **fields,
        }
        data = encoded({name: value for name, value in body.items() if value is not None})
        return self._once(f"{again} {data!r}", lambda: self.caller.hear("POST", CHAT, data))

    def stream(self, **fields: Any) -> Heard:
        """The same, streamed."""
        return self.chat(stream=True, **fields)

    def call(self, **fields: Any) -> Heard:
        """A turn of calls: forced if the server can do that, and else asked for."""
        asked: dict[str, Any] = {"messages": said(WEATHER), "tools": TOOLS, "max_tokens": 128}
        if self._forced is None:
            self._forced = self.chat(**asked, tool_choice="required").status == 200
        if self._forced:
            asked["tool_choice"] = "required"
        return self.chat(**asked | fields)

    def _once(self, key: str, hear: Callable[[], Heard]) -> Heard:
        if key not in self._heard:
            self._heard[key] = hear()
        return self._heard[key]


def encoded(body: Any) -> bytes:
    """The JSON of a body."""
    return json.dumps(body).encode()


def said(text: str) -> list[dict[str, Any]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


def _tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS = [
    _tool("get_weather", "The weather in a city.", city="string"),
    _tool("get_time", "The time in a city.", city="string"),
]
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
}
CALLED: list[dict[str, Any]] = [
    *said(WEATHER),
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 21 degrees."},
]
"""A conversation in which a tool was called."""


# -- what is in an answer ---------------------------------------------------------------------------------


def whole(heard: Heard) -> dict[str, Any]:
    """The completion in a whole answer. Raises Fails."""
    if heard.problem or heard.status != 200 or not isinstance(heard.json, dict):
        raise Fails(heard.told())
    return heard.json


def choice(heard: Heard) -> dict[str, Any]:
    """Its choice. Raises Fails."""
    choices = whole(heard).get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Fails("there is no choice in the answer")
    return choices[0]


def message(heard: Heard) -> dict[str, Any]:
    """Its message. Raises Fails."""
    found = choice(heard).get("message")
    if not isinstance(found, dict):
        raise Fails("there is no message in the answer")
    return found


def text_of(heard: Heard) -> str:
    """What was answered, whole; "" for none. Raises Fails."""
    content = message(heard).get("content")
    if not isinstance(content, str | None):
        raise Fails(f"the content is no text: {quoted(str(content))}")
    return content or ""


def finish_of(heard: Heard) -> Any:
    """Why the answer ended. Raises Fails."""
    return choice(heard).get("finish_reason")


def chunks_of(heard: Heard) -> list[dict[str, Any]]:
    """The chunks of a stream. Raises Fails for what is no stream of objects."""
    if heard.problem or heard.status != 200:
        raise Fails(heard.told())
    if not heard.chunks:
        raise Fails("there are no events in the answer")
    for at, chunk in enumerate(heard.chunks, 1):
        if not isinstance(chunk, dict) or not isinstance(chunk.get("choices"), list):
            raise Fails(f"chunk {at} is no chunk of a chat completion: {quoted(heard.data[at - 1][1])}")
        for each in chunk["choices"]:
            if not isinstance(each, dict) or not isinstance(each.get("delta"), dict):
                raise Fails(f"a choice of chunk {at} has no delta")
    return heard.chunks


def choices_of(heard: Heard) -> list[dict[str, Any]]:
    """The choices of all chunks, in order."""
    return [each for chunk in chunks_of(heard) for each in chunk["choices"]]


def deltas_of(heard: Heard) -> list[dict[str, Any]]:
    """What each chunk adds."""
    return [each["delta"] for each in choices_of(heard)]


def streamed_text(heard: Heard) -> str:
    """What was answered in a stream."""
    return "".join(text for delta in deltas_of(heard) if isinstance(text := delta.get("content"), str))


# -- refusals ---------------------------------------------------------------------------------------------


def refusal(heard: Heard, statuses: Sequence[int] = range(400, 500)) -> str:
    """What a refusal says. Raises Fails unless it has one of these statuses and the form of an error."""
    if heard.problem or heard.status not in statuses:
        raise Fails(heard.told())
    error = heard.json.get("error") if isinstance(heard.json, Mapping) else None
    if not isinstance(error, Mapping):
        raise Fails(
            f"{heard.status}, but no error object: {quoted(heard.body[:100].decode(errors='replace'))}"
        )
    for name in ("message", "type"):
        if not isinstance(error.get(name), str) or not error[name]:
            raise Fails(f"{heard.status}, but the error has no {name}: {quoted(json.dumps(error), 100)}")
    return one_line(f"{heard.status}: {error['message']}", 120)


def offered(heard: Heard) -> Heard:
    """The same answer. Raises NotOffered for a refusal in the right form, Fails for one in another."""
    if 400 <= heard.status < 500 or heard.status == 501:
        raise NotOffered(refusal(heard, (*range(400, 500), 501)))
    if heard.problem or heard.status != 200:
        raise Fails(heard.told())
    return heard


def differs(what: str, first: str, other: str) -> NoReturn:
    """Raise Fails with the places from which two texts differ."""
    at = next(
        (at for at, (a, b) in enumerate(zip(first, other, strict=False)) if a != b),
        min(len(first), len(other)),
    )
    start = max(at - 10, 0)
    raise Fails(f"{what}: {quoted(first[start : at + 30])} and {quoted(other[start : at + 30])}")
