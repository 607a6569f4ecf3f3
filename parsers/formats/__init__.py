"""The formats that can be read, one family in one place: its table, its grammar, and how it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..dialect import Dialect
from . import (
    deepseek_v3,
    functionary,
    gemma,
    glm,
    harmony,
    inkling,
    json_objects,
    kimi_k2,
    kimi_k3,
    minimax_m3,
    mistral,
    muse,
    python_lists,
    raw_tags,
    solar,
    step3,
    token_pairs,
)
from .objects.bare import BareCalls

_OWN = frozenset({"lfm2"})
"""LFM2's [bare-list] says which calls without markers count: lists in Python, and no JSON."""

DIALECTS: Mapping[str, Dialect] = {
    # Where calls have markers, those without count if a turn holds nothing else [bare-object].
    dialect.name: replace(dialect, bare=BareCalls) if dialect.calls and dialect.name not in _OWN else dialect
    for family in (
        python_lists,
        json_objects,
        raw_tags,
        glm,
        token_pairs,
        mistral,
        deepseek_v3,
        kimi_k2,
        solar,
        harmony,
        gemma,
        kimi_k3,
        minimax_m3,
        muse,
        inkling,
        step3,
        functionary,
    )
    for dialect in family.ALL
}
"""Every dialect by its name."""


def dialect_named(name: str) -> Dialect:
    """The dialect of that name or alias; capitals do not count. Raises ValueError, which lists the names."""
    if name in DIALECTS:
        return DIALECTS[name]
    wanted = name.casefold()
    for dialect in DIALECTS.values():
        if wanted in map(str.casefold, (dialect.name, *dialect.aliases)):
            return dialect
    raise ValueError(f"no dialect {name!r}: there are {', '.join(sorted(DIALECTS))}")
