"""Drafts the next tokens of a lane from what it has already read: arguments repeat the user's words.

The engine evaluates a draft in one call and draws at every position of it as it would have drawn alone. So a
draft does not choose tokens; it decides how many of them come from one call. If the last few tokens also
occur earlier in the sequence, what followed them there is the draft.

A call for several tokens costs more than one for a single token, and a model with recurrent state evaluates
the right part of a draft again when the rest was wrong. So it is measured as it goes: as long as drafts cost
more time than they save, there are fewer and fewer of them.
"""

from __future__ import annotations

from collections.abc import Sequence

_MATCH = 3
"""Tokens at the end of a sequence that must also occur earlier in it."""
_SHORTEST, _LONGEST = 3, 12
"""Tokens of a draft."""
_PAUSE, _LONGEST_PAUSE = 8, 512
"""Tokens without a draft after one that did not pay; twice as many each time."""
_MEMORY = 0.8
"""The weight of what was measured before against what is measured now."""


class PromptLookup:
    """The drafts of one generation, and whether they pay."""

    def __init__(self, ids: Sequence[int]) -> None:
        """`ids`: the prompt."""
        self._ids = list(ids)
        self._places: dict[tuple[int, ...], int] = {}
        """Where the tokens that follow a run of `_MATCH` tokens begin; of several places the last one."""
        self._indexed = 0
        self._length = _SHORTEST
        self._pause = _PAUSE
        self._resting = 0
        self._plain = 0.0
        """Seconds for one token without a draft."""
        self._saved = 0.0
        """Seconds that a draft has saved of late; negative where it cost some."""

    def drawn(self, tokens: Sequence[int]) -> None:
        """These tokens were drawn."""
        self._ids += tokens
        self._resting = max(0, self._resting - len(tokens))

    def draft(self, most: int) -> Sequence[int]:
        """At most `most` tokens that may come next; none where nothing is known or it does not pay."""
        if self._resting or most < _SHORTEST or not self._plain:
            return ()
        ids, places = self._ids, self._places
        # The end of the sequence itself is no place to look at: nothing follows it yet.
        for end in range(max(self._indexed, _MATCH), len(ids)):
            places[tuple(ids[end - _MATCH : end])] = end
        self._indexed = len(ids)
        at = places.get(tuple(ids[-_MATCH:]))
        if at is None:
            return ()
        draft = ids[at : at + min(self._length, most)]
        return draft if len(draft) >= _SHORTEST else ()

    def took(self, seconds: float, drafted: int = 0, came: int = 1) -> None:
        """A call of the engine took so long: `drafted` tokens were evaluated more, `came` were drawn."""
        if not drafted:
            self._plain = _blend(self._plain, seconds) if self._plain else seconds
            return
        self._saved = _blend(self._saved, came * self._plain - seconds)
        if came > drafted:
            self._length = min(2 * self._length, _LONGEST)
        else:
            self._length = max(self._length // 2, _SHORTEST)
        if self._saved >= 0:
            self._pause = _PAUSE
        else:
            self._resting = self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._saved = 0.0  # the next draft has another chance


def _blend(before: float, now: float) -> float:
    return _MEMORY * before + (1 - _MEMORY) * now
