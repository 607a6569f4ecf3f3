"""What holds for every wire that carries whole conversations, for the tests of each to ask of its own payloads."""

from __future__ import annotations

import copy
from typing import Any

from localagent.errors import InvalidMessage, UnpairedResult, Unsupported
from localagent.prompt.request import build_request
from tests.wire.strategies import spoil


def comes_back_the_same(wire: Any, conversation: list[Any]) -> None:
    """Written and read it is what it was, and neither changes what it is given."""
    before = copy.deepcopy(conversation)
    payload = wire.to_wire(conversation)
    kept = copy.deepcopy(payload)
    assert wire.from_wire(payload) == conversation
    assert payload == kept
    assert conversation == before


def shares_nothing(wire: Any, conversation: list[Any]) -> None:
    """Whoever changes a payload changes neither the messages that it was made of nor those read from it."""
    before = copy.deepcopy(conversation)
    payload = wire.to_wire(conversation)
    messages = wire.from_wire(payload)
    spoil(payload)
    assert conversation == before == messages


def is_read_or_refused(wire: Any, payload: Any) -> None:
    """Whatever a payload is, it becomes messages that can be kept, or an error of ours."""
    try:
        messages = wire.from_wire(payload)
    except (InvalidMessage, UnpairedResult) as error:
        assert str(error)
    else:
        assert all(message.model_dump_json() for message in messages)


def is_carried_or_refused(wire: Any, conversation: list[Any]) -> None:
    """What the builder makes of any conversation is written and read again, or refused by name."""
    try:
        payload = wire.to_wire(build_request(conversation, wire.TARGET).messages)
    except (Unsupported, UnpairedResult):
        return
    messages = wire.from_wire(payload)
    assert wire.from_wire(wire.to_wire(messages)) == messages
