"""The wheel: what is in it, what it asks for, and that it works away from the checkout."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    return path


def test_contents(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "localagent/models.toml",
        "localagent/py.typed",
        "parsers/py.typed",
        "parsers/__init__.py",
        "localagent/nano/weights/lfm2-nano-f16.gguf",
        "localagent/nano/weights/mlx/model.safetensors",
    } <= names
    assert wheel.stat().st_size < 5_000_000
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"localagent", "parsers"}


def test_requirements(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
    metadata = Parser().parsestr(archive.read(name).decode())
    wanted = metadata.get_all("Requires-Dist")
    core = {re.split(r"[<>=;\[ ]", line)[0] for line in wanted if "extra" not in line}
    assert core == {
        "docstring-parser", "filelock", "jinja2", "platformdirs", "prompt-toolkit", "psutil", "pydantic", "rich", "typer",
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
