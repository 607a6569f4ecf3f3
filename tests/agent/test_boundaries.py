"""No cut parts calls from their results or loses a request: tables with one letter for each message."""

from __future__ import annotations

import pytest

from localagent.agent.boundaries import blocks, choose, is_answered, last_request, places
from localagent.messages import (
    AssistantMessage,
    CompactionSummaryMessage,
    CustomMessage,
    FlushMessage,
    MalformedToolCallPart,
    Message,
    RescueMessage,
    SystemMessage,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)

CALL = ToolCallPart(id="", name="f")
RESULT = ToolResultPart(call_id="", content="r")
LETTERS: dict[str, Message] = {
    "s": SystemMessage(content="s"),
    "u": UserMessage(content="u"),
    "a": AssistantMessage(content="a"),
    "c": AssistantMessage(content=(CALL,)),
    "C": AssistantMessage(content=(CALL, CALL)),
    "m": AssistantMessage(content=(MalformedToolCallPart(raw="[f(", reason="truncated"),)),
    "r": ToolMessage.from_result(RESULT),
    "q": UserMessage(content=(RESULT,)),
    "t": UserMessage(content=(RESULT, "u")),
    "e": RescueMessage(content="e"),
    "S": CompactionSummaryMessage(content="S"),
    "F": FlushMessage(),
    "x": CustomMessage(custom_type="x"),
}


def spelled(letters: str) -> list[Message]:
    return [LETTERS[letter] for letter in letters]


PLACES = [
    # nothing to summarise
    ("", []),
    ("u", []),
    ("s", []),
    ("su", []),
    ("Su", []),
    ("sSu", []),
    ("ssxu", []),
    # between messages, but never behind a request that nobody has begun to answer
    ("ua", [2]),
    ("uau", [1, 2]),
    ("uaua", [1, 2, 4]),
    ("suau", [2, 3]),
    ("uuu", [1, 2]),
    ("auu", [1, 2]),
    # calls keep their results, wherever these stand
    ("ucr", [3]),
    ("ucra", [3, 4]),
    ("ucrcr", [3, 5]),
    ("uCrr", [4]),
    ("uCrrau", [1, 4, 5]),
    ("ucqau", [1, 3, 4]),
    ("ucxsrau", [1, 5, 6]),
    ("ucta", [1, 4]),
    # calls without a result: what is to come belongs to them
    ("uc", []),
    ("uCr", []),
    ("uauc", [1, 2]),
    ("ucau", [1, 2, 3]),
    # a rescue stays with what it answers
    ("ume", [3]),
    ("umea", [3, 4]),
    ("ucrea", [4, 5]),
    ("uaeau", [1, 3, 4]),
    # behind the earlier summary, and behind a flush
    ("Suau", [2, 3]),
    ("sSuau", [3, 4]),
    ("Sa", [2]),
    ("Scrcr", [3, 5]),
    ("uaFuau", [4, 5]),
    ("uaFu", []),
    ("SuaFuau", [5, 6]),
]


@pytest.mark.parametrize(("letters", "expected"), PLACES, ids=[row[0] for row in PLACES])
def test_places(letters, expected):
    assert places(spelled(letters)) == expected


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        ("", ""),
        ("uau", "u a u"),
        ("ucrcra", "u cr cr a"),
        ("uCrxra", "u Crxr a"),
        ("umeca", "u me c a"),
        ("ucuru", "u cur u"),
        ("ru", "r u"),
    ],
)
def test_blocks(letters, expected):
    names = {id(message): letter for letter, message in LETTERS.items()}
    assert " ".join("".join(names[id(m)] for m in block) for block in blocks(spelled(letters))) == expected


@pytest.mark.parametrize(
    ("letters", "expected"),
    [("", None), ("a", None), ("ua", 0), ("uaucrq", 2), ("uct", 2), ("uS", None), ("uSu", 2), ("uFa", None)],
)
def test_last_request(letters, expected):
    assert last_request(spelled(letters)) == expected


@pytest.mark.parametrize(
    ("letters", "expected"),
    [("", False), ("u", False), ("ua", True), ("uax", True), ("uc", False), ("ucr", False)],
)
def test_is_answered(letters, expected):
    assert is_answered(spelled(letters)) is expected


CHOICES = [
    # as much as is wanted
    ("uauaua", 4, 9, 2),
    ("uauaua", 5, 9, 1),
    ("uauaua", 1, 9, 4),
    # the last request and what came of it, wanted or not
    ("uaucrcr", 1, 9, 2),
    ("uaucrcr", 1, 4, 5),
    ("uaucrcr", 2, 4, 5),
    # the newest block, before nothing is kept
    ("uaucrcr", 0, 2, 5),
    ("ucrcr", 0, 2, 3),
    ("ucrcr", 0, 1, 5),
    ("Scrcr", 2, 2, 3),
    ("Scrcr", 0, 0, 5),
    # what cannot be summarised is kept, whatever its size
    ("uau", 0, 0, 2),
]


@pytest.mark.parametrize(("letters", "wanted", "most", "expected"), CHOICES)
def test_choice(letters, wanted, most, expected):
    """Each message has one token."""
    messages = spelled(letters)
    found = places(messages)
    assert choose(found, messages, lambda place: len(messages) - place, wanted, most) == expected
