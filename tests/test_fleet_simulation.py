"""The simulation of a fleet: nothing is lost in it, it agrees with what is known of queues, and it is repeatable."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from localagent_bench.fleet.policies import Blindly, ByPrefix
from localagent_bench.fleet.replica import Times

ROOT = Path(__file__).parents[1]
pytest.importorskip("numpy")


@pytest.fixture(scope="module")
def simulation():
    from localagent_bench.fleet import simulation

    return simulation


@pytest.fixture(scope="module")
def times():
    return Times(
        model="made up",
        token=0.003,
        token_depth=1e-6,
        steps=[0.01, 0.015, 0.02, 0.025],
        step_depth=1e-7,
        chunk=32,
        bytes_per_token=20_000,
        preamble=10,
    )


def drawn(simulation, times, replicas=3, load=0.5, conversations=400, **options):
    rate = load * replicas * times.turns_per_second(40, 30) / 4
    return simulation.Workload.drawn(7, conversations, rate, 4, 40, 30, 10, **options)


def everybody():
    yield Blindly(in_turn=False)
    yield Blindly(in_turn=True)
    yield ByPrefix(0, knowing=False)
    yield from (ByPrefix(slack) for slack in (0, 2, 4, math.inf))


@pytest.mark.parametrize("room", [5, math.inf])
def test_each_request_is_answered_once_even_if_replicas_die(simulation, times, room):
    work = drawn(simulation, times, load=0.8)
    changes = [simulation.FleetChange(work.starts[100], -2), simulation.FleetChange(work.starts[200], 3)]
    broken = 0
    for policy in everybody():
        seen = simulation.Simulation(times, work, 3, policy, room=room, changes=changes).run()
        assert sorted(seen.numbers) == list(range(work.begins[-1])), policy.name
        assert min(seen.first) > 0
        assert min(seen.waited) >= 0
        broken += seen.broken
    assert broken


def test_who_is_refused_is_counted_and_asks_no_more(simulation, times):
    work = drawn(simulation, times, load=3)
    seen = simulation.Simulation(times, work, 3, ByPrefix(4), room=5, queue=4).run()
    assert len(seen.refused) > 20
    assert len(seen.numbers) == len(set(seen.numbers))
    assert len(seen.numbers) + len(seen.refused) + seen.dropped == work.begins[-1]


def test_without_a_cache_nothing_is_reused_and_with_one_replica_all_that_can_be(simulation, times):
    work = drawn(simulation, times, replicas=1)
    shared = drawn(simulation, times, replicas=1, system=500)
    for policy in everybody():
        seen = simulation.Simulation(times, shared, 1, policy, cache=0).run()
        assert sum(seen.cached) == 0
        seen = simulation.Simulation(times, work, 1, policy).run()
        # All but the question and the last token of the answer before.
        asked = sum(work.asked)
        later = work.begins[-1] - len(work.starts)
        assert sum(seen.prompt) - sum(seen.cached) == asked + later
        assert max(seen.moved) == 0


def test_a_small_cache_keeps_what_was_used_last(simulation, times):
    work = drawn(simulation, times, replicas=1)
    shares = []
    for cache in (300, 3_000, 30_000, math.inf):
        seen = simulation.Simulation(times, work, 1, ByPrefix(4), cache=cache).run()
        shares.append(sum(seen.cached) / sum(seen.prompt))
    assert shares == sorted(shares)
    assert shares[0] < 0.2 < 0.7 < shares[-1]


def test_what_was_used_longest_ago_is_dropped(simulation, times):
    """Three conversations of 110 tokens, and room for two: the first one is gone when the third one ends."""
    begins, thinks = [0, 2, 4, 5], [0, 40, 0, 20, 0]
    work = simulation.Workload([0.0, 10.0, 20.0], begins, [100] * 5, [11] * 5, thinks)
    seen = simulation.Simulation(times, work, 1, ByPrefix(4), cache=220).run()
    assert dict(zip(seen.numbers, seen.cached, strict=True)) == {0: 0, 1: 0, 2: 0, 3: 110, 4: 0}


@pytest.mark.parametrize("room", [1, 3])
def test_a_replica_takes_no_more_than_there_is_room_for(simulation, times, room):
    most = []

    class Watching(ByPrefix):
        def ranks(self, marks, alive, load, random):
            most.extend(map(load, alive))
            return super().ranks(marks, alive, load, random)

    simulation.Simulation(times, drawn(simulation, times, load=2), 3, Watching(4), room=room).run()
    assert max(most) == room


def test_a_turn_on_another_replica_has_moved(simulation, times):
    work = simulation.Workload([0.0], [0, 4], [50] * 4, [20] * 4, [1] * 4)
    moved = {
        policy.name: list(simulation.Simulation(times, work, 2, policy).run().moved)
        for policy in (Blindly(in_turn=True), ByPrefix(0))
    }
    assert moved == {"in turn": [-1, 1, 1, 1], "slack 0": [-1, 0, 0, 0]}


def test_a_prompt_that_all_share_is_read_once_by_each_replica(simulation, times):
    work = drawn(simulation, times, system=500)
    seen = simulation.Simulation(times, work, 3, ByPrefix(4)).run()
    assert sum(cached == 0 for cached in seen.cached) == 3
    assert sum(cached < 500 for cached in seen.cached) == 3


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (4, 0.7), (8, 0.9)])
def test_waiting_is_as_erlang_says(simulation, servers, load):
    """One replica whose lanes do not slow each other, and prompts that take no time: M/M/c."""
    seconds = 2.0
    times = Times(
        model="M/M/c",
        token=1e-12,
        token_depth=0,
        steps=[seconds / 1000] * servers,
        step_depth=0,
        chunk=1,
        bytes_per_token=1,
    )
    rate = load * servers / seconds
    work = simulation.Workload.drawn(3, 120_000, rate, 1, 1, 1000, 1)
    seen = simulation.Simulation(times, work, 1, ByPrefix(0)).run()
    offered = rate * seconds
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    waits = last / (sum(terms) + last)
    mean = waits * seconds / (servers - offered)
    assert sum(wait > 1e-9 for wait in seen.waited) / len(seen.waited) == pytest.approx(waits, rel=0.05)
    assert sum(seen.waited) / len(seen.waited) == pytest.approx(mean, rel=0.1)


def test_a_prompt_and_lanes_share_the_replica_in_chunks(simulation, times):
    """By hand: one writes alone, another one's prompt of two chunks is read meanwhile."""
    times = replace(times, token_depth=0, step_depth=0, preamble=0)
    work = simulation.Workload([0.0, 1.0], [0, 1, 2], [32, 64], [201, 11], [0, 0])
    seen = simulation.Simulation(times, work, 1, ByPrefix(0)).run()
    first = dict(zip(seen.numbers, seen.first, strict=True))
    assert first[0] == pytest.approx(32 * 0.003)
    assert first[1] == pytest.approx(2 * (0.01 + 32 * 0.003))
    # While the first one's 200 tokens are written: two steps between chunks, ten of two lanes, else alone.
    assert seen.ended == pytest.approx(32 * 0.003 + 200 * 0.01 + 64 * 0.003 + 10 * 0.005)


