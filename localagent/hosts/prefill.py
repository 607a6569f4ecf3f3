"""How llama.cpp computes a model here: how many tokens of a prompt at once, and with which attention.

Both depend on the model and the context alone, not on the machine: the tokens depend on them, and a state on
disk is used only where they are the same. The figures were measured on two x86 cores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from localagent.hosts.header import Array, Header

MOST: Final = 256
"""Tokens that are computed at once: more are no faster."""
LEAST: Final = 32
"""Fewer are slower: 16 at once cost a sixth more each, 32 no more than 256."""
LEAST_FLASH: Final = 64
"""Below this llama.cpp's flash attention goes token by token on a CPU: more than twice as slow."""
WORK: Final = 5_000_000_000
"""Parameters times tokens of a chunk: about 0.1 s, for which everybody else waits."""
SCORES: Final = 256 << 20
"""Bytes of attention scores, of a chunk over a whole context, up to which plain attention is worth them.

After 1,000 tokens SmolLM2 takes 1.7 times as long for a token with flash attention; reading a prompt costs
the same with both.
"""


@dataclass(frozen=True, slots=True)
class Prefill:
    """`chunk`: tokens at once. `flash`: whether attention is computed without keeping its scores."""

    chunk: int
    flash: bool


def choose_prefill(header: Header, context: int, chunk: int | None = None, gpu: bool = False) -> Prefill:
    """What suits the model with a context of so many tokens.

    `chunk`: what was asked for. `gpu`: a graphics card computes some of the layers.
    """
    if gpu:
        return Prefill(chunk or MOST, flash=True)
    asked, chunk = chunk, chunk or _chunk(header)
    flash = chunk * context * _heads(header) * 4 > SCORES
    if flash and asked is None:
        chunk = max(chunk, LEAST_FLASH)
    return Prefill(chunk, flash)


def _chunk(header: Header) -> int:
    """A power of two, so that chunks fill the distance between two checkpoints."""
    parameters = sum(math.prod(tensor.shape) for tensor in header.tensors)
    if not parameters:
        return MOST
    fitting = max(1, WORK // parameters)
    return min(MOST, max(LEAST, 1 << (fitting.bit_length() - 1)))


def _heads(header: Header) -> int:
    """Attention heads; of layers that differ the most."""
    value = header.own("attention.head_count")
    values = (value.values or ()) if isinstance(value, Array) else (value,)
    return max((number for number in values if type(number) is int and 0 <= number < 1 << 16), default=0)
