"""Names, sizes and text from outside, made fit for people: harmless, short, on one line."""

from __future__ import annotations

import re
from collections.abc import Iterable

DECEPTIVE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]")
"""Control characters except tab and line feed, lone surrogates, line separators, marks that reorder text."""


def printable(text: str) -> str:
    """`text` with every character escaped that could control a terminal or deceive its reader."""
    return text if text.isprintable() else DECEPTIVE.sub(_spelt, text)


def _spelt(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def one_line(text: str, limit: int | None = None) -> str:
    """The text on one line, cut to `limit` characters."""
    # Only the beginning is split: the text may be megabytes, and one line of it is shown.
    line = " ".join((text if limit is None else text[: 4 * limit]).split())
    if limit is None or (len(line) <= limit and len(text) <= 4 * limit):
        return line
    return f"{line[: limit - 3]}..."


def quoted(text: str, limit: int = 60) -> str:
    """Text from outside, for an error message: unchanged if it is short and plain, else escaped and cut."""
    return text if text.isprintable() and len(text) <= limit else f"{text!r:.{limit}}"


def listed(names: Iterable[str], limit: int = 20) -> str:
    """The names on one line, at most `limit` of them; "none" if there are none."""
    every = [quoted(name) for name in names]
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return (", ".join(every[:limit]) or "none") + more


def writable(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot encode, as escapes."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def size_text(size: int | None) -> str:
    """A number of bytes in decimal units, as disks are sold."""
    if size is None:
        return "size unknown"
    if size >= 1e9:
        return f"{size / 1e9:,.1f} GB"
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size:,} bytes"
