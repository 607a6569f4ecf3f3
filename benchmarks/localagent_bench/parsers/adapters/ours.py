"""The parsers of localagent."""

import pathlib
import sys

NAME = "localagent"
FLAGS = True
DIALECTS = {}


def load():
    """The folder of the packages is found from this file: the child need not have localagent installed."""
    # Beside this package where both are installed, and above its folder in a checkout.
    folders = pathlib.Path(__file__).parents[3:5]
    sys.path.insert(0, next(str(folder) for folder in folders if (folder / "localagent").is_dir()))
    from localagent import parsers

    DIALECTS.update({name: name for name in parsers.DIALECTS})
    from importlib import metadata

    try:
        return metadata.version("localagent-runtime")
    except metadata.PackageNotFoundError:
        return ""


def read(dialect, pieces, streamed, request):
    """One way for whole outputs and for streams; `special` says which pieces are special tokens."""
    from localagent.parsers import DIALECTS as TABLES
    from localagent.parsers import CallPart, MalformedPart, ReasoningPart, StreamParser, TextPart, collect

    parser = StreamParser(TABLES[dialect], request.get("tools"), request.get("inside"))
    events = []
    flags = request.get("special") or [None] * len(pieces)
    for piece, special in zip(pieces, flags):  # noqa: B905  # as long as each other
        events += parser.feed(piece, special)
    events += parser.close(request.get("finish") or "stop")
    parts = collect(events)
    return {
        "content": "".join(part.text for part in parts if isinstance(part, TextPart)),
        "reasoning": "".join(part.text for part in parts if isinstance(part, ReasoningPart)),
        "tool_calls": [
            {"name": part.name, "arguments": part.arguments} for part in parts if isinstance(part, CallPart)
        ],
        "malformed": [
            {"raw": part.raw, "reason": part.reason} for part in parts if isinstance(part, MalformedPart)
        ],
    }
