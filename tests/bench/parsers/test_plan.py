"""Which parsers read what in one run, how much of it, and what is told of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localagent.distribution import bench_install_command
from localagent.errors import UsageError
from localagent_bench.bfcl import NoData
from localagent_bench.parsers import plan as module
from localagent_bench.parsers.children import Gone
from localagent_bench.parsers.corpora import AskedCalls
from localagent_bench.parsers.plan import ParserPlan, measure
from localagent_bench.results import Results
from tests.bench.parsers.test_counts import RIGHT, TOOLS, Told, row


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is measured with what, by its name; the tasks of BFCL are five."""
    calls: dict[str, Any] = {}
    for name in ("read_recorded", "read_back", "inject", "measure_speed", "measure_dialects"):
        monkeypatch.setattr(
            module, name, lambda *given, name=name, **more: calls.update({name: (given, more)})
        )
    tasks = [AskedCalls(f"t{at}", TOOLS, [("f", {"a": at})]) for at in range(5)]
    monkeypatch.setattr(module, "bfcl_tasks", lambda: tasks)
    rows = [
        row("cases", f"{name}{at}", family=name, dialect=name)
        for name in ("lfm2", "hermes")
        for at in range(6)
    ]
    monkeypatch.setattr(module, "case_rows", lambda: rows)
    monkeypatch.delenv("LLAMACPP_SOURCE", raising=False)
    calls["tasks"], calls["rows"] = tasks, rows
    return calls


def run(**more: Any) -> tuple[Results, list[str], list[Told]]:
    results, said = Results("parsers", {}), list[str]()
    parsers = [Told("localagent", lambda _: RIGHT), Told("other", lambda _: RIGHT, ["lfm2", "hermes"])]
    measure(results, ParserPlan(parsers, ["cases", "bfcl"], ["lfm2", "hermes"], **more), said.append)
    return results, said, parsers


def test_a_run_reads_what_was_recorded_and_what_is_rendered_with_faults_and_times(
    planned: dict[str, Any],
) -> None:
    results, said, parsers = run(seed=7, show=True)
    assert results.run.rows["parsers.parsers"] == [
        {"parser": "localagent", "version": "localagent 1", "dialects": "whatever it is asked"},
        {"parser": "other", "version": "other 1", "dialects": "hermes, lfm2"},
    ]
    assert said == [
        "12 recorded outputs",
        "15 outputs of BFCL's calls, read whole and in pieces",
        "faults in 10 outputs",
        "time and memory",
    ]
    detailed = {"detailed": True, "show": True}
    (given, more) = planned["read_recorded"]
    assert (given[:3], more) == ((results, parsers, planned["rows"]), detailed)
    (given, more) = planned["read_back"]
    assert (given[0], given[1], given[3], more) == (results, parsers, 7, detailed)
    written = [(writer, output.dialect, output.id) for writer, output in given[2]]
    assert written == [
        *((writer, "lfm2", f"t{at}, {how}") for at in range(5)
          for writer, how in (("localagent", "pythonic"), ("other notations", "json"))),
        *(("localagent", "hermes", f"t{at}, json") for at in range(5)),
    ]  # fmt: skip
    ours = [output for writer, output in given[2] if writer == "localagent"]
    (given, more) = planned["inject"]
    assert (given[:5], more) == ((results, parsers, ours, planned["tasks"], 7), {**detailed, "kinds": ()})
    (given, more) = planned["measure_speed"]
    assert given[:4] == (results, parsers, ["hermes", "lfm2"], (1_000, 10_000, 100_000, 1_000_000))
    (given, more) = planned["measure_dialects"]
    assert given[:4] == (results, parsers[0], ["lfm2", "hermes"], 100_000)
    assert [parser.closed for parser in parsers] == [1, 1]


def test_a_quick_run_reads_a_few_of_everything(planned: dict[str, Any]) -> None:
    results, _, parsers = run(quick=True)
    short = {"detailed": False, "show": False}
    given, more = planned["read_recorded"]
    assert more == short
    assert sorted(row.family for row in given[2]) == ["hermes"] * 4 + ["lfm2"] * 4
    assert given[2] != [*planned["rows"][:4], *planned["rows"][6:10]], "drawn"
    given, more = planned["read_back"]
    assert more == short
    assert planned["inject"][1] == short | {"kinds": ()}
    assert len(given[2]) == 9
    assert len({output.id for _, output in given[2] if output.dialect == "hermes"}) == 3
    assert planned["measure_speed"][0][:4] == (results, parsers, ["hermes"], (1_000, 4_000))
    assert "measure_dialects" not in planned
    again = planned["read_back"][0][2]
    run(quick=True, seed=2)
    assert planned["read_back"][0][2] != again
    run(quick=True, tasks=5)
    assert len(planned["read_back"][0][2]) == 15


def test_a_plan_that_says_nothing_reads_all_of_everything() -> None:
    usual = ParserPlan([])
    assert (usual.corpora, usual.dialects, usual.templates) == (("canitoolcall", "cases", "bfcl"), (), None)
    assert (usual.faults, usual.speed, usual.seed, usual.tasks, usual.quick, usual.show) == (
        True,
        True,
        1,
        None,
        False,
        False,
    )


