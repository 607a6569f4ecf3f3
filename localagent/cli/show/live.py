"""The events of a turn or a run on a terminal: rendered, and drawn anew as they come.

The answer is Markdown. Reasoning is folded into one line that says what it took, until a person unfolds it.
While nothing comes there is a sign of life. Everything else is told as `StreamView` tells it.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from shutil import get_terminal_size
from time import monotonic
from typing import TYPE_CHECKING

from localagent.agent import AgentEvent, ApprovalAsked, CompactionStarted, ToolStarted, TurnEnded, TurnStarted
from localagent.cli.show.region import Region
from localagent.cli.show.view import PATIENCE, StreamView
from localagent.cli.terminal import Output, flat, styled, takes_colour, write_raw
from localagent.messages import describe_arguments
from localagent.parsers import CallEnd, CallStart, Reasoning, Text
from localagent.wording import one_line

if TYPE_CHECKING:
    from localagent.cli.show.markdown import MarkdownRows

_FRAME = 0.05
"""Seconds from one frame to the next, at least."""
_SHARE = 40
"""And at least so many times as long as drawing it took, so that drawing takes little from decoding."""
_TICK = 0.1
"""Seconds after which what was not drawn at once is drawn, and a wait is counted on."""
_ARGUMENTS = 60
"""Characters of a call's arguments to show at least; and as many as there is room for in a row."""
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass(frozen=True, slots=True)
class Wait:
    """What is waited for."""

    words: str
    since: float
    told_from: float
    """When to say so: a short wait is not worth a word."""


@dataclass
class Thought:
    """One stretch of reasoning."""

    began: float
    pieces: list[str] = field(default_factory=list)
    seconds: float | None = None
    """How long it took; None while it goes on."""

    @property
    def measure(self) -> str:
        """What it took. There is an event for each token, unless a token is only a part of a character."""
        seconds = monotonic() - self.began if self.seconds is None else self.seconds
        return f"{seconds:.0f} s · {len(self.pieces):,} tokens"


