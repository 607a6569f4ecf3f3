"""The one shield against forged control tokens: content passes through a template without spelling any.

The first character of every special token in content is replaced by a placeholder. After rendering, the
placeholders show where content stands that only looks like a token.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from localagent.errors import TemplateFailed
from localagent.messages.values import MAX_REQUEST_DEPTH
from localagent.prompt.segments import Mixed, Rendered, Segment, TooManyTokens, Trusted

LETTERS = range(0x20000, 0x2A6E0)
"""CJK extension B: letters that hardly any text uses, and that every format of calls writes as they are."""
# The first ones let a plain text stay at a byte a character; the second range is Yi syllables.
_RARE = (*map(ord, "\xa4\xa6\xac"), *range(0xA000, 0xA48D), *LETTERS)
_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_SPECIAL = 500_000  # characters of all special tokens
_MAX_BRANCHES = 20  # of a pattern, one within the other


class Shield:
    """Hides the first character of every special token that content spells.

    One character is enough, so a dozen placeholders serve any vocabulary. A placeholder is a single
    character, because a template cannot cut it in two, and one that stands nowhere in the content or in
    `avoid`. It is printable and has no upper case, because templates also write values with `repr`, which
    escapes what is unprintable, and with `upper` and `trim`.
    """

    def __init__(
        self, special_tokens: Collection[str], avoid: str = "", placeholders: Iterable[int] = _RARE
    ) -> None:
        """`placeholders` are code points. Raises TemplateFailed for a vocabulary with too much in it."""
        self._tokens = sorted({token for token in special_tokens if token})
        if (size := sum(map(len, self._tokens))) > _MOST_SPECIAL:
            raise TemplateFailed(
                f"the vocabulary's special tokens have {size:,} characters: {_MOST_SPECIAL:,} are allowed"
            )
        self._initials = sorted({token[0] for token in self._tokens})
        self._spelled = re.compile(_any_of(self._tokens)) if self._tokens else None
        self._longest = max(map(len, self._tokens), default=0)
        self._avoid = avoid
        self._placeholders = placeholders

    def hide(self, content: Any, limit: float = math.inf, *, keys: bool = True) -> tuple[Any, dict[str, str]]:
        """A copy of JSON-shaped `content` with its strings made safe, and what the placeholders stand for.

        A string that spells more than `limit` special tokens has whatever could begin one replaced: that is
        quick, and nobody will read it, since `reveal` then finds too many. `keys`: those of objects, too.
        Raises TemplateFailed.
        """
        strings = [self._avoid]
        _gather(content, strings, 0)
        unused = (letter for letter in map(chr, self._placeholders) if not any(letter in s for s in strings))
        hidden = dict(zip(self._initials, unused, strict=False))
        if len(hidden) < len(self._initials):
            raise TemplateFailed("the messages leave no rare character unused to mark special tokens with")
        return self._copy(content, hidden, limit, keys), {
            letter: initial for initial, letter in hidden.items()
        }

    def _copy(self, value: Any, hidden: Mapping[str, str], limit: float, keys: bool) -> Any:
        match value:
            case Trusted():
                return whole(value)
            case str():
                return self._hide(value, hidden, limit)
            case Mixed():
                return "".join(self._copy(piece, hidden, limit, keys) for piece in value)
            case Mapping():
                return {
                    # Only whole tokens: a template finds values by their keys.
                    self._hide(key, hidden, limit, ending=False) if keys else key: self._copy(
                        item, hidden, limit, keys
                    )
                    for key, item in value.items()
                }
            case list() | tuple():
                return [self._copy(item, hidden, limit, keys) for item in value]
        return value

    def _hide(self, text: str, hidden: Mapping[str, str], limit: float, ending: bool = True) -> str:
        """`text` with the first character of every special token replaced, also of one cut off at its end."""
        text = whole(text)
        if self._spelled is None:
            return text
        places: list[int] = []
        found = self._spelled.search(text)
        while found:
            if len(places) >= limit:
                for initial, letter in hidden.items():
                    text = text.replace(initial, letter)
                return text
            places.append(found.start())
            found = self._spelled.search(text, found.start() + 1)  # tokens may overlap
        if ending:
            places = sorted({*places, *self._cut_off(text)})
        pieces: list[str] = []
        done = 0
        for at in places:
            pieces += text[done:at], hidden[text[at]]
            done = at + 1
        return "".join(pieces) + text[done:] if pieces else text

    def _cut_off(self, text: str) -> Iterator[int]:
        """Where a special token begins that the end of `text` cuts off, with or without the spaces there.

        A template may write one piece of content directly before another, and trim it: half a token can stand
        here and the other half there.
        """
        trimmed = len(text.rstrip())
        for at in range(max(0, trimmed - self._longest), len(text)):
            if text[at] in self._initials and (self._begins(text[at:]) or self._begins(text[at:trimmed])):
                yield at

    def _begins(self, text: str) -> bool:
        """Whether a special token begins with `text` and goes on."""
        after = bisect_right(self._tokens, text)
        return bool(text) and after < len(self._tokens) and self._tokens[after].startswith(text)


def reveal(rendered: str, shown: Mapping[str, str], limit: float = math.inf) -> Rendered:
    """Cut a rendered text at its placeholders, and put back the characters that they stand for.

    Raises TooManyTokens where there are more than `limit`.
    """
    rendered = whole(rendered)  # a template can spell lone surrogates, too
    marks = [letter for letter in shown if letter in rendered]
    if not marks:
        return Rendered((Segment(rendered, special=True),) if rendered else ())
    if (least := sum(map(rendered.count, marks))) > limit:
        raise TooManyTokens(least)
    segments: list[Segment] = []
    done = 0
    for found in re.finditer(f"[{re.escape(''.join(marks))}]", rendered):
        if found.start() > done:
            segments.append(Segment(rendered[done : found.start()], special=True))
        segments.append(Segment(shown[found[0]], special=False))
        done = found.end()
    if done < len(rendered):
        segments.append(Segment(rendered[done:], special=True))
    return Rendered(tuple(segments))


def whole(text: str) -> str:
    """`text` without lone surrogates, which tokenizers refuse."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _any_of(words: Sequence[str], depth: int = 0) -> str:
    """A pattern that finds the sorted `words`, or of two that begin alike the shorter one.

    A tree of their letters, so that a text full of beginnings takes no longer for a large vocabulary.
    """
    branches = []
    for _, group in groupby(words, key=lambda word: word[0]):
        alike = list(group)
        first, last = alike[0], alike[-1]  # sorted: what these share, all share
        shared = next((at for at, letter in enumerate(first) if letter != last[at]), len(first))
        if shared == len(first):
            branches.append(re.escape(first))
        elif depth < _MAX_BRANCHES:
            rest = [word[shared:] for word in alike]
            branches.append(re.escape(first[:shared]) + _any_of(rest, depth + 1))
        else:
            branches += map(re.escape, alike)
    return f"(?:{'|'.join(branches)})"


def _gather(value: Any, strings: list[str], depth: int) -> None:
    """Collect the strings of a JSON-shaped value. Raises TemplateFailed for one of another shape."""
    if depth > MAX_REQUEST_DEPTH:
        raise TemplateFailed(f"messages and tools may be nested {MAX_REQUEST_DEPTH} deep, not deeper")
    match value:
        case str():
            strings.append(value)
        case None | bool() | int() | float():
            pass
        case Mapping():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise TemplateFailed(f"messages and tools have strings as keys, not {type(key).__name__}")
                strings.append(key)
                _gather(item, strings, depth + 1)
        case list() | tuple():
            for item in value:
                _gather(item, strings, depth + 1)
        case _:
            raise TemplateFailed(f"messages and tools hold JSON values, not {type(value).__name__}")
