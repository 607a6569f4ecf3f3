"""How names, sizes and other people's text are put into messages of one line."""

from __future__ import annotations

from collections.abc import Iterable


def one_line(text: str, limit: int | None = None) -> str:
    """The text on one line, cut to `limit` characters."""
    # Splitting a text of megabytes to show a line of it would take longer than all the rest.
    line = " ".join((text if limit is None else text[: 4 * limit]).split())
    if limit is None or (len(line) <= limit and len(text) <= 4 * limit):
        return line
    return f"{line[: limit - 3]}..."


def quoted(text: str, limit: int = 60) -> str:
    """Somebody else's text in an error: as it is where it is short and plain, else escaped and cut."""
    return text if text.isprintable() and len(text) <= limit else f"{text!r:.{limit}}"


def listed(names: Iterable[str], limit: int = 20) -> str:
    """The names on one line, at most so many; "none" if there are none."""
    every = [quoted(name) for name in names]
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return (", ".join(every[:limit]) or "none") + more


def writable(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot write, spelt out."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def size_text(size: int | None) -> str:
    """Bytes in decimal units, as shops and file managers count them."""
    if size is None:
        return "size unknown"
    if size >= 1e9:
        return f"{size / 1e9:,.1f} GB"
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size:,} bytes"
