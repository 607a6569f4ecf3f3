"""Model weights on this machine: where they are kept, how they are fetched and verified."""

from localagent.store.disk import Phase, Progress
from localagent.store.weights import WeightStore

__all__ = ["Phase", "Progress", "WeightStore"]
