"""The fast lane, `make test-fast`: one engine and few examples, for daily work. What it leaves out it says at the end.

A pytest plugin. What any change might break stays in: case tables, laws, the loop, the wires, sessions. What runs
programs, kills them, waits for them or compares engines is left out, and `make test` runs it all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SLOW = {
    "MLX, and both engines beside each other": [
        "tests/agent/test_nano.py",
        "tests/hosts/mlx",
        "tests/hosts/test_engines.py",
        "tests/hosts/test_long_prompts.py",
        "tests/nano/test_weights.py::test_mlx_writes_the_same",
    ],
    "engines that are built, tried, crash or hang": [
        "tests/engines/test_build.py",
        "tests/engines/test_check.py",
        "tests/engines/test_children.py",
        "tests/engines/test_commands.py",
        "tests/engines/test_trial.py",
        "tests/hosts/test_hostile_weights.py",
    ],
    "the commands, in terminals and pipes": ["tests/cli"],
    "clients that others wrote": ["tests/server/acceptance"],
    "downloads, wheels and environments": ["tests/store", "tests/test_packaging.py"],
    "programs that are killed": [
        "tests/agent/test_killed.py",
        "tests/session/test_files.py::test_kills_at_random_moments",
        "tests/test_log.py::test_kills_at_random_moments",
    ],
    "runs that are left, and many calls at once": [
        "tests/agent/test_leaving.py",
        "tests/agent/test_many_calls.py",
    ],
    "servers that are slow, wrong or gone": ["tests/agent/test_mcp.py", "tests/mcp"],
    "replicas on Ray Serve, and servers behind servers": [
        "tests/server/fleet/test_fleet.py",
        "tests/server/fleet/test_parts.py",
        "tests/server/test_elsewhere.py",
    ],
    "random schedules and fifty agents on real weights": ["tests/hosts/test_lanes.py"],
    "costs and sizes that are measured": [
        "tests/hosts/test_memory.py::test_against_llama_cpp",
        "tests/parsers/test_adversarial.py",
    ],
    "what the tests themselves are worth": [
        "tests/test_layers.py::test_the_tests_of_the_parsers_need_no_localagent",
        "tests/test_mutants.py",
    ],
}
LEFT_OUT = {path: why for why, paths in SLOW.items() for path in paths}


def is_left_out(item: pytest.Item) -> bool:
    """Whether a test is named above, or is the one of two that runs on MLX."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return item.nodeid.partition("[")[0] in LEFT_OUT or "mlx" in parameters


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Files that are left out are not even imported."""
    return collection_path.relative_to(ROOT).as_posix() in LEFT_OUT or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    out = [each for each in items if is_left_out(each)]
    config.hook.pytest_deselected(items=out)
    items[:] = [each for each in items if each not in out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what did not run."""
    terminalreporter.section("left out here; `make test` runs it")
    for why, paths in SLOW.items():
        terminalreporter.write_line(f"{why}: {' '.join(paths)}")
