"""Models in one process share its cores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from localagent.hosts.llamacpp import engine as module
from localagent.hosts.llamacpp.cores import Cores, Team, available_cores
from localagent.hosts.llamacpp.engine import LlamaCppEngine, Options
from localagent.nano import GGUF


@pytest.mark.parametrize(
    ("count", "wanted", "shares"),
    [
        (2, [2], [2]),
        (2, [2, 2], [1, 1]),
        (8, [4, 4], [4, 4]),  # there is room for both
        (8, [2, 4], [2, 4]),  # and no more than was asked for
        (8, [8, 8], [4, 4]),
        (8, [8, 4], [5, 2]),
        (2, [2, 2, 2, 2], [1, 1, 1, 1]),
        (4, [16], [16]),  # as was asked for
    ],
)
def test_those_that_compute_at_the_same_time_divide_the_cores(
    count: int, wanted: list[int], shares: list[int]
) -> None:
    cores = Cores(count)
    for who, threads in enumerate(wanted):
        cores.enter(who, threads)
    assert [cores.share(who) for who in range(len(wanted))] == shares
    for who in range(1, len(wanted)):
        cores.leave(who)
    assert cores.share(0) == wanted[0]


def test_leaving_twice_changes_nothing() -> None:
    cores = Cores(2)
    cores.enter(1, 2)
    cores.leave(1)
    changes = cores.changes
    cores.leave(1)
    assert cores.changes == changes
    assert available_cores() >= 1


@pytest.mark.parametrize(("threads", "paused"), [(4, [1]), (1, [])])
def test_a_team_that_rests_is_given_up_once(threads: int, paused: list[int]) -> None:
    """One thread is no team; and an OpenMP without the call is left alone."""
    found: list[int] = []
    for library in (SimpleNamespace(omp_pause_resource_all=found.append), SimpleNamespace()):
        native = SimpleNamespace(_lib=library, llama_set_n_threads=lambda *_: None)
        team = Team(native, None, threads, Cores(4))
        team.rest()
        team.work()
        team.rest()
        team.rest()
    assert found == paused


@pytest.mark.engine
def test_a_model_has_all_its_threads_while_the_others_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CORES", Cores(4))
    first, second = (LlamaCppEngine(GGUF, Options(256, 4)) for _ in range(2))

    def threads(engine: Any) -> int:
        engine.lanes[0].clear()
        assert engine.lanes[0].evaluate([5, 6, 7], lambda: False)
        native = engine._native
        assert native.llama_n_threads(engine._context) == native.llama_n_threads_batch(engine._context)
        return int(native.llama_n_threads(engine._context))

    try:
        assert [threads(first), threads(second), threads(first)] == [4, 2, 2]
        second.rest()
        assert [threads(first), threads(second)] == [4, 2]
        first.close()
        assert threads(second) == 4
    finally:
        first.close()
        second.close()
