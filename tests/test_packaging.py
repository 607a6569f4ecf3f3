"""The wheel: what is in it, what it asks for, and that it works away from the checkout."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import packaging
import pytest
from packaging.requirements import Requirement

from localagent.distribution import NAME, install_command, pip_install, version
from localagent.hosts.backends import BACKENDS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def build(source: Path, folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_the_packages_and_their_data(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "localagent/models.toml",
        "localagent/py.typed",
        "localagent/parsers/py.typed",
        "localagent/parsers/engine/stream.py",
        "localagent/nano/weights/lfm2-nano-f16.gguf",
        "localagent/nano/weights/mlx/model.safetensors",
    } <= names
    assert wheel.stat().st_size < 5_500_000
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"localagent", "parsers"}
    assert [name for name in names if name.startswith("parsers/")] == ["parsers/__init__.py"]
    assert not [name for name in names if "pyproject" in name]


SAME = """
import parsers.events, localagent.parsers
from parsers.formats import DIALECTS
assert parsers is localagent.parsers and DIALECTS is parsers.DIALECTS
assert parsers.events.Text is localagent.parsers.Text
print(parsers.__file__)
"""
SHADOWED = """
import parsers
from localagent import Agent, load, tool
from localagent.parsers import DIALECTS
print(parsers.MINE, len(DIALECTS) > 20)
"""


def run_away(site: Path, code: str, folder: Path) -> str:
    """What a script says that lies in `folder`, where `site` is what is installed."""
    script = folder / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, script], env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("installed", ["wheel", "checkout"])
def test_parsers_is_another_name_for_the_same_modules(installed, request, tmp_path):
    site = tmp_path / "site" if installed == "wheel" else ROOT
    if installed == "wheel":
        zipfile.ZipFile(request.getfixturevalue("wheel")).extractall(site)
    assert Path(run_away(site, SAME, tmp_path)).is_relative_to(site / "localagent")
    (tmp_path / "parsers.py").write_text("MINE = 1\n")
    assert run_away(site, SHADOWED, tmp_path) == "1 True", (
        "a user's own parsers.py is the user's, and breaks nothing"
    )


def test_the_parsers_can_be_installed_alone(tmp_path):
    """From the same folder, under a name of its own, and with the standard library alone."""
    path = build(ROOT / "parsers", tmp_path)
    archive = zipfile.ZipFile(path)
    site = tmp_path / "site"
    archive.extractall(site)
    (package, info) = sorted({name.split("/")[0] for name in archive.namelist()})
    assert package == "localagent_parsers" and info.endswith(".dist-info")
    stated = Parser().parsestr((site / info / "METADATA").read_text())
    assert (stated["Version"], stated.get_all("Requires-Dist")) == (PROJECT["version"], None)
    code = "from localagent_parsers import *; import localagent_parsers.custom, sys;" + (
        "p = StreamParser(DIALECTS['hermes']); e = p.feed('<tool_call>{\"name\": \"f\"}</tool_call>') + p.close();"
        "print(collect(e)[0].name, [m for m in sys.modules if m == 'localagent' or m == 'parsers'])"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", code],
        env={"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "f []\n"


def test_what_measures_and_trains_is_not_in_the_wheel(wheel):
    archive = zipfile.ZipFile(wheel)
    for name in archive.namelist():
        assert "bench" not in name and "training" not in name
        if name.endswith(".py"):
            own = re.search(r"(?:import|from) (?:torch|localagent_bench)\b", archive.read(name).decode())
            assert not own, name


@pytest.fixture(scope="module")
def metadata(wheel) -> Message:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
    return Parser().parsestr(archive.read(name).decode())


def test_the_core_asks_for_light_packages_alone(metadata):
    wanted = metadata.get_all("Requires-Dist")
    core = {re.split(r"[<>=;\[ ]", line)[0] for line in wanted if "extra" not in line}
    assert core == {
        "docstring-parser", "filelock", "httpx2", "jinja2", "markdown-it-py", "packaging", "platformdirs", "prompt-toolkit", "psutil", "pydantic", "pygments", "rich", "simpleeval", "typer",
    }  # fmt: skip
    for line in wanted:
        if line.startswith(("mlx", "transformers")) and "extra == 'all'" in line:
            assert "darwin" in line, line
    assert metadata["License-Expression"] == "Apache-2.0"


def test_it_works_away_from_the_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "import localagent.catalog as c; print(c.__file__, c.load_catalog().default.name)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    file, model = done.stdout.split()
    assert Path(file).is_relative_to(tmp_path)
    assert model == "smollm2-135m"


SOURCES = [
    path
    for name in ("localagent", "parsers", "benchmarks/localagent_bench")
    for path in (ROOT / name).rglob("*.py")
]
TEXTS = [
    *(path for path in ROOT.glob("*") if path.suffix in {".md", ".toml"} or path.name == "Makefile"),
    *(path for name in ("localagent", "parsers", "benchmarks") for path in (ROOT / name).rglob("*.md")),
    *(ROOT / ".github").rglob("*.yml"),
]


def calls_of(function: str) -> list[tuple[str, ast.Call]]:
    """Every call in the sources, with the file that it is in."""
    return [
        (path.relative_to(ROOT).as_posix(), node)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == function
    ]


OF_ROWS = ast.parse(
    "[" + ",".join(f"f({name!r}, only={row.distributions!r})" for name, row in BACKENDS.items()) + "]"
)
HINTS = [
    *((file, call) for file, call in calls_of("install_command") if isinstance(call.args[0], ast.Constant)),
    # The others are for an engine, whichever it is.
    *(("localagent/hosts/backends.py", call) for call in ast.walk(OF_ROWS) if isinstance(call, ast.Call)),
]


def test_no_command_asks_the_index_for_a_strangers_package():
    ours = r"localagent(?:-runtime)?"
    for path in (*SOURCES, *TEXTS):
        text = path.read_text()
        extending = rf'"{NAME}\[(hub|server)\]"'  # in pyproject: an extra with all of another one
        assert not re.search(rf"\b{ours}\[", re.sub(extending, "", text)), path
        for command in re.findall(r"\b(?:install|add|download|tool run) (.*)", text):
            assert not re.match(rf"(?:-\S+ )*['\"]?{ours}(?:['\"`=<>~! ]|$)", command), (path, command)


def test_all_hints_come_from_one_function():
    for path in SOURCES:
        # The adapters tell how other projects' parsers come into an environment of their own.
        if path.name != "distribution.py" and path.parent.name != "adapters":
            assert not re.search(r"\b(pipx?3?|uv) (add|install)\b|ensurepip", path.read_text()), path
    assert {file for file, _ in HINTS} >= {
        "localagent/hosts/llamacpp/compiling.py",
        "localagent/hosts/mlx/library.py",
        "localagent/mcp/transport.py",
        "localagent/store/hub.py",
        "localagent/toolbox/fetching.py",
    }
    for file, call in HINTS:
        extra = ast.literal_eval(call.args[0])
        known = {Requirement(line).name for line in PROJECT["optional-dependencies"][extra]}
        for keyword in call.keywords:
            assert keyword.arg != "only" or known >= set(ast.literal_eval(keyword.value)), file


def test_texts_name_extras_and_groups_that_exist():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    of_bench = tomllib.loads((ROOT / "benchmarks" / "pyproject.toml").read_text())["project"]
    found = [
        command for path in TEXTS for command in re.findall(r"\bpip install ([^`\n]*)", path.read_text())
    ]
    assert len(found) >= 5
    for command in found:
        for extras in re.findall(r"\.\[([^]]+)\]", command):
            assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"]), command
        for extras in re.findall(r"\./benchmarks\[([^]]+)\]", command):
            assert set(extras.split(",")) <= set(of_bench["optional-dependencies"]), command
        for group in re.findall(r"--group (\w+)", command):
            assert group in groups, command


def test_in_a_checkout_hints_name_its_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    assert install_command("mcp").endswith(" -m pip install -e '.[mcp]'")
    monkeypatch.chdir(tmp_path)
    assert shlex.split(install_command("mcp"))[-2:] == ["-e", f"{ROOT}[mcp]"]
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("PATH", "")
    assert shlex.split(install_command("mcp"))[-1] == f"{ROOT}[mcp]"
    fix = install_command("llamacpp", only=["llama_cpp_python"], options=["--no-deps"])
    assert shlex.split(fix)[-2] == "--no-deps"
    assert shlex.split(fix)[-1].startswith("llama-cpp-python")
    assert version() == PROJECT["version"]


def test_pip_takes_the_command_of_a_checkout(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(install_command("mcp"))
    offline = ["--dry-run", "--no-index", "--no-deps", "--no-build-isolation", "--quiet", "--report", "-"]
    done = subprocess.run([*words, *offline], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f'"name": "{NAME}"' in done.stdout
    assert '"requested_extras"' in done.stdout


class Installed:
    """A fresh environment with the wheel in it, what the core needs, and no engine."""

    def __init__(self, folder: Path, *wheels: Path) -> None:
        venv.create(folder, with_pip=False)
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet"]
        subprocess.run([*pip, "--no-index", "--no-deps", *wheels], check=True)
        (site,) = folder.glob("lib/python*/site-packages")
        others = [each for each in sys.path if each.endswith("site-packages")]
        (site / "others.pth").write_text("\n".join(others))

    def __call__(self, code: str, *, missing: str = "", path: str = os.environ["PATH"]) -> str:
        block = f"import sys\nfor name in {missing.split()!r}: sys.modules[name] = None\n"
        done = subprocess.run(
            [self.python, "-P", "-c", block + code],
            cwd=self.bin,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Installed:
    return Installed(tmp_path_factory.mktemp("fresh environment"), wheel)


COMMAND = """
import localagent.cli
sys.argv, sys.stderr = ["localagent", *words], sys.stdout
try: localagent.cli.main()
except SystemExit as end: print("exit", end.code)
"""


@pytest.mark.parametrize("words", [["bench"], ["bench", "--help"], ["bench", "parsers", "--quick"]])
def test_without_its_distribution_the_bench_says_what_to_install(installed, words):
    answer = installed(f"words = {words}{COMMAND}", missing="localagent_bench")
    line, code = answer.splitlines()
    assert re.fullmatch(
        "localagent: localagent-bench is not installed: .* -m pip install localagent-bench", line
    )
    assert code == "exit 1"


def test_the_list_of_commands_says_that_the_bench_needs_more(installed):
    answer = installed(f"words = ['--help']{COMMAND}")
    assert re.search(r"\n  bench +Measure parsers, models and servers; needs localagent-bench.\n", answer)


def test_the_bench_is_installed_beside_it(wheel, tmp_path):
    path = build(ROOT / "benchmarks", tmp_path)
    names = zipfile.ZipFile(path).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"localagent_bench"}
    wanted = {"report.html", "py.typed", "parsers/adapters/llamacpp.cpp", "parsers/adapters/child.py"}
    assert {f"localagent_bench/{name}" for name in wanted} <= {*names}
    both = Installed(tmp_path / "environment", wheel, path)
    answer = both(
        f"words = ['bench', 'parsers', '--help']{COMMAND}import localagent_bench as b; print(b.__file__)"
    )
    assert "exit 0" in answer and "--corpus" in answer
    assert Path(answer.splitlines()[-1]).is_relative_to(tmp_path)
    words = [
        "bench",
        "parsers",
        "--quick",
        "--no-speed",
        "--corpus",
        "canitoolcall",
        "--parser",
        "ours",
        "--json",
    ]
    assert '"parser": "localagent"' in both(f"words = {words}{COMMAND}")


def test_the_bench_has_the_version_of_what_it_measures():
    project = tomllib.loads((ROOT / "benchmarks" / "pyproject.toml").read_text())["project"]
    assert project["version"] == PROJECT["version"]


def needed(metadata: Message, extra: str) -> set[str]:
    lines = [Requirement(line) for line in metadata.get_all("Requires-Dist")]
    of_extra = [each for each in lines if each.marker and f'extra == "{extra}"' in str(each.marker)]
    assert len(of_extra) >= 1
    return {str(each).split(";")[0].strip() for each in of_extra if each.marker.evaluate({"extra": extra})}


def asked_for(command: str) -> set[str]:
    """The requirements of a pip command, each of which has to parse."""
    words = shlex.split(command)
    found = [word for word in words[words.index("install") + 1 :] if not word.startswith("-")]
    return {str(Requirement(word)) for word in found}


@pytest.mark.parametrize(("file", "call"), HINTS, ids=[f"{file}:{call.lineno}" for file, call in HINTS])
def test_in_a_wheel_hints_name_the_packages(installed, metadata, file, call):
    extra = ast.literal_eval(call.args[0])
    only = next((ast.literal_eval(each.value) for each in call.keywords if each.arg == "only"), ())
    code = f"from localagent.distribution import *; print(install_command({extra!r}, only={only!r}))"
    found = asked_for(installed(code))
    assert found == {each for each in needed(metadata, extra) if not only or Requirement(each).name in only}
    assert not any(each.startswith("localagent") for each in found)


RAISING = {
    "llamacpp": ("llama_cpp", "from localagent.hosts.llamacpp.library import library as ask"),
    "mlx": ("mlx mlx_lm", "from localagent.hosts.mlx.library import library as ask"),
    "mcp": ("mcp", "from localagent.mcp.transport import require as ask"),
    "web": ("lxml", "from localagent.toolbox.fetching import require as ask"),
}


@pytest.mark.parametrize("extra", RAISING)
def test_the_errors_of_a_wheel_name_the_packages(installed, metadata, extra):
    missing, importing = RAISING[extra]
    said = installed(f"{importing}\ntry: ask()\nexcept Exception as error: print(error)", missing=missing)
    assert "\n" not in said
    command = re.search(r"not installed: (.*?)(?: \(builds| \[)", said)
    assert command, said
    assert asked_for(command[1]) == needed(metadata, extra)


def test_the_command_is_for_the_interpreter_that_runs(installed, tmp_path):
    code = "from localagent.distribution import *; print(pip_install('pip'))"
    elsewhere = str(Path(sys.executable).parent)
    assert installed(code, path=elsewhere).startswith(f"'{installed.python}' -m pip install")
    assert installed(code, path=f"{installed.bin}:{elsewhere}") == "python -m pip install pip"
    without = installed(code, missing="pip", path=str(tmp_path))
    assert without == f"'{installed.python}' -m ensurepip && '{installed.python}' -m pip install pip"
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    with_uv = installed(code, missing="pip", path=str(tmp_path))
    assert with_uv == f"uv pip install --python '{installed.python}' pip"


def test_a_copy_without_metadata_names_no_command(wheel, tmp_path):
    archive = zipfile.ZipFile(wheel)
    archive.extractall(tmp_path, [name for name in archive.namelist() if ".dist-info" not in name])
    shutil.copytree(Path(packaging.__file__).parent, tmp_path / "packaging")
    code = "from localagent.distribution import *; print(version(), install_command('mcp'))"
    done = subprocess.run(
        [sys.executable, "-P", "-S", "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"None install the packages of the extra 'mcp' of {NAME}\n"


def test_commands_are_quoted_for_windows_there(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert pip_install("mcp>=2.3,<3", "pip").endswith(' -m pip install "mcp>=2.3,<3" pip')
