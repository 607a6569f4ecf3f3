"""A conversation goes to the replica that knows the longest beginning of it, unless that has too much to do."""

from __future__ import annotations

from random import Random

import pytest

from localagent.messages import AssistantMessage, SystemMessage, UserMessage
from localagent.server.fleet.affinity import LONGEST, Affinity, marks_of

FIRST = [SystemMessage.text("Be brief."), UserMessage.text("Name three colours.")]
SECOND = [*FIRST, AssistantMessage.text("Red, green and blue."), UserMessage.text("And three tools.")]
TOLD = {"model": "lfm2-nano", "tools": [{"name": "look"}]}


def test_the_marks_of_a_conversation_begin_with_those_of_its_beginning():
    first, second = marks_of(TOLD, FIRST), marks_of(TOLD, SECOND)
    assert len(first) == 1, "a mark for each message, from the first one of a user on"
    assert len(second) == 3
    assert second[:1] == first
    assert len(set(second)) == 3


def test_ids_and_times_change_no_mark_and_all_else_does():
    marks = marks_of(TOLD, SECOND)
    assert marks_of(TOLD, [message.model_copy(update={"id": "msg_7"}) for message in SECOND]) == marks
    assert marks_of({**TOLD, "model": "another"}, SECOND)[-1] != marks[-1]
    assert marks_of({**TOLD, "tools": []}, SECOND)[-1] != marks[-1]
    others = [SystemMessage.text("Be long."), *SECOND[1:]]
    assert not set(marks_of(TOLD, others)) & set(marks)


def test_a_long_conversation_has_the_marks_of_its_last_messages():
    messages = [UserMessage.text(str(number)) for number in range(LONGEST + 50)]
    assert marks_of({}, messages) == marks_of({}, messages)[-LONGEST:]
    assert marks_of({}, messages[:-1])[-1] == marks_of({}, messages)[-2]


def ranks(
    affinity: Affinity[str], marks: list[str], load: dict[str, float], slack: float = 2
) -> list[list[str]]:
    return affinity.ranks(marks, [*load], load.__getitem__, slack, Random(1))


def test_who_knows_the_longest_beginning_is_preferred():
    affinity = Affinity[str]()
    affinity.note(["a"], "one")
    affinity.note(["a", "b"], "two")
    idle = {"one": 0.0, "two": 0.0, "three": 0.0}
    assert [*affinity.known(["a", "b", "c"])] == ["two", "one"]
    assert ranks(affinity, ["a", "b", "c"], idle)[0] == ["two"]
    assert ranks(affinity, ["a", "x"], idle)[0] == ["one"]
    assert len(ranks(affinity, ["x"], idle)) == 1, "nobody is preferred"


def test_who_has_too_much_to_do_is_not_preferred():
    affinity = Affinity[str]()
    affinity.note(["a"], "one")
    affinity.note(["a", "b"], "two")
    assert ranks(affinity, ["a", "b"], {"one": 0, "two": 2})[0] == ["two"]
    assert ranks(affinity, ["a", "b"], {"one": 0, "two": 3})[0] == ["one"], "it knows less, but something"
    assert sorted(ranks(affinity, ["a", "b"], {"one": 3, "two": 3, "three": 0, "four": 0})[0]) != ["two"]


def test_who_is_gone_is_not_asked():
    affinity = Affinity[str]()
    affinity.note(["a"], "gone")
    assert ranks(affinity, ["a", "b"], {"one": 0, "two": 0}) in ([["one", "two"]], [["two", "one"]])
    assert ranks(affinity, ["a"], {"one": 0}) == [["one"]]
    assert affinity.ranks(["a"], [], float, 1, Random(1)) == [[]]


def test_the_last_one_that_has_read_it_is_remembered_and_the_oldest_forgotten():
    affinity = Affinity[int](most=2)
    affinity.note(["a"], 1)
    affinity.note(["b"], 1)
    affinity.note(["a"], 2)
    affinity.note(["c"], 3)
    assert [*affinity.known(["a"])] == [2]
    assert [*affinity.known(["b"])] == []
    assert [*affinity.known(["c"])] == [3]


@pytest.mark.parametrize("replicas", [1, 2, 5, 40])
def test_new_conversations_are_spread(replicas):
    affinity, load, random = Affinity[int](), dict.fromkeys(range(replicas), 0), Random(7)
    for number in range(40 * replicas):
        chosen = min(
            affinity.ranks([f"{number}"], [*load], load.__getitem__, 0, random)[0], key=load.__getitem__
        )
        affinity.note([f"{number}"], chosen)
        load[chosen] += 1
    assert max(load.values()) - min(load.values()) <= 8
