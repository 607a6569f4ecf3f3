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


def test_options_that_are_not_given_are_what_the_help_says():
    """All others are left open: None, or not on."""
    given = {
        " ".join(path): {
            each.name: each.default for each in command.params if each.default not in (None, False, ())
        }
        for path, command in EVERY.items()
    }
    assert {name: defaults for name, defaults in given.items() if defaults} == {
        "run": {"parallel": True},
        "serve": {
            "host": "127.0.0.1",
            "port": 8080,
            "max_queue": 64,
            "deadline": 3600,
            "buffer_tool_calls": True,
        },
        "connect": {"url": "http://127.0.0.1:8080"},
        "doctor": {"timeout": 120},
        "models requantize": {"kind": "Q4_0"},
        "sessions export": {"form": "markdown"},
        "bench model": {"constraint": "auto", "seed": 1, "max_tokens": 512},
        "bench parsers": {"faults": True, "speed": True, "seed": 1},
        "bench server": {"timeout": 120.0, "checks": True, "load": True},
    }


def test_numbers_that_make_no_sense_are_refused():
    least = {}
    for path, command in EVERY.items():
        for each in command.params:
            of = (
                each if hasattr(each, "min") else getattr(each, "type", None)
            )  # of later and of earlier Typer
            if getattr(of, "min", None) is not None:
                least[f"{' '.join(path)} {each.name}"] = of.min
    of_a_model = {"context": 1, "threads": 1}
    of_turns = {"max_tokens": 1, "temperature": 0, "top_k": 1, "think_budget": 0, **of_a_model}
    expected = {
        "run": of_turns,
        "chat": of_turns,
        "serve": {
            "port": 0, "max_queue": 0, "deadline": 1, "drain": 0, "lanes": 1, "idle": 1, "stall_limit": 0,
            "gpus": 0, "models_per_replica": 1, **of_a_model,
        },
        "doctor": {"timeout": 0.1},
        "bench model": {"sample": 1, "max_tokens": 1, "exchanges": 0, "rounds": 1, **of_a_model},
        "bench parsers": {"sample": 1},
        "bench server": {"tokens": 2, "words": 1, "answers": 1, "rounds": 1, "timeout": 1},
    }  # fmt: skip
    assert least == {f"{name} {option}": at for name, of in expected.items() for option, at in of.items()}
