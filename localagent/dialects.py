"""Which parser dialect reads a model's output: by name, or by the model's vocabulary."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from localagent.errors import UnknownDialect
from parsers import DIALECTS, Dialect


def find_dialect(name: str) -> Dialect:
    """The dialect of that name. Raises UnknownDialect with the names there are."""
    if name not in DIALECTS:
        raise UnknownDialect(f"no dialect {name!r}: there are {', '.join(sorted(DIALECTS))}")
    return DIALECTS[name]


def detect_dialect(special_tokens: AbstractSet[str]) -> Dialect:
    """The dialect of a vocabulary: the one whose call markers are both special tokens in it.

    Templates do not tell: LFM2's official ones mention neither call markers nor think tags.
    """
    for dialect in DIALECTS.values():
        if dialect.calls and special_tokens >= {dialect.calls.open, dialect.calls.close}:
            return dialect
    return DIALECTS["plain"]
