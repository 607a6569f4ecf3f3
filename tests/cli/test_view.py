"""What a person sees of a turn or a run: on a terminal, and in the streams of a pipe."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys

import pytest

from localagent.agent import (
    CompactionEnded,
    CompactionStarted,
    HandedOver,
    Retried,
    RunDone,
    ToolEnded,
    ToolProgress,
    TurnEnded,
    TurnStarted,
)
from localagent.cli.show import view
from localagent.hosts.protocol import Prefilled, Queued
from localagent.messages import AssistantMessage, ImagePart, TextPart, ToolCallPart, UserMessage
from localagent.messages.usage import Timings, Usage
from localagent.prompt.request import RequestWarning
from parsers import CallEnd, Malformed, Reason, Reasoning, Text

CALL = ToolCallPart(id="c1", name="find", arguments={"name": "Bob"})
OTHER = ToolCallPart(id="c2", name="find", arguments={"name": "Ann"})


def said(text: str) -> Text:
    return Text(text, 0, len(text))


def thought(text: str) -> Reasoning:
    return Reasoning(text, 0, len(text))


def called(name: str, arguments: dict[str, str]) -> CallEnd:
    return CallEnd(0, name, arguments, False, 0, 1)


def malformed(raw: str) -> Malformed:
    return Malformed(raw, Reason.TRUNCATED, None, None, {}, 0, len(raw))


class Terminal(io.StringIO):
    """A stream of a terminal: what both of them flush is on one screen, in order."""

    def __init__(self, written: list[str]) -> None:
        super().__init__()
        self._shown = written
        self._waiting = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._waiting += text
        return len(text)

    def flush(self) -> None:
        self._shown.append(self._waiting)
        self._waiting = ""


class Screen:
    """A view on a terminal, and the clock that it reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, answers: bool = True, columns: int = 80) -> None:
        self.time = 100.0
        self._written: list[str] = []
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(view, "monotonic", lambda: self.time)
        monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24)))
        self._streams = {name: Terminal(self._written) for name in ("stdout", "stderr")}
        self._use()
        self._view = view.StreamView(answers=answers)

    def show(self, *events: object) -> list[str]:
        for event in events:
            self._use()
            self._view.show(event)  # type: ignore[arg-type]
        return self.lines

    def end(self) -> list[str]:
        self._use()
        self._view.end()
        return self.lines

    def _use(self) -> None:
        """Each time anew: pytest replaces the streams between a fixture and its test."""
        for name, stream in self._streams.items():
            self._monkeypatch.setattr(sys, name, stream)

    @property
    def raw(self) -> str:
        return "".join(self._written)

    @property
    def lines(self) -> list[str]:
        """What is on the screen, without colours: the last line is where the cursor is."""
        plain = re.sub(r"\x1b\[\d+m", "", self.raw)
        return [line.rsplit("\r\x1b[K", 1)[-1] for line in plain.split("\n")]


@pytest.fixture
def screen(monkeypatch) -> Screen:
    return Screen(monkeypatch)


class Piped(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), "utf-8", write_through=True)

    @property
    def text(self) -> str:
        return self.buffer.getvalue().decode()


@pytest.fixture
def piped(monkeypatch):
    """Shows events where both streams are pipes; returns what they hold."""

    def show(*events, end=True, **options):
        streams = Piped(), Piped()
        monkeypatch.setattr(sys, "stdout", streams[0])
        monkeypatch.setattr(sys, "stderr", streams[1])
        stream_view = view.StreamView(**options)
        for event in events:
            stream_view.show(event)
        if end:
            stream_view.end()
        return streams[0].text, streams[1].text

    return show


def result(text: str, *, error: bool = False, call: ToolCallPart = CALL):
    return call.result(text, is_error=error)


# A terminal.


def test_a_long_prefill_is_counted_until_the_answer_begins(screen):
    assert screen.show(TurnStarted(1)) == [""]
    screen.time += 0.5
    assert screen.show(Prefilled(100, 9000, 0)) == [""], "nobody has waited long yet"
    screen.time += 0.01
    assert screen.show(Prefilled(1000, 9000, 0)) == ["reading 1,000 of 9,000 tokens"]
    assert screen.show(Prefilled(2000, 9000, 0)) == ["reading 2,000 of 9,000 tokens"]
    assert screen.show(said("Hello")) == ["Hello"]
    assert screen.show(said(" there")) == ["Hello there"]
    assert screen.end() == ["Hello there", ""]


