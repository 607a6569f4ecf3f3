"""The examples in the agent's README run, and its tree is the folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "localagent" / "agent"
README = (FOLDER / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)


@pytest.mark.engine
@pytest.mark.parametrize("code", [text for kind, text in BLOCKS if kind == "python"])
def test_examples_run(code, capsys):
    exec(compile(code, "README.md", "exec"), {})
    assert "RunDone(" in capsys.readouterr().out


def test_the_tree_is_the_tree():
    (tree,) = (text for kind, text in BLOCKS if not kind)
    named = {line.split()[0] for line in tree.splitlines()}
    assert named == {path.name for path in FOLDER.glob("*.py")} - {"__init__.py"}
