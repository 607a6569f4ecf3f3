"""Calls as a name and pairs, as models write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...literals.writer import RawWriter
from .shape import GLM, PairShape


@dataclass(frozen=True, slots=True)
class Pairs:
    """How a format writes one call as a name and pairs. `newline`: behind each tag.

    `around`: what each call stands between, where a block holds several. `separator`: behind the name.
    """

    newline: str
    shape: PairShape = GLM
    around: tuple[str, str] = ("", "")
    separator: str = ""

    def write(self, writer: RawWriter, name: str, arguments: Mapping[str, Any]) -> str:
        """The call, as it stands between the markers of a block."""
        shape, newline = self.shape, self.newline
        behind_key = f"{shape.key_end}{newline}{shape.value}" if shape.value else shape.key_end
        pairs = []
        for key, value in arguments.items():
            text = writer.raw(value)
            shape.near.check(text, shape.value_end)
            pairs.append(f"{shape.key}{writer.key(key)}{behind_key}{text}{shape.value_end}{newline}")
        opening, closing = self.around
        return f"{opening}{name}{self.separator}{newline}{''.join(pairs)}{closing}"

    @property
    def tags(self) -> tuple[str, ...]:
        """What no value may hold."""
        return (*self.shape.tags, *filter(None, self.around))