def test_a_wait_for_others_is_shown_as_one(screen):
    screen.time += 1
    assert screen.show(Queued(2)) == ["waiting: number 2 in the queue"]
    assert screen.show(Queued(1)) == ["waiting: number 1 in the queue"]
    assert screen.show(Prefilled(0, 9000, 0)) == ["reading 0 of 9,000 tokens"]
    assert screen.show(said("Hello")) == ["Hello"]


def test_the_wait_is_counted_from_the_beginning_of_each_turn(screen):
    screen.time += 10
    assert screen.show(TurnStarted(2), Prefilled(100, 9000, 0)) == [""]


def test_what_was_erased_is_erased_once(screen):
    screen.time += 1
    screen.show(Prefilled(1, 2, 0), said("a"))
    erased = screen.raw.count("\x1b[K")
    screen.show(said("b"), said("c"))
    screen.end()
    assert screen.raw.count("\x1b[K") == erased


def test_a_count_left_at_the_end_is_erased(screen):
    screen.time += 1
    screen.show(Prefilled(1, 2, 0))
    assert screen.end() == [""]


def test_passing_lines_stay_on_one_line(monkeypatch):
    screen = Screen(monkeypatch, columns=20)
    screen.show(ToolProgress(CALL, "a long report\x1b[2J " * 10, 0.5))
    (line,) = screen.lines
    assert line == "find 50%: a long re"
    assert len(line) == 19, "in the last column the cursor would go to the next line"


def test_progress_is_replaced_and_ends_a_line_of_text(screen):
    screen.show(said("I look"), ToolProgress(CALL, "one"), ToolProgress(CALL, "two", 0.25))
    assert screen.lines == ["I look", "find 25%: two"]
    assert screen.show(ToolEnded(CALL, result("here"))) == ["I look", "find: here", ""]


def test_reasoning_stands_apart_from_the_answer(screen):
    assert screen.show(thought("Let me"), thought(" see"), said("Yes.")) == ["Let me see", "Yes."]
    assert "\x1b[2mLet me\x1b[0m" in screen.raw
    screen.show(said("\n"))
    assert screen.show(thought("Hm.\n"), said("No.")) == ["Let me see", "Yes.", "Hm.", "No."]


def test_a_result_has_its_colour_by_what_became_of_it(screen):
    screen.show(ToolEnded(CALL, result("fine")), ToolEnded(CALL, result("no such file", error=True)))
    assert "\x1b[2mfind: fine\x1b[0m\n" in screen.raw
    assert "\x1b[31mfind: failed: no such file\x1b[0m\n" in screen.raw
    screen.show(CompactionEnded(None, 7, 7, "no room"), RequestWarning("images_removed", "no eyes"))
    assert "\x1b[31m(not summarised: no room)\x1b[0m\n" in screen.raw
    assert "\x1b[31mwarning: no eyes\x1b[0m\n" in screen.raw


def test_a_warning_is_shown_once(screen):
    """Every turn brings it again, and an answer may take many."""
    again = RequestWarning("thinking", "it cannot be told to think")
    screen.show(again, said("One.\n"), again, RequestWarning("thinking", "another"), again)
    assert screen.raw.count("it cannot be told") == 1
    assert screen.raw.count("another") == 1


def test_nothing_of_a_model_or_a_tool_moves_the_cursor(screen):
    evil = "\x1b[2J\r\x07"
    screen.show(
        said(evil), thought(evil), called(f"a{evil}", {"b": evil}), malformed(evil),
        ToolEnded(CALL, result(evil)), ToolProgress(CALL, evil), RequestWarning("images_removed", evil),
    )  # fmt: skip
    assert "\x1b[2J" not in screen.raw
    assert "\x07" not in screen.raw
    assert screen.raw.count("\r") == screen.raw.count("\r\x1b[K")


# Pipes.


def test_the_answer_alone_goes_to_stdout_as_it_is(piped):
    events = (thought("Hm"), said("A\x1b[1m"), called("find", {"name": "Bob"}), said("B\n"))
    out, err = piped(*events)
    assert out == "A\x1b[1m\nB\n", "a text without a line's end gets one before anything else is said"
    assert err == 'Hm\ncall find(name="Bob")\n'
    assert "\x1b" not in err


def test_nothing_but_answers_goes_to_stdout(piped):
    assert piped(thought("Hm"), called("find", {})) == ("", "Hm\ncall find()\n")
    assert piped(thought("Hm")) == ("", "Hm\n")
    assert piped(thought("Hm\n")) == ("", "Hm\n")


def test_without_answers_only_calls_and_steps_are_told(piped):
    out, err = piped(said("A"), thought("B"), called("find", {}), answers=False)
    assert (out, err) == ("", "call find()\n")


