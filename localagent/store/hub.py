"""Weights from a Hugging Face repository.

`plan` asks the repository for its files; `fetch` downloads them to a folder and continues what an earlier
process left there. Every failure is a DownloadFailed of one line. Only this file imports huggingface_hub, and
only when it is used.

`hf_hub_download` is not used: since huggingface_hub 1.x it starts from zero in every new process.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from localagent.catalog import HubSource
from localagent.distribution import install_command
from localagent.errors import DownloadFailed, HashMismatch
from localagent.store.disk import CHUNK, Progress, git_blob_id, no_space_is_disk_full, sha256, tree_size

_NETWORK_PACKAGES = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "ssl"})


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of the repository. Large files have a `sha256`, small ones a `git_id`."""

    remote: str
    local: str
    size: int
    sha256: str | None
    git_id: str | None


@dataclass(frozen=True, slots=True)
class PinnedFiles:
    """The files to fetch, pinned to one commit."""

    repo: str
    commit: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def key(self) -> str:
        """The name of the partial download's folder, different for every commit and choice of files."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a repository, with their sizes in bytes, its own name, and the licence on its page."""

    files: dict[str, int]
    repo: str = ""
    licence: str | None = None


def list_files(repo: str, revision: str) -> Listing:
    """Ask the repository what it holds."""
    info = _ask(repo, revision)
    card = info.card_data.to_dict() if info.card_data else {}
    named = card.get("license_name") if card.get("license") == "other" else card.get("license")
    safe = [sibling for sibling in info.siblings or () if _is_safe(sibling.rfilename)]
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in safe}
    return Listing(sizes, info.id or repo, named if isinstance(named, str) and named else None)


def _ask(repo: str, revision: str) -> Any:
    with _failures(repo, revision):
        from huggingface_hub import HfApi

        try:
            return HfApi().model_info(repo, revision=revision, files_metadata=True, timeout=30)
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            reason = "does not come from a hub: is there a login page, or a wrong HF_ENDPOINT?"
            raise DownloadFailed(f"the answer for {repo} {reason}") from error


def plan(source: HubSource) -> PinnedFiles:
    """Ask the repository for the files of `source`, with their sizes and hashes."""
    info = _ask(source.repo, source.revision)
    files = tuple(
        _remote_file(sibling, local, source)
        for sibling in info.siblings or ()
        if (local := local_name(sibling.rfilename, source)) is not None
    )
    if not files or len(files) < len(source.files) or not info.sha:
        wanted = source.file or f"{source.subfolder or '.'}/{{{','.join(source.patterns)}}}"
        raise DownloadFailed(f"{source.repo} ({source.revision}) has no file {wanted}")
    return PinnedFiles(source.repo, info.sha, files)


def fetch(plan: PinnedFiles, folder: Path, source: HubSource, progress: Progress) -> None:
    """Download the plan's files to `folder`, continuing each where an earlier attempt stopped."""
    done = 0
    progress("download", tree_size(folder), plan.size)
    with _failures(source.repo, source.revision), no_space_is_disk_full(folder):
        for file in plan.files:
            target = folder / file.local
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists() and target.stat().st_size > file.size:
                target.unlink()
            with _Part(target, _downloaded(progress, done, plan.size)) as part:
                _fetch_file(plan, file, part)
            done += file.size
    progress("download", done, plan.size)


def _downloaded(progress: Progress, before: int, total: int) -> Callable[[int], None]:
    return lambda size: progress("download", before + size, total)


def check(plan: PinnedFiles, folder: Path, advance: Callable[[int], None]) -> list[tuple[str, str]]:
    """Check all files against the published hashes, and return the (path, sha256) of each.

    Raises HashMismatch for a wrong file and deletes it, so that the next attempt starts it again.
    """
    hashes = []
    for file in plan.files:
        path = folder / file.local
        digest = sha256(path, advance)
        right = digest == file.sha256 if file.sha256 else git_blob_id(path) == file.git_id
        if not right:
            path.unlink()
            raise HashMismatch(
                f"{file.remote} from {plan.repo} does not match its published hash and was discarded: "
                f"pull again"
            )
        hashes.append((file.local, digest))
    return hashes


