"""Which tokens of a vocabulary are markers of a chat format.

Tokenizers also keep some tokens whole that are not control tokens. Some are markers, such as `<think>` and
`<tool_call>` in Qwen3, which content must not spell; others are ordinary text, such as runs of spaces or HTML
tags in Gemma, which it may.
"""

from __future__ import annotations

import re

_MARKER = re.compile(r"<[^\s<>]+>|\[/?[A-Z][A-Z_]*\]")
_HTML = re.compile(
    r"</?(table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|strong|em|b|i|u|s|sub|sup|code"
    r"|p|a|ul|ol|li|div|span|br|hr|img|pre)/?>"
)


def looks_like_marker(text: str) -> bool:
    """Whether a token kept whole is a marker rather than ordinary text."""
    return _MARKER.fullmatch(text) is not None and _HTML.fullmatch(text) is None
