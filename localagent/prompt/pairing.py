"""Which result answers which call.

Models repeat ids: some write `call_0` for every call of every turn. So position comes first, wherever the id
does not say otherwise, and the id settles the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from localagent.errors import UnpairedResult
from localagent.messages import (
    AssistantMessage,
    FlushMessage,
    MalformedToolCallPart,
    Message,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)

Asked = ToolCallPart | MalformedToolCallPart


def pair(asked: Sequence[Asked], results: Sequence[ToolResultPart]) -> list[ToolResultPart | None]:
    """For every call of one turn its result, or None.

    Results in the order of the calls are taken in that order, some missing or not; an id or a name that is
    given must fit. In any other order, what says most about its call goes first. An empty id fits the calls
    without one; where all calls have one, it fits any, and a malformed call only when there are more results
    than calls. Raises UnpairedResult for a result that fits no call: a result must not reach a call that it
    does not answer.
    """
    calls = [at for at, part in enumerate(asked) if isinstance(part, ToolCallPart)]
    by_id = all(result.call_id for result in results)
    places = list(range(len(asked))) if by_id or len(results) > len(calls) else calls
    slots: list[ToolResultPart | None] = [None] * len(asked)
    named = all(asked[at].id for at in calls)

    def fits(part: Asked, result: ToolResultPart) -> bool:
        return result.call_id == part.id or (named and not result.call_id)

    found = _in_order(asked, places, results, fits)
    if found is not None:
        for at, result in zip(found, results, strict=True):
            slots[at] = result
        return slots
    for result in sorted(results, key=lambda result: (not result.call_id, not result.name)):
        free = [at for at in (range(len(asked)) if result.call_id else places) if slots[at] is None]
        fitting = [at for at in free if fits(asked[at], result)]
        slots[_choose(asked, fitting, result)] = result
    return slots


def unanswered(messages: Sequence[Message]) -> list[ToolCallPart]:
    """The calls of the last assistant turn that have no result yet.

    Raises UnpairedResult.
    """
    results: list[ToolResultPart] = []
    for message in reversed(messages):
        if isinstance(message, FlushMessage):
            return []
        if isinstance(message, AssistantMessage):
            asked = [part for part in message.content if isinstance(part, Asked)]
            pairs = zip(asked, pair(asked, results), strict=True)
            return [part for part, result in pairs if result is None and isinstance(part, ToolCallPart)]
        if has_results(message):
            results[:0] = [part for part in message.content if isinstance(part, ToolResultPart)]
    return []


def has_results(message: Message) -> bool:
    """Whether a message answers calls."""
    carries = isinstance(message, ToolMessage | UserMessage)
    return carries and any(isinstance(part, ToolResultPart) for part in message.content)


def _in_order(
    asked: Sequence[Asked],
    places: Sequence[int],
    results: Sequence[ToolResultPart],
    fits: Callable[[Asked, ToolResultPart], bool],
) -> list[int] | None:
    """The calls that the results answer if they come in the order of the calls, or None."""
    found: list[int] = []
    rest = iter(places)
    for result in results:
        at = next((at for at in rest if fits(asked[at], result) and _same_tool(asked[at], result)), None)
        if at is None:
            return None
        found.append(at)
    return found


def _choose(asked: Sequence[Asked], fitting: Sequence[int], result: ToolResultPart) -> int:
    """The first of the fitting calls of the same tool. An id that only one call has outweighs the name."""
    for at in fitting:
        if _same_tool(asked[at], result):
            return at
    alike = sum(part.id == result.call_id for part in asked)
    if result.call_id and fitting and alike == 1:
        return fitting[0]
    raise UnpairedResult(describe_unpaired(result))


def _same_tool(part: Asked, result: ToolResultPart) -> bool:
    """Whether the names agree, as far as both have one."""
    return not (part.name and result.name) or part.name == result.name


def describe_unpaired(result: ToolResultPart) -> str:
    """The complaint about a result without a call."""
    name = f" of {result.name!r:.60}" if result.name else ""
    return f"the tool result{name} with call id {result.call_id!r:.60} answers no call of the turn before it"


@dataclass(slots=True)
class AnsweredCalls:
    """The calls of one assistant turn, and what came back so far."""

    at: int
    gap: int
    """Where in the request the results go; the place after it is for what a user message tells."""
    asked: list[Asked]
    sent: list[Asked]
    """The same with the ids that go out."""
    results: list[tuple[int, ToolResultPart]] = field(default_factory=list)
    rescued: bool = False

    def paired(self) -> Iterator[tuple[Asked, Asked, tuple[int, ToolResultPart | None]]]:
        """Every call as it is and as it goes out, with its result and the message that held it."""
        try:
            slots = pair(self.asked, [result for _, result in self.results])
        except UnpairedResult as error:
            raise UnpairedResult(f"message {self.results[-1][0]}: {error}") from None
        homes = {id(result): at for at, result in self.results}
        for part, sent, slot in zip(self.asked, self.sent, slots, strict=True):
            yield part, sent, (homes.get(id(slot), self.at), slot)
