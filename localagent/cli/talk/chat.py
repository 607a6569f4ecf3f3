"""`localagent chat`: a conversation in the terminal.

Ctrl-C stops the answer, and the part already written stays in the conversation; at the prompt it clears the
line. Ctrl-D and /exit leave. With a pipe instead of a terminal, each line is a turn. Every message is saved
to a session as it comes. The model may call its tools, some of them only after the user agrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from localagent.cli.attaching import Attachment, read_files
from localagent.cli.input import require_text
from localagent.cli.options import ModelOptions, ToolOptions
from localagent.cli.talk.commands import Commands
from localagent.cli.talk.conversation import Conversation
from localagent.cli.talk.keyboard import Keyboard
from localagent.cli.talk.prompt import ChatInput, typed_file
from localagent.cli.talk.speaker import Speaker
from localagent.cli.talk.turns import Turns
from localagent.cli.terminal import require_stdout, say


class Chat:
    """One conversation, with whichever model answers."""

    def __init__(
        self,
        speaker: Speaker,
        conversation: Conversation,
        open_things: ExitStack,
        *,
        stats: bool,
        typed: Path | None = None,
        files: Sequence[Attachment] = (),
    ) -> None:
        """`open_things`: the model and the MCP servers, closed when the user leaves.

        `typed`: the file for the input history; None saves none. `files` go with the first message.
        """
        self._speaker = speaker
        self._open_things = open_things
        self._files = files
        self._keyboard = Keyboard()
        self._turns = Turns(
            speaker.agent, conversation, self._keyboard, stats=stats, permissions=speaker.permissions
        )
        self._prompt = ChatInput(typed, self._complete, self._keyboard.take_typed)
        self._commands = Commands(speaker, conversation, self._turns, self._keyboard, self._prompt.begin)
        conversation.settings = speaker.settings

    @classmethod
    def open(
        cls,
        options: ModelOptions,
        tools: ToolOptions,
        *,
        stats: bool,
        resume: str | None,
        save: bool,
        files: Sequence[Path] = (),
    ) -> Chat:
        """Find the session, then the tools, then load the model. Raises LocalAgentError, OutputLost."""
        require_stdout()
        require_text("--system", options.system)
        attached = read_files(files)
        conversation = Conversation.open(say, system=options.system, resume=resume, save=save)
        with ExitStack() as stack:
            speaker = Speaker.open(options, tools, conversation.settings, stack, say, save=save)
            opened = ExitStack()
            typed = typed_file() if save else None
            chat = cls(speaker, conversation, opened, stats=stats, typed=typed, files=attached)
            opened.enter_context(
                stack.pop_all()
            )  # only now: if making the agent fails, `stack` must still close them
            return chat

    def run(self) -> None:
        """Talk until the user leaves."""
        with self._open_things, self._turns.interrupts, self._keyboard.attached():
            say(f"{self._speaker.described}. /help tells more.")
            if self._files:
                say(f"(with your first message: {', '.join(file.name for file in self._files)})")
            for line in self._prompt.lines():
                editing, self._commands.editing = self._commands.editing, False
                if (stays := self._commands.run(line)) is False:
                    return
                if stays is None and line.strip():
                    self._send(line, editing=editing)

    def _send(self, text: str, *, editing: bool) -> None:
        if editing:
            if not self._turns.ask_instead(text):
                self._commands.edit(text)
        elif self._turns.ask(text, self._files):
            self._files = ()
        else:
            self._prompt.begin(text)

    def _complete(self, text: str) -> list[str]:
        return self._commands.completions(text)
