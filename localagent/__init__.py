"""localagent: language models on the machine in front of you, with tool calls that work.

from localagent import Agent, load, tool

with load() as model:
    print(model.respond("Why is the sky blue?").text)
    for event in Agent(model, tools=[tool(get_weather)]).run("Will it rain in Paris?"): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localagent.agent import Agent
    from localagent.errors import LocalAgentError
    from localagent.model import Model, load
    from localagent.remote import RemoteModel
    from localagent.tools import tool
    from localagent.turn import Done

__all__ = ["Agent", "Done", "LocalAgentError", "Model", "RemoteModel", "load", "tool"]

_HOMES = {
    "Agent": "localagent.agent",
    "Done": "localagent.turn",
    "LocalAgentError": "localagent.errors",
    "Model": "localagent.model",
    "RemoteModel": "localagent.remote",
    "load": "localagent.model",
    "tool": "localagent.tools",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import localagent` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'localagent' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
