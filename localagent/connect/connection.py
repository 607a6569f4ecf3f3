"""One client's file: what would change in it, the change itself, and the way back.

A record in the user's folder for state says what was set and what stood there before. As long as nobody else
changes the file, undoing gives back its bytes. Afterwards only our own entries go, and what they replaced
comes back.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, TypedDict

from localagent.connect.clients import NAME, Client, ValueToSet
from localagent.connect.document import CannotEdit, Document, Keys
from localagent.errors import SaveFailed, UsageError
from localagent.files.paths import cannot_save, replace_file, user_path
from localagent.wording import quoted

_LARGEST = 16 << 20
_BOM = "\ufeff"


class _Set(TypedDict):
    """An entry that was set. `depth`: how many of the tables around it were there."""

    keys: list[str]
    value: Any
    before: str | None
    depth: int
    goes_with: list[str] | None


class _Record(TypedDict):
    file: str
    folders: list[str]
    """Those that were made for the file, the innermost first."""
    new: bool
    written: str
    """The digest of what the file said then."""
    start: list[str]
    """What a new file begins with. It stays if somebody adds more, since the client may need it."""
    entries: list[_Set]


@dataclass(frozen=True, slots=True)
class Change:
    """A file as it is and as it is to be; None where there is none."""

    path: Path
    before: bytes | None
    after: bytes | None
    kept: tuple[str, ...] = ()
    """Entries that stay, since somebody changed them after us."""
    original: bytes | None = None
    """What it said before we first changed it."""
    record: _Record | None = None

    @property
    def nothing(self) -> bool:
        """Whether the file already says what it is to say."""
        return self.before == self.after


class Connection:
    """A client's configuration file and our record of it."""

    def __init__(self, client: Client) -> None:
        assert client.document is not None
        self._document = client.document
        self._client = client
        folder = user_path("state", "connect")
        self._record_file = folder / f"{client.name}.json"
        self.backup = folder / f"{client.name}.backup"
        """What the file said before we first changed it."""

    def connect(self, entries: Sequence[ValueToSet]) -> Change:
        """What setting these entries would change. Raises UsageError."""
        path = self._client.file()
        record = self._read_record()
        if record is not None and Path(record["file"]) != path:
            raise UsageError(
                f"{self._client.title} is connected in {record['file']}: take that back first with --undo"
            )
        before = _read(path)
        # Connecting again begins from what was there before the first time.
        original = before if record is None else self._taken_back(path, before, record)[0]
        mark, document = self._open(path, original or b"")
        start = [entry for entry in entries if entry.in_new_file]
        with _about(path):
            for entry in () if document.value else start:
                document.set(entry.keys, entry.value)
            done = [_set(document, entry) for entry in entries if entry not in start]
        after = (mark + document.text).encode()
        missing = takewhile(lambda folder: not folder.exists(), path.parents)
        new: _Record = {
            "file": str(path),
            "folders": record["folders"] if record else [*map(str, missing)],
            "new": original is None,
            "written": _digest(after),
            "start": [entry.keys[0] for entry in start],
            "entries": done,
        }
        return Change(path, before, after, original=original, record=new)

    def undo(self) -> Change:
        """What taking the entries back would change. Raises UsageError."""
        if (record := self._read_record()) is None:
            raise UsageError(f"{self._client.title} is not connected: there is nothing to undo")
        path = Path(record["file"])
        before = _read(path)
        after, kept = self._taken_back(path, before, record)
        return Change(path, before, after, kept)

    def write(self, change: Change) -> None:
        """Do it. Raises UsageError if the file changed meanwhile, SaveFailed."""
        if _read(change.path) != change.before:
            raise UsageError(f"{change.path} has just been changed by somebody else: try again")
        if change.path.exists() and not change.path.stat().st_mode & 0o222:  # a rename would not ask
            raise UsageError(f"{change.path} is read-only: nothing is changed")
        if change.record is None:
            _put(change.path, change.after)
            self._forget()
            return
        earlier = [(path, _read(path)) for path in (self.backup, self._record_file)]
        try:  # kept first, so that what was written can always be undone
            self._record_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.backup, change.original or b"", 0o600)
            replace_file(self._record_file, json.dumps(change.record, indent=1).encode(), 0o600)
        except OSError as error:
            raise cannot_save(self._record_file, error) from error
        try:
            _put(change.path, change.after)
        except SaveFailed:
            for path, data in earlier:
                _put(path, data)
            raise

    def _forget(self) -> None:
        """Remove the record, and the folders that were made for the file."""
        record = self._read_record()
        for folder in record["folders"] if record else ():
            with suppress(OSError):  # somebody else's file is in it now
                Path(folder).rmdir()
        self._record_file.unlink(missing_ok=True)
        self.backup.unlink(missing_ok=True)

    def _taken_back(
        self, path: Path, now: bytes | None, record: _Record
    ) -> tuple[bytes | None, tuple[str, ...]]:
        if now is None:
            return None, ()
        if _digest(now) == record["written"]:
            with suppress(OSError):
                return None if record["new"] else self.backup.read_bytes(), ()
        mark, document = self._open(path, now)
        ours = [entry for entry in record["entries"] if _is_ours(document, entry, record["entries"])]
        kept = [entry for entry in record["entries"] if entry not in ours]
        with _about(path):
            for entry in reversed(ours):
                _take_back(document, entry)
        if record["new"] and document.value.keys() <= set(record["start"]):
            return None, ()
        left = [".".join(entry["keys"]) for entry in kept if document.get(tuple(entry["keys"])) is not None]
        return (mark + document.text).encode(), tuple(left)

    def _open(self, path: Path, data: bytes) -> tuple[str, Document]:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is not UTF-8 text (byte {error.start:,}): nothing is changed") from None
        mark = _BOM if text.startswith(_BOM) else ""
        with _about(path):
            return mark, self._document(text.removeprefix(_BOM))

    def _read_record(self) -> _Record | None:
        try:
            record: _Record = json.loads(self._record_file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{self._record_file}, which says what was changed, cannot be read ({error}): undo the "
                f"change by hand, and remove that file; {self.backup} is what the configuration was"
            ) from None
        return record


