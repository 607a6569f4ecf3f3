"""What the options of the benchmarks ask for, which of them are recorded, and what is shown meanwhile."""

from __future__ import annotations

import importlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from localagent.cli.app import app
from localagent.errors import UsageError
from localagent_bench.cli.server import ServerOptions
from localagent_bench.model.plan import ModelPlan
from localagent_bench.model.sides import Side
from localagent_bench.model.speed import Sizes
from localagent_bench.parsers import plan as of_parsers
from localagent_bench.parsers.children import ADAPTERS
from localagent_bench.server.load import Load

model = importlib.import_module("localagent_bench.cli.model")  # its package has a function of that name
NANO = Side("lfm2-nano")


def bench(*words: str) -> None:
    app(["bench", *words], standalone_mode=False)


# Models


@pytest.fixture
def asked(monkeypatch, capsys):
    """The plan that the options make, and the options that are recorded."""
    monkeypatch.setattr(model, "_fetch", lambda sides: ("what loads", [side.name for side in sides]))

    def run(*words: str) -> tuple[ModelPlan, dict[str, Any]]:
        plans = []
        monkeypatch.setattr("localagent_bench.model.plan.measure", lambda *given: plans.append(given))
        bench("model", *words, "--json")
        [(_, plan, load, _)] = plans
        assert load == ("what loads", [side.name for side in plan.sides])
        return plan, json.loads(capsys.readouterr().out.splitlines()[0])["options"]

    return run


def test_a_model_is_measured_as_the_help_says(asked):
    plan, options = asked("lfm2-nano")
    assert plan == ModelPlan([NANO], Sizes((0, 512, 2048), 256, 64, 3), 10, None, 100, 1, 512)
    assert options == {
        "sides": ["lfm2-nano"], "depths": "0,512,2048", "prompt": 256, "decode": 64, "rounds": 3,
        "exchanges": 10, "sample": 100, "tools": None, "seed": 1, "all": False, "max_tokens": 512,
    }  # fmt: skip
    plan, _ = asked("lfm2-nano", "--quick")
    assert plan == ModelPlan([NANO], Sizes((0, 256), 64, 32, 2), 3, None, 21, 1, 512)


def test_options_go_before_those_of_quick(asked):
    plan, options = asked(
        "lfm2-nano", "--quick", "--depths", "9,0,9", "--rounds", "7", "--exchanges", "0", "--sample", "2",
        "--tools", "none", "--seed", "5", "--max-tokens", "8", "--threads", "1", "--context", "99",
        "--backend", "llamacpp", "--dialect", "lfm2",
    )  # fmt: skip
    common = {"dialect": "lfm2", "backend": "llamacpp", "context": 99, "threads": 1}
    assert plan == ModelPlan(
        [Side("lfm2-nano", (), tuple(common.items()))], Sizes((0, 9), 64, 32, 7), 0, "none", 2, 5, 8
    )
    assert options == {
        "sides": ["lfm2-nano"], **common, "depths": "9,0,9", "prompt": 64, "decode": 32, "rounds": 7,
        "exchanges": 0, "sample": 2, "tools": "none", "seed": 5, "all": False, "max_tokens": 8,
    }  # fmt: skip
    plan, options = asked("lfm2-nano", "--all", "--depths", "none")
    assert (plan.sample, plan.sizes.depths, options["all"]) == (None, (), True)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["lfm2-nano", "lfm2-350m"], ["lfm2-nano", "lfm2-350m"]),
        (["lfm2-na"], ["lfm2-nano"]),
        (["lfm2-nano", "--constraint", "off"], ["lfm2-nano constraint=off"]),
        (["lfm2-nano", "--constraint", "both"], ["lfm2-nano", "lfm2-nano constraint=off"]),
        (
            ["lfm2-nano", "--against", "threads=1,top_k=2", "--against", "thinking=off"],
            ["lfm2-nano", "lfm2-nano threads=1 top_k=2", "lfm2-nano thinking=off"],
        ),
    ],
)
def test_sides_that_are_held_against_the_first(asked, words, names):
    plan, options = asked(*words)
    assert [side.name for side in plan.sides] == options["sides"] == names


