"""What may be written to a terminal: models, files and servers choose much of what is shown there."""

from __future__ import annotations

import re
import sys

# Control characters but tab and line feed, lone surrogates, line separators, and marks that reorder text.
_DECEPTIVE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """`text` with everything made visible that could drive a terminal or deceive its reader."""
    return text if text.isprintable() else _DECEPTIVE.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def one_line(text: str, limit: int) -> str:
    """The beginning of `text` on one line of at most `limit` characters."""
    line = " ".join(text[: 4 * limit].split())
    return line if len(line) <= limit and len(text) <= 4 * limit else f"{line[: limit - 3]}..."


def say(text: str) -> None:
    """A line that is no answer: stderr, so that answers can be piped."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def on_terminal() -> bool:
    """Whether a person is typing, and reading."""
    return sys.stdin.isatty() and sys.stdout.isatty()
