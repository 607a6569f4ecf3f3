"""Step 3: tags between tokens: `<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">…`.

The words between the tokens and the first tag say nothing that the tag does not, and may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable

from ..dialect import Calls, Context, Dialect
from ..engine.driver import Call
from ..engine.faults import Fault
from ..engine.source import Reading
from ..engine.spans import THINK, Span
from ..events import Reason
from ..literals.writer import RawWriter
from .tags.block import TagBlock
from .tags.call import TagCall
from .tags.shape import Shape
from .tags.written import Tags

_BLOCK = Span("<\uff5ctool_calls_begin\uff5c>", "<\uff5ctool_calls_end\uff5c>")
_CALL = Span("<\uff5ctool_call_begin\uff5c>", "<\uff5ctool_call_end\uff5c>")
_SEPARATOR = "<\uff5ctool_sep\uff5c>"
STEPTML = Shape(
    "<steptml:invoke name=",
    "</steptml:invoke>",
    "<steptml:parameter name=",
    "</steptml:parameter>",
    quote='"',
)
_WORDS = re.compile(r"[\w.\- \n]*")


class StepCall(TagCall):
    """One call, from its first token to its last one."""

    def read(self) -> Reading:
        """Read the call. Raises Fault."""
        source = self.source
        yield from source.either((_SEPARATOR,))  # also between two calls
        yield from source.space()
        if (yield from source.either((_CALL.open,))):
            yield from source.run(_WORDS)
            if (yield from source.either((_SEPARATOR,))):
                yield from source.run(_WORDS)
        yield from super().read()
        end = source.offset
        yield from source.space()
        if (yield from source.either((_CALL.close,))):
            return
        if source.cut_marker(_CALL.close):
            source.pos = len(source.text)
        else:
            source.rewind(end)


class StepBlock(TagBlock):
    """A block of such calls."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, STEPTML)

    def call(self) -> TagCall:
        """A reader for the call that comes next."""
        return StepCall(self.context, STEPTML)

    def begins(self) -> Generator[None, None, bool]:
        """Whether a token or the tag of a call comes next, or its beginning at the end of the output."""
        openings = (_CALL.open, _SEPARATOR, STEPTML.call)
        return (yield from self.source.ahead(openings)) != "" or any(map(self.cut, openings))

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """Go on as behind any tags, and over the token that closes the call."""
        reason = yield from super().leave(call, fault)
        yield from self.source.either((_CALL.close,))
        return reason


def render_calls(span: Span, markers: Iterable[str], calls: Calls) -> str:
    """All calls in one block. Raises ValueError for what no call can hold."""
    layout = Tags(STEPTML, newline="")
    writer = RawWriter((*markers, *layout.tags))
    written = []
    for name, arguments in calls:
        writer.check_name(name)
        tags = layout.write(writer, name, arguments)
        written.append(f"{_CALL.open}function{_SEPARATOR}{tags}{_CALL.close}")
    return f"{span.open}{''.join(written)}{span.close}"


STEP3 = Dialect(
    name="step3",
    reasoning=THINK,
    calls=_BLOCK,
    ends=("<|EOT|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    grammar=StepBlock,
    inner=(*_CALL.markers, _SEPARATOR),
    renderers={"tags": render_calls},
    shown=THINK.markers,
    tags=STEPTML.tags,
)

ALL = (STEP3,)
