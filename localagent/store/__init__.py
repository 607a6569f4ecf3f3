"""Model weights on this machine: where they lie, whether they can be trusted, how they get there."""

from localagent.store.progress import Phase, Progress
from localagent.store.weights import Installed, WeightStore

__all__ = ["Installed", "Phase", "Progress", "WeightStore"]
