"""What a model is shown of bytes from the web: text in a known charset, pages without their markup.

Knows charsets and HTML. Knows nothing of connections. Contract: total, and bounded in time for any input;
what cannot be read in that time is left out, and that is said.
"""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from urllib.parse import urljoin

MAX_SECONDS = 3.0
"""For one page. The parser of the standard library takes quadratic time on some broken ones."""

# Not every codec is one for the web: some of Python's take quadratic time, or run other code.
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


def charset_of(content_type: str) -> str:
    """The charset that a Content-Type header names; UTF-8 when it names none, or none for the web."""
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
    """The text, with replacement characters for what is wrong in it."""
    return data.decode(charset_of(content_type), "replace")


def html_to_text(html: str, url: str) -> str:
    """A page as lines of text: headings marked with #, items with -, links as `text (url)`."""
    reader = _Reader(url, time.monotonic() + MAX_SECONDS)
    note = ""
    try:
        reader.feed(html)
        reader.close()
    except _OutOfTime:
        note = "\n(the rest of the page could not be read in time)"
    return reader.text() + note


class _OutOfTime(Exception):
    """The page takes too long."""


class _Reader(HTMLParser):
    """Gathers the text of a page as it is parsed."""

    def __init__(self, url: str, deadline: float) -> None:
        super().__init__(convert_charrefs=True)
        self._url = url
        self._deadline = deadline
        self._pieces: list[str] = []
        self._skipping: list[str] = []
        self._preformatted = 0
        self._link: tuple[str, int] | None = None

    def text(self) -> str:
        """What was gathered: no line is blank twice, none ends in spaces."""
        lines = [line.rstrip() for line in "".join(self._pieces).split("\n")]
        text = "\n".join(lines)
        return re.sub(r"\n{3,}", "\n\n", text).strip("\n")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a line, a heading, an item or a link."""
        self._check_time()
        if tag in _SKIPPED:
            self._skipping.append(tag)
        if self._skipping:
            return
        if tag in _BLOCKS:
            self._new_line()
            self._pieces += [f"{_HEADINGS[tag]} "] if tag in _HEADINGS else ["- "] if tag == "li" else []
        elif tag in ("td", "th"):
            self._pieces.append(" | " if self._in_line() else "")
        self._preformatted += tag == "pre"
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self._end_link()
            self._link = (given["href"] or "", len(self._pieces))
        elif tag == "img" and given.get("alt"):
            self.handle_data(f"[image: {given['alt']}]")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """HTML knows no `<tag/>`: only what is inside SVG ends so."""
        if tag not in _SKIPPED:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        """End whatever it ends."""
        self._check_time()
        if self._skipping:
            if tag in self._skipping:  # what is left open inside ends with it
                while self._skipping.pop() != tag:
                    pass
            return
        if tag == "a":
            self._end_link()
        elif tag in _BLOCKS:
            self._new_line()
            if tag in ("p", "table", "ul", "ol", "pre", "blockquote") or tag in _HEADINGS:
                self._pieces.append("\n")
        self._preformatted = max(0, self._preformatted - (tag == "pre"))

    def handle_data(self, data: str) -> None:
        """Text; spaces count for one, except in preformatted text."""
        self._check_time()
        if self._skipping:
            return
        if not self._preformatted:
            data = _SPACES.sub(" ", data)
            if not self._in_line() or self._pieces[-1].endswith(" "):
                data = data.removeprefix(" ")
        if data:
            self._pieces.append(data)

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Pass over `<![...>`, of which HTML has none: the standard library's own raises AssertionError."""
        return self.parse_bogus_comment(i, report)

    def handle_comment(self, data: str) -> None:
        """Nothing to read."""
        self._check_time()

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise _OutOfTime

    def _in_line(self) -> bool:
        return bool(self._pieces) and not self._pieces[-1].endswith("\n")

    def _new_line(self) -> None:
        if self._in_line():
            self._pieces.append("\n")

    def _end_link(self) -> None:
        """Put the address behind a link's text, unless it leads nowhere else or is itself the text."""
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
