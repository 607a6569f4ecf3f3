"""Options of a schema as rules of a grammar, in a dialect's notation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from json.encoder import encode_basestring as quote_json
from typing import Any, Final

from localagent.constraint.layout import Notation
from localagent.constraint.leaves import ANY_TEXT, escaped, inline, searched
from localagent.constraint.options import (
    ANYTHING,
    Any_,
    Constant,
    List,
    Number,
    Options,
    Record,
    Reference,
    Text,
    expanded,
    number_schema,
)
from localagent.constraint.rules import Literals, Rules, choice, quoted
from localagent.constraint.schema import Reader

# No lone surrogates: they have no JSON form. A float must be finite, an integer of at most 4,300 digits.
_UNICODE: Final = r"u([0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})"
INTEGER: Final = r"/-?(0|[1-9][0-9]{0,300})/"
NUMBER: Final = (
    r"/-?((0|[1-9][0-9]{0,200})(\.[0-9]{1,300})?([eE][+-]?[0-9]{1,2})?"
    r"|[0-9](\.[0-9]{1,300})?[eE](\+?[12][0-9]{2}|-[0-9]{3}))/"
)
_ANYWHERE: Final = f"/{ANY_TEXT}/"


class Values:
    """Writes rules for values in one notation.

    `unwritable`: a terminal for what no string may hold, even between quotes.
    """

    def __init__(
        self,
        rules: Rules,
        reader: Reader,
        notation: Notation,
        literals: Literals,
        member: Callable[[str], str],
        unwritable: str = "",
        is_sorted: bool = False,
    ) -> None:
        self.rules = rules
        self._reader = reader
        self._notation = notation
        self._literals = literals
        self._member = member
        self._unwritable = unwritable
        self._is_sorted = is_sorted
        self._gap = f"{rules.terminal(f'/{notation.gap}/')}?" if notation.gap else ""
        self._comma = f"{self._gap} {quoted(notation.comma)} {self._gap}".strip()
        self._references: set[str] = set()
        self._finite: set[str] = set()

    # -- what can be written at all -------------------------------------------------------------------

    def finite(self, options: Options) -> Options:
        """The options that have a value of finite length: a schema may ask for itself within itself."""
        self._explore(options, set())
        return tuple(option for option in options if self._ends(option))

    def _explore(self, options: Options, seen: set[str]) -> None:
        """Find which references end."""
        waiting, pointers = [options], []
        while waiting:
            for option in waiting.pop():
                match option:
                    case Reference(pointer) if pointer not in seen:
                        seen.add(pointer)
                        pointers.append(pointer)
                        waiting.append(self._reader.resolve(pointer))
                    case List(lead, items):
                        waiting += [*lead, items or ()]
                    case Record():
                        waiting += [*option.properties.values(), option.extra or ()]
                        waiting += [values for _, values in option.patterns]
        grown = True
        while grown:
            grown = False
            for pointer in reversed(pointers):  # most refer to what comes later
                if pointer not in self._finite and any(map(self._ends, self._reader.resolve(pointer))):
                    self._finite.add(pointer)
                    grown = True

    def _ends(self, option: Any) -> bool:
        match option:
            case Reference(pointer):
                return pointer in self._finite
            case List(lead, items, least):
                needed = [
                    lead[n] if n < len(lead) else items or ANYTHING for n in range(min(least, len(lead) + 1))
                ]
                return all(any(map(self._ends, options)) for options in needed)
            case Record():
                return all(any(map(self._ends, option.properties[key])) for key in option.required)
        return True

    # -- values ---------------------------------------------------------------------------------------

    def any_of(self, options: Options) -> str:
        """A rule for a value of one of the options, which must be finite."""
        parts = []
        constants = [option.value for option in options if isinstance(option, Constant)]
        if constants:
            parts.append(self.constants(constants))
        for option in options:
            match option:
                case Any_():
                    parts.append(self._anything())
                case Reference(pointer):
                    parts.append(self._reference(pointer))
                case Number():
                    parts.append(self.number(option))
                case Text():
                    parts.append(self.string(option))
                case List():
                    parts.append(self._list(option))
                case Record():
                    parts.append(self._record(option))
        return choice(parts)

    def number(self, number: Number) -> str:
        """A number."""
        bounds = number_schema(number)
        if len(bounds) > 1:
            return self.rules.rule(inline(bounds))
        return self.rules.terminal(INTEGER if number.integer else NUMBER)

    def string(self, text: Text) -> str:
        """A string as it stands in a list or an object, or as an argument between quotes."""
        strings = self._notation.strings
        if strings.style == "verbatim":
            return self.verbatim(text, strings.open, strings.close)
        if text.patterns and not self._unwritable:
            # llguidance writes the pattern for the escaped text.
            schema: dict[str, Any] = {"type": "string"}
            if text.least:
                schema["minLength"] = text.least
            if text.most is not None:
                schema["maxLength"] = text.most
            schema |= (
                {"pattern": text.patterns[0]}
                if len(text.patterns) == 1
                else {"allOf": [{"pattern": p} for p in text.patterns]}
            )
            return self.rules.rule(inline(schema))
        quotes = ('"', "'") if strings.python else ('"',)
        return self.rules.terminal(choice(f"({self._quoted(text, quote)})" for quote in quotes))

    def _quoted(self, text: Text, quote: str) -> str:
        char = rf"([^{quote}\\\x00-\x1f]|\\([{quote}\\bfnrt]|{_UNICODE}))"
        body = f"/{char}{_times(text)}/"
        if text.patterns:  # no escapes, so that the pattern is tried on what stands there
            body = f"/[^{quote}\\\\\\x00-\\x1f]{_times(text)}/" + "".join(
                f" & /{searched(p)}/" for p in text.patterns
            )
        body += self._excluding()
        return f"{quoted(quote)} ({body}) {quoted(quote)}"

    def verbatim(self, text: Text, opening: str, closing: str, unlike: str = "") -> str:
        """A string without escapes, and what closes it. `unlike`: what it may not be as a whole."""
        body = f"/(?s:.){_times(text)}/" + "".join(f" & /{searched(p)}/" for p in text.patterns)
        body += self._excluding() + unlike
        return f"{self._literals.write(opening)} {self.ending(body, closing)}".strip()

    def ending(self, body: str, closing: str) -> str:
        """Text, as the body of a terminal, up to `closing`, which is written.

        What ends it is part of the terminal: the longest match of the text alone would run into it.
        """
        plain, rest = self._literals.split(closing)
        text = self.rules.shortest(f"({body}) {quoted(plain)}") if plain else self.rules.terminal(body)
        return f"{text} {self._literals.write(rest)}".strip()

    def spelling(self, constants: Mapping[bool | None, str]) -> Values:
        """The same with other words for true, false and null."""
        other = copy(self)
        other._notation = replace(self._notation, constants=constants)
        return other

    def _excluding(self) -> str:
        return f" & ~({_ANYWHERE} {self._unwritable} {_ANYWHERE})" if self._unwritable else ""

    def constants(self, values: Iterable[Any]) -> str:
        """One of several values."""
        texts = [text for value in values for text in self.spellings(value)]
        parts = [self._given(text) for text in dict.fromkeys(texts)]
        if any("<[" in part for part in parts):
            return self.rules.rule(choice(parts))
        return self.rules.terminal(choice(parts))

    def _given(self, text: str) -> str:
        """A constant or a key as part of a rule.

        In what the schema gives, the text of a marker is text: as its token it would end the block, or the
        turn.
        """
        strings = self._notation.strings
        return self._literals.only((strings.open, strings.close)).write(text)

    def spellings(self, value: Any) -> list[str]:
        """The ways in which a constant is written."""
        strings = self._notation.strings
        if isinstance(value, str) and strings.python and strings.style == "quoted":
            other = (
                quote_json(value.replace("'", "\x00").replace('"', "'"))[1:-1]
                .replace("'", '"')
                .replace("\x00", "\\'")
            )
            return [quote_json(value), f"'{other}'"]
        return [self.written(value)]

    def written(self, value: Any) -> str:
        """A constant as the dialect writes it."""
        notation = self._notation
        match value:
            case None | True | False:
                return notation.constants[value]
            case str() if notation.strings.style == "verbatim":
                return f"{notation.strings.open}{value}{notation.strings.close}"
            case str():
                return quote_json(value)
            case list():
                return f"[{notation.comma.join(map(self.written, value))}]"
            case dict():
                keys = sorted(value, key=str.lower) if self._is_sorted else list(value)
                return (
                    "{"
                    + notation.comma.join(self._member(key) + self.written(value[key]) for key in keys)
                    + "}"
                )
        return json.dumps(value)

    def _anything(self) -> str:
        name = self.rules.reserve(f"any {self._notation} {self._unwritable}")
        if name not in self.rules.bodies:
            self.rules.bodies[name] = ""
            self.rules.bodies[name] = self.any_of(expanded(ANYTHING))
        return name

    def _reference(self, pointer: str) -> str:
        name = self.rules.reserve(f"{pointer} {self._notation} {self._unwritable} {self._reader.identity}")
        if name not in self.rules.bodies:
            self.rules.bodies[name] = ""
            self.rules.bodies[name] = self.any_of(self.finite(self._reader.resolve(pointer)))
        return name

    def _list(self, option: List) -> str:
        """`[`, the items of `lead` in order, and then the others; how many is counted."""
        comma, gap = self._comma, self._gap
        lead: list[str] = []
        most = option.most
        for number, options in enumerate(option.lead[:most]):
            if not (kept := self.finite(options)):
                most = number
                break
            lead.append(self.rules.rule(self.any_of(kept)))
        others = self.finite(ANYTHING if option.items is None else option.items)
        rest = ""
        if others and len(lead) == len(option.lead):
            item = self.rules.rule(self.any_of(others))
            first = max(0, option.least - len(lead))
            last = None if most is None else most - len(lead)
            if last != 0:
                if lead:
                    rest = _repeated(f"{comma} {item}", first, last)
                else:
                    more = _repeated(f"{comma} {item}", max(0, first - 1), None if last is None else last - 1)
                    rest = f"{item} {more}".strip() if first else f"({item} {more})?"
        body = rest
        for number in range(len(lead) - 1, -1, -1):
            part = f"{lead[number]} {body}".strip()
            if number:
                part = f"{comma} {part}"
            body = part if number < option.least else f"({part})?"
        return self.rules.rule(f'"[" {gap} {body} {gap} "]"')

    def _record(self, option: Record) -> str:
        comma, gap, key_text = self._comma, self._gap, self._member
        members = []
        keys = sorted(option.properties, key=str.lower) if self._is_sorted else list(option.properties)
        for key in keys:
            if kept := self.finite(option.properties[key]):
                value = self.rules.rule(self.any_of(kept))
                members.append((f"{self._given(key_text(key))} {gap} {value}", key in option.required))
        fewest = max(0, option.least - len(members))
        most = None if option.most is None else max(0, option.most - len(members))
        first = more = ""
        if most != 0 and (extra := self._extra(option)):
            another = f"{comma} {extra}"
            rest = _repeated(another, max(0, fewest - 1), None if most is None else most - 1)
            first = f"({extra} {rest})" + ("" if fewest else "?")
            more = _repeated(another, fewest, most)
        return self.chain(
            [(f'"{{" {gap} {text}', f"{comma} {text}", needed) for text, needed in members],
            f'"{{" {gap} {first} {gap} "}}"',
            f'{more} {gap} "}}"',
        )

    def chain(self, members: list[tuple[str, str, bool]], empty: str, close: str) -> str:
        """Members in order, optional ones left out at will: (as the first, as a later one, if it is needed).

        Two rules for each, so that their number is no matter; any order would need a rule for each subset.
        """
        first: str | None = self.rules.rule(empty)
        after = self.rules.rule(close)
        for leading, following, needed in reversed(members):
            begun = f"{leading} {after}"
            first = self.rules.rule(begun if needed else f"{begun} | {first}")
            after = self.rules.rule(f"{following} {after}" if needed else f"{following} {after} | {after}")
        assert first is not None
        return first

    def _extra(self, option: Record) -> str:
        """One property that is not declared, "" if there may be none."""
        patterns = [pattern for pattern, _ in option.patterns]
        named = [([pattern], options) for pattern, options in option.patterns]
        if option.most is None or option.most > 0:
            is_open = option.extra is None and not option.properties and not option.patterns
            named.append(([], ANYTHING if is_open else option.extra or ()))
        parts = []
        for matching, options in named:
            if kept := self.finite(options):
                others = [pattern for pattern in patterns if pattern not in matching]
                key = self._any_key(option, matching, others)
                parts.append(f"{key} {self._gap} {self.rules.rule(self.any_of(kept))}")
        return self.rules.rule(choice(parts)) if parts else ""

    def _any_key(self, option: Record, matching: list[str], unlike: list[str]) -> str:
        """The name of a property that is not declared, with what stands between it and its value.

        It is written without escapes: so it is certainly not one of the declared names.
        """
        names = option.names or Text()
        strings = self._notation.strings
        char = r"[^\"\\\x00-\x1f\x7f'<>]"
        names = replace(names, least=max(1, names.least))
        body = f"/{char}{_times(names)}/" + "".join(
            f" & /{searched(p)}/" for p in (*matching, *names.patterns)
        )
        if unlike:
            body += " & ~(" + " | ".join(f"/{searched(p)}/" for p in unlike) + ")"
        if option.properties:
            body += " & ~/" + "|".join(map(escaped, option.properties)) + "/"
        body += self._excluding()
        colon = quoted(self._notation.colon)
        if strings.style == "verbatim":
            keys = [f"{self._literals.write(strings.open)} {self.ending(body, strings.close)} {colon}"]
            if self._notation.has_bare:
                keys.append(self.rules.terminal(f"(/[\\p{{L}}_][\\w]*/ & {body}) {colon}"))
            return choice(keys)
        quotes = ('"', "'") if strings.python else ('"',)
        return self.rules.terminal(
            choice(f"({quoted(quote)} ({body}) {quoted(quote)} {colon})" for quote in quotes)
        )


def _times(text: Text) -> str:
    if not text.least and text.most is None:
        return "*"
    return f"{{{text.least},{'' if text.most is None else text.most}}}"


def _repeated(part: str, least: int, most: int | None) -> str:
    if most == 0:
        return ""
    if not least and most is None:
        return f"({part})*"
    return f"({part}){{{least},{'' if most is None else most}}}"
