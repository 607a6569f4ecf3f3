"""Loading a GGUF file on llama.cpp into a host.

The header of the file, the memory it needs and the options of the engine are checked here; the rest is
`hosts.host`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final, Self

from localagent.errors import UsageError
from localagent.hosts.fingerprint import fingerprint
from localagent.hosts.host import EngineHost, Identity, Reuse, choose_context
from localagent.hosts.llamacpp.engine import LlamaCppEngine, Options
from localagent.hosts.llamacpp.gguf import header_size, read_header, weight_files
from localagent.hosts.llamacpp.header import Header
from localagent.hosts.llamacpp.library import cuts_measured, library, version
from localagent.hosts.llamacpp.memory import estimate_gguf
from localagent.hosts.llamacpp.prefill import Prefill, choose_prefill
from localagent.hosts.memory import admit, available_memory, check_lanes
from localagent.hosts.owner import OwnerThread

ONE_THREAD: Final = 4_000_000
"""Up to so many parameters, one thread computes a token in about a millisecond. Several would share it in
pieces of a few microseconds and wait for each other after each, so that another program on one of the cores,
which keeps it for some milliseconds, stops them all for several tokens' time: they gain a third of the speed
of a quiet machine, and lose nine tenths on a busy one.
"""


class LlamaCppHost(EngineHost):
    """One GGUF model on llama.cpp. Make it with `load`; close it, or use it as a context manager."""

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        context: int | None = None,
        threads: int | None = None,
        gpu_layers: int | None = None,
        chunk: int | None = None,
        lanes: int | None = None,
        exact: bool = False,
        reuse: Reuse | None = None,
        called: str | None = None,
    ) -> Self:
        """Load the GGUF file at `path`. `called`: the model's name in errors, by default that of the file.

        `context` in tokens, by default what the model was trained with, at most 32,768. `threads` by default
        the physical cores this process may use, at most `most_threads()`, fewer while other programs compute
        (see `pace`), and one up to `ONE_THREAD` parameters. `gpu_layers` by default all, where the build can
        use a GPU. `chunk`: tokens of the prompt computed at once, by default as the model's size suggests.
        `lanes`: how many generations run at once, each with a whole context; by default up to 8, see
        `memory.default_lanes`. `exact`: see `model.load`.

        Raises InvalidWeights, EngineMissing, NotEnoughMemory, UsageError, EngineFailed.
        """
        check_lanes(lanes)
        library()  # imports in the caller's thread: the first to know that the engine is missing
        file = Path(path)
        header = read_header(file)
        if (chunk is not None and chunk < 1) or (gpu_layers is not None and gpu_layers < -1):
            raise UsageError("chunk must be 1 or more, gpu_layers -1 (all) or more")
        context = choose_context(context, header.context_length)
        name = header.name or file.stem
        offloads = _offloads(gpu_layers)
        prefill = choose_prefill(header, context, chunk, offloads, cuts_measured(), exact)
        # The memory of a graphics card is not known here; Apple's GPU uses the machine's.
        known = sys.platform == "darwin" or not offloads
        admitted = admit(
            called or file.stem,
            estimate_gguf(file, header, context, prefill),
            lanes,
            available_memory() if known else None,
        )
        options = Options(
            context,
            _choose_threads(threads, header.parameters),
            gpu_layers,
            prefill.chunk,
            flash_attention=prefill.flash,
            lanes=admitted.count,
            capacity=admitted.capacity,
            batch_exact=_batch_exact(header, prefill, offloads),
            batch=prefill.batch,
            divisible=prefill.divisible,
            short=prefill.short,
            adapts=threads is None and not offloads,  # a GPU's steps do not tell of the processor
        )
        identity = Identity(
            name=name,
            architecture=header.architecture,
            chat_template=header.chat_template,
            engine=f"llama.cpp (llama-cpp-python {version()})",
            fingerprint=lambda: fingerprint(weight_files(file), header_size),
            # llama.cpp counts the lanes in every state, and refuses one with another number.
            settings=f"{prefill}, gpu layers {gpu_layers}, f16 KV cache, {admitted.count} lanes"
            + ("" if admitted.capacity == admitted.count * context else " in one pool"),
        )
        owner = OwnerThread(f"llamacpp-{file.stem}")
        return cls(owner, lambda: LlamaCppEngine(file, options), identity, reuse)


def _batch_exact(header: Header, prefill: Prefill, offloads: bool) -> bool | None:
    """Whether batches leave the logits as they are (`lanes.Context.exact`); None where that has to be tried.

    Attention sums several rows in another order than one, but for plain attention of weights that are not
    quantized. What a GPU does is not known.
    """
    return None if offloads else not header.quantized and not prefill.flash


def _offloads(gpu_layers: int | None) -> bool:
    """Whether a GPU computes some of the layers."""
    return gpu_layers != 0 and bool(library().llama_supports_gpu_offload())


def _choose_threads(asked: int | None, parameters: int) -> int:
    most = most_threads()
    if asked is None:
        return 1 if parameters <= ONE_THREAD else min(physical_cores(), most)
    if type(asked) is not int or not 1 <= asked <= most:
        raise UsageError(f"threads is {asked!r}: it must be a whole number from 1 to {most} on this machine")
    return asked


def most_threads() -> int:
    """The most threads worth asking for. Far more abort the process (OpenMP); ggml's limit is 512."""
    return min(512, max(64, 4 * (os.cpu_count() or 1)))


def physical_cores() -> int:
    """Cores this process may run on, hyper-threads counted once; on Apple Silicon the fast ones."""
    if sys.platform == "darwin":
        return _apple_fast_cores() or os.cpu_count() or 1
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text())
        except OSError:
            return len(allowed)
    return len(cores)


def _apple_fast_cores() -> int:
    count, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    call = ctypes.CDLL(None).sysctlbyname
    status = call(
        b"hw.perflevel0.physicalcpu", ctypes.byref(count), ctypes.byref(size), None, ctypes.c_size_t(0)
    )
    return count.value if status == 0 else 0
