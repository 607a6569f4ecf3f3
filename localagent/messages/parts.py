"""What messages are made of. Every part is a frozen value with a `kind`; identity belongs to messages.

Here are the parts that people and models write; `calls` has those of tools. A part of a kind that this
version does not know is an UnknownPart, which survives a load and a save.
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
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.config import JsonDict

from localagent.errors import InvalidMedia, InvalidMessage
from localagent.messages import media
from localagent.messages.values import JsonObject, Text, check_json, explain, refuse

KINDS = frozenset({"text", "reasoning", "image", "audio", "tool_call", "malformed_tool_call", "tool_result"})
"""The kinds of parts that this version knows."""


def is_absent(value: object) -> bool:
    """Whether an optional field is not given, so that the JSON form can do without it."""
    return value is None


def is_empty(value: object) -> bool:
    """The same for fields that are false or empty unless given."""
    return not value


def require_tag(tag: str) -> Callable[[JsonDict], None]:
    """For JSON schemas: the discriminator has a default in Python and is always there in JSON."""

    def require(schema: JsonDict) -> None:
        required = schema.get("required")
        schema["required"] = [tag, *(required if isinstance(required, list) else ())]

    return require


class Frozen(BaseModel):
    """A value that never changes; `changed` makes another one of it."""

    def changed(self, **fields: Any) -> Self:
        """The same with these fields in place of its own, validated, as `model_copy(update=...)` does not.

        A field that follows from one of them, such as `arguments_text` from `arguments`, is found anew.
        Raises InvalidMessage.
        """
        dropped = {name for field in fields for name in self._found_from(field)}
        kept = {name: getattr(self, name) for name in self.model_fields_set - dropped}
        try:
            return type(self)(**(kept | fields))
        except ValidationError as error:
            raise InvalidMessage(explain(error, type(self).__name__)) from None

    @classmethod
    def _found_from(cls, field: str) -> tuple[str, ...]:
        """The fields that say the same as `field` or follow from it."""
        return ()


class Part(Frozen):
    """What all parts have in common."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, json_schema_extra=require_tag("kind")
    )

    provider_metadata: JsonObject = Field(default_factory=dict, exclude_if=is_empty)
    """What a provider wants back with the part, by provider: opaque, never read, never changed."""


class TextPart(Part):
    """Content that is meant to be read."""

    kind: Literal["text"] = "text"
    text: Text


class ReasoningPart(Part):
    """What the model thought before or between its answers, without the markers around it."""

    kind: Literal["reasoning"] = "reasoning"
    text: Text = ""
    signature: Text | None = Field(None, exclude_if=is_absent)
    """The provider's proof that the text is the model's; goes back verbatim."""
    encrypted: Text | None = Field(None, exclude_if=is_absent)
    """Reasoning that only the provider can read; goes back verbatim."""
    redacted: bool = Field(False, exclude_if=is_empty)
    """The provider withheld the text; `encrypted` holds what stands for it."""
    provider: Text | None = Field(None, exclude_if=is_absent)
    """Whose signature or encryption it is, as `provider_metadata` names providers; None: not known."""

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
    """A file, from exactly one of three sources. In JSON `data` is base64, which Python may give as well."""

    _noun: ClassVar[str] = "a file"

    url: Text | None = Field(None, min_length=1, exclude_if=is_absent)
    """An address; one that begins with "data:" is read at once and becomes `data`."""
    data: Base64 | None = Field(None, exclude_if=is_absent)
    file_id: Text | None = Field(None, min_length=1, exclude_if=is_absent)
    """The name that a provider gave an uploaded file."""
    media_type: Text | None = Field(None, exclude_if=is_absent)
    """The bytes decide where they tell; otherwise what was said, or what the URL's extension says."""

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
        """The bytes in base64. Raises InvalidMedia for media that stand elsewhere."""
        if self.data is None:
            raise InvalidMedia(f"{self._noun} by {'URL' if self.url else 'file id'} has no bytes here")
        return base64.b64encode(self.data).decode()

    def data_url(self) -> str:
        """The bytes as a data URL. Raises InvalidMedia for media that stand elsewhere."""
        return f"data:{self.media_type or 'application/octet-stream'};base64,{self.to_base64()}"

    @classmethod
    def from_file(cls, path: str | Path, media_type: str | None = None) -> Self:
        """The content of a file. Raises InvalidMedia when it cannot be read or has over 20 MB."""
        declared = media_type or media.type_of_url(Path(path).name)
        return cls._made(data=media.read_file(path), media_type=declared)

    @classmethod
    def from_url(cls, url: str, media_type: str | None = None) -> Self:
        """A reference to a URL, or the content of a data URL. Raises InvalidMedia."""
        return cls._made(url=url, media_type=media_type)

    @classmethod
    def from_base64(cls, text: str, media_type: str | None = None) -> Self:
        """The content that base64 spells. Raises InvalidMedia when it spells nothing or over 20 MB."""
        return cls._made(data=media.decode_base64(text), media_type=media_type)

    @classmethod
    def _made(cls, **fields: Any) -> Self:
        try:
            return cls(**fields)
        except ValidationError as error:
            raise InvalidMedia(explain(error, cls._noun)) from None

    @classmethod
    def of(cls, source: object) -> Self:
        """The part for a part, bytes, a Path, a URL, a data URL, "file:PATH", base64 or a PIL image.

        Raises InvalidMedia for anything else. Reads files: not for sources that others name.
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
    """An image, or by its media type a PDF or another file."""

    _noun = "an image"
    kind: Literal["image"] = "image"

    @property
    def is_picture(self) -> bool:
        """Whether it is an image and no other file, as far as is known."""
        return self.media_type is None or self.media_type.startswith("image/")


class AudioPart(MediaPart):
    """A recording. Bytes that tell nothing are taken for audio/mpeg."""

    _noun = "audio"
    kind: Literal["audio"] = "audio"

    @classmethod
    def _default_type(cls) -> str:
        return "audio/mpeg"


class UnknownPart(Frozen):
    """A part of a kind that this version does not know, kept as it is. Wires refuse it by name.

    Kinds such as "openai:smell" are of parts that a provider sent: its wire gives `block` back as it came.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: Text = Field(json_schema_extra={"not": {"enum": [*sorted(KINDS)]}})
    __pydantic_extra__: dict[str, JsonValue]

    @model_validator(mode="after")
    def _is_json(self) -> Self:
        check_json(self.__pydantic_extra__)
        return self


def tag_of(part: Any) -> Any:
    """The discriminator of a part, given as a value or as JSON: a known kind, or "unknown" for any other.

    What is not even a kind stays, and is refused.
    """
    kind = part.get("kind") if isinstance(part, dict) else getattr(part, "kind", None)
    return "unknown" if isinstance(kind, str) and kind not in KINDS else kind


def as_parts(content: Any) -> Any:
    """A list of parts, in which plain strings are text parts and `type` may stand for `kind`."""
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
