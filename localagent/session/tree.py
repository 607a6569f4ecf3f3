"""The tree of a session's entries, in memory: ids and their parents."""

from __future__ import annotations

from localagent.session.entries import Entry


class Tree:
    """Entries in the file's order, with their parents. Entries are only added, never removed."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self._parents: dict[str, str | None] = {}
        self._children: dict[str | None, list[str]] = {}

    def add(self, entry: Entry) -> str | None:
        """Add an entry that was read; returns what is wrong with it, or None.

        A parent always comes before its child, as files only grow; so there are no cycles.
        """
        if entry.id in self.entries:
            return f"the id {entry.id!r} is taken by an earlier entry: skipped"
        lost = entry.parent is not None and entry.parent not in self.entries
        parent = None if lost else entry.parent
        self.entries[entry.id] = entry
        self._parents[entry.id] = parent
        self._children.setdefault(parent, []).append(entry.id)
        return f"its parent {entry.parent!r} could not be read: kept as a new start" if lost else None

    def path(self, entry_id: str | None) -> list[Entry]:
        """The entries from a beginning to this one."""
        path: list[Entry] = []
        while entry_id is not None:
            path.append(self.entries[entry_id])
            entry_id = self._parents[entry_id]
        path.reverse()
        return path

    def parent(self, entry_id: str) -> str | None:
        """The entry before this one, if it could be read."""
        return self._parents[entry_id]

    def children(self, entry_id: str | None) -> tuple[Entry, ...]:
        """The entries that follow this one; for None, the first ones of all conversations."""
        return tuple(self.entries[child] for child in self._children.get(entry_id, ()))

    def leaves(self) -> tuple[Entry, ...]:
        """The entries that nothing follows."""
        return tuple(entry for entry in self.entries.values() if entry.id not in self._children)
