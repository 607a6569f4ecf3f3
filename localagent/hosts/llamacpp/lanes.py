"""The lanes in llama.cpp: the sequences of one context.

They are `engine.Lane`s. A token that was drawn is evaluated with the next call of `advance`, those of all
lanes in one batch. Each lane has its own cells, or all share one pool of them: see `engine`.

With weights of 16 or 32 bits, lanes whose numbers follow one another have the same logits, bit for bit, in a
step of any two of them and of all. A lane that is computed alone has others, up to 0.04 apart: ggml
multiplies one row by another kernel, which adds in another order. That decides a near tie, and now and then a
random draw from flat probabilities. A second row that is thrown away would make them equal; it would take
memory for one more lane, and 11 to 65 percent more time for every token of lfm2-nano.

Hybrid models (LFM2) keep a recurrent state beside the KV cache, which cannot be cut. Their checkpoints are
that state, as `llama_state_seq_get_data_ext` with PARTIAL_ONLY gives it; the KV cache of a lane is cut with
`llama_memory_seq_rm` when the state has been put back. The engine's own rollback (`n_rs_seq`) gives wrong
logits after token-by-token decoding and is not used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from localagent.errors import EngineFailed
from localagent.hosts.engine import NOTHING, CancelCheck, Packed, State
from localagent.hosts.llamacpp.cores import Team
from localagent.hosts.llamacpp.library import forget, reason
from localagent.hosts.llamacpp.sampling import Sampler, bound
from localagent.hosts.sampling import Sampling

# What `llama_decode` returns when no cells are free, and when the abort callback said so.
_NO_ROOM, _ABORTED = 1, 2
_ALL, _PARTIAL = 0, 1
_TRIED = 3  # tokens that show whether batches change logits: each has one for every entry of the vocabulary


class Context:
    """A llama.cpp context: one batch that is filled again and again, and the logits of the last one."""

    def __init__(
        self,
        native: Any,
        model: Any,
        context: Any,
        vocabulary_size: int,
        most: int,
        exact: bool | None,
        team: Team,
    ) -> None:
        """`most`: tokens in a batch. `exact`: see the attribute."""
        import numpy

        self.native = native
        self.pointer = context
        self.memory = native.llama_get_memory(context)
        self.size = vocabulary_size
        self._team = team
        self.exact = exact
        """Whether tokens have the same logits in one batch of a sequence as one by one; None: to be tried.

        With many kernels they differ in the last bit. Rounded activations make more of that: with weights of
        16 bits up to a hundredth of a logit, with quantized ones up to a whole one.
        """
        self.stateful = native.llama_model_is_hybrid(model) or native.llama_model_is_recurrent(model)
        # numpy writes the arrays of a batch much faster than ctypes. They must live as long as the batch.
        self._tokens = numpy.zeros(most, numpy.int32)
        self._positions = numpy.zeros(most, numpy.int32)
        self._counts = numpy.ones(most, numpy.int32)
        self._sequences = numpy.zeros(most, numpy.int32)
        places = numpy.arange(most, dtype=numpy.uintp) * self._sequences.itemsize
        self._pointers = (self._sequences.ctypes.data + places).astype(numpy.uintp)
        self._wanted = numpy.zeros(most, numpy.int8)
        self._batch = native.llama_batch(
            token=_pointer(self._tokens, ctypes.c_int32),
            pos=_pointer(self._positions, ctypes.c_int32),
            n_seq_id=_pointer(self._counts, ctypes.c_int32),
            seq_id=_pointer(self._pointers, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._wanted, ctypes.c_int8),
        )
        self._compute = partial(native.llama_decode, context, self._batch)
        self._views: tuple[int, int, Any] = (0, 0, None)
        self.outputs = 0
        """How many chunks the last call of `decode_chunks` was for: each has a row of logits."""
        # The package's own returns a pointer to float, which takes longer to turn into an array than a token
        # takes to find.
        address = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        self._address = address(("llama_get_logits", native._lib))

    def decode_chunk(self, sequence: int, begin: int, ids: Sequence[int], every: bool = False) -> int:
        """Evaluate tokens of one sequence, with the logits of the last or of `every` one: see `_decode`."""
        count = len(ids)
        self._tokens[:count] = ids
        self._positions[:count] = range(begin, begin + count)
        self._sequences[:count] = sequence
        self._wanted[:count] = every
        self._wanted[count - 1] = 1
        return self._decode(count)

    def decode_chunks(self, chunks: Sequence[tuple[int, int, Sequence[int]]]) -> int:
        """Evaluate (sequence, begin, ids) each, with the logits after each of them: see `_decode`."""
        end = 0
        for sequence, begin, ids in chunks:
            start, end = end, end + len(ids)
            self._tokens[start:end] = ids
            self._positions[start:end] = range(begin, begin + len(ids))
            self._sequences[start:end] = sequence
            self._wanted[start:end] = 0
            self._wanted[end - 1] = 1
        self.outputs = len(chunks)
        return self._decode(end)

    def decode_step(self, tokens: Sequence[tuple[int, int, int]]) -> bool:
        """Evaluate one (token, position, sequence) each, with their logits; False when there is no room for
        them.
        """
        for row, (token, position, sequence) in enumerate(tokens):
            self._tokens[row] = token
            self._positions[row] = position
            self._sequences[row] = sequence
        self._wanted[: len(tokens)] = 1
        return self._decode(len(tokens)) == 0

    def logits(self, rows: int) -> Any:
        """numpy float32 [rows, size]: the logits of the last batch. Valid until the next one."""
        import numpy

        address = self._address(self.pointer)
        if not address:
            raise EngineFailed("llama.cpp computed no logits")
        if self._views[:2] != (address, rows):
            array = (ctypes.c_float * (rows * self.size)).from_address(address)
            self._views = (address, rows, numpy.ctypeslib.as_array(array).reshape(rows, self.size))
        return self._views[2]

    def _decode(self, count: int) -> int:
        """What `llama_decode` returns: 0, _NO_ROOM or _ABORTED. Raises EngineFailed."""
        forget()
        self._batch.n_tokens = count
        code = self._team.compute(count, self._compute)
        if code not in (0, _ABORTED) and not (code == _NO_ROOM and count > 1):
            raise EngineFailed(f"llama.cpp gave up computing (code {code}): {reason('no reason given')}")
        return code


class LlamaCppLane:
    """An `engine.Lane`: sequence `number` of a context, which must outlive it."""

    def __init__(self, context: Context, number: int) -> None:
        self.ids: list[int] = []
        self.number = number
        self._context = context
        self._native = context.native
        self._sampler: Sampler | None = None
        self._drawn: int | None = None
        self._row: Any = None
        self._mask: Any = None
        self._otherwise: int | None = None
        self._scored = False
        self._bias: tuple[Any, Any] | None = None
        self.output = 0
        """The row of logits of the chunk evaluated last."""

    def evaluate(self, ids: Sequence[int], cancelled: CancelCheck) -> bool:
        """Append one chunk."""
        return evaluate(self._context, [self], [ids], cancelled)

    def begin(self, sampling: Sampling, history: Sequence[int]) -> None:
        """Make the sampler; the logits are those of the chunk just evaluated."""
        self.end()
        self._sampler = Sampler(self._native, self._context.size, sampling)
        self._scored = sampling.logprobs is not None
        self._bias = sampling.biases if sampling.logit_bias else None
        self._sampler.accept(history)

    def end(self) -> None:
        """Free the sampler."""
        sampler, self._sampler, self._drawn, self._row = self._sampler, None, None, None
        self._mask = None
        if sampler is not None:
            sampler.close()

    @property
    def due(self) -> tuple[int, int, int] | None:
        """The token that was drawn and is to be evaluated, its position and its sequence."""
        return None if self._drawn is None else (self._drawn, len(self.ids), self.number)

    def evaluated(self) -> None:
        """What was due has been evaluated."""
        if self._drawn is not None:
            self.ids.append(self._drawn)
            self._drawn = None

    def draw(self, logits: Any, row: int) -> int:
        """The next token, from a row of the logits of the last batch. Raises EngineFailed."""
        assert self._sampler is not None
        self._row = logits[row]
        mask, self._mask = self._mask, None
        masked = mask is not None and self._otherwise is None
        if self._scored and (masked or self._bias is not None):
            self._row = self._row.copy()  # log-probabilities are those before them
        if self._bias is not None:
            logits[row][self._bias[0]] += self._bias[1]
        if masked:
            bound(logits[row], mask)
        token = self._sampler.draw(logits[row], self._context.pointer, row - len(logits))
        if mask is not None and self._otherwise is not None and not mask[token // 32] >> token % 32 & 1:
            token = self._otherwise
        self._drawn = token
        return token

    def bound(self, mask: Any, otherwise: int | None = None) -> None:
        """The logits are llama.cpp's own, which its samplers read: they are masked there."""
        self._mask, self._otherwise = mask, otherwise

    def force(self, tokens: Sequence[int]) -> None:
        """Evaluate what is due and all of them but the last, which is due then."""
        assert self._sampler is not None
        *chunk, last = tokens if self._drawn is None else (self._drawn, *tokens)
        if chunk and self._context.decode_chunk(self.number, len(self.ids), chunk):
            raise EngineFailed("llama.cpp has no room for what the model has to say")
        self.ids += chunk
        self._drawn, self._row = last, None
        self._sampler.accept(tokens)

    def keep_logits(self) -> None:
        """Copy those of the last token, since the next batch will overwrite them."""
        if self._row is not None:
            self._row = self._row.copy()

    @property
    def can_verify(self) -> bool:
        """Whether a token was drawn and is to be evaluated, and batches are not known to change logits."""
        return self._drawn is not None and self._context.exact is not False

    def verify(self, draft: Sequence[int], last: Callable[[int], bool]) -> Sequence[int]:
        """Evaluate all at once, and take back what was not drawn: a recurrent state goes back to before."""
        assert self._drawn is not None
        context, begin = self._context, len(self.ids)
        before = self.checkpoint()
        tokens = [self._drawn, *draft]
        if context.exact is None:
            context.exact = self._is_exact(tokens[:_TRIED], before)
        # A batch may find no room where a single token does.
        if not context.exact or context.decode_chunk(self.number, begin, tokens, every=True):
            return [_alone(context, self)]
        logits = context.logits(len(tokens))
        drawn: list[int] = []
        for row, expected in enumerate([*draft, None]):
            drawn.append(self.draw(logits, row))
            if drawn[-1] != expected or last(drawn[-1]):
                break
        self.ids += tokens
        kept = tokens[: len(drawn)]
        if len(kept) < len(tokens) and not self._take_back(begin, before, kept):
            raise EngineFailed("llama.cpp cannot take back a draft")
        return drawn

    def _is_exact(self, tokens: Sequence[int], before: State) -> bool:
        """Evaluate `tokens` in one batch and one by one, and take them back."""
        context, begin = self._context, len(self.ids)

        def logits(position: int, ids: Sequence[int]) -> Any:
            if context.decode_chunk(self.number, position, ids, every=True):
                raise EngineFailed("llama.cpp has no room for a draft")
            return context.logits(len(ids)).copy()

        def go_back() -> None:
            self.ids += tokens
            if not self.rewind(begin, before):
                raise EngineFailed("llama.cpp cannot take back a draft")

        together = logits(begin, tokens)
        go_back()
        alone = [logits(begin + number, [token])[0] for number, token in enumerate(tokens)]
        go_back()
        return all((one == other).all() for one, other in zip(together, alone, strict=True))

    def _take_back(self, begin: int, before: State, kept: Sequence[int]) -> bool:
        if before.data is None:
            return self.rewind(begin + len(kept), before)
        if not self.rewind(begin, before) or self._context.decode_chunk(self.number, begin, kept):
            return False
        self.ids += kept
        return True

    def logprobs(self) -> Any:
        """The log-softmax of the logits from which the last token was drawn."""
        import numpy

        values = self._row.astype(numpy.float64)
        values -= values.max()
        return (values - numpy.log(numpy.exp(values).sum())).astype(numpy.float32)

    def checkpoint(self) -> State:
        """The recurrent state; nothing for pure attention."""
        return self._read(_PARTIAL) if self._context.stateful else NOTHING

    def rewind(self, length: int, checkpoint: State) -> bool:
        """Put the recurrent state back and cut the KV cache."""
        if checkpoint.data is None:
            if self._context.stateful or length > len(self.ids):
                return False
        elif not self._write(checkpoint, _PARTIAL):
            return False
        memory = self._context.memory
        if not self._native.llama_memory_seq_rm(memory, self.number, length, -1) or not self._holds(length):
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

    def fork(self, other: LlamaCppLane, length: int, checkpoint: State | None) -> bool:
        """Copy what the other lane holds, and cut off what is too much.

        `llama_memory_seq_cp` would copy all cells of a context, used or not, and only with the next batch.
        """
        if not self.restore(other.ids, other.save()):
            return False
        return checkpoint is None or self.rewind(length, checkpoint)

    def clear(self) -> None:
        """Forget all tokens."""
        self._native.llama_memory_seq_rm(self._context.memory, self.number, -1, -1)
        self.ids.clear()

    def pack(self, state: State) -> Packed:
        """llama.cpp's own bytes, or none."""
        return Packed(None, () if state.data is None else (memoryview(state.data).cast("B"),))

    def unpack(self, packed: Packed) -> State:
        """The bytes for llama.cpp, which checks them when they are written back."""
        if packed.layout is not None or len(packed.buffers) > 1:
            raise ValueError("no state of a llama.cpp sequence")
        if not packed.buffers:
            return NOTHING
        data = packed.buffers[0]
        return State((ctypes.c_uint8 * len(data)).from_buffer_copy(data), len(data))

    def _holds(self, length: int) -> bool:
        """Whether the engine's own positions agree: a state does not say for how many tokens it is."""
        return bool(self._native.llama_memory_seq_pos_max(self._context.memory, self.number) == length - 1)

    def _read(self, flags: int) -> State:
        native, context = self._native, self._context.pointer
        size = native.llama_state_seq_get_size_ext(context, self.number, flags)
        data = (ctypes.c_uint8 * size)()
        if native.llama_state_seq_get_data_ext(context, data, size, self.number, flags) != size:
            raise EngineFailed("llama.cpp cannot copy the state of a sequence")
        return State(data, size)

    def _write(self, state: State, flags: int) -> bool:
        write = self._native.llama_state_seq_set_data_ext
        return bool(
            write(self._context.pointer, state.data, state.nbytes, self.number, flags) == state.nbytes
        )


