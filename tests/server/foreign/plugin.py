"""For the pytest that runs llama-server's tests: where they start their server, ours is started.

It runs in the environment of those tests, which does not have localagent. One server is kept for each set of options
until the end, since to start one takes longer than most of the tests.
"""

import atexit
import os
import re
import signal
import subprocess
import tempfile
import time

import pytest

ABSENT = (
    *("server_embeddings", "server_reranking", "lora_files", "model_draft", "spec_type", "slot_save_path"),
    *(
        "models_dir",
        "models_preset",
        "server_tools",
        "server_tools_runtime",
        "mcp_servers_config",
        "mcp_servers_json",
    ),
    *("ui_mcp_proxy", "gcp_compat", "enable_ctx_shift", "sleep_idle_seconds"),
)
"""Options of llama-server without which a test has no sense, and that `localagent serve` does not have."""
MODEL, CONTEXT = "lfm2-nano", 4096
"""What is served in place of the models of the tests, which are on a hub, and the longest window that it has."""

LONGEST = 120
"""Seconds of a test, among them those in which a server starts."""

running: dict[tuple[str, ...], tuple[subprocess.Popen, int]] = {}


def command_of(server) -> tuple[str, ...]:
    """`localagent serve` with the options of a test."""
    for name in ABSENT:
        if getattr(server, name, None):
            pytest.fail(f"localagent serve has no {name}")
    if server.model_hf_repo is None and server.model_file is None:
        pytest.fail("localagent serve is no router of llama-servers")
    lanes = server.n_slots or 1
    options = ["--model", MODEL, "--lanes", str(lanes), "--port", "0", "--deadline", "60", "--no-snapshots"]
    if server.n_ctx:  # theirs is shared among the slots
        shared = server.n_ctx if server.kv_unified else server.n_ctx // lanes
        options += ["--context", str(min(shared, CONTEXT))]
    if server.model_alias:
        options += ["--alias", f"{server.model_alias}={MODEL}"]
    if server.cors_origins:
        options += [
            part for origin in server.cors_origins.split(",") for part in ("--origin", origin.strip())
        ]
    options += ["--metrics"] * bool(server.server_metrics) + ["--no-page"] * bool(server.no_ui)
    return (os.environ["LOCALAGENT_PYTHON"], "-m", "localagent", "serve", *options)


def start(server, timeout_seconds: int = 60) -> None:
    """In place of `ServerProcess.start`."""
    key = server.api_key or ""
    command = (*command_of(server), key)
    if command not in running or running[command][0].poll() is not None:
        env = {**os.environ, "PYTHONPATH": os.environ["LOCALAGENT_ROOT"], "LOCALAGENT_API_KEYS": key}
        with tempfile.TemporaryFile("w+") as said:
            child = subprocess.Popen(command[:-1], stdout=said, stderr=said, env=env)
            atexit.register(child.terminate)
            running[command] = child, address(child, said)
    server.server_port = running[command][1]


def address(child: subprocess.Popen, said) -> int:
    """The port that a server says it listens on."""
    until = time.monotonic() + 120
    while time.monotonic() < until and child.poll() is None:
        said.seek(0)
        if there := re.search(r"listens on http://[\d.]+:(\d+)", said.read()):
            return int(there[1])
        time.sleep(0.1)
    said.seek(0)
    return pytest.fail(f"localagent serve did not start: {said.read()[-300:]}")


def pytest_collection_modifyitems() -> None:
    import utils

    utils.ServerPreset.load_all = staticmethod(lambda: None)  # which downloads the models
    utils.ServerProcess.start = start
    utils.ServerProcess.stop = lambda server: None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    def late(*_: object) -> None:
        raise TimeoutError(f"it took more than {LONGEST} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    try:
        return (yield)
    finally:
        signal.alarm(0)
