"""The llama.cpp engine: loads one model and makes its one context.

It is an `engine.Engine`; every method is called on the host's owner thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localagent.errors import EngineFailed, InvalidWeights, UsageError
from localagent.hosts.engine import CancelCheck
from localagent.hosts.llamacpp.cores import CORES, Team
from localagent.hosts.llamacpp.lanes import Context, LlamaCppLane, advance, evaluate
from localagent.hosts.llamacpp.library import forget, library, reason
from localagent.hosts.llamacpp.vocabulary import LlamaCppVocabulary

SPACING = 256
"""About how many tokens lie between two checkpoints within a message: it is made a whole number of chunks."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to load. `adapts`: fewer threads compute beside busy programs. `gpu_layers` -1 is all of them.
    `chunk`, `batch`, `divisible` and `short` are those of `engine.Engine`: `batch` is by default `chunk`, and
    the last two hold only if each lane has its own cells.

    `flash_attention` False turns it off; otherwise llama.cpp uses it where it can. `capacity`: the tokens
    that all lanes hold together, by default those of one context. `batch_exact`: see `lanes.Context.exact`.
    """

    context: int
    threads: int
    gpu_layers: int | None = None
    chunk: int = 256
    flash_attention: bool = True
    lanes: int = 1
    capacity: int | None = None
    batch_exact: bool | None = None
    batch: int | None = None
    divisible: bool = False
    short: int = 0
    adapts: bool = False

    @property
    def cells(self) -> int:
        """The tokens that all lanes hold together."""
        return self.context if self.capacity is None else self.capacity


class LlamaCppEngine:
    """An `engine.Engine`: a loaded model and its context."""

    def __init__(self, path: Path, options: Options) -> None:
        self._native = library()
        self._model: Any = None
        self._context: Any = None
        self._team: Team | None = None
        self.chunk = min(options.chunk, options.context)
        self.context_size = options.context
        self.capacity = options.cells
        # One pool of cells only where they are too few for all lanes: in it the sums, and so now and then a
        # token, depend on the cells that a sequence got, and every lane's attention passes over those of all.
        self._pooled = options.cells < options.lanes * options.context
        self.joint = not self._pooled
        # No token may be alone in a chunk, so the last three of a prompt have to fit into one.
        self.divisible = options.divisible and not self._pooled and self.chunk >= 3
        self.short = 0 if self._pooled else options.short
        self.batch = min(options.batch or self.chunk, options.context)
        forget()
        try:
            self._model = self._load_model(path, options)
            self.vocabulary = LlamaCppVocabulary(
                self._native, self._native.llama_model_get_vocab(self._model)
            )
            self._context = self._make_context(path, options)
        except BaseException:
            self.close()
            raise
        most = max(self.batch, options.lanes)
        self._team = Team(self._native, self._context, options.threads, CORES, adapts=options.adapts)
        self._shared = Context(
            self._native,
            self._model,
            self._context,
            self.vocabulary.size,
            most,
            options.batch_exact,
            self._team,
        )
        self.rewinds = not self._shared.stateful
        spacing = max(1, SPACING // self.chunk) * self.chunk
        self.spacing = spacing if self._shared.stateful or not self.divisible else None
        self.lanes = [LlamaCppLane(self._shared, number) for number in range(options.lanes)]

    @property
    def threads(self) -> int | None:
        """The threads that computed last, or would now; None while there is no context."""
        return None if self._team is None else self._team.threads

    def evaluate(self, lanes: Sequence[Any], chunks: Sequence[Sequence[int]], cancelled: CancelCheck) -> bool:
        """Read one chunk in each of `lanes`."""
        return evaluate(self._shared, lanes, chunks, cancelled)

    def advance(self, lanes: Sequence[Any]) -> Sequence[int | EngineFailed]:
        """Draw one token for each of `lanes`."""
        return advance(self._shared, lanes)

    def rest(self) -> None:
        """Leave the cores to other models: see `cores`."""
        if self._team is not None:
            self._team.rest()

    def close(self) -> None:
        """Free the context and the weights. Safe to call twice."""
        self.rest()
        context, self._context = self._context, None
        model, self._model = self._model, None
        if context is not None:
            self._native.llama_free(context)
        if model is not None:
            self._native.llama_model_free(model)

    def _load_model(self, path: Path, options: Options) -> Any:
        native = self._native
        offload = native.llama_supports_gpu_offload()
        if options.gpu_layers and options.gpu_layers > 0 and not offload:
            raise UsageError("gpu_layers is set, but this build of llama.cpp has no GPU support")
        parameters = native.llama_model_default_params()
        parameters.n_gpu_layers = (-1 if offload else 0) if options.gpu_layers is None else options.gpu_layers
        model = native.llama_model_load_from_file(os.fsencode(path), parameters)
        if not model:
            raise InvalidWeights(f"{path}: unsupported by llama.cpp: {reason('no reason given')}")
        if not native.llama_model_has_decoder(model) or native.llama_model_has_encoder(model):
            native.llama_model_free(model)
            raise InvalidWeights(f"{path}: unsupported: not a decoder-only language model")
        return model

    def _make_context(self, path: Path, options: Options) -> Any:
        parameters = self._native.llama_context_default_params()
        parameters.n_ctx = options.cells
        parameters.n_seq_max = options.lanes
        parameters.kv_unified = self._pooled
        parameters.n_batch = parameters.n_ubatch = max(self.batch, options.lanes)
        parameters.n_threads = parameters.n_threads_batch = options.threads
        parameters.no_perf = True
        if not options.flash_attention:
            parameters.flash_attn_type = self._native.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.swa_full = True  # a cut KV cache must still hold what a sliding window has left behind
        context = self._native.llama_init_from_model(self._model, parameters)
        if not context:
            raise EngineFailed(
                f"{path}: llama.cpp cannot make a context of {options.context:,} tokens: "
                f"{reason('too little memory?')}"
            )
        return context