def evaluate(
    context: Context, lanes: Sequence[LlamaCppLane], chunks: Sequence[Sequence[int]], cancelled: CancelCheck
) -> bool:
    """`Engine.evaluate`: one batch, which can be cancelled on the CPU while it is computed, on a GPU before.

    llama.cpp computes together chunks of one length, of lanes whose numbers follow one another.
    """
    if cancelled():
        return False
    native = context.native
    parts = sorted(zip(lanes, chunks, strict=True), key=lambda part: part[0].number)
    # A chunk may take seconds on a slow CPU.
    abort = native.ggml_abort_callback(lambda _: cancelled())
    native.llama_set_abort_callback(context.pointer, abort, None)
    try:
        code = context.decode_chunks([(lane.number, len(lane.ids), ids) for lane, ids in parts])
        native.llama_synchronize(context.pointer)
    finally:
        native.llama_set_abort_callback(context.pointer, native.ggml_abort_callback(), None)
    if code == _NO_ROOM:
        raise EngineFailed("llama.cpp has no room for the prompt")
    if code:
        return False
    for row, (lane, ids) in enumerate(parts):
        lane.ids += ids
        lane.output = row
    return not cancelled()


def advance(context: Context, lanes: Sequence[LlamaCppLane]) -> list[int | EngineFailed]:
    """`Engine.advance`: one batch for all lanes, or one for each where there is no room for that."""
    if len(lanes) == 1 and lanes[0].due is not None:  # nothing to bring into order, most of the time
        return [_or_error(_alone, context, lanes[0])]
    numbers = [lane.number for lane in lanes]
    if numbers != sorted(numbers):  # llama.cpp computes together only those whose numbers follow one another
        order = sorted(range(len(lanes)), key=numbers.__getitem__)
        drawn_in_order = advance(context, [lanes[index] for index in order])
        return [token for _, token in sorted(zip(order, drawn_in_order, strict=True), key=itemgetter(0))]
    due = [lane.due for lane in lanes]
    steps = [step for step in due if step is not None]
    if steps and not context.decode_step(steps):
        return [_or_error(_alone_of_many, context, lane) for lane in lanes]
    logits = context.logits(len(lanes) if steps else context.outputs)
    for lane in lanes:
        lane.evaluated()
    rows = range(len(lanes)) if steps else [lane.output for lane in lanes]
    return [_or_error(lane.draw, logits, row) for lane, row in zip(lanes, rows, strict=True)]


def _alone(context: Context, lane: LlamaCppLane) -> int:
    """Evaluate what is due in one lane, and draw. Raises EngineFailed."""
    due = lane.due
    assert due is not None
    context.decode_step([due])
    lane.evaluated()
    return lane.draw(context.logits(1), 0)


def _alone_of_many(context: Context, lane: LlamaCppLane) -> int:
    """Evaluate and draw in one lane, and keep the logits, from which log-probabilities come. Raises
    EngineFailed.
    """
    token = _alone(context, lane)
    lane.keep_logits()
    return token


def _or_error(draw: Callable[..., int], *arguments: Any) -> int | EngineFailed:
    """What is drawn, or what goes wrong in this one lane."""
    try:
        return draw(*arguments)
    except EngineFailed as error:
        return error


def _pointer(array: Any, kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
