"""Streaming parsers for what language models write: content, reasoning and tool calls.

    from parsers import DIALECTS, StreamParser

    parser = StreamParser(DIALECTS["lfm2"])
    for piece in ('<|tool_call_start|>[get_weather(ci', 'ty="Paris")]<|tool_call_end|>'):
        for event in parser.feed(piece):
            ...
    parser.close()

Standard library only. Knows nothing of models, hosts or HTTP.
"""

from parsers.collect import (
    CallPart,
    Collector,
    MalformedPart,
    Part,
    ReasoningPart,
    Segment,
    TextPart,
    collect,
    segments,
)
from parsers.dialect import Dialect
from parsers.engine.emitter import Place
from parsers.engine.fits import ToolCheck, misfits
from parsers.engine.spans import Span
from parsers.engine.stream import StreamParser
from parsers.events import (
    ArgumentEnd,
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Event,
    Finish,
    Fits,
    Malformed,
    Markup,
    Misfit,
    MisfitKind,
    Reason,
    Reasoning,
    Text,
)
from parsers.formats import DIALECTS, dialect_named

__all__ = [
    "DIALECTS",
    "ArgumentEnd",
    "ArgumentsDelta",
    "CallEnd",
    "CallPart",
    "CallStart",
    "Collector",
    "Dialect",
    "Event",
    "Finish",
    "Fits",
    "Malformed",
    "MalformedPart",
    "Markup",
    "Misfit",
    "MisfitKind",
    "Part",
    "Place",
    "Reason",
    "Reasoning",
    "ReasoningPart",
    "Segment",
    "Span",
    "StreamParser",
    "Text",
    "TextPart",
    "ToolCheck",
    "collect",
    "dialect_named",
    "misfits",
    "segments",
]
