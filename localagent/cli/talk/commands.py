"""The commands of a chat, each with its help; and what a line may be short for.

A command may be given by any beginning that only it has, in capitals too. What is no command is never sent to
the model: it was meant for this program.
"""

from __future__ import annotations

import difflib
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localagent.agent import Allow, Deny
from localagent.chat_model import UNKNOWN_CONTEXT
from localagent.cli.attaching import files_of, typed_of
from localagent.cli.show.view import print_stats
from localagent.cli.talk.conversation import Conversation
from localagent.cli.talk.keyboard import Keyboard
from localagent.cli.talk.settings import SETTABLE, read_setting, read_thinking, shown
from localagent.cli.talk.speaker import Speaker
from localagent.cli.talk.turns import Turns, complain
from localagent.cli.terminal import on_terminal, say
from localagent.cli.transcript import as_markdown, tell
from localagent.errors import LocalAgentError, UsageError
from localagent.messages import AssistantMessage, CustomMessage, ToolCallPart, UserMessage
from localagent.wording import one_line, size_text

_SHAPE = re.compile(r"/[a-zA-Z?]*(\s|$)")  # a name only: a path such as /tmp/x is not a command
_LEAVING = frozenset({"exit", "quit", "bye"})
"""Words that leave without a slash too: nobody says only that to a model."""
_INDENT = 20

KEYS = (
    ("@path", 'put a file into your message; @"a path" with spaces'),
    ("Ctrl-C", "stop the answer; at the prompt, clear the line"),
    ("Esc", "end the thinking and go on to the answer"),
    ("Ctrl-T", "show the reasoning"),
    ("Alt-Enter", "start a new line within a message"),
    ("Ctrl-G", "write the message in $EDITOR"),
)


