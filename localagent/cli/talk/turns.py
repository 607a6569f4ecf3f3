"""The turns of a chat: asked, shown as they are answered, and stopped or hurried by keys."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from localagent.agent import Agent, AgentEvent, ApprovalRequest, Approver, Decision, RunDone, RunFailed
from localagent.cli.approving import TerminalApprover
from localagent.cli.attaching import (
    Attachment,
    files_of,
    mentioned,
    read_files,
    tell,
    typed_of,
    with_files,
)
from localagent.cli.permissions import Permissions
from localagent.cli.show import open_view
from localagent.cli.show.status import show_status
from localagent.cli.show.view import print_stats
from localagent.cli.talk.conversation import Conversation
from localagent.cli.talk.keyboard import Keyboard
from localagent.cli.terminal import on_terminal, say
from localagent.errors import ContextOverflow, LocalAgentError
from localagent.messages import UserMessage


class Turns:
    """Asks the agent, and shows what comes of it. The user's messages are kept only with an answer."""

    def __init__(
        self,
        make_agent: Callable[[Approver], Agent],
        conversation: Conversation,
        keyboard: Keyboard,
        *,
        stats: bool,
        permissions: Permissions | None = None,
    ) -> None:
        """`make_agent` takes the approver that asks in this chat. `stats`: print figures after each turn.

        `permissions`: where "always" can be kept.
        """
        self.interrupts = Interrupts()
        self.last: RunDone | None = None
        """How the last run ended, for its figures."""
        self._conversation = conversation
        self._keyboard = keyboard
        self._stats = stats
        self._view = open_view()
        self._warned: set[str] = set()
        self._make_agent = make_agent
        self._approver = TerminalApprover(self.say, lambda: self.interrupts.cancel, permissions)
        conversation.say = self.say
        self.agent = make_agent(self._approve)

    def renew(self) -> None:
        """Answer with what was changed. Raises UsageError."""
        self.agent = self._make_agent(self._approve)

    def ask(self, text: str, files: Sequence[Attachment] = ()) -> bool:
        """Ask for an answer to a message and the files it names. Returns whether it was sent.

        If it fails before the model writes, the conversation is as before.
        """
        try:
            with self.interrupts.raising():  # a server that counts the tokens may not answer
                message = self._message(text, files)
        except KeyboardInterrupt:
            say("(stopped: nothing was sent)")
            return False
        except LocalAgentError as error:
            complain(error)
            return False
        self._run(message)
        self._conversation.forget_unanswered()
        return True

    def ask_again(self) -> None:
        """Ask for another answer to the user's last message; the earlier one stays as a branch."""
        place, before = self._conversation.place, self._conversation.last_answer()
        if not self._conversation.reopen():
            say("(nothing was asked yet)")
            return
        asked = self._conversation.place
        options: dict[str, Any] = {}
        if (seed := self.agent.sampling.get("seed")) is not None:  # the same one would give the same answer
            options["seed"] = seed + len(self._conversation.branches())
        self._run(None, **options)
        if self._conversation.place == asked:  # no answer came
            self._conversation.return_to(place)
            return
        after = self._conversation.last_answer()
        if before is not None and after is not None and before.raw is not None and before.raw == after.raw:
            temperature = self.agent.sampling.get("temperature", self.agent.model.sampling.temperature)
            hint = ": try /set temperature 0.8, then /retry" if temperature < 0.5 else ""
            say(f"(the same answer again{hint})")

    def ask_instead(self, text: str) -> bool:
        """Ask this in place of the user's last message, which stays as a branch; its files go along.

        Returns whether it was sent.
        """
        place, message = self._conversation.place, self._conversation.rewind()
        before = self._conversation.place
        named = {*mentioned(text)[0], *mentioned(typed_of(message))[0]} if message is not None else ()
        files = files_of(message) if message is not None else []
        sent = self.ask(text, [file for file in files if file.name not in named])
        if self._conversation.place == before:  # no answer came
            self._conversation.return_to(place)
        return sent

    def compact(self) -> None:
        """Let the model summarise the conversation."""
        self._follow(lambda cancel: self.agent.compact(self._conversation, cancel=cancel))

    def say(self, text: str) -> None:
        """Print a line of its own, even if an answer is half written."""
        self._view.end()
        say(text)

    def _message(self, text: str, files: Sequence[Attachment]) -> UserMessage:
        """What is sent, after telling how large its files are. Raises UsageError, ContextOverflow."""
        names, others = mentioned(text)
        model = self.agent.model
        attached = [*files, *read_files(names)]
        for name in others:
            if name in (file.name for file in files):  # gone since, but the message that is changed has it
                continue
            say(f"(@{name} is no file here: sent as you wrote it)")
        if attached:
            for line in tell(attached, text, model):
                say(line)
        return with_files(text, attached)

    def _run(self, message: UserMessage | None, **options: Any) -> None:
        ended = threading.Event()
        if self._keyboard.active:  # else nobody could set it
            options["end_thinking"] = ended
        history = self._conversation
        self._follow(lambda cancel: self.agent.run(message, history=history, cancel=cancel, **options), ended)

    def _follow(
        self,
        start: Callable[[threading.Event], Iterable[AgentEvent]],
        end_thinking: threading.Event | None = None,
    ) -> None:
        """Show the events of a run until it ends or Ctrl-C stops it."""
        self._view = view = open_view(warned=self._warned, keys=self._keyboard.active)
        self.interrupts.cancel = cancel = threading.Event()
        obeyed = {"c-t": view.toggle_reasoning}
        if end_thinking is not None:
            obeyed["escape"] = end_thinking.set
        try:
            with self._keyboard.listening(obeyed):
                for event in start(cancel):
                    match event:
                        case RunDone():
                            view.end()
                            self._remark(event)
                        case RunFailed(error=error):
                            view.end()
                            self._complain(error)
                        case _:
                            view.show(event)
        except LocalAgentError as error:
            view.end()
            self._complain(error)
        finally:
            self.interrupts.cancel = None

    def _complain(self, error: LocalAgentError) -> None:
        # A first message that is too long alone would be too long after /clear too.
        helps = isinstance(error, ContextOverflow) and self._conversation.last_answer() is not None
        say(f"localagent: {error}{', or start over with /clear' if helps else ''}")

    def _approve(self, requests: Sequence[ApprovalRequest]) -> list[Decision]:
        with self._keyboard.paused():
            return self._approver(requests)

    def _remark(self, done: RunDone) -> None:
        self.last = done
        if done.stop_reason == "cancelled":
            say("(stopped)")
        elif done.stop_reason == "length":
            say("(cut off: the token limit or the end of the context window was reached)")
        if self._stats:
            print_stats(done)
        elif done.message is not None:
            show_status(done.message, self.agent.model.host.context)


def complain(error: LocalAgentError) -> None:
    """Say why a request failed."""
    say(f"localagent: {error}")


class Interrupts:
    """Ctrl-C while nobody is typing cancels the current answer and nothing else.

    With a pipe, Ctrl-C between answers ends the program as usual.
    """

    def __init__(self) -> None:
        self.cancel: threading.Event | None = None
        self._raises = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Let Ctrl-C raise KeyboardInterrupt here, in what has no event to cancel it."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        if self.cancel is not None:
            self.cancel.set()
        elif self._raises or not on_terminal():
            raise KeyboardInterrupt
