"""Outputs that models wrote, read by the dialects: how many are read exactly, and whether any call is wrong.

    python -m benchmarks.recorded [--set lfm2,canitoolcall,formats] [--dialect hermes,glm45] [--show] [--write]

Three sets. `lfm2` and `formats` are tables of recorded outputs that are kept outside of the repository, in
`shared/cases` beside it or in the folder that RECORDED_CASES names; `canitoolcall` is the package of that name,
whose own code judges, whole and in its own chunkings. `--show` prints every row that is not read exactly, what was
read and what was expected. `--write` puts the table into benchmarks/README.md.

exact     calls, content and reasoning are those expected
soft      they are, but for white space: the suites that rows come from trim it around markers, each in its own
          way, and a dialect takes away only what the format's own template writes
refused   fewer calls than expected, none of them wrong, and what was left out is kept as malformed
missed    anything else that differs: a call read as text, or text that is not what was expected
wrong     a call was emitted that no accepted reading holds
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from parsers import (
    DIALECTS,
    CallPart,
    Event,
    MalformedPart,
    Part,
    ReasoningPart,
    StreamParser,
    TextPart,
    collect,
)

ROOT = Path(__file__).parents[1]
CASES = Path(os.environ.get("RECORDED_CASES", ROOT.parent / "shared" / "cases"))
README = ROOT / "benchmarks" / "README.md"

Verdict = Literal["exact", "soft", "refused", "missed", "wrong"]
VERDICTS: tuple[Verdict, ...] = ("exact", "soft", "refused", "missed", "wrong")
Calls = list[tuple[str, dict[str, Any]]]


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
    """The lists of calls that are right; the first goes with `content`, `reasoning` and `malformed`."""
    content: str | None = None
    """None, here and in the next two: not judged."""
    reasoning: str | None = None
    malformed: bool | None = None
    inside: str | None = None
    finish: str = "stop"
    tags: frozenset[str] = frozenset()
    pieces: tuple[tuple[str, bool], ...] = ()
    fixture: Any = field(default=None, repr=False)
    """What CanIToolCall's own judge wants to see."""

    def read(self, pieces: Iterable[tuple[str, bool | None]] | None = None) -> list[Event]:
        """The events of this output, fed as a whole or in `pieces`."""
        parser = StreamParser(DIALECTS[self.dialect], self.tools, self.inside)  # type: ignore[arg-type]
        events: list[Event] = []
        for text, special in self.pieces or [(self.raw, None)] if pieces is None else pieces:
            events += parser.feed(text, special)
        return events + parser.close(self.finish)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Reading:
    """What came out, in the terms of a row."""

    content: str
    reasoning: str
    calls: Calls
    kept: list[MalformedPart]

    @classmethod
    def of(cls, events: Iterable[Event]) -> Reading:
        """Fold the events of a turn."""
        parts: Sequence[Part] = collect(events)
        return cls(
            "".join(part.text for part in parts if isinstance(part, TextPart)),
            "".join(part.text for part in parts if isinstance(part, ReasoningPart)),
            [(part.name, part.arguments) for part in parts if isinstance(part, CallPart)],
            [part for part in parts if isinstance(part, MalformedPart)],
        )


def lfm2_rows() -> list[Row]:
    """Recorded outputs of LFM2, if they are here."""
    return list(_table("lfm2"))


def formats_rows() -> list[Row]:
    """Recorded outputs of other families, if they are here."""
    return list(_table("formats"))


def _table(name: str) -> Iterator[Row]:
    path = CASES / f"{name}.jsonl"
    for row in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
        expected, dialect = row["expected"], row.get("dialect", "lfm2")
        yield Row(
            suite=name,
            id=row["id"],
            family=dialect,
            dialect=dialect,
            raw=row["raw"],
            tools=row["tools"],
            accepted=tuple(
                [(call["name"], call["arguments"]) for call in calls]
                for calls in (expected["tool_calls"], *row.get("accept", ()))
            ),
            content=expected["content"],
            reasoning=expected["reasoning"],
            malformed=expected["malformed"],
            inside=row.get("inside"),
            finish=row.get("finish", "stop"),
            tags=frozenset(row["tags"]),
            pieces=tuple((piece["text"], piece["special"]) for piece in row.get("pieces", ())),
        )


