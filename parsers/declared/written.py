"""Calls as a `response_template` describes them, where its patterns are such that they can be written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..collect import CallPart, collect
from ..dialect import Calls, Dialect, Render
from ..engine.spans import Span
from ..engine.stream import StreamParser
from ..engine.tools import kind_of
from ..events import MAX_DEPTH
from ..formats.gemma import GemmaWriter
from ..literals.writer import JSON, RawWriter, Writer
from .shapes import ObjectArguments, ObjectCalls, TagArguments
from .tags import OPENED_TAG
from .template import Field


def renderer(field: Field, dialect: Dialect) -> Render:
    """Writes calls into `field`. What `dialect` does not read back as it was is no call in it: ValueError."""

    def render(span: Span, markers: Iterable[str], calls: Calls) -> str:
        calls = list(calls)
        written = _write(field, tuple(markers), calls)
        if not _reads(dialect, written, calls):
            names = ", ".join(name for name, _ in calls)
            raise ValueError(f"the format that the model declares cannot express these calls: {names}")
        return written

    return render


def _reads(dialect: Dialect, text: str, calls: list[tuple[str, Mapping[str, Any]]]) -> bool:
    """Whether `text` is read as these calls, in the types that their values have, and as nothing else."""
    tools = [
        {
            "function": {
                "name": name,
                "parameters": {
                    "properties": {key: {"type": kind_of(value)} for key, value in arguments.items()}
                },
            }
        }
        for name, arguments in calls
    ]
    parser = StreamParser(dialect, tools)
    parts = collect([*parser.feed(text), *parser.close()])
    read = [(part.name, part.arguments) for part in parts if isinstance(part, CallPart) and not part.repaired]
    return len(read) == len(parts) and json.dumps(read) == json.dumps(calls)


def can_be_written(field: Field) -> bool:
    """Whether the patterns of the field determine what to write."""
    groups = {} if field.open is None else dict.fromkeys(field.open.groups, "x")
    texts = [anchor.written(groups) for anchor in (field.open, field.close) if anchor is not None]
    if isinstance(field.shape, TagArguments):
        texts += [field.shape.head.written({"key": "x"}), field.shape.tail.written({})]
    return None not in texts


def _write(field: Field, markers: tuple[str, ...], calls: list[tuple[str, Mapping[str, Any]]]) -> str:
    for name, _ in calls:
        Writer.check_name(name)
    if isinstance(shape := field.shape, ObjectCalls):
        writer = Writer(markers, JSON)
        objects = [
            writer.mapping({shape.name_key: name, shape.arguments_key: arguments})
            for name, arguments in calls
        ]
        if shape.several:
            return _framed(field, "", "", f"[{', '.join(objects)}]")
        texts = [_framed(field, "", "", text) for text in objects]
    else:
        texts = [_call(field, markers, name, arguments) for name, arguments in calls]
    if len(texts) > 1 and not field.repeats:
        raise ValueError("the format that the model declares has no more than one call in a turn")
    return "".join(texts)


def _call(field: Field, markers: tuple[str, ...], name: str, arguments: Mapping[str, Any]) -> str:
    """A call that has its name in what opens the field."""
    if isinstance(shape := field.shape, ObjectArguments):
        if shape.quote:  # without quotes around it, an object is one level shallower
            body = GemmaWriter(markers, shape.quote).mapping(arguments, MAX_DEPTH + 1)
        else:
            body = Writer(markers, JSON).mapping(arguments)
        return _framed(field, shape.group, name, body)
    assert isinstance(shape, TagArguments)
    raw, tail = RawWriter(markers), shape.tail.written({})
    body = "".join(
        f"{shape.head.written({'key': raw.key(key)})}{_value(raw, value, shape)}{tail}"
        for key, value in arguments.items()
    )
    return _framed(field, shape.group, name, body, closing=True)


def _value(writer: RawWriter, value: Any, shape: TagArguments) -> str:
    """A value as raw text."""
    text = isinstance(value, str) and not (shape.json and value.lstrip()[:1] == '"')
    return writer.raw(value) if text else writer.value(value)


def _framed(field: Field, group: str, name: str, body: str, *, closing: bool = False) -> str:
    """`body` between what opens and closes the field. `closing`: with the tags closed that it opens."""
    assert field.open is not None
    assert field.close is not None
    opened, closed = field.open.written({group: name}), field.close.written({})
    assert opened is not None
    assert closed is not None
    tags = [f"</{name}>" for name in reversed(OPENED_TAG.findall(opened))] if closing else []
    return f"{opened}{body}{''.join(tag for tag in tags if tag not in closed)}{closed}"