def test_what_is_not_asked_for_is_left_out(planned: dict[str, Any]) -> None:
    _, said, _ = run(faults=False, speed=False, tasks=2)
    assert said == ["12 recorded outputs", "6 outputs of BFCL's calls, read whole and in pieces"]
    run(tasks=2)
    assert planned["measure_speed"][0][3] == (1_000, 10_000, 100_000)
    planned.pop("read_back")
    parsers = [Told("other", lambda _: RIGHT)]
    measure(Results("parsers", {}), ParserPlan(parsers, ["cases"], ["glm45"]), lambda _: None)
    assert "read_back" not in planned
    assert planned["measure_speed"][0][2] == ["glm45"], "where it is none of those that are compared"


def test_outputs_that_no_parser_claims_are_not_written(planned: dict[str, Any]) -> None:
    parsers = [Told("other", lambda _: RIGHT, ["hermes"])]
    measure(Results("parsers", {}), ParserPlan(parsers, ["bfcl"]), lambda _: None)
    assert {output.dialect for _, output in planned["read_back"][0][2]} == {"hermes"}


def test_what_is_not_here_is_told_and_the_rest_goes_on(
    planned: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = NoData("no package")

    def absent() -> Any:
        raise error

    monkeypatch.setattr(module, "bfcl_tasks", absent)
    monkeypatch.setattr(module, "case_rows", list)
    results, said, _ = run()
    assert results.run.skipped == {
        "cases": "they are part of a checkout of the repository: tests/parsers/cases",
        "bfcl": str(error),
    }
    assert said == [str(error), "time and memory"]


def test_a_package_of_outputs_that_is_not_here_is_told(
    planned: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> Any:
        raise ImportError("canitoolcall")

    monkeypatch.setattr("localagent_bench.parsers.canitoolcall.conformance_rows", absent)
    results = Results("parsers", {})
    measure(
        results,
        ParserPlan([Told("p", lambda _: RIGHT)], ["canitoolcall", "cases"], speed=False),
        lambda _: None,
    )
    assert results.run.skipped == {
        "canitoolcall": f"the package canitoolcall is not here: {bench_install_command()}"
    }
    assert len(planned["read_recorded"][0][2]) == 12


def test_notes_on_files_are_told_by_what_they_are_about(planned: dict[str, Any], tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{\n")
    results, said = Results("parsers", {}), list[str]()
    parsers = [Told("p", lambda _: RIGHT)]
    measure(results, ParserPlan(parsers, [str(bad), str(tmp_path / "none")], speed=False), said.append)
    assert list(results.run.skipped) == ["bad.jsonl, line 1", "bad.jsonl", str(tmp_path / "none")]
    assert results.run.skipped["bad.jsonl, line 1"].startswith("Expecting property name")
    assert results.run.skipped["bad.jsonl"] == "bad.jsonl holds no outputs that can be judged"
    assert said[1:] == [*results.run.skipped.values()][1:]
    assert said[0].startswith("bad.jsonl, line 1, is left out: Expecting")


def test_models_templates_are_read_where_they_are_named(
    planned: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Template:
        name, dialect = "qwen", "hermes"

    def found(folder: Path) -> list[Any]:
        asked.append(folder)
        other = Template()
        other.dialect = "glm45"  # type: ignore[misc]
        return [Template(), other]

    monkeypatch.setattr(module, "model_templates", found)
    monkeypatch.setattr(module, "templated", lambda template, tasks: [(template.dialect, len(tasks))])
    run(tasks=2, templates=tmp_path)
    assert planned["read_back"][0][2][-1] == ("models' templates", ("hermes", 2))
    run(quick=True, templates=tmp_path)
    assert planned["read_back"][0][2][-1] == ("models' templates", ("hermes", 3))
    monkeypatch.setenv("LLAMACPP_SOURCE", str(tmp_path / "llama.cpp"))
    run(tasks=2)
    assert asked == [tmp_path, tmp_path, tmp_path / "llama.cpp" / "models" / "templates"]
    run(quick=True)
    assert len(asked) == 3, "only where they are named"


def test_a_parser_that_cannot_be_opened_takes_no_part_and_failures_are_told(
    planned: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise Gone("it is not installed")

    parsers = [Told("absent", lambda _: RIGHT), Told("fails", lambda _: RIGHT), Told("gone", lambda _: RIGHT)]
    parsers[0].open = broken  # type: ignore[method-assign]
    parsers[1].failures = ["first", "second"]
    parsers[2].failures = ["third"]
    results, said = Results("parsers", {}), list[str]()

    def drops(results: Any, parsers: Any, rows: Any, drop: Any, **_: Any) -> None:
        drop(parsers[1], "no more")

    monkeypatch.setattr(module, "read_recorded", drops)
    measure(results, ParserPlan(parsers, ["cases"], speed=False), said.append)
    assert results.run.skipped == {
        "absent": "it is not installed",
        "gone": "no more",
        "fails, single outputs": "2 outputs ended its process and count as refused; the last one: second",
    }
    assert said == [
        "absent takes no further part: it is not installed",
        "12 recorded outputs",
        "gone takes no further part: no more",
    ]
    assert [parser.closed for parser in parsers] == [2, 1, 2]
    with pytest.raises(UsageError, match=r"^no parser can be measured$"):
        measure(Results("parsers", {}), ParserPlan(parsers[:1]), said.append)
