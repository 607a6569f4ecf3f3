"""The text of past generations, with the ids that it was made of.

When a model is shown its own text again, it must see the original tokens: tokenizing the text again can split
it differently, and then no evaluated state fits.

`longest(key)` returns the longest known prefix of a conversation, with its ids. Known means generated with
exactly this text, with control tokens in the same places. `key` comes from `spell`, which keeps control
tokens apart from text that only looks like them, so that content cannot pass for a turn of the model. Any
thread may call these.
"""

from __future__ import annotations

import re
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from localagent.hosts.protocol import Token
from localagent.hosts.utf8 import Piece
from localagent.prompt.segments import Prompt, Segment
from localagent.prompt.template import ChatTemplate

_MOST_CUT = 32  # tokens at an end that do not spell whole characters
_MOST_CONVERSATIONS = 256  # and as many answers to one prompt
# Possessive: a long text leaves no trail of places to backtrack to.
_UNIT = re.compile("\0\1((?:[^\0]++|\0\0)*+)\0\2|((?:[^\0]++|\0\0)++)")


def spell(segments: Iterable[Segment]) -> str:
    """Segments as one string, which says of every character whether it may be part of a control token."""
    pieces = []
    for text, special in segments:
        escaped = text.replace("\0", "\0\0")
        pieces.append(escaped if special else f"\0\1{escaped}\0\2")
    return "".join(pieces)


def unspell(key: str, begin: int = 0) -> list[Segment]:
    """The segments of a key, or of what follows a prefix of `begin` characters that is itself a key."""
    return [
        Segment((found[2] if found[1] is None else found[1]).replace("\0\0", "\0"), found[1] is None)
        for found in _UNIT.finditer(key, begin)
    ]


