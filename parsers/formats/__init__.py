"""The formats that can be read, one family in one place: its table, its grammar, and how it is written."""

from __future__ import annotations

from collections.abc import Mapping

from parsers.dialect import Dialect
from parsers.formats import gemma, harmony, kimi_k3, minimax_m3, muse, named, pairs, token_pairs
from parsers.formats.lists import table as lists
from parsers.formats.objects import table as objects
from parsers.formats.tags import table as tags

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for family in (lists, objects, tags, pairs, token_pairs, named, harmony, gemma, kimi_k3, minimax_m3, muse)
    for dialect in family.ALL
}
"""Every dialect by its name."""
