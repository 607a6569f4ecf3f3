"""The events of a turn or a run as plain text: the answer on stdout as it comes, all else on stderr."""

from __future__ import annotations

import shutil
import sys
from time import monotonic
from types import TracebackType
from typing import Self

from localagent.agent import (
    AgentEvent,
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
from localagent.cli.terminal import (
    Style,
    exactly,
    styled,
    takes_colour,
    takes_escapes,
    write_raw,
)
from localagent.hosts.protocol import Prefilled, Queued
from localagent.messages import AssistantMessage, ToolCallPart, ToolResultPart, describe_arguments
from localagent.parsers import CallEnd, Malformed, Reasoning, Text
from localagent.prompt.request import RequestWarning
from localagent.wording import one_line, printable

_ERASE = "\r\x1b[K"
PATIENCE = 0.5
"""Seconds without an event after which a person is told what is waited for."""
_SLOW = 1.0  # seconds; a tool that took longer is shown with its time
_RESULT = 160
"""Characters of a tool's result to show."""
_ARGUMENTS = 60
"""Characters of the arguments to show where they tell two calls of one tool apart."""
_RETRIES = {
    "malformed": "its call could not be read",
    "empty": "its answer was empty",
    "same_calls": "it made the same calls as before",
    "repeated": "for a final answer, since it repeats itself",
    "turn_limit": "for a final answer, since the limit of turns is reached",
    "rescues": "for a final answer, since its calls cannot be read",
}


class StreamView:
    """Shows events one by one: the answer on stdout, so that it can be piped, all else on stderr."""

    def __init__(self, *, answers: bool = True, warned: set[str] | None = None) -> None:
        """`answers`: also show the model's text and reasoning, not only its calls. `warned`: the warnings
        that have been shown, each turn may bring them again.
        """
        self._answers = answers
        self._warned = set() if warned is None else warned
        self._colour = takes_colour(sys.stderr)
        self._erases = takes_escapes(sys.stderr)
        self._line_open = False  # the last line of stdout or stderr is unfinished
        self._thinking = False
        self._passing = False  # the terminal's last line shows progress, to be erased
        self._started = monotonic()  # when this turn began
        self._calls: list[str] = []  # names of the tools called in this turn

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def show(self, event: AgentEvent) -> None:
        """Show the next event."""
        if not isinstance(event, Queued | Prefilled):
            self._erase_passing()
        match event:
            case Text() | Reasoning() if not self._answers:
                pass
            case Queued(place=place):
                self._show_wait(f"waiting: number {place:,} in the queue")
            case Prefilled(done=done, total=total):
                self._show_wait(f"reading {done:,} of {total:,} tokens")
            case Text(text=text):
                self._end_thinking()
                exactly(text)  # in a pipe, byte for byte what the model wrote
                self._line_open = not text.endswith("\n")
            case Reasoning(text=text):
                self._thinking = True
                write_raw(sys.stderr, self._styled(text, "dim"))
                sys.stderr.flush()
                self._line_open = not text.endswith("\n")
            case CallEnd(name=name, arguments=arguments):
                self._note(f"call {name}({describe_arguments(arguments)})", "cyan")
            case Malformed(reason=reason, raw=raw):
                self._note(f"malformed call ({reason}): {raw}", "red")
            case RequestWarning(text=text):
                if text not in self._warned:
                    self._warned.add(text)
                    self._note(f"warning: {text}", "red")
            case _:
                self._show_step(event)

    def _show_step(self, event: AgentEvent) -> None:
        """Show what the agent loop does between the model's turns."""
        match event:
            case TurnStarted():
                self._started = monotonic()
            case TurnEnded(message=message):
                self._calls = [call.name for call in message.tool_calls]
            case ToolProgress(call=call, text=text, share=share):
                far = "" if share is None else f" {share:.0%}"
                self._show_progress(f"{self._named(call)}{far}: {one_line(text, _RESULT)}")
            case ToolEnded(call=call, result=result, seconds=seconds):
                took = f" ({seconds:.1f} s)" if seconds >= _SLOW else ""
                mark = "failed: " if result.is_error else ""
                colour: Style = "red" if result.is_error else "dim"
                self._note(f"{self._named(call)}{took}: {mark}{_told(result)}", colour)
            case Retried(why=why):
                self._note(f"(asking the model again: {_RETRIES[why]})", "dim")
            case CompactionStarted(tokens=tokens, context=context):
                self._note(f"({tokens:,} of {context:,} tokens: summarising the conversation)", "dim")
            case CompactionEnded(summary=None, problem=problem):
                self._note(f"(not summarised: {problem})", "red")
            case CompactionEnded(problem=problem, tokens_before=before, tokens_after=after):
                came = "summarised" if problem is None else f"not summarised: {problem}"
                self._note(
                    f"({came}: {before:,} tokens are now {after:,})", "dim" if problem is None else "red"
                )
            case HandedOver(target=target):
                self._note(f"({target} takes over)", "dim")
            case _:
                pass

    def waiting(self, words: str) -> None:
        """Say what is waited for, until the next event."""
        self._show_wait(words)

    def toggle_reasoning(self) -> None:
        """Fold or unfold the reasoning. Here it is always shown."""

    def end(self) -> None:
        """Leave the cursor at the start of a line. More events may follow."""
        self._settle()

    def _settle(self) -> None:
        self._erase_passing()
        self._end_thinking()
        if self._line_open:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._line_open = False

    def _note(self, text: str, colour: Style) -> None:
        self._settle()
        write_raw(sys.stderr, self._styled(text, colour) + "\n")
        sys.stderr.flush()

    def _styled(self, text: str, style: Style) -> str:
        return styled(text, style if self._colour else None)

    def _named(self, call: ToolCallPart) -> str:
        """The call's tool, with its arguments if the turn calls that tool more than once."""
        if self._calls.count(call.name) < 2:
            return call.name
        return f"{call.name}({one_line(call.described_arguments, _ARGUMENTS)})"

    def _show_wait(self, text: str) -> None:
        """Show why there is no answer yet, but only on a terminal and after a while."""
        if self._erases and monotonic() - self._started > PATIENCE:
            self._pass(text)

    def _show_progress(self, text: str) -> None:
        """Show a tool's progress: on a terminal in one line that is replaced, elsewhere a line per report."""
        if self._erases:
            self._settle()
            self._pass(text)
        else:
            self._note(text, "dim")

    def _pass(self, text: str) -> None:
        """Show a line that the next event removes."""
        self._passing = True
        fits = printable(text)[: shutil.get_terminal_size().columns - 1]
        write_raw(sys.stderr, _ERASE + self._styled(fits, "dim"))
        sys.stderr.flush()

    def _erase_passing(self) -> None:
        if self._passing:
            self._passing = False
            write_raw(sys.stderr, _ERASE)
            sys.stderr.flush()

    def _end_thinking(self) -> None:
        if self._thinking:
            self._thinking = False
            sys.stderr.write("\n" if self._line_open else "")
            sys.stderr.flush()
            self._line_open = False


def _told(result: ToolResultPart) -> str:
    """The beginning of a result's text, and the kinds of its other parts."""
    others = (f"[{part.kind}]" for part in result.parts if part.kind != "text")
    return " ".join(filter(None, (one_line(result.text, _RESULT), *others))) or "(nothing)"


def print_stats(done: RunDone) -> None:
    """Tokens and speed of all turns of a run, on stderr."""
    usage = done.usage
    timings = [message.timings for message in done.messages if isinstance(message, AssistantMessage)]
    prefill, decode = sum(each.prefill for each in timings), sum(each.decode for each in timings)

    def speed(tokens: int, seconds: float) -> str:
        return f"{tokens} in {seconds:.2f} s, {tokens / seconds:.1f}/s" if seconds > 0 else f"{tokens}"

    stop = done.message.stop_reason if done.message is not None else done.stop_reason
    turns = f"turns: {done.turns}; " if done.turns > 1 else ""
    sys.stderr.write(
        f"{turns}prompt tokens: {speed(usage.prefilled, prefill)}; cached: {usage.cache_read}; "
        f"generated: {speed(usage.output, decode)}; stop: {stop}\n"
    )
