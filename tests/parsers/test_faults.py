"""One character of a turn lost, doubled or changed never makes a call that the text does not hold.

What a fault leaves behind is the same calls, fewer of them, or one in which a name, a key or a value is misspelled:
that word is the model's own. Any other call is one that nobody wrote.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from parsers import DIALECTS
from tests.parsers.outputs import CALLING, LONG, Call
from tests.parsers.reading import calls_of, canonical, read, split, whole

COUNT = 2000 if LONG else 3 * settings.default.max_examples
ALLOWED = max(2, COUNT // 500)
"""One fault in 500 may have a reading as good as the one that was meant."""


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    properties = {key: {"type": kind} if isinstance(kind, str) else kind for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


STRINGS = {"type": "array", "items": {"type": "string"}}
PLACE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "room": {"type": "integer"}, "tags": STRINGS},
}
TOOLS = [
    tool("ping"),
    tool("get_weather", city="string", unit="string", days="integer"),
    tool("search", query="string", limit="integer", exact="boolean"),
    tool("set_timer", seconds="number", label="string"),
    tool("read_file", path="string", spans={"type": "array", "items": {"type": "number"}}),
    tool("run_code", code="string", options=STRINGS),
    tool("create_event", title="string", attendees=STRINGS, place=PLACE, notify="boolean"),
    tool(
        "plot",
        points={"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        title="string",
    ),
    tool("update_settings", settings="object", dry_run="boolean"),
]
PARIS: Call = ("get_weather", {"city": "Paris", "unit": "celsius", "days": 3})
# Numbers in lists have points: to any reader, `[1,20]` without its comma is `[120]`, and `[1,]` has one item.
CALLS: list[list[Call]] = [
    [PARIS],
    [("ping", {})],
    [PARIS, ("get_weather", {"city": "Rio de Janeiro", "unit": "kelvin", "days": 10})],
    [("search", {"query": "best cafés, open now", "limit": 5, "exact": True}), ("ping", {}), PARIS],
    [("set_timer", {"seconds": -2.5, "label": "it's tea"})],
    [("read_file", {"path": "/tmp/notes 2.txt", "spans": [1.5, 20.25, 300.5]})],
    [("run_code", {"code": 'a = {"x": [1]}\nprint("it\'s", a)', "options": ["-v", "--out=x.txt"]})],
    [
        (
            "create_event",
            {
                "title": "Lunch",
                "attendees": ["Ann", "Bo", "Cy Lee"],
                "place": {"name": "HQ", "room": 12, "tags": ["top floor", "left"]},
                "notify": False,
            },
        )
    ],
    [("plot", {"points": [[0.5, 1.25], [2.5, -3.75], []], "title": "y = f(x)"})],
    [("update_settings", {"settings": {"theme": {"dark": True}, "sizes": [1.5, 2.5], "note": None}, "dry_run": True})],
]  # fmt: skip


def faulty(text: str, draw: random.Random) -> str:
    """`text` with one character lost, doubled or changed."""
    at = draw.randrange(len(text))
    put = draw.choice(["", text[at] * 2, draw.choice("aeknrst_-\"',:=)]}>")])
    return text[:at] + put + text[at + 1 :]


def differences(a: Any, b: Any) -> Iterator[tuple[Any, Any] | None]:
    """Each pair of words, of which one stands in place of the other; None where the shapes differ."""
    match a, b:
        case (dict(), dict()) | (list(), list()) if len(a) != len(b):
            yield None
        case dict(), dict():
            for (key, value), (other, right) in zip(a.items(), b.items(), strict=True):
                yield from differences(key, other)
                yield from differences(value, right)
        case list(), list():
            for value, right in zip(a, b, strict=True):
                yield from differences(value, right)
        case (dict() | list(), _) | (_, dict() | list()):
            yield None
        case _ if canonical([("", {"": a})]) != canonical([("", {"": b})]):
            yield a, b


def misspelled(word: Any, right: Any) -> bool:
    """Whether one edit makes one word of the other; any number is a misspelled number.

    An edit of an escape sequence is one, too: `\\n` with a doubled backslash is two characters for one.
    """
    numbers = (int, float)
    if isinstance(word, numbers) and isinstance(right, numbers) and bool not in (type(word), type(right)):
        return True
    a, b = (
        json.dumps(each, ensure_ascii=False).strip('"').replace("\\", "").lower() for each in (word, right)
    )
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[same:], b[same:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:]


def is_held(call: Call, written: Call) -> bool:
    """Whether a call is the one that was written, but for one word."""
    found = set(differences([call[0], call[1]], [written[0], written[1]]))
    return None not in found and len(found) <= 1 and all(misspelled(*pair) for pair in found if pair)


def invented(calls: list[Call], written: list[Call]) -> list[Call]:
    """The calls that are none of those written, or stand where they did not."""
    found, place = [], 0
    for call in calls:
        at = next((at for at in range(place, len(written)) if is_held(call, written[at])), None)
        if at is None:
            found.append(call)
        else:
            place = at + 1
    return found


def rendered(dialect: str, notation: str, calls: list[Call]) -> str:
    """The calls, or the first of them where a turn may hold one only."""
    try:
        return DIALECTS[dialect].render(calls, notation)
    except ValueError:
        return DIALECTS[dialect].render(calls[:1], notation)


@pytest.mark.parametrize(
    ("dialect", "notation"), [(name, notation) for name in CALLING for notation in DIALECTS[name].renderers]
)
def test_a_fault_makes_no_call_that_was_not_written(dialect, notation):
    texts = [rendered(dialect, notation, calls) for calls in CALLS]
    written = [calls_of(read(dialect, whole(text), tools=TOOLS)) for text in texts]
    for found, calls in zip(written, CALLS, strict=True):
        assert canonical(found) == canonical(calls[: len(found)])
        assert found
    draw, wrong, emptied = random.Random(f"{dialect} {notation}"), [], []
    for _ in range(COUNT):
        which = draw.randrange(len(texts))
        broken = faulty(texts[which], draw)
        cuts = [draw.randrange(len(broken) + 1) for _ in range(4)]
        found = invented(calls_of(read(dialect, split(broken, cuts), tools=TOOLS)), written[which])
        if found:
            wrong.append(f"{broken!r} -> {found}")
        for name, arguments in found:
            if not arguments and any(misspelled(name, right) and given for right, given in written[which]):
                emptied.append(wrong[-1])
    assert not emptied, "\n".join(["arguments lost", *emptied])
    assert len(wrong) <= ALLOWED, "\n".join([f"{len(wrong)} of {COUNT}", *wrong])
