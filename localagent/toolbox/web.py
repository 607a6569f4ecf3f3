"""The tool that gets a page, a text, JSON or an image from the web.

Knows which kinds of answers a model can read. Connecting is the business of `fetching`, and which addresses
are allowed that of `addresses`. Contract: by default only the public internet is asked, proxies of the
environment are not used, and nothing is sent but the URL.
"""

from __future__ import annotations

from localagent.errors import ToolError
from localagent.messages import ImagePart, ResultPart, TextPart
from localagent.messages.media import MAX_BYTES, sniff
from localagent.settings import why_offline
from localagent.toolbox.fetching import Fetched, Limits, fetch
from localagent.toolbox.readable import decode, html_to_text
from localagent.tools import Tool, ToolContext, ToolOutput, tool

MAX_TEXT = 20_000
"""Characters that one call returns."""

_TEXTS = frozenset(
    f"application/{name}"
    for name in ("ecmascript", "javascript", "json", "toml", "x-javascript", "x-sh", "x-yaml", "xml", "yaml")
) | {"application/x-ndjson"}
_PAGES = frozenset({"text/html", "application/xhtml+xml"})


def make_http_get(
    *,
    allow_private: bool = False,
    seconds: float = 30.0,
    connect_seconds: float = 10.0,
    idle_seconds: float = 15.0,
    max_bytes: int = 2_000_000,
    max_text: int = MAX_TEXT,
    max_redirects: int = 5,
) -> Tool:
    """The tool with limits of your own.

    `allow_private` also lets it ask this machine and its network. `seconds` is for the whole call,
    `connect_seconds` for each connection, `idle_seconds` for how long nothing may come. `max_bytes` bounds
    what is read, `max_text` the characters that the model is shown.
    """
    limits = Limits(
        allow_private=allow_private,
        connect_seconds=connect_seconds,
        idle_seconds=idle_seconds,
        seconds=seconds,
        max_bytes=min(max_bytes, MAX_BYTES),
        max_redirects=max_redirects,
    )

    @tool(name="http_get", side_effects=True, kind="fetch", timeout=seconds + 5)
    def get(url: str, context: ToolContext) -> ToolOutput:
        """Get a web page, a text, JSON or an image from a URL. Pages come as plain text.

        Args:
            url: The address, which begins with https:// or http://.
        """
        if reason := why_offline():
            raise ToolError(f"{reason}, so nothing is fetched")
        answer = fetch(url.strip(), limits, context.cancel)
        metadata = {"url": answer.url, "status": answer.status, "content_type": answer.content_type[:200]}
        return ToolOutput(readable(answer, max_text), metadata=metadata)

    return get


def readable(answer: Fetched, max_text: int) -> str | list[ResultPart]:
    """What a model is shown of an answer. Raises ToolError for an answer that is an error or unreadable."""
    media_type = answer.content_type.partition(";")[0].strip().lower()
    if not 200 <= answer.status < 300:
        raise ToolError(_refusal(answer, media_type))
    if (known := sniff(answer.body) or "").startswith("image/"):
        if answer.problem:
            raise ToolError(f"{answer.url:.200}: the image is not whole: {answer.problem}")
        return [TextPart(text=answer.url), ImagePart(data=answer.body)]
    text = _as_text(answer, media_type) if _is_text(media_type, answer.body) else "\0"
    if "\0" in text:
        kind = known or (media_type if media_type.isprintable() else "") or "binary data"
        raise ToolError(f"{answer.url:.200}: {kind:.100} cannot be read here, only text and images")
    text = text or "(the answer is empty)"
    notes = [answer.problem] if answer.problem else []
    if len(text) > max_text:
        notes.append(f"the first {max_text:,} of {len(text):,} characters")
        text = text[:max_text]
    return f"{answer.url}\n\n{text}" + (f"\n({'; '.join(notes)})" if notes else "")


def _is_text(media_type: str, body: bytes) -> bool:
    if media_type == "" or media_type.startswith("text/"):
        return sniff(body) is None
    return media_type in _TEXTS | _PAGES or media_type.endswith(("+json", "+xml"))


def _as_text(answer: Fetched, media_type: str) -> str:
    text = decode(answer.body, answer.content_type)
    begins = text[:200].lstrip().lower()
    if media_type in _PAGES or (media_type == "" and begins.startswith(("<!doctype html", "<html"))):
        return html_to_text(text, answer.url)
    return text


def _refusal(answer: Fetched, media_type: str) -> str:
    """An answer that is an error, with the beginning of what the server says of it."""
    said = _as_text(answer, media_type) if _is_text(media_type, answer.body) else ""
    line = f"{answer.url:.200} answered {answer.status} {answer.reason:.100}: {said:.2000}"
    printable = "".join(c if c.isprintable() else " " for c in line)
    return " ".join(printable.split())[:800].removesuffix(":")


http_get = make_http_get()
"""The tool as it ships."""
