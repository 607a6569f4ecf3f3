"""Prompts for lanes, and what is drawn after them."""

from __future__ import annotations

import itertools

from localagent.errors import EngineFailed
from localagent.hosts.mlx.batch import advance
from localagent.hosts.sampling import Sampling

GREEDY = Sampling()
PROMPT = [1, *range(20, 60)]
CUTS = (7, 8, 15, 30)
"""Where the prompt is cut in chunks; the sliding windows of 12 tokens are full from the third on."""


def never() -> bool:
    return False


def prefill(lane, ids, cuts=CUTS):
    """Evaluate `ids` in chunks; returns a checkpoint for every cut."""
    checkpoints = {0: lane.checkpoint()} if not lane.ids else {}
    for begin, end in itertools.pairwise(
        [len(lane.ids), *(cut for cut in cuts if len(lane.ids) < cut <= len(ids))]
    ):
        assert lane.evaluate(ids[begin:end], never)
        checkpoints[end] = lane.checkpoint()
    return checkpoints


def step(*lanes):
    """A token for each, all together. Raises EngineFailed."""
    found = advance(lanes[0]._context, lanes)
    for token in found:
        if isinstance(token, EngineFailed):
            raise token
    return found


def draws(lane, ids, sampling=GREEDY):
    """The tokens that the lane draws alone after `ids`."""
    lane.evaluate(ids, never)
    lane.begin(sampling, lane.ids)
    try:
        while True:
            yield step(lane)[0]
    finally:
        lane.end()


def follow(lane, ids, count=12, sampling=GREEDY):
    """The tokens drawn after `ids`, and the exact log-probabilities that they were drawn from."""
    drawing = draws(lane, ids, sampling)
    found = [(token, lane.logprobs().tobytes()) for token in itertools.islice(drawing, count)]
    drawing.close()
    return found


def cold(lane, ids, tail, cuts=CUTS):
    lane.clear()
    prefill(lane, ids, cuts)
    return follow(lane, tail)
