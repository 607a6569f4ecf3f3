"""`localagent` whose catalogue, models and mistakes are what the environment says; the rest is the real program.

HOSTILE_CATALOGUE: a file to read for models.toml. HOSTILE_OUTPUTS: what a model writes, turn by turn, as JSON,
a character at a time, or in pieces of "size", with a pause of "pace" seconds after each. HOSTILE_ERROR: what a
defect of the program says.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from time import sleep
from typing import Any, NoReturn

from localagent.cli import main


def open_model(*_: object, **__: object) -> Any:
    from localagent.hosts.replay import ReplayHost
    from localagent.model import Model
    from tests.agent.replaying import LFM2, recording

    told = json.loads(os.environ["HOSTILE_OUTPUTS"])

    class Slowly(list[Any]):
        def __getitem__(self, at: Any) -> Any:
            sleep(told.get("pace", 0.0))
            return super().__getitem__(at)

    played = [Slowly(recording(output, told.get("size", 1))) for output in told["outputs"]]
    host = ReplayHost(played, LFM2.markers, context=32_768)
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
