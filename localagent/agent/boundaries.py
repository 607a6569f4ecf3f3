"""Where a conversation may be cut in two: what is summarised, and what stays as it was said. Pure.

A cut never separates calls from their results, nor a rescue from the output it corrects. It lies after the
earlier summary, which must be part of the new one, and never after a request that nobody has begun to answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise

from localagent.messages import (
    AssistantMessage,
    CompactionSummaryMessage,
    CustomMessage,
    FlushMessage,
    Message,
    RescueMessage,
    SystemMessage,
    UserMessage,
)
from localagent.session.context import count_results

# Neither is part of what is said: instructions stand outside of it, and no model is told a custom message.
_TELLS_NOTHING = (SystemMessage, CustomMessage)


def beginning(messages: Sequence[Message]) -> int:
    """Where the part that a model is told begins: after the last flush."""
    return 1 + max((at for at, m in enumerate(messages) if isinstance(m, FlushMessage)), default=-1)


def blocks(messages: Sequence[Message]) -> list[Sequence[Message]]:
    """The messages in blocks that must stay whole: one message, or calls with all that answers them."""
    return [messages[start:end] for start, end in pairwise([*_starts(messages), len(messages)])]


def places(messages: Sequence[Message]) -> list[int]:
    """All places for a cut, from first to last: a cut at `place` keeps `messages[place:]`.

    The last may be the end, where nothing is kept. Before each there is something to summarise.
    """
    summaries = (at for at, m in enumerate(messages) if isinstance(m, CompactionSummaryMessage))
    untold = max(beginning(messages), 1 + max(summaries, default=-1))
    while untold < len(messages) and isinstance(messages[untold], _TELLS_NOTHING):
        untold += 1
    asked = last_request(messages)
    turns = [at for at, message in enumerate(messages) if isinstance(message, AssistantMessage)]
    begun = next((at for at in turns if asked is not None and at > asked), len(messages))
    last = turns[-1] if turns and _is_open(messages[turns[-1] :]) else len(messages)
    return [
        place
        for place in [*_starts(messages), len(messages)]
        if untold < place <= last and (asked is None or place <= asked or place > begun)
    ]


def choose(
    found: Sequence[int], messages: Sequence[Message], size: Callable[[int], int], wanted: int, most: int
) -> int:
    """The best of the places that were found.

    `size` counts the tokens of a request after a cut at a place. As much is kept as fits `wanted`. More is
    kept where `most` allows it: the last request with all that came of it, or else the newest block. Where
    neither fits, as little is kept as possible.
    """
    end, asked = len(messages), last_request(messages)
    number = bisect_left(found, True, key=lambda place: size(place) <= wanted)
    within = found[number] if number < len(found) else end
    if within < end and (asked is None or within <= asked):
        return within
    before = [place for place in found if asked is not None and place <= asked]
    if before and size(before[-1]) <= most:
        return before[-1]
    if within < end:
        return within
    newest = [place for place in found if place < end]
    if newest and size(newest[-1]) <= most:
        return newest[-1]
    return found[-1]


def last_request(messages: Sequence[Message]) -> int | None:
    """Where the user's last request stands; None if it stands before the last summary or flush."""
    for at in reversed(range(beginning(messages), len(messages))):
        if isinstance(messages[at], CompactionSummaryMessage):
            return None
        if isinstance(messages[at], UserMessage) and count_results(messages[at]) < len(messages[at].content):
            return at
    return None


def begins_turn(messages: Sequence[Message], place: int) -> bool:
    """Whether a cut here parts no request from its answer, unless it is the last request."""
    asked = last_request(messages)
    within = asked is not None and place > asked
    return within or place == len(messages) or isinstance(messages[place], UserMessage)


def is_answered(messages: Sequence[Message]) -> bool:
    """Whether nothing is left to do: the last message is a whole answer of the model, without calls."""
    told = [m for m in messages[beginning(messages) :] if not isinstance(m, _TELLS_NOTHING)]
    last = told[-1] if told else None
    return (
        isinstance(last, AssistantMessage)
        and bool(last.text.strip())
        and last.stop_reason not in ("cancelled", "error")
        and not last.tool_calls
        and not any(part.lost_call for part in last.malformed_tool_calls)
    )


def is_empty(messages: Sequence[Message]) -> bool:
    """Whether a model would be told nothing but instructions."""
    return all(isinstance(m, _TELLS_NOTHING) for m in messages[beginning(messages) :])


def _starts(messages: Sequence[Message]) -> list[int]:
    """Where each block begins."""
    starts: list[int] = []
    exchange: int | None = None
    for at, message in enumerate(messages):
        if exchange is not None and (count_results(message) or isinstance(message, RescueMessage)):
            del starts[exchange:]  # all between the calls and this belongs to one block
            continue
        starts.append(at)
        if isinstance(message, AssistantMessage):
            exchange = len(starts)
    return starts


def _is_open(turn: Sequence[Message]) -> bool:
    """Whether calls of the first message have no result yet."""
    first = turn[0]
    return isinstance(first, AssistantMessage) and sum(map(count_results, turn)) < len(first.tool_calls)
