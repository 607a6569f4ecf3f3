"""The process in which llguidance runs, since only a process can be ended.

Forty characters of a pattern can keep llguidance busy for minutes, with gigabytes, and its own limits do not
prevent that. So `python worker.py FD` makes the tokenizer of one vocabulary, which takes a third of a second,
and then forks for each grammar. The child shares the tokenizer's memory, and serves the grammar's matchers
until its socket is closed. Before each request it sets an alarm, whose default action is to kill it, whatever
llguidance is doing at that moment.

The file is run by its path and imports nothing of localagent, so that it starts quickly. The other end of the
sockets is in `processes`.
"""

from __future__ import annotations

import ctypes
import gc
import marshal
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any, Final

_HEAD: Final = struct.Struct("I")
_LIMITS: Final = {
    "initial_lexer_fuel": 10_000_000,  # about 0.2 s; a large enumeration takes a tenth of it
    "step_lexer_fuel": 1_000_000,
    "step_max_items": 100_000,
    "max_items_in_row": 10_000,  # 200 tools with their optional arguments
    "max_grammar_size": 2_000_000,
    "verbose_errors": False,  # they would repeat the grammar
}
_SLICES: Final = (
    # Tokens that are text in any string, whatever markers it must not spell: decided all at once.
    r'[^"\'\\<>/\[\]\x00-\x1F\x7F]{1,10}',
    r'[^"\'\\<>/\[\]\x00-\x1F\x7F]{1,30}',
    r'[^"\'\\<>/\[\]\x00-\x1F\x7F]+',
    r'[^"\\\x00-\x1F\x7F]{1,30}',
    r'[^"\\\x00-\x1F\x7F]+',
)
_STEPS: Final = 8
"""Bytes that a trial writes: what explodes inside of a string does so at its first characters."""

SECONDS: Final = {"trial": 0.5, "compile": 2.0}
"""Seconds of processor time that a request may take for which no stream waits."""
PATIENCE: Final = 0.25
"""The same for any other request: the engine's thread waits for it, and with it all streams."""

Tokenize = Callable[[str], Sequence[int]]
"""The tokens of a text, which only the process that has the model can tell."""


State = tuple[str, bool, bool, Sequence[int], bytes]
"""The fields of a `matching.State`."""


