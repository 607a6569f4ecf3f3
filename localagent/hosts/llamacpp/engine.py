"""The llama.cpp engine: one model, one context, and the loop of prefill and decode.

Knows llama.cpp's low-level functions. Knows nothing of templates, threads or queues: every method is called
on the host's owner thread. Contract: `generate` yields every token it samples, the end token included, and
returns a `Finish`. Which tokens the context holds after k yields: the prompt and k - 1 tokens.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from localagent.errors import EngineFailed, InvalidWeights, UsageError
from localagent.hosts.llamacpp.library import forget, library, reason
from localagent.hosts.llamacpp.sampling import Sampler
from localagent.hosts.llamacpp.vocabulary import Vocabulary
from localagent.hosts.protocol import Finish, Sampling, StopReason, Timings, Token
from localagent.hosts.utf8 import TokenText

_ABORTED = 2  # what llama_decode returns when the abort callback said so


@dataclass(frozen=True, slots=True)
class Options:
    """How to load. `gpu_layers` -1 is all of them; `batch` is the longest prefill chunk, in tokens."""

    context: int
    threads: int
    gpu_layers: int | None = None
    batch: int = 512


class Engine:
    """A loaded model and its context. `close` frees both."""

    def __init__(self, path: Path, options: Options) -> None:
        self._native = library()
        self._model: Any = None
        self._context: Any = None
        self.batch = min(options.batch, options.context)
        self.context_size = options.context
        forget()
        try:
            self._model = self._load_model(path, options)
            self.vocabulary = Vocabulary(self._native, self._native.llama_model_get_vocab(self._model))
            self._context = self._make_context(path, options)
        except BaseException:
            self.close()
            raise
        self._memory = self._native.llama_get_memory(self._context)
        # The array behind a batch must live as long as the batch: both are kept and reused.
        self._one = (ctypes.c_int32 * 1)()
        self._batch_of_one = self._native.llama_batch_get_one(self._one, 1)

    def close(self) -> None:
        """Free the context and the weights. Safe to call twice."""
        context, self._context = self._context, None
        model, self._model = self._model, None
        if context is not None:
            self._native.llama_free(context)
        if model is not None:
            self._native.llama_model_free(model)

    def generate(
        self, ids: Sequence[int], sampling: Sampling, cancelled: Callable[[], bool]
    ) -> Generator[Token, None, Finish]:
        """Prefill `ids` and sample until an end token, a limit, or until `cancelled()`.

        The timings leave out the time in which the consumer holds the generator.
        """
        run = _Run(prompt=len(ids))
        text = TokenText(self.vocabulary.piece)
        with closing(Sampler(self._native, self._context, self.vocabulary.size, sampling)) as sampler:
            if not self._prefill(ids, cancelled, run):
                return run.finish("cancelled")
            sampler.accept(ids)
            yield from self._decode_loop(sampler.draw, text, sampling.max_tokens, cancelled, run)
            yield from text.close()
            return run.finish(run.stop_reason)

    def _prefill(self, ids: Sequence[int], cancelled: Callable[[], bool], run: _Run) -> bool:
        """Decode the prompt in chunks; False when cancelled in between, or on the CPU within one."""
        # Reusing a cached prefix would begin here: keep what matches instead of clearing, and count it.
        started = perf_counter()
        native = self._native
        native.llama_memory_clear(self._memory, False)
        # A chunk takes seconds on a slow CPU; chunks of measured length would be no way out, since the sums,
        # and with them the tokens, depend on how the prompt is cut.
        abort = native.ggml_abort_callback(lambda _: cancelled())
        native.llama_set_abort_callback(self._context, abort, None)
        try:
            for begin in range(0, len(ids), self.batch):
                chunk = ids[begin : begin + self.batch]
                tokens = (ctypes.c_int32 * len(chunk))(*chunk)
                if cancelled() or not self._decode(native.llama_batch_get_one(tokens, len(chunk))):
                    return False
            native.llama_synchronize(self._context)
            return not cancelled()
        finally:
            native.llama_set_abort_callback(self._context, native.ggml_abort_callback(), None)
            run.prefill = perf_counter() - started

    def _decode_loop(
        self,
        draw: Callable[[], int],
        text: TokenText,
        max_tokens: int | None,
        cancelled: Callable[[], bool],
        run: _Run,
    ) -> Generator[Token, None, None]:
        room = self.context_size - run.prompt
        limit = room + 1 if max_tokens is None else min(max_tokens, room + 1)
        one, batch, decode, piece = self._one, self._batch_of_one, self._decode, self.vocabulary.piece
        while True:
            started = perf_counter()
            if run.generated:
                decode(batch)
            token = draw()
            run.decode += perf_counter() - started
            run.generated += 1
            yield from text.feed(token)
            if piece(token).end:
                run.stop_reason = "stop"
                return
            if run.generated >= limit:
                run.stop_reason = "length"
                return
            if cancelled():
                return
            one[0] = token

    def _decode(self, batch: Any) -> bool:
        """Compute one batch; False when the abort callback ended it. Raises EngineFailed."""
        forget()
        code: int = self._native.llama_decode(self._context, batch)
        if code not in (0, _ABORTED):
            raise EngineFailed(f"llama.cpp gave up computing (code {code}): {reason('no reason given')}")
        return code == 0

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
        parameters.n_ctx = options.context
        parameters.n_batch = parameters.n_ubatch = self.batch
        parameters.n_threads = parameters.n_threads_batch = options.threads
        parameters.no_perf = True
        context = self._native.llama_init_from_model(self._model, parameters)
        if not context:
            raise EngineFailed(
                f"{path}: llama.cpp cannot make a context of {options.context:,} tokens: "
                f"{reason('too little memory?')}"
            )
        return context


@dataclass(slots=True)
class _Run:
    """The counts of the generation under way."""

    prompt: int
    generated: int = 0
    prefill: float = 0.0
    decode: float = 0.0
    stop_reason: StopReason = "cancelled"

    def finish(self, stop_reason: StopReason) -> Finish:
        return Finish(stop_reason, self.prompt, 0, self.generated, Timings(self.prefill, self.decode))
