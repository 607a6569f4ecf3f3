"""Sessions: conversations saved to disk, as trees of entries in append-only files."""

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
