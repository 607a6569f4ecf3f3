"""Weights in the cache folder of Hugging Face's own programs, used where they are: not a byte is copied.

    FOLDER/models--OWNER--NAME/refs/REVISION             the commit of a branch or tag
    FOLDER/models--OWNER--NAME/snapshots/COMMIT/PATH     a link to the content, made when it was complete
    FOLDER/models--OWNER--NAME/blobs/HASH                the content, called by the hash that was published

A file without such a link cannot be checked against its hash, and is passed over.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localagent.catalog import HubSource
from localagent.store.disk import git_blob_id, sha256
from localagent.store.hub import local_name

_SHA256, _GIT_ID = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Cached:
    """A model in the cache. `path`: what is loaded, a file or a folder; `files`: all that belongs to it."""

    commit: str
    path: Path
    files: tuple[Path, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.stat().st_size for file in self.files)

    def check(self, advance: Callable[[int], None]) -> list[tuple[str, str]] | None:
        """The (path, sha256) of each file; None if one is not what its repository published."""
        hashes = []
        for file in self.files:
            published, digest = file.resolve().name, sha256(file, advance)
            if published != (git_blob_id(file) if _GIT_ID.fullmatch(published) else digest):
                return None
            hashes.append((str(file), digest))
        return hashes


def cache_folder() -> Path:
    """The folder, by the variables that Hugging Face's programs read."""
    for variable, inside in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if named := os.environ.get(variable):
            return Path(os.path.expandvars(named)).expanduser() / inside
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "huggingface" / "hub"


def list_cached(repo: str, revision: str) -> dict[str, int]:
    """The complete files of the repository that are in the cache, with their sizes."""
    try:
        snapshot = _snapshot(repo, revision)
        return {} if snapshot is None else {name: path.stat().st_size for name, path in _linked(snapshot)}
    except OSError:  # somebody else's folder, or one that is being removed
        return {}


def find_cached(source: HubSource) -> Cached | None:
    """The model, if the cache has all of its files."""
    try:
        snapshot = _snapshot(source.repo, source.revision)
        if snapshot is None:
            return None
        there = dict(_linked(snapshot))
        files = tuple(path for name, path in there.items() if local_name(name, source) is not None)
        if source.file is not None:
            whole = all(name in there for name in source.files)
            return Cached(snapshot.name, snapshot / source.file, files) if whole else None
        folder = snapshot / source.subfolder if source.subfolder else snapshot
        return Cached(snapshot.name, folder, files) if _is_whole(folder, files) else None
    except (OSError, ValueError):
        return None


def _is_whole(folder: Path, files: tuple[Path, ...]) -> bool:
    """Whether a model folder can be loaded: other programs also fetch only parts of a repository."""
    names = {file.relative_to(folder).as_posix() for file in files}
    needed = {"config.json", "tokenizer_config.json"}
    if _INDEX in names:
        needed |= set(json.loads((folder / _INDEX).read_bytes())["weight_map"].values())
    return needed <= names and any(name.endswith(".safetensors") for name in names)


def _snapshot(repo: str, revision: str) -> Path | None:
    home = cache_folder() / f"models--{repo.replace('/', '--')}"
    commit = revision
    if not (_GIT_ID.fullmatch(revision) or ".." in revision):
        try:
            commit = (home / "refs" / revision).read_text("ascii").strip()
        except (OSError, ValueError):
            return None
    snapshot = home / "snapshots" / commit
    return snapshot if _GIT_ID.fullmatch(commit) and snapshot.is_dir() else None


def _linked(snapshot: Path) -> list[tuple[str, Path]]:
    """The files of a snapshot whose hash is known, by their paths in the repository."""
    files = []
    for path in sorted(snapshot.rglob("*")):
        named = path.resolve().name
        if path.is_file() and (_SHA256.fullmatch(named) or _GIT_ID.fullmatch(named)):
            files.append((path.relative_to(snapshot).as_posix(), path))
    return files
