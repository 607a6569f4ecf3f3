"""The live sequence in llama.cpp: sequence 0 of one context.

It is an `engine.LiveSequence`. After k tokens were drawn, the context holds what was evaluated before and all
of them but the last.

Hybrid models (LFM2) keep a recurrent state beside the KV cache, which cannot be cut. Their checkpoints are
that state, as `llama_state_seq_get_data_ext` with PARTIAL_ONLY gives it; the KV cache of the live sequence is
cut with `llama_memory_seq_rm` when the state has been put back. The engine's own rollback (`n_rs_seq`) gives
wrong logits after token-by-token decoding and is not used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from localagent.errors import EngineFailed
from localagent.hosts.engine import Cancelled, Packed, State
from localagent.hosts.llamacpp.library import forget, reason
from localagent.hosts.llamacpp.sampling import Sampler
from localagent.hosts.sampling import Sampling

_ABORTED = 2  # what llama_decode returns when the abort callback said so
_ALL, _PARTIAL = 0, 1


class LlamaCppSequence:
    """See `engine.LiveSequence`. It must not outlive the context."""

    def __init__(self, native: Any, model: Any, context: Any, vocabulary_size: int) -> None:
        self.ids: list[int] = []
        self._native = native
        self._context = context
        self._memory = native.llama_get_memory(context)
        self._size = vocabulary_size
        self._stateful = native.llama_model_is_hybrid(model) or native.llama_model_is_recurrent(model)
        # The array that a batch points to must live as long as the batch: both are kept and reused.
        self._one = (ctypes.c_int32 * 1)()
        self._batch_of_one = native.llama_batch_get_one(self._one, 1)

    def evaluate(self, ids: Sequence[int], cancelled: Cancelled) -> bool:
        """Append one chunk; on the CPU it can be cancelled on the way, on a GPU before."""
        if cancelled():
            return False
        native = self._native
        # A chunk takes seconds on a slow CPU; chunks of measured length would be no way out, since the sums,
        # and with them the tokens, depend on how the prompt is cut.
        abort = native.ggml_abort_callback(lambda _: cancelled())
        native.llama_set_abort_callback(self._context, abort, None)
        try:
            tokens = (ctypes.c_int32 * len(ids))(*ids)
            done = self._decode(native.llama_batch_get_one(tokens, len(ids)))
            native.llama_synchronize(self._context)
        finally:
            native.llama_set_abort_callback(self._context, native.ggml_abort_callback(), None)
        if done:
            self.ids += ids
        return done and not cancelled()

    def decode(
        self, ids: Sequence[int], sampling: Sampling, history: Sequence[int], cancelled: Cancelled
    ) -> Iterator[int]:
        """Append `ids`, then draw and append one token after the other."""
        with closing(Sampler(self._native, self._context, self._size, sampling)) as sampler:
            if not self.evaluate(ids, cancelled):
                return
            sampler.accept(history)
            draw, decode, append = sampler.draw, self._decode, self.ids.append
            one, batch = self._one, self._batch_of_one
            while True:
                token = draw()
                yield token
                one[0] = token
                decode(batch)
                append(token)

    def logprobs(self) -> Any:
        """The log-softmax of the logits of the last position."""
        import numpy

        logits = self._native.llama_get_logits_ith(self._context, -1)
        if not logits:
            raise EngineFailed("llama.cpp computed no logits")
        values = numpy.ctypeslib.as_array(logits, (self._size,)).astype(numpy.float64)
        values -= values.max()
        return (values - numpy.log(numpy.exp(values).sum())).astype(numpy.float32)

    def checkpoint(self) -> State:
        """The recurrent state; nothing for pure attention."""
        return self._read(_PARTIAL) if self._stateful else State(None, 0)

    def rewind(self, length: int, checkpoint: State) -> bool:
        """Put the recurrent state back and cut the KV cache."""
        if checkpoint.data is None:
            if self._stateful or length > len(self.ids):
                return False
        elif not self._write(checkpoint, _PARTIAL):
            return False
        if not self._native.llama_memory_seq_rm(self._memory, 0, length, -1) or not self._holds(length):
            return False
        del self.ids[length:]
        return True

    def save(self) -> State:
        """The whole sequence."""
        return self._read(_ALL)

    def restore(self, ids: Sequence[int], saved: State) -> bool:
        """Replace the sequence."""
        self.clear()
        if saved.data is None or not self._write(saved, _ALL) or not self._holds(len(ids)):
            self.clear()
            return False
        self.ids[:] = ids
        return True

    def clear(self) -> None:
        """Forget all tokens."""
        self._native.llama_memory_clear(self._memory, False)
        self.ids.clear()

    def pack(self, state: State) -> Packed:
        """llama.cpp's own bytes, or none."""
        return Packed(None, () if state.data is None else (memoryview(state.data).cast("B"),))

    def unpack(self, packed: Packed) -> State:
        """The bytes for llama.cpp, which checks them when they are written back."""
        if packed.layout is not None or len(packed.buffers) > 1:
            raise ValueError("no state of a llama.cpp sequence")
        if not packed.buffers:
            return State(None, 0)
        data = packed.buffers[0]
        return State((ctypes.c_uint8 * len(data)).from_buffer_copy(data), len(data))

    def _decode(self, batch: Any) -> bool:
        """Compute one batch; False when the abort callback ended it. Raises EngineFailed."""
        forget()
        code: int = self._native.llama_decode(self._context, batch)
        if code not in (0, _ABORTED):
            raise EngineFailed(f"llama.cpp gave up computing (code {code}): {reason('no reason given')}")
        return code == 0

    def _holds(self, length: int) -> bool:
        """Whether the engine's own positions agree: a state does not say for how many tokens it is."""
        return bool(self._native.llama_memory_seq_pos_max(self._memory, 0) == length - 1)

    def _read(self, flags: int) -> State:
        native, context = self._native, self._context
        size = native.llama_state_seq_get_size_ext(context, 0, flags)
        data = (ctypes.c_uint8 * size)()
        if native.llama_state_seq_get_data_ext(context, data, size, 0, flags) != size:
            raise EngineFailed("llama.cpp cannot copy the state of a sequence")
        return State(data, size)

    def _write(self, state: State, flags: int) -> bool:
        written = self._native.llama_state_seq_set_data_ext(self._context, state.data, state.nbytes, 0, flags)
        return bool(written == state.nbytes)
