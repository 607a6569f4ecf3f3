"""`localagent run` prints the answer alone on stdout, on the real model, and its help teaches."""

from __future__ import annotations

import json
import re

import pytest

from localagent.cli.options import ModelOptions
from localagent.messages import AssistantMessage
from localagent.nano import GGUF

QUESTION = "Name three colours."


def test_answer_on_stdout(localagent):
    done = localagent("run", QUESTION, "--temperature", "0", "--max-tokens", "40")
    assert done.returncode == 0
    assert done.stderr == b""
    assert done.stdout.decode().strip()


def test_json_is_an_assistant_message(localagent):
    done = localagent("run", QUESTION, "--json", "--temperature", "0", "--max-tokens", "40")
    message = AssistantMessage.model_validate_json(done.stdout)
    assert message.text.strip()
    assert message.usage.input > 0
    assert message.usage.output > 0
    assert message.model == "smollm2-135m"
    again = localagent(
        "run", "-", "--json", "--temperature", "0", "--max-tokens", "40", stdin=QUESTION.encode()
    )
    assert AssistantMessage.model_validate_json(again.stdout).text == message.text


def test_stats_go_to_stderr(localagent):
    done = localagent("run", QUESTION, "--stats", "--max-tokens", "5", "--seed", "1")
    assert b"prompt tokens: " in done.stderr
    assert b"generated: 5" in done.stderr
    assert b"stop: length" in done.stderr


def test_options_reach_the_model(localagent):
    short = json.loads(localagent("run", QUESTION, "--json", "--max-tokens", "3").stdout)
    assert (short["usage"]["output"], short["stop_reason"]) == (3, "length")
    told = json.loads(
        localagent("run", QUESTION, "--json", "--max-tokens", "3", "--system", "Be curt.").stdout
    )
    assert told["usage"]["input"] != short["usage"]["input"]


def test_thinking_is_an_option(localagent):
    done = localagent("run", QUESTION, "--no-think", "--max-tokens", "8")
    assert done.returncode == 0
    assert done.stdout.strip()
    assert done.stderr.startswith(b"warning: smollm2-135m cannot be told not to think: its chat template")
    done = localagent("run", QUESTION, "--think-level", "low", "--think-budget", "5", "--max-tokens", "8")
    assert done.stderr.startswith(b"warning: smollm2-135m cannot be told to think: ")
    done = localagent("run", QUESTION, "--no-think", "--think-level", "low")
    assert done.returncode == 2
    assert done.stderr == b"localagent: --no-think and --think-level low: choose one of them\n"
    done = localagent("run", QUESTION, "--think", "--think-budget", "0")
    assert (done.returncode, done.stderr) == (
        2,
        b"localagent: thinking is True, and thinking_budget is 0: choose one of them\n",
    )


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {}),
        ({"think": True}, {"thinking": True}),
        ({"think": False}, {"thinking": False}),
        ({"think_level": "high"}, {"thinking": "high"}),
        ({"think": True, "think_level": "low", "think_budget": 0}, {"thinking": "low", "thinking_budget": 0}),
        ({"temperature": 0.5, "think_budget": 9}, {"temperature": 0.5, "thinking_budget": 9}),
    ],
)
def test_the_options_of_a_turn(given, options):
    assert ModelOptions(**given).of_turns() == options


def test_a_path_is_a_model(localagent, gguf):
    done = localagent("run", QUESTION, "--model", str(gguf), "--max-tokens", "5", "--json")
    assert json.loads(done.stdout)["usage"]["output"] == 5


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "says"),
    [
        ([""], b"", 2, "prompt is empty"),
        (["-"], b"  \n", 2, "prompt is empty"),
        (["-"], b"\xff\xfe\x00", 2, "not UTF-8 text: byte 0xff at offset 0"),
        (["-"], b"a\0b", 2, "binary: NUL at character 1"),
        (["hi", "--model", "smollm2-136m"], b"", 2, "did you mean smollm2-135m"),
        (["hi", "--model", "nothing.gguf"], b"", 2, "no such file or folder: nothing.gguf"),
        (["hi", "--context", "20"], b"", 2, "tokens and the context window holds 20"),
        (["-"], b"word " * 9000, 2, "9,0"),
        (["-"], b"word " * 4_000_000, 2, "the prompt has more than"),
        (["hi", "--max-tokens", "0"], b"", 2, "--max-tokens"),
        (["hi", "--temperature", "hot"], b"", 2, "--temperature"),
        (["hi", "--colour"], b"", 2, "--colour"),
        ([], b"", 2, "prompt"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(localagent, arguments, stdin, code, says):
    localagent.refuse("run", *arguments, stdin=stdin, code=code, says=says)


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "header"])
def test_corrupt_weights_are_one_line(localagent, gguf, tmp_path, damage):
    file = tmp_path / "model.gguf"
    data = gguf.read_bytes()[: 8 << 20]
    file.write_bytes(
        {"empty": b"", "text": b"hello\n" * 99, "cut": data, "header": data[:8] + b"\xff" * 400}[damage]
    )
    localagent.refuse("run", "hi", "--model", str(file), code=1, says=str(file))


