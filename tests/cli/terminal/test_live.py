"""A view on a terminal that is only emulated: what it draws, and that it never draws where it must not."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from localagent.agent import (
    ApprovalAsked,
    CompactionStarted,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from localagent.cli.show import live, open_view
from localagent.cli.show.view import StreamView
from localagent.cli.terminal import Output
from localagent.hosts.protocol import Prefilled, Queued
from localagent.messages import AssistantMessage, ToolCallPart
from parsers import CallEnd, CallStart, Reasoning, Text

CALL = ToolCallPart(id="c1", name="find", arguments={"name": "Bob"})
STORY = "\n\n".join(
    f"Paragraph {number} of **the** story, which goes on for a while." for number in range(30)
)

FRAME, SHARE = live._FRAME, live._SHARE


def said(text: str) -> Text:
    return Text(text, 0, len(text))


def thought(text: str) -> Reasoning:
    return Reasoning(text, 0, len(text))


@pytest.fixture
def view(emulated, monkeypatch):
    """A view and its terminal; without a rest between two frames, and without a thread that draws by itself."""

    def make(columns=60, rows=12, *, thread=False, **options):
        terminal = emulated(columns, rows)
        monkeypatch.setattr(live, "_FRAME", 0.0)
        monkeypatch.setattr(live, "_SHARE", 0)
        if not thread:
            monkeypatch.setattr(live.LiveView, "_tick", lambda *_: None)
        return open_view(**options), terminal

    yield make
    assert Output.make_way is None, "a view that has ended leaves the streams alone"


def pieces(text: str, size: int = 3):
    return [said(text[at : at + size]) for at in range(0, len(text), size)]


def test_calls_of_one_tool_in_a_turn_are_told_apart(view):
    other = ToolCallPart(id="c2", name="find", arguments={"name": "Eve"})
    shown, terminal = view()
    with shown:
        shown.show(TurnStarted(1))
        shown.show(TurnEnded(1, AssistantMessage(content=[CALL, other])))
        for call, text in ((CALL, "here"), (other, "gone")):
            shown.show(ToolStarted(call))
            shown.show(ToolEnded(call, call.result(text)))
    assert terminal.screen == ['find(name="Bob"): here', 'find(name="Eve"): gone']


def test_n1_markdown_is_rendered_while_it_streams(view):
    shown, terminal = view()
    with shown:
        for event in pieces("# Title\n\nSome **bold"):
            shown.show(event)
        assert terminal.screen == ["Title", "", "Some **bold"]
        shown.show(said("** text and\n- one\n- two"))
        assert terminal.screen == ["Title", "", "Some bold text and", "", " • one", " • two"]
    assert terminal.emulator.cursor.x == 0


def test_n1_words_are_not_broken(view):
    shown, terminal = view(columns=21)
    with shown:
        for event in pieces("The quick brown fox jumps over the lazy dog."):
            shown.show(event)
    assert terminal.screen == ["The quick brown fox", "jumps over the lazy", "dog."]


@pytest.mark.parametrize(("columns", "size"), [(40, 1), (80, 7), (120, 300)])
def test_n1_what_has_scrolled_away_is_never_rewritten_nor_lost(view, columns, size):
    text = STORY + "\n\n```python\n" + "".join(f"x{n} = {n}\n" for n in range(20)) + "```\n\n"
    text += "\n".join(f"{n}. item" for n in range(1, 20)) + "\n\n" + "on and on it goes " * 40
    whole, terminal = view(columns)
    with whole:
        whole.show(said(text))
    expected = terminal.lines
    shown, terminal = view(columns)
    gone: list[str] = []
    with shown:
        for number, event in enumerate(pieces(text, size)):
            shown.show(event)
            if number % 20 == 0:
                assert terminal.gone[: len(gone)] == gone
                gone = terminal.gone
    assert terminal.lines == expected
    assert " ".join(" ".join(expected).split()).endswith("on and on it goes on and on it goes")


def test_n1_a_frame_is_one_write_and_only_of_what_changed(view):
    shown, terminal = view()
    with shown:
        shown.show(said("Some text"))
        terminal.frames.clear()
        shown.show(said(" more"))
        assert terminal.frames == [" more"]
        shown.show(said(" **b"))
        terminal.frames.clear()
        shown.show(said("**"))
        [frame] = terminal.frames
        assert frame.startswith("\rSome text more ")
        assert "\x1b[2J" not in frame


def test_n1_frames_leave_time_for_decoding(view, monkeypatch):
    """At most 20 in a second, and drawing takes no more than a fortieth of it."""
    clock = [100.0]
    shown, terminal = view()
    monkeypatch.setattr(live, "monotonic", lambda: clock[0])
    monkeypatch.setattr(live, "_FRAME", FRAME)
    monkeypatch.setattr(live, "_SHARE", SHARE)
    with shown:
        shown.show(said("one"))
        assert terminal.screen == ["one"]
        clock[0] = 100.04
        shown.show(said(" two"))
        assert terminal.screen == ["one"]
        draw, took = shown._region.draw, 0.01
        monkeypatch.setattr(
            shown._region, "draw", lambda *rows: (clock.append(clock.pop() + took), draw(*rows))
        )
        clock[0] = 100.06
        shown.show(said(" three"))
        assert terminal.screen == ["one two three"]
        for now, drawn in (
            (100.07 + 39 * took, "one two three"),
            (100.07 + 41 * took, "one two three four five"),
        ):
            clock[0] = now
            shown.show(said(" four" if drawn == "one two three" else " five"))
            assert terminal.screen == [drawn]
        shown.show(said(" six"))
        shown.show(thought("Hm."))
        shown.toggle_reasoning()
        assert terminal.screen[-1] == "Hm.", "who presses a key does not wait"
    assert terminal.screen == ["one two three four five six", "Hm.", "thought for 0 s · 1 tokens"]


def test_n1_a_sign_of_life_before_the_first_token(view, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(live, "monotonic", lambda: clock[0])
    shown, terminal = view()
    with shown:
        shown.show(TurnStarted(1))
        assert terminal.screen == [], "nobody has waited long yet"
        clock[0] += 2
        shown.show(Prefilled(1000, 9000, 0))
        assert [line[2:] for line in terminal.screen] == ["reading 1,000 of 9,000 tokens · 2 s"]
        shown.show(said("Hello"))
        assert terminal.screen == ["Hello"]


def test_n1_what_is_waited_for_is_told_from_half_a_second_on(view, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(live, "monotonic", lambda: clock[0])
    shown, terminal = view(columns=70)

    def told(event, now):
        clock[0] = now
        shown.show(event)
        return terminal.screen

    with shown:
        assert told(TurnStarted(1), 100.0) == []
        assert told(Queued(2), 100.45) == []
        assert told(Queued(1), 100.5) == ["⠴ waiting: number 1 in the queue · 0 s"]
        assert told(Prefilled(0, 9, 0), 103.0) == ["⠋ reading 0 of 9 tokens · 3 s"], "it is one wait"
        assert told(CallStart(0, "find\x1b", 0, 1), 103.25) == ["⠹ writing a call of find\\x1b · 3 s"]
        told(CallEnd(0, "find", {}, False, 0, 1), 104.0)
        assert told(ToolStarted(CALL), 105.0) == ["call find()"]
        assert told(ToolStarted(CALL), 105.5) == ["call find()", "⠴ find is running · 0 s"]
        assert told(ToolProgress(CALL, "half"), 106.0) == ["call find()", "⠋ find: half · 1 s"]
        told(CompactionStarted(7, 8), 107.0)
        assert told(CompactionStarted(7, 8), 107.6)[1:] == [
            "(7 of 8 tokens: summarising the conversation)",
            "(7 of 8 tokens: summarising the conversation)",
        ]
        clock[0] = 109.0
        shown._draw()
        assert terminal.screen[-1] == "⠋ summarising the conversation · 1 s"
        assert told(said("Yes."), 110.0)[3:] == ["Yes."]


def test_n1_a_wait_is_counted_while_no_event_comes(view):
    shown, terminal = view(thread=True)
    with shown:
        shown.show(TurnStarted(1))
        deadline = time.monotonic() + 60
        while not any("waiting for the model" in line for line in terminal.screen):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert terminal.screen == [], "it leaves no trace"


def test_n1_calls_and_tools_have_a_sign_of_life_too(view, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(live, "monotonic", lambda: clock[0])
    shown, terminal = view()
    with shown:
        shown.show(said("I look."))
        shown.show(CallStart(0, "find", 0, 1))
        clock[0] += 3
        shown.show(said(""))
        shown.show(CallEnd(0, "find", {"name": "Bob"}, False, 0, 1))
        assert terminal.screen == ["I look.", 'call find(name="Bob")']
        shown.show(ToolStarted(CALL))
        shown.show(ToolProgress(CALL, "half", 0.5))
        assert terminal.screen[-1].endswith("find 50%: half · 0 s")
        shown.show(ToolEnded(CALL, CALL.result("here")))
    assert terminal.screen == ["I look.", 'call find(name="Bob")', "find: here"]


def test_nothing_is_drawn_while_somebody_is_asked(view):
    shown, terminal = view(thread=True)
    with shown:
        shown.show(said("I **look"))
        shown.show(ApprovalAsked(()))
        terminal.write("may it run? ")
        time.sleep(0.3)
        assert terminal.screen == ["I **look", "may it run?"]


def test_n1_a_call_takes_a_row_however_long_its_arguments_are(view):
    shown, terminal = view(columns=80)
    with shown:
        shown.show(CallEnd(0, "write_file", {"text": "long " * 500}, False, 0, 1))
    [row] = terminal.screen
    assert row.startswith('call write_file(text="long long')
    assert row.endswith("...)")


def test_n2_reasoning_is_folded_into_one_line(view, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(live, "monotonic", lambda: clock[0])
    shown, terminal = view()
    with shown:
        for word in ("Let", " me", " see"):
            shown.show(thought(word))
        clock[0] += 3
        shown.show(thought("."))
        assert [line[2:] for line in terminal.screen] == ["thinking · 3 s · 4 tokens · Ctrl-T shows it"]
        shown.show(said("Yes."))
    assert terminal.screen == ["thought for 3 s · 4 tokens · Ctrl-T shows it", "Yes."]


@pytest.mark.parametrize(
    ("columns", "hint"), [(60, " · Ctrl-T shows it"), (45, " · Ctrl-T shows it"), (44, " · Ctrl-T"), (35, "")]
)
def test_n2_the_line_about_a_thought_fits(view, monkeypatch, columns, hint):
    monkeypatch.setattr(live, "monotonic", lambda: 100.0)
    shown, terminal = view(columns=columns)
    with shown:
        shown.show(thought("Hm."))
        shown.show(said("Yes."))
    assert terminal.screen == [f"thought for 0 s · 1 tokens{hint}", "Yes."]


def test_n2_two_thoughts_are_two_lines(view, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(live, "monotonic", lambda: clock[0])
    shown, terminal = view(columns=30)
    with shown:
        shown.show(thought("One"))
        clock[0] += 1.4
        shown.show(CallStart(0, "find", 0, 1))
        assert terminal.screen == ["thought for 1 s · 1 tokens"]
        clock[0] += 0.6
        shown.show(Prefilled(1, 2, 0))
        shown.show(thought("Two"))
        shown.show(thought("."))
        clock[0] += 2.6
        shown.show(said("Yes."))
    assert terminal.screen == ["thought for 1 s · 1 tokens", "thought for 3 s · 2 tokens", "Yes."]


def test_n2_a_key_unfolds_and_folds_what_is_being_thought(view):
    shown, terminal = view()
    with shown:
        shown.show(thought("Let me *see*.\n\nSo"))
        shown.toggle_reasoning()
        assert terminal.screen == ["Let me see.", "", "So"]
        shown.show(thought(" it is"))
        assert terminal.screen == ["Let me see.", "", "So it is"]
        shown.toggle_reasoning()
        assert terminal.screen[-1].startswith(("⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"))
        shown.toggle_reasoning()
        shown.show(said("Yes."))
    assert terminal.screen[-2].startswith("thought for 0 s · 2 tokens")
    assert terminal.screen[-1] == "Yes."


def test_n2_a_key_shows_what_was_thought_while_the_answer_goes_on(view):
    shown, terminal = view()
    with shown:
        shown.show(thought("Let me see."))
        shown.show(said("Yes **it"))
        shown.toggle_reasoning()
        assert terminal.screen[1:] == ["Let me see.", "Yes **it"]
        shown.show(said("** is."))
    assert terminal.screen[1:] == ["Let me see.", "Yes it is."]


def test_n2_a_key_shows_it_after_the_answer_too(view):
    shown, terminal = view()
    with shown:
        shown.show(thought("Let me see."))
        shown.show(said("Yes."))
    shown.toggle_reasoning()
    assert terminal.screen[1:] == ["Yes.", "Let me see."]
    shown.end()


def test_n2_where_no_key_unfolds_it_reasoning_is_shown(view):
    shown, terminal = view(keys=False)
    with shown:
        shown.show(thought("Let me see."))
        shown.show(said("Yes."))
    assert terminal.screen == ["Let me see.", "thought for 0 s · 1 tokens", "Yes."]


def test_without_answers_only_calls_are_shown(view):
    shown, terminal = view(answers=False)
    with shown:
        for event in (thought("Hm"), said("Yes"), CallEnd(0, "find", {}, False, 0, 1)):
            shown.show(event)
    assert terminal.screen == ["call find()"]


def test_what_others_write_meanwhile_is_not_drawn_over(view, monkeypatch):
    shown, terminal = view()
    with shown:
        shown.show(said("One **two"))
        other = threading.Thread(target=lambda: (Output.make_way(), sys.stderr.write("a server failed\n")))
        other.start()
        other.join()
        shown.show(said("** three"))
    assert terminal.screen == ["a server failed", "One two three"]


def test_a_terminal_of_another_width(view, monkeypatch):
    shown, terminal = view(columns=60)
    with shown:
        shown.show(said("The quick brown fox jumps over the lazy dog. "))
        monkeypatch.setenv("COLUMNS", "30")
        terminal.emulator.resize(12, 30)
        shown.show(said("And on."))
    text = " ".join(terminal.screen)
    assert text.endswith("The quick brown fox jumps over the lazy dog. And on.")


def test_no_control_sequence_of_a_model_reaches_the_terminal(view):
    evil = "\x1b[2J\x9b2J\x07&#27;[2J&#155;2J&#x202e; [l\x1b]8;;x](http://a\x1b[8m) ```\x1b[1m\n\x1b]0;t\x07\n```\n|\x1b[5m|\n|-|\n|\r|\n"
    shown, terminal = view()
    with shown:
        for event in pieces(evil, 1):
            shown.show(event)
        shown.show(thought(evil))
        shown.toggle_reasoning()
        shown.show(CallStart(0, evil, 0, 1))
        shown.show(CallEnd(0, evil, {evil: evil}, False, 0, 1))
    written = "".join(terminal.frames)
    for sequence in ("\x1b[2J", "\x9b", "\x07", "\x1b]", "\x1b[8m", "\x1b[5m", "\u202e"):
        assert sequence not in written
    assert r"\x1b[2J" in "".join(terminal.lines)


@pytest.mark.parametrize("settings", [{"TERM": "dumb"}, {"TERM": "unknown"}])
def test_w6_a_dumb_terminal_gets_plain_text(emulated, monkeypatch, settings):
    terminal = emulated()
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    shown = open_view()
    assert type(shown) is StreamView
    with shown:
        for event in (
            TurnStarted(1),
            Prefilled(1, 2, 0),
            thought("Hm"),
            said("**a**"),
            ToolProgress(CALL, "x"),
        ):
            shown.show(event)
    assert "\x1b" not in "".join(terminal.frames)


def test_w6_no_color_leaves_no_colour(view, monkeypatch):
    terminal = view()[1]
    monkeypatch.setenv("NO_COLOR", "1")
    with open_view() as shown:
        for event in (thought("Hm"), said("**a** `b`\n\n1. c\n\n```python\nx = 1\n```\n")):
            shown.show(event)
        shown.show(ToolEnded(CALL, CALL.result("no", is_error=True)))
    written = "".join(terminal.frames)
    assert "\x1b[3" not in written
    assert "\x1b[9" not in written
    assert "\x1b[1ma" in written, "bold is no colour"
