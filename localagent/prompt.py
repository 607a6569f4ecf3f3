"""Chat templates: messages in, text out, with user content unable to forge control tokens.

Knows jinja2 and the conventions of Hugging Face chat templates. Knows nothing of engines or token ids:
the caller names the vocabulary's special tokens and tokenizes what comes back.

Contract: every string inside the messages and tools is content. Where content holds the text of a special
token, `Rendered.segments` cuts its first character out as a segment of its own with `special=False`. All
other text stays in whole runs with `special=True`, so that ordinary token boundaries are as the model was
trained. Tokenizing each segment by itself therefore never turns content into a control token, even for tokens
that an engine recognises when asked not to. Text that the program itself wrote in the model's native notation
is passed as `Trusted`, or as a piece of `Mixed`, and is not cut.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, NamedTuple

from localagent.errors import TemplateFailed
from localagent.sandbox import compile_template, render_template

_SURROGATE = re.compile("[\ud800-\udfff]")
# Rare in text, printable and without case. The first ones let a plain text stay at a byte a character; the
# others are Yi syllables and CJK extension B.
_PLACEHOLDERS = ((0xA4, 0xA6, 0xAC), range(0xA000, 0xA48D), range(0x20000, 0x2A6E0))
_MAX_DEPTH = 200
_MOST_SPECIAL = 500_000  # characters of all special tokens
_MAX_BRANCHES = 20  # of a pattern, one within the other


class TooManyTokens(Exception):
    """There are certainly more tokens than were allowed: at least `least`."""

    def __init__(self, least: int) -> None:
        self.least = least
        super().__init__(f"at least {least:,} tokens")


class Trusted(str):
    """Text whose control tokens are meant: written by the program, such as a native tool-call block.

    Never wrap what a user, a tool or a network peer wrote.
    """

    __slots__ = ()


class Mixed(tuple[str, ...]):
    """One string in pieces, of which some are `Trusted` and the others are content."""

    __slots__ = ()

    def __str__(self) -> str:
        return "".join(self)


class Segment(NamedTuple):
    """A run of prompt text. `special` says whether control tokens in it are to be recognised."""

    text: str
    special: bool


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation."""

    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """What the segments join to: a copy, where there are several."""
        return "".join(segment.text for segment in self.segments)

    @property
    def tail(self) -> str:
        """The end of the text, behind the last place where content spells a special token.

        A special token at its end is one that the template itself wrote.
        """
        return self.segments[-1].text if self.segments and self.segments[-1].special else ""


class ChatTemplate:
    """A compiled chat template. Immutable once made, so any number of threads may render.

    `special_tokens` are the texts that content must not spell. Raises TemplateFailed on a missing or
    broken template.
    """

    def __init__(self, source: str | None, bos: str, eos: str, special_tokens: Collection[str]) -> None:
        if not source:
            raise TemplateFailed("the weights hold no chat template: choose an instruction-tuned model")
        self._template = compile_template(source)
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._shield = Shield(special_tokens, source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        limit: float = math.inf,
        **variables: Any,
    ) -> Rendered:
        """Render a conversation. `variables` reach the template as they are named, shielded like content.

        Raises TemplateFailed, in one line, for whatever the template refuses, and TooManyTokens when content
        spells more special tokens than `limit`: each is a token at least.
        """
        content = {"messages": list(messages), "tools": tools, "documents": None, **variables}
        values, shown = self._shield.guard(content, limit)
        values |= self._tokens | {"add_generation_prompt": add_generation_prompt}
        text = render_template(self._template, values)
        del values  # as large as the text
        return _reveal(text, shown, limit)

    def guard(self, text: str) -> tuple[Segment, ...]:
        """One piece of content by itself, as `render` would cut it."""
        return _reveal(*self._shield.guard(text)).segments if text else ()


