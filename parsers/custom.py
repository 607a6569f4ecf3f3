"""Dialects from files: what a TOML file says, or what a model declares in its tokenizer's configuration.

A TOML file describes a format that differs from a known one in nothing but its markers:

    name = "my-model"
    based_on = "hermes"
    ends = ["<|eot|>"]

    [calls]
    open = "<calls>"
    close = "</calls>"
    before = "\\n"

    [reasoning]
    open = "<thought>"
    close = "</thought>"
    after_open = ["\\n\\n", "\\n"]

What is left out is as in the dialect that it is based on; `reasoning = false` says that there is none. The
white space (`before`, `after_open`, `before_close`, `after_close`) is what `Span` says, a text or several,
and `[]` for none.

A dialect that comes back reads the calls that it renders. What a model declares itself is read by
`load_declared`. Whatever is wrong with a file is one line of InvalidDialect, with the file and the key.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from .collect import CallPart, Part, ReasoningPart, collect
from .declared import NAME, declared_dialect
from .dialect import Dialect, InvalidDialect
from .engine.spans import Span
from .engine.stream import StreamParser
from .formats import dialect_named

__all__ = ["CONFIGURATION", "InvalidDialect", "load_declared", "load_dialect"]

CONFIGURATION = "tokenizer_config.json"
"""The file in which a model declares its output format."""

_RESERVED = ("auto", NAME)  # what finds a dialect out goes by the first, what models declare by the second
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_KEYS = ("name", "based_on", "calls", "reasoning", "ends")
_MARKERS = ("open", "close")
_SPACES = ("before", "after_open", "before_close", "after_close")
_CALL = ("look_up", {"city": "Paris", "days": 3})
_TOOL = {
    "function": {
        "name": "look_up",
        "parameters": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    }
}


def load_dialect(path: Path) -> Dialect:
    """The dialect that the TOML file at `path` describes. Raises InvalidDialect."""
    return _File(path, _read(path, "TOML", tomllib.loads)).dialect()


def load_declared(path: Path) -> Dialect:
    """The dialect that a tokenizer's configuration declares; see `parsers.declared`. Raises InvalidDialect.

    `path`: the file, or the folder of a model that holds it as `tokenizer_config.json`.
    """
    file = path
    with suppress(OSError):  # too long a name: that shows when it is read
        file = path / CONFIGURATION if path.is_dir() else path
    config = _read(file, "JSON", json.loads)
    if not isinstance(config, dict):
        raise InvalidDialect(f"{file}: not a JSON object")
    dialect = declared_dialect(config, str(file))
    if dialect is None:
        raise InvalidDialect(
            f"{file}: response_template: missing: this model declares no output format; name its dialect"
        )
    return dialect


def _read(path: Path, language: str, loads: Callable[[str], Any]) -> Any:
    """What the file at `path` holds. Raises InvalidDialect."""
    try:
        if path.exists() and not path.is_file():  # a pipe would wait for somebody to write
            raise InvalidDialect(f"{path}: not a file")
        return loads(path.read_text(encoding="utf-8"))
    except InvalidDialect:
        raise
    except OSError as error:
        raise InvalidDialect(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidDialect(f"{path}: not valid {language}: {error}") from error
    except RecursionError as error:
        raise InvalidDialect(f"{path}: not valid {language}: nested too deep") from error


class _File:
    """One file while it is read."""

    def __init__(self, path: Path, table: Mapping[str, Any]) -> None:
        self._path = path
        self._table = table

    def dialect(self) -> Dialect:
        """The dialect. Raises InvalidDialect."""
        table = self._table
        self._known("", table, _KEYS)
        name, based_on = self._text("name", table.get("name")), self._text("based_on", table.get("based_on"))
        if not _NAME.fullmatch(name) or name in _RESERVED or _is_taken(name):
            self._refuse("name", f"{name!r} is taken or no name: small letters, digits, '.', '_' and '-'")
        try:
            base = dialect_named(based_on)
        except ValueError as error:
            self._refuse("based_on", str(error))
        calls = base.calls
        if "calls" in table:
            if calls is None:
                self._refuse("calls", f"{based_on} has no calls: base it on a dialect that has")
            calls = self._span("calls", calls)
        made = replace(
            base,
            name=name,
            calls=calls,
            reasoning=self._reasoning(base),
            ends=self._texts("ends", table.get("ends", base.ends)),
            interrupts={
                calls.open if calls and base.calls and marker == base.calls.open else marker: follow
                for marker, follow in base.interrupts.items()
            },
        )
        made = replace(
            made,
            cores=_cores(made, base),
            shown=tuple(marker for marker in base.shown if marker in made.markers),
        )
        self._distinct(made, base)
        self._try_out(made, based_on)
        return made

    def _reasoning(self, base: Dialect) -> Span | None:
        if self._table.get("reasoning") is False:
            return None
        return self._span("reasoning", base.reasoning) if "reasoning" in self._table else base.reasoning

    def _span(self, key: str, base: Span | None) -> Span:
        """`base` with what the table `key` says otherwise."""
        table = self._table[key]
        if not isinstance(table, dict):
            hint = ", or false for none" if key == "reasoning" else ""
            self._refuse(key, f"must be a table{hint}")
        self._known(f"{key}.", table, (*_MARKERS, *_SPACES))
        given: dict[str, Any] = {}
        for name in _MARKERS:
            if name in table or base is None:
                given[name] = self._text(f"{key}.{name}", table.get(name))
        for name in _SPACES:
            if name in table:
                texts = self._texts(f"{key}.{name}", table[name])
                if any(text.strip() for text in texts):
                    self._refuse(f"{key}.{name}", "must be white space")
                given[name] = tuple(sorted(texts, key=len, reverse=True))
        return Span(**given) if base is None else replace(base, **given)

    def _known(self, where: str, table: Mapping[str, Any], keys: tuple[str, ...]) -> None:
        for key in table:
            if key not in keys:
                self._refuse(f"{where}{key}", f"no such key: there are {', '.join(keys)}")

    def _text(self, key: str, value: Any) -> str:
        if value is None:
            self._refuse(key, "missing")
        if not isinstance(value, str) or not value:
            hint = ""
            if key.endswith(_SPACES):
                hint = "; [] says that there is no white space"
            elif key.startswith("reasoning."):
                hint = "; reasoning = false says that there is none"
            self._refuse(key, f"must be a text, and not empty{hint}")
        return value

    def _texts(self, key: str, value: Any) -> tuple[str, ...]:
        """A text or several, none of them empty."""
        texts = value if isinstance(value, list | tuple) else [value]
        return tuple(self._text(key, text) for text in texts)

    def _distinct(self, made: Dialect, base: Dialect) -> None:
        """Refuse a marker that says something else as well or begins another, and what can be no marker."""
        named, known = _named(made), dict(_named(base))
        given = len(named)
        for what in ("slips", "inner"):
            named += [(f"{what} of {base.name}", marker) for marker in getattr(made, what)]
        for span in made.answers:
            named += [(f"answers of {base.name}", marker) for marker in span.markers]
        for number, (key, marker) in enumerate(named[:given]):
            if marker.isspace():
                self._refuse(key, "a marker cannot be white space")
            if "\0" in marker and known.get(key) != marker:
                self._refuse(key, "a marker cannot hold a NUL")
            for place, (other, same) in enumerate(named):
                if place == number:
                    continue
                if known.get(key) == marker and (place >= given or known.get(other) == same):
                    continue  # as in the base, which knows what it does
                if marker == same and (key.endswith("open") or place >= given):
                    self._refuse(key, f"{marker!r} is {other} as well")
                if marker != same and same.startswith(marker):  # which of them it is shows too late
                    self._refuse(key, f"{marker!r} is how {other} begins, {same!r}")
                if marker != same and place >= given and marker.startswith(same):
                    self._refuse(key, f"{marker!r} begins with {same!r} of {other}")

    def _try_out(self, made: Dialect, based_on: str) -> None:
        """Refuse a dialect that does not read what it writes: its grammar takes no other markers."""
        if made.calls is not None:
            for parts in _readings(made, made.render([_CALL])):
                read = [(part.name, part.arguments) for part in parts if isinstance(part, CallPart)]
                if read != [_CALL] or len(parts) != 1:
                    self._refuse("calls", f"the grammar of {based_on} cannot be read with these markers")
        if made.reasoning is not None:
            for parts in _readings(made, f"{made.reasoning.open}so it is{made.reasoning.close}"):
                if parts != [ReasoningPart("so it is")]:
                    self._refuse("reasoning", f"{based_on} cannot be read with these markers")

    def _refuse(self, key: str, reason: str) -> NoReturn:
        raise InvalidDialect(f"{self._path}: {key}: {reason}")


def _is_taken(name: str) -> bool:
    try:
        dialect_named(name)
    except ValueError:
        return False
    return True


def _named(dialect: Dialect) -> list[tuple[str, str]]:
    """The markers that a file may name, with their keys."""
    spans = {"calls": dialect.calls, "reasoning": dialect.reasoning}
    named = [(f"{key}.{end}", getattr(span, end)) for key, span in spans.items() if span for end in _MARKERS]
    return named + [(f"ends[{number}]", end) for number, end in enumerate(dialect.ends)]


def _cores(made: Dialect, base: Dialect) -> dict[str, str]:
    """The cores of all markers: a new marker has the token in it that those of the base have."""
    tokens = sorted({core for core in base.cores.values() if core}, key=len, reverse=True)
    cores = {}
    for marker in made.markers:
        core = next((token for token in tokens if token in marker), marker)
        if marker in base.cores or core != marker:
            cores[marker] = base.cores.get(marker, core)
    return cores


def _readings(made: Dialect, written: str) -> Iterator[list[Part]]:
    """What is read of a text: whole, per character, and with its tokens flagged as a host does."""
    tokens = {made.cores.get(marker, marker) for marker in made.markers} - {""}
    pattern = "|".join(map(re.escape, sorted(tokens)))  # none begins another: such files are refused before
    flagged = [(piece, piece in tokens) for piece in re.split(f"({pattern})" if tokens else "$", written)]
    ways: tuple[tuple[set[str] | None, list[tuple[str, bool | None]]], ...] = (
        (None, [(written, None)]),
        (None, [(char, None) for char in written]),
        (tokens, [*flagged]),
    )
    for atomic, pieces in ways:
        parser = StreamParser(made, tools=[_TOOL], atomic=atomic)
        events = [event for text, special in pieces for event in parser.feed(text, special)]
        yield collect([*events, *parser.close()])