# The dialect of each model whose outputs CanIToolCall holds: the first beginning that fits.
MODELS = {
    "deepseek-ai/DeepSeek-V4.1": "deepseek-v41",
    "deepseek-ai/DeepSeek-V4": "deepseek-v4",
    "deepseek-ai/DeepSeek-V3.2": "deepseek-v32",
    "deepseek-ai/DeepSeek-V3.1": "deepseek-v31",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "google/gemma-4": "gemma4",
    "zai-org/GLM-4.5": "glm45",
    "zai-org/GLM": "glm47",
    "openai/gpt-oss": "harmony",
    "moonshotai/Kimi-K3": "kimi-k3",
    "moonshotai/Kimi-K2": "kimi-k2",
    "meta-llama/Llama-3.3": "llama3-json",
    "meta-llama/Llama-4": "llama-pythonic",
    "mistralai/": "mistral",
    "Qwen/Qwen3-Coder": "qwen3-coder",
    "Qwen/Qwen3.": "qwen3-coder",
    "Qwen/Qwen3-": "hermes",
}


def canitoolcall_rows() -> list[Row]:
    """The outputs of the package `canitoolcall`, if it is installed."""
    try:
        from canitoolcall.adapters.base import ReplayInput
        from canitoolcall.fixtures import load_families, load_fixtures
    except ImportError:
        return []
    families = load_families()
    rows = []
    for fixture in load_fixtures():
        replay = ReplayInput.from_fixture(fixture, families[fixture.family])
        dialect = next(name for model, name in MODELS.items() if fixture.reference_model.startswith(model))
        span = DIALECTS[dialect].reasoning
        opened = span is not None and (replay.generation_prompt or "").rstrip().endswith(span.open.rstrip())
        expected = fixture.expected
        calls = [(call.name, dict(call.arguments)) for call in expected.tool_calls] if expected else []
        rows.append(
            Row(
                suite="canitoolcall",
                id=fixture.id,
                family=fixture.family,
                dialect=dialect,
                raw=fixture.raw_output,
                tools=[dict(tool) for tool in fixture.tools],
                accepted=(calls,),
                content=(expected.content or "") if expected else None,
                reasoning=(expected.reasoning_content or "") if expected else None,
                inside="reasoning" if opened else None,
                finish="length" if replay.truncated else "stop",
                tags=frozenset(fixture.tags),
                fixture=fixture,
            )
        )
    return rows


SUITES = {"lfm2": lfm2_rows, "canitoolcall": canitoolcall_rows, "formats": formats_rows}


def judge(row: Row) -> tuple[Verdict, str]:
    """How the reading of a row compares with what was expected, and the first difference in words."""
    found = Reading.of(row.read())
    calls = _comparable(found.calls)
    accepted = [_comparable(each) for each in row.accepted]
    if not any(_is_among(calls, each) for each in accepted):
        return "wrong", f"calls {found.calls}"
    if row.fixture is not None:
        status, difference = canitoolcalls_verdict(row)
        if status != "fail":
            return status, difference
        return ("refused" if found.kept and calls != accepted[0] else "missed"), difference
    if calls != accepted[0]:
        if calls in accepted or row.tags & {"may-refuse", "may-text"}:
            return "exact", ""
        return ("refused" if found.kept else "missed"), f"calls {found.calls}"
    differing = [
        (name, is_, due)
        for name, is_, due in (
            ("content", found.content, row.content),
            ("reasoning", found.reasoning, row.reasoning),
            ("malformed", bool(found.kept), row.malformed),
        )
        if due is not None and is_ != due
    ]
    soft = all(
        isinstance(due, str) and "".join(is_.split()) == "".join(due.split()) for _, is_, due in differing
    )
    return (
        ("soft" if soft else "missed") if differing else "exact",
        ", ".join(f"{name} {is_!r} where {due!r} is due" for name, is_, due in differing),
    )


def _comparable(calls: Calls) -> list[str]:
    """Calls as texts that tell 1 and true apart, but not 1 and 1.0."""

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


def _is_among(calls: list[str], accepted: list[str]) -> bool:
    """Whether `calls` are some of those accepted, in their order."""
    rest = iter(accepted)
    return all(call in rest for call in calls)


