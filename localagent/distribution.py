"""The version of localagent, and the commands that install its optional packages.

On the Python package index the name `localagent` belongs to another project, so no command may ask pip for
it: in a checkout the command names the folder, elsewhere the missing packages themselves. Version ranges are
read from pyproject.toml or the wheel's metadata, never repeated here.
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
    """The version of localagent; None for a copy without metadata."""
    if project := _project():
        return str(project["version"])
    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return None


def install_command(extra: str, *, only: Collection[str] = (), options: Sequence[str] = ()) -> str:
    """The shell command that installs an extra's packages into this environment.

    `only`: just these distributions of the extra, to repair a broken one. `options`: options of pip.
    """
    if _project() and not only:
        return pip_install(*options, "-e", f"{_here()}[{extra}]")
    wanted = list(requirements(extra, only))
    if not wanted:  # no metadata to read the names from
        return f"install the packages of the extra {extra!r} of {NAME}"
    return pip_install(*options, *wanted)


def bench_install_command() -> str:
    """The shell command that installs `localagent bench`, which is a distribution of its own."""
    return pip_install("-e", f"{_here()}/benchmarks") if _project() else pip_install("localagent-bench")


def pip_install(*words: str) -> str:
    """`pip install` for the running interpreter, whichever `pip` is first on the PATH."""
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
    """The `[project]` table of the checkout that this file is in; None when it came from a wheel."""
    try:
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return None
    return project if project.get("name") == NAME else None


def _here() -> str:
    """The checkout's folder: "." if that is the current folder, else its full path."""
    with suppress(OSError):  # the current folder may be gone
        if Path.cwd().samefile(_ROOT):
            return "."
    return str(_ROOT)


def requirements(extra: str, only: Collection[str]) -> Iterator[str]:
    """The extra's requirements on this platform, as arguments for pip."""
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
            continue  # a core dependency, which is installed already
        if not names or canonicalize_name(wanted.name) in names:
            yield str(wanted)


def _quoted(word: str) -> str:
    if sys.platform == "win32":  # there single quotes are ordinary characters, and < redirects
        return f'"{word}"' if set(word) & set(" <>&|^[],;") else word
    return shlex.quote(word)