@dataclass(slots=True, eq=False)
class _Turn:
    """What one generation, with the prompt before it, added to its parent."""

    text: str = ""
    ids: array[int] = field(default_factory=lambda: array("i"))
    later: list[_Turn] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes, about, with all that came later."""
        found, open_turns = 0, [self]
        while open_turns:
            turn = open_turns.pop()
            found += len(turn.text) + 4 * len(turn.ids) + 200
            open_turns += turn.later
        return found


class Transcripts:
    """A tree of turns. The conversations used least recently are forgotten first.

    `borders`: the control tokens. A known part of a prompt is used only where the prompt ends there or one of
    these follows: anywhere else the known tokens could end within what is one token of the prompt.
    """

    def __init__(self, borders: Iterable[str] = (), budget: int = 64 << 20) -> None:
        """`budget`: bytes, about."""
        self._borders = tuple(border for border in borders if border)
        self._budget = budget
        self._root = _Turn()
        self._size = 0
        self._lock = threading.Lock()

    def longest(self, key: str) -> tuple[int, tuple[int, ...]]:
        """The length of the longest known prefix of `key` in characters, and its ids."""
        with self._lock:
            path, length = self._furthest(key)
            if path:  # used just now, so it is the last to be forgotten
                for parent, turn in zip([self._root, *path], path, strict=False):
                    parent.later.remove(turn)
                    parent.later.append(turn)
            return length, tuple(token for turn in path for token in turn.ids)

    def add(self, key: str, ids: Sequence[int]) -> None:
        """Remember that `ids` spell `key`."""
        with self._lock:
            self._attach(key, array("i", ids))

    def learn(self, turns: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        """Remember a whole conversation, as `along` gave it."""
        key, ids = "", array("i")
        with self._lock:
            for text, more in turns:
                key += text
                ids.extend(more)
                self._attach(key, ids)

    def along(self, ids: Sequence[int]) -> list[tuple[str, tuple[int, ...]]]:
        """The turns that `ids` go through, oldest first: what a snapshot of `ids` has to remember.

        The last token of a turn may be missing, since an engine evaluates it only when it is followed.
        """
        with self._lock:
            found: list[tuple[str, tuple[int, ...]]] = []
            turn: _Turn | None = self._root
            at, whole = 0, array("i", ids)
            while turn is not None:
                turn = next((later for later in turn.later if _goes_on(later.ids, whole, at)), None)
                if turn is not None:
                    found.append((turn.text, tuple(turn.ids)))
                    at += len(turn.ids)
            return found

    def _furthest(self, key: str) -> tuple[list[_Turn], int]:
        """The path that leads furthest into `key` and ends at a border; the one used last among equals."""
        best: tuple[list[_Turn], int] = ([], 0)
        paths: list[tuple[list[_Turn], int]] = [([], 0)]
        while paths:
            path, at = paths.pop()
            if at > best[1] and (at == len(key) or key.startswith(self._borders, at)):
                best = path, at
            later = path[-1].later if path else self._root.later
            # The last one is taken up first, and only a longer way is better.
            paths += [([*path, turn], at + len(turn.text)) for turn in later if key.startswith(turn.text, at)]
        return best

    def _attach(self, key: str, ids: array[int]) -> None:
        """Add what `key` has beyond the turns that it goes on from, in text and in ids."""
        turn, at, known = self._root, 0, 0
        while following := next(
            (
                later
                for later in turn.later
                if key.startswith(later.text, at) and ids[known : known + len(later.ids)] == later.ids
            ),
            None,
        ):
            turn, at, known = following, at + len(following.text), known + len(following.ids)
        if at == len(key) or known == len(ids):
            return
        fresh = _Turn(key[at:], ids[known:])
        turn.later.append(fresh)
        self._size += fresh.size
        surplus = turn.later[:-_MOST_CONVERSATIONS]
        del turn.later[:-_MOST_CONVERSATIONS]
        self._size -= sum(each.size for each in surplus)
        while self._size > self._budget and len(self._root.later) > 1:
            self._size -= self._root.later.pop(0).size


def _goes_on(more: array[int], ids: array[int], at: int) -> bool:
    """Whether `more` stands in `ids` at `at`, but for its last token perhaps."""
    rest = ids[at : at + len(more)]
    return len(rest) >= max(1, len(more) - 1) and rest == more[: len(rest)]


def recorder(
    prompt: Prompt,
    template: ChatTemplate | None,
    transcripts: Transcripts | None,
    piece: Callable[[int], Piece],
) -> Callable[[Sequence[Token]], None]:
    """A function that remembers the tokens of a finished generation, so that they can be used again.

    They are remembered with the very text that their bytes spell. A prompt whose ids are not those that its
    text was rendered to is not remembered.
    """

    def record(tokens: Sequence[Token]) -> None:
        key = prompt.key
        if key is None or key.ids is not prompt.ids or template is None or transcripts is None:
            return
        if spoken := _spoken(tokens, piece):
            text = key.text + spell(_segments(spoken, template))
            transcripts.add(text, (*prompt.ids, *(token.id for token in spoken)))

    return record


def _spoken(tokens: Sequence[Token], piece: Callable[[int], Piece]) -> Sequence[Token]:
    """The tokens without the end token, as far as their bytes are their text.

    A stop string may have cut the last one, or the consumer may have left in the middle of a character.
    """
    tokens = tokens[:-1] if tokens and tokens[-1].end else tokens
    text = "".join(token.text for token in tokens).encode()
    data = b"".join(piece(token.id).data for token in tokens)
    for _ in range(_MOST_CUT):
        if text == data or not tokens:
            return tokens
        text = text[: len(text) - len(tokens[-1].text.encode())]
        data = data[: len(data) - len(piece(tokens[-1].id).data)]
        tokens = tokens[:-1]
    return ()


def _segments(tokens: Sequence[Token], template: ChatTemplate) -> list[Segment]:
    """The segments that the generated text will be rendered to when it is shown again."""
    segments: list[Segment] = []
    plain = ""
    for token in tokens:
        if not token.special:
            plain += token.text
            continue
        segments += template.guard(plain)
        segments.append(Segment(token.text, special=True))
        plain = ""
    return [*segments, *template.guard(plain)]
