"""Model weights on this machine: where they are, whether they can be trusted, how they get there."""

from localagent.store.disk import Phase, Progress
from localagent.store.weights import WeightStore

__all__ = ["Phase", "Progress", "WeightStore"]
