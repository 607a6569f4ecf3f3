"""Asking a person on the terminal whether calls may run.

Nothing runs without a yes. The end of the input and Ctrl-C deny all remaining calls, and Ctrl-C stops the
answer as well. Keys pressed before the question appeared do not count. A call is shown in full: a change to a
file as a diff, long texts as text, and characters that a terminal would hide as escapes.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from localagent.agent import Allow, ApprovalRequest, Decision, Deny, Edit
from localagent.cli.permissions import Permissions
from localagent.cli.show.diff import show_diff
from localagent.cli.terminal import on_terminal, typing_output
from localagent.errors import InvalidArguments, SaveFailed
from localagent.messages import describe_arguments, parse_object
from localagent.wording import printable

if TYPE_CHECKING:
    from localagent.tools import FileChange

CHOICES = "{}: [y]es [n]o [a]lways ne[v]er [e]dit [s]top "
"""The question repeats the tool's name, since long arguments may push the call itself off the screen."""
MEANING = "y runs it, n does not, a and v decide for all calls of the tool, e edits the arguments, s stops"
KEEP = "in later chats in {} too? [y]es [n]o "
WORDS = {"y": "yes", "n": "no", "a": "always", "v": "never", "e": "edit", "s": "stop"}
STOPPED = Deny("the user stopped")
NOBODY = "nobody is here to approve it: --allow {} lets it run"
_LONG = 80
"""Characters from which on a text is shown below the call."""


class TerminalApprover:
    """Asks about each call in turn. In a pipe, where nobody can answer, it denies them all."""

    def __init__(
        self,
        say: Callable[[str], None],
        stop: Callable[[], threading.Event | None],
        permissions: Permissions | None = None,
    ) -> None:
        """`stop` returns the event that cancels the current run.

        `permissions`: where "always" can be kept for later; None asks anew each time the program is started.
        """
        self._say = say
        self._stop = stop
        self._permissions = permissions

    def __call__(self, requests: Sequence[ApprovalRequest]) -> list[Decision]:
        """A decision for each call of the turn."""
        if not on_terminal():
            return [Deny(NOBODY.format(request.tool.name)) for request in requests]
        decisions: list[Decision] = []
        for number, request in enumerate(requests, 1):
            try:
                decisions.append(self._decide(request, number, len(requests)))
            except (KeyboardInterrupt, EOFError):
                return self._stopped(decisions, len(requests))
            if decisions[-1] is STOPPED:
                return self._stopped(decisions, len(requests))
        return decisions

    def _stopped(self, decisions: list[Decision], count: int) -> list[Decision]:
        if (stop := self._stop()) is not None:
            stop.set()
        return [*decisions, *[STOPPED] * (count - len(decisions))]

    def _decide(self, request: ApprovalRequest, number: int, count: int) -> Decision:
        permissions, tool = self._permissions, request.tool
        if permissions is not None and permissions.allows(tool):
            self._say(f"({tool.name} is allowed in {permissions.folder}: see {permissions.file})")
            return Allow(always=True)
        if request.changed or (permissions is not None and permissions.has_changed(tool)):
            self._say(f"{tool.name} has changed since you answered 'always'")
        self._show(request, f" ({number} of {count})" if count > 1 else "")
        while True:
            match _pressed(CHOICES.format(tool.name), WORDS):
                case "y":
                    return Allow()
                case "n":
                    return Deny()
                case "a":
                    self._keep(request)
                    return Allow(always=True)
                case "v":
                    return Deny(always=True)
                case "s":
                    return STOPPED
                case "e":
                    if (arguments := self._edited(request)) is not None:
                        return Edit(arguments)
                case _:
                    self._say(MEANING)

    def _show(self, request: ApprovalRequest, place: str) -> None:
        """The call, with long arguments below it; what it would do to a file stands for its text."""
        arguments = request.call.arguments
        change = self._change(request)
        long = {
            name: text
            for name, text in arguments.items()
            if isinstance(text, str) and (len(text) > _LONG or "\n" in text)
        }
        short = {name: value for name, value in arguments.items() if name not in long}
        described = describe_arguments(short) if long else request.call.described_arguments
        below = ", ".join(
            f"{name}: {len(text.removesuffix(chr(10)).split(chr(10))):,} lines" for name, text in long.items()
        )
        self._say(f"may it run{place}? {request.tool.name}({', '.join(filter(None, (described, below)))})")
        if change is not None:
            show_diff(_visible(change.path), *(_visible_text(text) for text in (change.before, change.after)))
        for name, text in long.items():
            if change is None or text != change.after:
                self._say("\n".join([f"{_visible(name)}:", *_lines(text)]))

    @staticmethod
    def _change(request: ApprovalRequest) -> FileChange | None:
        """What the call would do to a file, if the tool can tell, and if it is a change."""
        if request.tool.change is None:
            return None
        try:
            change = request.tool.change(request.tool.normal(request.call.arguments))
        except InvalidArguments:  # then it does not run either
            return None
        return change if change is not None and change.before != change.after else None

    def _keep(self, request: ApprovalRequest) -> None:
        """Keep "always" for later, if the person wants that."""
        if self._permissions is None or _pressed(KEEP.format(self._permissions.folder), "yn") != "y":
            return
        try:
            self._permissions.allow(request.tool)
        except SaveFailed as error:
            self._say(f"localagent: {error}; it is allowed until you leave")

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


def _lines(text: str) -> Iterator[str]:
    """The lines of a text, marked so that none can pass for something that this program says."""
    for line in text.split("\n"):
        yield f"│ {_visible(line)}"


def _visible(text: str) -> str:
    """The text with invisible characters as JSON's escapes, which in JSON mean the same."""
    return (
        text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    )


def _visible_text(text: str | None) -> str | None:
    """The same, but lines stay lines and tabs stay tabs."""
    if text is None or text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else json.dumps(c)[1:-1] for c in text)


def _forget_typed() -> None:
    """Drop keys pressed before the question appeared: they were meant for something else."""
    from prompt_toolkit.application import get_app_session
    from prompt_toolkit.input.typeahead import clear_typeahead

    clear_typeahead(get_app_session().input)
    with suppress(ImportError, OSError):  # there is no termios on Windows
        import termios

        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _typed(question: str, default: str = "") -> str:
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession(output=typing_output())
    # Ctrl-X Ctrl-E edits in $EDITOR.
    return session.prompt(printable(question), default=default, enable_open_in_editor=True)


def _pressed(question: str, keys: Iterable[str]) -> str:
    """The first of these keys that is pressed, in either case; "?" for Enter or a question mark."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.keys import Keys

    bindings = KeyBindings()

    def answer(key: str, word: str) -> Callable[[KeyPressEvent], None]:
        def pressed(event: KeyPressEvent) -> None:
            event.current_buffer.text = word  # so that the answer can be read later
            event.app.exit(result=key)

        return pressed

    for key in keys:
        for written in (key, key.upper()):
            bindings.add(written)(answer(key, WORDS[key]))
    for written in ("?", "enter"):
        bindings.add(written)(answer("?", ""))

    @bindings.add(Keys.Any)
    @bindings.add(Keys.BracketedPaste)
    def _(_: KeyPressEvent) -> None:
        """Anything else is no answer, and a text that is pasted is none either."""

    session: PromptSession[str] = PromptSession(output=typing_output(), key_bindings=bindings)
    _forget_typed()  # before every question: a key that is held would answer the next one unseen
    return session.prompt(printable(question))
