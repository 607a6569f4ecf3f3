"""The load of servers: what is counted, who takes turns, and what becomes of a server that fails."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from typing import Any

import pytest

from localagent.errors import ServerUnreachable, StreamBroken, UsageError
from localagent.remote import Server
from localagent_bench.results import Column, Results, value_text
from localagent_bench.server import load as module
from localagent_bench.server.load import (
    Load,
    LoadRequest,
    RequestWriter,
    ScenarioEnd,
    Seen,
    ask,
    streams,
    together,
)
from localagent_bench.server.loading import LONG, SHORT, STREAMS, load_servers
from localagent_bench.server.target import MeasuredServer, name_of, pair
from tests.bench.server.imitation import CONTEXT, KEY, imitation
from tests.remote.scripted import DONE, HANG, chunk, event, scripted, stream

SMALL = Load(streams=(1, 2), clients=(1, 2), tokens=6, words=40, answers=5, rounds=2, limit=20)


def target(url: str, name: str = "one", **more: Any) -> MeasuredServer:
    return MeasuredServer(name, Server.at(url, KEY, 5), "words", CONTEXT, **more)


def measured(*targets: MeasuredServer, load: Load = SMALL) -> tuple[Results, list[str]]:
    results, told = Results("server", {}), list[str]()
    load_servers(results, targets, load, told.append)
    return results, told


def test_two_servers_take_turns_and_stand_side_by_side() -> None:
    cpu = itertools.count(5.0, 0.25)  # seconds, each time it is asked for
    with imitation() as one, imitation() as two:
        results, told = measured(target(one.url), target(two.url, "two", cpu=lambda: next(cpu)))
    assert not results.run.skipped
    rows = results.run.rows["server.streams"]
    assert [(row["streams"], row["server"]) for row in rows] == [
        (1, "one"),
        (1, "two"),
        (2, "one"),
        (2, "two"),
    ]
    assert [row["tokens"] for row in rows] == [6, 6, 12, 12], "as the server counts them"
    for row in rows:
        assert row["speed"] > 0
        assert 0 < row["first"] <= row["worst"] < 5
        assert row["ratio"] == 1 or row["server"] == "two"
        assert row.get("cpu") == (0.25 if row["server"] == "two" else None)
    assert [row["server"] for row in results.run.rows["server.long"]] == ["one", "two"]
    assert {row["clients"] for row in results.run.rows["server.short"]} == {1, 2}
    turns = [line for line in told if ", 1 stream, " in line]
    assert turns == [
        "round 1, 1 stream, two",
        "round 1, 1 stream, one",
        "round 2, 1 stream, one",
        "round 2, 1 stream, two",
    ]


def test_one_server_has_no_ratios() -> None:
    with imitation() as server:
        results, _ = measured(target(server.url))
    assert all("ratio" not in row for rows in results.run.rows.values() for row in rows)


def test_tokens_are_timed_and_signs_of_life_are_none() -> None:
    answer = stream(
        b": working\n\n",
        chunk({"role": "assistant"}),
        chunk({"content": "a"}),
        chunk({"reasoning_content": "b"}),
        chunk({}, "stop"),
        event({"choices": [], "usage": {"completion_tokens": 3}}),
        DONE,
    )
    with scripted(answer) as server:
        seen = Seen()
        ask(target(server.url), LoadRequest("s", "u", 9), seen, ScenarioEnd(5))
    assert (len(seen.times), seen.written) == (2, 3)
    asked = server.chats[0]
    assert (asked["max_tokens"], asked["temperature"], asked["stream"]) == (9, 0, True)


def test_a_server_that_counts_nonsense_is_timed_by_its_chunks() -> None:
    usage = event({"choices": [], "usage": {"completion_tokens": 10**400, "prompt_tokens": 10**400}})
    answer = stream(chunk({"content": "a"}), chunk({"content": "b"}), chunk({}, "stop"), usage, DONE)
    with scripted(answer) as server:
        figures = streams(target(server.url), RequestWriter("s", 9), Load(), count=1)
    assert (figures["tokens"], figures["prompt"]) == (2, None)


def test_prompts_are_the_same_for_all_and_never_come_twice() -> None:
    first, again, other = (RequestWriter(seed, 4).questions(3) for seed in ("a", "a", "b"))
    assert first == again
    assert not {each.user for each in first} & {each.user for each in other}


BROKEN = {
    "dies in the midst": (
        [*stream(chunk({"content": "a"}), more="content-length: 9999\r\n")],
        "broke the answer off",
    ),
    "says no word": ([*stream(chunk({}, "stop"), DONE)], "streamed no text"),
    "streams an error": ([*stream(event({"error": {"message": "out of memory"}}))], "out of memory"),
    "streams rubbish": ([*stream(event("{{{"))], "something else than JSON"),
    "streams a list": ([*stream(event([1]))], "broke the answer off"),
    "hangs": ([*stream(chunk({"content": "a"})), HANG], "did not end within"),
}


@pytest.mark.parametrize(("answer", "reason"), BROKEN.values(), ids=[*BROKEN])
def test_what_fails_is_one_line_and_the_rest_goes_on(answer: list[bytes], reason: str) -> None:
    load = Load(streams=(2,), clients=(1,), tokens=4, words=10, answers=2, rounds=2, limit=1)
    with scripted(answer) as broken, imitation() as server:
        results, told = measured(target(broken.url, "broken"), target(server.url, "good"), load=load)
    said = results.run.skipped
    assert reason in said["broken, 2 streams"]
    assert all("\n" not in why for why in said.values())
    assert sum("2 streams, broken" in line for line in told) == 1, "it is not waited for again"
    assert [row["server"] for row in results.run.rows["server.streams"]] == ["good"]
    assert all("ratio" not in row for row in results.run.rows["server.streams"])


def test_a_server_that_is_gone_is_not_asked_again() -> None:
    with imitation() as server:
        gone = target(server.url, "gone")
    results, told = measured(gone)
    assert list(results.run.skipped) == ["gone, warm-up"]
    assert not any("round" in line for line in told)
    assert not results.run.rows


def test_the_first_failure_ends_the_others() -> None:
    stop = ScenarioEnd(30)

    def fails() -> None:
        raise ServerUnreachable("gone")

    def waits() -> None:
        while not stop.is_set():
            time.sleep(0.01)
        raise module.Cancelled

    began = time.monotonic()
    with pytest.raises(ServerUnreachable, match="gone"):
        together([waits, fails, waits], stop)
    assert time.monotonic() - began < 5
    with pytest.raises(StreamBroken, match="did not end within 0 seconds"):
        together([waits], stop := ScenarioEnd(0))
    assert threading.active_count() < 20


def test_ctrl_c_ends_the_requests_and_is_what_is_raised() -> None:
    stop, ended = ScenarioEnd(30), []

    def waits() -> None:
        while not stop.is_set():
            time.sleep(0.01)
        ended.append(stop.failed)

    def interrupts() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        waits()

    with pytest.raises(KeyboardInterrupt):
        together([waits, interrupts], stop)
    assert stop.failed
    assert all(ended), "not because the time was over, if they were begun at all"


def test_ctrl_c_before_all_requests_are_begun_leaves_none_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(module.ThreadPoolExecutor):
        begun = 0

        def submit(self, *given: Any) -> Any:
            if self.begun:
                raise KeyboardInterrupt
            self.begun += 1
            return super().submit(*given)

    monkeypatch.setattr(module, "ThreadPoolExecutor", Interrupted)
    ran: list[int] = []
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        together([lambda: ran.append(1), lambda: ran.append(2)], ScenarioEnd(30))
    assert not ran
    assert time.monotonic() - began < 5


TIMES = [
    pytest.param(column, id=f"{table.name} {column.key}")
    for table in (STREAMS, LONG, SHORT)
    for column in table.columns
    if column.key in ("first", "worst", "gap")
]


@pytest.mark.parametrize("column", TIMES)
def test_times_are_shown_to_the_millisecond(column: Column) -> None:
    assert value_text(1234.0561, column).startswith("1,234.056")


def test_a_long_prompt_is_no_longer_than_what_fits() -> None:
    with imitation() as server:
        small = MeasuredServer("small", Server.at(server.url, KEY, 5), "words", 90)
        results, _ = measured(small)
    assert results.run.rows["server.long"][0]["words"] == 22


def test_each_address_has_its_model() -> None:
    assert pair(["a", "b"], []) == [("a", None), ("b", None)]
    assert pair(["a", "b"], ["m"]) == [("a", "m"), ("b", "m")]
    assert pair(["a", "b"], ["m", "n"]) == [("a", "m"), ("b", "n")]
    with pytest.raises(UsageError, match="one for each"):
        pair(["a"], ["m", "n"])
    with pytest.raises(UsageError, match="twice"):
        pair(["a", "a"], [])
    assert name_of("http://127.0.0.1:8080") == "127.0.0.1:8080"
    assert name_of("https://api.example.com/openai") == "api.example.com/openai"
