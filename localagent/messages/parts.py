"""The parts that messages consist of. Every part is a frozen value with a `kind`; only messages have ids.

This file has the parts that people and models write; `calls` has those of tools. A part of unknown kind is
loaded as an UnknownPart, which is saved unchanged.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)
from pydantic.config import JsonDict

from localagent.errors import InvalidMedia
from localagent.messages import media
from localagent.messages.values import JsonObject, Text, check_json, explained, refuse

KINDS = frozenset({"text", "reasoning", "image", "audio", "tool_call", "malformed_tool_call", "tool_result"})
"""The kinds of parts that this version knows."""


def is_absent(value: object) -> bool:
    """Whether an optional field is absent, so that the JSON form omits it."""
    return value is None


def is_empty(value: object) -> bool:
    """The same for fields whose default is false or empty."""
    return not value


def require_tag(tag: str) -> Callable[[JsonDict], None]:
    """For JSON schemas: require the discriminator, which has a default but is always in the JSON."""

    def require(schema: JsonDict) -> None:
        required = schema.get("required")
        schema["required"] = [tag, *(required if isinstance(required, list) else ())]

    return require


class Frozen(BaseModel):
    """An immutable value; `changed` makes a modified copy."""

    def changed(self, **fields: Any) -> Self:
        """A copy with these fields replaced. It is validated, unlike that of `model_copy(update=...)`.

        Fields derived from a replaced one, such as `arguments_text` from `arguments`, are computed again.
        Raises InvalidMessage.
        """
        dropped = {name for field in fields for name in self._found_from(field)}
        kept = {name: getattr(self, name) for name in self.model_fields_set - dropped}
        with explained(type(self).__name__):
            return type(self)(**(kept | fields))

    @classmethod
    def _found_from(cls, field: str) -> tuple[str, ...]:
        """The fields that are derived from `field`."""
        return ()


class Part(Frozen):
    """The fields that all parts share."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, json_schema_extra=require_tag("kind")
    )

    provider_metadata: JsonObject = Field(default_factory=dict, exclude_if=is_empty)
    """By provider, opaque data to send back with the part; never read or changed here."""


class TextPart(Part):
    """Content that is meant to be read."""

    kind: Literal["text"] = "text"
    text: Text


class ReasoningPart(Part):
    """The model's reasoning before or between its answers, without the markers around it."""

    kind: Literal["reasoning"] = "reasoning"
    text: Text = ""
    signature: Text | None = Field(None, exclude_if=is_absent)
    """The provider's proof that the model wrote the text; sent back unchanged."""
    encrypted: Text | None = Field(None, exclude_if=is_absent)
    """Reasoning that only the provider can read; sent back unchanged."""
    redacted: bool = Field(False, exclude_if=is_empty)
    """The provider withheld the text and put a substitute into `encrypted`."""
    provider: Text | None = Field(None, exclude_if=is_absent)
    """The provider of the signature or encryption, by its name in `provider_metadata`; None: unknown."""

    @property
    def opaque(self) -> bool:
        """Whether only the provider that wrote it can read it."""
        return self.encrypted is not None and not self.text


def _decode(value: Any) -> Any:
    return media.decode_base64(value) if isinstance(value, str) else value


