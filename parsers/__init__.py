"""Streaming parsers for what language models write: content, reasoning and tool calls.

    from localagent.parsers import DIALECTS, StreamParser

    parser = StreamParser(DIALECTS["lfm2"])
    for piece in ('<|tool_call_start|>[get_weather(ci', 'ty="Paris")]<|tool_call_end|>'):
        for event in parser.feed(piece):
            ...
    parser.close()

Standard library only. Knows nothing of models, hosts or HTTP.

This folder has three names, so its modules import each other relatively: `localagent.parsers`, as localagent
imports it; `localagent_parsers` in the distribution `localagent-parsers`; and `parsers`, which is the first
again. localagent itself never imports `parsers`, since that may be a file of the user's.
"""

import sys
from importlib import import_module
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Any

if __name__ == "parsers":
    try:
        real = import_module("localagent.parsers")
    except ModuleNotFoundError:
        pass  # the folder without localagent
    else:
        # What `parsers` and `localagent.parsers` give must be the same classes, whichever is imported first.
        for module_info in walk_packages(real.__path__, "localagent.parsers."):
            import_module(module_info.name)
        sys.modules |= {
            name.removeprefix("localagent."): module
            for name, module in sys.modules.items()
            if name.startswith("localagent.parsers")
        }

from .collect import (
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
from .dialect import Dialect
from .engine.emitter import Place
from .engine.fits import ToolCheck, misfits
from .engine.spans import Span
from .engine.stream import StreamParser
from .events import (
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

if TYPE_CHECKING:
    from .arguments import ArgumentsReader
    from .formats import DIALECTS, dialect_named

__all__ = [
    "DIALECTS",
    "ArgumentEnd",
    "ArgumentsDelta",
    "ArgumentsReader",
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


_LAZY = {"ArgumentsReader": ".arguments", "DIALECTS": ".formats", "dialect_named": ".formats"}
"""What needs the formats, which are imported when it is first asked for: types of events need no dialect."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name], __name__), name)
