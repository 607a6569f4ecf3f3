"""Finds a dialect by its name or file, and checks that a model can write it."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from localagent.errors import DialectMismatch, UnknownDialect
from localagent.parsers import DIALECTS, Dialect, dialect_named
from localagent.parsers.custom import InvalidDialect, load_declared, load_dialect

AUTO = "auto"
"""In place of a dialect's name: detect it."""

CONTROL = re.compile("<[|\uff5c][^<>]+>|<[^<>]+[|\uff5c]>|\\[[A-Z_]+\\]")  # DeepSeek's bars are wide
"""The look of a control token: text that nobody writes as words."""


def asked_dialect(name: str | Path | None) -> Dialect | None:
    """As `find_dialect`; None where nothing or AUTO is asked for, and the weights are to tell."""
    return None if name is None or name == AUTO else find_dialect(name)


def find_dialect(name: str | Path) -> Dialect:
    """The dialect with that name or alias, or the one described by that TOML file; see `parsers.custom`.

    Raises UnknownDialect, which lists the names or says what is wrong with the file.
    """
    if isinstance(name, str):
        with suppress(ValueError):
            return dialect_named(name)
    if str(name).endswith(".toml"):
        try:
            return load_dialect(Path(name).expanduser())
        except (InvalidDialect, RuntimeError) as error:  # the latter: `~nobody`
            raise UnknownDialect(str(error)) from error
    with suppress(OSError, RuntimeError, ValueError):  # too long, no such user, a NUL in it
        if str(name) and Path(name).expanduser().exists():
            raise UnknownDialect(f"{name} is not a .toml file: a dialect is described in one")
    if isinstance(name, Path):
        raise UnknownDialect(f"no such file: {name}")
    raise UnknownDialect(
        f"no dialect {name!r}: choose {', '.join(sorted(DIALECTS))}, or a TOML file of your own"
    )


def find_declared(path: str | Path) -> Dialect:
    """The dialect that a model declares in that `tokenizer_config.json`, or in the folder that holds it.

    Raises UnknownDialect, which says what is wrong with the file.
    """
    try:
        return load_declared(Path(path).expanduser())
    except (InvalidDialect, RuntimeError, ValueError) as error:  # `~nobody`, a NUL in the path
        raise UnknownDialect(str(error)) from error


def require_markers(
    dialect: Dialect, special_tokens: AbstractSet[str], model: str, template: str | None = None
) -> None:
    """Raise DialectMismatch if the model cannot have learned to write the calls of `dialect`.

    That is so only if a marker of its calls looks like a control token, `<|...|>` or `[CAPITALS]`, and is
    neither in the vocabulary nor in the chat template. Other markers, such as `<tool_call>`, may be written
    in ordinary tokens, and some formats have no markers.
    """
    if dialect.calls is None or (dialect.opening is not None and dialect.opening({}) is not None):
        return
    if not dialect.renderers:
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
