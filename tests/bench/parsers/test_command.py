"""`localagent bench parsers`: a small run says what it found, and bad input costs a line while the rest goes on."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from localagent_bench.bfcl import NoData
from localagent_bench.parsers.children import adapter
from localagent_bench.parsers.corpora import bfcl_tasks, file_rows
from localagent_bench.parsers.faults import FURTHER
from localagent_bench.parsers.outputs import FAULTS
from localagent_bench.parsers.plan import ParserPlan, measure
from localagent_bench.results import Results, read_runs

SETS = (
    *("simple_python", "multiple", "parallel", "parallel_multiple", "simple_java", "simple_javascript"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
)
FUNCTION = {
    "name": "geo.weather",
    "description": "The weather.",
    "parameters": {
        "type": "dict",
        "properties": {
            "city": {"type": "string"},
            "at": {"type": "dict", "properties": {"lat": {"type": "float"}}},
            "unit": {"type": "any"},
        },
    },
}
TRUTH = {"geo.weather": {"city": ["Paris", "paris"], "at": [{"lat": [1.5]}], "unit": ["", "c"]}}


@pytest.fixture
def bfcl(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "bfcl_eval" / "data"
    (folder / "possible_answer").mkdir(parents=True)
    for name in SETS:
        asked = (
            [{"id": f"{name}_{at}", "function": [FUNCTION]} for at in range(3)] if name == "multiple" else []
        )
        truth = [{"id": task["id"], "ground_truth": [TRUTH]} for task in asked]
        for path, lines in ((folder, asked), (folder / "possible_answer", truth)):
            (path / f"BFCL_v4_{name}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setenv("LOCALAGENT_BFCL", str(tmp_path))
    monkeypatch.delenv("LLAMACPP_SOURCE", raising=False)
    return folder


def bench(*options: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "localagent", "bench", "parsers", *options]
    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"COLUMNS": "200"} | more,
    )


def test_the_tasks_of_bfcl_are_read_as_servers_take_them(bfcl):
    tasks = bfcl_tasks()
    assert len(tasks) == 3
    assert tasks[0].calls == [("geo_weather", {"city": "Paris", "at": {"lat": 1.5}, "unit": "c"})]
    declared = tasks[0].tools[0]["function"]
    assert declared["name"] == "geo_weather"
    assert declared["parameters"]["type"] == "object"
    assert declared["parameters"]["properties"]["at"]["properties"] == {"lat": {"type": "number"}}
    assert declared["parameters"]["properties"]["unit"] == {}


def test_a_folder_without_tasks_says_how_to_get_them(bfcl, tmp_path, monkeypatch):
    (bfcl / "possible_answer" / "BFCL_v4_multiple.json").write_text("{}\n")
    with pytest.raises(NoData, match="cannot be read"):
        bfcl_tasks()
    monkeypatch.setenv("LOCALAGENT_BFCL", str(tmp_path / "nowhere"))
    with pytest.raises(NoData, match="unpack bfcl-eval there"):
        bfcl_tasks()


def test_a_quick_run_has_every_table_and_its_results_can_be_read_again(bfcl, tmp_path):
    out = tmp_path / "results.jsonl"
    done = bench(
        "--quick", "--parser", "ours", "-d", "hermes", "-d", "lfm2", "-d", "glm45", "--out", str(out)
    )
    assert done.returncode == 0, done.stderr
    (run,) = read_runs(out)
    assert run.seconds < 60
    assert run.options["quick"] is True
    assert {name.removeprefix("parsers.") for name in run.rows} == {
        "parsers",
        "recorded",
        "trips",
        "faults",
        "faults_by",
        "speed",
    }
    trips = {row["written"]: row for row in run.rows["parsers.trips"]}
    assert trips["localagent"]["outputs"] == 9
    assert [row["right"] for row in trips.values()] == [100] * len(trips)
    assert [row["equal"] for row in trips.values()] == [100] * len(trips)
    faults = run.rows["parsers.faults"]
    assert [row["set"] for row in faults] == ["one", "further"]
    by = {row["fault"]: row["outputs"] for row in run.rows["parsers.faults_by"]}
    assert by.keys() == {*FAULTS, *FURTHER} - {"draft", "half-draft", "inside"}, (
        "all tasks have the same call"
    )
    assert sum(row["outputs"] for row in faults) == sum(by.values())
    assert (faults[0]["wrong"], faults[0]["known"]) == (0, 0)
    assert faults[1]["against"] <= faults[1]["wrong"] < 3
    assert all(row["piece"] > 0 and row["memory"] > 0 for row in run.rows["parsers.speed"])
    for title in ("Recorded outputs", "Calls read back", "Outputs with one fault", "Cost of a piece"):
        assert title in done.stdout


def test_single_kinds_of_faults_are_asked_for_and_all_are_in_the_help(bfcl, tmp_path):
    out = tmp_path / "results.jsonl"
    only = ("--corpus", "bfcl", "--quick", "--no-speed", "--parser", "ours", "-d", "hermes")
    done = bench(*only, "--fault", "crlf", "--fault", "cut", "--out", str(out))
    assert done.returncode == 0, done.stderr
    (run,) = read_runs(out)
    assert [row["fault"] for row in run.rows["parsers.faults_by"]] == ["cut", "crlf"]
    told = " ".join(bench("--help").stdout.split()).replace("- ", "-")
    for name in (*FAULTS, *FURTHER):
        assert re.search(rf"(?<![\w-]){name}[,.]", told), name


ROW = {
    "id": "a", "dialect": "hermes", "text": '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "expected": {"content": "", "reasoning": "", "tool_calls": [{"name": "f", "arguments": {}}]},
}  # fmt: skip
BROKEN = [
    b"{",
    b"[]",
    b"\xff\xfe",
    b"[" * 100_000,
    json.dumps(ROW | {"dialect": "klingon"}).encode(),
    json.dumps({key: value for key, value in ROW.items() if key != "expected"}).encode(),
    json.dumps(ROW | {"text": 3}).encode(),
    json.dumps(ROW | {"inside": "\x1b[2J"}).encode(),
    json.dumps(ROW | {"expected": {"tool_calls": [{"name": "f"}]}}).encode(),
    json.dumps(ROW | {"tools": "f"}).encode(),
    json.dumps(ROW | {"chunks": [1], "text": None}).encode(),
    json.dumps(ROW | {"finish": "\x1b[2J"}).encode(),
    json.dumps(ROW | {"expected": {"content": 5, "tool_calls": []}}).encode(),
    json.dumps(ROW | {"expected": {"tool_calls": [{"name": "f", "arguments": [[1, 2], ["a", 3]]}]}}).encode(),
    json.dumps(ROW)
    .replace('"arguments": {}}]}', f'"arguments": {{"a": {"[" * 400 + "]" * 400}}}}}]}}')
    .encode(),
]


def test_lines_that_are_no_outputs_are_noted_and_left_out(tmp_path):
    path = tmp_path / "mine.jsonl"
    nameless = {key: value for key, value in ROW.items() if key != "id"}
    path.write_bytes(b"\n".join([*BROKEN, b"", *(json.dumps(row).encode() for row in (ROW, nameless))]))
    notes: list[str] = []
    assert [row.id for row in file_rows(path, notes.append)] == ["a", str(len(BROKEN) + 3)]
    assert len(notes) == len(BROKEN)
    assert all(note.startswith(f"mine.jsonl, line {at}, is left out: ") for at, note in enumerate(notes, 1))
    (tmp_path / "empty.jsonl").touch()
    assert list(file_rows(tmp_path / "empty.jsonl", notes.append)) == []
    assert notes[-1] == "empty.jsonl holds no outputs that can be judged"


def test_a_corpus_of_ones_own_and_commands_that_fail(tmp_path):
    corpus, empty, bad = tmp_path / "mine.jsonl", tmp_path / "empty.jsonl", tmp_path / "bad.py"
    hostile = {"id": "b\x1b[31m", "text": "\x1b]0;x\x07<tool_call>\ud800", "expected": ROW["expected"]}
    corpus.write_text("\n".join(map(json.dumps, (ROW, ROW | hostile))) + "\n{\n")
    empty.touch()
    bad.write_text("import sys\nfor line in sys.stdin: print('\\x1b[2J', flush=True)")
    command = shlex.join([sys.executable, str(bad)])
    good = shlex.join([sys.executable, "-m", "localagent", "parse", "--jsonl"])
    done = bench(
        *("--corpus", str(corpus), "--corpus", str(empty), "--parser", "ours", "--no-speed", "--show"),
        *("--cmd", command, "--cmd", "/nowhere", "--cmd", good),
    )
    assert done.returncode == 0, done.stderr
    assert "mine.jsonl, line 3, is left out" in done.stderr
    assert "empty.jsonl holds no outputs" in done.stderr
    assert "/nowhere takes no further part: /nowhere cannot be started" in done.stderr
    assert "its answer is no JSON object" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["mine", "hermes", "localagent", "2", "1", "0", "1", "0", "0"] in [line[:9] for line in lines]
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--corpus", "klingon"], "no corpus is called klingon"),
        (["--parser", "klingon"], "no parser is called klingon"),
        (["--python", "klingon=/bin/false"], "no parser is called klingon"),
        (["--dialect", "klingon"], "klingon"),
        (["--cmd", "a 'b"], "--cmd: No closing quotation"),
        (["--cmd", "./mine", "--cmd", "./mine"], "--cmd ./mine: a parser is called that already"),
        (["--cmd", "localagent"], "--cmd localagent: a parser is called that already"),
        (["--fault", "klingon"], "no fault is called klingon: there are lost, doubled"),
        (["--fault", "cut", "--no-faults"], "--no-faults leaves out --fault"),
        (["--all", "--quick"], "--all leaves nothing to choose"),
        (["--parser", "ours", "--python", "ours=/nowhere/python"], "no parser can be measured"),
    ],
)
def test_options_that_name_nothing_are_refused(options, says):
    done = bench(*options)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_corpus_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path):
    mine, gone = tmp_path / "mine.jsonl", tmp_path / "gone.jsonl"
    mine.write_text(json.dumps(ROW))
    said: list[str] = []
    results = Results("parsers", {})
    plan = ParserPlan([adapter("ours")], [str(gone), str(mine)], faults=False, speed=False)
    measure(results, plan, said.append)
    assert f"{gone} cannot be read: No such file or directory" in said
    assert [row["exact"] for row in results.run.rows["parsers.recorded"]] == [100]


def test_without_bfcl_the_rest_is_measured(tmp_path):
    done = bench("--quick", "--parser", "ours", "-d", "lfm2", "--no-speed", LOCALAGENT_BFCL=str(tmp_path))
    assert done.returncode == 0
    assert "skipped bfcl: LOCALAGENT_BFCL names" in done.stdout
    assert "Recorded outputs" in done.stdout
