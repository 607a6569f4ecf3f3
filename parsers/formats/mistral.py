"""Mistral: `[TOOL_CALLS]f[CALL_ID]id[ARGS]{"city": "Paris"}`, or a list of objects."""

from __future__ import annotations

import re
from collections.abc import Generator

from ..dialect import Context, Dialect
from ..engine.source import Reading
from ..engine.spans import THINK, Span
from ..events import MAX_DEPTH
from .named.block import NamedBlock
from .named.written import by_template
from .objects.block import JsonBlock

_ID = re.compile(r"[\w\-]*")


class MistralBlock(NamedBlock):
    """What `[TOOL_CALLS]` opens: a JSON list of calls, or one call, `f[CALL_ID]id[ARGS]{"city": "Paris"}`.

    The id may be missing. Nothing closes a call but the end of the turn, so that text behind it is content.
    """

    def __init__(self, context: Context) -> None:
        assert context.dialect.calls is not None
        span = context.dialect.calls
        super().__init__(context, span, (span.close,))

    def read(self) -> Reading:
        """Read it. `source.pos` is at its marker when `read` begins."""
        source = self.source
        source.keep_from(self.start)
        source.pos += len(self.span.open)
        char = yield from source.space()
        if char == "{" or (char == "[" and not (yield from source.marker())):
            source.rewind(self.start)
            yield from JsonBlock(self.context).read()
            return
        self.emit.markup(source.offset)
        yield from self.call(self.start)
        source.keep_from(None)

    def name(self) -> Generator[None, None, str]:
        """Read the name, and the id behind it if there is one."""
        name = yield from self.word()
        if (yield from self.passed("[CALL_ID]")):
            yield from self.word(_ID)
        yield from self.separator("[ARGS]")
        return name


MISTRAL = Dialect(
    name="mistral",
    reasoning=Span("[THINK]", "[/THINK]"),
    calls=Span("[TOOL_CALLS]", "</s>"),
    ends=("</s>",),
    grammar=MistralBlock,
    inner=("[CALL_ID]", "[ARGS]"),
    renderers={
        "args": by_template("[TOOL_CALLS]{name}[ARGS]{arguments}"),
        "ids": by_template("[TOOL_CALLS]{name}[CALL_ID]{index:09}[ARGS]{arguments}"),
        "list": by_template(
            '{{"name": "{name}", "arguments": {arguments}, "id": "{index:09}"}}',
            between=", ",
            around=Span("[TOOL_CALLS][", "]"),
            depth=MAX_DEPTH - 1,  # one object further in
        ),
    },
    spellings={"<think>": "open", "</think>": "close"},
    cores=dict.fromkeys(THINK.markers, ""),
    aliases=("ministral", "devstral", "magistral"),
)
"""Mistral from 7B v0.3 on: up to Nemo a list, then a name with an id, then without. Magistral reasons."""

ALL = (MISTRAL,)