class Shield:
    """Replaces what content must not spell by placeholders, and finds those again after rendering.

    Only the first character of a special token is replaced, so a dozen placeholders serve any vocabulary. A
    placeholder is one character, which a template cannot cut in two, that occurs nowhere in the content or
    the template. It is printable and without case, because templates also write values with `repr`, which
    escapes everything unprintable, and with `upper` and `trim`.
    """

    def __init__(self, special_tokens: Collection[str], template: str = "") -> None:
        self._tokens = sorted({token for token in special_tokens if token})
        if (size := sum(map(len, self._tokens))) > _MOST_SPECIAL:
            raise TemplateFailed(
                f"the vocabulary's special tokens have {size:,} characters: {_MOST_SPECIAL:,} are allowed"
            )
        self._initials = sorted({token[0] for token in self._tokens})
        self._spelled = re.compile(_any_of(self._tokens)) if self._tokens else None
        self._longest = max(map(len, self._tokens), default=0)
        self._template = template

    def guard(self, content: Any, limit: float = math.inf) -> tuple[Any, dict[str, str]]:
        """A copy of JSON-shaped `content` with its strings made safe, and what the placeholders mean.

        Where a string spells more than `limit` special tokens, whatever could begin one is replaced.
        """
        strings = [self._template]
        _gather(content, strings, 0)
        hidden = dict(zip(self._initials, _unused(strings), strict=False))
        if len(hidden) < len(self._initials):
            raise TemplateFailed("the messages leave no rare character unused to mark special tokens with")
        return self._copy(content, hidden, limit), {letter: initial for initial, letter in hidden.items()}

    def _copy(self, value: Any, hidden: Mapping[str, str], limit: float) -> Any:
        match value:
            case Trusted():
                return _whole(value)
            case str():
                return self._hide(value, hidden, limit)
            case Mixed():
                return "".join(self._copy(piece, hidden, limit) for piece in value)
            case Mapping():
                return {
                    # Only whole tokens: a template finds values by their keys.
                    self._hide(key, hidden, limit, ending=False): self._copy(item, hidden, limit)
                    for key, item in value.items()
                }
            case list() | tuple():
                return [self._copy(item, hidden, limit) for item in value]
        return value

    def _hide(self, text: str, hidden: Mapping[str, str], limit: float, ending: bool = True) -> str:
        """`text` with the first character of every special token replaced, and of a prefix at its end."""
        text = _whole(text)
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
            places = sorted({*places, *self._begun(text)})
        pieces: list[str] = []
        done = 0
        for at in places:
            pieces += text[done:at], hidden[text[at]]
            done = at + 1
        return "".join(pieces) + text[done:] if pieces else text

    def _begun(self, text: str) -> Iterator[int]:
        """Where a special token begins that the end of `text` cuts off, spaces behind it left out or not.

        A template may write one piece of content directly before another: a token can be spelled half here
        and half there.
        """
        trimmed = len(text.rstrip())
        for at in range(max(0, trimmed - self._longest), len(text)):
            if text[at] in self._initials and (self._begins(text[at:]) or self._begins(text[at:trimmed])):
                yield at

    def _begins(self, text: str) -> bool:
        """Whether a special token begins with `text` and goes on."""
        after = bisect_right(self._tokens, text)
        return bool(text) and after < len(self._tokens) and self._tokens[after].startswith(text)


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


def _unused(strings: Sequence[str]) -> Iterator[str]:
    """Placeholders that occur in none of the strings."""
    for letter in map(chr, chain.from_iterable(_PLACEHOLDERS)):
        if not any(letter in string for string in strings):
            yield letter


def _whole(text: str) -> str:
    """`text` without lone surrogates, which tokenizers refuse."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _gather(value: Any, strings: list[str], depth: int) -> None:
    """Collect the strings of a JSON-shaped value. Raises TemplateFailed for one of another shape."""
    if depth > _MAX_DEPTH:
        raise TemplateFailed(f"messages and tools may be nested {_MAX_DEPTH} deep, not deeper")
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


def _reveal(rendered: str, shown: Mapping[str, str], limit: float = math.inf) -> Rendered:
    """Cut a rendered text at its placeholders and put back the characters they stand for."""
    rendered = _whole(rendered)  # the template can spell lone surrogates
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
