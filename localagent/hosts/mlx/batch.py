"""A step of several lanes: one forward pass and one wait for those that are joined in a batch.

The rows of a batch are as long as the longest one. Where they would take more memory than all lanes may, the
longest lanes draw alone, beside the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localagent.errors import EngineFailed
from localagent.hosts.mlx.lanes import Context, MlxLane, Rows, failed
from localagent.hosts.mlx.sampling import Sampler, draw, join, redraw

_NO_NUMBERS = "MLX computed no logits that are numbers: are the weights damaged?"


def advance(context: Context, lanes: Sequence[MlxLane]) -> list[int | EngineFailed]:
    """A token for each lane, as `Engine.advance` has it: in one computation for all that fit into a batch."""
    alone, together = _divide(context, lanes)
    if not alone:
        return _advance(context, lanes)
    drawn = {lane: _alone(context, lane) for lane in alone}
    try:
        drawn |= zip(together, _advance(context, together), strict=True)
    except EngineFailed as error:
        drawn |= dict.fromkeys(together, error)
    return [drawn[lane] for lane in lanes]


def _divide(context: Context, lanes: Sequence[MlxLane]) -> tuple[Sequence[MlxLane], Sequence[MlxLane]]:
    """The lanes that draw alone, the longest ones and as few as possible, and those that are joined."""
    longest = sorted(lanes, key=lambda lane: len(lane.ids), reverse=True)
    room = context.capacity
    for number, lane in enumerate(longest):
        # A row is as long as the longest one. The last lane needs no padding, so it fits: it was admitted.
        if len(lane.ids) * (len(longest) - number) <= room or number == len(longest) - 1:
            return longest[:number], longest[number:]
        room -= len(lane.ids)
    return (), lanes


def _advance(context: Context, lanes: Sequence[MlxLane]) -> list[int | EngineFailed]:
    """The same for lanes that can be joined."""
    try:
        with context.lib.mx.stream(context.lib.generation_stream):
            return _step(context, lanes)
    except Exception as error:
        for lane in lanes:
            lane.clear()
        raise failed(error) from error


def _step(context: Context, lanes: Sequence[MlxLane]) -> list[int | EngineFailed]:
    """Hand out a token for each lane, with one forward pass for all of them queued before.

    If MLX cannot even queue the pass of a batch, every lane is tried alone. If it fails while computing, all
    are lost: to keep what the caches held before would mean to copy them in every step.
    """
    lib = context.lib
    rows = _gather(context, lanes)
    now = rows.drawn
    assert now is not None
    if any(lane.mask is not None for lane in lanes):
        now = rows.drawn = redraw(lib, now, [_bounded(lane) for lane in lanes if lane.mask is not None])
    noted = context.caches.note(rows.caches) if rows.joined else None
    try:
        logits = context.forward(now.tokens[:, None], rows.caches)
    except Exception:
        if noted is None:
            raise
        context.caches.undo(rows.caches, noted)
        return [_alone(context, lane) for lane in lanes]
    del noted  # else the caches could not be written in place
    samplers = [lane.sampler for lane in rows.lanes if lane is not None and lane.sampler is not None]
    ahead = rows.drawn = draw(lib, samplers, logits)
    lib.mx.async_eval(ahead.tokens, ahead.finite)
    tokens, finite = now.tokens.tolist(), now.finite.tolist()  # the wait
    context.stepped()
    results: list[int | EngineFailed] = []
    for lane in lanes:
        row = rows.lanes.index(lane)
        if finite[row]:
            lane.source = now.logits, row
            lane.ids.append(tokens[row])
            results.append(tokens[row])
        else:
            results.append(EngineFailed(_NO_NUMBERS))
    return results


def _bounded(lane: MlxLane) -> tuple[int, Sampler, Any, int | None]:
    """A lane's row, sampler, mask, which is used up by that, and what comes in place of what it bars."""
    assert lane.sampler is not None
    mask, lane.mask = lane.mask, None
    return lane.rows.lanes.index(lane), lane.sampler, mask, lane.otherwise


def _alone(context: Context, lane: MlxLane) -> int | EngineFailed:
    try:
        [token] = _advance(context, [lane])
    except EngineFailed as error:
        return error
    return token


def _gather(context: Context, lanes: Sequence[MlxLane]) -> Rows:
    """The rows of exactly these lanes, in any order."""
    rows = lanes[0].rows
    if len(rows.lanes) == len(lanes) and all(lane.rows is rows for lane in lanes):
        return rows
    if len(lanes) == 1:
        lanes[0].leave()
        return lanes[0].rows
    # The largest batch stays, the others join it.
    rows = max((lane.rows for lane in lanes), key=lambda rows: len(rows.lanes) if rows.joined else 0)
    if not rows.joined:
        rows = Rows([], [], joined=True)
    for lane in rows.lanes:
        if lane is not None and lane not in lanes:
            lane.leave()
    kept = [row for row, lane in enumerate(rows.lanes) if lane is not None]
    joining = [lane for lane in lanes if lane.rows is not rows]
    caches = [lane.leave() for lane in joining]
    drawn = [lane.rows.drawn for lane in joining if lane.rows.drawn is not None]
    if kept:
        if len(kept) < len(rows.lanes):
            context.caches.filter(rows.caches, kept)
        if joining:
            context.caches.extend(rows.caches, caches)
        assert rows.drawn is not None
        drawn.insert(0, rows.drawn.select(context.lib.mx.array(kept)))
    else:
        rows.caches = context.caches.merge(caches)
    rows.drawn = join(context.lib, drawn)
    rows.lanes = [*(rows.lanes[row] for row in kept), *joining]
    for lane in joining:
        lane.rows = rows
    return rows
