"""Asking a person on the terminal whether calls may run.

Nothing runs without a yes: the end of the input and Ctrl-C deny everything that is left, and Ctrl-C stops the
answer as well. What was typed before the question appeared is not an answer. A call is shown in full, and
what a terminal would hide is escaped.
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
"""The question repeats the name: long arguments push the call itself off the screen."""
STOPPED = Deny("the user stopped")
NOBODY = "nobody is there to be asked: --allow {} lets it run"


class TerminalApprover:
    """Asks about one call after the other. In a pipe, where nobody can answer, it denies."""

    def __init__(self, say: Callable[[str], None], stop: Callable[[], threading.Event | None]) -> None:
        """`stop` gives the event that ends the present run."""
        self._say = say
        self._stop = stop

    def __call__(self, requests: Sequence[ApprovalRequest]) -> list[Decision]:
        """A decision for each of the calls of a turn."""
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
            self._say(f"{name} has changed since you always allowed it")
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
                    self._say(
                        "y runs it, n does not, a and never decide for the tool, e changes the arguments"
                    )

    def _edited(self, request: ApprovalRequest) -> dict[str, Any] | None:
        """The arguments as the user changes them; None when they were left alone."""
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
    """JSON with the characters that nobody could see as escapes, which mean the same."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _forget_typed() -> None:
    """Drop the keys that were pressed before the question appeared."""
    from prompt_toolkit.application import get_app_session
    from prompt_toolkit.input.typeahead import clear_typeahead

    clear_typeahead(get_app_session().input)
    with suppress(ImportError, OSError):  # there is no termios on Windows
        import termios

        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _typed(question: str, default: str = "") -> str:
    from prompt_toolkit import prompt

    return prompt(printable(question), default=default)
