"""Checks the machine and the files that localagent keeps on it, without using the network."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from localagent.cli.doctor.findings import Finding
from localagent.distribution import install_command, version
from localagent.wording import size_text

if TYPE_CHECKING:
    from localagent.hosts.memory import Machine

LITTLE_DISK: Final = 1 << 30
SETTINGS: Final = {
    "LOCALAGENT_HOME": "the parent of all folders",
    "LOCALAGENT_MODEL": "the model to use where none is named",
    "LOCALAGENT_OFFLINE": "1 forbids the network",
    "HF_HUB_OFFLINE": "1 forbids Hugging Face",
    "LOCALAGENT_MEMORY_CHECK": "0 loads models that do not fit",
    "LOCALAGENT_ENGINE_CHECK": "0 skips the trial of an engine that is new on this machine",
}


def program_findings() -> Iterator[Finding]:
    """localagent, Python and the platform."""
    yield Finding("program", "localagent", "ok", version() or "of unknown version")
    text = f"{platform.python_version()}, {sys.executable}"
    yield Finding("program", "Python", "ok", text, data={"version": platform.python_version()})
    yield Finding("program", "platform", "ok", platform.platform())


def machine_findings(machine: Machine) -> Iterator[Finding]:
    """Memory and processors."""
    text = f"{size_text(machine.total)}, {size_text(machine.available)} available"
    if machine.limit is not None:
        text += f", limited to {size_text(machine.limit)} by a control group"
    if machine.gpu_share is not None:
        text += f", the GPU may use {size_text(machine.gpu_share)}"
    data = {name: getattr(machine, name) for name in ("total", "available", "limit", "gpu_share")}
    yield Finding("machine", "memory", "ok", text, data=data)
    yield _processors()


def _processors() -> Finding:
    import psutil  # type: ignore[import-untyped]

    from localagent.hosts.llamacpp.host import most_threads, physical_cores

    cores, threads = psutil.cpu_count(logical=False), os.cpu_count() or 1
    default = min(physical_cores(), most_threads())
    text = (
        f"{cores or 'unknown'} cores, {threads} threads; "
        f"models run on {default}, on fewer beside busy programs and on 1 if very small, unless --threads "
        "says otherwise"
    )
    return Finding(
        "machine", "CPU", "ok", text, data={"cores": cores, "threads": threads, "default_threads": default}
    )


def folder_findings() -> Iterator[Finding]:
    """The folders: where they are, how much room they take, and whether they can be written."""
    from localagent.errors import UsageError
    from localagent.hosts.prefix.snapshots import default_root as prefixes_root
    from localagent.log import default_folder
    from localagent.session.store import default_root as sessions_root
    from localagent.store.weights import default_root as models_root

    places: dict[str, Callable[[], Path]] = {
        "models": models_root,
        "prefixes": prefixes_root,
        "sessions": sessions_root,
        "logs": default_folder,
    }
    for name, place in places.items():
        try:
            folder = place().absolute()
        except UsageError as error:
            yield Finding("folders", name, "problem", str(error), "unset LOCALAGENT_HOME")
            continue
        yield _folder(name, folder)
        if name == "models":
            yield _disk(folder)


def _folder(name: str, folder: Path) -> Finding:
    from localagent.store.disk import tree_size

    size, there, above = 0, False, _existing(folder)
    with suppress(OSError):  # another user's folder
        size, there = tree_size(folder), folder.is_dir()
    data = {"path": str(folder), "size": size, "exists": there}
    if not above.is_dir() or not os.access(above, os.W_OK):
        text = f"{folder} cannot be written"
        return Finding("folders", name, "problem", text, "export LOCALAGENT_HOME=FOLDER", data)
    return Finding("folders", name, "ok", f"{folder} ({size_text(size) if size else 'empty'})", data=data)


def _disk(folder: Path) -> Finding:
    usage = shutil.disk_usage(_existing(folder))
    text = f"{size_text(usage.free)} free for models"
    data = {"free": usage.free, "total": usage.total}
    if usage.free < LITTLE_DISK:
        return Finding("folders", "disk", "problem", text, "localagent models rm NAME", data)
    return Finding("folders", "disk", "ok", text, data=data)


def _existing(folder: Path) -> Path:
    """The folder, or the closest existing folder above it that we may look into."""
    for each in (folder, *folder.parents):
        with suppress(OSError):
            if each.exists():
                return each
    return Path(folder.anchor)


def setting_findings() -> Iterator[Finding]:
    """Optional packages and environment variables."""
    hub = _version("huggingface_hub")
    yield Finding(
        "settings",
        "huggingface_hub",
        "ok" if hub else "note",
        hub or "not installed: models on Hugging Face cannot be pulled",
        None if hub else install_command("hub"),
        {"version": hub},
    )
    for name, meaning in SETTINGS.items():
        value = os.environ.get(name)
        text = f"{value} ({meaning})" if value else f"not set ({meaning})"
        yield Finding("settings", name, "note" if value else "ok", text, data={"value": value})


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
