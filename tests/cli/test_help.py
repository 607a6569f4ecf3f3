"""Every command and every option says what it is for."""

from __future__ import annotations

import pytest
import typer.main

from localagent.cli.app import app


def commands(command, path=()):
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))


EVERY = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_a_command_and_its_options_have_help(path):
    command = EVERY[path]
    assert (command.help or "").strip(), "the command"
    for parameter in command.params:
        assert (getattr(parameter, "help", None) or "").strip(), parameter.name
