"""Conversations (lists of messages) to JSON and back, and the schema of that JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from localagent.messages.messages import AnyMessage, Message
from localagent.messages.values import explained

_MESSAGE: TypeAdapter[Message] = TypeAdapter(AnyMessage)
_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[AnyMessage])


def dump_messages(messages: Sequence[Message]) -> str:
    """A conversation as a JSON list."""
    return _MESSAGES.dump_json(list(messages)).decode()


def load_messages(text: str | bytes) -> list[Message]:
    """The inverse of `dump_messages`. Raises InvalidMessage, which gives the place."""
    with explained("messages"):
        return _MESSAGES.validate_json(text)


def load_message(text: str | bytes) -> Message:
    """One message from its JSON form. Raises InvalidMessage."""
    with explained("message"):
        return _MESSAGE.validate_json(text)


def json_schema() -> dict[str, Any]:
    """The JSON schema of a conversation: a list of messages."""
    return _MESSAGES.json_schema(mode="serialization")
