"""Loading an MLX folder into a host.

The folder and the memory it needs are checked here, before the engine sees it; the rest is `hosts.host`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Self

from localagent.errors import UsageError
from localagent.hosts.host import EngineHost, Identity, Reuse, choose_context
from localagent.hosts.memory import Lanes, admit, available_memory, check_lanes
from localagent.hosts.mlx.engine import CHUNK, MlxEngine
from localagent.hosts.mlx.folder import fingerprint_folder, read_folder
from localagent.hosts.mlx.library import end_thread, library
from localagent.hosts.mlx.memory import estimate_mlx
from localagent.hosts.owner import OwnerThread

log = logging.getLogger(__name__)


class MlxHost(EngineHost):
    """One MLX model. Make it with `load`; close it, or use it as a context manager."""

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        context: int | None = None,
        threads: int | None = None,
        chunk: int | None = None,
        lanes: int | None = None,
        exact: bool = False,
        reuse: Reuse | None = None,
        called: str | None = None,
    ) -> Self:
        """Load the folder at `path`: config.json, model*.safetensors and tokenizer.json. `called`: the name
        of the model in errors, by default that of the folder.

        `context` in tokens, by default what the model was trained with, at most 32,768. `threads` is left
        aside, with a warning: MLX chooses its own. `chunk`: tokens of the prompt computed at once, by
        default 256, and half of them on a CPU, where others wait 0.23 s for those of lfm2-nano. `lanes`: how
        many generations run at once, each with a whole context; by default up to 8, see
        `memory.default_lanes`, and 1 where mlx-lm cannot batch the model's caches. `exact` changes nothing.

        Raises InvalidWeights, EngineMissing, NotEnoughMemory, CannotBatch, UsageError, EngineFailed.
        """
        check_lanes(lanes)
        if threads is not None:
            log.warning("threads=%d is left aside: MLX chooses its own", threads)
        engine = library()  # imports in the caller's thread, as MLX wants it
        if chunk is None:
            chunk = CHUNK if engine.mx.metal.is_available() else CHUNK // 2
        if chunk < 1:
            raise UsageError("chunk must be 1 or more")
        folder = read_folder(Path(path))
        context = choose_context(context, folder.context_length)
        name = folder.path.resolve().name
        estimate = estimate_mlx(folder.path, folder.config, context, chunk=chunk)
        available = available_memory(gpu=True)

        def share(alone: str) -> Lanes:
            return admit(called or name, estimate, lanes, available, alone)

        identity = Identity(
            name=name,
            architecture=folder.architecture,
            chat_template=folder.chat_template,
            engine=f"MLX ({engine.version})",
            fingerprint=lambda: fingerprint_folder(folder.path),
            settings=f"chunk {chunk}",
        )
        owner = OwnerThread(f"mlx-{name}")
        owner.at_end(end_thread)
        return cls(owner, lambda: MlxEngine(folder, context, share, chunk), identity, reuse)
