"""Models that are called by the name of a Hugging Face repository: `hf:owner/name[@revision][:what]`.

`what` is a GGUF file, a quantization such as Q4_K_M, or the folder of an MLX model. Without it, one is
chosen: what is here already, else the quantization that fits into memory. A model that is here is found
without the network.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Annotated, Final

from pydantic import Field, ValidationError

from localagent.catalog import HUB, HubSource, Licence, ModelSpec
from localagent.errors import ModelMissing, NotEnoughMemory, UnknownModel, UsageError
from localagent.hosts.backends import BACKENDS, BackendName, preferred_backends
from localagent.hosts.memory import available_memory, memory_checked
from localagent.settings import MEMORY_CHECK, why_offline
from localagent.store import hub, hub_cache, record
from localagent.store.weights import WeightStore
from localagent.wording import listed, quoted, size_text

SHARE: Final = 0.8
"""How much of the free memory the weights may take, so that the context has room beside them."""
PREFERRED: Final = (
    "Q4_K_M", "Q4_K_S", "Q4_K_L", "Q4_K_XL", "Q4_0", "Q4_1", "MXFP4", "IQ4_NL", "IQ4_XS",
    "Q5_K_M", "Q5_K_S", "Q5_0", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "IQ3_M", "Q3_K_S", "IQ3_XS", "IQ3_XXS",
    "Q2_K", "IQ2_M", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S", "BF16", "F16", "F32",
)  # fmt: skip
"""The quantizations in the order in which they are tried: 4 bits first, which lose little and are half as
large as 8; then the larger ones, for repositories without; then the smaller ones, which answer worse."""
PATTERNS: Final = ("*.json", "*.jinja", "*.safetensors", "*.txt", "*.model")
"""The files of an MLX model."""

_NAME = re.compile(r"([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?(?::(.+))?")
_QUANTIZATION = re.compile(
    r"(?:^|[-._])(UD-)?(I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|BF16|F16|F32)(?=$|[-._])", re.IGNORECASE
)
_PART = re.compile(r"-(\d{5})-of-\d{5}$")


@dataclass(frozen=True, slots=True)
class RepositoryName:
    """What a person typed, taken apart. `wanted`: a file, a quantization or a folder."""

    repo: str
    revision: str = "main"
    wanted: str | None = None

    @classmethod
    def parse(cls, text: str) -> RepositoryName:
        """Read `hf:owner/name[@revision][:what]`. Raises UnknownModel."""
        parts = _NAME.fullmatch(text.strip()[len(HUB) :].strip())
        if parts is None or ".." in text:
            raise UnknownModel(
                f"{quoted(text)} does not name a repository: write {HUB}owner/name, and after a colon "
                "a GGUF file or a quantization"
            )
        return cls(parts[1], parts[2] or "main", parts[3])

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"{HUB}{self.repo}{revision}" + (f":{self.wanted}" if self.wanted else "")


class RepositorySpec(ModelSpec):
    """A model of a repository, as the catalogue would describe it. Its name is what finds it again."""

    name: Annotated[str, Field(pattern=r"^hf:")]

    @property
    def folder(self) -> str:
        """The name in a form that a folder can have."""
        return re.sub(r"[/:\\]+", "--", self.name)


def installed(store: WeightStore) -> list[RepositorySpec]:
    """The models of repositories whose weights are in the store, by name."""
    specs = []
    try:
        folders = sorted(store.root.glob(f"{HUB[:-1]}--*/*"))
    except OSError:
        return []
    for folder in folders:
        proof = record.read(folder)
        if proof is None or folder.name not in BACKENDS:
            continue
        try:
            source = HubSource.model_validate(proof.source)
        except ValidationError:
            continue
        spec = _spec(source, folder.name, proof.size)
        if folder.parent.name == spec.folder:  # else somebody renamed it
            specs.append(spec)
    return specs


def find_model(
    text: str,
    backend: BackendName | None = None,
    *,
    offline: bool | None = None,
    store: WeightStore | None = None,
) -> tuple[RepositorySpec, BackendName]:
    """The model that `hf:...` names, and its backend. Asks the repository where it is not here.

    Raises UnknownModel, UsageError for what the repository does not have, NotEnoughMemory where none of its
    quantizations fits and none was named, ModelMissing if offline, DownloadFailed.
    """
    name = RepositoryName.parse(text)
    here: dict[str, int] = {}
    for spec in installed(store or WeightStore()):
        for engine, source in spec.sources.items():
            assert isinstance(source, HubSource)
            if (source.repo.lower(), source.revision) == (name.repo.lower(), name.revision):
                if spec.name == str(name) and backend in (None, engine):
                    return spec, engine
                here |= _files_of(source)
                name = replace(name, repo=source.repo)  # in the letter case of its owner
    for files in (here, hub_cache.list_cached(name.repo, name.revision)):
        try:
            return _choose(name, hub.Listing(files), backend, limited=False)
        except UsageError:
            continue  # it has something else of this repository, or nothing
    if reason := why_offline(offline, hub=True):
        raise ModelMissing(f"{name} is not on this machine, and Hugging Face cannot be asked (now {reason})")
    listing = hub.list_files(name.repo, name.revision)
    return _choose(replace(name, repo=listing.repo or name.repo), listing, backend, limited=True)


def _files_of(source: HubSource) -> dict[str, int]:
    """Files of which `_choose` takes the model of this source: of a folder, those by which it is known."""
    prefix = f"{source.subfolder}/" if source.subfolder else ""
    return dict.fromkeys(source.files or (f"{prefix}config.json", f"{prefix}model.safetensors"), 0)


def _choose(
    name: RepositoryName, listing: hub.Listing, backend: BackendName | None, *, limited: bool
) -> tuple[RepositorySpec, BackendName]:
    """The model to take of those in the repository. `limited`: to what fits into memory, unless named."""
    files, folders = _gguf_files(listing.files), _mlx_folders(listing.files)
    weights: Mapping[str, Collection[str]] = {"gguf": files, "mlx": folders}
    asked = preferred_backends() if backend is None else (backend,)
    source: HubSource | None = None
    if name.wanted is not None:
        kind = "gguf"
        if file := _named_file(name, files):
            source = _source(name, file=file)
        elif name.wanted.strip("/") in folders:
            source, kind = _source(name, folder=name.wanted.strip("/")), "mlx"
        else:
            raise UsageError(f"{name.repo} has no {quoted(name.wanted)}: it has {_told(files, folders)}")
    else:
        kind = next((BACKENDS[row].format for row in asked if weights.get(BACKENDS[row].format)), "")
        if kind == "gguf":
            source = _source(name, file=_fitting(name, files) if limited else _best(files)[0])
        elif kind == "mlx":
            if "" not in folders and len(folders) > 1:
                raise UsageError(f"{name.repo} has several models: add one of :{', :'.join(sorted(folders))}")
            source = _source(name, folder="" if "" in folders else next(iter(folders)))
    chosen = next((row for row in asked if BACKENDS[row].format == kind), None)
    if source is None or chosen is None:
        wanted = "model" if backend is None else BACKENDS[backend].weights
        raise UsageError(f"{name.repo} has no {wanted}: it has {_told(files, folders)}")
    size = files.get(source.file or "") or sum(
        size for path, size in listing.files.items() if hub.local_name(path, source) is not None
    )
    return _spec(source, chosen, size, listing.licence), chosen


def _source(name: RepositoryName, *, file: str | None = None, folder: str = "") -> HubSource:
    if file is not None:
        return HubSource(repo=name.repo, revision=name.revision, file=file)
    return HubSource(repo=name.repo, revision=name.revision, patterns=PATTERNS, subfolder=folder or None)


def _spec(source: HubSource, backend: BackendName, size: int, licence: str | None = None) -> RepositorySpec:
    """The model of this source for one backend. `size`: bytes of the weights; 0 if not known."""
    page = f"https://huggingface.co/{source.repo}"
    wanted = source.subfolder
    if source.file is not None:
        label = quantization(source.file)
        # The quantization alone is the name where the file is called as such files are: others may share it.
        usual = f"{source.repo.split('/')[1].removesuffix('-GGUF')}-{label}.gguf"
        wanted = label if source.file.lower() == usual.lower() else source.file
    return RepositorySpec(
        name=str(RepositoryName(source.repo, source.revision, wanted)),
        description=f"{source.repo}, {source.file or source.subfolder or 'MLX folder'}",
        context=32_768,  # not known before the weights are here, which say it themselves
        licence=Licence(name=licence or "see its page", url=page),
        sources={backend: source.model_copy(update={"size": size or None})},
    )


def quantization(file: str) -> str | None:
    """The quantization in a GGUF file's name, such as Q4_K_M."""
    hits = list(_QUANTIZATION.finditer(_PART.sub("", PurePosixPath(file).name.removesuffix(".gguf"))))
    return f"{hits[-1][1] or ''}{hits[-1][2]}".upper() if hits else None


