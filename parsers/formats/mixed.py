"""Blocks that hold one of several notations under the same marker, as the first character behind it tells."""

from __future__ import annotations

from collections.abc import Mapping

from ..dialect import Context, Grammar, GrammarFactory
from ..engine.source import Reading
from .objects.block import JsonBlock
from .pairs.block import PairsBlock
from .pairs.shape import PairShape
from .tags.block import TagBlock

JSON_BLOCKS: Mapping[str, GrammarFactory] = dict.fromkeys("{[", JsonBlock)
"""The characters with which a block of JSON begins."""


class MixedBlock:
    """A block that one of `grammars` reads, by its first character, or else a name with pairs.

    `source.pos` is at its marker.
    """

    def __init__(self, context: Context, grammars: Mapping[str, GrammarFactory], pairs: PairShape) -> None:
        self._context = context
        self._grammars = grammars
        self._pairs = pairs

    def read(self) -> Reading:
        """Look at the first character after the marker, go back, and read."""
        source = self._context.source
        start = source.offset
        source.keep_from(start)
        source.pos += len((yield from source.marker()))
        char = yield from source.space()
        source.rewind(start)
        source.keep_from(None)
        grammar = self._grammars.get(char)
        block: Grammar = grammar(self._context) if grammar else PairsBlock(self._context, self._pairs)
        yield from block.read()


def tool_call(pairs: PairShape, json: Mapping[str, GrammarFactory] = JSON_BLOCKS) -> GrammarFactory:
    """`<tool_call>`, which opens tags, JSON, or a name with pairs: models of one write the others as well."""
    grammars = {"<": TagBlock, **json}
    return lambda context: MixedBlock(context, grammars, pairs)
