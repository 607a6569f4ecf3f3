"""`localagent` whose model takes its time, so that keys can be pressed meanwhile.

SLOW_OUTPUTS: what the model writes, turn by turn, as JSON, a piece in SLOW_SECONDS. Without it the model is the
real one, and each token that may be reasoning takes as long.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from time import sleep
from typing import Any

from localagent.cli import main

SECONDS = float(os.environ.get("SLOW_SECONDS", "0.05"))


def open_model(*_: object, **__: object) -> Any:
    from localagent.hosts.protocol import Token
    from localagent.hosts.replay import ReplayGeneration, ReplayHost
    from localagent.model import Model
    from tests.agent.replaying import LFM2, recording

    class Slowly(ReplayGeneration):
        def steps(self) -> Iterator[Token]:
            for token in self:
                sleep(SECONDS)
                yield token

    class SlowHost(ReplayHost):
        def generate(self, *arguments: Any, **more: Any) -> ReplayGeneration:
            generation = super().generate(*arguments, **more)
            generation.__class__ = Slowly
            return generation

    outputs = json.loads(os.environ["SLOW_OUTPUTS"])
    return Model(SlowHost([recording(output) for output in outputs], LFM2.markers), LFM2, name="slow")


def slow_down() -> None:
    from localagent.constraint.ending import Ending

    accept = Ending.accept

    def slowly(ending: Ending, *arguments: Any) -> None:
        sleep(SECONDS)
        accept(ending, *arguments)

    Ending.accept = slowly  # type: ignore[method-assign]


if __name__ == "__main__":
    if "SLOW_OUTPUTS" in os.environ:
        from localagent.cli.talk import speaker

        speaker.open_model = open_model
    else:
        slow_down()
    main()
