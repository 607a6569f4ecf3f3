"""Copying text: with the program that this desktop has for it, else through the terminal (OSC 52)."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from contextlib import suppress

from localagent.cli.terminal import on_terminal, write_raw
from localagent.errors import UsageError

_PROGRAMS = (  # with the variable that says that they have a desktop to talk to
    ("", ("pbcopy",)),
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--clipboard", "--input")),
)
_PATIENCE = 5.0
_MOST = 75_000
"""Bytes that terminals take this way; longer text is dropped by many of them without a word."""


def copy(text: str) -> str:
    """Put text on the clipboard; returns how. Raises UsageError where there is none."""
    if sys.platform == "win32":
        subprocess.run(["clip"], input=text.encode("utf-16-le"), check=False)
        return "clip"
    # Over SSH such a program would reach the clipboard of the other machine.
    for variable, command in () if "SSH_TTY" in os.environ else _PROGRAMS:
        if (variable and not os.environ.get(variable)) or shutil.which(command[0]) is None:
            continue
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                command, input=text.encode(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                timeout=_PATIENCE, check=True,
            )  # fmt: skip
            return command[0]
    if not on_terminal() or os.environ.get("TERM") in (None, "", "dumb"):
        raise UsageError("there is no clipboard here: /save FILE writes the conversation to a file")
    coded = base64.b64encode(text.encode())  # of these characters none can control the terminal
    if len(coded) > _MOST:
        raise UsageError("the answer is too long to copy through the terminal: use /save FILE")
    write_raw(sys.stdout, f"\x1b]52;c;{coded.decode()}\x07")
    sys.stdout.flush()
    return "the terminal, if it allows that"
