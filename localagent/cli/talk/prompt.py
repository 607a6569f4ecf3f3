"""What is typed in a chat: line editing with a history, completion and keys; in a pipe, a line is a turn."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localagent.cli.input import read_text, require_text
from localagent.cli.terminal import on_terminal, say, takes_escapes, typing_output
from localagent.errors import UsageError
from localagent.files.paths import user_path
from localagent.wording import printable

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer

Completions = Callable[[str], Iterable[str]]
"""What the first words of a line may become."""


def typed_file() -> Path:
    """`$LOCALAGENT_HOME/chat-history`, else in the user's state folder. Raises UsageError."""
    return user_path("state", "chat-history")


class ChatInput:
    """Asks for messages and commands."""

    def __init__(self, kept: Path | None, completions: Completions, typed: Callable[[], str] = str) -> None:
        """`kept`: the file for the history of a terminal's input; None saves none.

        `typed`: gives the text that was typed before there was a prompt.
        """
        self._kept = kept
        self._completions = completions
        self._typed = typed
        self._begun = ""

    def begin(self, text: str) -> None:
        """Let the next prompt begin with this text, to be changed and sent."""
        self._begun = text

    def lines(self) -> Iterator[str]:
        """What the user types, a message at a time, until Ctrl-D or the end of the input.

        A line that was given up with Ctrl-C is empty.
        """
        if not on_terminal():
            for data in sys.stdin.buffer:
                yield read_text(data).rstrip("\r\n")
            return
        session = _prompt_session(self._kept, self._completions)
        while True:
            begun, self._begun = "\n".join(filter(None, (self._begun, self._typed()))), ""
            try:
                with _above():
                    line = session.prompt("> ", default=begun, pre_run=lambda: _leave_with_terminal(session))
                require_text("what you typed", line)
            except KeyboardInterrupt:
                line = ""
            except (EOFError, OSError):  # the second: the terminal is gone
                return
            except UsageError as error:
                say(f"localagent: {error}")
                continue
            yield line


def _leave_with_terminal(session: PromptSession[str]) -> None:
    """End the prompt when its terminal is closed, where by default it would report that and fail again."""
    import asyncio

    application, loop = session.app, asyncio.get_running_loop()
    report = loop.get_exception_handler() or type(loop).default_exception_handler

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), OSError):
            report(loop, context)
        elif application.future is not None and not application.future.done():
            application.future.set_exception(EOFError)

    loop.set_exception_handler(handle)


def _above() -> Any:
    """Messages that arrive meanwhile, such as a server's failure, are put above the line being typed."""
    from contextlib import ExitStack

    from prompt_toolkit.patch_stdout import StdoutProxy

    class Above(StdoutProxy):
        def write(self, data: str) -> int:
            return super().write(printable(data))

    stack = ExitStack()
    if takes_escapes(sys.stdout):  # it moves the cursor
        above = stack.enter_context(Above())
        stack.enter_context(redirect_stdout(above))
        stack.enter_context(redirect_stderr(above))
    return stack


def _prompt_session(kept: Path | None, completions: Completions) -> PromptSession[str]:
    """Line editing with a history."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    class KeptHistory(FileHistory):
        def store_string(self, string: str) -> None:
            with suppress(OSError):  # the chat goes on without a history on a full disk
                super().store_string(string)

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-g")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()

    history: History = InMemoryHistory()
    if kept is not None:
        with suppress(OSError):  # and in a home folder that cannot be written
            kept.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(kept, os.O_RDWR | os.O_CREAT, 0o600))
            history = KeptHistory(str(kept))
    return PromptSession(
        history=history,
        auto_suggest=AutoSuggestFromHistory(),
        completer=_completer(completions),
        key_bindings=keys,
        complete_while_typing=False,
        tempfile_suffix=".md",
        output=typing_output(),
    )


def _completer(completions: Completions) -> Completer:
    """Completes commands with their arguments, and the files that `@` names."""
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    paths = PathCompleter(expanduser=True)

    class Words(Completer):
        def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
            text = document.text_before_cursor
            word = text[max(text.rfind(space) for space in " \n\t") + 1 :]
            if word.startswith("@"):
                yield from paths.get_completions(Document(word[1:], len(word) - 1), event)
            elif text.startswith("/"):
                for whole in completions(text):
                    yield Completion(whole, start_position=-len(text))

    return Words()
