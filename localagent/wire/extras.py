"""What a provider wants back with a part: opaque fields of its own, kept in `provider_metadata`.

Knows where such fields go and that they are not to be touched; knows no field by name. Only the provider that
a wire belongs to is looked at, so one provider's fields never reach another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any, TypeVar

from localagent.errors import Unsupported
from localagent.messages import ModelMessage, ReasoningPart
from localagent.wire.payload import Fields

M = TypeVar("M", bound=ModelMessage)


def attach(
    block: dict[str, Any],
    part: Any,
    provider: str,
    *,
    nested: Collection[str] = (),
    reserved: Collection[str] = (),
) -> dict[str, Any]:
    """The block with the provider's fields beside its own, which win.

    `nested` names the objects in a block that can have such fields too. `reserved` names fields that would
    make another block of it: with one of them, or with metadata that are no object, Unsupported is raised.
    """
    extra = part.provider_metadata.get(provider)
    if extra is None:
        return block
    if not isinstance(extra, dict):
        raise Unsupported(f"the provider metadata {provider!r} of a part of kind {part.kind!r} is no object")
    joined = dict(block)
    for name, value in extra.items():
        if value is None:
            continue  # says nothing, and is not read back
        if name not in block:
            if name in reserved:
                raise Unsupported(f"{name!r} in the provider metadata of a part of kind {part.kind!r}")
            joined[name] = deepcopy(value)
        elif name in nested and isinstance(value, dict):
            joined[name] = deepcopy(value) | block[name]
    return joined


def collect(block: Fields, provider: str, **nested: Fields) -> dict[str, Any]:
    """Provider metadata of what nobody has taken from a block and the objects in it."""
    rest = block.rest()
    rest |= {name: left for name, fields in nested.items() if (left := fields.rest())}
    return {provider: rest} if rest else {}


def keep(message: M, turn: Fields, provider: str) -> M:
    """The message with what nobody has taken from its turn in `payload`, which stays when messages go out."""
    rest = turn.rest()
    return type(message)(**{**dict(message), "payload": {provider: rest}}) if rest else message


def sign(parts: Sequence[Any], provider: str) -> tuple[Any, ...]:
    """The parts of an answer; reasoning that only this provider can check or read says whose it is."""
    return tuple(
        part.model_copy(update={"provider": provider})
        if isinstance(part, ReasoningPart) and (part.signature, part.encrypted) != (None, None)
        else part
        for part in parts
    )
