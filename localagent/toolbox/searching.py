"""The tool that finds files by the words in their names and texts.

A search stops at the limits here and says which one it met. It also stops when the call is cancelled.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from localagent.errors import ToolError
from localagent.hosts.protocol import Cancelled
from localagent.toolbox.confined import MAX_PATH, VERSION_CONTROL, ConfinedFolder, FolderEntry, Parts, shown
from localagent.tools import Tool, ToolContext, tool

FOUND = 60
"""Names and lines in a result."""
PER_FILE = 8
"""Lines of one file."""
MAX_FILE = 4_000_000
"""Bytes of a file that is read."""
MAX_FILES = 20_000
"""Files and folders that one search looks at."""
MAX_READ = 200_000_000
"""Bytes that one search reads."""
WIDTH = 200
"""Characters that are shown of a line."""
SKIPPED = VERSION_CONTROL | {"node_modules", "__pycache__"}
"""Folders that are found by name and not searched: nobody wrote by hand what is in them."""
_LOOKED_AT = 4_096


def make_search_files(confined: ConfinedFolder) -> Tool:
    """The tool that searches files."""

    @tool(kind="read")
    def search_files(context: ToolContext, query: str, folder: str = ".", hidden: bool = False) -> str:
        """Find files by name or by text: a name, or a line, that has every word of the query in it.

        Args:
            query: The words to look for. Upper and lower case are the same.
            folder: Where to look, relative to the top folder.
            hidden: Also look into files and folders that begin with a dot.
        """
        words = tuple(dict.fromkeys(_folded(query).split()))
        if not words:
            raise ToolError("the query has no words: say what to look for")
        parts = confined.split(folder)
        with confined.folder(parts):
            pass  # a missing start is an error; a folder below may vanish before its turn
        search = Search(confined, words, hidden, context)
        try:
            return search.run(parts)
        except Cancelled:
            raise ToolError("the search was cancelled") from None

    return search_files


@dataclass(slots=True)
class Search:
    """One search: what it found so far and what it left out."""

    confined: ConfinedFolder
    words: Sequence[str]
    hidden: bool
    context: ToolContext
    lines: list[str] = field(default_factory=list)
    seen: int = 0
    bytes_read: int = 0
    large: int = 0
    unreadable: int = 0
    stopped: str = ""
    """Why it ended before everything was looked at."""
    full: bool = False
    """It has seen as many files as it looks at: what it has seen is still searched, and nothing else."""

    def run(self, start: Parts) -> str:
        """Search a folder and all below it. Raises Cancelled."""
        for parts, entry in self._walk(start):
            if self._has_words(_folded("/".join(parts))):
                self._found(f"{shown(parts)}{'/' if entry.kind == 'folder' else ''}")
            if entry.kind == "file" and not self.stopped:
                self._search_file(parts, entry.size)
            if self.stopped:
                break
        if self.full and not self.stopped:
            self.stopped = f"stopped after {MAX_FILES:,} files: search a folder further down"
        if not self.lines:
            self.lines.append(f"nothing found in {shown(start)}")
        left_out = [
            f"{count:,} files were not read, {reason}"
            for count, reason in ((self.large, "too large"), (self.unreadable, "not readable"))
            if count
        ]
        notes = [note for note in (self.stopped, *left_out) if note]
        return "\n".join((*self.lines, *(f"({note})" for note in notes)))

    def _walk(self, start: Parts) -> Iterator[tuple[Parts, FolderEntry]]:
        """Files and folders in order, those of a folder before what lies deeper."""
        waiting = [start]
        while waiting and not self.full:
            folder = waiting.pop()
            try:
                entries = sorted(self._entries(folder), key=lambda entry: entry.name)
            except ToolError:
                self.unreadable += 1  # removed meanwhile, or no permission
                continue
            deeper = []
            for entry in entries:
                parts = (*folder, entry.name)
                yield parts, entry
                if entry.kind == "folder" and entry.name.casefold() not in SKIPPED:
                    deeper.append(parts)
            waiting += (parts for parts in reversed(deeper) if sum(map(len, parts)) + len(parts) <= MAX_PATH)

    def _entries(self, folder: Parts) -> Iterator[FolderEntry]:
        for entry in self.confined.entries(folder):
            if self.context.cancel.is_set():
                raise Cancelled
            if self.seen >= MAX_FILES:
                self.full = True
                return
            if entry.kind in ("file", "folder") and (self.hidden or not entry.name.startswith(".")):
                self.seen += 1
                yield entry

    def _search_file(self, parts: Parts, size: int) -> None:
        if self.context.cancel.is_set():
            raise Cancelled
        if size > MAX_FILE:
            self.large += 1
            return
        if self.bytes_read + size > MAX_READ:
            self.stopped = f"stopped after {MAX_READ // 1_000_000:,} MB: search a folder further down"
            return
        try:
            data = self.confined.read(parts, MAX_FILE)
        except ToolError:
            self.unreadable += 1
            return
        self.bytes_read += len(data)
        if b"\0" in data[:_LOOKED_AT]:
            return
        text = data.decode("utf-8", "replace")
        if self._has_words(_folded(text)):
            self._search_lines(parts, text)

    def _search_lines(self, parts: Parts, text: str) -> None:
        count = 0
        for number, line in enumerate(text.split("\n"), 1):
            folded = _folded(line)
            if not self._has_words(folded):
                continue
            count += 1
            if count <= PER_FILE:
                self._found(f"{shown(parts)}:{number}: {_around(line, folded.find(self.words[0]))}")
                if self.stopped:
                    return
        if count > PER_FILE:
            self.lines.append(f"({count - PER_FILE:,} more lines in {shown(parts)})")

    def _has_words(self, folded: str) -> bool:
        return all(word in folded for word in self.words)

    def _found(self, line: str) -> None:
        if len(self.lines) >= FOUND:
            self.stopped = f"stopped at {FOUND} lines: use more words, or search a folder further down"
        else:
            self.lines.append(line)


def _folded(text: str) -> str:
    """Text for comparing. macOS stores the accents in names as characters of their own: NFC joins them."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return text.casefold()


def _around(line: str, at: int) -> str:
    """The part of a line around a place, in printable characters."""
    start = max(0, at - WIDTH // 2) if len(line) > WIDTH else 0
    piece = line[start : start + WIDTH].strip()
    piece = "".join(c if c.isprintable() else " " for c in piece)
    return f"{'...' if start else ''}{piece}{'...' if start + WIDTH < len(line) else ''}"
