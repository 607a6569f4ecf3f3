"""What a server counts: the times of an answer, the numbers as Prometheus reads them, and those on the page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from localagent.constraint.schema import Relaxed
from localagent.distribution import version
from localagent.errors import EngineFailed
from localagent.hosts.protocol import Prefilled, Queued
from localagent.messages import (
    AssistantMessage,
    MalformedToolCallPart,
    TextPart,
    Timings,
    ToolCallPart,
    Usage,
)
from localagent.prompt import RequestWarning
from localagent.server.access import Access
from localagent.server.metrics import Metrics, Watched
from localagent.server.models import ModelPool
from localagent.server.page import state
from localagent.turn import Done, TurnEvent
from parsers import Text

WORD = Text("a", 0, 1)
PARTS = (
    TextPart(text="x"),
    MalformedToolCallPart(raw="f(", reason="truncated"),
    ToolCallPart(id="a", name="f", repaired=True),
    ToolCallPart(id="b", name="f"),
)


def done(prefill: int = 7, reused: int = 3, output: int = 5, decode: float = 2.0, parts: Any = ()) -> Done:
    usage = Usage(input=prefill + reused, cache_read=reused, output=output)
    relaxed = (Relaxed("f", "/a", "pattern", "no"),) * len(parts)
    return Done(AssistantMessage(content=parts, usage=usage, timings=Timings(decode=decode)), (), (), relaxed)


def watched(monkeypatch: pytest.MonkeyPatch, *events: tuple[float, TurnEvent]) -> Watched:
    """What is known of an answer that is asked for at 100 seconds, and of which these come at their times."""
    clock = iter(
        [100.0, *(at for at, event in events if not isinstance(event, Queued | Prefilled | RequestWarning))]
    )
    monkeypatch.setattr("localagent.server.metrics.monotonic", lambda: next(clock))
    made = Watched()
    for _, event in events:
        made.feed(event)
    return made


def test_the_times_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [(0.0, Queued(1)), (0.0, Prefilled(1, 2, 0)), (0.0, RequestWarning("thinking", "no"))]
    end = done()
    times = watched(monkeypatch, *before, (102, WORD), (102.5, WORD), (104, WORD), (104.5, WORD), (109, end))
    assert (times.first, times.gap, times.done) == (2, 1.5, [end])
    alone = watched(monkeypatch, (101, WORD), (109, end))
    assert (alone.first, alone.gap) == (1, 0)
    empty = watched(monkeypatch, *before)
    assert (empty.first, empty.gap, empty.done) == (None, 0, [])


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[ModelPool, Metrics]:
    """Two models, of which one is loaded, and what was counted of some requests."""
    pool = ModelPool({"m": lambda: None, "n": lambda: None})  # type: ignore[arg-type, return-value]
    pool.served["m"].model = SimpleNamespace(
        host=SimpleNamespace(cache_bytes=77, context=4096, alive=True, busy_seconds=0.0), lanes=4
    )  # type: ignore[assignment]
    pool.served["m"].queue.running = 2
    pool.served["n"].error = EngineFailed("it broke\n" + "x" * 400)
    metrics = Metrics(pool)
    metrics.ended("m", "lfm2", "ok", watched(monkeypatch, (102, WORD), (103, WORD), (104, done(parts=PARTS))))
    metrics.ended("m", "lfm2", "ok", watched(monkeypatch, (100.25, done(reused=0, output=2, decode=0.25))))
    metrics.ended("m", "lfm2", "ok", watched(monkeypatch, (100, done(reused=0, output=1, decode=9.0))))
    metrics.ended("m", "lfm2", "ok", watched(monkeypatch, (100, done(reused=0, output=9, decode=0.0))))
    metrics.ended("m", "lfm2", "cancelled", watched(monkeypatch, (100.5, WORD)))
    metrics.ended("", "", "refused", watched(monkeypatch))
    return pool, metrics


SAMPLES = """
localagent_prompt_tokens_total{model="m"} 31.0
localagent_cached_tokens_total{model="m"} 3.0
localagent_generated_tokens_total{model="m"} 17.0
localagent_cache_hits_total{model="m"} 1.0
localagent_requests_total{model="m",outcome="ok"} 4.0
localagent_requests_total{model="m",outcome="cancelled"} 1.0
localagent_requests_total{model="",outcome="refused"} 1.0
localagent_malformed_calls_total{dialect="lfm2",model="m"} 1.0
localagent_repaired_calls_total{dialect="lfm2",model="m"} 1.0
localagent_relaxed_parameters_total{model="m"} 4.0
localagent_time_to_first_token_seconds_count{model="m"} 2.0
localagent_time_to_first_token_seconds_sum{model="m"} 2.5
localagent_longest_gap_seconds_count{model="m"} 2.0
localagent_longest_gap_seconds_sum{model="m"} 1.0
localagent_decode_tokens_per_second_count{model="m"} 2.0
localagent_decode_tokens_per_second_sum{model="m"} 6.0
localagent_requests_running{model="m"} 2.0
localagent_requests_running{model="n"} 0.0
localagent_requests_waiting{model="m"} 0.0
localagent_requests_waiting{model="n"} 0.0
localagent_model_ready{model="m"} 1.0
localagent_model_ready{model="n"} 0.0
localagent_cache_bytes{model="m"} 77.0
localagent_cache_bytes{model="n"} 0.0
""".strip().splitlines()
MEANINGS = {
    "prompt_tokens_total": "Prompt tokens, with those reused.",
    "cached_tokens_total": "Prompt tokens that were not evaluated again.",
    "generated_tokens_total": "Generated tokens.",
    "cache_hits_total": "Answers whose prompt went on from an evaluated one.",
    "requests_total": "Requests by how they ended: ok, failed, refused or cancelled.",
    "malformed_calls_total": "Tool calls that could not be read.",
    "repaired_calls_total": "Tool calls that were repaired.",
    "relaxed_parameters_total": "Parameters of tools whose schema was not enforced in full.",
    "time_to_first_token_seconds": "From the request to the first visible token.",
    "longest_gap_seconds": "The longest wait between two tokens of an answer.",
    "decode_tokens_per_second": "Speed of an answer after its prompt.",
    "requests_running": "Requests that are being answered.",
    "requests_waiting": "Requests that wait for a place.",
    "model_ready": "1 if the model is loaded and its engine thread runs.",
    "cache_bytes": "Memory of evaluated prompts beside the lanes.",
}
SECONDS = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300]
SPEEDS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]


def test_everything_that_prometheus_is_told(counted: tuple[ModelPool, Metrics]) -> None:
    """The names and the buckets are part of the interface: dashboards are made of them."""
    lines = [line for line in counted[1].text().decode().splitlines() if "_created" not in line]
    assert {line for line in lines if not line.startswith("#") and "_bucket" not in line} == {*SAMPLES}
    meanings = dict(
        line.removeprefix("# HELP localagent_").split(" ", 1) for line in lines if "# HELP" in line
    )
    assert meanings == MEANINGS
    for name, buckets in (
        ("time_to_first_token_seconds", SECONDS),
        ("longest_gap_seconds", SECONDS),
        ("decode_tokens_per_second", SPEEDS),
    ):
        found = [line.split('le="')[1].split('"')[0] for line in lines if f"{name}_bucket" in line]
        assert [*map(float, found)] == [*buckets, float("inf")]


def test_the_totals_of_a_model_are_the_samples_without_their_labels(
    counted: tuple[ModelPool, Metrics],
) -> None:
    totals = counted[1].totals()
    assert totals.keys() == {"m", "n", ""}
    assert totals[""] == {"refused": 1}
    told = totals["m"]
    assert (told["ok"], told["cancelled"], told["malformed_calls_total"]) == (4, 1, 1)
    assert not any(name.endswith(("_bucket", "_created")) for name in told)
    assert Metrics(counted[0]).totals()["m"].keys() == {
        "requests_running", "requests_waiting", "model_ready", "cache_bytes"
    }, "of another server nothing is known"  # fmt: skip


def test_the_numbers_on_the_page(counted: tuple[ModelPool, Metrics]) -> None:
    loaded = {
        "name": "m", "state": "ready", "error": None, "lanes": 4, "context": 4096, "running": 2, "waiting": 0,
        "answers": 4, "failed": 0, "cancelled": 1, "prompt_tokens": 31, "cached_tokens": 3, "generated_tokens": 17,
        "tokens_per_second": 3.0, "first_token_seconds": 1.25,
    }  # fmt: skip
    numbers = dict.fromkeys(
        ("lanes", "running", "answers", "cancelled", "prompt_tokens", "cached_tokens", "generated_tokens"), 0
    )
    rest = {
        "name": "n",
        "state": "failed",
        "context": None,
        "tokens_per_second": None,
        "first_token_seconds": None,
    }
    told = state(*counted, Access(keys=("k",)))
    error = told["models"][1].pop("error")
    failed = {name: value for name, value in {**loaded, **numbers, **rest}.items() if name != "error"}
    assert told == {"version": version(), "keys": True, "models": [loaded, failed]}
    assert error.startswith("it broke") and "\n" not in error and 290 < len(error) <= 300
    assert state(*counted, Access())["keys"] is False
