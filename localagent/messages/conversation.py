"""Conversations: lists of messages to JSON and back, and the schema of that JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from localagent.errors import InvalidMessage
from localagent.messages.messages import AnyMessage, Message

_MESSAGE: TypeAdapter[Message] = TypeAdapter(AnyMessage)
_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[AnyMessage])


def dump_messages(messages: Sequence[Message]) -> str:
    """A conversation as a JSON list."""
    return _MESSAGES.dump_json(list(messages)).decode()


def load_messages(text: str | bytes) -> list[Message]:
    """The inverse of `dump_messages`. Raises InvalidMessage, which says where."""
    try:
        return _MESSAGES.validate_json(text)
    except ValidationError as error:
        raise InvalidMessage(explain(error, "messages")) from None


def load_message(text: str | bytes) -> Message:
    """One message from its JSON form. Raises InvalidMessage."""
    try:
        return _MESSAGE.validate_json(text)
    except ValidationError as error:
        raise InvalidMessage(explain(error, "message")) from None


def json_schema() -> dict[str, Any]:
    """The JSON schema of a conversation: a list of messages."""
    return _MESSAGES.json_schema(mode="serialization")


def explain(error: ValidationError, root: str) -> str:
    """The first finding of a failed validation, in one line; `root` names what was validated."""
    first, *others = error.errors(include_url=False, include_input=False)
    where = root
    for step in first["loc"]:
        where += f"[{step}]" if isinstance(step, int) else f".{_shown(step)}"
    said = first["msg"].removeprefix("Value error, ").replace("a valid dictionary", "an object")
    if first["type"] == "union_tag_invalid":
        found = first["ctx"]
        name = "role" if "role" in found["discriminator"] else "kind of part"
        said = f"{found['tag']!r} is no {name} here; there are {found['expected_tags']}"
    more = f" (and {len(others)} more)" if others else ""
    return f"{where}: {said}{more}"


def _shown(key: str) -> str:
    """A key of somebody's JSON in an error: on one line, and not longer than one wants to read."""
    return key if key.isprintable() and len(key) <= 60 else f"{key!r:.60}"
