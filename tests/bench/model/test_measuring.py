"""A benchmark of lfm2-nano from end to end, and what it says where something cannot be measured."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from typing import Any

import pexpect
import pytest

from localagent.errors import EngineBroken, UnknownModel, UsageError
from localagent.hosts.host import EngineHost
from localagent.messages import AssistantMessage, ToolCallPart
from localagent.model import Model, load
from localagent.nano import GGUF
from localagent_bench.model.calling import Asker
from localagent_bench.model.plan import ModelPlan, measure
from localagent_bench.model.sides import Opened, Side, opened
from localagent_bench.model.speed import Sizes, measure_speed
from localagent_bench.model.tasks import Task, nano_tasks
from localagent_bench.results import Results, read_runs
from localagent_bench.statistics import mcnemar
from tests import forking

SMALL = Sizes((0, 64), prompt=16, decode=8, rounds=2)


def one_lane(name: str, options: Any) -> Model:
    return load(name, **{"lanes": 1, "threads": 1, "context": 1024, **options})


def found(plan: ModelPlan) -> Results:
    results = Results("model", {})
    measure(results, plan, one_lane, lambda *_: None)
    return results


@pytest.mark.engine
def test_two_settings_are_measured_side_by_side():
    steps: list[tuple[str, int, int]] = []
    results = Results("model", {})
    sides = [Side(str(GGUF)), Side(str(GGUF), (("constraint", "off"),)), Side(str(GGUF), (("threads", 2),))]
    plan = ModelPlan(sides, SMALL, exchanges=1, sample=8, max_tokens=100)
    measure(results, plan, one_lane, lambda *step: steps.append(step))
    rows = results.run.rows
    names = [side.name for side in sides]
    assert [row["side"] for row in rows["model.memory"]] == [names[0], names[2]], "weights are loaded once"
    assert all(row["weights"] == pytest.approx(GGUF.stat().st_size / 1e6) for row in rows["model.memory"])
    speeds = rows["model.speed"]
    assert sorted((row["side"], row["depth"]) for row in speeds) == sorted(
        (name, depth) for name in (names[0], names[2]) for depth in (0, 64)
    )
    assert all(row["prompt_low"] <= row["prompt"] <= row["prompt_high"] for row in speeds)
    assert all(row["decode"] > 0 and row["rounds"] == 2 for row in speeds)
    assert {(row["side"], row["what"]) for row in rows["model.ratio"]} == {
        (names[2], "prompt"),
        (names[2], "decode"),
    }
    reuse = rows["model.reuse"]
    assert [row["turn"] for row in reuse if row["side"] == names[0]] == [1, 2], "a call, and the answer"
    assert all(row["same"] for row in reuse)
    assert all(row["prefilled"] <= row["new"] + 1 for row in reuse)
    tools = {row["side"]: row for row in rows["model.tools"] if row["group"] == "all"}
    assert [*tools] == names
    assert all(
        row["exact"] > 60 and row["low"] < row["exact"] and row["refused"] == 0 for row in tools.values()
    )
    assert [(row["against"], row["side"]) for row in rows["model.paired"]] == [
        (names[0], each) for each in names[1:]
    ]
    assert all(row["low"] <= row["difference"] <= row["high"] for row in rows["model.paired"])
    assert all(0 <= done <= total for _, done, total in steps)


@pytest.mark.engine
def test_a_depth_beyond_the_context_is_skipped_and_the_rest_goes_on():
    results = found(ModelPlan([Side(str(GGUF))], Sizes((0, 2_000), 16, 8, 1), exchanges=0, tools="none"))
    assert [row["depth"] for row in results.run.rows["model.speed"]] == [0]
    assert any("2,000" in what and "no room" in why for what, why in results.run.skipped.items())


@pytest.mark.engine
def test_without_bfcl_its_tasks_are_skipped(monkeypatch, tmp_path):
    monkeypatch.setenv("LOCALAGENT_BFCL", str(tmp_path))
    results = found(ModelPlan([Side(str(GGUF))], Sizes(()), exchanges=0, tools="bfcl"))
    assert "unpack bfcl-eval there" in results.run.skipped["BFCL's tasks"]
    assert not results.run.rows


@pytest.mark.engine
def test_a_model_without_calls_takes_no_part_in_tool_calling():
    side = Side(str(GGUF), (("dialect", "plain"),))
    results = found(ModelPlan([side], Sizes(()), exchanges=0, tools="nano", sample=4))
    assert "--dialect" in results.run.skipped[f"tool calling of {side.name}"]
    assert not results.run.rows


@pytest.mark.engine
def test_what_is_timed_at_a_depth_is_what_comes_after_it(monkeypatch):
    generate, prefilled = EngineHost.generate, []

    class Watched:
        def __init__(self, generation: Any) -> None:
            self._generation = generation

        def __iter__(self) -> Any:
            yield from self._generation
            prefilled.append(self.finish.prefilled)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._generation, name)

    monkeypatch.setattr(EngineHost, "generate", lambda *given: Watched(generate(*given)))
    sizes = Sizes((256,), prompt=16, decode=8, rounds=2)
    results = Results("model", {})
    with one_lane(str(GGUF), {}) as model:
        measure_speed(results, [Opened(Side(str(GGUF)), model, 1.0, 0)], sizes, lambda *_: None)
    assert prefilled[0] == 256, "the tokens in front are read by a generation of their own"
    assert max(prefilled[1::2]) <= 17


@pytest.mark.engine
def test_tokens_that_change_with_reuse_are_a_fault_of_the_engine(monkeypatch):
    spoken = Opened.view

    def forgetful(side: Opened, scope: str) -> Any:
        model, arrivals = spoken(side, scope)
        if side.seconds is None:  # the copy that reuses nothing
            stream = model.stream
            monkeypatch.setattr(model, "stream", lambda *args, **options: stream("Hi", max_tokens=3))
        return model, arrivals

    monkeypatch.setattr(Opened, "view", forgetful)
    results = Results("model", {})
    with pytest.raises(EngineBroken, match="has changed the tokens"):
        measure(results, ModelPlan([Side(str(GGUF))], Sizes(()), 1, "none"), one_lane, lambda *_: None)
    assert {row["same"] for row in results.run.rows["model.reuse"]} == {False}


@pytest.mark.engine
def test_a_request_that_cannot_be_made_is_refused_and_the_rest_goes_on(monkeypatch):
    long = Task(
        "long", "long", ({"role": "user", "content": "word " * 9_000},), (), lambda _: "", calls=False
    )
    tasks = nano_tasks(2, seed=1)
    monkeypatch.setattr("localagent_bench.model.plan.nano_tasks", lambda *_: [long, *tasks])
    results = found(ModelPlan([Side(str(GGUF))], Sizes(()), exchanges=0, sample=3))
    every = results.run.rows["model.tools"][0]
    assert (every["tasks"], every["refused"]) == (3, 1)
    assert results.run.cases[0]["fault"] == "refused: ContextOverflow"


@pytest.mark.engine
def test_a_task_that_is_not_exact_is_told_with_its_side_and_what_was_written(monkeypatch):
    tasks = [replace(task, judge=lambda _: "never right") for task in nano_tasks(2, seed=1)]
    monkeypatch.setattr("localagent_bench.model.plan.nano_tasks", lambda *_: tasks)
    sides = [Side(str(GGUF)), Side(str(GGUF), (("constraint", "off"),))]
    cases = found(ModelPlan(sides, Sizes(()), exchanges=0, sample=2)).run.cases
    assert [(case["table"], case["side"], case["id"], case["group"], case["fault"]) for case in cases] == [
        ("model.tools", side.name, task.id, task.kind, "never right") for task in tasks for side in sides
    ]
    assert all("<|tool_call_start|>" in case["wrote"] for case in cases), "both tasks want calls"


@pytest.mark.engine
def test_tasks_gained_and_lost_are_those_that_one_of_two_sides_alone_does_exactly(monkeypatch):
    # An answer of one token is cut off: the judge knows by that whose it is.
    exact = {"both": (True, True), "gained": (False, True), "lost": (True, False), "neither": (False, False)}
    wanted = ["both", "both", "gained", "gained", "gained", "lost", "neither"]

    def task(at: int, ours: bool, theirs: bool) -> Task:
        def judge(message: AssistantMessage) -> str:
            return "" if (theirs if message.stop_reason == "length" else ours) else "not right"

        return Task(f"{at}", "kind", ({"role": "user", "content": "Hello."},), (), judge, calls=False)

    tasks = [task(at, *exact[what]) for at, what in enumerate(wanted)]
    monkeypatch.setattr("localagent_bench.model.plan.nano_tasks", lambda *_: tasks)
    sides = [Side(str(GGUF)), Side(str(GGUF), (("max_tokens", 1),))]
    [row] = found(ModelPlan(sides, Sizes(()), exchanges=0, sample=7)).run.rows["model.paired"]
    assert (row["gained"], row["lost"], row["tasks"]) == (3, 1, 7)
    assert (row["exact"], row["other"]) == pytest.approx((100 * 5 / 7, 100 * 3 / 7))
    assert row["difference"] == pytest.approx(100 * 2 / 7)
    assert row["p"] == mcnemar(3, 1)


@pytest.mark.engine
def test_tools_that_a_template_does_not_show_are_in_a_system_message(monkeypatch):
    said = []
    spoken = Model.stream

    def listening(model: Model, messages: Any, **options: Any) -> Any:
        said.append(messages)
        return spoken(model, messages, **options)

    monkeypatch.setattr(Asker, "shows", lambda *_: False)
    monkeypatch.setattr(Model, "stream", listening)
    results = found(ModelPlan([Side(str(GGUF))], Sizes(()), exchanges=0, sample=2))
    assert any("shows no tools" in why for why in results.run.skipped.values())
    task = nano_tasks(1, seed=1)[0]
    assert said[0][0]["role"] == "system"
    assert all(tool["function"]["name"] in said[0][0]["content"] for tool in task.tools)
    assert "<|tool_call_start|>[NAME(" in said[0][0]["content"]


@pytest.mark.engine
def test_what_was_found_before_an_interrupt_is_kept(monkeypatch):
    results, asked = Results("model", {}), []

    def tell(what: str, done: int, total: int) -> None:
        asked.append(what)
        if done == 2 and what.startswith("tool calling"):
            raise KeyboardInterrupt

    plan = ModelPlan([Side(str(GGUF)), Side(str(GGUF), (("constraint", "off"),))], Sizes(()), 0, sample=5)
    with pytest.raises(KeyboardInterrupt):
        measure(results, plan, one_lane, tell)
    assert {row["tasks"] for row in results.run.rows["model.tools"] if row["group"] == "all"} == {2}
    assert [row["tasks"] for row in results.run.rows["model.paired"]] == [2]


@pytest.mark.engine
def test_a_side_without_a_constraint_has_no_vocabulary_to_be_bounded_with():
    with opened([Side(str(GGUF)), Side(str(GGUF), (("constraint", "off"),))], one_lane) as sides:
        bounded, free = (side.view("x")[1] for side in sides)
        assert bounded.vocabulary is not None
        assert free.vocabulary is None
        assert sides[0].model is sides[1].model


@pytest.mark.parametrize(
    "plan",
    [
        ModelPlan([Side("x")], Sizes((-1,))),
        ModelPlan([Side("x")], Sizes((0,), rounds=0)),
        ModelPlan([Side("x")], Sizes((0,), decode=0)),
        ModelPlan([Side("x")], Sizes((0,)), exchanges=-1),
        ModelPlan([Side("x")], Sizes((0,)), sample=0),
    ],
)
def test_a_plan_that_means_nothing_is_refused_before_anything_is_loaded(plan):
    with pytest.raises(UsageError):
        measure(Results("model", {}), plan, lambda *_: pytest.fail("loaded"), lambda *_: None)


def test_a_model_that_is_not_there_is_named():
    with pytest.raises(UnknownModel):
        measure(Results("model", {}), ModelPlan([Side("no-such-model")], SMALL), one_lane, lambda *_: None)


def test_tasks_of_lfm2_nano_are_judged_by_their_calls_and_their_words():
    tasks = nano_tasks(42, seed=5)
    assert len(tasks) == len({task.id for task in tasks}) == 42
    assert {task.kind for task in tasks} == {"call", "calls", "answer", "no call"}
    assert nano_tasks(42, seed=5)[7].messages == tasks[7].messages
    task = next(task for task in tasks if task.kind == "call")
    name = task.tools[0]["function"]["name"]
    assert task.judge(AssistantMessage(content="Hello.")) == "no call"
    assert (
        task.judge(AssistantMessage(content=(ToolCallPart(id="", name=name, arguments={"x": 1}),)))
        == "other calls"
    )
    said = next(task for task in tasks if task.kind == "answer")
    assert said.judge(AssistantMessage(content="Something else.")) == "other words"
    with pytest.raises(UsageError, match="1 or more"):
        nano_tasks(0, seed=1)


def bench(*options: str, home: Any, **environment: str) -> forking.Result:
    kept = {**os.environ, "XDG_STATE_HOME": str(home), "LOCALAGENT_BFCL": "", **environment}
    return forking.run(("bench", "model", *options), b"", kept)


@pytest.mark.engine
def test_the_command_prints_json_lines_and_says_on_stderr_what_it_does(tmp_path):
    options = [
        "--quick",
        "--rounds",
        "1",
        "--depths",
        "0",
        "--exchanges",
        "1",
        "--sample",
        "2",
        "--threads",
        "1",
    ]
    done = bench("lfm2-nano", *options, "--constraint", "both", "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["options"]["sides"] == ["lfm2-nano", "lfm2-nano constraint=off"]
    assert lines[0]["options"]["threads"] == 1
    tables = {line["table"] for line in lines if line["kind"] == "row"}
    assert tables == {f"model.{name}" for name in ("memory", "speed", "reuse", "tools", "paired")}
    assert lines[-1]["kind"] == "end"
    assert "tool calling, lfm2-nano: 2 of 2" in done.stderr.decode()


@pytest.mark.engine
def test_ctrl_c_on_a_terminal_ends_the_bar_and_shows_what_was_found(tmp_path):
    options = ["--threads", "1", "--sample", "2000", "--exchanges", "0", "--depths", "0", "--rounds", "1"]
    place = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm"}
    command = ["bench", "model", "lfm2-nano", *options, "--out", str(tmp_path / "found.jsonl")]
    bar = pexpect.spawn(
        str(forking.COMMAND), command, env=place, encoding="utf-8", codec_errors="replace", timeout=120
    )
    bar.expect("tool calling, lfm2-nano")
    while bar.isalive() and '"case"' not in (tmp_path / "found.jsonl").read_text():
        time.sleep(0.05)  # until there is a task that it does not do exactly
    bar.sendintr()
    bar.expect(pexpect.EOF)
    bar.close()
    assert bar.exitstatus == 130
    assert "Tool calling" in bar.before
    [run] = read_runs(tmp_path / "found.jsonl")
    assert run.seconds is None, "a report says that it was not finished"
    assert 0 < run.rows["model.tools"][0]["tasks"] < 2_000


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["no-such-model"], "no model no-such-model"),
        (["/nowhere/model.gguf"], "no such file"),
        (["lfm2-nano", "--depths", "0,many"], "--depths 0,many"),
        (["lfm2-nano", "--depths", "-1"], "--depths -1"),
        (["lfm2-nano", "--all", "--sample", "3"], "contradict"),
        (["lfm2-nano", "--sample", "0"], "--sample"),
        (["lfm2-nano", "--against", "colour=red"], "colour=red"),
        (["lfm2-nano", "--against", "threads=many"], "threads=many"),
        (["lfm2-nano", "--out", "/nowhere/x.jsonl"], "/nowhere/x.jsonl"),
    ],
)
def test_bad_options_are_a_line(options, says, tmp_path):
    done = bench(*options, home=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1), done.stderr
    assert says in done.stderr.decode()
