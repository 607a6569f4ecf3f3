"""The tool that gets a page, a text, JSON or an image from the web, and what a model is shown of it.

By default only the public internet is reached, and nothing is sent but the URL. However hostile an answer, it
is shown or refused within a time limit; the text says if a part could not be read in time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urljoin

from localagent.errors import ToolError
from localagent.messages import ImagePart, ResultPart, TextPart
from localagent.messages.media import MAX_BYTES, sniff
from localagent.settings import why_offline
from localagent.toolbox.fetching import Fetched, Limits, fetch, require
from localagent.tools import Tool, ToolContext, ToolOutput, tool

MAX_TEXT = 20_000
"""Characters that one call returns."""

MAX_SECONDS = 3.0
"""For the text of one page."""

_PIECE = 4_096  # bytes of a page between looks at the clock: `<i></b>` without end takes quadratic time
_TEXTS = frozenset(
    f"application/{name}"
    for name in ("ecmascript", "javascript", "json", "toml", "x-javascript", "x-sh", "x-yaml", "xml", "yaml")
) | {"application/x-ndjson"}
_PAGES = frozenset({"text/html", "application/xhtml+xml"})
# The charsets of the web. Of Python's other codecs some take quadratic time, and some are no charsets.
_CHARSET = re.compile(
    r"utf-?(8|16|32)([-_]?[bl]e)?|(us-)?ascii|latin-?1|iso[-_]?8859[-_]?\d{1,2}|(windows|cp)-?\d{3,4}|koi8[-_][rut]"
    r"|shift[-_]?jis|sjis|euc[-_](jp|kr)|gb2312|gbk|gb18030|big5([-_]hkscs)?|macintosh"
)
_SPACES = re.compile(r"[ \t\r\n\f\v]+")
_SKIPPED = frozenset({"script", "style", "template", "svg", "noscript", "iframe", "select", "textarea"})
_BLOCKS = frozenset(
    {
        "address", "article", "aside", "blockquote", "body", "br", "caption", "dd", "details", "div",
        "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5",
        "h6", "head", "header", "hr", "html", "legend", "li", "main", "nav", "ol", "p", "pre",
        "section", "summary", "table", "tbody", "tfoot", "thead", "title", "tr", "ul",
    }
)  # fmt: skip
_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)} | {"title": "#"}


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

    `allow_private` also lets it fetch from this machine and its network. `seconds` limits the whole call,
    `connect_seconds` each connection, `idle_seconds` the time without data. `max_bytes` limits what is read,
    `max_text` the characters shown to the model.
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
    """What a model is shown of an answer. Raises ToolError for an error, and for what is no text or image."""
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
        raise ToolError(f"{answer.url:.200}: {kind:.100} cannot be shown: only text and images can")
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
    page = media_type in _PAGES or (media_type == "" and begins.startswith(("<!doctype html", "<html")))
    # Binary data stays as it is: lxml would replace the NULs by which it is known.
    return html_to_text(text, answer.url) if page and "\0" not in text else text


def _refusal(answer: Fetched, media_type: str) -> str:
    """The status of an answer that is an error, with the beginning of what the server says about it."""
    said = _as_text(answer, media_type) if _is_text(media_type, answer.body) else ""
    line = f"{answer.url:.200} answered {answer.status} {answer.reason:.100}: {said:.2000}"
    printable = "".join(c if c.isprintable() else " " for c in line)
    return " ".join(printable.split())[:800].removesuffix(":")


def charset_of(content_type: str) -> str:
    """The charset that a Content-Type header names, if it is one of the web; else UTF-8."""
    found = re.search(r";\s*charset\s*=\s*[\"']?([\w.:-]{1,40})", content_type, re.IGNORECASE)
    name = found[1].lower() if found else ""
    if not _CHARSET.fullmatch(name):
        return "utf-8-sig"
    name = name.replace("windows-", "cp").replace("macintosh", "mac-roman")
    try:
        "".encode(name)
    except LookupError:
        return "utf-8-sig"
    return "utf-8-sig" if name in ("utf-8", "utf8") else name


def decode(data: bytes, content_type: str) -> str:
    """The text, with replacement characters for bytes that do not decode."""
    return data.decode(charset_of(content_type), "replace")


def html_to_text(html: str, url: str) -> str:
    """A page as lines of text: headings marked with #, items with -, links as `text (url)`."""
    from lxml import etree

    reader = _Reader(url)
    # lxml calls `reader` as it reads and builds no tree, so neither depth nor size take memory.
    parser = etree.HTMLParser(target=reader, encoding="utf-8", huge_tree=True)
    deadline = time.monotonic() + MAX_SECONDS
    data = html.encode("utf-8", "replace")
    for start in range(0, len(data), _PIECE):
        parser.feed(data[start : start + _PIECE])
        if time.monotonic() > deadline:
            return reader.close() + "\n(the rest of the page could not be read in time)"
    try:
        return str(parser.close())
    except etree.XMLSyntaxError:  # nothing but comments, or nothing at all
        return reader.close()


