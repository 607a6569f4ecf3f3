"""What an event of the agent is as a line of JSON, whatever it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from localagent.cli.event_lines import as_json
from localagent.messages import Usage


@dataclass
class Inner:
    one: int
    more: Any = None


@dataclass
class SomethingHappened:
    value: Any


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (Inner(1, Inner(2)), {"one": 1, "more": {"one": 2, "more": None}}),
        (Inner, str(Inner)),
        ({1: [Inner(3)]}, {"1": [{"one": 3, "more": None}]}),
        ((True, 1.5, None, "a"), [True, 1.5, None, "a"]),
        ({"a"}, ["a"]),
        (ValueError("why"), {"type": "ValueError", "message": "why"}),
        (Usage(input=3, output=1), Usage(input=3, output=1).model_dump(mode="json")),
        (Path("a/b"), "a/b"),
    ],
)
def test_whatever_an_event_holds_is_json(value: Any, found: Any) -> None:
    assert as_json(SomethingHappened(value)) == {"event": "something_happened", "value": found}
