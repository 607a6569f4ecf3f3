"""A folder that paths cannot leave, for tools whose paths are written by a model.

Each name is opened relative to its parent folder's descriptor and never through a symbolic link, so a link
made between check and use has no effect. Errors are ToolErrors that give the path inside the folder and
reveal nothing outside it, nor where a link leads.
"""

from __future__ import annotations

import difflib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from localagent.errors import ToolError, UsageError

MAX_PATH = 1_000
"""Characters of a path. That also limits the depth of folders."""
VERSION_CONTROL = frozenset({".git", ".hg", ".svn", ".jj", ".bzr"})

_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = _FLAGS | getattr(os, "O_DIRECTORY", 0)
# A FIFO may take the place of a file after the check: opening it must not wait, nor a terminal take us over.
_FILE = _FLAGS | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_RESERVED = frozenset(
    {"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(10)}
)
_SCANNED = 1_000

Parts = tuple[str, ...]
"""The names on the way from the root to a file or folder. Empty for the root itself."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """What lies in a folder."""

    name: str
    kind: Literal["file", "folder", "link", "special"]
    size: int
    """Bytes."""


class ConfinedFolder:
    """Everything below `root`, which may itself be a link. Raises UsageError when it is not a folder."""

    def __init__(self, root: Path | str) -> None:
        if not hasattr(os, "O_NOFOLLOW") or os.open not in os.supports_dir_fd:
            raise UsageError(
                "this system cannot open files relative to a folder, so it cannot have file tools"
            )
        try:
            self.root = Path(root).expanduser().resolve(strict=True)
            os.close(os.open(self.root, _FOLDER))
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, no such user, a NUL
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot use {str(root)!r} as the folder of file tools: {reason}") from error

    def split(self, path: str) -> Parts:
        """The names in a path that a model wrote. Raises ToolError for a path that could lead outside."""
        if len(path) > MAX_PATH:
            raise ToolError(f"the path has {len(path):,} characters: at most {MAX_PATH:,} are taken")
        try:
            path.encode()
        except UnicodeEncodeError:
            raise ToolError(f"{path!a:.200} is not a path: it is not valid Unicode text") from None
        if "\0" in path:
            raise ToolError(f"{path!a:.200} is not a path: it contains a NUL")
        names = tuple(name for name in path.split("/") if name not in ("", "."))
        if path.startswith("/") or names[:1] == ("~",):
            written = shown(names, "/" if path.startswith("/") else "")
            raise ToolError(f"{written}: paths are relative to the folder of this tool, which is '.'")
        if ".." in names:
            raise ToolError(f"{shown(names)}: a path may not contain '..'; '.' is the folder of this tool")
        return names

    @contextmanager
    def folder(self, parts: Parts, *, create: bool = False) -> Iterator[int]:
        """The descriptor of a folder; `create` makes missing folders. Raises ToolError."""
        try:
            descriptor = os.open(self.root, _FOLDER)
        except OSError as error:
            raise ToolError(f"the folder of this tool cannot be opened: {error.strerror}") from error
        try:
            for number, name in enumerate(parts, 1):
                inner = _open_folder(descriptor, name, parts[:number], create)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def file(self, parts: Parts) -> Iterator[tuple[int, os.stat_result]]:
        """The descriptor and the state of a regular file. Raises ToolError for anything else."""
        if not parts:
            raise ToolError(". is a folder, not a file")
        with self.folder(parts[:-1]) as folder:
            name = parts[-1]
            with _explained(parts, folder, "read"):
                _require_file(
                    os.lstat(name, dir_fd=folder), parts
                )  # merely opening a device may do something
                descriptor = os.open(name, _FILE, dir_fd=folder)
        try:
            state = os.fstat(descriptor)
            _require_file(state, parts)
            yield descriptor, state
        finally:
            os.close(descriptor)

    def read(self, parts: Parts, limit: int) -> bytes:
        """The bytes of a file. Raises ToolError, also when there are more than `limit`."""
        with self.file(parts) as (descriptor, state), _explained(parts, None, "read"):
            if state.st_size <= limit:
                with os.fdopen(descriptor, "rb", closefd=False) as file:
                    data = file.read(limit + 1)  # it may be growing
                if len(data) <= limit:
                    return data
            raise ToolError(
                f"{shown(parts)} is too large to read: {state.st_size:,} bytes, at most {limit:,} are read"
            )

    def entries(self, parts: Parts) -> Iterator[FolderEntry]:
        """What lies in a folder, in the order of the system. Raises ToolError."""
        with self.folder(parts) as folder, _explained(parts, None, "read"), os.scandir(folder) as found:
            for item in found:
                with suppress(FileNotFoundError):  # removed meanwhile
                    state = item.stat(follow_symlinks=False)
                    yield FolderEntry(item.name, _kind(state.st_mode), state.st_size)

    def replace(self, parts: Parts, data: bytes) -> int | None:
        """Write a file in one step: a reader sees the old content or all of the new. Permissions are kept.

        Missing folders are made. Returns the size that the file had before, None for a new one. Raises
        ToolError, and then the file is as it was.
        """
        _require_writable_names(parts)
        name = parts[-1]
        with self.folder(parts[:-1], create=True) as folder, _explained(parts, None, "write"):
            before = _replaceable(folder, parts)
            # Not `replacing`: every step is relative to the folder that is open, so no link can lead outside.
            temporary = f".localagent-{secrets.token_hex(8)}.tmp"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS
            descriptor = os.open(temporary, flags, 0o666, dir_fd=folder)
            try:
                try:
                    if before is not None:
                        os.fchmod(descriptor, stat.S_IMODE(before.st_mode) & 0o777)
                    with os.fdopen(descriptor, "wb", closefd=False) as file:
                        file.write(data)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            with suppress(OSError):  # not every file system can sync folders
                os.fsync(folder)
        return None if before is None else before.st_size


def shown(parts: Parts, before: str = "") -> str:
    """A path for errors and lists: one line, relative to the root, not too long."""
    path = before + "/".join(parts) or "."
    if not path.isprintable():
        path = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in path)
    return path if len(path) <= 200 else f"{path[:100]}...{path[-97:]}"


def _kind(mode: int) -> Literal["file", "folder", "link", "special"]:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "special"


def _require_file(state: os.stat_result, parts: Parts) -> None:
    match _kind(state.st_mode):
        case "folder":
            raise ToolError(f"{shown(parts)} is a folder, not a file")
        case "link":
            raise _is_link(parts)
        case "special":
            raise ToolError(
                f"{shown(parts)} is not a regular file: devices, pipes and sockets are left alone"
            )


def _is_link(parts: Parts) -> ToolError:
    return ToolError(f"{shown(parts)} is a symbolic link: links are not followed")


def _open_folder(folder: int, name: str, parts: Parts, create: bool) -> int:
    """The descriptor of a folder in a folder; `parts` is its whole path."""
    with _explained(parts, folder, "open"):
        if create:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
        try:
            return os.open(name, _FOLDER, dir_fd=folder)
        except NotADirectoryError:
            if _kind(os.lstat(name, dir_fd=folder).st_mode) == "link":
                raise _is_link(parts) from None
            raise ToolError(f"{shown(parts)} is not a folder") from None


def _replaceable(folder: int, parts: Parts) -> os.stat_result | None:
    """The state of the file that is to be replaced, or None where there is none yet. Raises ToolError."""
    try:
        state = os.lstat(parts[-1], dir_fd=folder)
    except FileNotFoundError:
        return None
    _require_file(state, parts)
    # The system allows this, since it is the folder that changes; whoever made the file read-only would not.
    if not state.st_mode & 0o222 or not os.access(parts[-1], os.W_OK, dir_fd=folder):
        raise ToolError(f"{shown(parts)} is read-only: not replaced")
    return state


def _require_writable_names(parts: Parts) -> None:
    """Refuse names that other systems cannot have, and those where version control keeps code to run."""
    if not parts:
        raise ToolError(". is a folder, not a file")
    for name in parts:
        if "\\" in name:
            raise ToolError(f"{shown(parts)}: put / between folders, not \\")
        if not name.isprintable():
            raise ToolError(f"{shown(parts)}: a name may not contain control characters")
        if name.partition(".")[0].strip().casefold() in _RESERVED:
            raise ToolError(f"{shown(parts)}: {name} is a reserved name")
        if name.casefold() in VERSION_CONTROL:
            raise ToolError(f"{shown(parts)}: {name} belongs to version control, so nothing is written there")


@contextmanager
def _explained(parts: Parts, folder: int | None, verb: str) -> Iterator[None]:
    """Turn errors of the system into ToolErrors. Names like a missing one are looked for in `folder`."""
    try:
        yield
    except FileNotFoundError as error:
        near = [] if folder is None else _near(folder, parts[-1])
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ToolError(f"there is no {shown(parts)}{hint}") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):  # what O_NOFOLLOW says, by system
            raise _is_link(parts) from error
        raise ToolError(f"cannot {verb} {shown(parts)}: {error.strerror or 'it failed'}") from error


def _near(folder: int, name: str) -> list[str]:
    with suppress(OSError), os.scandir(folder) as found:
        names = [item.name for item in islice(found, _SCANNED)]
        return [shown((near,)) for near in difflib.get_close_matches(name, names, 2)]
    return []
