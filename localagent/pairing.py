"""Which result answers which call.

Models repeat ids: some write `call_0` for every call of every turn. So position comes first, wherever the id
does not say otherwise, and the id settles the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from localagent.errors import UnpairedResult
from localagent.messages import MalformedToolCallPart, ToolCallPart, ToolResultPart

Asked = ToolCallPart | MalformedToolCallPart


def pair(asked: Sequence[Asked], results: Sequence[ToolResultPart]) -> list[ToolResultPart | None]:
    """For every call of one turn its result, or None. `results` may come in any order.

    A result with an empty id answers by position alone: among the calls, or among calls and malformed calls
    when there are more results than calls. Raises UnpairedResult for a result that is left over.
    """
    calls = [at for at, part in enumerate(asked) if isinstance(part, ToolCallPart)]
    places = calls if len(results) <= len(calls) else range(len(asked))
    slots: list[ToolResultPart | None] = [None] * len(asked)
    named: list[ToolResultPart] = []
    nameless: list[tuple[int, ToolResultPart]] = []
    for position, result in enumerate(results):
        at = places[position] if position < len(places) else -1
        if at >= 0 and asked[at].id == result.call_id and _same_tool(asked[at], result):
            slots[at] = result
        elif result.call_id:
            named.append(result)
        else:
            nameless.append((at, result))
    for result in named:
        slots[_free_slot(asked, slots, result)] = result
    for at, result in nameless:
        free = at >= 0 and slots[at] is None
        slots[at if free else _free_slot(asked, slots, result)] = result
    return slots


def _free_slot(asked: Sequence[Asked], slots: Sequence[ToolResultPart | None], result: ToolResultPart) -> int:
    """The first unanswered call with the result's id, rather one of the result's tool."""
    fitting = [
        at
        for at, part in enumerate(asked)
        if slots[at] is None and (not result.call_id or result.call_id == part.id)
    ]
    if not fitting:
        raise UnpairedResult(describe_unpaired(result))
    return next((at for at in fitting if _same_tool(asked[at], result)), fitting[0])


def _same_tool(part: Asked, result: ToolResultPart) -> bool:
    """Unless both have names, and they differ."""
    return not (part.name and result.name) or part.name == result.name


def describe_unpaired(result: ToolResultPart) -> str:
    """What to say of a result without a call."""
    name = f" of {result.name!r}" if result.name else ""
    return f"the tool result{name} with call id {result.call_id!r} answers no call of the turn before it"


@dataclass(slots=True)
class Batch:
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
