"""What a tool is called with is what the model wrote, through every dialect that has calls."""

from __future__ import annotations

import datetime as dt
import enum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from localagent.messages import ToolCallPart
from localagent.tools import ToolContext, tool
from parsers import DIALECTS, CallPart, StreamParser, collect

NAMED = (
    "lfm2",
    "hermes",
    "qwen3-coder",
    "glm47",
    "mistral",
    "llama3-json",
    "gemma4",
    "harmony",
    "deepseek-v31",
)


class Unit(enum.Enum):
    C = "c"
    F = "f"


class Item(BaseModel):
    count: int
    note: str | None = None


TEXT = st.sampled_from(
    [
        "",
        "a b",
        "true",
        "null",
        "None",
        "1",
        "1.5",
        "[1]",
        "{}",
        '"x"',
        "it's",
        "\nx\n",
        " x ",
        "é",
        "\\n",
        "a,b",
        "<b>",
    ]
) | st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cf")), max_size=8)
INTEGERS = st.integers(-(2**63), 2**63)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ITEMS = st.fixed_dictionaries({"count": INTEGERS}, optional={"note": st.none() | TEXT})
ARGUMENTS = st.fixed_dictionaries(
    {
        "text": TEXT,
        # Notations without quotes write null and "null" the same.
        "maybe_text": st.none() | TEXT.filter(lambda text: text not in ("null", "None")),
        "number": INTEGERS,
        "share": FLOATS,
        "flag": st.booleans(),
        "unit": st.sampled_from(["c", "f"]),
        "digit": st.sampled_from(["1", "true", "x"]),
        "texts": st.lists(TEXT, max_size=3),
        "numbers": st.dictionaries(st.sampled_from(["a", "b c", "1"]), INTEGERS, max_size=3),
        "item": ITEMS,
        "items": st.lists(ITEMS, max_size=2),
        "day": st.dates().map(str),
        "path": TEXT,
        "more": st.none() | st.lists(st.none() | st.booleans() | INTEGERS | TEXT, max_size=3),
    }
)


@tool
def work(
    text: str,
    maybe_text: str | None,
    number: int,
    share: float,
    flag: bool,
    unit: Unit,
    digit: Literal["1", "true", "x"],
    texts: list[str],
    numbers: dict[str, int],
    item: Item,
    items: list[Item],
    day: dt.date,
    path: Path,
    more: list[Any] | None,
) -> Any:
    """Work."""
    return locals()


def called(arguments: dict[str, Any]) -> Any:
    return work.bind(arguments)(ToolContext(call=ToolCallPart(id="1", name="work")))


@pytest.mark.parametrize("name", NAMED)
@settings(max_examples=30, deadline=None)
@given(arguments=ARGUMENTS)
def test_a_call_comes_back_as_it_was_written(name, arguments):
    dialect = DIALECTS[name]
    try:
        text = dialect.render([("work", arguments)])
    except ValueError:
        return  # a text that the notation cannot hold
    parser = StreamParser(dialect, tools=[work.schema])
    (call,) = (part for part in collect([*parser.feed(text), *parser.close()]) if isinstance(part, CallPart))
    assert called(call.arguments) == called(arguments)
