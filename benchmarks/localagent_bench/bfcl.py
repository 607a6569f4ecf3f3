"""Where the single-turn tasks of BFCL, the Berkeley Function Calling Leaderboard, are, and how they are read.

They are those of the package `bfcl-eval` (Apache-2.0): installed, or unpacked in the folder that
LOCALAGENT_BFCL names (`pip download --no-deps bfcl-eval`, then `unzip`), without its fifty dependencies.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from localagent.errors import LocalAgentError

VARIABLE = "LOCALAGENT_BFCL"
JUDGED = (
    *("simple_python", "multiple", "parallel", "parallel_multiple", "simple_java", "simple_javascript"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
)
"""Categories with an answer that the checker compares."""
ASKED = ("irrelevance", "live_irrelevance", "live_relevance")
"""Categories that only ask whether there is a call."""

Task = TypeVar("Task")


class NoData(LocalAgentError):
    """BFCL's data or its checker are not here."""


def find_package() -> Path:
    """The folder of the package. Raises NoData."""
    named = os.environ.get(VARIABLE, "").strip()
    if named:
        data = next(Path(named).expanduser().rglob("bfcl_eval/data"), None)
        if data is None:
            raise NoData(f"{VARIABLE} names {named}, which has no bfcl_eval/data: unpack bfcl-eval there")
        return data.parent
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise NoData(
            f"the package bfcl-eval is not installed: install it, or unpack it where {VARIABLE} says"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def read_tasks(
    package: Path, categories: Iterable[str], make: Callable[[str, dict[str, Any], Any], Task]
) -> list[Task]:
    """What `make` makes of each task: of its category, its line in the file, and the calls that are right.

    These are None where the category only asks whether there is a call. Raises NoData.
    """
    tasks: list[Task] = []
    try:
        for category in categories:
            file, truths = f"BFCL_v4_{category}.json", dict[str, Any]()
            if category in JUDGED:
                lines = _lines(package / "data" / "possible_answer" / file)
                truths = {line["id"]: line["ground_truth"] for line in lines}
            tasks += [
                make(category, line, truths.get(line["id"])) for line in _lines(package / "data" / file)
            ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise NoData(f"BFCL's data in {package} cannot be read: {error!r:.200}") from error
    if not tasks:
        raise NoData(f"BFCL's data in {package} hold no tasks")
    return tasks


def openai_name(function: str) -> str:
    """OpenAI's API, and so most servers, take no dots in names; BFCL's own runs replace them as well."""
    return function.replace(".", "_")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)
