"""`localagent tools`: what ships, for people who choose."""

from __future__ import annotations

import sys
from pathlib import Path


def list_tools(*, as_json: bool) -> None:
    """Print the tools that ship, by the name under which `--tools` takes them."""
    from localagent.toolbox import SHIPPED, shipped

    if as_json:
        import json

        schemas = {name: [tool.schema for tool in shipped([name], Path())] for name in SHIPPED}
        sys.stdout.write(json.dumps(schemas, ensure_ascii=False, indent=2) + "\n")
        return
    for name, entry in SHIPPED.items():
        sys.stdout.write(f"{name:<12}{entry.description}\n")
        for tool in shipped([name], Path()):
            asks = " (asks)" if tool.side_effects else ""
            sys.stdout.write(f"  {tool.name}({', '.join(tool.parameters.get('properties', {}))}){asks}\n")
