"""Which parser dialect reads a model's output.

`find_dialect` takes a name or a file, `detect_dialect` asks the weights of a model, `guess_dialect` has
nothing but an output to go by.
"""

from localagent.detection.detecting import detect_dialect
from localagent.detection.finding import AUTO, find_dialect, require_markers
from localagent.detection.guessing import guess_dialect
from localagent.prompt.rendering import opens_reasoning

__all__ = ["AUTO", "detect_dialect", "find_dialect", "guess_dialect", "opens_reasoning", "require_markers"]
