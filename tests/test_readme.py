"""The README tells the truth: its examples run and its tree is the tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", [text for kind, text in BLOCKS if kind == "python"])
def test_python_examples_run(code, gguf, capsys):
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("names", "promise"),
    [
        ("StreamParser", r"# (get_weather .*)"),
        ("read_response", r"print\(.*  # (.*)"),
        ("Session.open", r"print\(.*  # (.*)"),
        ("MessageLog", r"print\(.*  # (.*)"),
    ],
)
def test_examples_print_what_they_say(names, promise, capsys):
    (code,) = [text for kind, text in BLOCKS if names in text and kind == "python"]
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(promise, code)


def test_the_tree_is_the_tree():
    """Every line is there, and `localagent` and `parsers` have nothing else, but for what stands in every package."""
    (tree,) = [text for kind, text in BLOCKS if not kind]
    named: dict[Path, list[str]] = {}
    folder = ROOT
    for line in tree.splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            folder = ROOT / name
        parent = folder if line.startswith(" ") else ROOT
        assert (parent / name).is_dir() == name.endswith("/"), name
        assert (parent / name).exists(), name
        named.setdefault(parent, []).append(name)
    for package in (ROOT / "localagent", ROOT / "parsers"):
        paths = [
            path
            for path in package.glob("[!_.]*")
            if not path.is_symlink() and (path.is_file() or {*path.iterdir()} - {*path.glob("_*")})
        ]
        found = (path.name + "/" * path.is_dir() for path in paths)
        assert sorted(named[package]) == sorted(
            {*found} - {"README.md", "LICENSE", "pyproject.toml", "py.typed"}
        )


def test_commands_are_commands(localagent_help):
    for line in "".join(text for kind, text in BLOCKS if kind == "sh").splitlines():
        for command in re.findall(
            r"localagent (run|chat|parse|models \w+|\w+)", line.split("#")[0].split("&& cd")[0]
        ):
            assert command.split()[-1] in localagent_help(*command.split()[:-1])


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", README)) <= targets


@pytest.fixture
def localagent_help():
    from typer.testing import CliRunner

    from localagent.cli.app import app

    return lambda *words: CliRunner().invoke(app, [*words, "--help"]).output
