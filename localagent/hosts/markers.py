"""Which tokens of a vocabulary are markers of a chat format, and which those around a gap to fill.

Tokenizers also keep some tokens whole that are not control tokens. Some are markers, such as `<think>` and
`<tool_call>` in Qwen3, which content must not spell; others are ordinary text, such as runs of spaces or HTML
tags in Gemma, which it may.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

_MARKER = re.compile(r"<[^\s<>]+>|\[/?[A-Z][A-Z_]*\]")
_HTML = re.compile(
    r"</?(table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|strong|em|b|i|u|s|sub|sup|code"
    r"|p|a|ul|ol|li|div|span|br|hr|img|pre)/?>"
)


def looks_like_marker(text: str) -> bool:
    """Whether a token kept whole is a marker rather than ordinary text."""
    return _MARKER.fullmatch(text) is not None and _HTML.fullmatch(text) is None


class GapMarks(NamedTuple):
    """The ids of the tokens that stand in a prompt with a gap."""

    before: int
    """In front of what is before the gap."""
    after: int
    fill: int
    """At the end: the model then fills the gap."""
    file: int | None = None
    """In front of the name of another file."""


_GAPS = (
    ("<|fim_pre|>", "<|fim_suf|>", "<|fim_mid|>"),  # LFM2
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
_FILES = ("<|file_sep|>", "<|file_separator|>", "<file_sep>")


def find_gap_marks(token_of: Callable[[str], int | None]) -> GapMarks | None:
    """The tokens of a prompt with a gap, by the names that they have in known vocabularies.

    `token_of`: the id of the token with this text.
    """
    for names in _GAPS:
        before, after, fill = map(token_of, names)
        if before is not None and after is not None and fill is not None:
            return GapMarks(before, after, fill, next(filter(None, map(token_of, _FILES)), None))
    return None