def test_a_pipe_gets_a_line_per_report_and_no_count_of_the_prefill(piped, monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(view, "monotonic", lambda: next(clock))
    out, err = piped(Prefilled(1, 9, 0), ToolProgress(CALL, "one"), ToolProgress(CALL, "t\nw" * 200, 0.5))
    first, second = err.splitlines()
    assert (out, first) == ("", "find: one")
    assert second.startswith("find 50%: t wt wt w")
    assert len(second) < 180


def test_calls_of_one_tool_are_told_apart(piped):
    turn = AssistantMessage(content=[CALL, OTHER])
    _, err = piped(
        TurnEnded(1, turn), ToolEnded(CALL, result("x")), ToolEnded(OTHER, result("y", call=OTHER))
    )
    assert err == 'find(name="Bob"): x\nfind(name="Ann"): y\n'
    _, err = piped(TurnEnded(1, AssistantMessage(content=[CALL])), ToolEnded(CALL, result("x")))
    assert err == "find: x\n"


@pytest.mark.parametrize(("seconds", "says"), [(0.99, ""), (1.0, " (1.0 s)"), (61.26, " (61.3 s)")])
def test_a_slow_tool_is_shown_with_its_time(piped, seconds, says):
    assert piped(ToolEnded(CALL, result("x"), seconds))[1] == f"find{says}: x\n"


def test_a_result_is_told_by_its_beginning_and_its_other_parts(piped):
    assert piped(ToolEnded(CALL, result("")))[1] == "find: (nothing)\n"
    for length, shown in ((160, "w" * 160), (161, "w" * 157 + "..."), (10**6, "w" * 157 + "...")):
        assert piped(ToolEnded(CALL, result("w" * length)))[1] == f"find: {shown}\n"
    picture = ImagePart.from_url("https://example.org/map.png")
    assert (
        piped(ToolEnded(CALL, CALL.result([TextPart(text="a map"), picture])))[1] == "find: a map [image]\n"
    )
    assert piped(ToolEnded(CALL, CALL.result([picture])))[1] == "find: [image]\n"


@pytest.mark.parametrize("why", view._RETRIES)
def test_every_repetition_is_told(piped, why):
    assert piped(Retried(why, "text for the model"))[1] == f"(asking the model again: {view._RETRIES[why]})\n"


def test_steps_of_a_run(piped):
    _, err = piped(
        malformed("[f("), RequestWarning("images_removed", "the system text was moved"),
        CompactionStarted(7000, 8192), CompactionEnded("all of it", 7000, 1200),
        CompactionEnded(None, 7000, 7000, "the model wrote nothing"),
        CompactionEnded("...", 8000, 5000, "it wrote nothing; older turns were left out"), HandedOver("a", "b"),
    )  # fmt: skip
    assert err.splitlines() == [
        "malformed call (truncated): [f(",
        "warning: the system text was moved",
        "(7,000 of 8,192 tokens: summarising the conversation)",
        "(summarised: 7,000 tokens are now 1,200)",
        "(not summarised: the model wrote nothing)",
        "(not summarised: it wrote nothing; older turns were left out: 8,000 tokens are now 5,000)",
        "(b takes over)",
    ]


def test_a_view_ends_once(piped):
    out, _ = piped(said("a"))
    assert out == "a\n"
    out, _ = piped(said("a\n"))
    assert out == "a\n"


# The figures of a run.


@pytest.fixture
def figures(capsys):
    def show(*timings, usage, turns=1, last="stop"):
        messages = [AssistantMessage(content=["x"], timings=each, stop_reason=last) for each in timings]
        message = messages[-1] if messages else None
        view.print_stats(
            RunDone(message, (UserMessage(content="Hi."), *messages), usage, turns, "turn_limit")
        )
        return capsys.readouterr().err

    return show


def test_the_figures_are_of_all_turns(figures):
    usage = Usage(input=700, output=50, cache_read=300)
    assert figures(Timings(prefill=1.5, decode=2), Timings(prefill=0.5, decode=3), usage=usage, turns=2) == (
        "turns: 2; prompt tokens: 400 in 2.00 s, 200.0/s; cached: 300; generated: 50 in 5.00 s, 10.0/s; "
        "stop: stop\n"
    )


def test_figures_of_one_turn_and_of_none(figures):
    said_once = figures(Timings(), usage=Usage(input=7, output=2), last="length")
    assert said_once == "prompt tokens: 7; cached: 0; generated: 2; stop: length\n"
    assert figures(Timings(prefill=0.5), usage=Usage(input=7)).startswith(
        "prompt tokens: 7 in 0.50 s, 14.0/s;"
    )
    assert figures(usage=Usage()) == "prompt tokens: 0; cached: 0; generated: 0; stop: turn_limit\n"
