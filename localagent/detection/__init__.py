"""Which parser dialect reads a model's output: by name, by a file, or by what the model's weights say.

Knows the parser and chat templates; knows no engine. Contract: see `finding`, `detecting` and `guessing`.
"""

from localagent.detection.detecting import detect_dialect
from localagent.detection.finding import AUTO, find_dialect, opens_reasoning, require_markers
from localagent.detection.guessing import guess_dialect

__all__ = ["AUTO", "detect_dialect", "find_dialect", "guess_dialect", "opens_reasoning", "require_markers"]
