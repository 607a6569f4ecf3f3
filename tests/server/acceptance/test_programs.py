"""Clients that run outside this environment: `programs/` asks by each, scene by scene, and prints what came.

The README of the server has a table of what each client does, and it has to say what is seen here.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import localagent.server
from tests.server.acceptance import installed
from tests.server.acceptance.scenes import (
    ANSWER,
    CALL,
    LOOP,
    NOWHERE,
    QUESTION,
    RAIN,
    THOUGHT,
    Paint,
    heard,
    playing,
    spoken,
)
from tests.server.serving import Running
from tests.server.test_faults import until

WITHIN = 120
"""Seconds for all scenes of a client, on a machine that has other things to do."""
PROGRAMS = Path(__file__).parent / "programs"
README = Path(localagent.server.__path__[0]) / "README.md"
COLUMNS = ("chat", "stream", "tools", "structured", "thinking", "cancel")
SCENES: dict[str, Callable[[Any], object]] = {
    "chat": lambda came: came == ANSWER,
    "stream": lambda came: "".join(came) == ANSWER and len([*filter(None, came)]) > 2,
    "tools": lambda came: came == ANSWER,
    "tools stream": lambda came: came == ANSWER,
    "structured": Paint.model_validate,
    "structured tool": Paint.model_validate,
    "structured stream": lambda came: Paint.model_validate(came[-1]) and came[0] != came[-1],
    "thinking": lambda came: came == "Oslo is wet.",
    "cancel": lambda came: came is True,
}
"""What has to come of a scene, whose words are the columns of the table that it fills."""
OUTPUTS = {
    "chat": [ANSWER],
    "tools": [CALL, ANSWER],
    "streamed": [CALL, ANSWER],
    "thought": [THOUGHT],
    "long": ["word " * 100_000],  # more than a socket takes while nobody reads
}


def rows() -> dict[str, tuple[str, list[str]]]:
    """The README's table: by clients, their version and the columns that are marked."""
    lines = [
        line for line in README.read_text().splitlines() if line.startswith("|") and line.count("|") == 9
    ]
    cells = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    return {
        name: (number, [column for column, mark in zip(COLUMNS, marks, strict=True) if mark == "✓"])
        for name, number, *marks in cells
    }


def check(row: str, command: Sequence[str | Path], nano_server: Running, **more: str) -> None:
    """Run a program to its end. All has to be right that came of its scenes, and the README has to say so."""
    _, promised = rows()[row]
    with ExitStack() as stack:
        servers = {scene: stack.enter_context(playing(*outputs)) for scene, outputs in OUTPUTS.items()}
        given = {scene: server.url for scene, server in servers.items()}
        given |= {"paint": nano_server.url, "question": QUESTION, "rain": RAIN, **more}
        child = stack.enter_context(
            subprocess.Popen(
                [*command, json.dumps(given)],
                cwd=installed.folder(),  # where Node finds its packages
                env={**os.environ, **NOWHERE},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(child.kill)
        if "cancel" in promised:  # while the program is still there, whose end would close its connections
            totals = servers["long"].service.metrics.totals
            until(lambda: totals().get("model-1", {}).get("cancelled") or child.poll() is not None, WITHIN)
        out, err = child.communicate(timeout=WITHIN)
        assert child.returncode == 0, err
        came = dict(map(json.loads, out.splitlines()))
        assert not {scene: result for scene, result in came.items() if not SCENES[scene](result)}
        for scene, server in (("tools", "tools"), ("tools stream", "streamed")):
            if scene in came:
                assert [spoken(turn) for turn in heard(servers[server])] == [LOOP[:1], LOOP]
    shown = {word for scene in came for word in scene.split()}
    assert [column for column in COLUMNS if column in shown] == promised, "the README says otherwise"


def check_script(name: str, nano_server: Running) -> None:
    check(name, [installed.program("frameworks"), PROGRAMS / f"ask_{name.replace('-', '_')}.py"], nano_server)


@installed.client("instructor")
def test_instructor(client: str, nano_server: Running) -> None:
    check_script("instructor", nano_server)


@installed.client("haystack-ai")
def test_haystack(client: str, nano_server: Running) -> None:
    check_script("haystack", nano_server)


@installed.client("llama-index-llms-openai-like")
def test_llama_index(client: str, nano_server: Running) -> None:
    check_script("llama-index", nano_server)


@installed.client("autogen-ext")
def test_autogen(client: str, nano_server: Running) -> None:
    check_script("autogen", nano_server)


@installed.client("ai")
@pytest.mark.parametrize(
    ("row", "provider"),
    [
        ("@ai-sdk/openai, chat", "chat"),
        ("@ai-sdk/openai, responses", "responses"),
        ("@ai-sdk/openai-compatible", "compatible"),
        ("@ai-sdk/anthropic", "messages"),
        ("ai-sdk-ollama", "ollama"),
    ],
)
def test_vercels_sdk(client: str, row: str, provider: str, nano_server: Running) -> None:
    source = (PROGRAMS / "ask_vercel.mjs").read_text()
    command = [installed.node(), "--input-type=module", "--eval", source, "-"]
    check(row, command, nano_server, provider=provider)


def test_the_table_has_the_versions_that_are_installed() -> None:
    told = README.read_text()
    wanted = [*installed.PACKAGES, *(each for some in installed.ENVIRONMENTS.values() for each in some)]
    versions = {
        name: number
        for name, at, number in (each.replace("==", "@").rpartition("@") for each in wanted)
        if at
    }
    behind = {name: number for name, number in versions.items() if f"| {number} |" not in told}
    # What others bring along has no row of its own.
    assert set(behind) <= {"zod", "ai", "autogen-agentchat", "llama-index-core"}, behind
