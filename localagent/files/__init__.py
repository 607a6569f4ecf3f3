"""Files that several parts of localagent keep: their folders, their locks, and JSON lines."""