def _gguf_files(files: Mapping[str, int]) -> dict[str, int]:
    """The GGUF models: a file each, or the first of several parts, with the size of all."""
    sizes: dict[str, int] = {}
    for path, size in files.items():
        name = PurePosixPath(path).name.lower()
        if not name.endswith(".gguf") or name.startswith("mmproj") or "imatrix" in name:
            continue
        stem = path[: -len(".gguf")]
        part = _PART.search(stem)
        first = f"{stem[: part.start()]}-00001{stem[part.start() + 6 :]}.gguf" if part else path
        sizes[first] = sizes.get(first, 0) + size
    return {path: size for path, size in sizes.items() if path in files}


def _mlx_folders(files: Mapping[str, int]) -> set[str]:
    """The folders that hold a model of safetensors; "" is the repository itself."""

    def parents(ending: str) -> Iterator[str]:
        for path in files:
            if path.endswith(ending):
                folder = str(PurePosixPath(path).parent)
                yield "" if folder == "." else folder

    return {*parents("config.json")} & {*parents(".safetensors")}


def _named_file(name: RepositoryName, files: Iterable[str]) -> str | None:
    """The file that `wanted` names: by its path, its name or its quantization. Raises UsageError."""
    wanted = (name.wanted or "").lower()
    exact = [path for path in files if wanted in (path.lower(), PurePosixPath(path).name.lower())]
    fitting = exact or [path for path in files if (quantization(path) or "").lower() == wanted]
    if len(fitting) > 1:
        raise UsageError(f"{name.repo} has several files {quoted(wanted)}: name one of {listed(fitting)}")
    return fitting[0] if fitting else None