def test_offline_names_model_place_and_command(localagent, tmp_path):
    home = str(tmp_path / "home")
    for offline in ({"LOCALAGENT_OFFLINE": "1"}, {"HF_HUB_OFFLINE": "1"}):
        localagent.refuse(
            "run", "hi", "--model", "lfm2-350m", code=1,
            says=f"no weights of lfm2-350m (llamacpp) in {home}/models/lfm2-350m/llamacpp: "
            "run `localagent models pull lfm2-350m", LOCALAGENT_HOME=home, **offline,
        )  # fmt: skip


def test_unknown_commands_are_one_line(localagent):
    localagent.refuse("sing", code=2, says="sing")
    localagent.refuse("parse", "--dialect", "klingon", code=2, says="lfm2, llama-pythonic")


def test_help_of_every_command_shows_how_to_use_it(localagent):
    for words in ([], ["run"], ["chat"], ["parse"], ["models"], ["models", "pull"]):
        done = localagent(*words, "--help")
        assert done.returncode == 0
        assert b"Usage: localagent" in done.stdout
    assert b'localagent run "Name three colours."' in localagent("run", "--help").stdout
    assert b"localagent 0." in localagent("--version").stdout


def test_narrow_encodings_get_numbers(localagent):
    done = localagent("parse", stdin="naïve".encode(), PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert b"na\\xefve" in done.stdout


def test_errors_cannot_drive_the_terminal(localagent):
    done = localagent("run", "hi", "--model", "\x1b]0;owned\x07.gguf")
    assert b"\x1b" not in done.stderr
    assert b"\\x1b" in done.stderr


BOOKING = '''
from typing import Literal

def book(guests: int, table: Literal["window", "door"]) -> str:
    """Book a table."""
    return f"booked: {guests} at the {table}"
'''
PERSON = '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["name", "age"]}'  # fmt: skip


def test_a_function_of_a_module_is_a_tool_that_must_be_called(localagent, tmp_path):
    (tmp_path / "booking.py").write_text(BOOKING)
    arguments = [
        "--tool",
        "booking:book",
        "--model",
        str(GGUF),
        "--tool-choice",
        "book",
        "--max-tokens",
        "60",
        "--json",
    ]
    done = localagent("run", "Book a table.", *arguments, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert re.search(rb"booked: \d+ at the (window|door)", done.stderr + done.stdout)


def test_an_answer_fits_the_schema_in_a_file(localagent, tmp_path):
    (tmp_path / "person.json").write_text(PERSON)
    done = localagent("run", "Who are you?", "--schema", str(tmp_path / "person.json"), "--model", str(GGUF))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert set(answer) == {"name", "age"}
    assert 0 <= answer["age"] <= 99
    assert done.stderr == b""
    cut = localagent(
        "run", "Hi.", "--schema", str(tmp_path / "person.json"), "--model", str(GGUF), "--max-tokens", "4"
    )
    assert b"cut off before it fits the schema" in cut.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tool-choice", "fly"], b"tool_choice is 'fly', and no tool has that name: there are none"),
        (["--tool-choice", "required"], b"tool_choice is 'required', and there are no tools: give some"),
        (["--tools", "time", "--tool-choice", "fly"], b"no tool has that name: there are "),
        (["--tool", ":f"], b"name a module and a function in it, as MODULE:FUNCTION"),
        (["--tool", "nothing"], b"name a module and a function in it, as MODULE:FUNCTION"),
        (["--tool", "no_such_module:f"], b"cannot be imported: ModuleNotFoundError"),
        (["--tool", "json:no_such_function"], b"cannot be imported: AttributeError"),
        (["--tool", "json:__name__"], b"is not a function but a str"),
        (["--schema", "/nowhere.json"], b"--schema /nowhere.json: No such file"),
        (["--schema", "/dev/null"], b"--schema /dev/null: not JSON"),
        (["--tools", "time", "--tool-choice", "required", "--schema", "{}"], b"a turn can end in a call or in an answer"),
        (["--schema", "3"], b"a JSON Schema is an object, not 3"),
    ],
    ids=str,
)  # fmt: skip
def test_wishes_that_make_no_sense_are_one_line(localagent, tmp_path, arguments, says):
    for number, argument in enumerate(arguments):
        if argument in ("{}", "3"):
            (tmp_path / "schema.json").write_text(argument)
            arguments = [*arguments[:number], str(tmp_path / "schema.json"), *arguments[number + 1 :]]
    done = localagent("run", "Hello.", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count(b"\n") == 1
