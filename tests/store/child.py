"""One pull in a process of its own: `child.py SPEC_JSON ROOT BACKEND [STOP]`.

Prints one JSON line: {"path"} or {"error", "message"}. At the moment STOP the process says "stopped" and
waits to be killed: `download:BYTES`, `extract:BYTES`, `verify:BYTES`, or `rename:N` for just before the Nth
rename (the interpreter's audit hook: the code under test is untouched).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def halt() -> None:
    print("stopped", flush=True)
    time.sleep(600)


def main() -> None:
    from localagent.catalog import ModelSpec
    from localagent.errors import LocalAgentError
    from localagent.store import Phase, WeightStore

    spec = ModelSpec.model_validate_json(sys.argv[1])
    moment, _, at = sys.argv[4].partition(":") if len(sys.argv) > 4 else ("", "", "0")
    renames = 0
    seen: dict[str, list[int]] = {}

    def progress(phase: Phase, done: int, total: int | None) -> None:
        seen.setdefault(phase, []).append(done)
        if phase == moment and done >= int(at):
            halt()

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal renames
        if event == "os.rename" and str(arguments[0]).startswith(sys.argv[2]):
            renames += 1
            if renames == int(at):
                halt()

    if moment == "rename":
        sys.addaudithook(audit)
    try:
        path = WeightStore(Path(sys.argv[2])).pull(spec, sys.argv[3], progress)
    except LocalAgentError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}))
    else:
        print(json.dumps({"path": str(path), "seen": seen}))


main()
