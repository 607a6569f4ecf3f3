"""Built-in middleware: a log of messages, and requests without what is too long or too many.

Each is a class with one or two hooks, and an example of how to write one; `compaction` has another. They
leave the history as it is, and only change what a request tells of it; `ClipResults` also bounds what enters
it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from localagent.agent.middleware import Proceed
from localagent.chat_model import ChatModel
from localagent.errors import UsageError
from localagent.log import RunContext
from localagent.messages import (
    AssistantMessage,
    CustomMessage,
    ImagePart,
    Message,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from localagent.wording import listed

IMAGE = "[image left out]"
"""Stands in a request where an image was."""
LEAST_CHARACTERS = 100
"""The shortest that results may be clipped to."""
MOST_PARTS = 1000
"""Parts of one result that are kept."""
LEFT_OUT = "\n[... {:,} characters left out here ...]\n"
PARTS_LEFT_OUT = "[... {:,} parts left out here ...]"
_NOTE = re.compile(r"\n\[\.\.\. ([\d,]{1,20}) characters left out here \.\.\.\]\n")


class LoggedRun(Protocol):
    """What the log needs of a run."""

    @property
    def model(self) -> ChatModel:
        """The model that is asked."""

    @property
    def turn(self) -> int:
        """The present turn, from 0; -1 before the first."""


class LogLike(Protocol):
    """Where messages are logged: a `MessageLog`, or anything with such a method; also an async one."""

    def append(self, message: Message, thread_id: str | None, context: RunContext) -> object:
        """Log a message. What can be awaited is awaited before the run goes on."""


class LogMessages:
    """Writes every message of a run to a message log, as it is kept, summaries of compaction included.

    The user's message is logged with the turn and the model that are to answer it. The caller closes the log.
    A message that cannot be logged ends the run with SaveFailed: a log with gaps cannot be relied on.
    """

    def __init__(self, log: LogLike, thread_id: str | None = None) -> None:
        """`log`: a `MessageLog`, or an object with such a method `append`, or else `log`.

        An async one is awaited where other coroutines of the run are: in `arun` on the caller's loop.
        `thread_id`: finds the conversation among others in the log. Raises UsageError.
        """
        append = getattr(log, "append", None) or getattr(log, "log", None)
        if not callable(append):
            raise UsageError(f"log is {log!r:.60}: it must have a method append, as MessageLog has")
        self._append: Callable[[Message, str | None, RunContext], object] = append
        self._thread_id = thread_id

    def on_message(self, message: Message, run: LoggedRun) -> object:
        """Append the message to the log; what there is to await, for an async log."""
        model, timings = run.model.name, None
        if isinstance(message, AssistantMessage):
            model, timings = message.model or model, message.timings
        context = RunContext(iteration=max(0, run.turn), model=model, timings=timings)
        return self._append(message, self._thread_id, context)


class StripImages:
    """Leaves images out of requests, except those of the last `keep` messages that have any.

    Images take many tokens and are rarely looked at twice. A short text stands in their place, also within
    tool results. Other files that an ImagePart can hold, such as a PDF, stay.
    """

    def __init__(self, keep: int = 0) -> None:
        """`keep`: how many messages with images are sent as they are. Raises UsageError."""
        if type(keep) is not int or keep < 0:
            raise UsageError(f"keep is {keep!r:.40}: it must be a number of messages, 0 or more")
        self._keep = keep

    def rewrite_messages(self, messages: Sequence[Message], run: object) -> list[Message]:
        """The messages with texts in place of images."""
        showing = [at for at, message in enumerate(messages) if _shows(message)]
        stripped = set(showing[: max(0, len(showing) - self._keep)])
        return [
            _without_images(message) if at in stripped else message for at, message in enumerate(messages)
        ]


def _shows(message: Message) -> bool:
    """Whether a model would be shown an image in this message."""
    if isinstance(message, CustomMessage):
        return False
    return any(
        _is_image(part) or (isinstance(part, ToolResultPart) and any(map(_is_image, part.parts)))
        for part in message.content
    )


def _is_image(part: object) -> bool:
    return isinstance(part, ImagePart) and (part.media_type is None or part.media_type.startswith("image/"))


def _without_images(message: Message) -> Message:
    content = []
    for part in message.content:
        if isinstance(part, ToolResultPart) and any(map(_is_image, part.parts)):
            shown = tuple(map(_replaced, part.parts))
            content.append(part.model_copy(update={"content": shown}))
        else:
            content.append(_replaced(part))
    return message.model_copy(update={"content": tuple(content)})


def _replaced(part: Any) -> Any:
    return TextPart(text=IMAGE) if _is_image(part) else part


class ClipResults:
    """Shortens long tool results: beginning and end stay, with a note between them of how much is left out.

    Without it, one result of a megabyte would make every later request too long. A request holds less of a
    result than the history does; for the rest the model can call the tool again. Every agent has one with
    generous bounds, unless one is among its middleware. It should stand first there: middleware before it
    gets results that are already clipped, and may make them longer again.
    """

    def __init__(self, characters: int = 16_000, kept: int = 1_000_000) -> None:
        """`characters` of the texts of one result go into a request; four are about a token.

        `kept`: characters that the history keeps and events tell, and as many of metadata. Raises UsageError.
        """
        self._characters = _enough("characters", characters)
        self._kept = _enough("kept", kept)

    def around_tool(self, call: ToolCallPart, proceed: Proceed, run: object) -> ToolResultPart:
        """Clip what the history keeps."""
        return bounded(proceed(call), self._kept)

    def rewrite_messages(self, messages: Sequence[Message], run: object) -> list[Message]:
        """Clip what the request tells."""
        return [self._clipped(message) for message in messages]

    def _clipped(self, message: Message) -> Message:
        if not any(isinstance(p, ToolResultPart) and len(p.text) > self._characters for p in message.content):
            return message
        content = tuple(
            clip_result(part, self._characters) if isinstance(part, ToolResultPart) else part
            for part in message.content
        )
        return message.model_copy(update={"content": content})


def _enough(name: str, characters: int) -> int:
    if type(characters) is not int or characters < LEAST_CHARACTERS:
        raise UsageError(
            f"{name} is {characters!r:.40}: it must be a whole number, {LEAST_CHARACTERS} or more"
        )
    return characters


def clip_text(text: str, limit: int) -> str:
    """The beginning and the end of a text, in `limit` characters; never in fewer than the note takes.

    Where the part left out has the note of an earlier clipping, the new note counts that as well.
    """
    if len(text) <= limit:
        return text
    room = max(0, limit - len(LEFT_OUT.format(len(text) + _left_out(text))))
    tail = room // 3
    head = room - tail
    removed = text[head : len(text) - tail]
    clipped = text[:head] + LEFT_OUT.format(len(removed) + _left_out(removed)) + text[len(text) - tail :]
    return min(clipped, text, key=len)


def _left_out(text: str) -> int:
    """Characters that were left out of the text before, less the notes that say so."""
    return sum(int(note[1].replace(",", "") or 0) - len(note[0]) for note in _NOTE.finditer(text))


def clip_result(result: ToolResultPart, limit: int) -> ToolResultPart:
    """The result with its texts clipped: each gets a share of `limit` by its length. Other parts stay."""
    length = len(result.text)
    if length <= limit:
        return result
    if isinstance(result.content, str):
        return result.model_copy(update={"content": clip_text(result.content, limit)})
    parts = list(result.content)
    for at, part in enumerate(parts):
        if isinstance(part, TextPart) and part.text:
            parts[at] = TextPart(text=clip_text(part.text, limit * len(part.text) // length))
    return result.model_copy(update={"content": tuple(parts)})


def bounded(result: ToolResultPart, limit: int) -> ToolResultPart:
    """The result as a history can keep it: its texts in `limit` characters, and its metadata in as many.

    Metadata for which there is no room is named under "left_out".
    """
    clipped = clip_result(result, limit)
    if not isinstance(clipped.content, str) and (over := len(clipped.content) - MOST_PARTS) > 0:
        head = MOST_PARTS // 2
        note = TextPart(text=PARTS_LEFT_OUT.format(over))
        parts = (*clipped.content[:head], note, *clipped.content[head + over :])
        clipped = clipped.model_copy(update={"content": parts})
    fitting = dict(_fitting(result.metadata, limit))
    if len(fitting) < len(result.metadata):
        fitting["left_out"] = listed(name for name in result.metadata if name not in fitting)
        clipped = clipped.model_copy(update={"metadata": fitting})
    return clipped


def _fitting(metadata: Mapping[str, Any], room: int) -> Iterator[tuple[str, Any]]:
    for name, value in metadata.items():
        size = len(name) + len(json.dumps(value, ensure_ascii=False))
        if size <= room:
            room -= size
            yield name, value
