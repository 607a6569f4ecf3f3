"""What llama.cpp says of itself, and what follows from it; and which layers a graphics card may have."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from localagent.errors import UsageError
from localagent.hosts.llamacpp import library as module
from localagent.hosts.llamacpp.host import LlamaCppHost, _offloads
from localagent.nano import GGUF


class Function(SimpleNamespace):
    """A function of a C library, whose types are declared before it is called."""

    def __call__(self, *arguments: Any) -> Any:
        assert self.restype is not None
        return self.run(*arguments)


def ggml(*devices: tuple[bytes | None, bytes]) -> SimpleNamespace:
    """A library with these devices, by name and description."""
    return SimpleNamespace(
        ggml_backend_dev_count=Function(run=lambda: len(devices)),
        ggml_backend_dev_get=Function(run=lambda number: number),
        ggml_backend_dev_name=Function(run=lambda device: devices[device][0]),
        ggml_backend_dev_description=Function(run=lambda device: devices[device][1]),
    )


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(*devices: tuple[bytes | None, bytes]) -> None:
        package = SimpleNamespace(libggml=ggml(*devices))
        monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(_ggml=package))
        monkeypatch.setitem(sys.modules, "llama_cpp._ggml", package)

    return made


def test_what_the_engine_computes_on(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found((b"CPU", b" Some CPU  "), (b"CUDA0", b"Some \xff card"), (None, b"odd"))
    assert module._devices() == ["CPU: Some CPU", "CUDA0: Some \ufffd card", ": odd"]
    library = sys.modules["llama_cpp._ggml"].libggml
    assert library.ggml_backend_dev_count.restype is ctypes.c_size_t
    assert library.ggml_backend_dev_get.restype is ctypes.c_void_p
    assert library.ggml_backend_dev_get.argtypes == [ctypes.c_size_t]
    for ask in (library.ggml_backend_dev_name, library.ggml_backend_dev_description):
        assert (ask.restype, ask.argtypes) == (ctypes.c_char_p, [ctypes.c_void_p])
    monkeypatch.setitem(sys.modules, "llama_cpp._ggml", None)
    assert module._devices() == [], "another version does not tell"
    monkeypatch.setitem(sys.modules, "llama_cpp._ggml", SimpleNamespace(libggml=SimpleNamespace()))
    assert module._devices() == []


@pytest.mark.parametrize("offloads", [0, 1])
def test_what_is_reported_of_a_build(found: Any, monkeypatch: pytest.MonkeyPatch, offloads: int) -> None:
    native = SimpleNamespace(
        llama_print_system_info=lambda: (
            b"CPU : SSE3 = 1 | AVX2 = 1 | AMX_INT8 = 0 | OPENMP = 1 | N = 10 | \xff |"
        ),
        llama_supports_gpu_offload=lambda: offloads,
    )
    monkeypatch.setattr(module, "library", lambda: native)
    monkeypatch.setattr(module, "version", lambda: "0.3.36")
    found((b"CPU", b"Some CPU"))
    assert module.describe() == {
        "version": "0.3.36",
        "build": "CPU : SSE3 = 1 | AVX2 = 1 | AMX_INT8 = 0 | OPENMP = 1 | N = 10 | \ufffd",
        "uses": ["SSE3", "AVX2", "OPENMP"],
        "gpu": bool(offloads),
        "devices": ["CPU: Some CPU"],
    }


@pytest.mark.parametrize(
    ("machine", "uses", "devices", "measured"),
    [
        ("x86_64", ["AVX2"], ["CPU: Some CPU"], True),
        ("AMD64", [], ["CPU: Some CPU"], True),
        ("arm64", ["AVX2"], ["CPU: Some CPU"], False),
        ("x86_64", ["AVX2", "AMX_INT8"], ["CPU: Some CPU"], False),
        ("x86_64", ["BLAS"], ["CPU: Some CPU"], False),
        ("x86_64", ["ACCELERATE"], ["CPU: Some CPU"], False),
        ("x86_64", ["AVX2"], ["CPU: Some CPU", "BLAS: some"], False),
        ("x86_64", ["AVX2"], ["CUDA0: card", "CPU: Some CPU"], False),
        ("x86_64", ["AVX2"], [], False),
    ],
)
def test_where_cuts_of_a_prompt_were_measured(
    monkeypatch: pytest.MonkeyPatch, machine: str, uses: list[str], devices: list[str], measured: bool
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(module, "describe", lambda: {"uses": uses, "devices": devices})
    assert module.cuts_measured() is measured


@pytest.mark.parametrize(
    ("layers", "offloads", "computes"),
    [
        (None, True, True),
        (-1, True, True),
        (7, True, True),
        (0, True, False),
        (None, False, False),
        (0, False, False),
    ],
)
def test_whether_a_graphics_card_computes(
    monkeypatch: pytest.MonkeyPatch, layers: int | None, offloads: bool, computes: bool
) -> None:
    native = SimpleNamespace(llama_supports_gpu_offload=lambda: offloads)
    monkeypatch.setattr("localagent.hosts.llamacpp.host.library", lambda: native)
    assert _offloads(layers) is computes


@pytest.mark.engine
def test_layers_for_a_graphics_card() -> None:
    for layers in (-1, 0):
        LlamaCppHost.load(GGUF, context=64, threads=1, lanes=1, gpu_layers=layers).close()
    for options in ({"gpu_layers": -2}, {"chunk": 0}):
        with pytest.raises(UsageError, match=r"^chunk must be 1 or more, gpu_layers -1 \(all\) or more$"):
            LlamaCppHost.load(GGUF, **options)
    if not module.library().llama_supports_gpu_offload():
        with pytest.raises(UsageError, match=r"^gpu_layers is set, but this build of llama\.cpp has no GPU"):
            LlamaCppHost.load(GGUF, context=64, threads=1, gpu_layers=1)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("variables", "spins"),
    [
        ({}, "1000"),
        ({"OMP_NUM_THREADS": "2"}, "1000"),  # says nothing about waiting
        ({"GOMP_SPINCOUNT": "77"}, "77"),
        ({"OMP_WAIT_POLICY": "passive"}, "0"),
        ({"KMP_BLOCKTIME": "0"}, "300000"),
    ],
)
def test_threads_wait_in_a_short_loop_unless_the_environment_says_how(
    variables: dict[str, str], spins: str
) -> None:
    """What libgomp has read it prints itself; what is started later finds the environment as it was."""
    if "OPENMP" not in module.describe()["uses"]:
        pytest.skip("this build of llama.cpp has threads of its own")
    code = """if True:
        import os
        from localagent.hosts.llamacpp.library import library
        before = dict(os.environ)
        library()
        assert dict(os.environ) == before
    """
    environment = {name: value for name, value in os.environ.items() if name not in module.WAITING}
    environment |= {"OMP_DISPLAY_ENV": "verbose", **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    found = re.search(r"GOMP_SPINCOUNT = '(\w+)'", done.stderr)
    if found is None:
        pytest.skip("another OpenMP than GNU's")
    assert found[1] == spins
