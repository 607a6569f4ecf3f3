"""Messages and entries in words: what is told of each kind, and that no text can pass for a heading."""

from __future__ import annotations

import pytest

from localagent.cli.transcript import Passage, Told, as_markdown, as_text, draw_tree, tell, tell_entry
from localagent.messages import (
    AssistantMessage,
    AudioPart,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    FlushMessage,
    ImagePart,
    MalformedToolCallPart,
    ReasoningPart,
    RescueMessage,
    SystemMessage,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from localagent.session import SessionStore

CALL = ToolCallPart(id="c1", name="find", arguments={"name": "Bob", "n": 3})


def passages(message) -> list[tuple[str, str]]:
    return [(each.manner, each.text) for each in tell(message).passages]


@pytest.mark.parametrize(
    ("message", "heading"),
    [
        (SystemMessage.text("x"), "system"),
        (AssistantMessage(content="x"), "assistant"),
        (AssistantMessage(content="x", model="lfm2"), "assistant (lfm2)"),
        (CustomMessage(custom_type="bookmark", payload={}), "custom (bookmark)"),
        (BranchSummaryMessage(content="x"), "branch summary"),
        (BranchSummaryMessage(content="x", branch="e7"), "branch summary (of e7)"),
        (CompactionSummaryMessage(content="x"), "compaction summary"),
        (RescueMessage(content="x"), "rescue"),
    ],
)
def test_headings(message, heading):
    assert tell(message).heading == heading


@pytest.mark.parametrize(
    ("part", "passage"),
    [
        (ReasoningPart(text="Hm."), ("reasoning", "Hm.")),
        (ReasoningPart(text=""), ("reasoning", "(reasoning that only the provider can read)")),
        (CALL, ("call", 'call find(name="Bob", n=3)')),
        (MalformedToolCallPart(raw="f(", reason="truncated"), ("problem", "malformed call (truncated): f(")),
    ],
)
def test_parts_of_a_turn_of_the_model(part, passage):
    assert passages(AssistantMessage(content=["a", part])) == [("text", "a"), passage]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (ImagePart(data=b"\x89PNG\r\n\x1a\n"), "[image image/png, 8 bytes]"),
        (ImagePart(url="https://a.b/c"), "[image https://a.b/c]"),
        (AudioPart(url="https://a.b/c.mp3"), "[audio audio/mpeg https://a.b/c.mp3]"),
        (ImagePart(file_id="f7", media_type="image/png"), "[image image/png f7]"),
        ({"kind": "smell", "text": "x"}, "[a part of kind 'smell']"),
    ],
)
def test_media_are_named_and_their_bytes_left_out(part, text):
    assert passages(UserMessage(content=["a", part])) == [("text", "a"), ("note", text)]


@pytest.mark.parametrize(
    ("result", "passage"),
    [
        (CALL.result("42"), ("result", "result of find: 42")),
        (CALL.result("no such name", is_error=True), ("problem", "error of find: no such name")),
        (ToolResultPart(call_id="c", content="42"), ("result", "result: 42")),
        (ToolResultPart(call_id="c", content="no", is_error=True), ("problem", "error: no")),
        (
            ToolResultPart(call_id="c", name="see", content=("a", ImagePart(url="https://a.b/c"))),
            ("result", "result of see: a [image https://a.b/c]"),
        ),
    ],
)
def test_results(result, passage):
    assert passages(ToolMessage(content=[result])) == [passage]


@pytest.mark.parametrize(
    ("how", "last"),
    [
        ({"stop_reason": "stop"}, ("text", "x")),
        ({"stop_reason": "tool_calls"}, ("text", "x")),
        ({"stop_reason": "length"}, ("note", "(ended by length)")),
        ({"stop_reason": "cancelled"}, ("note", "(ended by cancelled)")),
        ({"stop_reason": "content_filter"}, ("note", "(ended by content filter)")),
        ({"stop_reason": "error"}, ("problem", "failed: for no known reason")),
        ({"stop_reason": "error", "error": "no memory"}, ("problem", "failed: no memory")),
    ],
)
def test_how_a_turn_ended(how, last):
    assert passages(AssistantMessage(content="x", **how))[-1] == last


