"""Results of tool calls, made from whatever a tool returned or raised.

Nothing here raises: any value and any exception becomes a result. A value that cannot be shown to a model
becomes an error result that names its type.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import traceback
import types
from collections.abc import Iterator, Mapping
from typing import Any

from localagent.errors import ToolError
from localagent.messages import (
    AudioPart,
    ImagePart,
    ResultPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    UnknownPart,
    media,
)
from localagent.tools.jsonable import MAX_VALUES, as_json
from localagent.tools.tool import ToolOutput
from localagent.wording import one_line, writable

MAX_ERROR = 2_000
"""Characters of an exception's message that models get to read."""
MAX_TRACEBACK = 20_000
"""Characters of a traceback that the result's metadata keeps, for people."""
MAX_LEAVES = 5
"""Exceptions of a group that models get to read."""

_PARTS = (TextPart, ImagePart, AudioPart, UnknownPart)


def as_result(call: ToolCallPart, value: Any) -> ToolResultPart:
    """The result of a call that returned `value`."""
    try:
        if isinstance(value, ToolResultPart):
            return value.model_copy(update={"call_id": call.id, "name": call.name})
        output = value if isinstance(value, ToolOutput) else ToolOutput(value)
        return ToolResultPart(
            call_id=call.id,
            name=call.name,
            content=_content(output.content),
            is_error=bool(output.is_error),
            terminate=bool(output.terminate),
            metadata=_metadata(output.metadata),
        )
    except Exception as error:  # looking at a tool's objects runs the tool's own code
        return _unsayable(call, value, error)


def as_error(call: ToolCallPart, error: BaseException) -> ToolResultPart:
    """The error result of a call that raised. The model reads a ToolError as it is, one line of any other."""
    said = writable(_message(error))
    if isinstance(error, ToolError):
        return _failed(call, said.strip() or _type(error))
    name = _type(error)
    line = one_line(f"{name}: {said}" if said.strip() else name, MAX_ERROR)
    return _failed(call, line, {"traceback": _traceback(error)})


def _failed(call: ToolCallPart, text: str, metadata: dict[str, Any] | None = None) -> ToolResultPart:
    return ToolResultPart(
        call_id=call.id, name=call.name, content=text, is_error=True, metadata=metadata or {}
    )


def _unsayable(call: ToolCallPart, value: Any, error: Exception) -> ToolResultPart:
    inner = value.content if type(value) is ToolOutput else value
    reason = _message(error)
    if type(inner) is types.CoroutineType:
        reason = "it was never awaited"
        with contextlib.suppress(Exception):
            inner.close()
    what = one_line(writable(f"a {_type(inner)} ({reason})"), MAX_ERROR)
    return _failed(call, f"The tool ran, but its result cannot be shown: {what}.")


def _content(value: Any) -> str | tuple[ResultPart, ...]:
    if isinstance(value, str):
        return str(as_json(value))
    if (part := _part(value)) is not None:
        return (part,)
    if isinstance(value, list | tuple):
        items = list(itertools.islice(value, MAX_VALUES + 1))  # a subclass may have no end
        parts = [_part(item) for item in items]
        if any(parts):
            return tuple(part or TextPart(text=_text(item)) for part, item in zip(parts, items, strict=True))
    return _text(value)


def _part(value: Any) -> ResultPart | None:
    """A value that is a part or holds media, as a part; None for what is told as text."""
    if isinstance(value, _PARTS):
        return value
    if media.is_pil_image(value):
        return ImagePart.of(value)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        kind = media.sniff(data)
        if kind is not None:
            return AudioPart.of(data) if kind.startswith("audio/") else ImagePart.of(data)
    return None


def _text(value: Any) -> str:
    plain = as_json(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _metadata(given: Any) -> dict[str, Any]:
    """Metadata as JSON. A value that is none is named by its type: not worth an error result."""
    if not isinstance(given, Mapping):
        given = {"metadata": given}
    found: dict[str, Any] = {}
    for key, value in given.items():
        try:
            plain = as_json(value)
        except Exception:
            plain = f"<{_type(value)}>"
        found[one_line(writable(str(key)), 200)] = plain
    return found


def _message(error: BaseException) -> str:
    """What an exception says. A group only says how many it holds, so what those say is added."""
    try:
        said = str(error)
    except Exception as another:
        said = f"(no message: reading it raised {_type(another)})"
    if type(error) in (ExceptionGroup, BaseExceptionGroup):
        several = itertools.islice(_leaves(error), MAX_LEAVES)
        said += f": {'; '.join(f'{_type(each)}: {_message(each)}'.removesuffix(': ') for each in several)}"
    return said


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group and in the groups in it; of any other exception itself."""
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if type(each) in (ExceptionGroup, BaseExceptionGroup):
            waiting += reversed(each.exceptions)  # type: ignore[attr-defined]
        else:
            yield each


def _type(value: object) -> str:
    try:
        return type(value).__name__
    except Exception:  # a metaclass may have a `__name__` of its own
        return "object"


def _traceback(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception as another:
        text = f"{_type(error)}, whose traceback raised {_type(another)}"
    return writable(text[-MAX_TRACEBACK:])
