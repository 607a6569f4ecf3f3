"""The MLX engine: one model, its vocabulary and its lanes.

It is an `engine.Engine`. Everything, loading and closing included, is called on one thread, whose very last
call is `library.end_thread`.
"""

from __future__ import annotations

import gc
import glob
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from localagent.errors import EngineFailed, InvalidWeights
from localagent.hosts.engine import CancelCheck, Vocabulary
from localagent.hosts.host import choose_context
from localagent.hosts.memory import Lanes, admit
from localagent.hosts.mlx.batch import advance
from localagent.hosts.mlx.folder import read_folder
from localagent.hosts.mlx.lanes import Context, MlxLane
from localagent.hosts.mlx.library import Library, first_line, library, synchronize
from localagent.hosts.mlx.memory import estimate_mlx
from localagent.hosts.tokenizer import FileVocabulary
from localagent.hosts.tokenizer_files import TokenizerFiles

CHUNK = 256
SPACING = 256


class MlxEngine:
    """A loaded model. `close` frees it."""

    def __init__(
        self, folder: TokenizerFiles, context: int, share: Callable[[str], Lanes], chunk: int = CHUNK
    ) -> None:
        """`share`: says how many lanes there are to be. It is told why the model can have only one, or "".

        Raises InvalidWeights, EngineMissing, EngineFailed, and what `share` raises.
        """
        self._lib = library()
        self._closed = False
        self.context_size = context
        self.chunk = self.batch = chunk
        self.divisible, self.short, self.rewinds = False, 0, False
        self.threads = None  # as many as MLX likes
        self.joint = False  # a chunk is computed in the caches of its lane
        self.spacing = max(1, SPACING // chunk) * chunk
        self.lanes: list[MlxLane] = []
        self._context = _load(self._lib, folder)
        try:
            lanes = share(self._context.caches.obstacle)
            self.capacity = self._context.capacity = lanes.capacity
            self.vocabulary: Vocabulary = FileVocabulary(
                self._lib.Tokenizer, folder, self._context.caches.vocabulary_size
            )
            # The weights are read last, since that takes longest: other faults are reported at once.
            self._context.read_weights()
            self.lanes += [MlxLane(self._context) for _ in range(lanes.count)]
        except BaseException:
            self.close()
            raise

    @classmethod
    def load(cls, path: Path, context: int | None = None, lanes: int = 1) -> MlxEngine:
        """Check the folder and load what is in it, whatever memory there is.

        `context` in tokens, by default what the model was trained with, at most 32,768. Raises UsageError,
        CannotBatch, too.
        """
        folder = read_folder(path)
        context = choose_context(context, folder.context_length)
        estimate = estimate_mlx(folder.path, folder.config, context)
        return cls(folder, context, lambda alone: admit(path.name, estimate, lanes, None, alone))

    def evaluate(self, lanes: Sequence[Any], chunks: Sequence[Sequence[int]], cancelled: CancelCheck) -> bool:
        """Not to be called: see `joint`."""
        raise NotImplementedError

    def advance(self, lanes: Sequence[Any]) -> Sequence[int | EngineFailed]:
        """A token for each lane, computed in one batch as far as they fit into one."""
        return advance(self._context, lanes)

    def rest(self) -> None:
        """Nothing to do: MLX waits asleep."""

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


def _load(lib: Library, folder: TokenizerFiles) -> Context:
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
