"""Files as the whole of localagent keeps them: where they lie, how they are locked, JSON lines."""