Base64 = Annotated[
    bytes,
    BeforeValidator(_decode),
    PlainSerializer(lambda data: base64.b64encode(data).decode(), return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]


class MediaPart(Part):
    """A file from exactly one of three sources. `data` is base64 in JSON, and bytes or base64 in Python."""

    _noun: ClassVar[str] = "a file"

    url: Text | None = Field(None, min_length=1, exclude_if=is_absent)
    """An address; a "data:" URL is decoded at once and becomes `data`."""
    data: Base64 | None = Field(None, exclude_if=is_absent)
    file_id: Text | None = Field(None, min_length=1, exclude_if=is_absent)
    """A provider's id of an uploaded file."""
    media_type: Text | None = Field(None, exclude_if=is_absent)
    """From the bytes if they reveal it, or else as given, or from the URL's extension."""

    @model_validator(mode="before")
    @classmethod
    def _read_data_url(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = [name for name in ("url", "data", "file_id") if value.get(name) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none"
            refuse("media_sources", f"{cls._noun} has exactly one of url, data, file_id; this has {got}")
        url = value.get("url")
        if isinstance(url, str) and url[:5].lower() == "data:":
            data, declared = media.decode_data_url(url)
            rest = {name: item for name, item in value.items() if name != "url"}
            return {**rest, "data": data, "media_type": value.get("media_type") or declared}
        return value

    @model_validator(mode="after")
    def _find_media_type(self) -> Self:
        if self.data is not None:
            media.check_size(len(self.data))
            known = media.sniff(self.data) or self.media_type or self._default_type()
        else:
            known = self.media_type or (media.type_of_url(self.url) if self.url else None)
        if known != self.media_type:
            self.__dict__["media_type"] = known  # frozen for everybody but its own validation
        return self

    @classmethod
    def _default_type(cls) -> str | None:
        return None

    @classmethod
    def _found_from(cls, field: str) -> tuple[str, ...]:
        return ("url", "data", "file_id", "media_type") if field in ("url", "data", "file_id") else ()

    def to_base64(self) -> str:
        """The bytes in base64. Raises InvalidMedia for media given by URL or file id."""
        if self.data is None:
            raise InvalidMedia(f"{self._noun} by {'URL' if self.url else 'file id'} has no bytes here")
        return base64.b64encode(self.data).decode()

    def data_url(self) -> str:
        """The bytes as a data URL. Raises InvalidMedia for media given by URL or file id."""
        return f"data:{self.media_type or 'application/octet-stream'};base64,{self.to_base64()}"

    @classmethod
    def from_file(cls, path: str | Path, media_type: str | None = None) -> Self:
        """The content of a file. Raises InvalidMedia if it cannot be read or is larger than 20 MB."""
        declared = media_type or media.type_of_url(Path(path).name)
        return cls._made(data=media.read_file(path), media_type=declared)

    @classmethod
    def from_url(cls, url: str, media_type: str | None = None) -> Self:
        """A reference to a URL, or the content of a data URL. Raises InvalidMedia."""
        return cls._made(url=url, media_type=media_type)

    @classmethod
    def from_base64(cls, text: str, media_type: str | None = None) -> Self:
        """The content of a base64 string. Raises InvalidMedia if it is invalid or larger than 20 MB."""
        return cls._made(data=media.decode_base64(text), media_type=media_type)

    @classmethod
    def _made(cls, **fields: Any) -> Self:
        with explained(cls._noun, InvalidMedia):
            return cls(**fields)

    @classmethod
    def of(cls, source: object) -> Self:
        """A part made from a part, bytes, a Path, a URL, a data URL, "file:PATH", base64 or a PIL image.

        Raises InvalidMedia for anything else. It reads files, so never pass it untrusted sources.
        """
        match source:
            case cls():
                return source
            case bytes() | bytearray() | memoryview():
                return cls._made(data=bytes(source))
            case Path():
                return cls.from_file(source)
            case str() if source.startswith("file:"):
                return cls.from_file(source.removeprefix("file:").removeprefix("//"))
            case str() if media.is_url(source):
                return cls._made(url=source)
            case str():
                try:
                    return cls.from_base64(source)
                except InvalidMedia as error:
                    raise InvalidMedia(
                        f"{source[:40]!r} is neither a URL nor base64 ({error}): pass a file as a Path"
                    ) from None
        if media.is_pil_image(source):
            return cls._made(data=media.encode_pil_image(source))
        raise InvalidMedia(f"{cls._noun} cannot be made of {type(source).__name__}")


class ImagePart(MediaPart):
    """An image; or a PDF or another file, depending on its media type."""

    _noun = "an image"
    kind: Literal["image"] = "image"

    @property
    def is_picture(self) -> bool:
        """Whether it is an image and no other file, as far as is known."""
        return self.media_type is None or self.media_type.startswith("image/")


class AudioPart(MediaPart):
    """A recording. Bytes of an unknown type count as audio/mpeg."""

    _noun = "audio"
    kind: Literal["audio"] = "audio"

    @classmethod
    def _default_type(cls) -> str:
        return "audio/mpeg"


class UnknownPart(Frozen):
    """A part of unknown kind, kept unchanged.

    Kinds such as "openai:smell" are of parts that a provider sent: its wire sends `block` back as it came. No
    other part of unknown kind can be sent to a model.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: Text = Field(json_schema_extra={"not": {"enum": [*sorted(KINDS)]}})
    __pydantic_extra__: dict[str, JsonValue]

    @model_validator(mode="after")
    def _is_json(self) -> Self:
        check_json(self.__pydantic_extra__)
        return self


def tag_of(part: Any) -> Any:
    """The discriminator of a part, given as an object or as JSON: a known kind, or "unknown" for any other.

    A kind that is not a string is returned unchanged, so that validation refuses it.
    """
    kind = part.get("kind") if isinstance(part, dict) else getattr(part, "kind", None)
    return "unknown" if isinstance(kind, str) and kind not in KINDS else kind


def as_parts(content: Any) -> Any:
    """The list with plain strings made text parts, and `type` accepted for `kind`."""
    if isinstance(content, list | tuple) and any(map(_loose, content)):
        return tuple(map(_as_part, content))
    return content


def _loose(item: Any) -> bool:
    return isinstance(item, str) or (isinstance(item, dict) and "type" in item and "kind" not in item)


def _as_part(item: Any) -> Any:
    if isinstance(item, str):
        return TextPart(text=item)
    if _loose(item):
        return {"kind" if name == "type" else name: value for name, value in item.items()}
    return item
