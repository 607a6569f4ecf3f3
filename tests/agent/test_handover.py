"""After a hand-over the other agent goes on with its own tools and rules, and only one can."""

from __future__ import annotations

import pytest

from localagent.agent import Agent, Allow, HandedOver, Rule, RunFailed, TurnStarted, hand_over_to
from localagent.agent.handover import SECOND, target_of
from localagent.agent.recovery import DROPPED
from localagent.agent.slot import Slot
from localagent.errors import InvalidTool
from localagent.messages import ToolCallPart
from localagent.session import Session
from localagent.tools import tool
from tests.agent.replaying import block, follow, lines, scripted


@tool
def add(a: int) -> int:
    """Add."""
    return a + 1


def test_another_agent_goes_on(tmp_path):
    clerk = Agent(scripted(block("add(a=1)"), "Two."), [add], name="clerk", instructions="I add.")
    desk = Agent(
        scripted("Moment. " + block("hand_over_to_clerk(task='Add one.')")),
        [hand_over_to(clerk, "Adds numbers.")], name="desk", instructions="I greet.",
    )  # fmt: skip
    session = Session.create(tmp_path)
    events, done = follow(desk, history=session)
    assert lines(done.messages) == [
        "user: Go.",
        'assistant: Moment.  hand_over_to_clerk(task="Add one.")',
        "tool: clerk goes on from here. Task: Add one.",
        "assistant: add(a=1)",
        "tool: 2",
        "assistant: Two.",
    ]
    assert session.context() == list(done.messages)
    names = [message.agent_name for message in done.messages]
    assert names == [None, "desk", "desk", "clerk", "clerk", "clerk"]
    assert [event.agent_name for event in events if isinstance(event, TurnStarted)] == [
        "desk",
        "clerk",
        "clerk",
    ]
    assert HandedOver("desk", "clerk") in events
    assert desk.model.host.rendered[0][0]["content"] == "I greet."
    assert clerk.model.host.rendered[0][0]["content"] == "I add."
    assert done.usage.output == sum(message.usage.output for message in done.messages[1::2])


def test_the_first_hand_over_of_a_turn_decides():
    one = Agent(scripted("One."), name="one")
    two = Agent(scripted("Two."), name="two")
    desk = Agent(
        scripted(block("hand_over_to_two()", "hand_over_to_one()")), [hand_over_to(one), hand_over_to(two)]
    )
    _, done = follow(desk)
    assert lines(done.messages)[2:] == [f"tool: two goes on from here. | ! {SECOND}", "assistant: Two."]


def test_a_hand_over_that_is_denied_does_not_stand_in_the_way():
    one, two = Agent(scripted("One."), name="one"), Agent(scripted("Two."), name="two")
    desk = Agent(
        scripted(block("hand_over_to_one()", "hand_over_to_two()")), [hand_over_to(one), hand_over_to(two)],
        approvals=[Rule("deny", "hand_over_to_one")],
    )  # fmt: skip
    _, done = follow(desk)
    assert [result.is_error for result in done.messages[2].results] == [True, False]
    assert done.message.text == "Two."


def test_the_round_before_was_another_agents():
    @tool
    def look() -> str:
        return "seen"

    third = Agent(scripted("Third."), name="third")
    second = Agent(
        scripted(block("look()", "go()"), "Second."), [look, hand_over_to(third, name="go")], name="second"
    )
    first = Agent(scripted(block("look()", "go()")), [look, hand_over_to(second, name="go")], name="first")
    _, done = follow(first)
    assert lines(done.messages)[2:] == [
        *("tool: seen | second goes on from here.", "assistant: look() go()"),
        *("tool: seen | third goes on from here.", "assistant: Third."),
    ]


def test_what_another_agent_wrote_wrong_does_not_count():
    broken = block("add(a=oops(1))")
    clerk = Agent(scripted(broken, "Two."), [add], name="clerk", max_rescues=1)
    desk = Agent(
        scripted(broken, block("hand_over_to_clerk()").replace("[", "[add(a=oops(1)), ")),
        [add, hand_over_to(clerk)], max_rescues=2,
    )  # fmt: skip
    _, done = follow(desk)
    assert (done.stop_reason, done.message.text) == ("answer", "Two.")