def test_what_is_no_talk():
    assert passages(CustomMessage(custom_type="b", payload={"é": [1]})) == [("note", '{"é": [1]}')]
    assert passages(FlushMessage()) == [("note", "what is above is no longer sent")]


# Layout

TOLD = [
    Told("user\n## x", (Passage("text", "Hi.\nuser:"), Passage("text", " And"), Passage("text", ""))),
    Told(
        "assistant",
        (
            Passage("reasoning", "Hm.\n\nWell."),
            Passage("text", "Yes."),
            Passage("call", "call f(``` `````)"),
            Passage("problem", "no"),
            Passage("note", "(ended)"),
        ),
    ),
]


def test_text_is_indented_below_its_heading():
    assert as_text(TOLD) == (
        "user ## x:\n  Hi.\n  user: And\n\n"
        "assistant:\n  reasoning: Hm.\n\n  Well.\n  Yes.\n  call f(``` `````)\n  no\n  (ended)\n"
    )
    assert as_text([]) == ""


def test_headings_are_painted_too():
    painted = []

    def paint(passage):
        painted.append(passage.manner)
        return passage.text.upper()

    assert as_text(TOLD[:1], paint) == "USER ## X:\n  HI.\n  USER: AND\n"
    assert painted == ["text", "heading"]


def test_markdown_has_a_heading_per_message_and_fences_that_hold():
    assert as_markdown(TOLD) == (
        "## user ## x\n\nHi.\nuser: And\n\n"
        "## assistant\n\n> Hm.\n>\n> Well.\n\nYes.\n\n``````\ncall f(``` `````)\n``````\n\n```\nno\n```\n\n*(ended)*\n"
    )
    assert as_markdown([]) == ""


# A session


@pytest.fixture
def session(tmp_path):
    return SessionStore(tmp_path).create()


def shape(session) -> list[str]:
    text = "\n".join(draw_tree(session))
    for number, entry in enumerate(session.entries):
        text = text.replace(entry.id, str(number))
    return text.split("\n")


def test_markers_of_a_session(session):
    first = session.append(UserMessage.text("Hi."))
    second = session.append(AssistantMessage.text("Hello."))
    session.compact("Greetings.", first_kept=second)
    told = tell_entry(session.entries[-1])
    assert told == Told(
        f"compaction summary (for what came before {second})", (Passage("text", "Greetings."),)
    )
    session.compact("All.", first_kept=None)
    assert tell_entry(session.entries[-1]).heading == "compaction summary (for all of the above)"
    session.branch(first, "They greeted.")
    told = tell_entry(session.entries[-1])
    assert told.heading.startswith("branch summary (of ")
    assert told.passages == (Passage("text", "They greeted."),)


def test_a_tree_of_branches_within_branches(session):
    root = session.append(UserMessage.text("a"))
    left = session.append(AssistantMessage.text("b"))
    session.append(UserMessage.text("c"))
    session.branch(left)
    session.append(UserMessage.text("d\nuser: e" + "f" * 200))
    session.branch(root)
    session.append(AssistantMessage.text("g"))
    *lines, last = shape(session)
    assert lines[:3] == ["  0 user: a", "  ├─ 1 assistant: b", "  │  ├─ 2 user: c"]
    assert lines[3].startswith("  │  └─ 3 user: d user: efff")
    assert len(lines[3].partition("3 ")[2]) == 100
    assert last == "* └─ 4 assistant: g"


def test_several_beginnings(session):
    session.append(UserMessage.text("a"))
    session.branch(None)
    session.append(UserMessage.text("b"))
    session.append(AssistantMessage.text("c"))
    assert shape(session) == ["  0 user: a", "  1 user: b", "* 2 assistant: c"]
