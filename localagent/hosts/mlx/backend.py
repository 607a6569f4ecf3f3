"""MLX's row in the table of engines. No engine is imported before one of its functions is called."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localagent.hosts.backend import Advice, Backend, Trial

if TYPE_CHECKING:
    from localagent.hosts.memory.estimate import Estimate
    from localagent.hosts.mlx.host import MlxHost
    from localagent.hosts.tokenizer_files import TokenizerFiles


def _read(path: Path) -> TokenizerFiles:
    from localagent.hosts.mlx.folder import read_folder

    return read_folder(path)


def _estimate(path: Path, context: int) -> Estimate:
    from localagent.hosts.mlx.memory import estimate_folder

    return estimate_folder(path, context)


def _host() -> type[MlxHost]:
    from localagent.hosts.mlx.host import MlxHost

    return MlxHost


def _trial() -> Trial:
    from localagent.hosts.mlx.library import describe, quantize

    # Without Metal, quantized weights take 0.1 s a token.
    return Trial(describe(), partial(_host().load, context=512), quantize, ("8 bit",), slow=True)


def _missing(alone: bool) -> Advice:
    from localagent.distribution import install_command

    if not _apple_silicon():
        return Advice("note", "not installed; it is made for Apple silicon")
    return Advice("problem", "not installed; fast on this machine", install_command(MLX.name))


def _working(facts: Mapping[str, Any], ran: str) -> Advice:
    metal = "Metal" if facts["gpu"] else "no Metal"
    text = (
        f"mlx {facts['version']}, mlx-lm {facts['mlx_lm']}, {ran}, "
        f"{metal} ({', '.join(facts['devices']) or 'devices unknown'})"
    )
    return Advice("ok", text) if facts["gpu"] else Advice("note", f"{text}: slow on the CPU")


def _apple_silicon() -> bool:
    return sys.platform == "darwin" and platform.machine() == "arm64"


MLX = Backend(
    name="mlx",
    title="MLX",
    format="mlx",
    weights="MLX folder (config.json and *.safetensors)",
    takes=Path.is_dir,
    read=_read,
    estimate=_estimate,
    host=_host,
    modules=("mlx", "mlx.core", "mlx_lm"),
    distributions=("mlx", "mlx-lm"),
    gpu=True,
    preferred=_apple_silicon,
    trial=_trial,
    missing=_missing,
    working=_working,
)
