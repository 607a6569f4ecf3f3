"""Tools that a person has allowed for good in one folder.

    {"folder": "/home/ann/site", "tool": "write_file", "mark": "5f1c..."}

One file of JSON lines for all folders. Nothing is allowed by accident: `mark` stands for all that a person
saw of the tool and for what does its work, so another tool of that name is asked about. To take a permission
back, delete its line.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from localagent.files.jsonl import LineReader, append_line, open_lines
from localagent.files.lock import PATIENCE, take
from localagent.files.paths import cannot_save, user_path
from localagent.tools import Tool


class Permissions:
    """What is always allowed in a folder."""

    def __init__(self, folder: Path, file: Path | None = None) -> None:
        """`file`: else `$LOCALAGENT_HOME/permissions.jsonl`, or that name in the user's state folder."""
        self.folder = folder.resolve()
        self.file = file or user_path("state", "permissions.jsonl")

    def allow(self, tool: Tool) -> None:
        """Allow a tool from now on. Raises SaveFailed."""
        said = {"folder": str(self.folder), "tool": tool.name, "mark": _mark(tool)}
        line = json.dumps(said, ensure_ascii=True).encode()
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with take(self.file.with_suffix(".lock"), PATIENCE):
                descriptor = open_lines(self.file, create=not self.file.exists())
                try:
                    append_line(descriptor, line, self.file, sync=True)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise cannot_save(self.file, error) from error

    def allows(self, tool: Tool) -> bool:
        """Whether this tool is allowed here. A file that cannot be read allows nothing."""
        return _mark(tool) in self._marks(tool)

    def has_changed(self, tool: Tool) -> bool:
        """Whether another tool of this name is allowed here, and this one is not."""
        marks = self._marks(tool)
        return bool(marks) and _mark(tool) not in marks

    def _marks(self, tool: Tool) -> set[str]:
        try:
            lines = LineReader(self.file, json.loads).read()
        except OSError:
            return set()
        return {
            said["mark"]
            for said in (getattr(line, "value", None) for line in lines)
            if isinstance(said, dict)
            and said.get("folder") == str(self.folder)
            and said.get("tool") == tool.name
            and isinstance(said.get("mark"), str)
        }


def _mark(tool: Tool) -> str:
    """Equal for tools that look the same and do the same work, also in another process."""
    worker: Any = tool.origin
    if callable(worker):
        worker = f"{getattr(worker, '__module__', '')}:{getattr(worker, '__qualname__', repr(type(worker)))}"
    seen = [tool.schema, tool.side_effects, tool.kind, worker]
    return hashlib.sha256(json.dumps(seen, sort_keys=True, default=repr).encode()).hexdigest()
