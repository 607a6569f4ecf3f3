"""The messages that a model is sent, built from the entries on the path to the head.

Everything up to the last flush on the path is left out. Of the compactions after it only the last counts: its
summary replaces all messages before the first entry that it keeps, earlier summaries included, except system
messages, which stay in front. Branch summaries stay where they are. Unknown entries are left out, and so are
results whose calls are missing because of a damaged line or a flush.
"""

from __future__ import annotations

from collections.abc import Sequence

from localagent.errors import UsageError
from localagent.messages import (
    AssistantMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    FlushMessage,
    Message,
    SystemMessage,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from localagent.session.entries import (
    KINDS,
    BranchSummaryEntry,
    CompactionEntry,
    Entry,
    MessageEntry,
    UnknownEntry,
)


def build_context(path: Sequence[Entry]) -> list[tuple[Entry, Message]]:
    """The messages of a path, oldest first, as (entry, message)."""
    compaction, dropped, kept = _cut(path)
    if compaction is None:
        return kept
    summary = CompactionSummaryMessage(
        content=compaction.summary, id=compaction.id, timestamp=compaction.timestamp
    )
    systems = [(entry, message) for entry, message in dropped if isinstance(message, SystemMessage)]
    return [*systems, (compaction, summary), *kept]


def check_first_kept(path: Sequence[Entry], first_kept: str | None) -> None:
    """Raise UsageError if a compaction must not keep the entries from `first_kept` on."""
    _, _, inside = _cut(path)
    cut = len(inside)
    if first_kept is not None:
        cut = next((index for index, (entry, _) in enumerate(inside) if entry.id == first_kept), -1)
    if cut < 0:
        raise UsageError(
            f"cannot keep from {first_kept!r} on: it is not a message of the current context; "
            "choose one from the path, after the last flush and the last compaction's first kept entry"
        )
    messages = [message for _, message in inside]
    if _separates(messages[:cut], messages[cut:]):
        raise UsageError(
            f"cannot keep from {first_kept or 'here'} on: that would separate tool results from their calls; "
            "choose the message with the calls, or one after the answer to their results"
        )


_Spoken = list[tuple[Entry, Message]]


def _cut(path: Sequence[Entry]) -> tuple[CompactionEntry | None, _Spoken, _Spoken]:
    """The compaction that counts, the messages that it replaces, and those that are kept."""
    flush = max((index for index, entry in enumerate(path) if _is_flush(entry)), default=-1)
    # Otherwise calls may be missing before the path's first entry.
    whole = flush < 0 and not (path and path[0].parent is not None)
    path = path[flush + 1 :]
    compactions = [index for index, entry in enumerate(path) if isinstance(entry, CompactionEntry)]
    if not compactions:
        return None, [], _spoken(path, whole=whole)
    start = compactions[-1]
    compaction = path[start]
    assert isinstance(compaction, CompactionEntry)
    if compaction.first_kept is not None:
        # If the first kept entry cannot be read, every readable one comes after it, so all are kept.
        start = next((index for index, entry in enumerate(path) if entry.id == compaction.first_kept), 0)
    # Read as one: a result after `start` may have lost its call to a flush or a damaged line before it.
    dropped = _spoken(path[:start], whole=whole)
    return compaction, dropped, _spoken(path, whole=whole)[len(dropped) :]


def _is_flush(entry: Entry) -> bool:
    return isinstance(entry, MessageEntry) and isinstance(entry.message, FlushMessage)


def _spoken(entries: Sequence[Entry], *, whole: bool = True) -> _Spoken:
    """The messages of entries that have one, without results whose calls were lost.

    `whole`: nothing is missing before the first entry.
    """
    spoken: _Spoken = []
    answerable = whole
    for entry in entries:
        match entry:
            case MessageEntry():
                answerable = answerable or isinstance(entry.message, AssistantMessage)
                message = entry.message if answerable else without_results(entry.message)
                if message is not None:
                    spoken.append((entry, message))
            case BranchSummaryEntry():
                summary = BranchSummaryMessage(
                    content=entry.summary, branch=entry.branch, id=entry.id, timestamp=entry.timestamp
                )
                spoken.append((entry, summary))
            case UnknownEntry(kind=kind):
                answerable = answerable and kind not in KINDS  # a damaged entry may have held the calls
            case _:
                pass
    return spoken


def without_results(message: Message) -> Message | None:
    """The message without its tool results; None if nothing else is in it."""
    if not count_results(message):
        return message
    rest = tuple(part for part in message.content if not isinstance(part, ToolResultPart))
    return message.model_copy(update={"content": rest}) if rest and isinstance(message, UserMessage) else None


def _separates(dropped: Sequence[Message], kept: Sequence[Message]) -> bool:
    """Whether results, including ones still to come, would lose their calls."""
    for message in kept:
        if isinstance(message, AssistantMessage):
            return False  # from here on, results belong to calls that are kept
        if count_results(message):
            return True
    answered = 0
    for message in reversed(dropped):
        if isinstance(message, AssistantMessage):
            return answered < len(message.tool_calls)
        answered += count_results(message)
    return False


def count_results(message: Message) -> int:
    """The number of tool results in a message."""
    if not isinstance(message, ToolMessage | UserMessage):
        return 0
    return sum(isinstance(part, ToolResultPart) for part in message.content)
