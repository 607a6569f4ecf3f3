"""`localagent parse`: runs the parser on standard input or a file, for people and for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from localagent.cli.terminal import cell, say, show_json, show_table
from localagent.detection import AUTO, find_declared, find_dialect, guess_dialect, nearest_dialect
from localagent.errors import UnknownDialect, UsageError
from localagent.messages.values import refuse_constant
from localagent.parsers import (
    DIALECTS,
    CallPart,
    Dialect,
    Event,
    Finish,
    MalformedPart,
    ReasoningPart,
    Span,
    StreamParser,
    TextPart,
    collect,
    segments,
)


class _BadLine(ValueError):
    """What is wrong with one line of input."""


def chosen_dialect(name: str | None, declared: Path | None) -> Dialect | None:
    """The dialect of the options --dialect and --dialect-from; None to detect it for each output.

    Raises UnknownDialect, and UsageError for both.
    """
    if declared is None:
        return None if name == AUTO else find_dialect(name or "lfm2")
    if name is not None:
        raise UsageError("--dialect and --dialect-from both name the format: leave one out")
    return find_declared(declared)


@contextmanager
def opened(path: Path | None) -> Iterator[BinaryIO]:
    """The file to read; None or - is standard input. Raises UsageError."""
    if path is None or str(path) == "-":
        if sys.stdin.isatty():
            say("(paste the output, then press Ctrl-D on an empty line)")
        yield sys.stdin.buffer
        return
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error


def parse_lines(dialect: Dialect | None, file: BinaryIO) -> None:
    """Read a JSON object per line and write one for each, in order; a bad line is answered with an error.

    Without a dialect, it is detected for each output and named in the answer.
    """
    for line in file:
        identity: Any = None
        try:
            record = _record(line)
            identity = record.get("id")
            answer = {"id": identity, **parse_record(record, dialect)}
        except (_BadLine, UnknownDialect) as error:
            answer = {"id": identity, "error": str(error)}
        # ASCII only: the model's text may hold lone surrogates, which UTF-8 cannot encode
        show_json(json.dumps(answer, allow_nan=False))


def parse_record(record: dict[str, Any], dialect: Dialect | None) -> dict[str, Any]:
    """The answer to one record, without its id. A dialect that the record names comes first.

    Raises ValueError for a bad record, UnknownDialect.
    """
    tools, inside = _tools(record), _choice(record, "inside", ("reasoning",))
    finish: Finish = _choice(record, "finish", ("stop", "length")) or "stop"
    pieces = list(_pieces(record))
    if (named := record.get("dialect")) is not None:
        if not isinstance(named, str) or named not in DIALECTS:  # never a file: lines may come from anywhere
            raise _BadLine(f"no dialect is called {named!r}: `localagent parse --list` shows all")
        dialect = DIALECTS[named]
    found = dialect or guess_dialect("".join(text for text, _ in pieces), tools, inside)
    if inside and found.reasoning is None:
        raise _BadLine(f"inside: the dialect {found.name} has no {inside}")
    parser = StreamParser(found, tools=tools, inside=inside)
    events: list[Event] = []
    for text, special in pieces:
        events += parser.feed(text, special)
    events += parser.close(finish)
    parts = collect(events)
    answer: dict[str, Any] = {} if dialect else {"dialect": found.name}
    return answer | {
        "content": "".join(part.text for part in parts if isinstance(part, TextPart)),
        "reasoning": "".join(part.text for part in parts if isinstance(part, ReasoningPart)),
        "tool_calls": [
            {
                "name": part.name,
                "arguments": part.arguments,
                "repaired": part.repaired,
                "fits": part.fits if part.fits is None or part.fits is True else [*map(asdict, part.fits)],
            }
            for part in parts
            if isinstance(part, CallPart)
        ],
        "malformed": [
            {"raw": part.raw, "reason": part.reason, "name": part.name}
            for part in parts
            if isinstance(part, MalformedPart)
        ],
        "segments": [list(segment) for segment in segments(events)],
        "events": len(events),
    }


def parse_text(dialect: Dialect | None, file: BinaryIO) -> None:
    """Read one raw output and print it for people. Without a dialect it is detected.

    An output that no dialect reads without fault is what people come with to see what is wrong: it is shown
    as the nearest dialect reads it, and a note says so.
    """
    from rich.table import Table

    from localagent.cli.input import read_text

    raw = read_text(file.read(), "standard input" if file is sys.stdin.buffer else file.name)
    found = dialect
    if found is None:
        try:
            found = guess_dialect(raw)
        except UnknownDialect as error:
            found = nearest_dialect(raw)
            say(f"note: {error}; shown as {found.name} reads it, which comes nearest")
    parser = StreamParser(found)
    table = Table("part", "what", box=None, pad_edge=False, header_style="bold")
    if dialect is None:
        table.add_row(cell("dialect", "dim"), cell(found.name, "dim"))
    for part in collect([*parser.feed(raw), *parser.close()]):
        match part:
            case TextPart(text=text):
                table.add_row("text", cell(text))
            case ReasoningPart(text=text):
                table.add_row(cell("reasoning", "dim"), cell(text, "dim"))
            case CallPart():
                mark = " (repaired)" if part.repaired else ""
                table.add_row(cell("call", "cyan"), cell(f"{part.name}{mark} {part.arguments_text}"))
            case MalformedPart():
                where = f"{part.reason}, {part.name}" if part.name else part.reason
                table.add_row(cell("malformed", "red"), cell(f"{where}: {part.raw}"))
    show_table(table, soft_wrap=True)


def list_dialects(*, as_json: bool) -> None:
    """Print every dialect with its markers, for people or as one JSON object per line."""
    if as_json:
        for dialect in DIALECTS.values():
            spans = {"reasoning": dialect.reasoning, "calls": dialect.calls}
            pairs = {key: span and span.markers for key, span in spans.items()}
            markers = {"inner": dialect.inner, "ends": dialect.ends}
            show_json({"name": dialect.name, **pairs, **markers, "aliases": dialect.aliases}, indent=None)
        return
    from rich.table import Table

    columns = ("dialect", "calls", "reasoning", "ends of a turn", "aliases")
    table = Table(*columns, box=None, pad_edge=False)
    for dialect in DIALECTS.values():
        calls = _pair(dialect.calls) or ("(bare)" if dialect.renderers else "")
        ends, aliases = " ".join(dialect.ends), ", ".join(dialect.aliases)
        table.add_row(*map(cell, (dialect.name, calls, _pair(dialect.reasoning), ends, aliases)))
    show_table(table)


def _pair(span: Span | None) -> str:
    return "" if span is None else f"{span.open} … {span.close}"


def _record(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _BadLine(f"not a JSON line: {error}") from None
    if not isinstance(record, dict):
        raise _BadLine("not a JSON object")
    return record


def _pieces(record: dict[str, Any]) -> Iterator[tuple[str, bool | None]]:
    """The pieces to feed to the parser, each with its special flag."""
    given = [key for key in ("text", "chunks", "pieces") if key in record]
    if len(given) != 1:
        raise _BadLine(f"needs exactly one of text, chunks, pieces; has {', '.join(given) or 'none'}")
    value = record[given[0]]
    if given[0] == "text":
        if not isinstance(value, str):
            raise _BadLine("text must be a string")
        yield value, None
        return
    if not isinstance(value, list):
        raise _BadLine(f"{given[0]} must be a list")
    for number, piece in enumerate(value):
        if given[0] == "chunks":
            if not isinstance(piece, str):
                raise _BadLine(f"chunks[{number}] must be a string")
            yield piece, None
        else:
            if not isinstance(piece, dict) or not isinstance(piece.get("text"), str):
                raise _BadLine(f"pieces[{number}] must be an object with a string text")
            special = piece.get("special")
            if not isinstance(special, bool | None):
                raise _BadLine(f"pieces[{number}].special must be true, false or null")
            yield piece["text"], special


def _tools(record: dict[str, Any]) -> list[dict[str, Any]] | None:
    tools = record.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(
        isinstance(tool, dict)
        and isinstance(tool.get("function"), dict)
        and isinstance(tool["function"].get("name"), str)
        for tool in tools
    ):
        raise _BadLine("tools must be a list of OpenAI function tools")
    return tools


def _choice(record: dict[str, Any], key: str, choices: tuple[str, ...]) -> Any:
    value = record.get(key)
    if value is not None and value not in choices:
        raise _BadLine(f"{key} must be one of {', '.join(choices)}")
    return value
