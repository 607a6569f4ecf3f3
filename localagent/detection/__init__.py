"""Which parser dialect reads a model's output.

`find_dialect` finds it by name or file, and so does `asked_dialect`, where one is named; `find_declared` in
what a model declares, `detect_dialect` from a model's weights, `guess_dialect` from an output alone,
`nearest_dialect` from one with faults.
"""

from localagent.detection.detecting import declared_in, detect_dialect
from localagent.detection.finding import AUTO, asked_dialect, find_declared, find_dialect, require_markers
from localagent.detection.guessing import guess_dialect, nearest_dialect
from localagent.prompt.thinking import opens_reasoning

__all__ = [
    "AUTO",
    "asked_dialect",
    "declared_in",
    "detect_dialect",
    "find_declared",
    "find_dialect",
    "guess_dialect",
    "nearest_dialect",
    "opens_reasoning",
    "require_markers",
]
