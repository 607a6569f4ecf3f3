"""Every function of BFCL's data: its schema compiles or is relaxed by name.

The data is in the package `bfcl-eval`, which is found as it is installed, or unpacked in $LOCALAGENT_BFCL. Types are
made those of JSON Schema as the package's own code does it. One task in twenty is tried, all with
HYPOTHESIS_PROFILE=long.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localagent.constraint.grammar import block_grammar
from localagent.constraint.matching import matcher_factory
from localagent.errors import SchemaRefused
from parsers import DIALECTS
from tests.conftest import LONG
from tests.constraint.drawing import special_of, tool_of

TYPES = {
    **dict.fromkeys(("float", "double", "number"), "number"),
    **dict.fromkeys(("byte", "short", "long", "Bigint", "integer"), "integer"),
    **dict.fromkeys(("list", "tuple", "ArrayList", "Array", "Queue", "Stack", "array"), "array"),
    **dict.fromkeys(("dict", "HashMap", "Hashtable", "object"), "object"),
    **dict.fromkeys(("bool", "boolean"), "boolean"),
}
SECONDS = 10.0


def data_folder() -> Path | None:
    said = os.environ.get("LOCALAGENT_BFCL")
    if said:
        return next(Path(said).rglob("bfcl_eval/data"), None)
    found = importlib.util.find_spec("bfcl_eval")
    return (
        Path(found.submodule_search_locations[0]) / "data"
        if found and found.submodule_search_locations
        else None
    )


def tasks(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """The functions of each task, and of each of the other files' lines."""
    for path in sorted(folder.rglob("*.json")):
        for line in path.read_text("utf-8").splitlines():
            task = json.loads(line) if line.startswith('{"') else {}  # others are one object on many lines
            functions = task.get("function", [task] if {"name", "parameters"} <= task.keys() else [])
            functions = [functions] if isinstance(functions, dict) else functions
            if functions:
                yield [
                    tool_of(re.sub(r"[^\w.-]", "_", each["name"]), normal(each["parameters"]))
                    for each in functions
                ]


def normal(schema: Any) -> Any:
    """A schema with JSON Schema's types: a type that is not known, or not said, is a string, as BFCL has it."""
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    found["type"] = (
        TYPES.get(schema.get("type", ""), "string")
        if isinstance(schema.get("type", ""), str)
        else schema["type"]
    )
    if isinstance(schema.get("properties"), dict):
        found["properties"] = {key: normal(value) for key, value in schema["properties"].items()}
    if isinstance(schema.get("items"), dict):
        found["items"] = normal(schema["items"])
    return found


@pytest.mark.parametrize("name", ["lfm2", "hermes", "qwen3-coder"])
def test_every_schema_compiles_or_is_relaxed_by_name(name: str, vocabulary: Any) -> None:
    folder = data_folder()
    if folder is None or not folder.is_dir():
        pytest.skip("the package bfcl-eval, whose data this needs, is not installed")
    factory, relaxed, slowest, count, refused = matcher_factory(vocabulary), Counter[str](), 0.0, 0, 0
    for number, tools in enumerate(tasks(folder)):
        if not LONG and number % 20:
            continue
        start = time.monotonic()
        grammar = block_grammar(DIALECTS[name], tools, special=special_of(vocabulary))
        factory.compile(grammar.text).mask()
        slowest = max(slowest, time.monotonic() - start)
        relaxed.update(found.keyword for found in grammar.relaxed)
        count += 1
        if grammar.relaxed:
            with pytest.raises(SchemaRefused):
                block_grammar(DIALECTS[name], tools, special=special_of(vocabulary), strict=True)
            refused += 1
    print(
        f"{name}: {count} tasks compiled, relaxed {dict(relaxed)}, refused if strict {refused}, slowest {slowest:.3f} s"
    )
    assert count >= (4_000 if LONG else 200)
    assert slowest < SECONDS
    assert set(relaxed) <= {"enum", "type", "properties", "name", "minimum", "pattern"}
