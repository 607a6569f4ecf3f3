"""How much memory a model needs and how much there is; refuses to load a model that does not fit.

LOCALAGENT_MEMORY_CHECK=0 in the environment turns this off; it is read when a model is loaded.
"""

from localagent.hosts.memory.estimate import Estimate
from localagent.hosts.memory.gguf import estimate_gguf
from localagent.hosts.memory.machine import Machine, available_memory, read_machine
from localagent.hosts.memory.mlx import estimate_mlx
from localagent.hosts.memory.require import check_memory, memory_checked, require_memory

__all__ = [
    "Estimate",
    "Machine",
    "available_memory",
    "check_memory",
    "estimate_gguf",
    "estimate_mlx",
    "memory_checked",
    "read_machine",
    "require_memory",
]
