"""The entries of a session's file, one per line. They are frozen, and `kind` tells them apart.

An entry of another version whose id and parent can be read becomes an UnknownEntry: it adds nothing to the
conversation, but the entries after it can still be reached.
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

from localagent.messages import AnyMessage, explain, explained
from localagent.messages.values import Json, Text

VERSION = 1
SETTINGS = "settings"
"""The type of the custom messages that record how a session's model is set up, for the command line."""
OPENING = b'{"kind":"session"'
"""The first bytes of a session's file."""


class Header(BaseModel):
    """The first line of the file. Fields may be added without a new version."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Literal["session"] = "session"
    version: Json = VERSION
    id: Text
    created: AwareDatetime
    title: Text | None = None


class BaseEntry(BaseModel):
    """The fields that all entries share. `parent` is None for the first entry of a conversation."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: Text
    parent: Text | None
    timestamp: AwareDatetime


class MessageEntry(BaseEntry):
    """A message of any role, including a flush."""

    kind: Literal["message"] = "message"
    message: AnyMessage


class BranchSummaryEntry(BaseEntry):
    """The conversation went back to `parent`; `summary` describes the branch that ended in `branch`."""

    kind: Literal["branch_summary"] = "branch_summary"
    summary: Text
    branch: Text


class CompactionEntry(BaseEntry):
    """`summary` replaces the messages before the entry `first_kept`; None: all messages."""

    kind: Literal["compaction"] = "compaction"
    summary: Text
    first_kept: Text | None
    tokens_before: NonNegativeInt | None = None
    """Tokens of the context before the compaction."""


class UnknownEntry(BaseModel):
    """An entry of another version or with damaged content, kept unchanged."""

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


def dump_line(item: Header | Entry) -> bytes:
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
    with explained("entry", ValueError):
        entry = UnknownEntry.model_validate_json(data)
    return Damaged(entry, reason) if entry.kind in KINDS else entry
