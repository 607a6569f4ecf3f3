"""The MLX engine: one model, its vocabulary and its lanes.

It is an `engine.Engine`. Everything, loading and closing included, is called on one thread, whose very last
call is `library.end_thread`.
"""

from __future__ import annotations

import gc
import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localagent.errors import EngineFailed, InvalidWeights, UsageError
from localagent.hosts.engine import Vocabulary
from localagent.hosts.host import choose_context
from localagent.hosts.mlx.folder import Folder, read_folder
from localagent.hosts.mlx.lanes import Context, MlxLane, advance
from localagent.hosts.mlx.library import Library, first_line, library, synchronize
from localagent.hosts.mlx.vocabulary import MlxVocabulary

CHUNK = 256


class MlxEngine:
    """A loaded model. `close` frees it."""

    def __init__(
        self, folder: Folder, context: int, chunk: int = CHUNK, lanes: int = 1, fewer: bool = False
    ) -> None:
        """`fewer`: where the model can have one lane only, that is no error. `obstacle` says why.

        Raises InvalidWeights, EngineMissing, EngineFailed, UsageError.
        """
        self._lib = library()
        self._closed = False
        self.context_size = context
        self.chunk = chunk
        self.lanes: list[MlxLane] = []
        self._context = _load(self._lib, folder)
        self.obstacle = self._context.caches.obstacle
        """Why the model can have one lane only; None if it can have any number."""
        try:
            if lanes > 1 and self.obstacle is not None:
                if not fewer:
                    raise UsageError(
                        f"{folder.path}: lanes is {lanes}, but this model can have 1 only: {self.obstacle}"
                    )
                lanes = 1
            self.capacity = lanes * context
            self.vocabulary: Vocabulary = MlxVocabulary(
                self._lib, folder, self._context.caches.vocabulary_size
            )
            # The weights are read last, since that takes longest: other faults are reported at once.
            self._context.read_weights()
            self.lanes += [MlxLane(self._context) for _ in range(lanes)]
        except BaseException:
            self.close()
            raise

    @classmethod
    def load(cls, path: Path, context: int | None = None, lanes: int = 1) -> MlxEngine:
        """Check the folder and load what is in it.

        `context` in tokens, by default what the model was trained with, at most 32,768. Raises UsageError,
        too.
        """
        folder = read_folder(path)
        return cls(folder, choose_context(context, folder.context_length), lanes=lanes)

    def advance(self, lanes: Sequence[Any]) -> Sequence[int | EngineFailed]:
        """See `engine.Engine`."""
        return advance(self._context, lanes)

    def close(self) -> None:
        """Free the weights, the caches and every state. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        synchronize(self._lib)
        for lane in self.lanes:
            lane.close()
        self._context.close()
        gc.collect()  # some models refer to themselves
        self._lib.mx.clear_cache()


def _load(lib: Library, folder: Folder) -> Context:
    """The model with its weights yet to be read."""
    path = folder.path
    if glob.escape(str(path)) != str(path):
        raise InvalidWeights(
            f"{path}: mlx-lm finds nothing in a folder with *, ? or [ in its name: rename it"
        )
    try:
        lib.wire_memory()
        return Context(lib, lib.load_model(path, lazy=True)[0])
    except Exception as error:
        text = first_line(error)
        if "not supported" in text:
            text = f"architecture {folder.architecture!r}"
        raise InvalidWeights(f"{path}: unsupported by mlx-lm: {text}") from error
