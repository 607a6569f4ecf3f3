"""Engines that are missing, broken, crash or compute nonsense, put in front of the real one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

MISSING = "raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')"

# The real package, but for what is done to its functions afterwards.
REAL = """
import ctypes, os, signal
from pathlib import Path
source = Path({source!r})
exec(compile(source.read_text(), str(source), "exec"), globals())
quantized = False
real_load, real_decode = llama_model_load_from_file, llama_decode
def llama_model_load_from_file(path, parameters):
    global quantized
    quantized = b"nano-f16" not in path
    return real_load(path, parameters)
"""
CRASHES = (
    REAL
    + """
def llama_decode(context, batch):
    if quantized:
        os.kill(os.getpid(), signal.SIGSEGV)
    return real_decode(context, batch)
"""
)
MISCALCULATES = (
    REAL
    + """
def llama_decode(context, batch):
    code = real_decode(context, batch)
    if quantized:
        llama_get_logits(context)[40] = 1000.0
    return code
"""
)


def impostor(folder: Path, name: str, code: str) -> str:
    """A PYTHONPATH on which the package `name` does `code` when it is imported."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code.format(name=name) + "\n")
    return str(folder)


def llamacpp_build(folder: Path, code: str) -> str:
    """A PYTHONPATH with a build of llama.cpp that is the installed one, changed by `code`."""
    spec = find_spec("llama_cpp")
    assert spec is not None
    assert spec.origin is not None
    real, fake = Path(spec.origin).parent, folder / "llama_cpp"
    fake.mkdir(parents=True)
    for entry in real.iterdir():
        if entry.name not in ("llama_cpp.py", "__pycache__"):
            (fake / entry.name).symlink_to(entry)
    (fake / "llama_cpp.py").write_text(code.format(source=str(real / "llama_cpp.py")))
    return str(folder)