class _Reader:
    """Gathers the text of a page. lxml ends each element that it begins, also where the page does not."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pieces: list[str] = []
        self._skipped = 0
        """How deep inside elements that are not shown."""
        self._preformatted = 0
        self._link: tuple[str, int] | None = None

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Begin a line, a heading, an item or a link."""
        if self._skipped or tag in _SKIPPED:
            self._skipped += 1
        elif tag in _BLOCKS:
            self._new_line()
            self._pieces += [f"{_HEADINGS[tag]} "] if tag in _HEADINGS else ["- "] if tag == "li" else []
            self._preformatted += tag == "pre"
        elif tag in ("td", "th"):
            self._pieces.append(" | " if self._in_line() else "")
        elif tag == "a" and attributes.get("href"):
            self._link = (attributes["href"], len(self._pieces))
        elif tag == "img" and attributes.get("alt"):
            self.data(f"[image: {attributes['alt']}]")

    def end(self, tag: str) -> None:
        """End it."""
        if self._skipped:
            self._skipped -= 1
        elif tag == "a":
            self._end_link()
        elif tag in _BLOCKS:
            self._new_line()
            if tag in ("p", "table", "ul", "ol", "pre", "blockquote") or tag in _HEADINGS:
                self._pieces.append("\n")
            self._preformatted -= tag == "pre"

    def data(self, data: str) -> None:
        """Text; spaces count for one, except in preformatted text."""
        if self._skipped:
            return
        if not self._preformatted:
            data = _SPACES.sub(" ", data)
            if not self._in_line() or self._pieces[-1].endswith(" "):
                data = data.removeprefix(" ")
        if data:
            self._pieces.append(data)

    def close(self) -> str:
        """What was gathered: no line is blank twice, none ends in spaces."""
        text = "\n".join(line.rstrip() for line in "".join(self._pieces).split("\n"))
        return re.sub(r"\n{3,}", "\n\n", text).strip("\n")

    def _in_line(self) -> bool:
        return bool(self._pieces) and not self._pieces[-1].endswith("\n")

    def _new_line(self) -> None:
        if self._in_line():
            self._pieces.append("\n")

    def _end_link(self) -> None:
        """Put the address after a link's text, unless it leads nowhere else or is itself the text."""
        if self._link is None:
            return
        (href, start), self._link = self._link, None
        label = "".join(self._pieces[start:]).strip()
        try:
            address = urljoin(self._url, href.strip())
        except ValueError:
            return
        away = not href.startswith("#") and address.startswith(("http://", "https://", "mailto:"))
        if label and away and address.removeprefix("mailto:") != label:
            self._pieces.append(f" ({_SPACES.sub('%20', address)})")


http_get = make_http_get()
"""The tool as it ships."""


def web(_: Path) -> list[Tool]:
    """The tool, whose libraries have to be there. Raises UsageError."""
    require()
    return [http_get]
