"""What is measured of models, in which order, and what a plan must not say."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from localagent.errors import EngineBroken, UsageError
from localagent_bench.bfcl import NoData
from localagent_bench.model import plan as module
from localagent_bench.model.plan import ModelPlan, measure
from localagent_bench.model.sides import Side
from localagent_bench.model.speed import Sizes
from localagent_bench.results import Results

SIDES = [Side("a"), Side("b")]


@pytest.fixture
def measured(monkeypatch):
    """What is called with what, in order; `nano` says of each side whether it is lfm2-nano."""
    calls, faults, nano = [], [], [True, True]

    @contextmanager
    def opened(sides, load):
        calls.append(("opened", sides, load))
        yield [SimpleNamespace(side=side, nano=known) for side, known in zip(sides, nano, strict=True)]
        calls.append(("freed",))

    def note(name, result=None):
        def noted(results, sides, *given):
            calls.append((name, [each.side for each in sides], *given))
            return result

        return noted

    monkeypatch.setattr(module, "opened", opened)
    monkeypatch.setattr(module, "measure_speed", note("speed"))
    monkeypatch.setattr(module, "measure_reuse", note("reuse", faults))
    monkeypatch.setattr(module, "measure_calling", note("calling"))
    monkeypatch.setattr(module, "nano_tasks", lambda *given: ("nano", *given))
    monkeypatch.setattr(module, "find_package", lambda: "package")
    monkeypatch.setattr(module, "bfcl_tasks", lambda package: ["all of", package])
    monkeypatch.setattr(module, "sample", lambda tasks, *given: (*tasks, *given))

    def run(plan):
        calls.clear()
        results = Results("model", {})
        measure(results, plan, "load", tell)
        return results

    def tell(*step):
        calls.append(("tell", *step))

    return SimpleNamespace(run=run, calls=calls, faults=faults, nano=nano, tell=tell)


def test_speed_comes_first_then_a_conversation_then_tasks(measured):
    sizes = Sizes((0, 64), rounds=2)
    measured.run(ModelPlan(SIDES, sizes, exchanges=3, seed=5, max_tokens=77))
    options = {"temperature": 0.0, "top_p": None, "max_tokens": 77}
    assert measured.calls == [
        ("tell", "loading", 0, 2),
        ("opened", SIDES, "load"),
        ("speed", SIDES, sizes, measured.tell),
        ("reuse", SIDES, "load", 3, 2, measured.tell),
        ("calling", SIDES, ("nano", 100, 5), "lfm2-nano", options, 5, measured.tell),
        ("freed",),
    ]


def test_what_is_not_asked_for_is_not_measured(measured):
    measured.run(ModelPlan(SIDES, Sizes(()), exchanges=0, tools="none"))
    assert [call[0] for call in measured.calls] == ["tell", "opened", "freed"]
    usual = ModelPlan(SIDES, Sizes((0,)))
    assert (usual.exchanges, usual.tools, usual.sample, usual.seed, usual.max_tokens) == (
        10,
        None,
        100,
        1,
        512,
    )
    assert (usual.sizes.prompt, usual.sizes.decode, usual.sizes.rounds) == (256, 64, 3)


@pytest.mark.parametrize(
    ("tools", "nano", "asked", "tasks", "name"),
    [
        (None, [True, True], 7, ("nano", 7, 1), "lfm2-nano"),
        (None, [True, True], None, ("nano", 2100, 1), "lfm2-nano"),
        (None, [True, False], 7, ("all of", "package", 7, 1), "BFCL"),
        ("nano", [False, False], 7, ("nano", 7, 1), "lfm2-nano"),
        ("bfcl", [True, True], None, ("all of", "package", None, 1), "BFCL"),
    ],
)
def test_lfm2_nano_is_given_its_own_tasks_and_others_those_of_bfcl(measured, tools, nano, asked, tasks, name):
    measured.nano[:] = nano
    measured.run(ModelPlan(SIDES, Sizes(()), exchanges=0, tools=tools, sample=asked))
    assert [call[1:4] for call in measured.calls if call[0] == "calling"] == [(SIDES, tasks, name)]


def test_without_the_tasks_of_bfcl_the_reason_is_told(measured, monkeypatch):
    def absent():
        raise NoData("not here")

    monkeypatch.setattr(module, "find_package", absent)
    results = measured.run(ModelPlan(SIDES, Sizes(()), exchanges=0, tools="bfcl"))
    assert results.run.skipped == {"BFCL's tasks": "not here"}


def test_changed_tokens_end_the_run_when_all_is_measured(measured):
    measured.faults.extend(["a: changed", "b: changed"])
    with pytest.raises(EngineBroken, match=r"^a: changed; b: changed$"):
        measured.run(ModelPlan(SIDES, Sizes(()), exchanges=1))
    assert [call[0] for call in measured.calls] == ["tell", "opened", "reuse", "calling", "freed"]


SMALLEST = {"sizes": Sizes((0,), 1, 1, 1), "exchanges": 0, "sample": 1}
NUMBERS = "^depths must be 0 or more tokens, and there must be a round and a token at least$"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"sizes": Sizes((0, -1), 1, 1, 1)}, NUMBERS),
        ({"sizes": Sizes((0,), 0, 1, 1)}, NUMBERS),
        ({"sizes": Sizes((0,), 1, 0, 1)}, NUMBERS),
        ({"sizes": Sizes((0,), 1, 1, 0)}, NUMBERS),
        ({"exchanges": -1}, NUMBERS),
        ({"sample": 0}, "^a sample of 0 tasks: it must be 1 or more$"),
    ],
)
def test_the_smallest_plan_is_measured_and_a_smaller_one_refused(measured, more, says):
    measured.run(ModelPlan(SIDES, **SMALLEST))
    with pytest.raises(UsageError, match=says):
        measured.run(ModelPlan(SIDES, **SMALLEST | more))
    assert measured.calls == [], "before anything is loaded"
