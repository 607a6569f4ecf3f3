"""The table of concepts names what there is, and the README's example runs."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from localagent import log, messages, session
from localagent.messages import media
from localagent.prompt import pairing, request
from localagent.session import entries
from localagent.wire import anthropic, chat_template, gemini, openai

README = (Path(messages.__file__).parent / "README.md").read_text()
MODULES = {
    "media": media, "request": request, "openai": openai, "anthropic": anthropic, "gemini": gemini,
    "chat_template": chat_template,
}  # fmt: skip
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in README.partition("## Where other message models'")[2].splitlines()
    if line.startswith("| ") and not line.startswith("| there")
]
NAMES = sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row[1])})


def look_up(name: str) -> object:
    first, *rest = name.split(".")
    for home in (messages, request, pairing, log, session, entries):
        if hasattr(home, first):
            found = getattr(home, first)
            break
    else:
        found = MODULES[first]
    for step in rest:
        fields = getattr(found, "model_fields", {})
        if dataclasses.is_dataclass(found):
            fields = {field.name: field for field in dataclasses.fields(found)}
        found = fields[step] if step in fields else getattr(found, step)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_name_in_the_table_is_there(name):
    assert look_up(name) is not None


def test_every_row_says_what_carries_its_concept():
    assert len(ROWS) > 60
    for row in ROWS:
        assert len(row) == 2, row
        assert re.search("`[A-Za-z]", row[1]), row
    assert len(re.findall("^### ", README, re.MULTILINE)) == 5


def test_a_name_that_is_not_there_is_noticed():
    for wrong in ("ToolCallPart.colour", "Nothing", "openai.from_mars"):
        with pytest.raises((AttributeError, KeyError)):
            look_up(wrong)


def test_every_part_and_message_is_in_the_table():
    for name in messages.__all__:
        if name.endswith(("Part", "Message")) and name not in (
            "AnyPart",
            "AnyMessage",
            "BaseMessage",
            "MediaPart",
            "ResultPart",
            "SessionMessage",
        ):
            assert any(name in entry for entry in NAMES), name


def test_the_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == 'Let me look.  city="Paris"\n'


def test_every_file_is_described():
    for path in Path(messages.__file__).parent.glob("*.py"):
        assert path.name == "__init__.py" or f"`{path.name}`" in README, path.name