@contextmanager
def _about(path: Path) -> Iterator[None]:
    """Name the file in the error that it cannot be changed."""
    try:
        yield
    except CannotEdit as error:
        raise UsageError(f"{path}: {error}; nothing is changed") from None


def _set(document: Document, entry: ValueToSet) -> _Set:
    depth, before = document.depth(entry.keys), document.raw(entry.keys)
    document.set(entry.keys, entry.value)
    goes_with = list(entry.goes_with) if entry.goes_with else None
    return {
        "keys": list(entry.keys),
        "value": entry.value,
        "before": before,
        "depth": depth,
        "goes_with": goes_with,
    }


def _take_back(document: Document, entry: _Set) -> None:
    """Remove an entry, with the tables that were made for it; or put back what it replaced."""
    keys = tuple(entry["keys"])
    if entry["before"] is not None:
        document.restore(keys, entry["before"])
        return
    document.remove(keys)
    for length in range(len(keys) - 1, entry["depth"], -1):
        if document.get(keys[:length]) == {}:
            document.remove(keys[:length])


def _is_ours(document: Document, entry: _Set, entries: Sequence[_Set]) -> bool:
    """Whether a value is still the one that was set, or one that leads to our server all the same."""
    keys: Keys = tuple(entry["keys"])
    now = document.get(keys)
    if now is None:
        return False
    provider = now.get("provider") if isinstance(now, dict) else str(now).partition("/")[0]
    if now == entry["value"] or NAME in keys or provider == NAME:
        return True
    anchor = next((other for other in entries if other["keys"] == entry["goes_with"]), None)
    return anchor is not None and document.get(tuple(anchor["keys"])) == anchor["value"]


def _read(path: Path) -> bytes | None:
    """What a file says; None without one. Raises UsageError."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{path} is not a file")
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except FileNotFoundError:
        if path.is_symlink():
            raise UsageError(f"{path} is a link to a file that does not exist") from None
        return None
    except OSError as error:
        raise UsageError(f"{quoted(str(path), 300)} cannot be read: {error.strerror or error}") from None
    if len(data) > _LARGEST:
        raise UsageError(f"{path} is larger than a configuration can be")
    return data


def _put(path: Path, data: bytes | None) -> None:
    """Write a file that belongs to somebody else: its mode and a link that leads to it stay."""
    real = path.resolve()
    try:
        if data is None:
            real.unlink(missing_ok=True)
            return
        real.parent.mkdir(parents=True, exist_ok=True)
        replace_file(real, data, stat.S_IMODE(real.stat().st_mode) if real.exists() else 0o600)
    except OSError as error:
        raise SaveFailed(f"cannot write {path} ({error.strerror or error}): nothing is changed") from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
