"""The models that are measured, each with its settings, loaded side by side.

Sides that differ only in how a turn is asked share their weights.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, cast

from localagent.errors import LocalAgentError, UsageError
from localagent.hosts.host import EngineHost
from localagent.hosts.protocol import Generation, Step, Token
from localagent.hosts.sampling import Sampling
from localagent.model import Model
from localagent.prompt.segments import Prompt
from localagent.wording import quoted

Constraint = Literal["auto", "off", "required"]
CONSTRAINTS: tuple[Constraint, ...] = ("auto", "off", "required")
"""Whether calls are bounded by a grammar: once the model has begun one, never, or from the first token on."""
_LOADING = {"backend": str, "dialect": str, "context": int, "threads": int, "prefix_cache": int}
_SWITCHES = {"on": True, "off": False, "low": "low", "medium": "medium", "high": "high"}
_SAMPLING = {each.name: each.metadata["numbers"] for each in dataclasses.fields(Sampling) if each.metadata}
SETTINGS = ("constraint", *_LOADING, *(name for name in _SAMPLING if name != "logprobs"), "thinking")
"""What may differ between two sides."""

Opener = Callable[[str, Mapping[str, Any]], Model]
"""Loads a model with options of `model.load`."""


@dataclass(frozen=True, slots=True)
class Side:
    """A model, as `load` takes it, and the settings in which it differs from how `run` would use it.

    `common`: settings of all sides, which `settings` go before, and which are not a part of the name.
    """

    model: str
    settings: tuple[tuple[str, Any], ...] = ()
    common: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """For tables: the model, and what is set."""
        told = (f"{key}={_said(value)}" for key, value in self.settings)
        return " ".join([Path(self.model).name.removesuffix(".gguf"), *told])

    @property
    def constraint(self) -> Constraint:
        """Whether its calls are bounded by a grammar, as `CONSTRAINTS` has it."""
        return cast(Constraint, self._all.get("constraint", "auto"))

    @property
    def loading(self) -> dict[str, Any]:
        """The settings that its weights are loaded with."""
        return {key: value for key, value in self._all.items() if key in _LOADING}

    @property
    def turn(self) -> dict[str, Any]:
        """The settings of its turns, as options of `Model.stream`."""
        own = {key: value for key, value in self._all.items() if key in _SAMPLING or key == "thinking"}
        return {**own, **({"tool_choice": "required"} if self.constraint == "required" else {})}

    def with_settings(self, settings: Mapping[str, Any]) -> Side:
        """The same model with these settings on top of its own."""
        return Side(self.model, tuple({**dict(self.settings), **settings}.items()), self.common)

    @property
    def _all(self) -> dict[str, Any]:
        return {**dict(self.common), **dict(self.settings)}


def read_settings(text: str) -> dict[str, Any]:
    """Settings as they are typed: KEY=VALUE, several with commas. Raises UsageError."""
    return dict(_setting(each) for each in text.split(","))


def _setting(text: str) -> tuple[str, Any]:
    key, sign, value = (each.strip() for each in text.partition("="))
    if not sign or key not in SETTINGS:
        raise UsageError(f"{quoted(text)} is no setting: write KEY=VALUE with {', '.join(SETTINGS)}")
    known: dict[str, Any] = {each: each for each in CONSTRAINTS}
    if key in ("constraint", "thinking"):
        known = known if key == "constraint" else _SWITCHES
        if value not in known:
            raise UsageError(f"{quoted(text)}: it must be {', '.join(known)}")
        return key, known[value]
    kind = _LOADING.get(key) or (int if _SAMPLING[key].whole else float)
    try:
        return key, kind(value)
    except ValueError:
        raise UsageError(f"{quoted(text)}: it must be {'a whole' if kind is int else 'a'} number") from None


@dataclass(slots=True)
class Opened:
    """A side that is loaded."""

    side: Side
    model: Model
    seconds: float | None
    """What loading took; None where the weights are shared with a side before."""
    grown: int
    """Bytes that the process has grown by meanwhile."""

    @property
    def name(self) -> str:
        """For tables, as its side is named."""
        return self.side.name

    @property
    def own(self) -> bool:
        """Whether its weights are its own: what depends on them alone is measured once."""
        return self.seconds is not None

    @property
    def host(self) -> EngineHost:
        """Where it runs."""
        return cast(EngineHost, self.model.host)

    @property
    def nano(self) -> bool:
        """Whether it is lfm2-nano, in whichever form."""
        return self.host.name == "lfm2-nano" or self.model.name == "lfm2-nano"

    def view(self, scope: str) -> tuple[Model, Arrivals]:
        """The model for one purpose: what another scope has evaluated is not reused. And when its tokens
        come."""
        watched = Arrivals(self.host.scoped(scope), bounded=self.side.constraint != "off")
        own = self.model
        model = Model(cast(EngineHost, watched), own.dialect, own.sampling, own.name)
        return model, watched


class Arrivals:
    """A host that notes when tokens come. `bounded`: without it, no grammar bounds what is written."""

    def __init__(self, host: EngineHost, *, bounded: bool = True) -> None:
        self._host = host
        self._bounded = bounded
        self.times: list[float] = []
        """Of the last generation."""

    @property
    def vocabulary(self) -> Any:
        """None where nothing is to be bounded: that is how a host says that it cannot be."""
        return self._host.vocabulary if self._bounded else None

    def generate(self, prompt: Prompt, *rest: Any) -> Any:
        """As the host does it, and the times of the last generation's tokens begin anew."""
        self.times = []
        return _Noted(self._host.generate(prompt, *rest), self.times)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)


