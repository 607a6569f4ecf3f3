"""The dialect that a `response_template` describes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..dialect import Dialect, InvalidDialect
from ..engine.spans import NOWHERE, Span
from .template import Field, Template, read_template
from .turn import DeclaredTurn, plan_of
from .written import can_be_written, renderer

NAME = "declared"
"""The name of every such dialect: it is in no table."""

CONTROL = re.compile("<[|\uff5c]|[|\uff5c]>|\\[[A-Z_]+\\]")
"""What special tokens look like, where no list of them is given."""


def declared_dialect(config: Mapping[str, Any], where: str = "tokenizer_config.json") -> Dialect | None:
    """The dialect that a tokenizer's configuration declares, None if it declares none.

    `where`: the file, for errors. Raises InvalidDialect.
    """
    if config.get("response_template") is None:
        if config.get("response_schema") is None:
            return None
        raise InvalidDialect(
            f"{where}: response_schema: the older form, expressions over the whole output, is not read: "
            "write a response_template"
        )
    template = read_template(where, config["response_template"])
    return _dialect(template, _special_tokens(config), _text(config.get("eos_token")))


def _dialect(template: Template, special: frozenset[str] | None, end: str) -> Dialect:
    """The table for a template. `special`: the tokens that are special, None if that is not known."""
    spans = {field.kind: _span(field) for field in template.fields if field.open is not None}
    ends = [token for field in template.fields if field.open is None for token in field.closes]
    ends += [end] if end else []
    inner = [token for field in template.fields for token in (*field.opens, *field.closes)]
    inner += template.frame.tokens if template.frame is not None else ()
    inner += [token for field in template.fields for token in field.quotes]
    calls = template.of_kind("calls")
    made = Dialect(
        name=NAME,
        reasoning=spans.get("reasoning"),
        calls=spans.get("calls"),
        ends=tuple(dict.fromkeys(ends)),
        turn=partial(DeclaredTurn, plan=plan_of(template, tuple(ends))),
        inner=tuple(dict.fromkeys(inner)),
        answers=tuple(span for kind, span in spans.items() if kind == "content"),
    )
    tokens = {marker: next((token for token in inner if token in marker), marker) for marker in made.markers}
    made = replace(
        made,
        cores={marker: token for marker, token in tokens.items() if token != marker},
        shown=tuple(
            marker
            for marker, token in tokens.items()
            if (token not in special if special is not None else not CONTROL.search(token))
        ),
    )
    if calls is None or not can_be_written(calls):
        return made
    return replace(made, renderers={NAME: renderer(calls, made)})


def _span(field: Field) -> Span:
    """What opens and closes a field: a token each; of reasoning the whole text, as prompts end with it."""
    texts: list[str] = []
    for anchor, place in ((field.open, 0), (field.close, -1)):
        written = None if anchor is None else anchor.written({})
        tokens = [] if anchor is None else [t for t in anchor.tokens if t in (written or t)]
        whole = written if field.kind == "reasoning" else None
        texts.append(whole or (tokens[place] if tokens else NOWHERE.close))
    return Span(texts[0], texts[1])


def _special_tokens(config: Mapping[str, Any]) -> frozenset[str] | None:
    """The special tokens that a configuration lists, None if it lists none."""
    listed = config.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return None
    tokens = (token for token in listed.values() if isinstance(token, dict) and token.get("special") is True)
    return frozenset(text for token in tokens if isinstance(text := token.get("content"), str))


def _text(token: object) -> str:
    """The text of a token, which may be an object that holds it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
