"""Standard input as text, and the prompt of `run`.

The prompt is the words of the command line and the text of standard input. Piped text always belongs to it:
a prompt without it would be another question. A terminal is read only if `-` asks for it, and a closed or
empty standard input counts as none. A pipe that stays open and sends nothing may just be slow, so the command
waits for its first byte, says so, and gives up after `PATIENCE`, rather than answer half a prompt. With `-`
it waits as long as it takes.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from select import select

from localagent.cli.terminal import say
from localagent.errors import UsageError

PATIENCE = 60.0
"""Seconds to wait for a pipe's first byte when `-` was not given."""
SOON = 2.0
"""Seconds of waiting after which a user on a terminal is told."""
LIMIT = 256 << 20
"""Bytes of standard input, far more than any context window holds: endless input must not fill memory."""


def whole_prompt(words: Sequence[str], *, required: bool = True) -> str:
    """The words, then an empty line and the piped text. Raises UsageError.

    A last word `-` stands for standard input. `required`: an empty prompt is an error.
    """
    asked = bool(words) and words[-1] == "-"
    said = " ".join(words[:-1] if asked else words)
    require_text("the prompt", said)
    given = read_text(_read(sys.stdin.fileno(), asked))
    prompt = "\n\n".join(part for part in (said, given) if part.strip())
    if required and not prompt:
        raise UsageError("the prompt is empty: give it as words or through a pipe")
    return prompt


def require_text(name: str, argument: str | None) -> None:
    """Refuse an argument that is not UTF-8: Python keeps it as lone surrogates. Raises UsageError."""
    try:
        (argument or "").encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} is not UTF-8 text: see character {error.start + 1:,}") from None


def read_text(data: bytes, name: str = "standard input") -> str:
    """What was read from standard input, or from `name`, as text. Raises UsageError for what is not text."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name} is not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start:,}"
        ) from None
    if (at := text.find("\0")) >= 0:
        raise UsageError(f"{name} is binary: NUL at character {at:,}")
    return text


def _read(descriptor: int, asked: bool) -> bytes:
    """All of standard input. Raises UsageError."""
    if os.isatty(descriptor):
        if not asked:
            return b""
        say("(type the prompt, then press Ctrl-D on an empty line)")
    pieces: list[bytes] = []
    room = LIMIT
    try:
        _await_first(descriptor, asked)
        while piece := _next_piece(descriptor):
            pieces.append(piece)
            room -= len(piece)
            if room < 0:
                raise UsageError(
                    f"standard input is longer than {LIMIT >> 20} MB, more than any model can read at once"
                )
    except OSError as error:
        if error.errno == errno.EBADF:  # open for writing only, so there is nothing to read
            return b""
        raise UsageError(f"standard input cannot be read: {error.strerror or error}") from error
    return b"".join(pieces)


def _await_first(descriptor: int, asked: bool) -> None:
    if sys.platform == "win32" or os.isatty(descriptor):  # on Windows select takes sockets only
        return
    if select([descriptor], [], [], SOON)[0]:
        return
    if sys.stderr.isatty():
        say("(waiting for standard input; use </dev/null if there is none)")
    if asked or select([descriptor], [], [], PATIENCE - SOON)[0]:
        return
    raise UsageError(
        f"standard input is open and has sent nothing for {PATIENCE:g} seconds: "
        "use </dev/null if there is no input, or - as the last word to wait for it"
    )


def _next_piece(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, 1 << 20)
        except BlockingIOError:  # another process that shares the pipe made it non-blocking
            select([descriptor], [], [])
