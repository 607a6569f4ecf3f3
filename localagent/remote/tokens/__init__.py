"""Models whose tokens somebody else's server draws: ids go out, ids come back, and all else is done here."""
