"""What is known of an engine before it is imported: a `Backend`, one row in the table of `hosts.backends`.

Its functions import what they need when they are called, so that the table costs nothing to read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from localagent.hosts.host import EngineHost, Reuse
    from localagent.hosts.memory.estimate import Estimate


class WeightsHeader(Protocol):
    """What weights tell about a model that has not been loaded."""

    @property
    def architecture(self) -> str:
        """Such as "lfm2" or "llama"."""

    @property
    def context_length(self) -> int | None:
        """The context in tokens that the model was trained with, where the weights tell."""

    @property
    def chat_template(self) -> str | None:
        """The template's jinja source."""


class Loads(Protocol):
    """A class of hosts, or anything else that loads one."""

    def load(
        self,
        path: Path,
        *,
        context: int | None = None,
        threads: int | None = None,
        lanes: int | None = None,
        exact: bool = False,
        reuse: Reuse | None = None,
        called: str | None = None,
    ) -> EngineHost:
        """The host of the weights at `path`; for the options see `model.load`. `called`: the model's name in
        errors.

        Raises InvalidWeights, EngineMissing, NotEnoughMemory, CannotBatch, UsageError, EngineFailed.
        """


@dataclass(frozen=True, slots=True)
class Trial:
    """What `engines.trial` runs in a child process, once the engine is imported there."""

    facts: Mapping[str, Any]
    """The engine's account of itself: `version`, `gpu`, `devices`, and what `working` puts into words."""
    load: Callable[[Path], EngineHost]
    quantize: Callable[[Path, Path, str], Path]
    """Writes weights to a new path, quantized to a kind, and returns the path."""
    kinds: tuple[str, ...]
    """The kinds to try, such as Q4_0."""
    slow: bool = False
    """Whether quantized weights may be so slow that a short question has to do."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The doctor's words about an engine. A problem always has a `fix`: the command that solves it."""

    status: Literal["ok", "note", "problem"]
    text: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Backend:
    """An engine: its name, the weights that it loads, how it is loaded, and what keeps it working."""

    name: str
    """As users write it: `--backend NAME`, `[models.X.sources.NAME]`, and the extra that installs it."""
    title: str
    """As people are told it. The name that a host of this engine gives its `engine` begins with it."""
    format: str
    """The format of its weights, as other programs' lists of models call it."""
    weights: str
    """What a repository needs to have for it, in words."""
    takes: Callable[[Path], bool]
    """Whether a path is to be loaded by this engine. Of several that take it, the last in the table does."""
    read: Callable[[Path], WeightsHeader]
    """Reads and checks the header of weights. Raises InvalidWeights."""
    estimate: Callable[[Path, int], Estimate]
    """The memory that weights take with one lane of so many tokens. Raises InvalidWeights."""
    host: Callable[[], Loads]
    """The class of its hosts. The engine itself is imported when one is loaded."""
    modules: tuple[str, ...] = ()
    """The modules that are imported. Where one of them is missing, the engine is not installed."""
    distributions: tuple[str, ...] = ()
    """The distributions that bring them, the one whose version is the engine's first."""
    gpu: bool = False
    """Whether it computes on Apple's GPU, which may use only a part of the memory."""
    preferred: Callable[[], bool] = lambda: False
    """Whether this machine is of the kind that the engine is made for."""
    trial: Callable[[], Trial] | None = None
    """Imports the engine, to try it on lfm2-nano. None: it is never tried, and the doctor leaves it out."""
    mend: Callable[[], str] | None = None
    """The shell command that reinstalls it; None: pip installs its distributions anew."""
    missing: Callable[[bool], Advice] = lambda alone: Advice("note", "not installed")
    """What the doctor says where it is not installed. It is asked with whether no other engine works."""
    working: Callable[[Mapping[str, Any], str], Advice] = lambda facts, ran: Advice("ok", ran)
    """What the doctor says where it works: of its trial's facts, and the words for the models that ran."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Its modules but for those inside of others."""
        return tuple(module for module in self.modules if "." not in module)
