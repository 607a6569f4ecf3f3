"""Weights from a Hugging Face repository.

`plan` asks the repository what there is; `fetch` brings it into a folder and continues what an earlier
process left there. Every failure is a DownloadFailed of one line. huggingface_hub is imported here only, when
used.

`hf_hub_download` is not used: since huggingface_hub 1.x it starts again from zero in every new process.
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
    """A file of the repository. One of `sha256` and `git_id` is known: large files have the first."""

    remote: str
    local: str
    size: int
    sha256: str | None
    git_id: str | None


@dataclass(frozen=True, slots=True)
class Plan:
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
        """Names the folder of a partial download: another commit or selection never continues this one."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


def plan(source: HubSource) -> Plan:
    """Ask the repository for the files of `source`, with sizes and hashes."""
    with _failures(source):
        from huggingface_hub import HfApi

        try:
            info = HfApi().model_info(source.repo, revision=source.revision, files_metadata=True, timeout=30)
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            reason = "does not come from a hub: is there a login page, or a wrong HF_ENDPOINT?"
            raise DownloadFailed(f"the answer for {source.repo} {reason}") from error
    files = tuple(
        _remote_file(sibling, local, source)
        for sibling in info.siblings or ()
        if (local := _local_name(sibling.rfilename, source)) is not None
    )
    if not files or not info.sha:
        wanted = source.file or f"{source.subfolder or '.'}/{{{','.join(source.patterns)}}}"
        raise DownloadFailed(f"{source.repo} ({source.revision}) has no file {wanted}")
    return Plan(source.repo, info.sha, files)


def fetch(plan: Plan, folder: Path, source: HubSource, progress: Progress) -> None:
    """Bring all files of the plan into `folder`, continuing each where an earlier attempt stopped."""
    done = 0
    progress("download", tree_size(folder), plan.size)
    with _failures(source), no_space_is_disk_full(folder):
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


def check(plan: Plan, folder: Path, advance: Callable[[int], None]) -> list[tuple[str, str]]:
    """Hash all fetched files against what the repository publishes: (path, sha256) of each.

    A wrong file is deleted, so that the next attempt begins it anew, and raises HashMismatch.
    """
    hashes = []
    for file in plan.files:
        path = folder / file.local
        digest = sha256(path, advance)
        right = digest == file.sha256 if file.sha256 else git_blob_id(path) == file.git_id
        if not right:
            path.unlink()
            raise HashMismatch(
                f"{file.remote} from {plan.repo} does not have the published hash and was discarded: "
                f"pull again"
            )
        hashes.append((file.local, digest))
    return hashes


class _Part(io.BufferedWriter):
    """A file that grows at its end and reports its size."""

    def __init__(self, path: Path, report: Callable[[int], None]) -> None:
        super().__init__(io.FileIO(path, "ab"))
        self.seek(0, io.SEEK_END)
        self._report = report

    def write(self, data: Any, /) -> int:
        written = super().write(data)
        self._report(self.tell())
        return written


def _fetch_file(plan: Plan, file: RemoteFile, part: _Part) -> None:
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # has no __all__

    have = part.tell()
    if have == file.size:
        return
    # Its 10 MB pieces would make the progress jump, and cost up to that much in a resume.
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK
    http_get(
        hf_hub_url(plan.repo, file.remote, revision=plan.commit),
        part,
        resume_size=have,
        headers=build_hf_headers(),
        expected_size=file.size,
    )


def _local_name(remote: str, source: HubSource) -> str | None:
    """Where a file of the repository goes, or None when it is not wanted."""
    path = PurePosixPath(remote)
    if path.is_absolute() or ".." in path.parts or "\\" in remote or path.name.startswith("."):
        return None
    if source.file is not None:
        return path.name if remote == source.file else None
    prefix = f"{source.subfolder.rstrip('/')}/" if source.subfolder else ""
    if not remote.startswith(prefix):
        return None
    name = remote.removeprefix(prefix)
    wanted = (
        fnmatchcase(name, pattern) and name.count("/") == pattern.count("/") for pattern in source.patterns
    )
    return name if any(wanted) else None


def _remote_file(sibling: Any, local: str, source: HubSource) -> RemoteFile:
    published = sibling.lfs.sha256 if sibling.lfs else None
    if source.sha256 and published and source.sha256 != published:
        raise HashMismatch(
            f"{source.repo} publishes another {source.file} than the catalogue expects ({source.revision}): "
            "nothing was fetched"
        )
    if sibling.size is None or not (published or source.sha256 or sibling.blob_id):
        raise DownloadFailed(f"{source.repo} publishes no size and hash for {sibling.rfilename}")
    return RemoteFile(sibling.rfilename, local, sibling.size, source.sha256 or published, sibling.blob_id)


@contextmanager
def _failures(source: HubSource) -> Iterator[None]:
    """Turn whatever huggingface_hub raises into one line."""
    try:
        from huggingface_hub import errors as hf
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
    except ImportError as error:
        raise DownloadFailed(
            f"{source.repo} is on Hugging Face, which needs one more package: {install_command('hub')}"
        ) from error
    if not are_progress_bars_disabled():
        disable_progress_bars()
    try:
        yield
    except hf.GatedRepoError as error:
        reason = "is gated: accept its terms on its page and log in with `hf auth login`"
        raise DownloadFailed(f"{source.repo} {reason}") from error
    except hf.RepositoryNotFoundError as error:
        reason = "does not exist, or is private: then log in with `hf auth login`"
        raise DownloadFailed(f"repository {source.repo} {reason}") from error
    except hf.RevisionNotFoundError as error:
        raise DownloadFailed(f"{source.repo} has no revision {source.revision}") from error
    except hf.EntryNotFoundError as error:
        raise DownloadFailed(f"{source.repo} ({source.revision}) no longer has a file it listed") from error
    except hf.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "unknown"
        raise DownloadFailed(f"Hugging Face answered {source.repo} with HTTP status {status}") from error
    except Exception as error:
        package = type(error).__module__.partition(".")[0]
        # A plain OSError without a number is http_get's complaint about a short answer.
        short = isinstance(error, OSError) and error.errno is None
        network = package in _NETWORK_PACKAGES or isinstance(error, (ConnectionError, TimeoutError))
        if not (network or short):
            raise  # a local failure: full disk, no permission
        raise DownloadFailed(
            f"fetching {source.repo} broke off ({type(error).__name__}): check the network and pull again, "
            "what was fetched is kept"
        ) from error
