"""Inkling's messages, of which those to a tool hold an object: `{"name": "f", "args": {"n": 3}}`.

    <|message_model|><|content_thinking|>I should look.<|end_message|>
    <|message_model|>f<|content_invoke_tool_json|>{"name": "f", "args": {"n": 3}}<|end_message|>
    <|content_model_end_sampling|>

The name stands in front of the object as well; that in the object counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..dialect import Calls, Context, Dialect
from ..engine.source import Reading
from ..engine.spans import Span
from ..engine.writer import NAME
from ..events import MAX_DEPTH, Reason
from ..literals.object_call import ARGUMENTS, ObjectShape
from ..literals.writer import JSON, Writer
from .objects.block import JsonBlock

MODEL, CALL, END = "<|message_model|>", "<|content_invoke_tool_json|>", "<|end_message|>"
TEXT_CALL = "<|content_invoke_tool_text|>"
"""What begins a call whose arguments are text. It is read where that is the same object all the same."""


class InklingBlock(JsonBlock):
    """Reads a message to a tool, or the beginning of another one. `source.pos` is at its marker."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, ObjectShape(argument_keys=("args", *ARGUMENTS)))

    def read(self) -> Reading:
        """Read it; `source.pos` is behind it afterwards."""
        source, emit = self.source, self.emit
        source.keep_from(self.start)
        if not (yield from source.marker((MODEL,))):
            yield from super().read()
            return
        source.pos += len(MODEL)
        body = source.offset
        name = yield from source.run(NAME)
        if (yield from source.marker((CALL, TEXT_CALL))):
            emit.markup(source.offset)
            yield from InklingBlock(self.context).read()
            return
        if name and (not (yield from source.char()) or source.cut_marker(CALL)):
            source.pos = len(source.text)
            emit.malformed(source.since(self.start), Reason.TRUNCATED, source.offset)
        else:
            source.rewind(body)
            emit.markup(body)
        source.keep_from(None)


def render_messages(span: Span, markers: Iterable[str], calls: Calls) -> str:
    """A message for each call. Raises ValueError for what no call can hold."""
    writer = Writer(markers, JSON)
    messages = []
    for name, arguments in calls:
        writer.check_name(name)
        args = writer.mapping(arguments, MAX_DEPTH - 1)
        messages.append(f'{MODEL}{name}{CALL}{{"name": "{name}", "args": {args}}}{span.close}')
    return "".join(messages)


INKLING = Dialect(
    name="inkling",
    reasoning=Span("<|content_thinking|>", END),
    calls=Span(MODEL, END),
    ends=("<|content_model_end_sampling|>",),
    grammar=InklingBlock,
    slips=(CALL, TEXT_CALL),
    renderers={"json": render_messages},
    answers=(Span("<|content_text|>", END),),
    header=MODEL,
    spellings={END: "", "<|message_user|>": ""},  # they end or begin every message
    aliases=("tml",),
)

ALL = (INKLING,)
