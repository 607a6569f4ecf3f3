"""What a fleet is to be: the arguments of its application, from the command line and in the file for
`serve deploy` alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from localagent.hosts.backends import BackendName
from localagent.hosts.memory.admission import DEFAULT_LANES

ROOM = 3
"""Requests that a replica takes at once, for each of its lanes. One that takes no more sends conversations
elsewhere, where they are read again: by benchmarks/fleet.py that costs more than to wait.
"""

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class Plan(BaseModel):
    """Models, the machines that they may take, and the server in front of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: Annotated[dict[str, str], Field(min_length=1)]
    """By the name that clients call each: what is loaded, as for `model.load`. Paths are those of each
    machine. The first one is loaded by every replica when it starts.
    """
    replicas: tuple[Annotated[int, Field(ge=0)], Count] = (1, 1)
    """The fewest and the most; between them there are as many as there is work for."""
    models_per_replica: Count | None = None
    """Models that a replica holds at once; None: all. With fewer, another one takes the place of what was
    used least lately, when that has given its last answer: until then nothing is loaded there.
    """
    lanes: Count | None = None
    """Answers at once, of each replica. None: as the memory of each allows."""
    cpus: Annotated[float, Field(ge=0)] = 1
    """Cores of a machine that a replica counts for. It may use more: see `threads`."""
    gpus: Annotated[float, Field(ge=0)] = 0
    scale_up_after: Seconds = 10
    """Seconds of more work than the replicas have lanes for, before there is another one."""
    scale_down_after: Seconds = 300
    """Seconds of less, before there is one less."""
    health_every: Seconds = 5
    """Between two looks at whether a replica lives."""
    grace: Seconds = 60
    """In which a replica that is to go may finish its answers."""

    backend: BackendName | None = None
    dialect: str | None = None
    context: Count | None = None
    threads: Count | None = None
    offline: bool | None = None

    servers: Count = 1
    """Replicas of the application that speaks HTTP."""
    host: str = "127.0.0.1"
    """The address that Ray listens on: where that is this machine alone, no key is needed."""
    api_key_file: Path | None = None
    """On the machines where the application runs. Without it the keys in LOCALAGENT_API_KEYS there."""
    needs_key: bool = False
    """Whether the application is not to start where it finds no key."""
    allow_hosts: tuple[str, ...] = ()
    """See `Access`, as for `origins`."""
    origins: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    page: bool = True
    share_prefixes: bool = False
    max_queue: Annotated[int, Field(ge=0)] = 64
    """For each of the `servers`, as is what `metrics` tells."""
    deadline: Seconds = 3600
    metrics: bool = False
    buffer_tool_calls: bool = True
    log_prompts: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        least, most = self.replicas
        if least > most:
            raise ValueError(f"replicas are {least} at least and {most} at most")
        for pattern, name in self.aliases:
            if name not in self.models:
                raise ValueError(f"alias {pattern}={name}: {name!r} is not among the models")
        return self

    @property
    def most_lanes(self) -> int:
        """Answers at once of one replica, at most."""
        return self.lanes or DEFAULT_LANES

    def told(self) -> dict[str, Any]:
        """As a file says it: what is not as usual."""
        return self.model_dump(mode="json", exclude_defaults=True)
