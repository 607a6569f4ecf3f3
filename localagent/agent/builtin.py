"""Middleware that is included beside `compaction`: a log of messages, and requests without what is too much.

Each is a class with one or two hooks, and an example of how to write one. What stands in the history is never
changed, and what is left out of a request still stands there; only `ClipResults` bounds what enters it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from localagent.agent.clipping import bounded, clip_result
from localagent.errors import UsageError
from localagent.log import MessageLog, RunContext
from localagent.messages import (
    AssistantMessage,
    CustomMessage,
    ImagePart,
    Message,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

if TYPE_CHECKING:
    from localagent.agent.middleware import Proceed
    from localagent.agent.run import Run

IMAGE = "[image left out]"
"""Stands in a request where an image was."""
LEAST_CHARACTERS = 100
"""To which a result may be clipped."""


class LogMessages:
    """Writes every message of a run to a message log, as it is kept.

    The user's words have the turn and the model that they are for. Whoever made the log closes it. A message
    that cannot be logged ends the run with SaveFailed: a log with holes is none.
    """

    def __init__(self, log: MessageLog, thread_id: str | None = None) -> None:
        """`thread_id`: by which the conversation is found among others in the log."""
        self._log = log
        self._thread_id = thread_id

    def on_message(self, message: Message, run: Run) -> None:
        """Append the message to the log."""
        model, timings = run.agent.model.name, None
        if isinstance(message, AssistantMessage):
            model, timings = message.model or model, message.timings
        context = RunContext(iteration=max(0, run.turn), model=model, timings=timings)
        self._log.append(message, self._thread_id, context)


class StripImages:
    """Leaves images out of requests, but for those of the last few messages that have some.

    Images take many tokens and are rarely looked at twice. A short text stands in their place, also within
    tool results. Other files that an ImagePart can hold, such as a PDF, stay.
    """

    def __init__(self, keep: int = 0) -> None:
        """`keep`: how many messages with images go out as they are. Raises UsageError."""
        if type(keep) is not int or keep < 0:
            raise UsageError(f"keep is {keep!r:.40}: it must be a number of messages, 0 or more")
        self._keep = keep

    def rewrite_messages(self, messages: Sequence[Message], run: Run) -> list[Message]:
        """The messages with texts in place of images."""
        showing = [at for at, message in enumerate(messages) if _shows(message)]
        stripped = set(showing[: max(0, len(showing) - self._keep)])
        return [
            _without_images(message) if at in stripped else message for at, message in enumerate(messages)
        ]


class ClipResults:
    """Shortens long tool results: head and tail stay, and between them stands how much is missing.

    Without it, a tool that once returned a megabyte makes every later request too long. Requests tell less of
    a result than the history keeps; a tool can be called again for the rest of it. Every agent has one with
    generous bounds, unless it is given another among its middleware, where it had better stand first: what
    stands before it sees its results, and may make them longer again.
    """

    def __init__(self, characters: int = 16_000, kept: int = 1_000_000) -> None:
        """`characters`: of all texts of one result, that a request tells; four are about a token.

        `kept`: that the history keeps, and events tell; so much of its metadata, too. Raises UsageError.
        """
        self._characters = _enough("characters", characters)
        self._kept = _enough("kept", kept)

    def around_tool(self, call: ToolCallPart, proceed: Proceed, run: Run) -> ToolResultPart:
        """The result as the history keeps it."""
        return bounded(proceed(call), self._kept)

    def rewrite_messages(self, messages: Sequence[Message], run: Run) -> list[Message]:
        """The messages with clipped results."""
        return [self._clipped(message) for message in messages]

    def _clipped(self, message: Message) -> Message:
        if not any(
            isinstance(part, ToolResultPart) and len(part.text) > self._characters for part in message.content
        ):
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
