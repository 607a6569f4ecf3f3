"""The files that hold a model's weights, and whether they can be read."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localagent.errors import InvalidWeights

_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def weight_files(path: Path) -> list[Path]:
    """The files that hold the tensors at `path`, in order: one GGUF file, all of a split set, or a folder's
    safetensors files. Raises InvalidWeights when there are none, or a part of a set is missing.
    """
    if path.is_dir():
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise InvalidWeights(f"{path}: no safetensors files in this folder")
        return files
    split = _SPLIT.fullmatch(path.name)
    if split is None or int(split[3]) < 1:
        return [path]
    count = int(split[3])
    parts = [path.with_name(f"{split[1]}-{number:05d}-of-{split[3]}.gguf") for number in range(1, count + 1)]
    missing = next((part for part in parts if not part.is_file()), None)
    if missing is not None:
        raise InvalidWeights(f"{path}: one of {count} files, of which {missing.name} is missing")
    return parts


def total_size(path: Path) -> int:
    """Bytes of all of them together. Raises InvalidWeights."""
    files = weight_files(path)
    with reading(path):
        return sum(file.stat().st_size for file in files)


def regular_size(path: Path, most: int | None = None) -> int:
    """The size of the file at `path`. Raises InvalidWeights where it is none, or has more bytes than `most`.

    To be asked before the file is opened: opening a pipe waits for a writer, and a device never ends.
    """
    with reading(path):
        found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise InvalidWeights(f"{path}: cannot be read: not a regular file")
    if most is not None and found.st_size > most:
        raise InvalidWeights(f"{path}: {found.st_size:,} bytes: at most {most:,} are read")
    return found.st_size


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns the system's errors for an unreadable file into InvalidWeights."""
    try:
        yield
    except OSError as error:
        raise InvalidWeights(f"{path}: cannot be read: {error.strerror or error}") from error
