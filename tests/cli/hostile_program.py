"""`localagent` whose catalogue, models and mistakes are what the environment says; the rest is the real program.

HOSTILE_CATALOGUE: a file to read for models.toml. HOSTILE_OUTPUTS: what a model writes, turn by turn, as JSON,
a character at a time. HOSTILE_ERROR: what a defect of the program says.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NoReturn

from localagent.cli import main


def open_model(*_: object, **__: object) -> Any:
    from localagent.hosts.replay import ReplayHost
    from localagent.model import Model
    from tests.agent.replaying import LFM2, recording

    told = json.loads(os.environ["HOSTILE_OUTPUTS"])
    host = ReplayHost([recording(output, 1) for output in told["outputs"]], LFM2.markers)
    return Model(host, LFM2, name=told["name"])


def fail(*_: object, **__: object) -> NoReturn:
    raise RuntimeError(os.environ["HOSTILE_ERROR"])


if __name__ == "__main__":  # what is not asked for is not imported: most commands begin fast
    if "HOSTILE_CATALOGUE" in os.environ:
        from localagent import catalog

        entries = catalog.load_catalog(Path(os.environ["HOSTILE_CATALOGUE"]))
        catalog._bundled = lambda: entries
    if "HOSTILE_OUTPUTS" in os.environ or "HOSTILE_ERROR" in os.environ:
        from localagent.cli import run
        from localagent.cli.talk import speaker

        speaker.open_model = run.open_model = open_model if "HOSTILE_OUTPUTS" in os.environ else fail
    main()
