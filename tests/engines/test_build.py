"""`make setup` mends a bad build, never takes a bad wheel twice, and shows life while it compiles."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution
from pathlib import Path

import pytest

from localagent.engines import build
from localagent.engines.build import PACKAGE
from localagent.errors import BuildFailed

ROOT = Path(__file__).parents[2]
SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
pytestmark = [
    pytest.mark.engine,  # a fake one
    pytest.mark.skipif(os.name == "nt", reason="environments are laid out otherwise there"),
]


def write_wheel(folder: Path, files: dict[str, bytes], version: str = "0.3.36") -> Path:
    """A wheel of llama-cpp-python with these files."""
    info = f"llama_cpp_python-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
    }
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"llama_cpp_python-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join([*lines, f"{info}/RECORD,,\n"]))
    return path


def bad_wheel(folder: Path) -> Path:
    return write_wheel(
        folder, {"llama_cpp/__init__.py": b"", "llama_cpp/llama_cpp.py": b"import os; os.abort()"}
    )


def good_wheel(folder: Path) -> Path:
    """The installed engine, packed again."""
    files = distribution(PACKAGE).files or []
    kept = [file for file in files if file.parts[0] == "llama_cpp" and "__pycache__" not in file.parts]
    return write_wheel(folder, {str(file): Path(file.locate()).read_bytes() for file in kept})


class Environment:
    """A virtual environment that sees the packages of this one, without its llama.cpp."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder / "venv", folder / "home"
        venv.create(self.folder, with_pip=False, symlinks=True)
        seen = folder / "seen"
        seen.mkdir()
        for site in {Path(entry) for entry in sys.path if entry.endswith("site-packages")}:
            for entry in site.iterdir():
                if "llama_cpp" not in entry.name and not (seen / entry.name).exists():
                    (seen / entry.name).symlink_to(entry)
        (self.folder / SITE / "seen.pth").write_text(f"{seen}\n{ROOT}\n")
        self.variables = {**os.environ, "LOCALAGENT_HOME": str(self.home), "CXX": "/nowhere/c++"}

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.folder / "bin" / "python", *arguments],
            env=self.variables, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    def build(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Take the wheel from a folder, instead of compiling for minutes."""
        return self.python("-m", "localagent.engines.build", "--no-index", *options)

    def pip(self, *arguments: str) -> None:
        done = self.python("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *arguments)
        assert done.returncode == 0, done.stderr

    @property
    def wheels(self) -> list[Path]:
        return list(self.home.glob("engines/wheels/*/*.whl"))


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path)


def test_a_bad_build_that_is_installed_is_replaced(environment, tmp_path):
    environment.pip(str(bad_wheel(tmp_path / "bad")))
    good = good_wheel(tmp_path / "good")
    done = environment.build("--find-links", str(good.parent))
    assert done.returncode == 0, done.stderr
    assert "llama.cpp crashes (SIGABRT: Aborted) while importing llama_cpp; engine: " in done.stderr
    assert "runs on this processor: lfm2-nano, lfm2-nano quantized to Q8_0" in done.stderr
    (kept,) = environment.wheels
    assert kept.with_name("build.json").is_file()
    assert kept.with_name("build.log").read_text().startswith("CMAKE_ARGS=")
    again = environment.build("--find-links", str(good.parent))
    assert (again.returncode, again.stderr) == (0, "")  # remembered: nothing to do


def test_a_kept_wheel_is_used_again(environment, tmp_path):
    options = ("--find-links", str(good_wheel(tmp_path / "good").parent))
    assert environment.build(*options).returncode == 0
    environment.pip("--force-reinstall", str(bad_wheel(tmp_path / "bad")))
    (tmp_path / "good").rename(tmp_path / "gone")
    done = environment.build(*options)
    assert done.returncode == 0, done.stderr
    assert "building llama.cpp" not in done.stderr


def test_a_wheel_that_does_not_run_is_not_kept(environment, tmp_path):
    done = environment.build("--find-links", str(bad_wheel(tmp_path / "bad").parent))
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith("localagent: llama.cpp crashes (SIGABRT: Aborted) while importing llama_cpp; ")
    assert environment.wheels == []


def test_a_build_that_fails_names_its_log(environment, tmp_path):
    (tmp_path / "empty").mkdir()
    done = environment.build("--find-links", str(tmp_path / "empty"))
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert "could not be built: the whole log is " in line
    log = Path(line.split("the whole log is ")[1].split(" (")[0])
    text = log.read_text()
    assert text.startswith("CMAKE_ARGS=")
    assert "No matching distribution" in text
    assert "ERROR: " in line
    assert environment.wheels == []


def test_flags_reach_the_build_and_pip_s_cache_does_not(environment, tmp_path):
    """A source package whose build writes down the flags, and fails to make an engine; and a cache with a bad wheel."""
    source = tmp_path / "source" / "llama_cpp_python-0.3.36"
    (source / "llama_cpp").mkdir(parents=True)
    (source / "pyproject.toml").write_text(SOURCE)
    (source / "hatch_build.py").write_text(HOOK)
    (source / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 0.3.36\n")
    (source / "llama_cpp" / "__init__.py").write_text("")
    with tarfile.open(source.parent / f"{source.name}.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)
    options = ("--find-links", str(source.parent), "--no-build-isolation")
    environment.variables["PIP_CACHE_DIR"] = str(tmp_path / "cache")
    stale = environment.python(
        "-m", "pip", "wheel", "--no-deps", "--no-index", *options, "-w", str(tmp_path), PACKAGE
    )
    assert stale.returncode == 0, stale.stderr
    assert list((tmp_path / "cache").rglob("*.whl"))
    done = environment.build(*options)
    assert done.returncode == 1, done.stderr
    (built,) = (tmp_path / "flags").read_text().splitlines()[1:]
    assert "-DLLAVA_BUILD=OFF" in built
    assert "-mno-amx-tile" in built  # /nowhere/c++ runs no probe
    assert "it was built just now" in done.stderr.splitlines()[-1]


SOURCE = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "llama-cpp-python"
version = "0.3.36"
[tool.hatch.build.targets.wheel]
packages = ["llama_cpp"]
[tool.hatch.build.targets.wheel.hooks.custom]
"""
HOOK = """
import os, pathlib
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        place = pathlib.Path(os.environ["PIP_CACHE_DIR"]).parent / "flags"
        with place.open("a") as file:
            file.write(os.environ.get("CMAKE_ARGS", "none") + "\\n")
"""


def test_two_at_once_do_the_work_once(environment, tmp_path):
    options = ("--find-links", str(good_wheel(tmp_path / "good").parent))
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: environment.build(*options), range(2)))
    assert [done.returncode for done in both] == [0, 0], [done.stderr for done in both]
    assert sum("building llama.cpp" in done.stderr for done in both) == 1
    assert len(environment.wheels) == 1