def _best(files: Mapping[str, int]) -> list[str]:
    """The files, the one to take first; of those of unknown quantization, which come last, the smallest."""

    def rank(path: str) -> tuple[int, int, str]:
        label = (quantization(path) or "").removeprefix("UD-")
        return PREFERRED.index(label) if label in PREFERRED else len(PREFERRED), files[path], path

    return sorted(files, key=rank)


def _fitting(name: RepositoryName, files: Mapping[str, int]) -> str:
    """The best file whose weights leave room in memory. Raises NotEnoughMemory."""
    free = available_memory()
    for path in _best(files):
        if files[path] <= SHARE * free or not memory_checked():
            return path
    least = min(files, key=lambda path: files[path])
    raise NotEnoughMemory(
        f"{name.repo} has nothing that fits into memory: {size_text(free)} are free, and the smallest file, "
        f"{least}, has {size_text(files[least])} ({MEMORY_CHECK}=0 takes it anyway)"
    )


def _told(files: Mapping[str, int], folders: Iterable[str]) -> str:
    """What there is to choose from, for a message."""
    choices = [f"{quantization(path) or path} ({size_text(size)})" for path, size in files.items()]
    choices += [f"the MLX folder {folder}" if folder else "an MLX model" for folder in sorted(folders)]
    return listed(choices) if choices else "neither GGUF files nor an MLX folder"
