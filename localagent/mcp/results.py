"""What a server's tool answered, as the content that our messages carry.

Knows both sorts of content. Contract: nothing that a server sends raises. What cannot be carried, such as an
image that is none, is named in words.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticCustomError

from localagent.errors import InvalidMedia
from localagent.messages import AudioPart, ImagePart, ResultPart, TextPart
from localagent.messages.values import check_json
from localagent.tools.tool import ToolOutput

if TYPE_CHECKING:
    from mcp_types import BlobResourceContents, CallToolResult, ContentBlock, ResourceLink


def as_output(server: str, tool: str, result: CallToolResult) -> ToolOutput:
    """The result of a call. Texts become one text; structured content is shown if there is nothing else."""
    parts = [_part(block) for block in result.content]
    content: Any
    if not parts:
        content = "" if result.structured_content is None else _json(result.structured_content)
    elif all(isinstance(part, TextPart) for part in parts):
        content = "\n".join(part.text for part in parts if isinstance(part, TextPart))
    else:
        content = parts
    metadata: dict[str, Any] = {"mcp_server": server, "mcp_tool": tool}
    for key, value in (("structured_content", result.structured_content), ("_meta", result.meta)):
        if value is not None:
            metadata[key] = _strict(value)
    return ToolOutput(content, is_error=result.is_error, metadata=metadata)


def _part(block: ContentBlock) -> ResultPart:
    match block.type:
        case "text":
            return TextPart(text=block.text)
        case "image":
            return _media(ImagePart, "image", block.data, block.mime_type)
        case "audio":
            return _media(AudioPart, "recording", block.data, block.mime_type)
        case "resource_link":
            return TextPart(text=_link(block))
        case "resource":
            resource = block.resource
            text = getattr(resource, "text", None)
            return TextPart(text=text) if isinstance(text, str) else _blob(resource)  # type: ignore[arg-type]


def _media(kind: type[ImagePart | AudioPart], noun: str, data: str, media_type: str | None) -> ResultPart:
    try:
        return kind.from_base64(data, media_type)
    except InvalidMedia as error:
        return TextPart(
            text=f"[an {noun} that cannot be read: {error}]".replace("an recording", "a recording")
        )


def _blob(resource: BlobResourceContents) -> ResultPart:
    """A file: an image or a recording as such, text as text, anything else by its name."""
    media_type = resource.mime_type or ""
    if media_type.startswith("image/"):
        return _media(ImagePart, "image", resource.blob, media_type)
    if media_type.startswith("audio/"):
        return _media(AudioPart, "recording", resource.blob, media_type)
    try:
        data = base64.b64decode(resource.blob)
        if media_type.startswith("text/") or media_type == "application/json":
            return TextPart(text=data.decode())
    except (binascii.Error, ValueError):
        return TextPart(text=f"[the file {resource.uri}, which cannot be read]")
    return TextPart(text=f"[the file {resource.uri}: {media_type or 'no known type'}, {len(data):,} bytes]")


def _link(link: ResourceLink) -> str:
    about = [text for text in (link.title or link.name, link.description, link.mime_type) if text]
    return f"{link.uri} ({'; '.join(about)})" if about else link.uri


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _strict(value: Any) -> Any:
    """The value, if our messages can carry it; otherwise its text."""
    try:
        return check_json(value)
    except PydanticCustomError:
        return _json(value)