class Matchers:
    """The matchers of one grammar, by number; 0 stays at its beginning. `tokenizer`: one of llguidance's."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._matchers: dict[int, Any] = {}
        self._made = 0

    def trial(self, text: str) -> tuple[str, float]:
        """Why no text can be written in a grammar, "" if one can; tried on single bytes. And how many
        seconds of processor time that took.
        """
        started = process_time()
        return self._tried(text), process_time() - started

    def _tried(self, text: str) -> str:
        matcher = self._matcher(text)
        if matcher.is_error():
            error: str = matcher.get_error()
            return error
        for _ in range(_STEPS):
            mask = matcher.compute_bitmask()
            if matcher.is_error():
                return "no value that fits it can be written"
            if matcher.is_stopped() or not any(mask):
                break
            byte = next(n for n in range(8 * len(mask)) if mask[n // 8] >> n % 8 & 1)
            matcher.consume_token(byte)
        return ""

    def compile(self, text: str) -> State:
        """Begin with this grammar."""
        self._matchers[0] = self._matcher(text)
        return self._state(self._matchers[0], "nothing can be written")

    def copy(self, number: int) -> int:
        """The number of another matcher in the same state."""
        self._made += 1
        self._matchers[self._made] = self._matchers[number].deep_copy()
        return self._made

    def accept(self, number: int, tokens: Sequence[int]) -> State:
        """These tokens came."""
        matcher = self._matchers[number]
        matcher.consume_tokens(tokens)
        return self._state(matcher, f"token {tokens[-1]} may not come here")

    def forget(self, numbers: Sequence[int]) -> None:
        """These are not needed any more."""
        for number in numbers:
            self._matchers.pop(number, None)

    def _state(self, matcher: Any, otherwise: str) -> State:
        """`otherwise`: what is wrong where llguidance does not say it."""
        error = (_first_line(matcher) or otherwise) if matcher.is_error() else ""
        accepting, stopped, forced = matcher.is_accepting(), matcher.is_stopped(), matcher.compute_ff_tokens()
        mask = bytearray(-(-self._tokenizer.vocab_size // 32) * 4)
        if not error and len(forced) < 2:
            buffer = (ctypes.c_char * len(mask)).from_buffer(mask)
            matcher.unsafe_compute_mask_ptr(ctypes.addressof(buffer), len(mask))
            if matcher.is_error():
                error = _first_line(matcher) or "a limit was hit"
        return error, accepting, stopped, forced, bytes(mask)

    def _matcher(self, text: str) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        grammar, limits = LLMatcher.grammar_from_lark(text), LLParserLimits(**_LIMITS)
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)


def tokenizer(pieces: Sequence[bytes], ends: Sequence[int], tokenize: Tokenize) -> Any:
    """llguidance's tokenizer of a vocabulary; without `pieces`, one of single bytes. `ends`: the tokens that
    end a turn.

    A special token, which no text matches, begins with the byte that UTF-8 never has.
    """
    import llguidance

    if not pieces:
        return llguidance.LLTokenizer("byte")

    class Source:
        eos_token_id = ends[0] if ends else 0
        bos_token_id = None
        tokens = pieces
        special_token_ids: Sequence[int] = ()

        def __call__(self, text: str | bytes) -> Sequence[int]:
            return tokenize(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)

    wrapper = llguidance.TokenizerWrapper(Source())
    return llguidance.LLTokenizer(wrapper, eos_token=ends or None, slices=list(_SLICES))


def _first_line(matcher: Any) -> str:
    return next(iter(matcher.get_error().splitlines()), "")


# -- the process ------------------------------------------------------------------------------------------


def send(connection: socket.socket, message: Any) -> None:
    """Send a message: its length, and what `marshal` makes of it."""
    data = marshal.dumps(message)
    connection.sendall(_HEAD.pack(len(data)) + data)


def receive(connection: socket.socket) -> Any:
    """The next message. Raises EOFError where the other end is gone."""
    head = connection.recv(_HEAD.size, socket.MSG_WAITALL)
    size = _HEAD.unpack(head)[0] if len(head) == _HEAD.size else 0
    data = connection.recv(size, socket.MSG_WAITALL) if size else b""
    if not data or len(data) < size:
        raise EOFError
    return marshal.loads(data)


def _serve(asked: socket.socket, tokenizer: Any) -> None:
    """Answer requests, each of which names a method of `Matchers`."""
    matchers = Matchers(tokenizer)
    while True:
        forgotten, seconds, name, arguments = receive(asked)
        matchers.forget(forgotten)
        # Of processor time: on a busy machine a harmless grammar may have to wait for a processor.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        answer = getattr(matchers, name)(*arguments)
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(asked, ("answer", answer))


def main(control: socket.socket) -> None:
    """Make the tokenizer, and fork a child for each socket that comes, until there is nobody to send more."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the program that started this one may ignore
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # or block the alarm, and both are inherited
    *_, (sys.path[:], pieces, ends) = receive(control)
    asked = control

    def tokenize(text: str) -> Sequence[int]:
        send(asked, ("tokenize", text))
        tokens: Sequence[int] = receive(asked)
        return tokens

    ready = tokenizer(pieces, ends, tokenize)
    send(control, ("answer", None))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that no child stays a zombie
    gc.freeze()
    while True:
        data, sockets, *_ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        asked = socket.socket(fileno=sockets[0])
        if not os.fork():
            control.close()
            _serve(asked, ready)
        asked.close()


if __name__ == "__main__":
    try:
        main(socket.socket(fileno=int(sys.argv[1])))
    except (EOFError, OSError):  # the other end is gone
        os._exit(0)
