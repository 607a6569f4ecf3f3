"""Sessions: conversations saved to disk, as trees of entries in append-only files.

The files, and what each is for:

    session        one session: the tree of its entries, and the head
    file, entries  the file, to which one process at a time appends; what a line of it holds
    tree           ids and their parents
    context        from the entries up to the head to the messages that a model is sent
    mending        messages that several runs at once have mixed up, in order again
    store          all sessions on this machine: listed, found, searched, renamed, removed
"""

from localagent.session.entries import (
    BranchSummaryEntry,
    CompactionEntry,
    Entry,
    Header,
    MessageEntry,
    UnknownEntry,
)
from localagent.session.session import Session
from localagent.session.store import Found, SessionInfo, SessionStore, glance

__all__ = [
    "BranchSummaryEntry",
    "CompactionEntry",
    "Entry",
    "Found",
    "Header",
    "MessageEntry",
    "Session",
    "SessionInfo",
    "SessionStore",
    "UnknownEntry",
    "glance",
]
