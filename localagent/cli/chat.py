"""`localagent chat`: a conversation in the terminal.

Ctrl-C stops the answer, and the part already written stays in the conversation; at the prompt it clears the
line. Ctrl-D and /exit leave. With a pipe instead of a terminal, each line is a turn. Every message is saved
to a session as it comes. The model may call its tools, some of them only after the user agrees.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Self

from localagent.agent import Agent, AgentEvent, Approvals, Approver, Compaction, RunDone, RunFailed
from localagent.cli.approving import TerminalApprover
from localagent.cli.conversation import Conversation
from localagent.cli.input import require_text, typed_file, typed_lines
from localagent.cli.loading import open_model
from localagent.cli.options import ModelOptions, ToolOptions
from localagent.cli.permissions import Permissions
from localagent.cli.show import open_view
from localagent.cli.show.status import show_status
from localagent.cli.show.view import print_stats
from localagent.cli.terminal import flat, on_terminal, require_stdout, say
from localagent.cli.tools import open_tools, rules
from localagent.cli.tools import permissions as permissions_of
from localagent.errors import ContextOverflow, LocalAgentError
from localagent.messages import AssistantMessage
from localagent.wording import one_line

_COMMAND = re.compile(r"/[a-z]*(\s|$)")  # a name only: a path such as /tmp/x is not a command

HELP = """\
/help             show this
/system TEXT      set the instructions and start a new conversation; without TEXT show them
/clear            start a new conversation with the same instructions
/history          show the conversation so far
/tools            show the tools, and which of them ask before they run
/compact          summarise the conversation to make room
/exit             leave (also Ctrl-D)
Ctrl-C            stop the answer; at the prompt, clear the line
Alt-Enter         start a new line within a message"""


class Chat:
    """One conversation with one model."""

    def __init__(
        self,
        make_agent: Callable[[Approver], Agent],
        conversation: Conversation,
        open_things: ExitStack,
        *,
        stats: bool,
        typed: Path | None = None,
        permissions: Permissions | None = None,
    ) -> None:
        """`make_agent` takes the approver that asks in this chat.

        `open_things`: the model and the MCP servers, closed when the user leaves.
        `typed`: the file for the input history; None saves none.
        `permissions`: where "always" can be kept.
        """
        self._conversation = conversation
        self._open_things = open_things
        self._stats = stats
        self._typed = typed
        self._interrupts = Interrupts()
        self._view = open_view()
        self._warned: set[str] = set()
        conversation.say = self._say
        self._agent = make_agent(TerminalApprover(self._say, lambda: self._interrupts.cancel, permissions))
        self._commands: dict[str, Callable[[str], bool]] = {
            "/help": self._help,
            "/system": self._set_system,
            "/clear": self._clear,
            "/history": self._history,
            "/tools": self._show_tools,
            "/compact": self._compact,
            "/exit": lambda _: False,
            "/quit": lambda _: False,
        }

    @classmethod
    def open(
        cls, options: ModelOptions, tools: ToolOptions, *, stats: bool, resume: str | None, save: bool
    ) -> Chat:
        """Find the session, then the tools, then load the model. Raises LocalAgentError, OutputLost."""
        require_stdout()
        require_text("--system", options.system)
        conversation = Conversation.open(say, system=options.system, resume=resume, save=save)
        with ExitStack() as stack:
            offered = open_tools(tools, stack, say)
            loaded = stack.enter_context(open_model(options, snapshots=save))

            def make_agent(approver: Approver) -> Agent:
                approvals = Approvals(rules(tools), approver)
                return Agent(
                    loaded, offered, approvals=approvals, middleware=[Compaction()], **options.of_turns()
                )

            opened = ExitStack()
            typed = typed_file() if save else None
            chat = cls(
                make_agent, conversation, opened, stats=stats, typed=typed, permissions=permissions_of(tools)
            )
            opened.enter_context(
                stack.pop_all()
            )  # only now: if making the agent fails, `stack` must still close them
            return chat

    def run(self) -> None:
        """Talk until the user leaves."""
        model = self._agent.model
        with self._open_things, self._interrupts:
            say(f"{flat(model.name)}, {model.host.context:,} tokens of context. /help tells more.")
            for line in typed_lines(self._typed, self._commands):
                if _COMMAND.match(line):
                    if not self._command(line):
                        return
                elif line.strip():
                    self._answer(line)

    # -- turns ----------------------------------------------------------------------------------------

    def _answer(self, text: str) -> None:
        """Answer one request. If it fails before the model writes, the conversation is as before."""
        self._follow(lambda cancel: self._agent.run(text, history=self._conversation, cancel=cancel))
        self._conversation.forget_unanswered()

    def _follow(self, start: Callable[[threading.Event], Iterable[AgentEvent]]) -> None:
        """Show the events of a run until it ends or Ctrl-C stops it."""
        self._view = view = open_view(warned=self._warned)
        self._interrupts.cancel = cancel = threading.Event()
        try:
            for event in start(cancel):
                match event:
                    case RunDone():
                        view.end()
                        self._remark(event)
                    case RunFailed(error=error):
                        view.end()
                        complain(error)
                    case _:
                        view.show(event)
        except LocalAgentError as error:
            view.end()
            complain(error)
        finally:
            self._interrupts.cancel = None

    def _say(self, text: str) -> None:
        """Print a line of its own, even if an answer is half written."""
        self._view.end()
        say(text)

    def _remark(self, done: RunDone) -> None:
        if done.stop_reason == "cancelled":
            say("(stopped)")
        elif done.stop_reason == "length":
            say("(cut off: the token limit or the end of the context window was reached)")
        if self._stats:
            print_stats(done)
        elif done.message is not None:
            show_status(done.message, self._agent.model.host.context)

    # -- commands -------------------------------------------------------------------------------------

    def _command(self, line: str) -> bool:
        """Run a command; False means leave."""
        name, _, argument = line.strip().partition(" ")
        command = self._commands.get(name)
        if command is None:
            say(f"no command {name}: /help lists the commands")
            return True
        try:
            return command(argument.strip())
        except LocalAgentError as error:  # an MCP server may have changed its tools
            complain(error)
            return True

    def _help(self, _: str) -> bool:
        say(HELP)
        return True

    def _set_system(self, text: str) -> bool:
        if not text:
            say(self._conversation.system or "(no instructions)")
            return True
        return self._restart(text)

    def _clear(self, _: str) -> bool:
        return self._restart(self._conversation.system)

    def _restart(self, system: str | None) -> bool:
        self._conversation.restart(system)
        say("(a new conversation)")
        return True

    def _history(self, _: str) -> bool:
        for message in self._conversation.messages():
            if message.role != "system":
                calls = message.tool_calls if isinstance(message, AssistantMessage) else ()
                told = (f"{call.name}({call.described_arguments})" for call in calls)
                say(f"{message.role}: {' '.join(filter(None, (message.text, *told)))}")
        return True

    def _show_tools(self, _: str) -> bool:
        tools = self._agent.toolset()
        for tool in tools:
            asks = " (asks)" if tool.side_effects else ""
            say(f"{tool.name}{asks}: {one_line(tool.description, 120)}")
        if not tools:
            say("(no tools: start with --tools or --mcp)")
        return True

    def _compact(self, _: str) -> bool:
        self._follow(lambda cancel: self._agent.compact(self._conversation, cancel=cancel))
        return True


def complain(error: LocalAgentError) -> None:
    """Say why a request failed."""
    hint = ", or start over with /clear" if isinstance(error, ContextOverflow) else ""
    say(f"localagent: {error}{hint}")


class Interrupts:
    """Ctrl-C while nobody is typing cancels the current answer and nothing else.

    With a pipe, Ctrl-C between answers ends the program as usual.
    """

    def __init__(self) -> None:
        self.cancel: threading.Event | None = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        if self.cancel is not None:
            self.cancel.set()
        elif not on_terminal():
            raise KeyboardInterrupt
