"""CanIToolCall's outputs, read by a parser and judged by that package's own code: whole, and in its own
chunkings.

`canitoolcall` is a package with outputs of nine families, what is to be read in each, and a judge. Its
chunkings group tokens. The vocabularies are not in the package, so each marker counts as a token here, and so
does each word, sign and stretch of white space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING

from localagent.parsers import DIALECTS
from localagent_bench.parsers.children import Child
from localagent_bench.parsers.corpora import Call, Row
from localagent_bench.parsers.judging import Reading, Verdict, judge_calls

if TYPE_CHECKING:
    from canitoolcall.fixtures import Family, Fixture
    from canitoolcall.results import ParseResult

Piece = tuple[str, bool | None]

# The dialect of each model whose outputs are in the package: the first beginning of its name that fits.
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
    "Qwen/": "hermes",
}
# Markers that are control tokens, by their ids, in the two families of which the package has outputs that
# spell a marker in ordinary tokens. Everywhere else markers are known by their text.
CONTROL = {
    "gpt-oss": {
        200002: "<|return|>",
        200003: "<|constrain|>",
        200005: "<|channel|>",
        200006: "<|start|>",
        200007: "<|end|>",
        200008: "<|message|>",
        200012: "<|call|>",
    },
    "kimi": {163587: "<|open|>", 163588: "<|close|>", 163589: "<|sep|>"},
}
FAILS: dict[str, tuple[str, list[Call]]] = {
    "llama/l4-truncated-missing-close-bracket": (
        "wants no call of a list that was cut off, of which the first call is complete",
        [("get_weather", {"city": "San Francisco"})],
    ),
}
"""What the judge fails, why that stays, and the calls that are right in our eyes where it wants none."""


def conformance_rows() -> Iterator[Row]:
    """Every output of the package. Raises ImportError without it."""
    for fixture, family in _fixtures().values():
        from canitoolcall.adapters.base import ReplayInput

        dialect = next(name for model, name in MODELS.items() if fixture.reference_model.startswith(model))
        replay, span = ReplayInput.from_fixture(fixture, family), DIALECTS[dialect].reasoning
        opened = span is not None and (replay.generation_prompt or "").rstrip().endswith(span.open.rstrip())
        expected = fixture.expected
        right = [(call.name, dict(call.arguments)) for call in expected.tool_calls] if expected else []
        _, ours = FAILS.get(fixture.id, ("", []))
        yield Row(
            corpus="canitoolcall",
            id=fixture.id,
            family=fixture.family,
            dialect=dialect,
            text=fixture.raw_output,
            tools=[dict(tool) for tool in fixture.tools],
            accepted=(right, ours) if ours else (right,),
            content=(expected.content or "") if expected else None,
            reasoning=(expected.reasoning_content or "") if expected else None,
            inside="reasoning" if opened else None,
            finish="length" if replay.truncated else "stop",
            tags=frozenset(fixture.tags),
            pieces=tuple(_joined(units(fixture, family, dialect))),
        )


@cache
def _fixtures() -> dict[str, tuple[Fixture, Family]]:
    from canitoolcall.fixtures import load_families, load_fixtures

    families = load_families()
    return {fixture.id: (fixture, families[fixture.family]) for fixture in load_fixtures()}


def units(fixture: Fixture, family: Family, dialect: str) -> list[Piece]:
    """The output in pieces that stand for its tokens, and which of them are special, where that is known."""
    markers = sorted({*family.markers, *DIALECTS[dialect].markers}, key=len, reverse=True)
    names = CONTROL.get(family.slug, {})
    if not names.keys() & set(fixture.output_token_ids or ()):
        pattern = "|".join([*map(re.escape, markers), r"\s?\w+", r"\s+", "."])
        return [(unit, None) for unit in re.findall(pattern, fixture.raw_output, re.DOTALL)]
    # A marker in the text is a control token if that one comes next, and has ordinary tokens right before it
    # just if the text has something other right before the marker.
    due, before = [], False
    for token in fixture.output_token_ids or ():
        if token in names:
            due.append((names[token], before))
        before = token not in names
    found: list[Piece] = []
    pattern = "|".join([*map(re.escape, names.values()), r"\s?\w+", r"\s+", "."])
    for unit in re.findall(pattern, fixture.raw_output, re.DOTALL):
        special = due[:1] == [(unit, bool(found) and not found[-1][1])]
        found.append((unit, special))
        del due[:special]
    assert not due, f"{fixture.id}: control tokens that are not in its text"
    return found


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces with those joined that are no special tokens."""
    for special, group in groupby(pieces, key=lambda piece: piece[1]):
        texts = [text for text, _ in group]
        yield from ((text, special) for text in (texts if special else ["".join(texts)]))


def conformance(parser: Child, row: Row) -> tuple[Verdict, str, bool]:
    """The verdict of the package's own checks in our terms, what they say, and whether no stream differs from
    the whole.

    Raises Gone.
    """
    from canitoolcall.checks import run_checks
    from canitoolcall.chunking import DEFAULT_STRATEGIES, ChunkStrategy, split
    from canitoolcall.results import Observation, Status, worst_status

    fixture, family = _fixtures()[row.id]
    pieces = units(fixture, family, row.dialect)
    special = [piece for piece in pieces if piece[1] or piece[0] in DIALECTS[row.dialect].markers]
    whole = parser.read(row.request(flags=parser.flags))
    streams, equal = {}, True
    for strategy in (*DEFAULT_STRATEGIES, ChunkStrategy("char"), ChunkStrategy("char", seed=1)):
        if strategy.kind == "char":
            every = [(char, flag) for text, flag in pieces for char in ([text] if flag else text)]
            groups = split(every, strategy)
        else:
            groups = split(pieces, strategy, special=special)
        found = parser.read(
            row.request([piece for group in groups for piece in _joined(group)], flags=parser.flags)
        )
        equal = equal and found.key == whole.key
        streams[strategy.id] = _parsed(found)
    checks = run_checks(fixture, family, Observation(_parsed(whole), streams))
    # The package does not count cuts within a token; here they must change nothing.
    status = worst_status(check.status for check in checks)
    said = "; ".join(sorted({f"{check.check}: {check.detail}" for check in checks if check.status is status}))
    if status is Status.PASS:
        return "exact", "", equal
    if status is Status.SOFT_PASS:
        return "soft", said, equal
    verdict = judge_calls(row, whole)
    return ("missed" if verdict == "exact" else verdict), said, equal


def _parsed(found: Reading) -> ParseResult:
    """What the judge wants to see of one reading."""
    from canitoolcall.results import ParsedToolCall, ParseResult

    calls = tuple(ParsedToolCall(name, json.dumps(given, ensure_ascii=False)) for name, given in found.calls)
    return ParseResult(found.content or None, found.reasoning or None, calls, exception=found.error or None)
