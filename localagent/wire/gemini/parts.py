"""Gemini's parts to ours.

An object's names are in camelCase here, whichever way they were spelled.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter

from localagent.messages import (
    AudioPart,
    ImagePart,
    MalformedToolCallPart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    media,
)
from localagent.messages.values import JsonObject
from localagent.wire.extras import collect
from localagent.wire.gemini.writing import ALONE, OBJECTS, failed
from localagent.wire.payload import Fields, at

_SNAKE = re.compile(r"_([a-z0-9])")
_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(JsonObject)


def fields_of(value: object, where: str) -> Fields:
    """An object, its names in camelCase."""
    if isinstance(value, Mapping):
        spelled = {_SNAKE.sub(_upper, key) if isinstance(key, str) else key: value[key] for key in value}
        if len(spelled) < len(value):
            raise Fields({}, where).wrong("a field in both spellings, camelCase and snake_case")
        return Fields(spelled, where)
    return Fields(value, where)


def _upper(found: re.Match[str]) -> str:
    return found[1].upper()


def list_of(value: object, where: str) -> list[Fields]:
    """The objects of a list."""
    if not isinstance(value, list | tuple):
        raise Fields({}, where).wrong("not a list")
    return [fields_of(item, f"{where}[{number}]") for number, item in enumerate(value)]


# -- parts ------------------------------------------------------------------------------------------------

Reader = Callable[[Fields], Any]


def read_parts(content: Fields, readers: Mapping[str, Reader], *, required: bool = True) -> list[Any]:
    """The parts of a content, each by the reader of its kind."""
    given = content.take("parts")
    if given is None and not required:
        return []
    return [_part(part, readers) for part in list_of(given, f"{content.where}.parts")]


def _part(part: Fields, readers: Mapping[str, Reader]) -> Any:
    kinds = sorted(part.rest().keys() & {"text", *OBJECTS})
    if not kinds and (other := [name for name, value in part.rest().items() if isinstance(value, dict)]):
        return part.unknown("google", other[0])
    if len(kinds) != 1:
        raise part.wrong(f"a part is one of {', '.join(readers)}; this is {' and '.join(kinds) or 'none'}")
    if kinds[0] not in readers:
        raise part.wrong(f"{kinds[0]!r} is no part that can stand here: {', '.join(readers)}")
    with at(part.where):
        return readers[kinds[0]](part)


def _collect(part: Fields, **nested: Fields) -> dict[str, Any]:
    metadata = collect(part, "google", **nested)
    for name, value in metadata.get("google", {}).items():
        metadata["google"][name] = _signature(value) if name == "thoughtSignature" else value
    return metadata


def _signature(value: Any) -> Any:
    """Bytes in what the SDK's `model_dump()` makes, base64 in JSON."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _text(part: Fields) -> TextPart:
    if part.take("thought"):
        raise part.wrong("a thought outside a turn of the model", "thought")
    return TextPart(text=part.text("text"), provider_metadata=_collect(part))


def _said(part: Fields) -> TextPart | ReasoningPart:
    thought = part.take("thought")
    if not isinstance(thought, bool | None):
        raise part.wrong("neither true nor false", "thought")
    if not thought:
        return TextPart(text=part.text("text"), provider_metadata=_collect(part))
    signature = _signature(part.take("thoughtSignature")) or None
    return ReasoningPart(text=part.text("text"), signature=signature, provider_metadata=_collect(part))


def _call(part: Fields) -> ToolCallPart | MalformedToolCallPart:
    call = _inner(part, "functionCall")
    call_id, name, given = call.maybe_text("id") or "", call.text("name"), call.take("args")
    if not isinstance(given, dict | None):
        raw = call.spell({"name": name, "args": given})
        return MalformedToolCallPart(raw=raw, reason="syntax", name=name, id=call_id)
    metadata = _collect(part, functionCall=call)
    return ToolCallPart(id=call_id, name=name, arguments=given or {}, provider_metadata=metadata)


def _inline(part: Fields, blob: Fields) -> ImagePart | AudioPart:
    kind, given = blob.text("mimeType"), blob.take("data")
    if not isinstance(given, str | bytes):
        raise blob.wrong("missing" if given is None else "not base64", "data")
    with at(blob.where):
        data = media.decode_base64(given) if isinstance(given, str) else given
        medium = _medium(media.sniff(data) or kind)
        return medium(data=data, media_type=kind, provider_metadata=_collect(part, inlineData=blob))


def _file(part: Fields, file: Fields) -> ImagePart | AudioPart:
    uri, kind = file.text("fileUri"), file.maybe_text("mimeType")
    source = {"url" if media.is_url(uri) else "file_id": uri}
    with at(file.where):
        metadata = _collect(part, fileData=file)
        return _medium(kind)(**source, media_type=kind, provider_metadata=metadata)


def _medium(kind: str | None) -> type[ImagePart | AudioPart]:
    return AudioPart if kind and kind.startswith("audio/") else ImagePart


def _inner(part: Fields, name: str) -> Fields:
    return fields_of(part.take(name), f"{part.where}.{name}")


# -- results ----------------------------------------------------------------------------------------------


def _result(part: Fields) -> ToolResultPart:
    answer = _inner(part, "functionResponse")
    call_id, name = answer.maybe_text("id") or "", answer.text("name")
    with at(f"{answer.where}.response"):
        response = _OBJECT.validate_python(answer.take("response"))
    given = answer.take("parts")
    shown = [] if given is None else [_named(item) for item in list_of(given, f"{answer.where}.parts")]
    said = {key: value for key, value in response.items() if value is not None}
    value = next(iter(said.values())) if len(said) == 1 and said.keys() <= ALONE else response
    return ToolResultPart(
        call_id=call_id,
        name=name,
        content=_joined(value, shown),
        is_error=failed(response),
        provider_metadata=_collect(part, functionResponse=answer),
    )


def _named(part: Fields) -> tuple[str | None, Any]:
    """A medium, and the name under which the response refers to it."""
    for kind, read in _MEDIA.items():
        if kind in part.rest():
            inner = _inner(part, kind)
            return inner.maybe_text("displayName"), read(part, inner)
    raise part.wrong(f"no medium: {', '.join(_MEDIA)}")


def _joined(value: Any, shown: list[tuple[str | None, Any]]) -> str | tuple[Any, ...]:
    """Text and media in the order of a list that refers to them; otherwise the text, then the media."""
    if isinstance(value, list):
        media_left = dict(shown)
        items = [_item(item, media_left) for item in value]
        if None not in items and len(items) - len(shown) == sum(isinstance(item, str) for item in value):
            return tuple(items)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if not shown:
        return text
    return (*([TextPart(text=text)] if text else []), *(medium for _, medium in shown))


def _item(item: Any, media_left: dict[str | None, Any]) -> Any:
    match item:
        case str():
            return TextPart(text=item)
        case {"$ref": str(name)} if len(item) == 1:
            return media_left.pop(name, None)
    return None


_MEDIA: dict[str, Callable[[Fields, Fields], Any]] = {"inlineData": _inline, "fileData": _file}
SYSTEM: dict[str, Reader] = {"text": _text}
_SHOWN: dict[str, Reader] = {
    "inlineData": lambda part: _inline(part, _inner(part, "inlineData")),
    "fileData": lambda part: _file(part, _inner(part, "fileData")),
}
USER: dict[str, Reader] = {"text": _text, **_SHOWN, "functionResponse": _result}
MODEL: dict[str, Reader] = {"text": _said, **_SHOWN, "functionCall": _call}
