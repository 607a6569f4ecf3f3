"""The distribution that these packages come in, and the commands that install what it lacks.

On the Python package index the name `localagent` belongs to another project, so no command may ask pip for
it: in a checkout it names the folder, elsewhere the missing packages themselves. Ranges of versions are read
from pyproject.toml or the wheel's metadata, and written nowhere else.
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
import tomllib
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final

NAME: Final = "localagent-runtime"
_ROOT: Final = Path(__file__).parents[1]


def version() -> str | None:
    """The version of localagent; None for a copy that came without its metadata."""
    if project := _project():
        return str(project["version"])
    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return None


def install_command(extra: str, *, only: Collection[str] = (), options: Sequence[str] = ()) -> str:
    """The shell command that brings the packages of an extra into this environment.

    `only` names the distributions to install, for a package that is there and broken; `options` are pip's.
    """
    if _project() and not only:
        return pip_install(*options, "-e", f"{_here()}[{extra}]")
    wanted = list(requirements(extra, only))
    if not wanted:  # no metadata to read the names from
        return f"install what the extra {extra!r} of {NAME} names"
    return pip_install(*options, *wanted)


def pip_install(*words: str) -> str:
    """`pip install` for the interpreter that runs, whatever `pip` is first on the PATH."""
    python = sys.executable or "python"
    found = Path(shutil.which("python") or "nowhere")
    # The folder counts, not the file alone: the interpreters of all virtual environments are links to one.
    if found.parent == Path(python).parent and found.resolve() == Path(python).resolve():
        python = "python"
    if importlib.util.find_spec("pip"):
        command = [python, "-m", "pip", "install"]
    elif shutil.which("uv"):
        command = ["uv", "pip", "install", "--python", python]
    else:
        command = [python, "-m", "ensurepip", "&&", python, "-m", "pip", "install"]
    return " ".join(word if word == "&&" else _quoted(word) for word in (*command, *words))


def _project() -> dict[str, Any] | None:
    """The `[project]` of the checkout that this file lies in, installed or not; None for a wheel's file."""
    try:
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return None
    return project if project.get("name") == NAME else None


def _here() -> str:
    """The folder of the checkout, as short as it can be named from where the user stands."""
    with suppress(OSError):  # the current folder may be gone
        if Path.cwd().samefile(_ROOT):
            return "."
    return str(_ROOT)


def requirements(extra: str, only: Collection[str]) -> Iterator[str]:
    """What the extra needs on this platform, as pip takes it."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    project = _project()
    if project:
        listed = project["optional-dependencies"][extra]
    else:
        try:
            listed = metadata.requires(NAME) or []
        except metadata.PackageNotFoundError:
            listed = []
    names = {canonicalize_name(name) for name in only}
    for line in listed:
        wanted = Requirement(line)
        marker, wanted.marker = wanted.marker, None
        if marker and not marker.evaluate({"extra": extra}):
            continue
        if not project and (marker is None or marker.evaluate({"extra": ""})):
            continue  # of the core
        if not names or canonicalize_name(wanted.name) in names:
            yield str(wanted)


def _quoted(word: str) -> str:
    if sys.platform == "win32":  # where single quotes are ordinary characters, and < redirects
        return f'"{word}"' if set(word) & set(" <>&|^[],;") else word
    return shlex.quote(word)