def canitoolcalls_verdict(row: Row) -> tuple[Literal["exact", "soft", "fail"], str]:
    """What CanIToolCall's own checks say of a row, whole and in each of its chunkings.

    Its chunkings group tokens. The vocabularies are not in the package, so markers stand for special tokens, and
    words, single signs and white space for the others.
    """
    from canitoolcall.checks import case_status, run_checks
    from canitoolcall.chunking import DEFAULT_STRATEGIES, ChunkStrategy, split
    from canitoolcall.fixtures import load_families
    from canitoolcall.results import Observation, ParsedToolCall, ParseResult, Status

    def parsed(pieces: Iterable[str]) -> ParseResult:
        parts = collect(row.read([(piece, None) for piece in pieces]))
        return ParseResult(
            "".join(part.text for part in parts if isinstance(part, TextPart)) or None,
            "".join(part.text for part in parts if isinstance(part, ReasoningPart)) or None,
            tuple(
                ParsedToolCall(part.name, part.arguments_text) for part in parts if isinstance(part, CallPart)
            ),
        )

    family = load_families()[row.family]
    markers = sorted({*family.markers, *DIALECTS[row.dialect].markers}, key=len, reverse=True)
    units = re.findall("|".join([*map(re.escape, markers), r"\s?\w+", r"\s+", "."]), row.raw, re.DOTALL)
    streams = {
        strategy.id: parsed("".join(group) for group in split(units, strategy, special=markers))
        for strategy in DEFAULT_STRATEGIES
    }
    for strategy in (ChunkStrategy("char"), ChunkStrategy("char", seed=1)):
        streams[strategy.id] = parsed("".join(group) for group in split(list(row.raw), strategy))
    checks = run_checks(row.fixture, family, Observation(nonstream=parsed([row.raw]), streams=streams))
    status = case_status(checks)
    said = {f"{check.check}: {check.detail}" for check in checks if check.status is status and check.detail}
    names: dict[Any, Literal["exact", "soft"]] = {Status.PASS: "exact", Status.SOFT_PASS: "soft"}
    return names.get(status, "fail"), "; ".join(sorted(said)) if status is not Status.PASS else ""


def show(row: Row, verdict: str, difference: str) -> None:
    """Print one row that is not exact."""
    found = Reading.of(row.read())
    settings = {
        key: value for key in ("inside", "finish") if (value := getattr(row, key)) not in (None, "stop")
    }
    print(f"\n{verdict.upper()}  {row.suite}  {row.dialect}  {row.id}  {settings or ''}  {sorted(row.tags)}")
    print(f"  raw       {row.raw[:600]!r}")
    print(f"  tools     {row.tools and [_described(tool) for tool in row.tools]}")
    print(f"  read      {found.calls}")
    print(f"            content {found.content[:200]!r}  reasoning {found.reasoning[:200]!r}")
    for part in found.kept:
        print(f"            malformed ({part.reason}) {part.raw[:200]!r}")
    print(f"  expected  {' or '.join(map(str, row.accepted))}")
    print(f"            content {row.content!r}  reasoning {row.reasoning!r}  malformed {row.malformed}")
    print(f"  differs   {difference[:400]}")


def _described(tool: dict[str, Any]) -> str:
    function = tool.get("function", tool)
    properties = (function.get("parameters") or {}).get("properties") or {}
    listed = ", ".join(f"{key}: {each.get('type', '?')}" for key, each in properties.items())
    return f"{function['name']}({listed})"


def table(counts: dict[tuple[str, str], Counter[str]]) -> str:
    """The counts as a Markdown table: the families of each set, and the set in total."""
    lines = [f"| set | family | rows | {' | '.join(VERDICTS)} |", "|---" * (3 + len(VERDICTS)) + "|"]

    def line(suite: str, family: str, count: Counter[str]) -> str:
        return (
            f"| {suite} | {family} | {count.total()} | {' | '.join(str(count[each]) for each in VERDICTS)} |"
        )

    for suite in dict.fromkeys(suite for suite, _ in counts):
        families = {family: count for (name, family), count in counts.items() if name == suite}
        total = sum(families.values(), Counter[str]())
        lines.append(line(suite, "**all**", total))
        if len(families) > 1:
            lines += [line("", family, families[family]) for family in sorted(families)]
    return "\n".join(lines)


def write(text: str) -> None:
    """Replace the table in the README."""
    begin, end = "<!-- recorded -->\n", "\n<!-- /recorded -->"
    head, _, rest = README.read_text().partition(begin)
    _, _, tail = rest.partition(end)
    README.write_text(head + begin + text + end + tail)


def main() -> None:
    """Read the rows, print the table."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--set", default=",".join(SUITES), help="which sets, with commas")
    arguments.add_argument("--dialect", default="", help="which dialects, with commas; all if left out")
    arguments.add_argument("--show", action="store_true", help="print what is not exact")
    arguments.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    options = arguments.parse_args()
    chosen = {name for name in options.dialect.split(",") if name}
    if unknown := (chosen - set(DIALECTS)) | (set(options.set.split(",")) - set(SUITES)):
        arguments.error(f"unknown: {', '.join(sorted(unknown))}")
    if options.write and (chosen or options.set != ",".join(SUITES)):
        arguments.error("--write wants all sets and all dialects")
    counts: dict[tuple[str, str], Counter[str]] = {}
    for suite in options.set.split(","):
        for row in SUITES[suite]():
            if chosen and row.dialect not in chosen:
                continue
            verdict, difference = judge(row)
            counts.setdefault((suite, row.family), Counter())[verdict] += 1
            if options.show and verdict != "exact":
                show(row, verdict, difference)
    print(table(counts))
    if options.write:
        write(table(counts))


if __name__ == "__main__":
    main()