class _Part(io.BufferedWriter):
    """A file opened for appending that reports its size as it grows."""

    def __init__(self, path: Path, report: Callable[[int], None]) -> None:
        super().__init__(io.FileIO(path, "ab"))
        self.seek(0, io.SEEK_END)
        self._report = report

    def write(self, data: Any, /) -> int:
        written = super().write(data)
        self._report(self.tell())
        return written


def _fetch_file(plan: PinnedFiles, file: RemoteFile, part: _Part) -> None:
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # has no __all__

    have = part.tell()
    if have == file.size:
        return
    # Smaller than its 10 MB pieces, which make progress jump and lose up to 10 MB when interrupted.
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK
    http_get(
        hf_hub_url(plan.repo, file.remote, revision=plan.commit),
        part,
        resume_size=have,
        headers=build_hf_headers(),
        expected_size=file.size,
    )


def local_name(remote: str, source: HubSource) -> str | None:
    """The local path of a file of the repository; None if it is not wanted."""
    path = PurePosixPath(remote)
    if not _is_safe(remote) or path.name.startswith("."):
        return None
    if source.file is not None:
        return path.name if remote in source.files else None
    prefix = f"{source.subfolder.rstrip('/')}/" if source.subfolder else ""
    if not remote.startswith(prefix):
        return None
    name = remote.removeprefix(prefix)
    wanted = (
        fnmatchcase(name, pattern) and name.count("/") == pattern.count("/") for pattern in source.patterns
    )
    return name if any(wanted) else None


def _is_safe(remote: str) -> bool:
    """Whether a path that a repository names stays within the folder in which its files are put."""
    path = PurePosixPath(remote)
    return not (path.is_absolute() or ".." in path.parts or "\\" in remote or ":" in remote)


def _remote_file(sibling: Any, local: str, source: HubSource) -> RemoteFile:
    published = sibling.lfs.sha256 if sibling.lfs else None
    if source.sha256 and published and source.sha256 != published:
        raise HashMismatch(
            f"{source.file} in {source.repo} ({source.revision}) is not the file that the catalogue expects: "
            "nothing was fetched"
        )
    if sibling.size is None or not (published or source.sha256 or sibling.blob_id):
        raise DownloadFailed(f"{source.repo} publishes no size and hash for {sibling.rfilename}")
    return RemoteFile(sibling.rfilename, local, sibling.size, source.sha256 or published, sibling.blob_id)


@contextmanager
def _failures(repo: str, revision: str) -> Iterator[None]:
    """Turn every error of huggingface_hub into a DownloadFailed of one line."""
    try:
        from huggingface_hub import errors as hf
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
    except ImportError as error:
        raise DownloadFailed(
            f"{repo} is on Hugging Face, which needs one more package: {install_command('hub')}"
        ) from error
    if not are_progress_bars_disabled():
        disable_progress_bars()
    try:
        yield
    except hf.GatedRepoError as error:
        reason = "is gated: accept its terms on its page and log in with `hf auth login`"
        raise DownloadFailed(f"{repo} {reason}") from error
    except hf.RepositoryNotFoundError as error:
        reason = "does not exist, or is private: then log in with `hf auth login`"
        raise DownloadFailed(f"repository {repo} {reason}") from error
    except hf.RevisionNotFoundError as error:
        raise DownloadFailed(f"{repo} has no revision {revision}") from error
    except hf.EntryNotFoundError as error:
        raise DownloadFailed(f"{repo} ({revision}) no longer has a file it listed") from error
    except hf.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "unknown"
        raise DownloadFailed(f"Hugging Face answered with HTTP status {status} for {repo}") from error
    except Exception as error:
        package = type(error).__module__.partition(".")[0]
        # http_get reports an incomplete answer as an OSError without an errno.
        short = isinstance(error, OSError) and error.errno is None
        network = package in _NETWORK_PACKAGES or isinstance(error, (ConnectionError, TimeoutError))
        if not (network or short):
            raise  # a local failure: full disk, no permission
        raise DownloadFailed(
            f"fetching {repo} broke off ({type(error).__name__}): check the network and pull again, "
            "what was fetched is kept"
        ) from error
