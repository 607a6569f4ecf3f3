"""The parts of a fleet without a replica: plans, groups of events, errors on their way."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from localagent.cli.fleet import replicas_of
from localagent.errors import UsageError
from localagent.hosts.memory.admission import DEFAULT_LANES
from localagent.server.fleet.plan import Plan


def test_a_plan_is_the_same_after_its_file():
    plan = Plan(
        models={"a": "/weights/a.gguf", "b": "hf:owner/b"}, replicas=(1, 4), aliases=(("gpt-*", "a"),)
    )
    assert plan.told() == {
        "models": {"a": "/weights/a.gguf", "b": "hf:owner/b"},
        "replicas": [1, 4],
        "aliases": [["gpt-*", "a"]],
    }
    assert Plan.model_validate(plan.told()) == plan
    assert plan.most_lanes == DEFAULT_LANES
    assert plan.model_copy(update={"lanes": 2}).most_lanes == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"models": {}},
        {"models": {"a": "a"}, "replicas": [3, 2]},
        {"models": {"a": "a"}, "replicas": [0, 0]},
        {"models": {"a": "a"}, "lanes": 0},
        {"models": {"a": "a"}, "replica": 2},
        {"models": {"a": "a"}, "aliases": [["x", "b"]]},
    ],
)
def test_a_plan_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValidationError):
        Plan.model_validate(wrong)


@pytest.mark.parametrize(("text", "found"), [(None, (1, 1)), ("2", (2, 2)), ("1:4", (1, 4)), ("0:2", (0, 2))])
def test_replicas_are_read(text, found):
    assert replicas_of(text) == found


@pytest.mark.parametrize("text", ["", "0", "4:1", "-1:2", "two", "1:", "1:2:3", "0:0"])
def test_replicas_that_cannot_be_are_refused(text):
    if text == "":  # as if it were not given
        assert replicas_of(text) == (1, 1)
        return
    with pytest.raises(UsageError, match="--replicas is"):
        replicas_of(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--replicas", "2"], "--replicas is for replicas: give --ray, too"),
        (["--print-config"], "--print-config is for replicas"),
        (["--gpus", "1"], "--gpus is for replicas"),
        (["--ray", "--idle", "60"], "--idle is not for --ray"),
        (["--ray", "--restart"], "--restart is not for --ray"),
        (["--ray", "--stall-limit", "90"], "--stall-limit is not for --ray"),
        (["--ray", "--stall-limit", "0"], "--stall-limit is not for --ray"),
        (["--ray", "--drain", "30"], "--drain is not for --ray"),
        (["--ray", "--drain", "0"], "--drain is not for --ray"),
        (["--ray", "--alias", "gpt-*=other"], "'other' is not served; served are lfm2-nano"),
    ],
)
def test_options_that_do_not_go_together(words, said):
    command = [str(Path(sys.executable).with_name("localagent")), "serve", "-m", "lfm2-nano", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_cluster_that_is_not_there_is_one_line_at_once():
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
    command = [str(Path(sys.executable).with_name("localagent")), "serve", "--ray", "-m", "lfm2-nano"]
    done = subprocess.run(
        [*command, "--address", "127.0.0.1:1"], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert "no cluster of Ray at 127.0.0.1:1" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_server_that_needs_a_key_does_not_start_without_one(monkeypatch, tmp_path):
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
    from localagent.server.fleet.deployment import Server

    monkeypatch.delenv("LOCALAGENT_API_KEYS", raising=False)
    monkeypatch.setattr("localagent.server.fleet.deployment.log_to_standard_error", lambda *_: None)
    plan = Plan(models={"a": "a"}, needs_key=True)
    with pytest.raises(UsageError, match="LOCALAGENT_API_KEYS is not set where the server runs"):
        Server(plan, None).__serve_build_asgi_app__()


class TestGroups:
    """What a replica sends."""

    @pytest.fixture(autouse=True)
    def grouped(self):
        pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
        from localagent.server.fleet.replica import grouped

        return grouped

    def test_the_first_item_comes_at_once_and_the_rest_together(self, grouped):
        async def items():
            yield 1
            await asyncio.sleep(0.01)
            for number in range(2, 100):
                yield number

        async def collected():
            return [group async for group in grouped(items(), 0.1)]

        groups = asyncio.run(collected())
        assert groups[0] == [1]
        assert len(groups) < 20
        assert [item for group in groups for item in group] == [*range(1, 100)]

    def test_what_was_written_before_an_error_comes_before_it(self, grouped):
        async def items():
            yield 1
            yield 2
            raise KeyError("broken")

        async def collected():
            found = []
            with pytest.raises(KeyError, match="broken"):
                async for group in grouped(items(), 0.02):
                    found += group
            return found

        assert asyncio.run(collected()) == [1, 2]

    def test_leaving_ends_what_makes_the_items(self, grouped):
        ended = []

        async def items():
            try:
                while True:
                    yield 1
                    await asyncio.sleep(0.001)
            finally:
                ended.append(True)

        async def left():
            groups = grouped(items(), 0.02)
            await anext(groups)
            await groups.aclose()

        asyncio.run(left())
        assert ended


class TestRouter:
    """Whom requests go to, as Ray asks the router: when what it knows is fresh, and when it is not."""

    @pytest.fixture
    def ask(self):
        """Routes a request, and returns the number of its replica; or ends one."""
        pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
        from ray.serve._private.request_router.common import ReplicaQueueLengthCache

        from localagent.server.fleet.router import PrefixRouter

        router = object.__new__(PrefixRouter)  # what Ray gives it beside are actors, which are not asked here
        router.initialize_state(lanes=4)
        router._replica_queue_len_cache = ReplicaQueueLengthCache(get_curr_time_s=lambda: self.now)
        router.apply_multiplex_routing = lambda _: ["a", "b"]
        self.now, self.router = 0.0, router
        replicas = [SimpleNamespace(replica_id=name) for name in "ab"]

        def ask(number: int) -> str:
            request = SimpleNamespace(kwargs={}, metadata=SimpleNamespace(internal_request_id=str(number)))
            ranks = asyncio.run(router.choose_replicas(replicas, request))
            chosen = ranks[0][0].replica_id
            router.on_send_request(chosen)
            router.on_request_routed(request, chosen, None)
            return chosen

        router._use_replica_queue_len_cache = True
        router._update_router_queue_len_gauge = lambda *_: None
        return ask

    def test_an_answer_that_takes_long_is_counted_until_it_ends(self, ask):
        for number in range(0, 40, 2):
            first = ask(number)
            self.now += 60  # Ray has forgotten it
            assert ask(number + 1) != first, number
            for each in number, number + 1:
                self.router.on_request_completed(first, str(each))
            self.now += 60
        assert {ask(100 + number) for number in range(2)} == {"a", "b"}, (
            "nothing of what has ended is counted"
        )

    def test_an_answer_that_ends_before_it_is_taken_is_not_counted_for_ever(self, ask):
        for number in range(20):
            self.router.on_request_completed("a", str(number))
            ask(number)
            self.now += 60
        assert self.router._load("a") == self.router._load("b") == 0

    @pytest.fixture
    def choose(self, ask, monkeypatch):
        """The ranks of a request, which nobody has taken yet, among replicas a, b and c."""
        clock = SimpleNamespace(now=100.0)
        monkeypatch.setattr("localagent.server.fleet.router.monotonic", lambda: clock.now)
        self.clock = clock
        replicas = [SimpleNamespace(replica_id=name) for name in "abc"]

        def choose(number: int, *marks: str, able: str = "abc", take: bool = False) -> list[list[str]]:
            self.router.apply_multiplex_routing = lambda _: [*able]
            metadata = SimpleNamespace(internal_request_id=str(number))
            request = SimpleNamespace(kwargs={"marks": [*marks]}, metadata=metadata)
            ranks = asyncio.run(self.router.choose_replicas(replicas, request))
            chosen = [[each.replica_id for each in rank] for rank in ranks]
            if take:
                self.router.on_request_routed(request, chosen[0][0], None)
            return chosen

        return choose

    def test_without_a_request_all_are_asked(self, ask):
        replicas = [SimpleNamespace(replica_id=name) for name in "ab"]
        assert asyncio.run(self.router.choose_replicas(replicas)) == [replicas]

    def test_who_knows_a_conversation_comes_first_and_alone(self, choose):
        (first, *_) = choose(0, "x", take=True)
        for number in range(1, 4):
            found, *others = choose(number, "x", "y", take=True)
            assert found == first and len(found) == 1
            assert first[0] not in others[-1]
        assert len(choose(9, "nothing known")[0]) == 1

    def test_only_who_has_the_model_or_room_for_it_is_asked(self, choose):
        assert {name for number in range(4) for rank in choose(number, able="bz") for name in rank} == {"b"}
        assert choose(50, able="") == [[]]

    def test_where_all_who_have_the_model_are_busy_others_load_it(self, choose):
        for number in range(4):
            assert choose(number, able="a", take=True)[0] == ["a"]
        assert choose(4, able="a")[0][0] in "bc", "a has as many requests as lanes"
        self.router.on_request_completed("a", "0")
        assert choose(5, able="a")[0] == ["a"]

    def test_a_request_that_nobody_has_taken_counts_for_ten_seconds(self, choose):
        assert choose(0, able="a")[0] == ["a"]
        assert self.router._load("a") == 1
        self.clock.now += 5.5
        assert choose(1, able="a")[0] == ["a"]
        assert self.router._load("a") == 2
        self.clock.now += 5
        choose(2, able="b")
        assert (self.router._load("a"), self.router._load("b")) == (1, 1)
        self.clock.now += 10
        choose(3, able="c")
        assert (self.router._load("a"), self.router._load("b")) == (0, 0)

    def test_requests_that_come_together_are_spread(self, choose):
        chosen = [choose(number)[0][0] for number in range(12)]
        assert max(map(chosen.count, "abc")) <= 6
        assert all(self.router._load(name) == chosen.count(name) for name in "abc")