class LiveView(StreamView):
    """Shows events one by one.

    They come from one thread. `toggle_reasoning` may be called from any, and any may write meanwhile.
    """

    def __init__(self, *, answers: bool = True, warned: set[str] | None = None, keys: bool = True) -> None:
        super().__init__(answers=answers, warned=warned)
        self._lock = threading.RLock()
        self._region = Region(self._write)
        self._ink = takes_colour(sys.stdout)
        self._text: MarkdownRows | None = None  # what is being written, the answer or unfolded reasoning
        self._thought: Thought | None = None  # the last one
        self._folded = self._keys = keys
        self._open: list[str] = []  # its rows that may still change
        self._wait: Wait | None = None
        self._stale = False  # something came since the last frame
        self._next_frame = 0.0
        self._stop: threading.Event | None = None  # ends the thread that draws while no event comes

    def show(self, event: AgentEvent) -> None:
        """Show the next event."""
        with self._lock:
            self._begin()
            match event:
                case Text() | Reasoning() if not self._answers:
                    pass
                case Text(text=text):
                    self._end_thought()
                    self._add(text)
                case Reasoning(text=text):
                    self._think(text)
                case TurnStarted():
                    super().show(event)
                    self.waiting("waiting for the model")
                case CallStart(name=name):
                    self._end_thought()
                    self.waiting(f"writing a call of {name}")
                case CallEnd(name=name, arguments=arguments):  # whoever is asked about it is shown all of it
                    room = max(_columns() - len(f"call {name}()"), _ARGUMENTS)
                    self._note(f"call {name}({one_line(describe_arguments(arguments), room)})", "cyan")
                case TurnEnded() | ApprovalAsked():  # a question may come, and nothing may be drawn over it
                    self._settle()
                    super().show(event)
                case ToolStarted(call=call):
                    self.waiting(f"{self._named(call)} is running")
                case CompactionStarted():
                    super().show(event)
                    self.waiting("summarising the conversation")
                case _:
                    super().show(event)
            self._draw()

    def waiting(self, words: str, *, patience: float = PATIENCE) -> None:
        """Say what is waited for, until there is something to show."""
        with self._lock:
            self._begin()
            since = self._wait.since if self._wait else monotonic()
            self._wait = Wait(flat(words), since, since + patience)

    def toggle_reasoning(self) -> None:
        """Fold or unfold the reasoning: the stretch that is being written, or else the last one."""
        with self._lock:
            self._folded = not self._folded
            thought = self._thought
            if thought is None:
                return
            if thought.seconds is None:
                self._region.discard()
                self._text, self._open = None, []
                if not self._folded:
                    self._add("".join(thought.pieces), style="dim")
                self._draw(at_once=True)
            elif not self._folded:
                text = self._new_text("dim")
                text.feed("".join(thought.pieces))
                self._region.insert(text.end(_columns()))

    def end(self) -> None:
        """Leave the cursor at the start of a line. More events may follow."""
        with self._lock:
            if self._stop is not None:
                self._settle()
                self._stop.set()
                self._stop = Output.make_way = None

    # -- what is on the screen ------------------------------------------------------------------------

    def _begin(self) -> None:
        """Draw by itself from now on, and make way for whatever else is written."""
        if self._stop is None:
            self._stop = threading.Event()
            Output.make_way = self._make_way
            threading.Thread(target=self._tick, args=(self._stop,), daemon=True, name="screen").start()

    def _tick(self, stop: threading.Event) -> None:
        while not stop.wait(_TICK):
            with self._lock:
                if stop.is_set():
                    return
                try:
                    self._draw()
                except OSError:  # the terminal has gone, and the next event tells
                    return

    def _make_way(self) -> None:
        with self._lock:
            self._region.clear()
            self._stale = True

    def _new_text(self, style: str) -> MarkdownRows:
        from localagent.cli.show.markdown import (
            MarkdownRows,  # rich loads slowly, and not before it is needed
        )

        return MarkdownRows(colour=self._ink, style=style)

    def _add(self, text: str, style: str = "none") -> None:
        self._wait = None
        if self._text is None:
            self._text = self._new_text(style)
        self._text.feed(text)
        self._stale = True

    def _think(self, text: str) -> None:
        self._wait = None
        if self._thought is None or self._thought.seconds is not None:
            self._settle()
            self._thought = Thought(monotonic())
        self._thought.pieces.append(text)
        if not self._folded:
            self._add(text, style="dim")
        self._stale = True

    def _end_thought(self) -> None:
        thought = self._thought
        if thought is None or thought.seconds is not None:
            return
        thought.seconds = monotonic() - thought.began
        self._region.draw([*self._end_text(), *self._dim(self._with_key(f"thought for {thought.measure}"))])

    def _end_text(self) -> list[str]:
        text, self._text, self._open = self._text, None, []
        return [] if text is None else text.end(_columns())

    def _settle(self) -> None:
        """Leave what was written as it is, and the cursor at the start of a line."""
        self._end_thought()
        self._wait = None
        self._region.draw(self._end_text())

    def _draw(self, *, at_once: bool = False) -> None:
        """Draw what came, and how long the wait is by now, unless the last frame is too recent."""
        now = monotonic()
        if now < self._next_frame and not at_once:
            return
        finished: list[str] = []
        if self._stale and self._text is not None:
            finished, self._open = self._text.rows(_columns(), get_terminal_size().lines)
        self._region.draw(finished, [*self._open, *self._dim(self._told(now))])
        self._stale = False
        self._next_frame = now + max(_FRAME, _SHARE * (monotonic() - now))

    def _told(self, now: float) -> str:
        """The line below what is written: that the model thinks, or what is waited for."""
        spinner = _SPINNER[int(now / _TICK) % len(_SPINNER)]
        thought = self._thought
        if thought is not None and thought.seconds is None and self._folded:
            return self._with_key(f"{spinner} thinking · {thought.measure}")
        if self._wait is not None and now >= self._wait.told_from:
            return f"{spinner} {self._wait.words} · {now - self._wait.since:.0f} s"
        return ""

    def _with_key(self, text: str) -> str:
        """The line about a thought with the key that unfolds it, as long as there is room for that."""
        if not self._folded:
            return text
        hints = (f"{text} · {hint}" for hint in ("Ctrl-T shows it", "Ctrl-T"))
        return next((hint for hint in hints if len(hint) <= _columns()), text)

    def _dim(self, text: str) -> list[str]:
        """Dimmed text as rows: one, or none for an empty text."""
        return [styled(text[: _columns()], "dim" if self._ink else None)] if text else []

    def _write(self, text: str) -> None:
        write_raw(sys.stdout, text)
        sys.stdout.flush()

    # -- where StreamView writes a line that the next event removes ---------------------------------------

    def _show_wait(self, text: str) -> None:
        self.waiting(text)

    def _show_progress(self, text: str) -> None:
        self.waiting(text, patience=0)

    def _erase_passing(self) -> None:
        """Nothing: what is waited for is told until something takes its place."""


def _columns() -> int:
    """The columns to use: in the last one terminals differ about where the cursor goes."""
    return max(get_terminal_size().columns - 1, 1)
