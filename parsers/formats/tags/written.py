"""Calls as tags with raw text between them.

Raw text has no escapes. So a string that holds a marker, or a tag of its call, cannot be written as an
argument; in lists and objects it is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ...dialect import Calls, Render
from ...engine.spans import Span
from ...literals.writer import JSON, RawWriter, Writer
from .shape import NO_KEY, Shape


class Layout(Protocol):
    """How a format writes one call with raw arguments."""

    @property
    def tags(self) -> tuple[str, ...]:
        """What no value may hold."""

    def write(self, writer: RawWriter, name: str, arguments: Mapping[str, Any]) -> str:
        """One call."""


@dataclass(frozen=True, slots=True)
class Tags:
    """How a format writes one call as tags. `newline`: behind each tag that is no value's.

    `typed`: whether an attribute says if a value is a string. `inline`: whether white space stands around
    a value only where its own would be taken for that.
    """

    shape: Shape
    newline: str = "\n"
    typed: bool = False
    inline: bool = False

    def write(self, writer: RawWriter, name: str, arguments: Mapping[str, Any]) -> str:
        """The call, from its opening tag to its closing one."""
        shape = self.shape
        parameters = "".join(self._parameter(writer, key, value) for key, value in arguments.items())
        return f"{shape.call}{shape.quote}{name}{shape.quote}>{self.newline}{parameters}{shape.call_end}"

    def _parameter(self, writer: RawWriter, key: str, value: Any) -> str:
        shape = self.shape
        attribute = f' string="{json.dumps(isinstance(value, str))}"' if self.typed else ""
        around = "".join(shape.around[-1:])
        text = writer.raw(value)
        if not self.inline or text.startswith(shape.around) or text.endswith(shape.around):
            text = f"{around}{text}{around}"
        shape.near.check(text, shape.parameter_end)
        if NO_KEY.search(writer.key(key)):
            raise ValueError(f"{key!r:.40} cannot be the name of an argument in a tag")
        name = f"{shape.quote}{key}{shape.quote}"
        return f"{shape.parameter}{name}{attribute}>{text}{shape.parameter_end}{self.newline}"

    @property
    def tags(self) -> tuple[str, ...]:
        """What no value may hold."""
        verbatim = self.shape.verbatim or ()
        return (*self.shape.tags, *verbatim[:1])


def in_blocks(layout: Layout, writer: type[RawWriter], between: str = "\n", inside: str = "\n") -> Render:
    """A renderer that gives each call a block. `between`: blocks; `inside`: the markers and the call."""

    def render(span: Span, markers: Iterable[str], calls: Calls) -> str:
        written = _written(layout, writer, markers, calls)
        return between.join(f"{span.open}{inside}{call}{inside}{span.close}" for call in written)

    return render


def in_one_block(layout: Layout, writer: type[RawWriter], before: str = "", between: str = "\n") -> Render:
    """A renderer that puts all calls into one block. `before`: white space in front of it.

    `between`: what separates the markers and the calls.
    """

    def render(span: Span, markers: Iterable[str], calls: Calls) -> str:
        return between.join((before + span.open, *_written(layout, writer, markers, calls), span.close))

    return render


def alone(layout: Tags, writer: type[RawWriter]) -> Render:
    """A renderer for calls that stand between no markers."""

    def render(span: Span, markers: Iterable[str], calls: Calls) -> str:
        return "".join(_written(layout, writer, markers, calls))

    return render


def render_functions(shape: Shape) -> Render:
    """A renderer that writes an object of arguments between the tags of each call."""

    def render(span: Span, markers: Iterable[str], calls: Calls) -> str:
        writer = Writer(markers, JSON)
        written = []
        for name, arguments in calls:
            writer.check_name(name)
            written.append(f"{shape.call}{name}>{writer.mapping(arguments)}{shape.call_end}")
        return "".join(written)

    return render


def _written(
    layout: Layout, writer_of: type[RawWriter], markers: Iterable[str], calls: Calls
) -> Iterable[str]:
    writer = writer_of((*markers, *layout.tags))
    for name, arguments in calls:
        writer.check_name(name)
        yield layout.write(writer, name, arguments)
