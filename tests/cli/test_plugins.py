"""`localagent bench` is another distribution's: found when it is wanted, and a line about how to install it else."""

from __future__ import annotations

from importlib import metadata

import pytest
import typer.main

from localagent.cli.app import app
from localagent.distribution import bench_install_command
from localagent.errors import LocalAgentError


def bench():
    """A group that has found nothing yet."""
    return typer.main.get_group(app).commands["bench"]


def test_its_commands_are_those_of_the_entry_point() -> None:
    assert [*bench().commands] == ["model", "parsers", "report", "server"]


@pytest.mark.parametrize("words", [(), ("--help",), ("parsers", "--quick")])
def test_without_it_every_use_says_what_to_install(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: metadata.EntryPoints(()))
    with pytest.raises(LocalAgentError) as error:
        app(["bench", *words], standalone_mode=False)
    assert str(error.value) == f"localagent-bench is not installed: {bench_install_command()}"
    assert error.value.exit_code == 1


def test_one_that_cannot_be_loaded_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = metadata.EntryPoint("bench", "localagent_bench.no_such:app", "localagent.commands")
    monkeypatch.setattr(metadata, "entry_points", lambda **_: metadata.EntryPoints((broken,)))
    with pytest.raises(LocalAgentError, match=r"localagent-bench cannot be loaded \(No module named"):
        app(["bench", "parsers"], standalone_mode=False)


def test_the_list_of_commands_looks_for_no_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(**_: object) -> None:
        raise AssertionError("reading them takes 40 ms")

    monkeypatch.setattr(metadata, "entry_points", slow)
    command = bench()
    assert command.get_short_help_str(200).startswith("Measure parsers of tool calls")
    monkeypatch.setattr("localagent.cli.plugins.find_spec", lambda name: None)
    assert command.get_short_help_str(200).endswith("needs localagent-bench.")