def test_a_build_that_is_ended_ends_its_children_and_leaves_no_half_wheel(environment, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "llama_cpp_python-0.3.36.tar.gz").write_bytes(b"")
    pip = tmp_path / "slow" / "pip"
    pip.mkdir(parents=True)
    (pip / "__init__.py").write_text("")
    (pip / "__main__.py").write_text(
        f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    child = subprocess.Popen(
        [environment.folder / "bin" / "python", "-m", "localagent.engines.build", "--no-index"],
        env={**environment.variables, "PYTHONPATH": str(pip.parent)}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert child.poll() is None
        time.sleep(0.05)
    child.terminate()
    assert child.wait(60) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert environment.wheels == []


def test_a_half_removed_package_is_installed_anew(environment, tmp_path):
    (environment.folder / SITE / "llama_cpp" / "__pycache__").mkdir(parents=True)
    done = environment.build("--find-links", str(good_wheel(tmp_path / "good").parent))
    assert done.returncode == 0, done.stderr


def test_a_version_that_does_not_fit_is_replaced(environment, tmp_path):
    old = good_wheel(tmp_path / "old")
    files = {
        name: zipfile.ZipFile(old).read(name)
        for name in zipfile.ZipFile(old).namelist()
        if "dist-info" not in name
    }
    environment.pip(str(write_wheel(tmp_path / "older", files, "0.3.1")))
    done = environment.build("--find-links", str(old.parent))
    assert done.returncode == 0, done.stderr
    said = environment.python("-c", f"from importlib.metadata import version; print(version({PACKAGE!r}))")
    assert said.stdout.strip() == "0.3.36"


def test_without_a_compiler_nothing_is_begun(environment):
    done = environment.python("-m", "localagent.engines.build")
    assert done.returncode == 1
    assert done.stderr == (
        "localagent: llama.cpp is built from source and needs /nowhere/c++: install that first\n"
    )


def test_the_log_tells_how_far_it_is(tmp_path, monkeypatch, capsys):
    """What pip and ninja write while they compile becomes a line every few seconds."""
    log = tmp_path / "log"
    log.write_bytes(b"")
    monkeypatch.setattr(build, "INTERVAL", {True: 0.05, False: 0.05})
    with build._signs_of_life(log):
        wait_for(capsys, "0:00 preparing")
        log.write_bytes(b"  [1/140] cc ...\n  [37/140] c++ ...\n")
        wait_for(capsys, "0:00 37 of 140 files compiled")


def wait_for(capsys, text: str) -> None:
    seen = ""
    for _ in range(200):
        seen += capsys.readouterr().err
        if text in seen:
            return
        time.sleep(0.05)
    raise AssertionError(seen)


@pytest.mark.parametrize(
    "change",
    [{"CMAKE_ARGS": "-DGGML_CUDA=on"}, {"CFLAGS": "-g"}, {"CXX": "/elsewhere/c++"}, {"CC": "clang"}],
    ids=str,
)
def test_each_build_has_a_folder_of_its_own(monkeypatch, change):
    first = build._folder(())
    assert build._folder(()) == first
    assert build._folder(("--find-links", "x")) != first
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    assert build._folder(()) != first


def test_another_processor_has_another_folder(monkeypatch):
    first = build._folder(())
    other = build.read_processor().__class__("x86_64", "Another Processor", ("avx",))
    monkeypatch.setattr(build, "read_processor", lambda: other)
    assert build._folder(()).name.startswith("another-processor-")
    assert build._folder(()) != first


def test_pip_that_fails_is_an_error(capfd):
    with pytest.raises(BuildFailed, match=r"pip install /nowhere/x\.whl failed"):
        build._pip("install", "/nowhere/x.whl")
    assert "nowhere" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("platform", "compiles"), [("Darwin arm64", False), ("Darwin x86_64", True), ("Linux aarch64", True)]
)
def test_make_demo_compiles_nothing_on_apple_silicon(tmp_path, platform, compiles):
    done = subprocess.run(
        ["make", "--dry-run", "demo", f"PLATFORM={platform}", f"VENV={tmp_path}/venv"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ("localagent.engines.build" in done.stdout) is compiles
    assert (".[mlx]" in done.stdout) is not compiles
    assert "localagent run" in done.stdout
