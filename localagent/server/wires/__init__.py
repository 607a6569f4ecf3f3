"""One API per file: requests into turns, and the events of turns into answers. Nothing here does any IO."""
