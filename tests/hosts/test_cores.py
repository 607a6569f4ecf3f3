"""Models in one process share its cores."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localagent.errors import UsageError
from localagent.hosts.llamacpp import engine as module
from localagent.hosts.llamacpp.cores import Cores, Team, available_cores
from localagent.hosts.llamacpp.engine import LlamaCppEngine, Options
from localagent.hosts.llamacpp.host import (
    ONE_THREAD,
    LlamaCppHost,
    _choose_threads,
    most_threads,
    physical_cores,
)
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
    cores.enter(2, 2)
    cores.leave(1)
    cores.leave(1)
    assert cores.share(2) == 2
    assert available_cores() >= 1


@pytest.mark.parametrize(("threads", "paused"), [(4, [1]), (1, [])])
def test_a_team_that_rests_is_given_up_once(threads: int, paused: list[int]) -> None:
    """One thread is no team; and an OpenMP without the call is left alone."""
    found: list[int] = []
    for library in (SimpleNamespace(omp_pause_resource_all=found.append), SimpleNamespace()):
        native = SimpleNamespace(_lib=library, llama_set_n_threads=lambda *_: None)
        team = Team(native, None, threads, Cores(4))
        team.rest()
        assert team.compute(1, lambda: 0) == 0
        team.rest()
        team.rest()
    assert found == paused


def siblings(monkeypatch: pytest.MonkeyPatch, told: dict[int, str]) -> None:
    """What Linux tells of these processors."""

    def read(path: Path) -> str:
        number = int(str(path).removeprefix("/sys/devices/system/cpu/cpu").partition("/")[0])
        assert str(path).endswith(f"cpu{number}/topology/thread_siblings_list")
        if number not in told:
            raise FileNotFoundError(path)
        return told[number]

    monkeypatch.setattr(Path, "read_text", read)


@pytest.mark.parametrize(
    ("allowed", "told", "cores"),
    [
        ({0, 1, 2, 3}, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, 2),
        ({1, 2}, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, 2),
        ({0, 2}, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, 1),
        ({0, 1, 2}, {0: "0", 1: "1"}, 3),  # not all of it can be read
    ],
)
def test_cores_with_two_threads_count_once(
    monkeypatch: pytest.MonkeyPatch, allowed: set[int], told: dict[int, str], cores: int
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda process: allowed if process == 0 else {}, raising=False
    )
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert available_cores() == len(allowed)
    siblings(monkeypatch, told)
    assert physical_cores() == cores
    assert [_choose_threads(None, parameters) for parameters in (ONE_THREAD, ONE_THREAD + 1)] == [1, cores]
    assert _choose_threads(1, 10**9) == 1
    assert _choose_threads(256, 1) == most_threads() == 256


@pytest.mark.parametrize("threads", [0, 257, True, 2.0])
def test_threads_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch, threads: Any) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    with pytest.raises(UsageError) as caught:
        _choose_threads(threads, 1)
    assert str(caught.value) == (
        f"threads is {threads!r}: it must be a whole number from 1 to 256 on this machine"
    )


@pytest.mark.parametrize(("counted", "cores"), [(5, 5), (None, 1)])
def test_where_a_process_has_no_cores_of_its_own_all_count(
    monkeypatch: pytest.MonkeyPatch, counted: int | None, cores: int
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: counted)
    assert (available_cores(), physical_cores()) == (cores, cores)


@pytest.mark.parametrize(
    ("found", "told", "counted", "cores"), [(0, 6, 10, 6), (-1, 6, 10, 10), (0, 0, 10, 10), (-1, 6, None, 1)]
)
def test_on_apple_silicon_the_fast_cores_count(
    monkeypatch: pytest.MonkeyPatch, found: int, told: int, counted: int | None, cores: int
) -> None:
    def sysctlbyname(key: bytes, count: Any, size: Any, new: None, length: Any) -> int:
        assert (key, size._obj.value, new, length.value) == (b"hw.perflevel0.physicalcpu", 4, None, 0)
        count._obj.value = told
        return found

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(sysctlbyname=sysctlbyname))
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "cpu_count", lambda: counted)
    assert physical_cores() == cores


@pytest.mark.engine
def test_a_model_as_small_as_nano_has_one_thread_and_others_have_one_per_core(
    gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localagent.hosts.llamacpp.host.physical_cores", lambda: 3)
    chosen: list[int] = []
    monkeypatch.setattr(
        "localagent.hosts.llamacpp.host.LlamaCppEngine",
        lambda path, options: chosen.append(options.threads) or LlamaCppEngine(path, options),
    )
    for path, asked in ((GGUF, None), (GGUF, 2), (gguf, None)):
        LlamaCppHost.load(path, context=64, lanes=1, threads=asked).close()
    assert chosen == [1, 2, 3]


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
