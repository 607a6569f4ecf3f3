"""A server's tool as a `Tool` for models, and its results as message parts.

Nothing that a server sends makes this raise. If a schema cannot be used, only the server checks the
arguments; content that a message cannot hold, such as a broken image, is described in words.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from localagent.constraint.validation import Arguments
from localagent.errors import InvalidMedia
from localagent.mcp.config import ServerConfig
from localagent.messages import AudioPart, ImagePart, ResultPart, TextPart
from localagent.messages.values import NotJson, check_json
from localagent.tools.tool import Bound, Tool, ToolContext, ToolOutput

if TYPE_CHECKING:
    from mcp_types import BlobResourceContents, CallToolResult, ContentBlock, ResourceLink
    from mcp_types import Tool as ListedTool


Run = Callable[[str, "ListedTool", Mapping[str, Any], ToolContext], ToolOutput]
"""Calls a tool of the server of that name, as it was listed, and waits for the result."""
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")


def offered_name(server: str, tool: str, prefix: bool) -> str:
    """The tool's name for models. Characters other than letters, digits, "_", "-" and "." become "_"."""
    return _UNFIT.sub("_", f"{server}_{tool}" if prefix else tool)


def fingerprint(listed: ListedTool | None) -> str:
    """A text that changes if the tool's name, description, schemas or hints change."""
    if listed is None:
        return ""
    said = {"name", "title", "description", "input_schema", "output_schema", "annotations"}
    return json.dumps(listed.model_dump(mode="json", include=said), sort_keys=True)


def offered_tool(
    config: ServerConfig, listed: ListedTool, first: ListedTool | None, prefix: bool, run: Run
) -> Tool:
    """The tool for models. `first`: the tool with this name in the server's first list.

    A tool needs approval unless the server says that it only reads and is not destructive, or unless the
    configuration allows it. Both count only while the tool is as the server first listed it: nobody has
    agreed to a hint that comes later, or to a tool that turns into another.
    """
    name = offered_name(config.name, listed.name, prefix)
    notes = listed.annotations
    arguments = Arguments(name, listed.input_schema)
    mark = fingerprint(listed)

    def bind(given: Mapping[str, Any]) -> Bound:
        arguments.check(given)
        return lambda context: run(config.name, listed, given, context)

    # A tool without hints may do anything.
    reads_only = notes is not None and notes.read_only_hint is True and notes.destructive_hint is not True
    as_at_first = mark == fingerprint(first)
    allowed = config.allows(listed.name) and (first is None or as_at_first)
    kind = None
    if notes is not None and notes.destructive_hint is True:
        kind = "edit"
    elif reads_only and as_at_first:
        kind = "read"
    return Tool(
        name=name,
        description=listed.description or listed.title or (notes.title if notes else None) or "",
        parameters={"type": "object", "properties": {}, **listed.input_schema},
        bind=bind,
        side_effects=not (allowed or (reads_only and as_at_first)),
        timeout=config.timeout,
        kind=kind,
        origin=(*config.place, mark),
    )


def as_output(server: str, tool: str, result: CallToolResult) -> ToolOutput:
    """The result of a call. Texts are joined; structured content is used only if there is nothing else."""
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
    except NotJson:
        return _json(value)
