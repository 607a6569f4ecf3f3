"""What is counted of recorded outputs, round trips, faults and time, of parsers that read as they are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from localagent_bench.parsers import injected, speed
from localagent_bench.parsers.children import Child, Gone
from localagent_bench.parsers.corpora import AskedCalls, Row
from localagent_bench.parsers.faults import Faulty
from localagent_bench.parsers.injected import inject, judge_faulty
from localagent_bench.parsers.judging import Reading
from localagent_bench.parsers.outputs import CUTS, Output
from localagent_bench.parsers.recorded import read_recorded
from localagent_bench.parsers.trips import read_back
from localagent_bench.results import Results
from localagent_bench.statistics import wilson

F = ("f", {"a": 1})
RIGHT, NONE, WRONG = Reading("", "", (F,)), Reading(), Reading("", "", (("h", {}),))
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


class Told(Child):
    """A parser whose readings are told by a function of what it is asked."""

    def __init__(self, name: str, reads: Callable[[dict[str, Any]], Reading], dialects: Any = None) -> None:
        super().__init__(name, [], None if dialects is None else frozenset(dialects), version=f"{name} 1")
        self.reads, self.asked, self.closed = reads, [], 0  # type: ignore[assignment]

    def open(self) -> None:
        pass

    def read(self, request: dict[str, Any]) -> Reading:
        self.asked.append(request)  # type: ignore[attr-defined]
        found = self.reads(request)
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        self.closed += 1  # type: ignore[attr-defined]


def dropped() -> tuple[list[tuple[str, str]], Callable[[Child, str], None]]:
    gone: list[tuple[str, str]] = []
    return gone, lambda parser, why: gone.append((parser.name, why))


# -- recorded outputs -------------------------------------------------------------------------------------


def row(corpus: str, name: str, **more: Any) -> Row:
    told: dict[str, Any] = {
        "corpus": corpus,
        "id": name,
        "family": "lfm2",
        "dialect": "lfm2",
        "text": name * 9,
    }
    told |= {"tools": TOOLS, "accepted": ([F],), "content": "", "reasoning": ""}
    return Row(**told | more)


ROWS = [
    row("one", "a"),
    row("one", "b", family="other"),
    row("one", "c"),
    row("two", "a", dialect="hermes", family="hermes", accepted=([F], [])),
    row("two", "d", pieces=(("d", True), ("d" * 8, None))),
]
SAID = {"a": RIGHT, "b": Reading(" ", "", (F,)), "c": WRONG, "d": NONE}


def by_text(readings: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda request: readings["".join(request.get("chunks", [request.get("text", "")]))[0]]


def shares(**counts: int) -> dict[str, float]:
    total = sum(counts.values())
    verdicts = ("exact", "soft", "refused", "missed", "wrong")
    return {"outputs": total} | {verdict: 100 * counts.get(verdict, 0) / total for verdict in verdicts}


def test_verdicts_are_counted_by_corpus_and_family() -> None:
    ours = Told("localagent", by_text(SAID))
    other = Told("other", by_text(SAID | {"a": Reading("", "", (), kept=True), "d": RIGHT}), ["lfm2"])
    results, (gone, drop) = Results("parsers", {}), dropped()
    read_recorded(results, [ours, other], ROWS, drop)
    good = [wilson(2, 3).low, wilson(1, 3).low, wilson(1, 2).low, wilson(1, 1).low]
    assert gone == []
    assert results.run.rows["parsers.recorded"] == [
        pytest.approx(
            {"parser": parser, "corpus": corpus, "low": 100 * low, "equal": 100, "ours": ours, "good": good}
            | of
        )
        for parser, corpus, of, good, low, ours in (
            ("localagent", "one", shares(exact=1, soft=1, wrong=1), 200 / 3, good[0], None),
            ("other", "one", shares(refused=1, soft=1, wrong=1), 100 / 3, good[1], 200 / 3),
            ("localagent", "two", shares(exact=1, missed=1), 50, good[2], None),
            ("other", "two", shares(exact=1), 100, good[3], 0),
        )
    ]
    none = dict.fromkeys(("exact", "soft", "refused", "missed", "wrong"), 0)
    assert results.run.rows["parsers.families"] == [
        {"corpus": corpus, "family": family, "parser": parser, **none, **of, "outputs": sum(of.values())}
        for corpus, family, parser, of in (
            ("one", "lfm2", "localagent", {"exact": 1, "wrong": 1}),
            ("one", "lfm2", "other", {"refused": 1, "wrong": 1}),
            ("one", "other", "localagent", {"soft": 1}),
            ("one", "other", "other", {"soft": 1}),
            ("two", "hermes", "localagent", {"exact": 1}),
            ("two", "lfm2", "localagent", {"missed": 1}),
            ("two", "lfm2", "other", {"exact": 1}),
        )
    ]


def test_a_stream_that_differs_is_counted_and_one_with_given_pieces_is_read_once() -> None:
    parser = Told("p", lambda request: WRONG if "chunks" in request else RIGHT)
    results, (_, drop) = Results("parsers", {}), dropped()
    read_recorded(results, [parser], [row("one", "a"), ROWS[4]], drop, detailed=False)
    (found,) = [found for found in results.run.rows["parsers.recorded"] if found["corpus"] == "one"]
    assert (found["exact"], found["equal"]) == (100, 0)
    assert "parsers.families" not in results.run.rows
    whole, single, last = parser.asked  # the second way is not tried where the first one differs
    assert (whole["text"], single["chunks"], last["text"]) == ("a" * 9, ["a"] * 9, "d" * 9)
    steady = Told("p", lambda request: RIGHT)
    read_recorded(Results("parsers", {}), [steady], [row("one", "a")], drop)
    assert "".join(steady.asked[2]["chunks"]) == "a" * 9


def test_wrong_readings_are_told_and_all_that_are_not_exact_when_asked_for() -> None:
    long = row("one", "c", text="c" * 700, accepted=([("f", {"a": "x" * 700})], [F]))
    results, (_, drop) = Results("parsers", {}), dropped()
    read_recorded(results, [Told("p", by_text(SAID))], [long, *ROWS[:3]], drop)
    assert [(case["id"], case["outcome"]) for case in results.run.cases] == [
        ("one: c", "wrong"),
        ("one: c", "wrong"),
    ]
    assert results.run.cases[1] == {
        "table": "parsers.recorded",
        "parser": "p",
        "id": "one: c",
        "dialect": "lfm2",
        "outcome": "wrong",
        "text": "c" * 9,
        "read": "calls [('h', {})]",
        "right": "[('f', {'a': 1})]",
    }
    told = results.run.cases[0]
    assert (told["text"], len(told["right"])) == ("c" * 600, 600)
    results = Results("parsers", {})
    read_recorded(results, [Told("p", by_text(SAID))], ROWS, drop, show=True)
    assert [case["outcome"] for case in results.run.cases] == ["soft", "wrong", "missed"]
    results = Results("parsers", {})
    read_recorded(results, [Told("p", by_text(SAID))], [row("two", "c", accepted=([F], []))], drop)
    assert results.run.cases[0]["right"] == "[('f', {'a': 1})] or []"


def test_a_parser_that_goes_half_way_is_not_counted() -> None:
    results, (gone, drop) = Results("parsers", {}), dropped()
    half = Told("half", by_text(SAID | {"c": Gone("no more")}))
    read_recorded(results, [half, Told("p", by_text(SAID))], ROWS, drop)
    assert gone == [("half", "no more")]
    assert {row["parser"] for rows in results.run.rows.values() for row in rows} == {"p"}
    assert all(row["ours"] is None for row in results.run.rows["parsers.recorded"]), "localagent is not there"


# -- round trips and faults -------------------------------------------------------------------------------


def output(name: str, dialect: str = "hermes", text: str = "<tool_call>ab</tool_call>") -> Output:
    return Output(dialect, "json", f"{text}{name}", [F], TOOLS, name)


WRITTEN = [
    ("localagent", output("a")),
    ("localagent", output("b", "lfm2")),
    ("localagent", output("c")),
    ("templates", output("d")),
]


def by_end(
    readings: dict[str, Reading], tokens: Reading, pieces: Reading
) -> Callable[[dict[str, Any]], Reading]:
    """What is read of the whole, of pieces with a whole marker, and of others."""

    def reads(request: dict[str, Any]) -> Reading:
        if "text" in request:
            return readings[request["text"][-1]]
        return tokens if "<tool_call>" in request["chunks"] else pieces

    return reads


def test_calls_that_are_read_back_are_counted_by_writer_and_format() -> None:
    reads = by_end({"a": RIGHT, "b": RIGHT, "c": NONE, "d": WRONG}, RIGHT, WRONG)
    ours, other = (
        Told("localagent", reads),
        Told("other", by_end(dict.fromkeys("acd", RIGHT), NONE, NONE), ["hermes"]),
    )
    results, (gone, drop) = Results("parsers", {}), dropped()
    read_back(results, [ours, other], WRITTEN, 1, drop)
    assert gone == []

    def of(total: int, right: int = 0, refused: int = 0, wrong: int = 0) -> dict[str, Any]:
        counts = {"right": right, "refused": refused, "wrong": wrong}
        return {"outputs": total} | {name: 100 * count / total for name, count in counts.items()}

    some = 100 / len(CUTS)
    assert results.run.rows["parsers.trips"] == [
        pytest.approx({"parser": parser, "written": writer, "low": 100 * low, **more, **counts})
        for parser, writer, counts, low, more in (
            ("localagent", "localagent", of(3, 2, 1), wilson(2, 3).low,
             {"dialects": 2, "tokens": 200 / 3, "streamed": 200 / 18, "equal": 100 / 18, "ours": None}),
            ("localagent", "templates", of(1, wrong=1), wilson(0, 1).low,
             {"dialects": 1, "tokens": 100, "streamed": some, "equal": 500 / 6, "ours": None}),
            ("other", "localagent", of(2, 2), wilson(2, 2).low,
             {"dialects": 1, "tokens": 0, "streamed": 0, "equal": 0, "ours": 50}),
            ("other", "templates", of(1, 1), wilson(1, 1).low,
             {"dialects": 1, "tokens": 0, "streamed": 0, "equal": 0, "ours": 0}),
        )
    ]  # fmt: skip
    assert [
        (row["dialect"], row["parser"], row["outputs"], row["right"])
        for row in results.run.rows["parsers.trips_of"]
    ] == [
        ("hermes", "localagent", 3, pytest.approx(100 / 3)),
        ("hermes", "other", 3, 100),
        ("lfm2", "localagent", 1, 100),
    ]
    assert [(case["parser"], case["id"], case["outcome"]) for case in results.run.cases] == [
        ("localagent", "d", "wrong")
    ]
    assert results.run.cases[0]["text"] == WRITTEN[3][1].text


def test_what_is_refused_is_told_when_it_is_asked_for() -> None:
    results, (_, drop) = Results("parsers", {}), dropped()
    error = Reading(kept=True, error="no parser")
    reads = by_end({"a": error, "b": RIGHT, "c": NONE, "d": WRONG}, RIGHT, RIGHT)
    read_back(results, [Told("p", reads)], WRITTEN, 1, drop, detailed=False, show=True)
    assert [(case["id"], case["outcome"], case["read"]) for case in results.run.cases] == [
        ("a", "refused", "[]"),
        ("c", "refused", "[]"),
        ("d", "wrong", "[('h', {})]"),
    ]
    assert "parsers.trips_of" not in results.run.rows


def test_a_parser_that_goes_half_way_is_not_counted_in_round_trips() -> None:
    results, (gone, drop) = Results("parsers", {}), dropped()

    def ends(request: dict[str, Any]) -> Any:
        return Gone("no more") if request.get("text", "").endswith("c") else RIGHT

    read_back(results, [Told("half", ends), Told("p", lambda _: RIGHT)], WRITTEN, 1, drop)
    assert gone == [("half", "no more")]
    assert {row["parser"] for rows in results.run.rows.values() for row in rows} == {"p"}


def test_outputs_with_faults_are_counted_by_fault_and_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injected, "SETS", {"one": ("lost", "twice")})
    monkeypatch.setattr(
        injected, "with_fault", lambda given, fault, other, draw: None if given.id == "c" else given
    )
    ours = Told("localagent", by_end({"a": WRONG, "b": RIGHT}, RIGHT, RIGHT))
    other = Told("other", by_end({"a": NONE}, WRONG, RIGHT), ["hermes"])
    results, (_, drop) = Results("parsers", {}), dropped()
    given = [each for _, each in WRITTEN[:3]]
    inject(results, [ours, other], given, [AskedCalls("o", TOOLS, [F])], 1, drop)
    none = {"right": 0, "refused": 0, "wrong": 0}
    half, all_refused = none | {"right": 50, "wrong": 50}, none | {"refused": 100}

    def of(
        parser: str, total: int, counts: dict[str, Any], streamed: float, ours: float | None
    ) -> dict[str, Any]:
        interval = wilson(total * counts["wrong"] // 100, total)
        ends = {"low": 100 * interval.low, "high": 100 * interval.high}
        known = {"known": streamed, "known_against": streamed, "against": counts["wrong"]}
        return (
            {"parser": parser, "outputs": total, "streamed": streamed, "ours": ours} | counts | ends | known
        )

    assert results.run.rows["parsers.faults"] == [
        pytest.approx({"set": "one"} | of("localagent", 4, half, 0, None)),
        pytest.approx({"set": "one"} | of("other", 2, all_refused, 100, 100)),
    ]
    assert results.run.rows["parsers.faults_by"] == [
        pytest.approx({"fault": fault} | each)
        for fault in ("lost", "twice")
        for each in (of("localagent", 2, half, 0, None), of("other", 1, all_refused, 100, 100))
    ]
    known = {"set": "one", "against": 0, "known": 0, "known_against": 0}
    assert results.run.rows["parsers.faults_of"] == [
        {"dialect": dialect, "parser": parser, "outputs": 2, **none, **known, **more}
        for dialect, parser, more in (
            ("hermes", "localagent", {"wrong": 100, "against": 100}),
            ("hermes", "other", {"refused": 100, "known": 100, "known_against": 100}),
            ("lfm2", "localagent", {"right": 100}),
        )
    ]
    assert [(case["outcome"], case["id"]) for case in results.run.cases] == [
        ("lost: wrong, against the tools", "a"),
        ("twice: wrong, against the tools", "a"),
    ]
    results = Results("parsers", {})
    inject(results, [ours], given[:1], [AskedCalls("o", TOOLS, [F])], 1, drop, detailed=False)
    assert "parsers.faults_of" not in results.run.rows


@pytest.mark.parametrize("fault", ["marker", "cut", "draft"])
def test_what_is_whole_after_a_fault_has_to_be_read_as_it_is(fault: str) -> None:
    misspelled = Reading(calls=(("f", {"a": 11}),))
    assert judge_faulty(Faulty(fault, output("a")), misspelled) == "wrong"
    assert judge_faulty(Faulty(fault, output("a")), RIGHT) == "right"
    assert judge_faulty(Faulty("doubled", output("a")), misspelled) == "right"


# -- time -------------------------------------------------------------------------------------------------


class Timed(Told):
    """A parser that says how long it took: by the length of the output, and by its kind."""

    def __init__(self, name: str, dialects: Any, seconds: Callable[[int], float], **more: Any) -> None:
        super().__init__(name, lambda _: RIGHT, dialects)
        self.takes, self.more = seconds, more  # type: ignore[assignment]

    def ask(self, request: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        self.asked.append((request, seconds))  # type: ignore[attr-defined]
        length = len("".join(request["chunks"]))
        calls = [{}] * (request["chunks"][0] != "The ")
        return {"tool_calls": calls, "seconds": self.takes(length), "peak": 2 * length} | self.more  # type: ignore[attr-defined]


def test_a_piece_costs_what_an_output_takes_by_its_pieces() -> None:
    results, (_, drop) = Results("parsers", {}), dropped()
    parser = Timed("p", ["hermes", "lfm2"], lambda length: 1e-6 * length)
    speed.measure_speed(results, [parser], ["hermes", "glm45"], (1001, 2000), drop)
    rows = results.run.rows["parsers.speed"]
    assert [(row["output"], row["series"]) for row in rows[::2]] == [
        (kind, f"p, hermes, {kind}") for kind in ("text", "string", "nested")
    ]
    assert rows[0] == pytest.approx(
        {"parser": "p", "dialect": "hermes", "output": "text", "series": "p, hermes, text", "size": 1001}
        | {"piece": 1001 / 251, "memory": 2}
    )
    assert all(row["piece"] == pytest.approx(row["size"] / -(-row["size"] // 4)) for row in rows)
    (request, seconds), *_ = parser.asked
    assert (request["dialect"], request["tools"], request["rounds"], seconds) == (
        "hermes",
        speed.TOOLS,
        9,
        120,
    )
    assert {len(piece) for piece in request["chunks"][:-1]} == {4}


@pytest.mark.parametrize(("size", "rounds"), [(10_000, 9), (10_001, 3), (100_000, 3), (100_001, 1)])
def test_long_outputs_are_read_less_often(size: int, rounds: int) -> None:
    parser = Timed("p", ["hermes"], lambda length: 1e-9)
    speed.measure_speed(Results("parsers", {}), [parser], ["hermes"], (size,), lambda *_: None)
    assert {request["rounds"] for request, _ in parser.asked} == {rounds}


@pytest.mark.parametrize(("seconds", "sizes"), [(0.1, 3), (0.101, 1)])
def test_a_slow_parser_gets_no_longer_outputs(seconds: float, sizes: int) -> None:
    results = Results("parsers", {})
    parser = Timed("p", ["hermes"], lambda length: seconds)
    speed.measure_speed(results, [parser], ["hermes"], (100, 200, 300), lambda *_: None)
    assert len(results.run.rows["parsers.speed"]) == 3 * sizes


@pytest.mark.parametrize("answer", [{"tool_calls": [{}, {}]}, {"tool_calls": None}, {"error": "no"}])
def test_a_parser_that_loses_the_call_is_not_timed(answer: dict[str, Any]) -> None:
    results = Results("parsers", {})
    parser = Timed("p", ["hermes"], lambda length: 1e-6, **answer)
    if "error" in answer:
        parser.ask = lambda *_: answer  # type: ignore[method-assign]
    speed.measure_speed(results, [parser], ["hermes"], (100, 200), lambda *_: None)
    assert results.run.rows == {}
    speed.measure_dialects(results, parser, ["hermes"], 100, lambda *_: None)
    assert results.run.rows == {}


def test_only_parsers_that_claim_a_format_are_timed_and_one_that_is_gone_is_told() -> None:
    results, (gone, drop) = Results("parsers", {}), dropped()

    def broken(*_: Any) -> Any:
        raise Gone("no more")

    half = Timed("half", ["hermes"], lambda length: 1e-6)
    half.ask = broken  # type: ignore[method-assign]
    anything = Timed("anything", None, lambda length: 1e-6)
    other = Timed("other", ["lfm2"], lambda length: 1e-6, peak=None)
    speed.measure_speed(results, [half, anything, other], ["hermes", "lfm2"], (100,), drop)
    assert gone == [("half", "no more")]
    assert {(row["parser"], row["dialect"], row["memory"]) for row in results.run.rows["parsers.speed"]} == {
        ("other", "lfm2", 0)
    }
    speed.measure_dialects(results, half, ["hermes"], 100, drop)
    assert gone == [("half", "no more")] * 2


def test_formats_are_held_against_lfm2() -> None:
    results = Results("parsers", {})
    ours = Timed("p", None, lambda length: 1e-9 * length * length)
    speed.measure_dialects(results, ours, ["hermes", "lfm2"], 20_000, lambda *_: None)
    rows = results.run.rows["parsers.speed_of"]
    assert [(row["dialect"], row["output"]) for row in rows] == [
        (dialect, kind) for kind in ("text", "string", "nested") for dialect in ("hermes", "lfm2")
    ]
    assert rows[0] == pytest.approx(
        {"dialect": "hermes", "output": "text", "small": 40, "large": 80, "flatness": 2, "to_lfm2": 1}
    )
    hermes = len(speed.OUTPUTS["nested"]("hermes", 20_000)) / len(speed.OUTPUTS["nested"]("lfm2", 20_000))
    assert rows[4]["to_lfm2"] == pytest.approx(hermes)


@pytest.mark.parametrize("kind", ["text", "string", "nested"])
def test_outputs_to_be_timed_are_as_long_as_they_say(kind: str) -> None:
    for size in (1000, 50_000):
        least = {"text": 1, "string": 0.98, "nested": 0.88}[kind] * size
        assert least <= len(speed.OUTPUTS[kind]("hermes", size)) <= size + 10
    assert len(speed.OUTPUTS["nested"]("hermes", 1)) > 60, "one item at least"
