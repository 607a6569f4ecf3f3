"""The header of a GGUF file: metadata keys with their values, and the table of tensors.

`gguf` reads these values from a file, `hyperparameters` judges them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

_FLOATS: Final = (0, 1, 30)
"""ggml's numbers of F32, F16 and BF16."""


@dataclass(frozen=True, slots=True)
class Array:
    """A metadata array: its element type and length, and its values when they are few.

    `span`: the least and the greatest of its numbers, both NaN where one of them is NaN or infinite; of the
    vocabulary, how many bytes the shortest and the longest token have. None where that was not looked at.
    `unspelled`: of the vocabulary, the first byte that no token stands for.
    """

    kind: int
    length: int
    values: tuple[Any, ...] | None
    span: tuple[float, float] | None = None
    unspelled: int | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A record of the table of tensors. `kind`: ggml's number of the type."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """A GGUF header. `metadata` maps keys to numbers, bools, strings and `Array`s."""

    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...] = ()

    @property
    def architecture(self) -> str:
        """Such as "llama" or "lfm2"; the prefix of the model's own keys."""
        return self.text("general.architecture") or ""

    @property
    def chat_template(self) -> str | None:
        """The template's jinja source."""
        return self.text("tokenizer.chat_template")

    @property
    def name(self) -> str | None:
        """The model's name as its maker wrote it."""
        return self.text("general.name")

    @property
    def context_length(self) -> int | None:
        """The context in tokens that the model was trained with."""
        value = self.own("context_length")
        return value if isinstance(value, int) else None

    @property
    def parameters(self) -> int:
        """How many numbers the tensors hold; of a model in several files, those of this one."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def quantized(self) -> bool:
        """Whether any matrix is not made of floating-point numbers of 16 or 32 bits."""
        return any(tensor.kind not in _FLOATS for tensor in self.tensors if len(tensor.shape) > 1)

    def own_key(self, key: str) -> str:
        """The architecture's own key of that name, such as "lfm2.block_count"."""
        return f"{self.architecture}.{key}"

    def own(self, key: str) -> Any:
        """The value under `own_key`, None when there is none."""
        return self.metadata.get(self.own_key(key))

    def text(self, key: str) -> str | None:
        """The string under `key`, None when there is none."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None
