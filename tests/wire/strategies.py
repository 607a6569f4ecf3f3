"""Conversations that a wire can express, and payloads that somebody has damaged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from localagent.messages import (
    AssistantMessage,
    SystemMessage,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)


@dataclass(frozen=True)
class Expressible:
    """What a wire can express: strategies for the parts of each message, and for the result of a call."""

    system: st.SearchStrategy[Any]
    shown: st.SearchStrategy[Any]
    """Parts of a user message."""
    said: st.SearchStrategy[Any]
    """Parts of an assistant message, calls aside."""
    call: Callable[[str], st.SearchStrategy[ToolCallPart]]
    """A call, given an id."""
    result: Callable[[ToolCallPart], st.SearchStrategy[Any]]
    ids: st.SearchStrategy[str]
    arrange: Callable[[list[Any]], list[Any]] = list
    """The order that the wire asks for in an assistant message."""


@st.composite
def conversations(draw: Any, wire: Expressible) -> list[Any]:
    """Whole conversations: each call has a result or none, in any order, in one tool message or several."""
    messages: list[Any] = []
    if draw(st.booleans()):
        messages.append(SystemMessage(content=tuple(draw(st.lists(wire.system, min_size=1, max_size=2)))))
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            messages.append(UserMessage(content=tuple(draw(st.lists(wire.shown, min_size=1, max_size=3)))))
            continue
        ids = draw(st.lists(wire.ids, max_size=3, unique=True))
        calls = [draw(wire.call(call_id)) for call_id in ids]
        said = draw(st.lists(wire.said, min_size=0 if calls else 1, max_size=3))
        content = wire.arrange(draw(st.permutations(said + calls)))
        messages.append(AssistantMessage(content=tuple(content)))
        # In the order of the message, so that what answers by position answers its own call.
        calls = [part for part in content if isinstance(part, ToolCallPart)]
        results = [draw(wire.result(call)) for call in calls]
        if all(result.call_id for result in results):
            results = draw(st.permutations(results))[: draw(st.integers(0, len(results)))]
        cut = draw(st.integers(0, len(results)))
        messages += [ToolMessage(content=tuple(run)) for run in (results[:cut], results[cut:]) if run]
    return messages


JUNK = [
    None,
    0,
    -1,
    True,
    1.5,
    float("nan"),
    "",
    "x",
    "\ud800",
    [],
    [None],
    ["x"],
    {},
    {"type": "x"},
    {1: 2},
    b"x",
    (),
]
junk = st.sampled_from(JUNK).map(copy.deepcopy)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value in a payload stands."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += paths(item, (*path, key))
    return found


@st.composite
def damaged(draw: Any, payloads: st.SearchStrategy[Any]) -> Any:
    """A payload with one to three places changed, removed, added to or swapped."""
    payload = copy.deepcopy(draw(payloads))
    for _ in range(draw(st.integers(1, 3))):
        *way, last = (None, *draw(st.sampled_from(paths(payload))))
        if last is None:
            if draw(st.integers(0, 9)) == 0:
                return draw(junk)
            continue
        home = payload
        for key in way[1:]:
            home = home[key]
        match draw(st.sampled_from(["change", "remove", "add", "move"])):
            case "change":
                home[last] = draw(junk)
            case "remove":
                del home[last]
            case "add" if isinstance(home, dict):
                home[draw(st.sampled_from(["type", "text", "source", "role", "parts", "x", 7]))] = draw(junk)
            case "add":
                home.append(draw(junk))
            case "move":
                from_ = payload
                for key in draw(st.sampled_from(paths(payload))):
                    from_ = from_[key]
                home[last] = copy.deepcopy(from_)
    return payload


def spoil(value: Any) -> None:
    """Change every object and list in place."""
    for item in (
        list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list) else ()
    ):
        spoil(item)
    if isinstance(value, dict):
        value["spoilt"] = True
    elif isinstance(value, list):
        value.append("spoilt")
