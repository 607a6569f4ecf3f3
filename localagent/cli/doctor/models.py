"""Checks the models on this machine: whether they are complete, and whether they fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from localagent.cli.doctor.findings import Finding
from localagent.wording import size_text

if TYPE_CHECKING:
    from localagent.catalog import ModelSpec
    from localagent.hosts.backends import BackendName
    from localagent.hosts.memory import Estimate, Machine
    from localagent.store import WeightStore

DEFAULT_CONTEXT = 32_768
"""The largest context in tokens that `load` chooses by itself."""


def model_findings(machine: Machine) -> Iterator[Finding]:
    """Every model that is here, complete or not, and always the catalogue's default."""
    from localagent.catalog import load_catalog
    from localagent.errors import LocalAgentError
    from localagent.store import WeightStore
    from localagent.store.repository import installed

    try:
        store, catalog = WeightStore(), load_catalog()
    except LocalAgentError as error:
        yield Finding("models", "store", "problem", str(error), "unset LOCALAGENT_HOME")
        return
    told = set()
    try:
        for spec in (*catalog, *installed(store)):
            for backend in spec.backends:
                if store.holds(spec, backend) or store.find(spec, backend):  # a path
                    told.add(spec.name)
                    yield _model(spec, backend, store, machine)
    except OSError as error:
        text = f"{store.root} cannot be read: {error.strerror or error}"
        yield Finding("models", "store", "problem", text, "export LOCALAGENT_HOME=FOLDER")
    else:
        if catalog.default.name not in told:
            yield _default(catalog.default, store, machine)


def _model(spec: ModelSpec, backend: BackendName, store: WeightStore, machine: Machine) -> Finding:
    from localagent.errors import HashMismatch, LocalAgentError

    name = f"{spec.name} ({backend})"
    data = {"model": spec.name, "backend": backend, "verified": False, "size": store.size(spec, backend)}
    pull = f"localagent models pull {spec.name} --backend {backend}"
    try:
        path = store.require(spec, backend)
    except HashMismatch:
        return Finding("models", name, "problem", "damaged: not the files that were verified", pull, data)
    except LocalAgentError:
        part = store.partial_size(spec, backend)
        text = f"unfinished: {size_text(part)} fetched so far" if part else "not verified"
        return Finding("models", name, "note", text, pull, data)
    data["verified"], data["path"] = True, str(path)
    text = f"{size_text(store.size(spec, backend))}, verified"
    try:
        estimate = estimate_weights(path, spec.context)
    except LocalAgentError as error:
        return Finding("models", name, "problem", f"{text}, but {error}", pull, data)
    return _fit(name, text, estimate, backend, machine, data)


def estimate_weights(path: Path, trained: int) -> Estimate:
    """The memory that the weights at `path` need with the context that `load` chooses and one lane.

    `trained`: the context in tokens that the model was trained with. Raises InvalidWeights.
    """
    from localagent.hosts.backends import backend_for

    return backend_for(path).estimate(path, min(trained, DEFAULT_CONTEXT))


def _fit(
    name: str, text: str, estimate: Estimate, backend: str, machine: Machine, data: dict[str, object]
) -> Finding:
    from localagent.hosts.backends import BACKENDS
    from localagent.hosts.memory import available_memory, default_lanes

    available = available_memory(gpu=BACKENDS[backend].gpu, machine=machine)
    fits = estimate.largest_context(available)
    context = min(fits or 0, estimate.context)
    data |= {"context": estimate.context, "memory": estimate.total, "fitting_context": context}
    text += f"; needs {size_text(estimate.total)} of memory with {estimate.context:,} tokens of context"
    if estimate.total <= available:
        lanes = default_lanes(estimate, available)
        data["lanes"] = asdict(lanes)
        return Finding("models", name, "ok", f"{text}: fits, with {lanes}", data=data)
    if context:
        fix = f"localagent chat --model {data['model']} --context {context}"
        return Finding("models", name, "note", f"{text}: only {context:,} tokens fit now", fix, data)
    return Finding(
        "models", name, "note", f"{text}: does not fit now", "localagent models list  # smaller ones", data
    )


def _default(spec: ModelSpec, store: WeightStore, machine: Machine) -> Finding:
    """The finding for a default model that is not here, which `run` and `chat` would fetch."""
    backend = spec.preferred_backend()
    size = store.size(spec, backend)
    room = "fits into memory" if size is None or size < machine.available else "does not fit into memory now"
    text = f"the default model, not here yet; {size_text(size)}, {room}"
    return Finding(
        "models", spec.name, "note", text, f"localagent models pull {spec.name}",
        {"model": spec.name, "backend": backend, "verified": False, "size": size},
    )  # fmt: skip
