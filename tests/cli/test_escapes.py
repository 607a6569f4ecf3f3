"""Nothing that a model, a file, a tool, a server or a title says drives the terminal, in any command.

Every case is run in a pipe and in a pseudo-terminal, with words of `hostile.py` from one source or several,
and the bytes that come out are looked at. Words that do not come out at all prove nothing: each case must show
them made visible. A result that programs read stays as it was written in a pipe; such cases say so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are Unix", allow_module_level=True)

import pexpect

from localagent.store.weights import default_root
from tests.agent.replaying import block
from tests.cli.conftest import commands
from tests.cli.hostile import EVIL, HERE, MARKED, NAME, World, driven, make_world, told

READY = "\x1b[?2004h"  # line editing switches bracketed paste on


@dataclass(frozen=True)
class Case:
    """A command with hostile words, in arguments and settings that may name things of the world."""

    arguments: tuple[str, ...] = ()
    stdin: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    """In a terminal, in place of stdin: what to wait for, and what to type then."""
    exact: bool = False
    """In a pipe, stdout is for programs and stays as it was written."""
    where: str = "both"
    """Or "pipe", or "terminal": where there is something to see that other cases do not show."""
    shows: bool = True
    """Whether the words come out, made visible."""


def case(*arguments: str, **more) -> Case:
    return Case(arguments, **more)


def error(*arguments: str, **more) -> Case:
    """All errors are told in one place, so that the two that "run" has on a terminal stand for all."""
    return Case(arguments, where="pipe", **more)


def plays(*outputs: str) -> tuple[tuple[str, str], ...]:
    return (("HOSTILE_OUTPUTS", json.dumps({"name": MARKED, "outputs": outputs})),)


ANSWERS = plays(
    f"<think>{EVIL}</think>{EVIL}" + block('read_file(path="plan.txt")', f'read_file(path="{EVIL}")'),
    block(f"read_file('{EVIL}')"),  # malformed
    EVIL,
)
LOOKS = plays(block(f'evil_look(x="{EVIL}")'), EVIL)
FILES = ("--tools", "files", "--root", "{w.root}")
NANO = ("--threads", "1", "--max-tokens", "3")
CATALOGUE = (("HOSTILE_CATALOGUE", "{w.catalogue}"),)
SAYS = f"<think>{EVIL}</think>{EVIL}" + block(f'f(a="{EVIL}")', f"g('{EVIL}')")
COMPLETE = (
    ("_LOCALAGENT_COMPLETE", "complete_bash"),
    ("COMP_WORDS", f"localagent run --mcp {EVIL}"),
    ("COMP_CWORD", "3"),
)
# fmt: off
CASES = {
    "": [case(EVIL), error("run", f"--{EVIL}"), case(settings=COMPLETE, shows=False)],
    "run": [
        case("Hi.", *FILES, settings=ANSWERS, exact=True),
        case("Hi.", *FILES, "--json", settings=ANSWERS),
        case("Hi.", "--model", "{w.gguf}", "--json", *NANO),
        case("Hi.", "--model", "{w.broken[general.architecture]}"),
        error("Hi.", "--model", "{w.broken[tokenizer.ggml.pre]}"),
        error("Hi.", "--model", "{w.broken[tokenizer.ggml.model]}"),
        error("Hi.", "--model", "{w.broken[tokenizer.chat_template]}"),
        error("Hi.", "--model", "{w.gguf}/x.gguf"),
        error("Hi.", "--model", "lfm2-350m", "--backend", "llamacpp", settings=CATALOGUE),
        error("Hi.", "--model", "lfm2-nano", settings=CATALOGUE),
        error("Hi.", "--tools", NAME),
        error("Hi.", "--tools", "files", "--root", NAME),
        error("Hi.", "--tools", "files", "--allow", NAME),
        error("Hi.", "--mcp", NAME),
        case("Hi.", "--mcp", "{w.servers[works]}", "--allow", "*", settings=LOOKS, exact=True),
        case("Hi.", "--mcp", "{w.servers[fails]}", "--allow", "*", "--deny", NAME, settings=LOOKS, exact=True),
        *(error("Hi.", "--mcp", f"{{w.servers[{mode}]}}", settings=plays("Hi."))
          for mode in ("version", "exits", "nothing", "field")),
        case("Hi.", settings=(("HOSTILE_ERROR", EVIL),)),
        case("Hi.", settings=(("HOSTILE_ERROR", EVIL), ("LOCALAGENT_TRACEBACK", "1"))),
        case("Hi.", "--mcp", "{w.servers[works]}", settings=LOOKS, where="terminal",
             keys=(("[y]es", "e"), ("arguments: ", "\x01\x0b{]\r"), ("do not fit", ""), (READY, "\x01\x0b\r"), ("[y]es", "y"))),
    ],
    "chat": [
        case(*FILES, settings=ANSWERS, exact=True,
             stdin=f"/tools\nGo.\n/history\n/system {EVIL}\n/system\n/{EVIL}\n/exit{EVIL}\n"),
        case("--mcp", "{w.servers[works]}", settings=LOOKS, where="terminal",
             keys=((READY, "/tools\r"), (READY, "Go.\r"), ("[y]es", "n"), (READY, "/history\r"), (READY, "/exit\r"))),
        case("--resume", "last", settings=plays("Hi."), keys=((READY, "/history\r"), (READY, "\x04"))),
        case("--model", "{w.gguf}", *NANO, "--system", "word " * 40, stdin="Hi.\n"),
        error("--resume", NAME),
    ],
    "tools": [],  # they ship with the program, and nobody else has a word in what they say
    "parse": [
        case(stdin=SAYS),
        case("--jsonl", stdin=json.dumps({"id": EVIL, "text": SAYS + "\ud800"}) + "\n" + json.dumps({"id": EVIL})),
        case("-d", "auto", stdin=SAYS),
        error(NAME),
        error("-d", "{w.dialect}"),
        error("-d", NAME),
    ],
    "doctor": [case("--timeout", "5"), case("--json", "--timeout", "5", where="pipe")],
    "models list": [case("--all", settings=CATALOGUE), case("--json", settings=CATALOGUE)],
    "models default": [error(NAME), error("./" + NAME)],
    "models alias": [error(NAME), error("x", NAME), case("x", "{w.gguf}")],
    "models show": [
        case("lfm2-nano", settings=CATALOGUE), case("lfm2-350m", settings=CATALOGUE),
        case("lfm2-nano", "--json", settings=CATALOGUE), case("smollm2-135m"), error(NAME),
    ],
    "models pull": [case("lfm2-350m", settings=CATALOGUE), error("lfm2-nano", settings=CATALOGUE), error(NAME)],
    "models verify": [case("lfm2-nano", settings=CATALOGUE), error("lfm2-350m"), error(NAME)],
    "models requantize": [error(NAME), error("lfm2-nano", NAME), error("lfm2-nano", "--to", f"{NAME}/x")],
    "models rm": [case("lfm2-350m", where="terminal", keys=(("[y/N]", "n\r"),)), error("smollm2-135m"), error(NAME)],
    "sessions list": [case(), case("--json")],
    "sessions search": [case("EVIL"), case("EVIL", "--json"), error(NAME)],
    "sessions rename": [case("last", EVIL), case("last", "--forget"), error(f"{NAME}x", "y")],
    "sessions show": [
        case("last"), case("last", "--tree"), case("last", "--json"), error("last", "--entry", NAME), error(f"{NAME}x"),
    ],
    "sessions rm": [
        case("last", where="terminal", keys=(("[y/N]", "n\r"),)), case("last", "--yes"), error(f"{NAME}x", "--yes"),
    ],
    "sessions export": [
        case("last", exact=True),
        case("last", "--format", "text", exact=True),
        case("last", "--format", "jsonl"),
        *(case("last", "--format", form, where="pipe") for form in ("json", "openai", "anthropic", "gemini")),
        error("last", "--output", "{w.root}/" + NAME),
        error("last", "--output", f"/nowhere/{NAME}"),
    ],
    "cache list": [case(), case("--json")],
    "serve": [
        *(error("--port", "0", option, value) for option, value in (
            ("--model", NAME), ("--alias", f"{NAME}={NAME}"), ("--api-key-file", NAME), ("--origin", NAME),
            ("--allow-host", NAME),
        )),
    ],
    "connect": [
        case("openwebui", "--print", "--api-key-env", NAME), error(NAME), error("openwebui", "--url", NAME),
    ],
    "bench report": [
        case("{w.root}/results.jsonl"),
        error(NAME), error("{w.root}/plan.txt", shows=False), error("{w.root}/results.jsonl", "--html", f"/nowhere/{NAME}"),
    ],
    "bench parsers": [  # what parsers and corpora say: tests/bench/parsers/test_command.py
        error("--corpus", NAME), error("--parser", NAME), error("--python", NAME), error("--out", f"/nowhere/{NAME}"),
    ],
    "bench model": [
        error(NAME), error("lfm2-nano", "--against", NAME), error("lfm2-nano", "--depths", NAME),
    ],
    "bench server": [  # what servers say: tests/bench/server/test_command.py
        error("--url", NAME), error("--url", "http://127.0.0.1:9", "--streams", NAME),
        error("--url", "http://127.0.0.1:9", "--out", f"/nowhere/{NAME}"),
    ],
    "cache clear": [case(where="terminal", keys=(("[y/N]", "n\r"),))],
}
# fmt: on
ROWS = [
    pytest.param(each, name.split(), id=f"{name or 'localagent'} {number}")
    for name, cases in CASES.items()
    for number, each in enumerate(cases)
]


def test_every_command_is_here():
    assert set(CASES) - {""} == commands()


@pytest.fixture(scope="module")
def world(tmp_path_factory, nano) -> World:
    return make_world(tmp_path_factory.mktemp("hostile"), nano["llamacpp"])


@pytest.fixture
def program(world, localagent, tmp_path) -> Callable[[Case, list[str]], tuple[list[str], dict[str, str]]]:
    """The command line of a case and its environment, in a home of its own."""
    own = world.copy(tmp_path / "own")

    def line(given: Case, command: list[str]) -> tuple[list[str], dict[str, str]]:
        settings = {name: value.format(w=own) if "{w." in value else value for name, value in given.settings}
        environment = {
            **localagent.environment, "LOCALAGENT_HOME": str(own.home), "LOCALAGENT_OFFLINE": "1",
            "LOCALAGENT_MODEL": "lfm2-nano",  # else a chat would ask which model to fetch
            "PROMPT_TOOLKIT_NO_CPR": "1", "PYTHONPATH": str(HERE.parents[1]), **settings,
        }  # fmt: skip
        arguments = [word.format(w=own) for word in given.arguments]
        return [sys.executable, str(HERE / "hostile_program.py"), *command, *arguments], environment

    return line


def check_errors(given: Case, said: bytes) -> None:
    planned = any(name == "HOSTILE_ERROR" for name, _ in given.settings)
    assert planned or (b"internal error" not in said and b"Traceback" not in said), said


@pytest.mark.parametrize(("given", "command"), [row for row in ROWS if row.values[0].where != "terminal"])
def test_in_a_pipe(program, given, command):
    line, environment = program(given, command)
    done = subprocess.run(
        line, env=environment, input=given.stdin.encode(), capture_output=True, timeout=120, check=False
    )
    assert driven(done.stderr) == []
    if given.exact:
        assert EVIL.encode() in done.stdout
    else:
        assert driven(done.stdout) == []
        assert told(done.stdout + done.stderr) == given.shows, (done.stdout, done.stderr)
    check_errors(given, done.stderr)


@pytest.mark.parametrize(("given", "command"), [row for row in ROWS if row.values[0].where != "pipe"])
def test_on_a_terminal(program, tmp_path, given, command):
    line, environment = program(given, command)
    if given.stdin:
        piped = tmp_path / "stdin"
        piped.write_text(given.stdin)
        line = ["bash", "-c", f'exec "$@" < {piped}', "-", *line]
    child = pexpect.spawn(line[0], line[1:], env=environment, timeout=60, dimensions=(60, 300))
    shown = b""
    for awaited, typed in given.keys:
        child.expect_exact(awaited)
        shown += child.before + awaited.encode()
        child.send(typed)
    child.expect(pexpect.EOF)
    shown += child.before
    child.close()
    assert driven(shown) == []
    assert told(shown) == given.shows, shown
    assert rb"\x1b[0m" not in shown, "our own colours are not shown as text"
    check_errors(given, shown)


def test_what_looks_like_markup_is_text(program):
    line, environment = program(case("--all", settings=CATALOGUE), ["models", "list"])
    shown = subprocess.run(line, env=environment, capture_output=True, timeout=120, check=True).stdout
    assert b"[bold]" in shown


def test_a_path_in_a_pipe_is_the_path(localagent, tmp_path):
    """`$(localagent models pull NAME)` must name the file, whatever bytes its folder is called by."""
    home = tmp_path / NAME
    home.mkdir()
    (home / "models").symlink_to(default_root())
    done = localagent("models", "pull", "smollm2-135m", LOCALAGENT_HOME=str(home))
    path = done.stdout.removesuffix(b"\n")
    assert path.startswith(os.fsencode(home))
    assert Path(os.fsdecode(path)).is_file()
