"""Which replica a conversation goes to: the one that has evaluated the longest beginning of it.

Reading a long prompt again costs more than waiting for a moment, but not more than any wait. So a replica is
preferred for what it knows only while it has not too much more to do than others. Nothing here knows of Ray:
`benchmarks/fleet.py` asks the same code where a thousand replicas are simulated.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import Any, Generic, TypeVar

from localagent.messages import Message, UserMessage

R = TypeVar("R", bound=Hashable)

MOST_MARKS = 1_000_000
"""Conversations that are remembered: some 200 MB."""
LONGEST = 200
"""Marks of one request, the last ones: more turns than that do not come between two requests."""


def marks_of(told: Mapping[str, Any], messages: Sequence[Message]) -> list[str]:
    """A hash of each beginning of the conversation, the shortest first.

    `told`: what a prompt depends on beside the messages, such as the tools. Beginnings without any word of a
    user are left out: all conversations with one assistant share them, and would all go to one replica.
    """
    digest = blake2b(json.dumps(told, sort_keys=True, default=repr).encode(), digest_size=12)
    found: list[str] = []
    for message in messages:
        # Ids and times differ from one request to the next, and are not in the prompt.
        digest.update(
            message.model_dump_json(exclude={"id", "timestamp"}).encode("utf-8", "backslashreplace")
        )
        if found or isinstance(message, UserMessage):
            found.append(digest.hexdigest())
    return found[-LONGEST:]


class Affinity(Generic[R]):
    """Remembers which replica has evaluated what."""

    def __init__(self, most: int = MOST_MARKS) -> None:
        """`most`: conversations that are remembered; those that were seen least recently are forgotten."""
        self._most = most
        self._seen: OrderedDict[str, R] = OrderedDict()

    def note(self, marks: Sequence[str], replica: R) -> None:
        """The replica is evaluating the conversation with these marks.

        Its beginnings have been noted, when they were whole conversations. Where another replica has
        evaluated the same, the last one is remembered, since it keeps it for longest.
        """
        if marks:
            self._seen[marks[-1]] = replica
            self._seen.move_to_end(marks[-1])
            if len(self._seen) > self._most:
                self._seen.popitem(last=False)

    def known(self, marks: Sequence[str]) -> Iterator[R]:
        """The replicas that have evaluated a beginning of it, those with the longest one first."""
        told: set[R] = set()
        for mark in reversed(marks):
            replica = self._seen.get(mark)
            if replica is not None and replica not in told:
                told.add(replica)
                yield replica

    def ranks(
        self,
        marks: Sequence[str],
        replicas: Sequence[R],
        load: Callable[[R], float],
        slack: float,
        random: Random,
    ) -> list[list[R]]:
        """The replicas to be tried, at most three, by rank. Of one rank the least busy one is meant.

        `load`: the requests that a replica has. `slack`: as many more than another a replica may have and
        still be preferred for what it knows. Else it is the less busy one of two that are drawn: nearly as
        good as the least busy of all, without asking all.
        """
        drawn = random.sample(replicas, min(2, len(replicas)))
        least = min(map(load, drawn), default=0.0)
        alive = set(replicas)
        for replica in self.known(marks):
            if replica in alive and load(replica) <= least + slack:
                return [[replica], [each for each in drawn if each != replica]]
        return [drawn]
