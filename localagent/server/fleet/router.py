"""Tells Ray Serve which replica a request goes to. Runs wherever a handle is: in each ingress."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from time import monotonic

from ray.serve.request_router import MultiplexMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica

from localagent.server.fleet.affinity import Affinity

_TAKEN = 10.0
"""Seconds after which a request that no replica has taken is counted no more: it may have been given up."""
MARKS = "marks"
"""The argument of a request that tells the marks of its conversation."""


class PrefixRouter(MultiplexMixin, RequestRouter):
    """Chooses by the models that replicas have loaded, by what they have evaluated, and by their load."""

    def initialize_state(self, lanes: int = 1, **_: object) -> None:
        """Called by Ray with the arguments in the deployment's configuration. `lanes`: of a replica."""
        self._lanes = lanes
        self._affinity: Affinity[ReplicaID] = Affinity()
        self._random = Random()
        self._underway: dict[str, tuple[ReplicaID, float]] = {}
        """Where requests go that no replica has taken yet, and since when."""
        self._running: dict[str, ReplicaID] = {}
        """The requests of this process that replicas have taken and that have not ended."""
        self._ended_early: deque[str] = deque(maxlen=100)
        """Requests that ended while Ray had not told yet that they were taken: it tells both from threads."""

    async def choose_replicas(
        self, candidate_replicas: Sequence[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas by rank. Those of a rank are tried together, and the least busy one is taken."""
        if pending_request is None:
            return [list(candidate_replicas)]
        replicas = {replica.replica_id: replica for replica in candidate_replicas}
        # Who has the model, then who has room for it; each later round asks more of them, and waits longer.
        able = [each for each in self.apply_multiplex_routing(pending_request) if each in replicas]
        if able and min(map(self._load, able)) >= self._lanes:  # then it is worth loading once more
            able = [*replicas]
        marks = pending_request.kwargs.get(MARKS) or ()
        now = monotonic()
        self._underway = {name: (to, at) for name, (to, at) in self._underway.items() if now - at < _TAKEN}
        ranks = self._affinity.ranks(marks, able, self._load, self._lanes, self._random)
        if first := ranks[0]:
            # One alone: Ray would compare what it knows, which is nothing yet of requests that come together.
            ranks = [[min(first, key=self._load)], *ranks]
            self._underway[pending_request.metadata.internal_request_id] = ranks[0][0], now
        return [[replicas[each] for each in rank] for rank in ranks]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: object
    ) -> None:
        """The replica has taken the request."""
        request = pending_request.metadata.internal_request_id
        self._underway.pop(request, None)
        if request not in self._ended_early:
            self._running[request] = replica_id
        self._affinity.note(pending_request.kwargs.get(MARKS) or (), replica_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """The request has ended, or was not taken."""
        if self._running.pop(internal_request_id, None) is None:
            self._ended_early.append(internal_request_id)

    def _load(self, replica: ReplicaID) -> float:
        sent = sum(to == replica for to, _ in self._underway.values())
        # Ray forgets after ten seconds what a replica has told it, and answers may take minutes: what was
        # sent from here is counted here. What Ray knows has the requests of other processes, too.
        running = sum(at == replica for at in [*self._running.values()])
        return sent + max(running, self.replica_queue_len_cache.get(replica) or 0)
