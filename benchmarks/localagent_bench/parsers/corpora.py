"""Outputs with the readings that are right, and the tasks whose calls are rendered.

A file of outputs has one JSON object in a line, as `localagent parse --jsonl` takes them: `id`, `dialect`,
one of `text`, `chunks`, `pieces`, and `tools`, `inside`, `finish`; and `expected`: {"content", "reasoning",
"tool_calls": [{"name", "arguments"}]}, of which what is left out or null is not judged. `accept` lists other
lists of calls that are as good, `tags` may hold `may-refuse` or `may-text`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from localagent.errors import UsageError
from localagent.parsers import DIALECTS
from localagent_bench.bfcl import JUDGED, find_package, openai_name, read_tasks

Call = tuple[str, dict[str, Any]]
Tools = list[dict[str, Any]]
Note = Callable[[str], object]
DEEPEST = 200
"""Levels of arguments: judging them recurses, and no real call comes near."""

_ROOT = Path(__file__).parents[3]
_RECORDED = _ROOT.parent / "shared" / "cases"
"""Where recorded outputs may lie beside a checkout; RECORDED_CASES names another folder."""


@dataclass(frozen=True, slots=True)
class Row:
    """One output with the readings that are right."""

    corpus: str
    id: str
    family: str
    dialect: str
    text: str
    tools: Tools | None
    accepted: tuple[list[Call], ...]
    """The lists of calls that are right; the first goes with the next two fields."""
    content: str | None
    """None, here and in the next one: not judged."""
    reasoning: str | None
    inside: Literal["reasoning"] | None = None
    finish: Literal["stop", "length"] = "stop"
    tags: frozenset[str] = frozenset()
    pieces: tuple[tuple[str, bool | None], ...] = ()
    """The output in pieces, where it matters which of them are special tokens."""

    def request(
        self, pieces: Iterable[tuple[str, bool | None]] | None = None, *, flags: bool = False
    ) -> dict[str, Any]:
        """What a parser is asked. `flags`: it is told which pieces are special tokens."""
        asked: dict[str, Any] = {"dialect": self.dialect, "tools": self.tools, "finish": self.finish}
        if self.inside:
            asked["inside"] = self.inside
        given = list(pieces or self.pieces)
        if flags and any(special is not None for _, special in given):
            asked["special"] = [special for _, special in given]
        elif pieces is None:
            return asked | {"text": self.text}
        return asked | {"chunks": [text for text, _ in given]}


def case_rows() -> Iterator[Row]:
    """The case tables of the dialects, which are part of a checkout, and the recorded outputs beside it.

    The tables say how this project reads an output; other readings of the odd ones can be defended.
    """
    for path in sorted((_ROOT / "tests" / "parsers" / "cases").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            case = json.loads(line)
            if case.keys() & {"strict", "atomic"}:
                continue  # settings of our own parser
            yield Row(
                corpus="cases",
                id=f"{path.stem}: {case['why']}",
                family=path.stem,
                dialect=path.stem,
                text=case["raw"],
                tools=_openai(case.get("tools")),
                accepted=([(name, arguments) for name, arguments in case["calls"]],),
                content=case["content"],
                reasoning=case["reasoning"],
                inside=case.get("inside"),
                pieces=tuple((text, special) for text, special in case.get("pieces", ())),
            )
    folder = Path(os.environ.get("RECORDED_CASES", _RECORDED))
    for path in sorted(folder.glob("*.jsonl")):
        yield from file_rows(path, lambda _: None)


def _openai(tools: Any) -> Tools | None:
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("tools must be a list of objects")
    return [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]


def file_rows(path: Path, note: Note) -> Iterator[Row]:
    """The outputs of a file. Lines that are no outputs are noted and left out. Raises UsageError."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    found = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _row(json.loads(line), path.stem, str(number))
            found += 1
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            note(f"{path.name}, line {number:,}, is left out: {reason[:200]}")
    if not found:
        note(f"{path.name} holds no outputs that can be judged")


