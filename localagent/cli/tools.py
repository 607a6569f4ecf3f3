"""`localagent tools`: what ships, for people who choose."""

from __future__ import annotations

from pathlib import Path

from localagent.cli.terminal import show_json, show_line


def list_tools(*, as_json: bool) -> None:
    """Print the tools that ship, by the name under which `--tools` takes them."""
    from localagent.toolbox import SHIPPED, shipped

    if as_json:
        schemas = {name: [tool.schema for tool in shipped([name], Path())] for name in SHIPPED}
        show_json(schemas)
        return
    for name, entry in SHIPPED.items():
        show_line(f"{name:<12}{entry.description}")
        for tool in shipped([name], Path()):
            asks = " (asks)" if tool.side_effects else ""
            show_line(f"  {tool.name}({', '.join(tool.parameters.get('properties', {}))}){asks}")