def test_without_a_name_the_default_model_of_the_backend_is_measured(asked, monkeypatch):
    wanted = []
    monkeypatch.setattr("localagent.cli.naming.default_model", lambda backend: wanted.append(backend) or "m")
    assert [side.model for side in asked("--backend", "mlx")[0].sides] == ["m"]
    assert [side.model for side in asked()[0].sides] == ["m"]
    assert wanted == ["mlx", None]


@pytest.mark.parametrize("text", ["-1", "1,-1", "x", "", "1,,2"])
def test_depths_that_are_none(text):
    with pytest.raises(UsageError) as error:
        model._depths(text)
    assert str(error.value) == f"--depths {text}: write numbers of tokens, such as 0,512,2048, or none"


def test_all_tasks_are_no_sample():
    with pytest.raises(UsageError, match=r"^--all and --sample contradict each other: leave one out$"):
        bench("model", "lfm2-nano", "--all", "--sample", "3")


def test_weights_are_fetched_for_the_engine_that_is_asked_for(monkeypatch):
    pulled, loaded, needed = [], [], []

    def load(name, **options):
        loaded.append((name, options))
        return "a model"

    monkeypatch.setattr("localagent.engines.check.require_engine", needed.append)
    monkeypatch.setattr(
        "localagent.store.WeightStore.pull",
        lambda _, spec, engine, report: pulled.append((spec.name, engine)),
    )
    monkeypatch.setattr("localagent.model.load_weights", load)
    first, second = NANO, Side("lfm2-nano", (("backend", "mlx"),))
    open_model = model._fetch([first, second])
    engine = first_engine = pulled[0][1]
    assert pulled == [("lfm2-nano", first_engine), ("lfm2-nano", "mlx")]
    assert needed == [engine, "mlx"]
    assert open_model("lfm2-nano", {"threads": 1}) == "a model"
    open_model("lfm2-nano", {"backend": "mlx"})
    assert loaded == [
        ("lfm2-nano", {"lanes": 1, "threads": 1}), ("lfm2-nano", {"lanes": 1, "backend": "mlx"}),
    ]  # fmt: skip


def test_progress_is_a_line_for_each_quarter_where_there_is_no_terminal(capsys):
    with model._progress() as tell:
        for done in range(9):
            tell("speed", done, 8)
        tell("tools", 0, 1)
        tell("speed", 0, 8)
    assert capsys.readouterr().err.splitlines() == [
        "speed: 0 of 8", "speed: 2 of 8", "speed: 4 of 8", "speed: 6 of 8", "speed: 8 of 8", "tools: 0 of 1",
    ]  # fmt: skip


