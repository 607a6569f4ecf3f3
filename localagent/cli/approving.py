"""Asking a person on the terminal whether calls may run.

Nothing runs without a yes. The end of the input and Ctrl-C deny all remaining calls, and Ctrl-C stops the
answer as well. Keys pressed before the question appeared do not count. A call is shown in full, and
characters that a terminal would hide are escaped.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from localagent.agent import Allow, ApprovalRequest, Decision, Deny, Edit
from localagent.cli.terminal import on_terminal, printable
from localagent.errors import InvalidArguments
from localagent.messages import parse_object

CHOICES = "{}: yes, no, always, never, edit or stop? "
"""The question repeats the tool's name, since long arguments may push the call itself off the screen."""
STOPPED = Deny("the user stopped")
NOBODY = "nobody is here to approve it: --allow {} lets it run"


class TerminalApprover:
    """Asks about each call in turn. In a pipe, where nobody can answer, it denies them all."""

    def __init__(self, say: Callable[[str], None], stop: Callable[[], threading.Event | None]) -> None:
        """`stop` returns the event that cancels the current run."""
        self._say = say
        self._stop = stop

    def __call__(self, requests: Sequence[ApprovalRequest]) -> list[Decision]:
        """A decision for each call of the turn."""
        if not on_terminal():
            return [Deny(NOBODY.format(request.tool.name)) for request in requests]
        _forget_typed()
        decisions: list[Decision] = []
        for number, request in enumerate(requests, 1):
            try:
                decisions.append(self._ask(request, number, len(requests)))
            except (KeyboardInterrupt, EOFError):
                return self._stopped(decisions, len(requests))
            if decisions[-1] is STOPPED:
                return self._stopped(decisions, len(requests))
        return decisions

    def _stopped(self, decisions: list[Decision], count: int) -> list[Decision]:
        if (stop := self._stop()) is not None:
            stop.set()
        return [*decisions, *[STOPPED] * (count - len(decisions))]

    def _ask(self, request: ApprovalRequest, number: int, count: int) -> Decision:
        place = f" ({number} of {count})" if count > 1 else ""
        name = request.tool.name
        if request.changed:
            self._say(f"{name} has changed since you answered 'always'")
        self._say(f"may it run{place}? {name}({request.call.described_arguments})")
        while True:
            match _typed(CHOICES.format(name)).strip().lower():
                case "y" | "yes":
                    return Allow()
                case "n" | "no":
                    return Deny()
                case "a" | "always":
                    return Allow(always=True)
                case "never" | "v":
                    return Deny(always=True)
                case "s" | "stop":
                    return STOPPED
                case "e" | "edit":
                    if (arguments := self._edited(request)) is not None:
                        return Edit(arguments)
                case _:
                    self._say("y runs it, n does not, a and never decide for the tool, e edits the arguments")

    def _edited(self, request: ApprovalRequest) -> dict[str, Any] | None:
        """The arguments as the user edited them; None if they were left unchanged."""
        text = _visible(json.dumps(request.call.arguments, ensure_ascii=False))
        while True:
            text = _typed("arguments: ", text)
            if not text.strip():
                return None
            try:
                arguments = parse_object(text)
                request.tool.bind(arguments)
            except (ValueError, InvalidArguments) as error:
                self._say(
                    f"these do not fit: {' '.join(str(error).split())}; leave the line empty to go back"
                )
            else:
                return arguments


def _visible(text: str) -> str:
    """JSON with invisible characters as escapes, which mean the same."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _forget_typed() -> None:
    """Drop keys pressed before the question appeared: they were meant for something else."""
    from prompt_toolkit.application import get_app_session
    from prompt_toolkit.input.typeahead import clear_typeahead

    clear_typeahead(get_app_session().input)
    with suppress(ImportError, OSError):  # there is no termios on Windows
        import termios

        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _typed(question: str, default: str = "") -> str:
    from prompt_toolkit import prompt

    return prompt(printable(question), default=default)
