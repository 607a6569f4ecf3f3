"""How the tags of a name and pairs are spelled."""

from __future__ import annotations

from dataclasses import dataclass

from ...literals.near import NearTags, near_tags


@dataclass(frozen=True, slots=True)
class PairShape:
    """How the tags are spelled. `value` is "" where the tag behind the key opens the value as well.

    `separator`: what may stand between the name and the pairs. `kind`: the tags around a type, which may
    stand between key and value. `closers`: what ends a call besides its own closing tag. `namespace`: what
    models write in front of the names of declared tools. `slips`: whether they leave out
    tags of values [tags-of-pairs]. `bare`: whether a name alone is a call without arguments.
    """

    key: str = "<arg_key>"
    key_end: str = "</arg_key>"
    value: str = "<arg_value>"
    value_end: str = "</arg_value>"
    separator: str = ""
    kind: tuple[str, str] | None = None
    closers: tuple[str, ...] = ()
    namespace: str = ""
    slips: bool = False
    bare: bool = True

    @property
    def tags(self) -> tuple[str, ...]:
        """Every tag within a call."""
        tags = (self.key, self.key_end, self.value, self.value_end, self.separator, *(self.kind or ()))
        return tuple(dict.fromkeys(tag for tag in (*tags, *self.closers) if tag))

    @property
    def near(self) -> NearTags:
        """What is nearly the tag behind a value, or the one in front of a key."""
        return near_tags((self.value_end,), (self.key,), others=(self.key_end,))


GLM = PairShape(slips=True)
"""GLM 4.5 and what follows it."""
GLM_ELSEWHERE = PairShape(slips=True, bare=False)
"""The same in formats of other notations, where a word alone between the markers is no call."""