def test_progress_is_a_bar_on_a_terminal_which_leaves_nothing(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(sys, "__stderr__", shown)
    monkeypatch.setenv("TERM", "xterm")
    streams = sys.stdout, sys.stderr
    with model._progress() as tell:
        tell("a [red]\x1b[2J", 1, 3)
        assert (sys.stdout, sys.stderr) == streams
    drawn = shown.getvalue()
    assert "a [red]\\x1b[2J" in drawn
    assert "1/3" in drawn
    assert drawn.endswith("\x1b[2K"), "the line is cleared"


# Parsers


def planned(monkeypatch, *words: str) -> of_parsers.ParserPlan:
    plans = []
    monkeypatch.setattr(of_parsers, "measure", lambda results, plan, say: plans.append(plan))
    bench("parsers", *words)
    return plans[0]


def children(plan: of_parsers.ParserPlan) -> list[tuple[str, str]]:
    return [(each.name, each.command[0]) for each in plan.parsers]


def test_parsers_are_measured_as_the_help_says(monkeypatch):
    plan = planned(monkeypatch)
    assert children(plan) == [(name, sys.executable) for name in ADAPTERS.values()]
    expected = of_parsers.ParserPlan(
        plan.parsers, [*of_parsers.CORPORA], [], None, True, True, 1, 50, False, False
    )
    assert plan == expected
    kinds = planned(monkeypatch, "--fault", "inside", "--fault", "cut", "--fault", "inside").kinds
    assert kinds == ("inside", "cut")
    assert planned(monkeypatch, "--quick").tasks is None, "it has a sample of its own"
    assert planned(monkeypatch, "--all").tasks is None
    assert planned(monkeypatch, "--quick", "--sample", "3").tasks == 3


def test_options_of_parsers(monkeypatch, tmp_path):
    mine = tmp_path / "mine.jsonl"
    mine.touch()
    plan = planned(
        monkeypatch, "--corpus", "cases", "-c", str(mine), "-c", "cases", "--parser", "ours", "-p", "sglang",
        "-p", "ours", "--python", "sglang=/x/python", "--cmd", "./my parser", "-d", "qwen3", "--no-faults",
        "--no-speed", "--seed", "4", "--quick", "--show", "--templates", str(tmp_path),
    )  # fmt: skip
    assert children(plan) == [
        ("localagent", sys.executable), ("SGLang", "/x/python"), ("./my parser", "./my"),
    ]  # fmt: skip
    assert plan.corpora == ["cases", str(mine)]
    assert plan == of_parsers.ParserPlan(
        plan.parsers, plan.corpora, ["hermes"], tmp_path, False, False, 4, None, True, True
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-c", "x"], "no corpus is called x: there are canitoolcall, cases, bfcl, and files"),
        (["--all", "--sample", "3"], "--all leaves nothing to choose: leave out --sample and --quick"),
        (["-p", "x"], "no parser is called x: there are ours, mlx_lm, transformers, sglang, llamacpp"),
        (["--cmd", " "], "--cmd: the command is empty"),
        (
            ["--cmd", "a", "--cmd", "a"],
            "--cmd a: a parser is called that already: write the command differently",
        ),
    ],
)
def test_parsers_that_cannot_be_measured(words, says):
    with pytest.raises(UsageError) as error:
        bench("parsers", *words)
    assert str(error.value) == says


def test_what_was_asked_of_parsers_is_recorded_and_what_went_wrong_is_shown(monkeypatch, capsys):
    def measure(results, plan, say):
        results.run.cases.append({"id": 7, "why": "wrong"})

    monkeypatch.setattr(of_parsers, "measure", measure)
    bench("parsers", "--templates", "x", "--show")
    assert capsys.readouterr().out == "\n  id       7\n  why      wrong\n"
    bench("parsers")
    assert capsys.readouterr().out == ""
    bench("parsers", "--templates", "x", "--show", "--json")
    first, *others = capsys.readouterr().out.splitlines()
    assert json.loads(first)["options"] == {
        "templates": "x", "faults": True, "speed": True, "seed": 1, "show": True,
    }  # fmt: skip
    assert not any("wrong" in line for line in others), "lines of JSON alone"


# Servers


@pytest.mark.parametrize(
    ("given", "load"),
    [
        ({}, Load((1, 4, 8), (1, 8), 64, 1500, 100, 3, 600.0)),
        ({"quick": True}, Load((1, 4), (1, 4), 16, 300, 20, 1, 600.0)),
        (
            {"quick": True, "streams": "2, 3,2", "clients": "1000", "tokens": 5, "words": 6, "answers": 7, "rounds": 8},
            Load((2, 3), (1000,), 5, 6, 7, 8, 600.0),
        ),
        ({"timeout": 200.0}, Load(limit=1000.0)),
    ],
)  # fmt: skip
def test_how_much_is_asked_of_a_server(given, load):
    assert ServerOptions(**given).loads() == load


@pytest.mark.parametrize("text", ["0", "1001", "1,,2", "-1", "x", "1.5", "00001", "9" * 99])
def test_numbers_of_streams_that_are_none(text):
    with pytest.raises(UsageError) as error:
        ServerOptions(streams=text).loads()
    assert str(error.value) == f"--streams {text!r:.40}: give numbers from 1 to 1,000, such as 1,4,8"


