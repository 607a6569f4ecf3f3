"""One request in the scheduler: a generation, its reader's channel, and its lane once it has begun."""

from __future__ import annotations

from localagent.hosts.bounds import Bounds
from localagent.hosts.channel import Channel
from localagent.hosts.engine import Lane
from localagent.hosts.generation import GenerationState
from localagent.hosts.lookup import PromptLookup
from localagent.hosts.prefix.cache import Seat
from localagent.hosts.prefix.saved import Loading
from localagent.hosts.protocol import CancelFlag, Constraint


class Job:
    """The scheduler moves it from the queue to those that are read, and from there to those that run."""

    __slots__ = (
        "_cancel",
        "bounds",
        "channel",
        "error",
        "generation",
        "loading",
        "lookup",
        "need",
        "place",
        "scope",
        "seat",
    )

    def __init__(
        self,
        generation: GenerationState,
        channel: Channel,
        cancel: CancelFlag | None = None,
        constraint: Constraint | None = None,
        scope: str = "",
    ) -> None:
        """`cancel`: another way than the channel to end it early. `scope`: see `prefix.cache`."""
        sampling = generation.sampling
        scored = sampling.logprobs is not None
        self.scope = scope
        self.generation = generation
        self.channel = channel
        self.bounds = Bounds(constraint, scored) if constraint is not None else None
        self.seat: Seat | None = None
        self.error: Exception | None = None
        """What asking for a cancel raised."""
        self.loading: Loading | None = None
        """What is on disk of its prompt."""
        self.need = len(generation.ids) + generation.most - 1
        """The most tokens that its lane may have to hold."""
        # Log-probabilities are those of a call for one token. And a batch may change the last bits of logits,
        # which a random draw may show: a seed is to be repeatable.
        self.lookup = None if scored or sampling.temperature else PromptLookup(generation.ids)
        self.place = 0
        """Its place in the queue, as its reader was last told; 0 when it does not wait."""
        self._cancel = cancel

    @property
    def lane(self) -> Lane:
        """Where it is computed, from when it has begun to when it ends."""
        assert self.seat is not None
        return self.seat.lane

    @property
    def cancelled(self) -> bool:
        """Whether the reader wants no more. A flag that fails ends the generation with its error."""
        try:
            return self.channel.cancelled or (self._cancel is not None and self._cancel.is_set())
        except Exception as error:
            self.error = error
            return True

    @property
    def flagged(self) -> bool:
        """Whether it may be cancelled without anybody waking the owner thread."""
        return self._cancel is not None
