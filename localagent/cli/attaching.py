"""Files that go with a prompt: `@path` in a chat's message, `-f FILE` of `run` and `chat`.

A text file is written below the prompt with its name; an image goes along if the model sees images. Anything
else is refused, for a model cannot read it. The user is told how many tokens each file takes before it is
sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localagent.chat_model import UNKNOWN_CONTEXT, ChatModel
from localagent.errors import UsageError
from localagent.messages import ImagePart, TextPart, UserMessage
from localagent.messages.media import sniff
from localagent.wording import quoted, size_text

LIMIT = 64 << 20
"""Bytes of one file, far more than any context window holds."""
FILES = "files"
"""The key in a message's payload: the names of the files in its later parts, so that /edit keeps them."""

# Only at the start of a word: an address such as ann@example.org names no file.
_MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
_CLOSING = ".,;:!?)]}'\""
_FENCE = re.compile(r"^\s*(`{3,})", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that was read, as a part of a message."""

    name: str
    part: TextPart | ImagePart


def read_files(paths: Iterable[Path | str]) -> list[Attachment]:
    """The files. Raises UsageError for one that is neither text nor an image."""
    return [_read(str(path)) for path in paths]


def mentioned(text: str) -> tuple[list[str], list[str]]:
    """The files that `@path` names in a message, and what looks like such a name but is no file."""
    files: list[str] = []
    others: list[str] = []
    for found in _MENTION.finditer(text):
        name = found[1] or found[2]
        # "see @notes.txt." means notes.txt, unless there is a file whose name ends so
        name = name if found[1] or _exists(name) else name.rstrip(_CLOSING)
        if _exists(name):
            files.append(name)
        elif found[1] or "/" in name or "." in name:
            others.append(name)
    return list(dict.fromkeys(files)), others


def with_files(text: str, files: Sequence[Attachment]) -> UserMessage:
    """The user's message: what was typed, and then the files."""
    payload = {FILES: [file.name for file in files]} if files else None
    return UserMessage(content=(TextPart(text=text), *(file.part for file in files)), payload=payload)


def files_of(message: UserMessage) -> list[Attachment]:
    """The files of a message that `with_files` made."""
    named: Any = message.payload.get(FILES, []) if isinstance(message.payload, dict) else []
    parts: Any = message.content[1:]
    return [Attachment(str(name), part) for name, part in zip(named, parts, strict=False)]


def typed_of(message: UserMessage) -> str:
    """What the user typed of a message, without its files."""
    first = message.content[0] if files_of(message) else None
    return first.text if isinstance(first, TextPart) else message.text


def tell(files: Sequence[Attachment], text: str, model: ChatModel) -> list[str]:
    """How many tokens each file adds to a message, a line each.

    Raises UsageError for an image where the model sees none, ContextOverflow.
    """
    lines = []
    before = model.count_tokens(UserMessage.text(text or "."))
    for file in files:
        if isinstance(file.part, ImagePart):
            if not model.vision:
                raise UsageError(f"{quoted(file.name, 200)} is an image, and {quoted(model.name)} sees none")
            lines.append(f"({file.name}: an image of {size_text(len(file.part.data or b''))})")
            continue
        message = UserMessage.text((text or ".") + file.part.text)
        tokens = model.count_tokens(message, limit=model.host.context) - before
        context = model.host.context
        most = f" of {context:,}" if context < UNKNOWN_CONTEXT else ""
        lines.append(f"({file.name}: {tokens:,} tokens{most})")
    return lines


def _read(name: str) -> Attachment:
    path = _path(name)
    shown = quoted(name, 200)
    try:
        if path.is_dir():
            raise UsageError(f"{shown} is a folder: name the files in it")
        with path.open("rb") as file:
            data = file.read(LIMIT + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{shown} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > LIMIT:
        raise UsageError(f"{shown} is longer than {size_text(LIMIT)}, more than any model can read at once")
    kind = sniff(data)
    if kind is not None and kind.startswith("image/"):
        return Attachment(name, ImagePart(data=data, media_type=kind))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{shown} is no UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start:,}"
        ) from None
    if (at := text.find("\0")) >= 0:
        raise UsageError(f"{shown} is binary: NUL at character {at:,}")
    # A fence longer than any in the file: else the file could end it and go on as if the user had said it.
    fence = "`" * max(3, 1 + max((len(found) for found in _FENCE.findall(text)), default=0))
    end = "" if text.endswith("\n") else "\n"
    return Attachment(name, TextPart(text=f"\n\n{name}:\n{fence}\n{text}{end}{fence}\n"))


def _path(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~ of a user that does not exist
        return Path(name)


def _exists(name: str) -> bool:
    try:
        return bool(name) and _path(name).is_file()
    except (OSError, ValueError):  # too long, or a NUL in it
        return False
