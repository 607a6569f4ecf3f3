"""Named calls, as models write them."""

from __future__ import annotations

from collections.abc import Iterable

from ...dialect import Calls, Render
from ...engine.spans import NOWHERE, Span
from ...events import MAX_DEPTH
from ...literals.writer import JSON, Writer


def by_template(call: str, between: str = "", around: Span = NOWHERE, depth: int = MAX_DEPTH) -> Render:
    """A renderer that writes each call by a template with the fields `name`, `index` and `arguments`.

    `between`: what separates two calls. `around`: what encloses all of them, if anything does.
    `depth`: how deep arguments may be nested. It raises ValueError for what no call can hold.
    """
    opening, closing = (around.open, around.close) if around is not NOWHERE else ("", "")

    def render(span: Span, markers: Iterable[str], calls: Calls) -> str:
        writer = Writer(markers, JSON)
        written = []
        for index, (name, arguments) in enumerate(calls):
            writer.check_name(name)
            written.append(call.format(name=name, index=index, arguments=writer.mapping(arguments, depth)))
        return f"{opening}{between.join(written)}{closing}"

    return render
