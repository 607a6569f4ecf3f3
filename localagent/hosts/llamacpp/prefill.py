"""How llama.cpp computes a model here: how many tokens of a prompt at once, and with which attention.

With plain attention, on a CPU, a prompt has the same logits, bit for bit, wherever it is cut into chunks of
two tokens or more: measured on x86, for the kinds of weights in `_SAME`. With K-quants they are up to 0.6
apart, since llama.cpp rounds activations by groups of four tokens and the rest by themselves. Flash attention
has other kernels for short chunks than for long ones, and one for a lane that is alone and holds 512 tokens
or more, in which the sums depend on the number of threads.

So weights of 16 and 32 bits are computed with plain attention, and quantized ones, whose last bits depend on
who else is computed in any case, with flash attention. That takes less time: of SmolLM2's steps a fifth to a
third where 8 or 16 lanes are drawn together, and up to a tenth of a lane's that is alone.

| ms a step, Q4_0 | plain | flash |
|---|---|---|
| 1 lane at 64, 512, 2,048 tokens | 6.2, 8.1, 16.1 | 5.5, 8.1, 14.2 |
| 8 lanes at 64, 512 | 25.3, 35.5 | 19.5, 29.4 |
| 16 lanes at 64, 512 | 39.2, 74.7 | 27.3, 50.0 |

All depends on the model, the context, the engine's build and on what was asked for, not on how fast the
machine is: the tokens depend on it, and a state on disk is used only where it is the same. The figures were
measured on two x86 cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from localagent.hosts.llamacpp.header import Array, Header

MOST: Final = 256
"""Tokens that are computed at once: more are no faster."""
ALONE: Final = 128
"""Tokens at once while nobody waits for the next token of an answer: 32 cost a seventh more each."""
LEAST: Final = 32
"""Fewer are slower: 16 at once cost a sixth more each, 32 no more than 256."""
LEAST_FLASH: Final = 64
"""Below this llama.cpp's flash attention goes token by token on a CPU: more than twice as slow, and the same
however they are divided.
"""
WORK: Final = 5_000_000_000
"""Parameters times tokens of a chunk: about 0.1 s, for which everybody else waits."""
SCORES: Final = 256 << 20
"""Bytes of attention scores, of a chunk over a whole context, up to which plain attention may keep them."""
_SAME: Final = frozenset({0, 1, 30, 2, 3, 6, 8, 20})
"""ggml's types with which cuts change nothing: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q8_0, IQ4_NL."""
_UNMEASURED: Final = ("expert_count", "ssm.state_size", "ssm.conv_kernel", "wkv.head_size")
"""Keys of models whose prompts are always cut in the same places: experts, which get now several rows of a
chunk and now one, and recurrences that are computed in blocks.
"""


@dataclass(frozen=True, slots=True)
class Prefill:
    """`chunk` and `batch`: tokens at once while others wait for their next token, and while none do.
    `divisible` and `short`: see `engine.Engine`. `flash`: whether attention is computed without keeping its
    scores.
    """

    chunk: int
    batch: int
    flash: bool
    divisible: bool
    short: int = 0


def choose_prefill(
    header: Header,
    context: int,
    chunk: int | None = None,
    gpu: bool = False,
    measured: bool = True,
    exact: bool = False,
) -> Prefill:
    """What suits the model with a context of so many tokens.

    `chunk`: what was asked for, for `batch` too. `gpu`: a graphics card computes some of the layers.
    `measured`: the engine's build is one of those on which cuts were seen to change nothing. `exact`: plain
    attention for quantized weights as well.
    """
    if gpu:
        return Prefill(chunk or MOST, chunk or MOST, flash=True, divisible=False)
    asked, chunk = chunk, chunk or _chunk(header)
    scores = context * _heads(header) * 4
    flash = chunk * scores > SCORES or (header.quantized and not exact)
    alike = measured and _divisible(header)
    divisible, short = alike and not flash, LEAST_FLASH if alike and flash else 0
    batch = chunk
    if asked is None and flash:
        chunk, batch = max(chunk, LEAST_FLASH), MOST
    elif asked is None and divisible and ALONE * scores <= SCORES:
        batch = ALONE
    return Prefill(chunk, max(chunk, batch), flash, divisible, short)


def _chunk(header: Header) -> int:
    """A power of two, so that chunks fill the distance between two checkpoints."""
    if not header.parameters:
        return MOST
    fitting = max(1, WORK // header.parameters)
    return min(MOST, max(LEAST, 1 << (fitting.bit_length() - 1)))


def _divisible(header: Header) -> bool:
    kinds = {tensor.kind for tensor in header.tensors}
    parts = header.metadata.get("split.count", 1)  # the tensors of the other files are not known here
    return kinds <= _SAME and parts in (0, 1) and not any(header.own(key) for key in _UNMEASURED)


def _heads(header: Header) -> int:
    """Attention heads; of layers that differ the most."""
    value = header.own("attention.head_count")
    values = (value.values or ()) if isinstance(value, Array) else (value,)
    return max((number for number in values if type(number) is int and 0 <= number < 1 << 16), default=0)
