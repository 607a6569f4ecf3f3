"""The one place that imports mlx, mlx_lm, tokenizers and numpy.

`library()` returns the parts that the adapter uses, or raises EngineMissing. Call it first on the main
thread: if another thread imports MLX first, the main thread has no streams. Arrays belong to the thread that
made them.
"""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from localagent.distribution import install_command
from localagent.errors import EngineMissing, UsageError

_lock = threading.Lock()
_loaded: Library | None = None
_process: int | None = None
"""Who imported it, or is about to."""


@dataclass(frozen=True, slots=True)
class Library:
    """What the adapter uses: modules, functions and classes, under their own names."""

    mx: Any
    numpy: Any
    tree_map: Any
    generation_stream: Any
    load_model: Any
    wire_memory: Any
    """Lets macOS keep the weights of large models in memory; does nothing elsewhere."""
    make_prompt_cache: Any
    KVCache: Any
    RotatingKVCache: Any
    ArraysCache: Any
    CacheList: Any
    Tokenizer: Any
    version: str
    """Of mlx and mlx-lm: packed states are exact for the same one only."""


def library() -> Library:
    """The packages, imported once. Raises EngineMissing, and UsageError in a fork of a process that did it.

    MLX would wait there for ever for threads that did not survive the fork.
    """
    global _loaded, _process  # noqa: PLW0603  (one engine per process)
    _process = _process or os.getpid()
    if _process != os.getpid():  # before the lock, which another thread may have held at the fork
        raise UsageError(
            f"MLX was loaded in another process ({_process}) before a fork, and works there alone: load "
            "models in processes that are started anew, as by multiprocessing's spawn"
        )
    with _lock:
        if _loaded is None:
            try:
                _loaded = _import()
            except Exception as error:  # a broken installation raises anything, often no ImportError
                raise EngineMissing(
                    f"MLX is not installed: {install_command('mlx')} [{first_line(error)}]"
                ) from error
        return _loaded


def describe() -> dict[str, Any]:
    """What the engine says of itself, for people and reports: versions and devices."""
    mx = library().mx
    return {
        "version": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "gpu": bool(mx.metal.is_available()),
        "devices": [str(mx.default_device())],
    }


def quantize(source: Path, target: Path, kind: str) -> Path:
    """Write the MLX folder `source` to the new folder `target` with weights as `kind`: "8 bit", "4 bit"."""
    from mlx_lm.utils import quantize_model, save_config, save_model

    model, config = library().load_model(source)
    model, config = quantize_model(model, config, group_size=64, bits=int(kind.removesuffix(" bit")))
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors*", "config.json"))
    save_model(target, model)
    save_config(config, target / "config.json")
    return target


def end_thread() -> None:
    """The last MLX call on an owner thread, after every array of it is gone.

    Without it the process may abort at exit, or when the thread's streams are torn down under running work.
    """
    loaded = _loaded
    if loaded is not None:
        synchronize(loaded)
        loaded.mx.clear_cache()
        loaded.mx.clear_streams()


def synchronize(loaded: Library) -> None:
    """Wait for everything that this thread has asked MLX to compute."""
    loaded.mx.synchronize(loaded.generation_stream)
    loaded.mx.synchronize()


def first_line(error: BaseException) -> str:
    """What an engine says about an error, cut to one line."""
    lines = (line for line in str(error).splitlines() if line.strip())
    return next(lines, type(error).__name__)[:300]


def _import() -> Library:
    import mlx.core as mx
    import numpy
    from mlx.utils import tree_map
    from mlx_lm.generate import generation_stream
    from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache, make_prompt_cache
    from mlx_lm.utils import load_model, maybe_set_recommended_wired_limit
    from tokenizers import Tokenizer

    return Library(
        mx=mx,
        numpy=numpy,
        tree_map=tree_map,
        generation_stream=generation_stream,
        load_model=load_model,
        wire_memory=maybe_set_recommended_wired_limit,
        make_prompt_cache=make_prompt_cache,
        KVCache=KVCache,
        RotatingKVCache=RotatingKVCache,
        ArraysCache=ArraysCache,
        CacheList=CacheList,
        Tokenizer=Tokenizer,
        version=f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')}",
    )
