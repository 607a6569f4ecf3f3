"""The MLX engine: one model, its vocabulary and its one live sequence.

It is an `engine.Engine`. Everything, loading and closing included, is called on one thread, whose very last
call is `library.end_thread`.
"""

from __future__ import annotations

import gc
import glob
from pathlib import Path

from localagent.errors import InvalidWeights
from localagent.hosts.engine import LiveSequence, Vocabulary
from localagent.hosts.host import choose_context
from localagent.hosts.mlx.folder import Folder, read_folder
from localagent.hosts.mlx.library import Library, first_line, library, synchronize
from localagent.hosts.mlx.sequence import MlxSequence
from localagent.hosts.mlx.vocabulary import MlxVocabulary

CHUNK = 256


class MlxEngine:
    """A loaded model. `close` frees it."""

    def __init__(self, folder: Folder, context: int, chunk: int = CHUNK) -> None:
        """Raises InvalidWeights, EngineMissing, EngineFailed."""
        self._lib = library()
        self._closed = False
        self.context_size = context
        self.chunk = chunk
        self._sequence = _load(self._lib, folder)
        self.sequence: LiveSequence = self._sequence
        try:
            self.vocabulary: Vocabulary = MlxVocabulary(self._lib, folder, self._sequence.vocabulary_size)
            # The weights are read last, since that takes longest: other faults are reported at once.
            self._sequence.read_weights()
        except BaseException:
            self.close()
            raise

    @classmethod
    def load(cls, path: Path, context: int | None = None) -> MlxEngine:
        """Check the folder and load what is in it.

        `context` in tokens, by default what the model was trained with, at most 32,768. Raises UsageError,
        too.
        """
        folder = read_folder(path)
        return cls(folder, choose_context(context, folder.context_length))

    def close(self) -> None:
        """Free the weights, the caches and every state. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        synchronize(self._lib)
        self._sequence.close()
        gc.collect()  # some models refer to themselves
        self._lib.mx.clear_cache()


def _load(lib: Library, folder: Folder) -> MlxSequence:
    """The model with its weights yet to be read, and an empty sequence of it."""
    path = folder.path
    if glob.escape(str(path)) != str(path):
        raise InvalidWeights(
            f"{path}: mlx-lm finds nothing in a folder with *, ? or [ in its name: rename it"
        )
    try:
        lib.wire_memory()
        return MlxSequence(lib, lib.load_model(path, lazy=True)[0])
    except Exception as error:
        text = first_line(error)
        if "not supported" in text:
            text = f"architecture {folder.architecture!r}"
        raise InvalidWeights(f"{path}: unsupported by mlx-lm: {text}") from error
