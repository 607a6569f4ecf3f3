"""Refuses to load a model that does not fit into memory, and suggests what would fit."""

from __future__ import annotations

from collections.abc import Callable

from localagent.errors import NotEnoughMemory
from localagent.hosts.memory.estimate import Estimate
from localagent.hosts.memory.machine import available_memory
from localagent.settings import MEMORY_CHECK, switched_off
from localagent.wording import size_text


def memory_checked() -> bool:
    """Whether to check memory before loading: unless LOCALAGENT_MEMORY_CHECK is 0, no, off or false.

    Turn it off if you know better than the estimate.
    """
    return not switched_off(MEMORY_CHECK)


def check_memory(name: str, estimate: Callable[[int], Estimate], context: int, *, gpu: bool = False) -> None:
    """Call `require_memory` with the memory available now, unless the check is off. Hosts do so first.

    `estimate`: from a context in tokens to the model's need. `gpu`: see `available_memory`. Raises
    NotEnoughMemory, and what `estimate` raises.
    """
    if memory_checked():
        require_memory(name, estimate(context), available_memory(gpu=gpu))


def require_memory(name: str, estimate: Estimate, available: int) -> None:
    """Raise NotEnoughMemory unless `estimate` fits into `available` bytes. `name`: the model's.

    Weights mapped from a file count in full: the system could drop their pages, but every token needs them
    all again. The message says what is needed, what there is and what would fit.
    """
    if estimate.total <= available:
        return
    raise NotEnoughMemory(
        f"{name} needs about {size_text(estimate.total)} of memory with a context of {estimate.context:,} "
        f"tokens ({_parts(estimate)}), but only {size_text(available)} are available: "
        f"{_advice(estimate, available)} "
        f"({MEMORY_CHECK}=0 loads it anyway)"
    )


def _parts(estimate: Estimate) -> str:
    parts = {
        "weights": estimate.weights,
        "KV cache": estimate.kv_cache,
        "state": estimate.state,
        "compute": estimate.compute,
    }
    return ", ".join(f"{name} {size_text(size)}" for name, size in parts.items() if size)


def _advice(estimate: Estimate, available: int) -> str:
    fits = estimate.largest_context(available)
    if fits is not None and fits < estimate.context:
        return f"a context of {fits:,} tokens would fit: context={fits} or --context {fits}"
    if estimate.weights > available:
        return "the weights alone do not fit: choose a smaller model or a smaller quantization"
    return "not even a short context fits: free memory, or choose a smaller model or quantization"