class _Noted:
    def __init__(self, generation: Generation, times: list[float]) -> None:
        self._generation = generation
        self._times = times

    def steps(self) -> Iterator[Step]:
        for step in self._generation.steps():
            if isinstance(step, Token):
                self._times.append(perf_counter())
            yield step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generation, name)


@contextmanager
def opened(sides: Sequence[Side], load: Opener) -> Iterator[list[Opened]]:
    """Load the sides; their weights are freed at the end. Raises what `load` raises."""
    names = [side.name for side in sides]
    if twice := next((name for at, name in enumerate(names) if name in names[:at]), None):
        raise UsageError(f"two sides are both {twice}: they would not be told apart")
    loaded: dict[str, Model] = {}
    found: list[Opened] = []
    with ExitStack() as stack:
        for side in sides:
            key = json.dumps([side.model, side.loading], sort_keys=True)
            before, began, seconds = resident(), perf_counter(), None
            if key not in loaded:
                loaded[key] = stack.enter_context(load(side.model, side.loading))
                seconds = perf_counter() - began
            found.append(Opened(side, loaded[key], seconds, resident() - before))
        yield found


def resident() -> int:
    """Bytes of memory that this process takes now, files mapped into it included."""
    import psutil  # type: ignore[import-untyped]

    return int(psutil.Process().memory_info().rss)


def quantized(model: str, backend: str | None) -> bool | None:
    """Whether the weights are; None where they do not tell."""
    with suppress(LocalAgentError, OSError, ValueError):
        path = weights_of(model, backend)
        if path is not None and path.is_dir():
            return "quantization" in json.loads((path / "config.json").read_text(encoding="utf-8"))
        if path is not None:
            from localagent.hosts.llamacpp.gguf import read_header

            return read_header(path).quantized
    return None


def weights_of(model: str, backend: str | None) -> Path | None:
    """Where the weights are, if they are on this machine."""
    from localagent.model import locate
    from localagent.store import WeightStore

    found, engine = locate(model, cast(Any, backend), offline=True)
    return found if isinstance(found, Path) else WeightStore().find(found, engine)


def _said(value: Any) -> str:
    return next((text for text, meant in _SWITCHES.items() if value is meant), str(value))
