"""Blocks that hold one of several notations under the same marker, as the first character behind it tells."""

from __future__ import annotations

from collections.abc import Mapping

from ..dialect import Context, Grammar, GrammarFactory
from ..engine.source import Reading
from .objects.block import JsonBlock
from .pairs.block import PairsBlock
from .pairs.shape import PairShape
from .tags.block import TagBlock


class MixedBlock:
    """A block whose grammar is looked up by its first character. `source.pos` is at its marker."""

    def __init__(
        self, context: Context, grammars: Mapping[str, GrammarFactory], otherwise: GrammarFactory
    ) -> None:
        self._context = context
        self._grammars = grammars
        self._otherwise = otherwise

    def read(self) -> Reading:
        """Look at the first character behind the marker, go back, and read."""
        source = self._context.source
        start = source.offset
        source.keep_from(start)
        source.pos += len((yield from source.marker()))
        char = yield from source.space()
        source.rewind(start)
        source.keep_from(None)
        grammar: Grammar = self._grammars.get(char, self._otherwise)(self._context)
        yield from grammar.read()


def mixed(grammars: Mapping[str, GrammarFactory], otherwise: GrammarFactory) -> GrammarFactory:
    """Blocks read by their first character: a grammar for each, `otherwise` for all the rest."""

    def grammar(context: Context) -> Grammar:
        return MixedBlock(context, grammars, otherwise)

    return grammar


def tool_call(pairs: PairShape, objects: str = "{[") -> GrammarFactory:
    """`<tool_call>`, which opens tags, JSON, or a name with pairs: models of one write the others as well.

    `objects`: the characters with which JSON begins.
    """
    grammars = {"<": TagBlock, **dict.fromkeys(objects, JsonBlock)}
    return mixed(grammars, lambda context: PairsBlock(context, pairs))
