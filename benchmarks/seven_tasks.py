"""Seven tasks in a terminal, done with `localagent` and with `llm`: keystrokes, and seconds of waiting.

    python benchmarks/seven_tasks.py [--llm PROGRAM] [--rounds 3] [--json]

first answer    from the shell's prompt to a whole answer
continue        a second question that belongs to the first
attach a file   a question about a file
change model    an answer from another model, in the same conversation
regenerate      another answer to the same question
copy            the answer on the clipboard
find            last week's conversation, by a word in it

Each side has a shell of its own on a pseudo-terminal, in which the keys are pressed that its documentation
names; both stay in their chat as long as it can do the task. A key that is held with another one counts as
one. What is typed arrives at once, so that the seconds are those that a person waits. All sides have
lfm2-nano: `localagent` loads it itself, or asks `localagent serve` with --url; `llm` asks that server, since
it runs no models of its own without a plugin. Figures are medians of the rounds. What comes out is looked at:
a task that was not done has no figures. Without `llm`, which belongs into an environment of its own, only our
sides are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pexpect
import pyte
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from localagent.nano import GGUF
from localagent_bench.harness.servers import Settings, SideFailed, running

SHELL = "ready-for-more$ "
CTRL_D, ENTER, UP = "\x04", "\r", "\x1b[A"
QUESTION = "Name three colours."
NOTES = "The harbour opens at nine. Bring the blue coat and two lemons.\n"
_PATIENCE = 120.0


@dataclass(frozen=True)
class Step:
    """Keys that are pressed, and what is waited for after the last of them."""

    keys: str
    until: str
    shows: str = ""
    """What must have been shown by then, if the task is done."""

    @property
    def count(self) -> int:
        """How many keys that are. An arrow is one, although it sends three characters."""
        return len(self.keys.replace(UP, "^"))


@dataclass(frozen=True)
class Task:
    """A task, and how it is done; `note` where that is not quite what was asked for."""

    name: str
    steps: Sequence[Step]
    note: str = ""


def ours(options: str = "") -> list[Task]:
    """How `localagent` does them. `options`: of `localagent chat`."""
    chat = "> "
    return [
        Task(
            "first answer",
            [Step(f"localagent chat{options}{ENTER}", chat), Step(QUESTION + ENTER, chat, r"saved in")],
        ),
        Task("continue", [Step("Three more." + ENTER, chat)]),
        Task("attach a file", [Step("Sum up @notes.txt " + ENTER, chat, r"notes\.txt: \d+ tokens")]),
        Task(
            "change model",
            [Step("/model other" + ENTER, chat, "tokens of context"), Step("Hi." + ENTER, chat)],
        ),
        Task("regenerate", [Step("/retry" + ENTER, chat)]),
        Task("copy", [Step("/copy" + ENTER, chat, "characters copied")]),
        Task(
            "find",
            [Step(CTRL_D, SHELL), Step("localagent sessions search colours" + ENTER, SHELL, "three colours")],
        ),
    ]


def theirs() -> list[Task]:
    """How `llm` does them."""
    chat = "> "
    return [
        Task("first answer", [Step("llm chat" + ENTER, chat), Step(QUESTION + ENTER, chat)]),
        Task("continue", [Step("Three more." + ENTER, chat)]),
        Task(
            "attach a file",
            [
                Step("!multi" + ENTER, ""),
                Step("!fragment notes.txt" + ENTER, ""),
                Step("Sum up." + ENTER, ""),
                Step("!end" + ENTER, chat),
            ],
        ),
        Task(
            "change model",
            [
                Step(CTRL_D, SHELL),
                Step("llm chat -c -m other" + ENTER, chat, "other"),
                Step("Hi." + ENTER, chat),
            ],
        ),
        Task(
            "regenerate", [Step(UP + ENTER, chat)], "asks again; the first answer stays in the conversation"
        ),
        Task("copy", [Step(CTRL_D, SHELL), Step("llm logs -r | xclip -sel c" + ENTER, SHELL)]),
        Task("find", [Step("llm logs -q colours" + ENTER, SHELL, "three colours")]),
    ]


class Terminal:
    """A shell on a pseudo-terminal, and the screen that a person would see."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        size = (40, 120)
        self._shell = pexpect.spawn(
            "bash", ["--norc", "--noprofile", "-i"], cwd=str(folder), env=dict(environment), dimensions=size
        )
        self._shell.delaybeforesend = None
        self._screen = pyte.Screen(size[1], size[0])
        self._stream = pyte.ByteStream(self._screen)
        self.shown = b""

    def press(self, keys: str) -> None:
        """Press these keys."""
        self.shown = b""
        self._shell.send(keys)

    def wait(self, prompt: str) -> None:
        """Wait until the cursor stands after `prompt`, on a line of its own and below what was typed.

        Raises Failed.
        """
        end = perf_counter() + _PATIENCE
        while not (b"\n" in self.shown and self._line() == prompt.rstrip()):
            try:
                data = self._shell.read_nonblocking(1 << 16, timeout=1)
            except pexpect.TIMEOUT:
                data = b""
            except pexpect.EOF:
                raise SideFailed("the shell has ended") from None
            self._stream.feed(data)
            self.shown += data
            if perf_counter() > end:
                seen = " / ".join(line.rstrip() for line in self._screen.display if line.strip())
                raise SideFailed(f"{prompt!r} does not come: {seen[-600:]}")

    def _line(self) -> str:
        return str(self._screen.display[self._screen.cursor.y]).rstrip()

    def close(self) -> None:
        """End the shell and what runs in it."""
        self._shell.close(force=True)


