"""How much memory a model needs and how much there is; so how many lanes it gets, and whether it is loaded.

LOCALAGENT_MEMORY_CHECK=0 in the environment turns this off; it is read when a model is loaded.
"""

from localagent.hosts.memory.admission import (
    Lanes,
    admit,
    check_lanes,
    default_lanes,
    memory_checked,
    require_memory,
)
from localagent.hosts.memory.estimate import Estimate
from localagent.hosts.memory.machine import Machine, available_memory, read_machine

__all__ = [
    "Estimate",
    "Lanes",
    "Machine",
    "admit",
    "available_memory",
    "check_lanes",
    "default_lanes",
    "memory_checked",
    "read_machine",
    "require_memory",
]
