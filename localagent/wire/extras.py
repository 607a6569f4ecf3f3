"""Fields that a provider wants back with a part, kept untouched in `provider_metadata`.

No field is known here by name. A wire looks only at the fields of its own provider, so those of one provider
never reach another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any, TypeVar

from localagent.errors import Unsupported
from localagent.messages import ModelMessage, ReasoningPart, UnknownPart
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


def verbatim(part: Any, provider: str) -> dict[str, Any] | None:
    """The block of a part that this provider sent and that is not known here; None for other parts."""
    if isinstance(part, UnknownPart) and part.kind.startswith(f"{provider}:"):
        block = (part.__pydantic_extra__ or {}).get("block")
        return deepcopy(block) if isinstance(block, dict) else None
    return None


def collect(block: Fields, provider: str, **nested: Fields) -> dict[str, Any]:
    """Provider metadata made of the fields of a block, and of the objects in it, that no reader took."""
    rest = block.rest()
    rest |= {name: left for name, fields in nested.items() if (left := fields.rest())}
    return {provider: rest} if rest else {}


def keep(message: M, turn: Fields, provider: str) -> M:
    """The message with the fields of its turn that no reader took in `payload`, which is never sent."""
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
