"""The toy's host, and its row in the table of engines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from localagent.errors import InvalidWeights
from localagent.hosts.backend import Backend
from localagent.hosts.host import EngineHost, Identity, Reuse, choose_context
from localagent.hosts.memory import Estimate, admit, available_memory
from localagent.hosts.owner import OwnerThread
from tests.hosts.toy.engine import ToyEngine


@dataclass(frozen=True)
class Weights:
    chat_template: str
    text: str
    context_length: int
    architecture: str = "toy"


def read(path: Path) -> Weights:
    try:
        return Weights(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise InvalidWeights(f"{path}: not a toy: {error}") from error


def estimate(path: Path, context: int) -> Estimate:
    weights = read(path)
    return Estimate(context, weights.context_length, len(weights.text), 0, 8, 0, 0, 0)


class ToyHost(EngineHost):
    @classmethod
    def load(
        cls, path: Path, *, context: int | None = None, threads: int | None = None, lanes: int | None = None,
        exact: bool = False, reuse: Reuse | None = None, called: str | None = None,
    ) -> Self:  # fmt: skip
        weights = read(path)
        size = choose_context(context, weights.context_length)
        admitted = admit(called or path.stem, estimate(path, size), lanes, available_memory())
        identity = Identity(path.stem, "toy", weights.chat_template, "Toy (1)", lambda: weights.text, "")
        make = lambda: ToyEngine(weights.text, size, admitted.count)  # noqa: E731
        return cls(OwnerThread(f"toy-{path.stem}"), make, identity, reuse)


TOY = Backend(
    name="toy",
    title="Toy",
    format="toy",
    weights="toy",
    takes=lambda path: path.suffix == ".toy",
    read=read,
    estimate=estimate,
    host=lambda: ToyHost,
)
