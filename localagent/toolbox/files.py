"""Tools that list, read, search and write the files below one folder, which `confined` keeps them in.

Reading never blocks, whatever a path leads to, and never returns more than the limits here. Writing is
atomic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from localagent.errors import ToolError
from localagent.messages import ImagePart, ResultPart
from localagent.messages.media import MAX_BYTES, sniff
from localagent.toolbox.confined import ConfinedFolder, FolderEntry, Parts, shown
from localagent.toolbox.searching import make_search_files
from localagent.tools import FileChange, Tool, tool

LISTED = 500
"""Names in a list."""
SCANNED = 100_000
"""Names that one list looks at."""
LINES = 500
"""Lines that are read unless asked otherwise."""
MAX_TEXT = 20_000
"""Characters of a file that one call returns."""
MAX_WRITTEN = 5_000_000
"""Bytes that one call writes."""


def files(root: Path | str, *, write: bool = False) -> list[Tool]:
    """Tools for the files below `root`: list, read, search, and with `write` also write.

    Raises UsageError when `root` is not a folder.
    """
    folder = ConfinedFolder(root)
    tools = [make_list_files(folder), make_read_file(folder), make_search_files(folder)]
    return [*tools, make_write_file(folder)] if write else tools


def write(root: Path) -> list[Tool]:
    """All tools for the files below `root`."""
    return files(root, write=True)


def make_list_files(confined: ConfinedFolder) -> Tool:
    """The tool that lists a folder."""

    @tool(kind="read")
    def list_files(folder: str = ".", hidden: bool = False) -> str:
        """List the files and folders in a folder, with the sizes of the files.

        Args:
            folder: The folder, relative to the top folder, which is ".".
            hidden: Also list names that begin with a dot.
        """
        return list_folder(confined, confined.split(folder), hidden)

    return list_files


def make_read_file(confined: ConfinedFolder) -> Tool:
    """The tool that reads a file."""

    @tool(kind="read")
    def read_file(path: str, first_line: int = 1, lines: int = LINES) -> str | list[ResultPart]:
        """Read a text file, or look at an image.

        Args:
            path: The file, relative to the top folder.
            first_line: The line to begin with, from 1.
            lines: How many lines to read.
        """
        if first_line < 1 or lines < 1:
            raise ToolError("first_line and lines must be 1 or more")
        parts = confined.split(path)
        data = confined.read(parts, MAX_BYTES)
        if (sniff(data) or "").startswith("image/"):
            return [ImagePart(data=data)]
        return show_lines(parts, decode(parts, data), first_line, lines)

    return read_file


def make_write_file(confined: ConfinedFolder) -> Tool:
    """The tool that writes a file."""

    @tool(side_effects=True, sequential=True, kind="edit")
    def write_file(path: str, content: str) -> str:
        """Write a text file. A file that is there already is replaced as a whole.

        Args:
            path: The file, relative to the top folder. Folders that are missing are made.
            content: The whole text of the file.
        """
        parts = confined.split(path)
        if path.endswith("/"):
            raise ToolError(f"{shown(parts)}/ names a folder: give the name of a file")
        try:
            data = content.encode()
        except UnicodeEncodeError as error:
            raise ToolError(f"not Unicode text: lone surrogate at character {error.start:,}") from None
        if len(data) > MAX_WRITTEN:
            raise ToolError(f"{len(data):,} bytes are too many: at most {MAX_WRITTEN:,} are written")
        before = confined.replace(parts, data)
        if before is None:
            return f"wrote {shown(parts)}: new file, {len(data):,} bytes"
        return f"replaced {shown(parts)}: {len(data):,} bytes, before {before:,} bytes"

    def change(arguments: Mapping[str, Any]) -> FileChange | None:
        path, content = arguments.get("path"), arguments.get("content")
        if not isinstance(path, str) or not isinstance(content, str):
            return None
        try:
            parts = confined.split(path)
            before = decode(parts, confined.read(parts, MAX_WRITTEN))
        except ToolError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                return None  # it cannot be shown: it is binary, or no file
            before = None
        return FileChange(shown(parts), before, content)

    return replace(write_file, change=change)


def list_folder(confined: ConfinedFolder, parts: Parts, hidden: bool) -> str:
    """One line for each thing in a folder, then notes on what is not listed. Raises ToolError."""
    found: list[FolderEntry] = []
    unlisted, complete = 0, True
    for number, entry in enumerate(confined.entries(parts)):
        if number == SCANNED:
            complete = False
            break
        if hidden or not entry.name.startswith("."):
            found.append(entry)
        else:
            unlisted += 1
    found.sort(key=lambda entry: (entry.kind != "folder", entry.name.casefold(), entry.name))
    lines = [_line(entry) for entry in found[:LISTED]]
    if not found:
        lines.append(f"({shown(parts)} is empty)" if not unlisted else "(everything here is hidden)")
    if len(found) > LISTED:
        more = f"{len(found) - LISTED:,} more" if complete else f"over {SCANNED:,} in all"
        lines.append(f"({more}: search_files finds files by name)")
    if unlisted:
        lines.append(f"({unlisted:,} hidden: hidden=true lists them)")
    return "\n".join(lines)


def _line(entry: FolderEntry) -> str:
    name = shown((entry.name,))
    match entry.kind:
        case "folder":
            return f"{name}/"
        case "file":
            return f"{name}  {entry.size:,} bytes"
        case "link":
            return f"{name}  (symbolic link, not followed)"
        case "special":
            return f"{name}  (not a regular file)"


def decode(parts: Parts, data: bytes) -> str:
    """The text of a file. Raises ToolError for a binary file."""
    kind = sniff(data)
    binary = ToolError(f"{shown(parts)} is not a text file: {kind or 'binary data'}, {len(data):,} bytes")
    if b"\0" in data:
        raise binary
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("utf-8-sig", "replace")
        if kind is not None or text.count("�") * 10 > len(text):
            raise binary from None
        return text


def show_lines(parts: Parts, text: str, first: int, count: int) -> str:
    """Lines from `first` on, as many as fit, and how to read on. Raises ToolError when there are none."""
    lines = text.removesuffix("\n").split("\n")
    if not text:
        return f"({shown(parts)} is empty)"
    if first > len(lines):
        raise ToolError(f"{shown(parts)} has only {len(lines):,} lines")
    taken: list[str] = []
    size = 0
    for line in lines[first - 1 : first - 1 + count]:
        size += len(line) + 1
        if size > MAX_TEXT and taken:
            break
        taken.append(line)
    notes = []
    if len(taken[0]) > MAX_TEXT:
        notes.append(f"line {first:,} is cut: it has {len(taken[0]):,} characters")
        taken[0] = taken[0][:MAX_TEXT]
    last = first + len(taken) - 1
    if first > 1 or last < len(lines):
        more = f", read on with first_line={last + 1}" if last < len(lines) else ""
        notes.append(f"lines {first:,} to {last:,} of {len(lines):,}{more}")
    if "�" in text:
        notes.append("� may stand for bytes that are not UTF-8")
    return "\n".join(taken) + (f"\n({'; '.join(notes)})" if notes else "")
