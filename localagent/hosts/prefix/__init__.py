"""Reuse of conversation prefixes: what has been evaluated once is not evaluated again.

transcripts    text of a conversation -> its original ids, so that prompts only grow at their end
cache          ids -> the evaluated state to continue from: checkpoints, branches, other conversations
snapshots      evaluated states on disk, which survive the process
"""

from localagent.hosts.prefix.cache import PrefixCache
from localagent.hosts.prefix.snapshots import SnapshotFolder, SnapshotKey, Snapshots
from localagent.hosts.prefix.transcripts import Transcripts

__all__ = ["PrefixCache", "SnapshotFolder", "SnapshotKey", "Snapshots", "Transcripts"]
