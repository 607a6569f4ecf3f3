"""Conversations as people read them: plain text, Markdown, and the tree of a session.

The text is not yet safe for a terminal: print it through `terminal`. Only the bytes of media are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from localagent.messages import (
    AssistantMessage,
    AudioPart,
    BranchSummaryMessage,
    CustomMessage,
    FlushMessage,
    ImagePart,
    MalformedToolCallPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from localagent.session import BranchSummaryEntry, CompactionEntry, Entry, MessageEntry, Session
from localagent.session.entries import SETTINGS
from localagent.wording import one_line

Manner = Literal["heading", "text", "reasoning", "call", "result", "problem", "note"]
OUTLINE = 100
"""Characters of an entry's text to show in the tree."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a message's text, and its kind."""

    manner: Manner
    text: str


@dataclass(frozen=True, slots=True)
class Told:
    """One message or entry in words."""

    heading: str
    passages: tuple[Passage, ...]


def without_settings(messages: Iterable[Message]) -> Iterator[Message]:
    """The messages that are part of what was said: a chat also records its settings among them."""
    for message in messages:
        if not (isinstance(message, CustomMessage) and message.custom_type == SETTINGS):
            yield message


def tell_entry(entry: Entry) -> Told:
    """An entry of a session, markers included."""
    match entry:
        case MessageEntry(message=message):
            return tell(message)
        case BranchSummaryEntry():
            return Told(f"branch summary (of {entry.branch})", (Passage("text", entry.summary),))
        case CompactionEntry(first_kept=kept):
            kept_from = f"what came before {kept}" if kept else "all of the above"
            return Told(f"compaction summary (for {kept_from})", (Passage("text", entry.summary),))
        case _:
            return Told("unreadable", (Passage("note", f"an entry of unknown kind {entry.kind!r}"),))


def tell(message: Message) -> Told:
    """A message."""
    heading, more = message.role.replace("_", " "), []
    match message:
        case AssistantMessage(model=str(model)):
            heading += f" ({model})"
        case CustomMessage():
            heading += f" ({message.custom_type})"
            more.append(Passage("note", json.dumps(message.payload, ensure_ascii=False)))
        case BranchSummaryMessage(branch=str(branch)):
            heading += f" (of {branch})"
        case FlushMessage():
            more.append(Passage("note", "what is above is no longer sent"))
        case _:
            pass
    if isinstance(message, AssistantMessage):
        if message.stop_reason in ("length", "cancelled", "content_filter"):
            more.append(Passage("note", f"(ended by {message.stop_reason.replace('_', ' ')})"))
        if message.stop_reason == "error" or message.error:
            more.append(Passage("problem", f"failed: {message.error or 'for no known reason'}"))
    return Told(heading, (*map(_tell_part, message.content), *more))


def _tell_part(part: Any) -> Passage:
    match part:
        case TextPart():
            return Passage("text", part.text)
        case ReasoningPart():
            hidden = "(reasoning that only the provider can read)"
            return Passage("reasoning", part.text or hidden)
        case ImagePart() | AudioPart():
            return Passage("note", f"[{_tell_media(part)}]")
        case ToolCallPart():
            return Passage("call", f"call {part.name}({part.described_arguments})")
        case MalformedToolCallPart():
            return Passage("problem", f"malformed call ({part.reason}): {part.raw}")
        case ToolResultPart():
            content = part.content
            text = content if isinstance(content, str) else " ".join(_tell_part(one).text for one in content)
            name = f" of {part.name}" if part.name else ""
            return Passage(
                "problem" if part.is_error else "result",
                f"{'error' * part.is_error or 'result'}{name}: {text}",
            )
        case _:
            return Passage("note", f"[a part of kind {part.kind!r}]")


def _tell_media(part: ImagePart | AudioPart) -> str:
    kind = f"{part.kind}{f' {part.media_type}' if part.media_type else ''}"
    if part.data is not None:
        return f"{kind}, {len(part.data):,} bytes"
    return f"{kind} {part.url or part.file_id}"


def in_words(passage: Passage) -> str:
    """The passage as plain text, where neither colour nor layout shows its kind."""
    return f"reasoning: {passage.text}" if passage.manner == "reasoning" else passage.text


def as_text(told: Iterable[Told], paint: Callable[[Passage], str] = in_words) -> str:
    """Headings with the text indented below them, so that no text can pass for a heading.

    `paint` gets the headings too, since they contain names from outside.
    """
    blocks = []
    for each in told:
        body = "\n".join(paint(passage) for passage in _merged(each.passages) if passage.text)
        heading = paint(Passage("heading", f"{one_line(each.heading)}:"))
        blocks.append("\n".join([heading, *(f"  {line}".rstrip() for line in body.split("\n"))]))
    return "\n\n".join(blocks) + "\n" if blocks else ""


def as_markdown(told: Iterable[Told]) -> str:
    """A heading per message; reasoning as a quotation, calls and results as code."""
    blocks = []
    for each in told:
        blocks.append(f"## {one_line(each.heading)}")
        for passage in _merged(each.passages):
            if not passage.text:
                continue
            match passage.manner:
                case "text":
                    blocks.append(passage.text)
                case "reasoning":
                    blocks.append("\n".join(f"> {line}".rstrip() for line in passage.text.split("\n")))
                case "note":
                    blocks.append(f"*{passage.text}*")
                case _:
                    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", passage.text)), default=0))
                    blocks.append(f"{fence}\n{passage.text}\n{fence}")
    return "\n\n".join(blocks) + "\n" if blocks else ""


def _merged(passages: Iterable[Passage]) -> Iterator[Passage]:
    """Neighbouring parts of text, joined into one."""
    held: Passage | None = None
    for passage in passages:
        if held is not None and held.manner == passage.manner == "text":
            held = Passage("text", held.text + passage.text)
            continue
        if held is not None:
            yield held
        held = passage
    if held is not None:
        yield held


def draw_tree(session: Session) -> Iterator[str]:
    """All branches, a line per entry: an only child stands below its parent, branches are indented."""
    waiting = [(entry, "", "") for entry in reversed(session.children(None))]
    while waiting:
        entry, lead, below = waiting.pop()
        told = tell_entry(entry)
        said = one_line(" ".join(passage.text for passage in told.passages))
        line = one_line(f"{one_line(told.heading)}: {said}", OUTLINE)
        mark = "*" if entry.id == session.head else " "
        yield f"{mark} {lead}{entry.id} {line}"
        children = session.children(entry.id)
        if len(children) == 1:
            waiting.append((children[0], below, below))
            continue
        for child in reversed(children):
            last = child is children[-1]
            waiting.append((child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  ")))
