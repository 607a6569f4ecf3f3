"""Old module names, which still import for one more release with a warning that gives the new name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "localagent.agent.batch": "localagent.agent.calls",
    "localagent.agent.clipping": "localagent.agent.builtin",
    "localagent.agent.cuts": "localagent.agent.boundaries",
    "localagent.agent.gate": "localagent.agent.approvals",
    "localagent.agent.included": "localagent.agent.builtin",
    "localagent.agent.rounds": "localagent.agent.recovery",
    "localagent.agent.stepping": "localagent.agent.concurrency",
    "localagent.agent.transcript": "localagent.agent.history",
    "localagent.agent.waiting": "localagent.agent.concurrency",
    "localagent.dialects": "localagent.detection",
    "localagent.hosts.running": "localagent.hosts.generation",
    "localagent.jsonl": "localagent.files.jsonl",
    "localagent.mcp.arguments": "localagent.constraint.validation",
    "localagent.mcp.offered": "localagent.mcp.tools",
    "localagent.mcp.results": "localagent.mcp.tools",
    "localagent.nano.schemas": "localagent.nano.skills",
    "localagent.pairing": "localagent.prompt.pairing",
    "localagent.remote.server": "localagent.hosts.remote.http",
    "localagent.request": "localagent.prompt.request",
    "localagent.sandbox": "localagent.prompt.sandbox",
    "localagent.hosts.memory.require": "localagent.hosts.memory.admission",
    "localagent.toolbox.arithmetic": "localagent.toolbox.calculator",
    "localagent.toolbox.readable": "localagent.toolbox.web",
    "localagent.tools.docstring": "localagent.tools.signature",
    "localagent.tools.misread": "localagent.tools.readings",
    "localagent.tools.outcome": "localagent.tools.results",
}


class _Moved(ModuleType):
    """A module under its old name; its attributes come from the new module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(MOVED[self.__name__]), name)


class _Finder(MetaPathFinder, Loader):
    """Stands last in `sys.meta_path`, so it is asked only for modules that nothing else finds."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        warnings.warn(f"{spec.name} is now {MOVED[spec.name]}", DeprecationWarning, stacklevel=2)
        return _Moved(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def install() -> None:
    """Make the old names importable."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
