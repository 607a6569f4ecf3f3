"""A dialect by its name or its file, and whether a model can have learned to write it."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from localagent.errors import DialectMismatch, UnknownDialect
from parsers import DIALECTS, Dialect
from parsers.custom import InvalidDialect, load_dialect

AUTO = "auto"
"""In the place of a dialect's name: find it out."""

CONTROL = re.compile("<[|\uff5c][^<>]+>|<[^<>]+[|\uff5c]>|\\[[A-Z_]+\\]")  # DeepSeek's bars are wide
"""The look of a control token: text that nobody writes as words."""


def find_dialect(name: str | Path) -> Dialect:
    """The dialect of that name, or the one that the TOML file of that path describes; see `parsers.custom`.

    Raises UnknownDialect with the names there are, or with what is wrong with the file.
    """
    if isinstance(name, str) and name in DIALECTS:
        return DIALECTS[name]
    if str(name).endswith(".toml"):
        try:
            return load_dialect(Path(name).expanduser())
        except (InvalidDialect, RuntimeError) as error:  # the latter: `~nobody`
            raise UnknownDialect(str(error)) from error
    with suppress(OSError, RuntimeError, ValueError):  # too long, no such user, a NUL in it
        if str(name) and Path(name).expanduser().exists():
            raise UnknownDialect(f"{name} has another ending: the file of a dialect ends in .toml")
    if isinstance(name, Path):
        raise UnknownDialect(f"no such file: {name}")
    raise UnknownDialect(
        f"no dialect {name!r}: there are {', '.join(sorted(DIALECTS))}, and TOML files of your own"
    )


def require_markers(
    dialect: Dialect, special_tokens: AbstractSet[str], model: str, template: str | None = None
) -> None:
    """Raise DialectMismatch where the model cannot have learned to write the calls of `dialect`.

    That is so only if a marker with which the dialect writes calls is a control token by its look, `<|...|>`
    or `[CAPITALS]`, and neither in the vocabulary nor mentioned by the chat template. All others, such as
    `<tool_call>`, may be written in ordinary tokens, and some formats have calls without markers, too.
    """
    if dialect.calls is None or (dialect.opening is not None and dialect.opening({}) is not None):
        return
    written = dialect.render([("f", {})])
    markers = [marker for marker in (dialect.calls.open, dialect.calls.close) if marker in written]
    tokens = [dialect.cores.get(marker, marker) for marker in markers]
    missing = [
        token
        for token in tokens
        if CONTROL.fullmatch(token) and token not in special_tokens and token not in (template or "")
    ]
    if missing:
        raise DialectMismatch(
            f"the dialect {dialect.name!r} needs {' and '.join(missing)}, which {model} lacks in its "
            "vocabulary: let the dialect be detected, or choose another model"
        )
