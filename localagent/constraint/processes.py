"""llguidance in processes of its own, as the other parts of localagent call it: see `worker`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final
from weakref import finalize

from localagent.constraint import worker
from localagent.constraint.worker import Matchers, Tokenize, receive, send

FORKS: Final = hasattr(os, "fork") and not getattr(sys, "frozen", False)
"""Whether llguidance has processes of its own. Elsewhere it runs in this one, and cannot be ended."""

Vocabulary = tuple[Sequence[bytes], Sequence[int]]
"""The bytes of every token, and the tokens that end a turn, as `worker.tokenizer` takes them."""


class Ended(Exception):
    """A request took too long, and its process was ended with all that it held."""


class Worker:
    """The process that has the tokenizer of one vocabulary. It is started when it is first needed, and again
    where it has died.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary], tokenize: Tokenize) -> None:
        self._vocabulary = vocabulary
        self._tokenize = tokenize
        self._lock = threading.Lock()
        self._control: Child | None = None
        self._here: Any = None

    def fork(self) -> Child | Here:
        """A process for one grammar."""
        with self._lock:
            if not FORKS:
                self._here = self._here or worker.tokenizer(*self._vocabulary(), self._tokenize)
                return Here(self._here)
            ours, theirs = socket.socketpair()
            with theirs:
                if self._control is None or not self._control.pass_on(theirs):
                    self._control = self._start()
                    self._control.pass_on(theirs)  # if this one is gone as well, `ask` raises Ended
            return Child(ours, self._tokenize)

    def _start(self) -> Child:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", worker.__file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is not for it
            )
        control = Child(ours, self._tokenize)
        finalize(self, _end, control, process)
        with suppress(Ended):
            control.ask("tokenizer", sys.path, *self._vocabulary())
        return control


def _end(control: Child, process: subprocess.Popen[bytes]) -> None:
    if not control.foreign:  # a fork of this process must not end what is its parent's
        control.close()
        process.kill()  # it may be making its tokenizer
        process.wait()


class Child:
    """A process for one grammar. Any thread may ask it; requests wait for each other."""

    def __init__(self, connection: socket.socket, tokenize: Tokenize) -> None:
        self._connection = connection
        self._tokenize = tokenize
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self.forgotten: list[int] = []
        """Numbers of matchers that are not needed any more. Finalizers add to it, and must not wait."""
        self.spent = False
        """The grammar's lexer is used up: no new matcher is to be made here."""
        self.close = finalize(self, connection.close)

    @property
    def foreign(self) -> bool:
        """Whether this is a fork of the process that it belongs to."""
        return os.getpid() != self._owner

    @property
    def usable(self) -> bool:
        """Whether it can be asked: it may have died since it was last."""
        try:
            return not self.foreign and bool(self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:  # there is nothing to read, and no end either
            return True
        except OSError:
            return False

    def pass_on(self, connection: socket.socket) -> bool:
        """Have it fork a child that serves `connection`. False where it is gone."""
        with suppress(OSError):
            return not self.foreign and bool(socket.send_fds(self._connection, [b"+"], [connection.fileno()]))
        return False

    def ask(self, name: str, *arguments: object) -> Any:
        """What this method of `Matchers` returns. Raises Ended."""
        with self._lock:
            if self.foreign:  # two that ask would get each other's answers
                raise Ended
            forgotten, self.forgotten = self.forgotten, []
            try:
                seconds = worker.SECONDS.get(name, worker.PATIENCE)
                send(self._connection, (forgotten, seconds, name, arguments))
                while True:
                    kind, value = receive(self._connection)
                    if kind == "answer":
                        return value
                    send(self._connection, self._tokenize(value))
            except BaseException as error:
                self.close()  # also at Ctrl-C: its answer would be taken for that to the next request
                if isinstance(error, (EOFError, OSError)):
                    raise Ended from None
                raise


class Here:
    """What `Child` does, in this process, where there are no forks."""

    usable = True

    def __init__(self, tokenizer: Any) -> None:
        self._matchers = Matchers(tokenizer)
        self._lock = threading.Lock()
        self.forgotten: list[int] = []
        self.spent = False

    def ask(self, name: str, *arguments: object) -> Any:
        """What this method of `Matchers` returns."""
        with self._lock:
            forgotten, self.forgotten = self.forgotten, []
            self._matchers.forget(forgotten)
            return getattr(self._matchers, name)(*arguments)
