"""A prompt on its way to token ids: text that says of each part whether it may hold control tokens.

    content, `Trusted`, `Mixed`  --ChatTemplate.render-->  `Rendered`  --Host.render-->  `Prompt`

Users, tools and the network write content. The program and the template write everything else. Only in what
these two wrote is `<|im_end|>` the token of that name; in content it is ten ordinary characters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


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
    """A rendered conversation, not yet tokenized."""

    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """What the segments join to: a copy, where there are several."""
        return "".join(segment.text for segment in self.segments)

    @property
    def tail(self) -> str:
        """The end of the text, after the last place where content spells a special token.

        A special token at its end is one that the template itself wrote.
        """
        return self.segments[-1].text if self.segments and self.segments[-1].special else ""


@dataclass(frozen=True, slots=True)
class Spelling:
    """A rendered text with its control tokens told apart, and the very ids that it was rendered to."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap in a text, for a model that was trained to fill one. `others`: names and texts of other files,
    which come first.
    """

    before: str
    after: str
    others: tuple[tuple[str, str], ...] = ()


Raw = str | tuple[int, ...] | Gap
"""A prompt without a chat template: a text or ids to continue, or a gap to fill. Control tokens are
recognised in a text to continue, but not in those around a gap."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation: token ids, the text they spell, and the span it leaves open.

    `inside` is "reasoning" when the chat template ends by opening a reasoning block; a host leaves it None,
    since only the dialect can tell. `key` is the host's own mark, by which it finds the tokens again that the
    model wrote. `tail` is the end of the text as far as no content can have forged control tokens there; None
    means all of it.
    """

    ids: tuple[int, ...]
    text: str
    inside: Literal["reasoning"] | None = None
    key: Spelling | None = None
    tail: str | None = None


class TooManyTokens(Exception):
    """There are certainly more tokens than were allowed: at least `least`."""

    def __init__(self, least: int) -> None:
        self.least = least
        super().__init__(f"at least {least:,} tokens")
