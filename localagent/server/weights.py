"""What weights say of themselves: enough to describe a model that has not been loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from localagent.detection import asked_dialect, declared_in, detect_dialect
from localagent.hosts.backends import backend_for
from localagent.hosts.host import choose_context
from localagent.parsers import Dialect


@dataclass(frozen=True, slots=True)
class Weights:
    """A model as the header of its file, or its folder's configuration, describes it."""

    architecture: str
    context: int
    """The context window with which it would be loaded, in tokens."""
    format: str
    template: str
    dialect: Dialect


def read_weights(path: Path, dialect: str | Path | None, context: int | None) -> Weights:
    """What is known of the weights at `path` without an engine. `dialect`, `context`: as for `model.load`.

    The vocabulary is not read. Where that alone tells the dialect, this may be another than the loaded model
    has. Raises InvalidWeights, UnknownDialect, UsageError.
    """
    backend = backend_for(path)
    header = backend.read(path)
    return Weights(
        header.architecture,
        choose_context(context, header.context_length),
        backend.format,
        header.chat_template or "",
        asked_dialect(dialect)
        or detect_dialect(frozenset(), header.architecture, header.chat_template, declared_in(path)),
    )