def _row(told: dict[str, Any], corpus: str, number: str) -> Row:
    expected, dialect = told["expected"], told.get("dialect") or "lfm2"
    if dialect not in DIALECTS:
        raise ValueError(f"no dialect is called {dialect}")
    pieces = tuple((piece["text"], piece.get("special")) for piece in told.get("pieces") or ())
    given = [told[key] for key in ("text", "raw") if key in told] or [
        "".join(told["chunks"] if "chunks" in told else [text for text, _ in pieces])
    ]
    lists = (expected["tool_calls"], *told.get("accept", ()))
    row = Row(
        corpus=corpus,
        id=str(told.get("id", number)),
        family=dialect,
        dialect=dialect,
        text=given[0],
        tools=_openai(told.get("tools")),
        accepted=tuple([(str(call["name"]), dict(call["arguments"])) for call in calls] for calls in lists),
        content=expected.get("content"),
        reasoning=expected.get("reasoning"),
        inside=told.get("inside"),
        finish=told.get("finish") or "stop",
        tags=frozenset(told.get("tags") or ()),
        pieces=pieces,
    )
    if not isinstance(row.text, str) or row.inside not in ("reasoning", None):
        raise ValueError("text must be a string, and inside `reasoning` or null")
    if row.finish not in ("stop", "length"):
        raise ValueError("finish must be `stop` or `length`")
    if not all(isinstance(each, str | None) for each in (row.content, row.reasoning)):
        raise ValueError("the expected content and reasoning must be strings or null")
    if not all(isinstance(call["arguments"], dict) for calls in lists for call in calls):
        raise ValueError("arguments must be objects")
    if too_deep([given for calls in row.accepted for _, given in calls]):
        raise ValueError(f"arguments of more than {DEEPEST} levels")
    return row


def too_deep(value: Any) -> bool:
    """Whether lists and objects stand within each other in more than DEEPEST levels."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            item
            for each in level
            for item in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        ]
    return bool(level)


@dataclass(frozen=True, slots=True)
class AskedCalls:
    """Calls that somebody asked for, and the tools they could choose from."""

    id: str
    tools: Tools
    calls: list[Call]


_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
_TYPES |= {name: name for name in ("integer", "string", "boolean", "array", "object", "number")}


def bfcl_tasks() -> list[AskedCalls]:
    """The single-turn tasks of BFCL with their 3,302 calls. Raises NoData."""
    return read_tasks(find_package(), JUDGED, _task)


def _task(category: str, entry: dict[str, Any], truth: list[dict[str, dict[str, Any]]]) -> AskedCalls:
    tools = [
        {
            "type": "function",
            "function": {"name": openai_name(tool["name"])}
            | _schema({key: tool[key] for key in ("description", "parameters") if key in tool}),
        }
        for tool in entry["function"]
    ]
    calls = [
        (
            openai_name(tool),
            {key: _plain(_first(values)) for key, values in given.items() if _first(values) is not None},
        )
        for call in truth
        for tool, given in call.items()
    ]
    return AskedCalls(entry["id"], tools, calls)


def _schema(value: Any) -> Any:
    """BFCL's own names of types, as JSON Schema has them."""
    match value:
        case list():
            return [_schema(item) for item in value]
        case dict():
            found: dict[str, Any] = {}
            for key, item in value.items():
                if key == "type" and isinstance(item, str):
                    if kind := _TYPES.get(item.lower(), "string"):
                        found["type"] = kind
                elif key == "properties" and isinstance(item, dict):
                    found[key] = {name: _schema(part) for name, part in item.items()}
                else:
                    found[key] = _schema(item)
            return found
    return value


def _first(values: Any) -> Any:
    """The first of the accepted values; "" means that the argument may be left out."""
    return next((value for value in values if value != ""), None)


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {
                key: _plain(_first(item)) if isinstance(item, list) else _plain(item)
                for key, item in value.items()
                if not (isinstance(item, list) and _first(item) is None)
            }
        case list():
            return [_plain(item) for item in value]
    return value