@dataclass(frozen=True, slots=True)
class Command:
    """A command. `do` gets its argument, and returns False to leave the chat."""

    name: str
    argument: str
    help: str
    do: Callable[[str], bool | None]
    also: tuple[str, ...] = ()
    words: Callable[[], Iterable[str]] = tuple
    """What its argument may be, for completion."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return (self.name, *self.also)


class Commands:
    """Finds and runs them."""

    def __init__(
        self,
        speaker: Speaker,
        conversation: Conversation,
        turns: Turns,
        keyboard: Keyboard,
        begin: Callable[[str], None],
    ) -> None:
        """`begin`: lets the next prompt begin with a text."""
        self.editing = False
        """The next message takes the place of the last one."""
        self._speaker = speaker
        self._conversation = conversation
        self._turns = turns
        self._keyboard = keyboard
        self._begin = begin
        hows = ("on", "off", "low", "medium", "high", "default")
        thinks = f"whether the model thinks: {', '.join(hows)}"
        self._table = (
            Command("/help", "", "show this", self._help, also=("/?",)),
            Command("/retry", "", "answer the last message again", self._retry, also=("/regenerate",)),
            Command("/edit", "[TEXT]", "change the last message and ask again", self._edit),
            Command("/undo", "", "take back the last message and its answer", self._undo),
            Command("/branches", "[NUMBER]", "show the ways taken so far, or go to one", self._branches),
            Command("/system", "[TEXT]", "show the instructions, or start anew with others", self._system),
            Command("/clear", "", "start anew with the same instructions", self._clear, also=("/new",)),
            Command("/history", "", "show the conversation so far", self._history),
            Command("/model", "[NAME]", "show the model, or go on with another", self._model, words=_models),
            Command("/set", "[NAME VALUE]", "show the settings, or change one", self._set, words=_settings),
            Command("/think", "[HOW]", thinks, self._think, words=lambda: hows),
            Command("/tools", "", "show the tools, and which of them ask before they run", self._tools),
            Command("/compact", "", "summarise the conversation to make room", self._compact),
            Command("/stats", "", "show the tokens and the speed of the last answer", self._stats),
            Command("/copy", "", "copy the last answer", self._copy),
            Command("/save", "[FILE]", "save the conversation, or write it to FILE as Markdown", self._save),
            Command("/exit", "", "leave (also Ctrl-D)", lambda _: False, also=("/quit", "/bye")),
        )  # fmt: skip

    def run(self, line: str) -> bool | None:
        """Run the command on this line; None if it is no command, False to leave."""
        if line.strip().lower() in _LEAVING:
            return False
        if not _SHAPE.match(line):
            return None
        name, argument = [*line.split(maxsplit=1), ""][:2]
        try:
            return self._find(name.lower()).do(argument.strip()) is not False
        except LocalAgentError as error:
            complain(error)
            return True

    def edit(self, text: str) -> None:
        """Let the user change this text, which is sent in place of the last message."""
        self._begin(text)
        self.editing = True

    def completions(self, text: str) -> list[str]:
        """What a line that begins like this may become."""
        name, space, begun = text.partition(" ")
        if not space:
            return [each for command in self._table for each in command.names if each.startswith(name)]
        try:
            words = self._find(name).words()
        except UsageError:
            return []
        return [f"{name} {word}" for word in words if word.startswith(begun)]

    def _find(self, name: str) -> Command:
        """The command that a name is short for. Raises UsageError."""
        known = {each: command for command in self._table for each in command.names}
        if name in known:
            return known[name]
        if name == "/":
            return known["/help"]
        fitting = list(dict.fromkeys(known[each].name for each in known if each.startswith(name)))
        if len(fitting) == 1:
            return known[fitting[0]]
        if fitting:
            raise UsageError(f"several commands begin with {name}: {', '.join(fitting)}")
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"no command {name}: {hint}/help lists the commands")

    # -- the conversation -----------------------------------------------------------------------------

    def _help(self, _: str) -> None:
        width = max(_INDENT + 20, min(shutil.get_terminal_size().columns - 1, 110))
        rows = [(f"{each.name} {each.argument}", each.help) for each in self._table]
        for head, told in (*rows, *KEYS):
            say(
                textwrap.fill(
                    told, width, initial_indent=f"{head:<{_INDENT}}", subsequent_indent=" " * _INDENT
                )
            )

    def _retry(self, _: str) -> None:
        self._turns.ask_again()

    def _edit(self, text: str) -> None:
        asked = self._conversation.last_asked()
        if asked is None:
            say("(nothing was asked yet)")
        elif text:
            if not self._turns.ask_instead(text) and on_terminal():
                self.edit(text)
        elif on_terminal():
            self.edit(typed_of(asked))
        else:
            raise UsageError("give the new text, as in /edit Name four colours.")

    def _undo(self, _: str) -> None:
        taken = self._conversation.rewind()
        if taken is None:
            say("(nothing was asked yet)")
            return
        self._conversation.mark()
        say(f"(taken back: {one_line(typed_of(taken), 60)})")

    def _branches(self, number: str) -> None:
        branches = self._conversation.branches()
        if number:
            if not number.isdecimal() or not 0 < int(number) <= len(branches):
                raise UsageError(f"no branch {one_line(number, 20)}: there are {len(branches):,}")
            self._conversation.switch(branches[int(number) - 1].end)
            branches = self._conversation.branches()
        for at, each in enumerate(branches, 1):
            mark = "*" if each.here else " "
            say(f"{mark} {at} ({each.turns:,}) {each.asked} -> {each.answered or '(no answer)'}")
        if not branches:
            say("(nothing was asked yet)")
        elif len(branches) > 1 and not number:
            say("(/branches NUMBER goes on from there)")

    def _system(self, text: str) -> None:
        if text:
            self._restart(text)
        else:
            say(self._conversation.system or "(no instructions)")

    def _clear(self, _: str) -> None:
        self._restart(self._conversation.system)

    def _restart(self, system: str | None) -> None:
        self._conversation.restart(system)
        say("(a new conversation)")

    def _history(self, _: str) -> None:
        for message in self._conversation.messages():
            if message.role == "system" or isinstance(message, CustomMessage):
                continue
            text, told = message.text, []
            if isinstance(message, AssistantMessage):
                told = [f"{call.name}({call.described_arguments})" for call in message.tool_calls]
            elif isinstance(message, UserMessage) and (files := files_of(message)):
                text, told = typed_of(message), [f"[{file.name}]" for file in files]
            say(f"{message.role}: {' '.join(filter(None, (text, *told)))}")

    def _compact(self, _: str) -> None:
        self._turns.compact()

    def _stats(self, _: str) -> None:
        last = self._turns.last
        if last is None:
            say("(nothing was answered yet)")
            return
        print_stats(last)
        host = self._speaker.model.host
        if last.message is not None:
            usage, context = last.message.usage, host.context
            most = f" of {context:,}" if context < UNKNOWN_CONTEXT else ""
            say(f"context: {usage.input + usage.output:,}{most} tokens")
        if host.threads is not None:
            say(f"threads: {host.threads}")

    def _copy(self, _: str) -> None:
        from localagent.cli.talk.clipboard import copy

        answer = self._conversation.last_answer()
        if answer is None or not answer.text:
            say("(there is no answer yet)")
        else:
            how = copy(answer.text)
            say(f"({len(answer.text):,} characters copied, with {how})")

    def _save(self, name: str) -> None:
        told = [each for each in self._conversation.messages() if not isinstance(each, CustomMessage)]
        if all(each.role == "system" for each in told):
            say("(nothing was said yet)")
        elif name:
            path = Path(name).expanduser()
            text = as_markdown(map(tell, told)).encode(errors="backslashreplace")
            try:
                with path.open("xb") as file:
                    file.write(text)
            except FileExistsError:
                raise UsageError(f"{path} exists already: choose another name") from None
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"cannot write {path}: {getattr(error, 'strerror', None) or error}"
                ) from error
            say(f"(written to {path}: {size_text(len(text))})")
        elif (where := self._conversation.where) is not None:
            say(f"(saved in {where})")
        else:
            self._conversation.save()

    # -- the model ------------------------------------------------------------------------------------

    def _model(self, name: str) -> None:
        if name:
            try:  # weights may have to be fetched
                with self._turns.interrupts.raising(), self._keyboard.paused():
                    self._speaker.use(name)
            except KeyboardInterrupt:
                say("(stopped)")
            finally:
                self._changed()
        say(self._speaker.described)

    def _set(self, words: str) -> None:
        if not words:
            own = self._speaker.model.sampling if self._speaker.options.server is None else None
            lines = shown(self._speaker.turn, own)
            for line in lines or ["(the model's own settings)"]:
                say(line)
            return
        name, value = read_setting(words)
        self._speaker.set(name, value)
        self._changed()
        say(f"({name}: {'as the model has it' if value is None else value})")

    def _think(self, word: str) -> None:
        names = {True: "on", False: "off", None: "as its template has it"}
        if word:
            value = read_thinking(word)
            if value is False:
                self._speaker.set("thinking_budget", None)  # it would contradict
            self._speaker.set("thinking", value)
            self._changed()
        now: Any = self._speaker.turn.get("thinking")
        say(f"(thinking: {names.get(now, now)})")

    def _changed(self) -> None:
        self._turns.renew()
        self._conversation.settings = self._speaker.settings

    def _tools(self, _: str) -> None:
        agent = self._turns.agent
        tools, permissions = agent.toolset(), self._speaker.permissions
        for tool in tools:
            match agent.approvals.decide(tool, ToolCallPart(id="none", name=tool.name)):
                case Deny():
                    how = " (never runs)"
                case Allow():
                    how = " (runs without asking)" if tool.side_effects else ""
                case _ if permissions is not None and permissions.allows(tool):
                    how = " (runs without asking in this folder)"
                case _:
                    how = " (asks)"
            say(f"{tool.name}{how}: {one_line(tool.description, 120)}")
        if not tools:
            say("(no tools: start with --tools or --mcp)")


def _settings() -> Iterable[str]:
    return SETTABLE


def _models() -> Iterable[str]:
    from localagent.cli.naming import names

    return names()