def test_the_same_seed_gives_the_same(simulation, times):
    for policies in zip(everybody(), everybody(), strict=True):
        one, other = (
            simulation.Simulation(times, drawn(simulation, times), 3, policy, room=5).run().figures()
            for policy in policies
        )
        assert one == other
    work = drawn(simulation, times)
    seeds = [simulation.Simulation(times, work, 3, ByPrefix(0), seed=seed).run() for seed in (1, 2)]
    assert seeds[0].figures() != seeds[1].figures()


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "benchmarks" / "fleet.py", *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)


@pytest.mark.engine
def test_times_are_measured_once_and_every_policy_is_compared(tmp_path):
    file = tmp_path / "times.json"
    options = ["nano", "--times", str(file), "--lanes", "2", "--rounds", "1", "--conversations", "200"]
    options += ["--replicas", "4", "--loads", "0.3,0.6", "--rooms", "3,inf", "--json"]
    done = run(*options)
    assert done.returncode == 0, done.stderr
    measured = json.loads(file.read_text())
    assert len(measured["steps"]) == 2
    assert min(measured["token"], *measured["steps"]) > 0
    assert 0 < measured["preamble"] < 40
    found = json.loads(done.stdout)
    assert "no replica slows another one" in found["assumed"]
    names = ["one drawn", "in turn", "two drawn", "slack 0", "slack 1", "slack 2", "slack 4", "slack inf"]
    assert [row["policy"] for row in found["rows"]] == names * 4
    assert json.loads(run(*options).stdout)["times"] == measured, "the file is read"
    assert run(*options, "--change", "-4").returncode == 2
    file.write_text("{}")
    refused = run(*options)
    assert refused.returncode == 1
    assert "remove it, and they are measured" in refused.stderr.splitlines()[-1]


@pytest.mark.engine
def test_the_simulation_is_held_against_two_real_replicas():
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
    done = run(
        "nano", "--check", "--lanes", "2", "--rounds", "1", "--conversations", "4", "--think", "0.2", "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    real, simulated = found["real"], found["simulated"]
    assert real["turns"] == simulated["turns"] >= 4
    assert simulated["hit rate"] == pytest.approx(real["hit rate"], abs=0.15)
