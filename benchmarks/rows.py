"""Recorded outputs, each with the readings that are right, and the judge that compares ours with them.

The tables are not part of the repository: they are looked for in `shared/cases` beside it, or in the folder
that RECORDED_CASES names. Without them there are no rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from parsers import DIALECTS, CallPart, Event, MalformedPart, ReasoningPart, StreamParser, TextPart, collect

ROOT = Path(__file__).parents[1]
CASES = Path(os.environ.get("RECORDED_CASES", ROOT.parent / "shared" / "cases"))

Verdict = Literal["exact", "soft", "refused", "missed", "wrong"]
VERDICTS: tuple[Verdict, ...] = ("exact", "soft", "refused", "missed", "wrong")
Calls = list[tuple[str, dict[str, Any]]]
Piece = tuple[str, bool | None]


@dataclass(frozen=True)
class Row:
    """One output with the readings that are right."""

    suite: str
    id: str
    family: str
    dialect: str
    raw: str
    tools: list[dict[str, Any]] | None
    accepted: tuple[Calls, ...]
    """The lists of calls that are right; the first goes with the next three fields."""
    content: str | None
    """None, here and in the next two: not judged."""
    reasoning: str | None
    malformed: bool | None
    inside: Literal["reasoning"] | None = None
    finish: Literal["stop", "length"] = "stop"
    tags: frozenset[str] = frozenset()
    pieces: tuple[Piece, ...] = ()
    """The output in pieces, where it matters which of them are special tokens."""

    def read(self, pieces: Iterable[Piece] | None = None) -> list[Event]:
        """The events of this output, whole or fed in `pieces`."""
        parser = StreamParser(DIALECTS[self.dialect], self.tools, self.inside)
        events: list[Event] = []
        for text, special in pieces or self.pieces or [(self.raw, None)]:
            events += parser.feed(text, special)
        return events + parser.close(self.finish)


@dataclass(frozen=True)
class Reading:
    """What was read, in the terms of a row."""

    content: str
    reasoning: str
    calls: list[CallPart]
    kept: list[MalformedPart]

    @classmethod
    def of(cls, events: Iterable[Event]) -> Reading:
        """Fold the events of a turn."""
        parts = collect(events)
        return cls(
            "".join(part.text for part in parts if isinstance(part, TextPart)),
            "".join(part.text for part in parts if isinstance(part, ReasoningPart)),
            [part for part in parts if isinstance(part, CallPart)],
            [part for part in parts if isinstance(part, MalformedPart)],
        )


def recorded_rows(table: Literal["lfm2", "formats"]) -> Iterator[Row]:
    """The rows of one table: outputs of LFM2, or of the other families."""
    path = CASES / f"{table}.jsonl"
    for row in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
        expected, dialect = row["expected"], row.get("dialect", "lfm2")
        lists = (expected["tool_calls"], *row.get("accept", ()))
        yield Row(
            suite=table,
            id=row["id"],
            family=dialect,
            dialect=dialect,
            raw=row["raw"],
            tools=row["tools"],
            accepted=tuple([(call["name"], call["arguments"]) for call in calls] for calls in lists),
            content=expected["content"],
            reasoning=expected["reasoning"],
            malformed=expected["malformed"],
            inside=row.get("inside"),
            finish=row.get("finish", "stop"),
            tags=frozenset(row["tags"]),
            pieces=tuple((piece["text"], piece["special"]) for piece in row.get("pieces", ())),
        )


def judge(row: Row) -> tuple[Verdict, str]:
    """How the reading of a row compares with what is right, and where it differs."""
    found = Reading.of(row.read())
    if (verdict := judge_calls(row, found)) != "exact":
        return verdict, f"calls {[(call.name, call.arguments) for call in found.calls]}"
    if comparable(found) != canonical(row.accepted[0]):
        return "exact", ""  # as good: content and reasoning are then not judged
    differing = [
        (name, is_, due)
        for name, is_, due in (
            ("content", found.content, row.content),
            ("reasoning", found.reasoning, row.reasoning),
            ("malformed", bool(found.kept), row.malformed),
        )
        if due is not None and is_ != due
    ]
    if not differing:
        return "exact", ""
    soft = all(
        isinstance(due, str) and "".join(is_.split()) == "".join(due.split()) for _, is_, due in differing
    )
    return "soft" if soft else "missed", ", ".join(
        f"{name} {is_!r}, due is {due!r}" for name, is_, due in differing
    )


def judge_calls(row: Row, found: Reading) -> Verdict:
    """The verdict on the calls alone."""
    calls, accepted = comparable(found), [canonical(each) for each in row.accepted]
    if calls in accepted:
        return "exact"
    if not any(is_among(calls, each) for each in accepted):
        return "wrong"
    if row.tags & {"may-refuse", "may-text"}:
        return "exact"
    return "refused" if found.kept else "missed"


def comparable(found: Reading) -> list[str]:
    """The calls that were read, as texts."""
    return canonical([(call.name, call.arguments) for call in found.calls])


def canonical(calls: Calls) -> list[str]:
    """Calls as texts that tell 1 from true, but not 1 from 1.0, which are one number in JSON."""

    def plain(value: Any) -> Any:
        match value:
            case float() if value.is_integer():
                return int(value)
            case list():
                return [plain(item) for item in value]
            case dict():
                return {key: plain(item) for key, item in value.items()}
        return value

    return [f"{name} {json.dumps(plain(arguments), sort_keys=True)}" for name, arguments in calls]


def is_among(calls: list[str], accepted: list[str]) -> bool:
    """Whether `calls` are some of those accepted, in their order."""
    rest = iter(accepted)
    return all(call in rest for call in calls)