def test_servers_are_checked_and_then_loaded_unless_one_is_left_out(monkeypatch, capsys):
    from localagent_bench.server import checking, loading, target

    class Found:
        def __init__(self, url):
            self.name = url

    steps = []
    monkeypatch.setattr(
        target.MeasuredServer,
        "at",
        lambda url, named, timeout: steps.append((url, named, timeout)) or Found(url),
    )
    monkeypatch.setattr(target, "describe", lambda results, found: steps.append(("describe", len(found))))

    def check(results, found, timeout, say):
        steps.append(("check", len(found), timeout))
        return found[:1]

    monkeypatch.setattr(checking, "check_servers", check)
    monkeypatch.setattr(
        loading, "load_servers", lambda results, found, load, say: steps.append(("load", len(found), load))
    )
    urls = ["--url", "http://a:1", "--url", "http://b:1"]
    bench("server", *urls, "-m", "x", "-m", "y", "--timeout", "7", "--json")
    found = [("http://a:1", "x", 7.0), ("http://b:1", "y", 7.0), ("describe", 2)]
    assert steps == [*found, ("check", 2, 7.0), ("load", 1, Load())]
    assert json.loads(capsys.readouterr().out.splitlines()[0])["options"] == {
        "urls": ["http://a:1", "http://b:1"], "streams": [1, 4, 8], "clients": [1, 8], "tokens": 64, "words": 1500,
        "answers": 100, "rounds": 3, "timeout": 7.0, "checks": True, "load": True,
    }  # fmt: skip
    for without, last in (("--no-checks", ("load", 2, Load())), ("--no-load", ("check", 2, 120.0))):
        steps.clear()
        bench("server", *urls, without)
        assert steps[2:] == [("describe", 2), last]


def test_a_server_must_be_named():
    with pytest.raises(UsageError, match=r"^no server is named: give --url, such as --url http://"):
        bench("server")


# Where results go


def test_results_are_kept_as_they_are_found_and_shown_even_after_a_failure(monkeypatch, capsys, tmp_path):
    out, html = tmp_path / "out.jsonl", tmp_path / "out.html"

    def measure(results, plan, say):
        results.skip("x\u202e", "why")
        assert len(out.read_text().splitlines()) == 2, "at once"
        raise UsageError("no more")

    monkeypatch.setattr(of_parsers, "measure", measure)
    with pytest.raises(UsageError, match="no more"):
        bench("parsers", "--out", str(out), "--html", str(html))
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("skipped x\\u202e: why\n", f"report: {html}\n")
    assert html.read_text().startswith("<!")
    with pytest.raises(UsageError, match="no more"):
        bench("parsers", "--out", str(out), "--json")
    printed = capsys.readouterr()
    assert [json.loads(line) for line in printed.out.splitlines()] == [
        json.loads(line) for line in out.read_text().splitlines()
    ]
    assert (printed.out.count("\\u202e"), printed.err) == (1, "")


@pytest.mark.parametrize("option", ["--out", "--html"])
def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(monkeypatch, tmp_path, option):
    monkeypatch.setattr(of_parsers, "measure", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(UsageError) as error:
        bench("parsers", option, str(tmp_path / "no" / "file"))
    assert str(error.value) == f"{tmp_path / 'no' / 'file'} cannot be written: No such file or directory"


def test_a_report_names_each_run_with_its_options(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(of_parsers, "measure", lambda results, plan, say: results.skip("x", "why"))
    files = [tmp_path / "one", tmp_path / "two"]
    for path in files:
        bench("parsers", "--seed", "3", "--out", str(path))
    started = [json.loads(path.read_text().splitlines()[0])["started"] for path in files]
    capsys.readouterr()
    bench("report", *map(str, files))
    first, second = (
        f"parsers, {each} (faults: True, speed: True, seed: 3)\nskipped x: why\n" for each in started
    )
    assert capsys.readouterr().out == f"{first}\n{second}"
    written = []
    monkeypatch.setattr(
        "localagent_bench.report.write_report", lambda runs, html: written.append((len(runs), html))
    )
    bench("report", *map(str, files), "--html", "x.html")
    printed = capsys.readouterr()
    assert (printed.out, printed.err, written) == ("", "report: x.html\n", [(2, Path("x.html"))])
