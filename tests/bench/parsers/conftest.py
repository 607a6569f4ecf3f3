"""Parsers in child processes: ours, and small programs that speak the protocol well or badly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localagent_bench.parsers.children import Child, adapter

ANSWER = """
import json, os, sys, time
def answer(asked, **more):
    said = {"id": asked["id"], "content": "", "reasoning": "", "tool_calls": []} | more
    print(json.dumps(said), flush=True)
def lines():
    for line in sys.stdin:
        yield json.loads(line)
"""


@pytest.fixture(scope="session")
def ours() -> Iterator[Child]:
    child = adapter("ours")
    child.open()
    yield child
    child.close()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[str], Child]]:
    """A parser that runs this code, with `answer` and `lines` at hand; it has half a second for an answer."""
    made: list[Child] = []

    def make(code: str, seconds: float = 0.5) -> Child:
        path = tmp_path / f"program{len(made)}.py"
        path.write_text(ANSWER + code)
        made.append(Child("program", [sys.executable, str(path)], seconds=seconds))
        return made[-1]

    yield make
    for child in made:
        child.close()