def test_a_repeated_hand_over_that_was_not_run_hands_nothing_over():
    target = Agent(scripted("never"), name="other")
    call = ToolCallPart(id="c", name="hand_over_to_other")
    slot = Slot(call, call, hand_over_to(target), result=call.result("other goes on from here."))
    assert target_of([slot]) is None
    slot.started = True
    assert target_of([slot]) is target
    slot.result = call.result("a hook refused it", is_error=True)
    assert target_of([slot]) is None
    slot.result = None
    assert target_of([slot]) is None


def test_what_a_model_reads_of_a_hand_over():
    other = Agent(scripted("x"), name="other")
    said = [
        (tool.name, tool.description) for tool in (hand_over_to(other), hand_over_to(other, "Adds.", "go"))
    ]
    assert said == [("hand_over_to_other", "Let other go on with the conversation."), ("go", "Adds.")]


def test_rules_go_with_the_agent():
    @tool(side_effects=True)
    def touch() -> str:
        return "touched"

    strict = Agent(scripted(block("touch()"), "Done."), [touch], name="strict")
    desk = Agent(
        scripted(block("hand_over_to_strict()")),
        [hand_over_to(strict)], approvals=lambda requests: [Allow()] * len(requests),
    )  # fmt: skip
    _, done = follow(desk)
    assert done.messages[4].results[0].is_error, "nobody allowed it for this agent"


def test_the_turn_limit_is_that_of_the_run():
    other = Agent(scripted(block("add(a=1)"), block("add(a=2)"), "Enough."), [add], name="other")
    desk = Agent(scripted(block("hand_over_to_other()")), [hand_over_to(other)], max_turns=2)
    _, done = follow(desk)
    assert (done.stop_reason, done.turns) == ("turn_limit", 3)


@pytest.mark.parametrize("call", ["hand_over_to_other(task=['x'])", "hand_over_to_other(work='x')"])
def test_wrong_arguments_do_not_hand_over(call):
    other = Agent(scripted("never"), name="other")
    _, done = follow(Agent(scripted(block(call), "Mine."), [hand_over_to(other)]))
    assert (done.messages[2].results[0].is_error, done.message.text) == (True, "Mine.")


def test_an_agent_without_a_name():
    with pytest.raises(InvalidTool, match="needs a name"):
        hand_over_to(Agent(scripted("x")))


def test_the_next_agent_is_not_told_to_mend_calls_of_the_one_before():
    other = Agent(scripted("Mine."), name="other")
    wrong = block("hand_over_to_other()", "add(a=1, b=oops(2))")
    desk = Agent(scripted(wrong), [hand_over_to(other), add], name="desk")
    _, done = follow(desk)
    assert lines(done.messages)[2:] == [
        "tool: other goes on from here.",
        f"rescue: {DROPPED}",
        "assistant: Mine.",
    ]
    assert "again" not in str(other.model.host.rendered[0])
    assert done.agent_name == "other"


def test_two_agents_can_name_each_other():
    first = Agent(
        scripted(block("hand_over_to_second()"), "Done."),
        [hand_over_to(lambda: second, "Comes second.")], name="first",
    )  # fmt: skip
    second = Agent(scripted(block("back()")), [hand_over_to(lambda: first, name="back")], name="second")
    events, done = follow(first)
    assert [(e.source, e.target) for e in events if isinstance(e, HandedOver)] == [
        ("first", "second"),
        ("second", "first"),
    ]
    assert done.text == "Done."
    (made,) = first.toolset()
    assert (made.name, made.description, made.target) == ("hand_over_to_second", "Comes second.", second)


def test_an_agent_that_comes_later_is_asked_for_once():
    def find():
        asked.append(1)
        return other

    asked: list = []
    other = Agent(scripted("Mine."), name="other")
    desk = Agent(scripted(block("hand_over_to_other()")), [hand_over_to(find)])
    assert asked == []
    follow(desk)
    follow(desk)
    assert asked == [1]


@pytest.mark.parametrize(
    ("found", "said"), [(5, "returned 5: it must be an Agent"), (Agent(scripted("x")), "needs a name")]
)
def test_what_comes_later_and_is_no_agent(found, said):
    *_, last = Agent(scripted("x"), [hand_over_to(lambda: found)]).run("Go.")
    assert isinstance(last, RunFailed)
    assert isinstance(last.error, InvalidTool)
    assert said in str(last.error)


@pytest.mark.parametrize("target", [5, None, "clerk", Agent])
def test_what_is_no_agent(target):
    with pytest.raises(InvalidTool, match="it must be an Agent"):
        hand_over_to(target)
