"""Entries: what a session's file holds, one on each line. Frozen, told apart by `kind`.

An entry that this version does not understand, but whose id and parent can be read, is an UnknownEntry: it
says nothing, and the entries after it can still be reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    NonNegativeInt,
    TypeAdapter,
    ValidationError,
)

from localagent.messages import AnyMessage, explain
from localagent.messages.values import Json, Text

VERSION = 1
OPENING = b'{"kind":"session"'
"""How the file of a session begins."""


class Header(BaseModel):
    """The first line of the file. Its fields may grow in number within a version."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Literal["session"] = "session"
    version: Json = VERSION
    id: Text
    created: AwareDatetime
    title: Text | None = None


class BaseEntry(BaseModel):
    """What all entries have in common. `parent` is None for the first of a conversation."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: Text
    parent: Text | None
    timestamp: AwareDatetime


class MessageEntry(BaseEntry):
    """A message of any role; a flush is one too."""

    kind: Literal["message"] = "message"
    message: AnyMessage


class BranchSummaryEntry(BaseEntry):
    """The conversation went back to `parent`; `summary` tells of the branch that ended in `branch`."""

    kind: Literal["branch_summary"] = "branch_summary"
    summary: Text
    branch: Text


class CompactionEntry(BaseEntry):
    """`summary` stands for what came before the entry `first_kept`; None: for everything."""

    kind: Literal["compaction"] = "compaction"
    summary: Text
    first_kept: Text | None
    tokens_before: NonNegativeInt | None = None
    """How long the context was, in tokens."""


class UnknownEntry(BaseModel):
    """An entry of another version, or one whose content is damaged, as it was found."""

    model_config = ConfigDict(frozen=True, extra="allow")

    id: Text
    parent: Text | None
    kind: Text
    __pydantic_extra__: dict[str, JsonValue]


KnownEntry = MessageEntry | BranchSummaryEntry | CompactionEntry
Entry = KnownEntry | UnknownEntry
KINDS = frozenset({"message", "branch_summary", "compaction"})
_LINE: TypeAdapter[Header | KnownEntry] = TypeAdapter(
    Annotated[Header | KnownEntry, Field(discriminator="kind")]
)


@dataclass(frozen=True, slots=True)
class Damaged:
    """An entry of a known kind whose content could not be read."""

    entry: UnknownEntry
    reason: str


def dump_line(item: Header | KnownEntry) -> bytes:
    """A line without its end."""
    return item.model_dump_json().encode()


def load_line(data: bytes) -> Header | Entry | Damaged:
    """The inverse of `dump_line`. Raises ValueError with a reason in one line."""
    try:
        return _LINE.validate_json(data)
    except ValidationError as error:
        reason = explain(error, "entry")
    if data.startswith(OPENING):
        raise ValueError(reason)
    try:
        entry = UnknownEntry.model_validate_json(data)
    except ValidationError as error:
        raise ValueError(explain(error, "entry")) from None
    return Damaged(entry, reason) if entry.kind in KINDS else entry
