"""What the models of the catalogue take on this machine, and which of them to propose.

Of weights that are here, their header tells it. Of others the catalogue does, about: the size of the file, or
else the number of parameters, and the KV cache for a token of context.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from localagent.wording import size_text

if TYPE_CHECKING:
    from localagent.catalog import Catalog, ModelSpec
    from localagent.hosts.backends import BackendName
    from localagent.store import WeightStore

_BITS: Final = {"4bit": 4.5, "8bit": 8.5, "Q4_K_M": 5.0, "Q4_1": 5.0, "Q8_0": 8.5}
"""Bits that a parameter takes, with the scales of its block, by what the name of the source says."""
_BESIDE: Final = 64_000_000
"""Bytes for the vocabulary and one step of computing, beside weights and KV cache."""
_SHARE: Final = 0.6
"""How much of the free memory a proposed model may take: other programs need some, too."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that a model takes: `size` on the disk, `memory` once loaded with one lane of `context` tokens.

    None where nobody knows. `exact`: the weights are here and say it.
    """

    size: int | None
    memory: int | None
    context: int
    exact: bool = False

    def told(self, size: int | None) -> str:
        """One of the two, for people."""
        return "" if size is None else f"{'' if self.exact else '~'}{size_text(size)}"


def need(spec: ModelSpec, backend: BackendName, store: WeightStore) -> Need:
    """What the model takes with the context that `load` chooses."""
    from localagent.cli.doctor.models import DEFAULT_CONTEXT, estimate_weights
    from localagent.errors import LocalAgentError

    context = min(spec.context, DEFAULT_CONTEXT)
    size = store.size(spec, backend)
    if (path := store.find(spec, backend)) is not None:
        try:
            estimate = estimate_weights(path, spec.context)
            return Need(size, estimate.total, estimate.context, exact=True)
        except LocalAgentError:
            return Need(size, None, context, exact=True)
    if size is None and spec.parameters is not None:
        size = round(spec.parameters * _bits(spec, backend) / 8)
    if size is None or spec.kv_per_token is None:
        return Need(size, None, context)
    return Need(size, size + context * spec.kv_per_token + _BESIDE, context)


def proposals(catalog: Catalog, store: WeightStore, most: int = 3) -> list[tuple[ModelSpec, Need]]:
    """The models to propose for this machine, the best first: the largest that fit into its memory."""
    from localagent.hosts.backends import BACKENDS
    from localagent.hosts.memory import available_memory

    found = []
    for spec in catalog:
        if spec.suggested:
            backend = spec.preferred_backend()
            takes = need(spec, backend, store)
            free = available_memory(gpu=BACKENDS[backend].gpu)
            if takes.memory is not None and takes.memory <= _SHARE * free:
                found.append((spec, takes))
    return sorted(found, key=lambda each: each[1].memory or 0, reverse=True)[:most]


def _bits(spec: ModelSpec, backend: BackendName) -> float:
    source = spec.sources[backend]
    named = " ".join(str(value) for value in source.model_dump().values())
    found = (bits for name, bits in _BITS.items() if re.search(re.escape(name), named, re.IGNORECASE))
    return next(found, 16.0)
