"""What is in folders, and errors that say nothing of what lies outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from localagent.errors import ToolError
from tests.toolbox.calling import call

SECRET = "the secret outside"


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def refused(tool, **arguments) -> str:
    with pytest.raises(ToolError) as error:
        call(tool, **arguments)
    message = str(error.value)
    assert "\n" not in message and message.isprintable() and len(message) < 500
    assert SECRET not in message
    return message
