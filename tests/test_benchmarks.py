"""The benchmarks that load an engine run on lfm2-nano, if only for a few tokens, and refuse what has no figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from localagent_bench.results import read_runs

ROOT = Path(__file__).parents[1]


def run(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.engine
def test_the_cost_above_the_bare_loop_is_measured_in_short_runs_too():
    done = run("host_overhead.py", "nano", "--tokens", "20", "--rounds", "1", "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    lanes = json.loads(done.stdout)["lanes"]
    assert [row["lane"] for row in lanes] == ["bare", "host", "stream"]
    assert all(row["tokens_per_second"] > 0 for row in lanes)


@pytest.mark.engine
def test_a_run_too_short_for_tenths_is_refused():
    done = run("host_overhead.py", "nano", "--tokens", "19")
    assert done.returncode == 2
    assert "--tokens must be 20 or more" in done.stderr


@pytest.mark.engine
def test_seven_tasks_are_done_in_a_terminal_of_a_person():
    done = run("seven_tasks.py", "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len([row for row in rows if row["side"] == "localagent"]) == 7
    assert [row["task"] for row in rows if row["seconds"] is None] == []


@pytest.mark.engine
def test_what_others_wait_during_a_flood_is_measured():
    done = run("floods.py", "chunks-1-no-key", "bodies-16-values", "--seconds", "1", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["flood"] for row in rows] == ["chunks-1-no-key", "bodies-16-values"]
    for row in rows:
        assert "inf" not in row["first during"] + row["health during"]
        assert all(float(each) > 0 for each in row["memory before, during, after"].split(" / "))


SMALL = ["nano", "--lanes", "4", "--tokens", "6", "--words", "40", "--system", "60", "--context", "512"]
SMALL += ["--rounds", "1", "--threads", "1", "--streams", "1,2"]


@pytest.mark.engine
def test_many_at_once_are_measured_on_every_side_that_is_here():
    done = run("concurrency.py", *SMALL, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert ("llama-server" in found["builds"]) != ("llama-server" in found["skipped"])
    assert list(found["scenarios"]) == ["1 stream", "2 streams", "long prompt", "shared", "churn"]
    for by_side in found["scenarios"].values():
        assert list(by_side) == list(found["builds"])
        assert by_side["localagent"]["other tokens"] == 0
    shared = found["scenarios"]["shared"]["localagent"]
    assert shared["evaluated"] < 0.7 * shared["of"]
    drafts = found["tool turns"]
    assert drafts["turns"] > 5
    assert drafts["turns that differ"] == 0
    assert 0 < drafts["of these came"] <= 1


@pytest.mark.engine
def test_a_server_that_is_not_here_takes_no_part():
    path = ROOT / "benchmarks" / "concurrency.py"
    hidden = "import runpy, sys; sys.modules['xllamacpp'] = None; sys.path.insert(0, sys.argv[1]); "
    hidden += "del sys.argv[:2]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", hidden, path.parent, path, *SMALL, "--only", "2 stream", "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["skipped"] == {"llama-server": "the package xllamacpp is not installed"}
    assert list(found["scenarios"]["2 streams"]) == ["localagent", "localagent, one lane"]


@pytest.mark.engine
def test_a_prompt_that_does_not_fit_is_refused_in_a_line():
    done = run("concurrency.py", *SMALL, "--words", "900", "--only", "long")
    assert done.returncode == 1
    assert "do not fit into a context of 512" in done.stderr.splitlines()[-1]


@pytest.mark.engine
@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="the package xllamacpp is not installed")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_server_ends_however_the_benchmark_does(how, tmp_path):
    options = [*SMALL, "--rounds", "1000", "--only", "stream"]
    command = [sys.executable, ROOT / "benchmarks" / "concurrency.py", *options]
    place = os.environ | {"TMPDIR": str(tmp_path)}  # a killed process leaves its copy of the weights there
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=place
    ) as bench:
        assert bench.stderr is not None
        next(line for line in bench.stderr if "llama-server" in line)
        [server] = [
            child for child in psutil.Process(bench.pid).children() if "llama-server" in child.cmdline()
        ]
        bench.send_signal(how)
        bench.wait(60)
        psutil.wait_procs([server], 60)
        assert not server.is_running()
    assert how == signal.SIGKILL or not any(tmp_path.iterdir())


SERVED = ["nano", "--tokens", "6", "--words", "40", "--context", "512", "--rounds", "1", "--threads", "1"]
SERVED += ["--streams", "1,2", "--answers", "6", "--clients", "2"]


@pytest.mark.engine
def test_servers_are_measured_over_real_sockets(tmp_path):
    out, html = tmp_path / "out.jsonl", tmp_path / "out.html"
    done = run("serving.py", *SERVED, "--json", "--out", str(out), "--html", str(html))
    assert done.returncode == 0, done.stderr
    assert done.stdout == out.read_text()
    (found,) = read_runs(out)
    here = [row["server"] for row in found.rows["server.servers"]]
    assert here == [name for name in ("llama-server", "localagent") if name not in found.skipped]
    streams = found.rows["server.streams"]
    assert [row["server"] for row in streams] == [*here, *here]
    assert [row["tokens"] for row in streams] == [6 * row["streams"] for row in streams]
    assert len({row["prompt"] for row in streams}) == 2, "all read the same prompts"
    assert all(row["speed"] > 0 and row["cpu"] >= 0 for row in streams)
    assert all(row["gap"] >= 0 for row in found.rows["server.long"])
    assert all(row["speed"] > 0 for row in found.rows["server.short"])
    assert "<svg" in html.read_text()


@pytest.mark.engine
def test_what_servers_do_is_tables_and_a_refusal_is_one_line():
    done = run("serving.py", *SERVED, "--words", "900")
    assert done.returncode == 0, done.stderr
    assert "CPU, s" in done.stdout
    (refused,) = [line for line in done.stdout.splitlines() if line.startswith("skipped localagent")]
    assert "long prompt" in refused and "context" in refused
    assert run("serving.py", *SERVED, "--answers", "1").returncode == 2


@pytest.mark.engine
def test_masks_are_measured_in_every_dialect_asked_for():
    done = run("masks.py", "nano", "--tools", "2", "--calls", "2", "--dialects", "lfm2,glm45", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["dialects"]
    assert list(found) == ["lfm2", "glm45"]
    assert all(row["token_median_ms"] > 0 and 0 <= row["forced"] <= 1 for row in found.values())
    assert run("masks.py", "nano", "--dialects", "nothing").returncode == 2
