from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localagent.toolbox.files import files
from tests.toolbox.calling import by_name
from tests.toolbox.serving import PNG, Server
from tests.toolbox.trees import SECRET


@pytest.fixture(autouse=True)
def online(monkeypatch):
    monkeypatch.delenv("LOCALAGENT_OFFLINE", raising=False)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with something in it, and a secret beside it."""
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(SECRET)
    root = tmp_path / "root"
    (root / "src" / "deep").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("needle in git")
    (root / "node_modules").mkdir()
    (root / "node_modules" / "a.js").write_text("needle in modules")
    (root / "readme.md").write_text("# Title\nA needle here.\nlast")
    (root / "src" / "main.py").write_text("def main():\n    return 'Needle'\n")
    (root / "src" / "deep" / "needle.txt").write_text("nothing\n")
    (root / ".env").write_text("needle=hidden\n")
    (root / "picture.png").write_bytes(PNG)
    (root / "data.bin").write_bytes(b"needle\0\1\2")
    (root / "empty").write_text("")
    return root


@pytest.fixture
def tools(root):
    return by_name(files(root, write=True))