def do(tasks: Sequence[Task], folder: Path, environment: Mapping[str, str]) -> list[float | None]:
    """The seconds that each task takes, in one shell; None for one that was not done. Raises Failed."""
    terminal = Terminal(folder, environment)
    taken: list[float | None] = []
    try:
        terminal.press(ENTER)
        terminal.wait(SHELL)
        for task in tasks:
            began, done = perf_counter(), True
            for step in task.steps:
                terminal.press(step.keys)
                terminal.wait(step.until)
                done = done and re.search(step.shows, terminal.shown.decode(errors="replace")) is not None
            taken.append(perf_counter() - began if done else None)
    finally:
        terminal.close()
    return taken


def environment_of(folder: Path, llm: Path | None, url: str) -> dict[str, str]:
    """A home of its own for each program, with both models; and a clipboard."""
    home, theirs_ = folder / "home", folder / "llm"
    programs = folder / "bin"
    for each in (home, theirs_, programs):
        each.mkdir(parents=True)
    (folder / "notes.txt").write_text(NOTES)
    (programs / "localagent").symlink_to(Path(sys.executable).with_name("localagent"))
    if llm is not None:
        (programs / "llm").symlink_to(llm)
    clipboard = programs / "xclip"
    clipboard.write_text(f"#!/bin/sh\nexec cat > '{folder}/clipboard'\n")
    clipboard.chmod(0o755)
    (theirs_ / "default_model.txt").write_text("nano")
    (theirs_ / "extra-openai-models.yaml").write_text(
        "".join(
            f"- model_id: {name}\n  model_name: {name}\n  api_base: {url}/v1\n" for name in ("nano", "other")
        )
    )
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("LOCALAGENT", "LLM"))},
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "LOCALAGENT": str(programs / "localagent"),
        "LOCALAGENT_HOME": str(home),
        "LOCALAGENT_MODEL": "lfm2-nano",
        "LOCALAGENT_ENGINE_CHECK": "0",  # once for each home; these are new
        "LLM_USER_PATH": str(theirs_),
        "DISPLAY": ":0",
        "PROMPT_TOOLKIT_NO_CPR": "1",  # nobody here reports the cursor
        "PS1": SHELL,
        "TERM": "xterm-256color",
    }


def measure(llm: Path | None, rounds: int) -> list[dict[str, Any]]:
    """A row for each side and task."""
    settings = Settings(weights=str(GGUF), context=4096, lanes=1, threads=1)
    with (
        tempfile.TemporaryDirectory() as temporary,
        running("localagent", settings, Path(temporary)) as child,
    ):
        url = f"http://127.0.0.1:{child.port}"
        sides = {"localagent": ours(), "localagent --url": ours(f" --url {url}")}
        if llm is not None:
            sides["llm"] = theirs()
        taken: dict[str, list[list[float | None]]] = {side: [] for side in sides}
        for number in range(rounds):
            for place, (side, tasks) in enumerate(sides.items()):
                folder = Path(temporary) / f"{number}-{place}"
                environment = environment_of(folder, llm, url)
                alias = [environment["LOCALAGENT"], "models", "alias", "other", "lfm2-nano"]
                subprocess.run(alias, env=environment, check=True, capture_output=True)
                taken[side].append(do(tasks, folder, environment))
    return [
        {
            "task": task.name,
            "side": side,
            "keys": sum(step.count for step in task.steps),
            "seconds": _median([each[at] for each in taken[side]]),
            "note": task.note,
        }
        for side, tasks in sides.items()
        for at, task in enumerate(tasks)
    ]


def _median(seconds: Sequence[float | None]) -> float | None:
    """None if the task was not done in every round."""
    done = [each for each in seconds if each is not None]
    return round(median(done), 2) if len(done) == len(seconds) else None


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """A table: a line for each task, and the sums."""
    sides = list(dict.fromkeys(row["side"] for row in rows))
    table = Table("task", *(f"{side}: keys, s" for side in sides), box=SIMPLE_HEAD)
    for task in dict.fromkeys(row["task"] for row in rows):
        found = [next(row for row in rows if (row["task"], row["side"]) == (task, side)) for side in sides]
        table.add_row(
            task, *(f"{row['keys']}, {_told(row['seconds'])}{'*' * bool(row['note'])}" for row in found)
        )
    sums = [[row for row in rows if row["side"] == side] for side in sides]
    table.add_row(
        "all",
        *(f"{sum(row['keys'] for row in each)}, {_sum([row['seconds'] for row in each])}" for each in sums),
    )
    console = Console()
    console.print(table)
    for note in dict.fromkeys(
        f"* {row['side']}, {row['task']}: {row['note']}" for row in rows if row["note"]
    ):
        console.print(note)


def _told(seconds: float | None) -> str:
    return "not done" if seconds is None else f"{seconds:.2f}"


def _sum(seconds: Sequence[float | None]) -> str:
    return _told(None if None in seconds else sum(each for each in seconds if each is not None))


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--llm", default=shutil.which("llm"), help="the program `llm`; by default the one in PATH"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")
    asked = parser.parse_args()
    if asked.llm is not None and not Path(asked.llm).exists():
        sys.exit(f"there is no program {asked.llm}: install llm into an environment of its own")
    try:
        rows = measure(Path(asked.llm).absolute() if asked.llm else None, asked.rounds)
    except SideFailed as error:
        sys.exit(str(error))
    if asked.json:
        for row in rows:
            print(json.dumps(row))
    else:
        show(rows)


if __name__ == "__main__":
    main()
