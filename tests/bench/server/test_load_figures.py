"""Every figure of the load on servers whose times are known, and the rows that are made of them."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from localagent.errors import ServerUnreachable, StreamBroken
from localagent.remote import Server
from localagent_bench.results import Results
from localagent_bench.server import load as module
from localagent_bench.server import loading
from localagent_bench.server.load import (
    QUESTION,
    WORDS,
    Load,
    LoadRequest,
    RequestWriter,
    ScenarioEnd,
    Seen,
    ask,
    long_prompt,
    short_answers,
    streams,
)
from localagent_bench.server.loading import load_servers
from localagent_bench.server.target import MeasuredServer
from tests.remote.scripted import DONE, chunk, event, scripted, stream


def target(name: str = "one", url: str = "http://127.0.0.1:9", **more: Any) -> MeasuredServer:
    return MeasuredServer(name, Server.at(url, None, 5), "m", **more)


# -- one request ------------------------------------------------------------------------------------------


def test_a_request_asks_for_so_many_tokens_and_for_their_count() -> None:
    answer = stream(chunk({"content": "a"}), chunk({}, "stop"), DONE)
    with scripted(answer) as server:
        seen = Seen()
        ask(
            target(url=server.url, extra={"ignore_eos": True, "seed": 1}),
            LoadRequest("s", "u", 9),
            seen,
            ScenarioEnd(5),
        )
    assert server.chats == [
        {"model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}
        | {"max_tokens": 9, "temperature": 0, "ignore_eos": True, "seed": 1}
        | {"stream": True, "stream_options": {"include_usage": True}}
    ]
    assert 0 < seen.first < 5
    assert seen.first == seen.times[0] - seen.started
    assert Seen(1.0, [3.0, 9.0]).first == 2
    assert (seen.written, seen.prompt) == (1, None), "its chunks, as the server does not count"


@pytest.mark.parametrize(
    ("usage", "written", "prompt"),
    [
        ({"completion_tokens": 7, "prompt_tokens": 3}, 7, 3),
        ({"completion_tokens": 1, "prompt_tokens": 1}, 1, 1),
        ({"completion_tokens": 0, "prompt_tokens": 0}, 2, None),
        ({"completion_tokens": True, "prompt_tokens": True}, 2, None),
        ({"completion_tokens": 2.0, "prompt_tokens": "3"}, 2, None),
        ({"completion_tokens": (1 << 40) - 1, "prompt_tokens": 1 << 40}, (1 << 40) - 1, None),
        ([], 2, None),
    ],
)
def test_a_server_counts_its_tokens_as_far_as_that_makes_sense(
    usage: Any, written: int, prompt: int | None
) -> None:
    arrived: list[int] = []
    odd = event(
        {
            "choices": [
                7,
                {"delta": [], "finish_reason": None},
                {"delta": {"content": "", "role": "assistant"}},
            ]
        }
    )
    pieces = [
        chunk({"role": "assistant"}),
        odd,
        chunk({"content": "a", "role": "x"}),
        chunk({"tool_calls": [1]}),
    ]
    answer = stream(
        *pieces, event({"choices": None}), chunk({}, "stop"), event({"choices": {}, "usage": usage}), DONE
    )
    with scripted(answer) as server:
        seen = Seen()
        ask(
            target(url=server.url),
            LoadRequest("s", "u", 9),
            seen,
            ScenarioEnd(5),
            lambda: arrived.append(len(seen.times)),
        )
    assert (seen.written, seen.prompt, arrived) == (written, prompt, [1, 2])


def test_requests_end_when_one_failed_or_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    stop = ScenarioEnd(5)
    assert stop.explain() == "it did not end within 5 seconds"
    now[0] = 105.0
    assert not stop.is_set()
    now[0] = 105.1
    assert stop.is_set()
    other = ScenarioEnd(5)
    other.failed = True
    assert other.is_set()


def test_requests_are_drawn_from_words() -> None:
    writer, again = RequestWriter("a", 9), RequestWriter("a", 9)
    asked = writer.questions(6)
    assert asked == again.questions(6)
    lengths = []
    for each in asked:
        assert (len(each.system.split()), each.count) == (6, 9)
        assert each.user.startswith(QUESTION)
        lengths.append(len(each.user.removeprefix(QUESTION).split()))
        assert {*each.user.removeprefix(QUESTION).split(), *each.system.split()} <= {*WORDS.split()}
    assert lengths == [8, 9, 10, 11, 8, 9]
    assert len({each.system for each in asked}) == 6
    usual = Load()
    assert (usual.streams, usual.clients, usual.tokens, usual.words) == ((1, 4, 8), (1, 8), 64, 1500)
    assert (usual.answers, usual.rounds, usual.limit) == (100, 3, 600)


# -- scenarios --------------------------------------------------------------------------------------------


def told(monkeypatch: pytest.MonkeyPatch, *seen: Seen) -> list[LoadRequest]:
    """What the requests see, in the order in which they were drawn."""
    asked: list[LoadRequest] = []
    order = {request.user: at for at, request in enumerate(RequestWriter("w", 8).questions(len(seen)))}

    def known(target: Any, request: LoadRequest, into: Seen, stop: ScenarioEnd, arrived: Any = None) -> None:
        asked.append(request)
        found = seen[order[request.user]]
        into.started, into.times, into.written, into.prompt = (
            found.started,
            found.times,
            found.written,
            found.prompt,
        )

    monkeypatch.setattr(module, "ask", known)
    return asked


def test_streams_are_as_fast_as_all_of_them_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = (Seen(1.0, [2.0, 3.0, 5.5], 3, 10), Seen(1.5, [4.5, 6.5], 2, 20), Seen(1.25, [1.75], 1, 30))
    asked = told(monkeypatch, *seen)
    assert streams(target(), RequestWriter("w", 8), Load(), count=3) == {
        "speed": 6 / 5.5,
        "first": 1.0,
        "worst": 3.0,
        "gap": 2.5,
        "tokens": 6,
        "prompt": 60,
    }
    assert sorted(asked, key=lambda each: each.user) == sorted(
        RequestWriter("w", 8).questions(3), key=lambda each: each.user
    )
    told(monkeypatch, Seen(1.0, [1.0], 1, 10), Seen(1.0, [1.0], 1, None))
    assert streams(target(), RequestWriter("w", 8), Load(), count=2) == {
        "speed": None,
        "first": 0.0,
        "worst": 0.0,
        "gap": None,
        "tokens": 2,
        "prompt": None,
    }


@pytest.mark.parametrize(("tokens", "quarter"), [(8, 2), (64, 16), (3, 1)])
def test_a_long_prompt_arrives_when_a_stream_has_written_a_quarter(
    tokens: int, quarter: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, running, late = threading.Event(), list[Seen](), list[LoadRequest]()

    class Quarter(threading.Event):
        at: int | None = None

        def set(self) -> None:
            if self.at is None:
                Quarter.at = self.at = max(len(each.times) for each in running)
            super().set()

    def known(target: Any, request: LoadRequest, seen: Seen, stop: ScenarioEnd, arrived: Any = None) -> None:
        if arrived is None:
            late.append(request)
            seen.started, seen.times = 10.0, [15.0, 17.0]
            begun.set()
            return
        running.append(seen)
        first = request == RequestWriter("w", tokens).questions(3)[0]
        for time in range(quarter):
            seen.times.append(float(time) / quarter)
            if first:
                arrived()
        begun.wait(20)
        # Gaps are 9, 2 and 4 seconds before the long prompt, within and about its wait; after it 40.
        seen.times += [9.0, 11.0, 14.5, 15.0, 55.0] if first else [10.0, 15.0]

    monkeypatch.setattr(module, "ask", known)
    monkeypatch.setattr(module, "threading", SimpleNamespace(Event=Quarter, Barrier=threading.Barrier))
    figures = long_prompt(target(), RequestWriter("w", tokens), Load(tokens=tokens, words=40))
    assert Quarter.at == quarter
    assert figures == {"gap": 5.0, "first": 5.0, "meanwhile": 2}
    (request,) = late
    assert (len(request.user.split()), request.count, len(running)) == (40, tokens, 3)


def test_streams_that_have_ended_before_do_not_keep_the_long_prompt_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def known(target: Any, request: LoadRequest, seen: Seen, stop: ScenarioEnd, arrived: Any = None) -> None:
        seen.started, seen.times = (1.0, [2.0]) if arrived else (10.0, [15.0])

    monkeypatch.setattr(module, "ask", known)
    assert long_prompt(target(), RequestWriter("w", 64), Load(words=4)) == {
        "gap": None,
        "first": 5,
        "meanwhile": 0,
    }


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_short_answers_are_shared_by_the_clients(clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is not counted: it takes a minute."""
    clock, asked = [0.0], list[Any]()

    class Known:
        @contextmanager
        def open(self, path: str, body: Any, stop: ScenarioEnd) -> Any:
            asked.append((path, body))
            clock[0] += 60 if len(asked) == 1 else 0
            yield SimpleNamespace(json=lambda: None)
            clock[0] += {2: 1.0, 3: 2.0, 4: 6.0}.get(len(asked), 2.0) if clients == 1 else 0.0

    monkeypatch.setattr(module, "perf_counter", lambda: clock[0])
    known = MeasuredServer("one", Known(), "m")  # type: ignore[arg-type]
    if clients > 1:
        clock_of = iter(range(10**6))
        monkeypatch.setattr(module, "perf_counter", lambda: float(next(clock_of)))
    figures = short_answers(known, RequestWriter("w", 8), Load(answers=5), clients=clients)
    assert len(asked) == 6
    if clients == 1:
        assert figures == {"speed": 5 / 13, "first": 2, "worst": 6}
    (body,) = [body for at, (_, body) in enumerate(asked) if body not in [other for _, other in asked[:at]]]
    assert body["max_tokens"] == 1
    assert body["messages"][0] == {"role": "system", "content": "Answer briefly."}
    assert len(body["messages"][1]["content"].removeprefix(QUESTION).split()) == 8


# -- rows -------------------------------------------------------------------------------------------------


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Servers whose figures are known, round by round, by scenario and name; an error is raised."""
    state = SimpleNamespace(asked=[], figures={}, said=[])

    def scenario(name: str) -> Any:
        def run(target: MeasuredServer, writer: RequestWriter, load: Load, **more: Any) -> Any:
            state.asked.append((name, target.name, load.words, more))
            state.said.append(writer.questions(1))
            rounds = state.figures.get((name, target.name), [])
            found = rounds.pop(0) if rounds else {"first": 1.0}
            if isinstance(found, Exception):
                raise found
            return found

        return run

    for name in ("streams", "long_prompt", "short_answers"):
        monkeypatch.setattr(loading, name, scenario(name))
    return state


def measured(*targets: MeasuredServer, **load: Any) -> tuple[Results, list[str]]:
    results, lines = Results("server", {}), list[str]()
    load_servers(results, targets, Load(**{"streams": (1,), "clients": (), "words": 40} | load), lines.append)
    return results, lines


def test_rows_are_medians_of_the_rounds_and_ratios_are_of_the_same_round(known: SimpleNamespace) -> None:
    def rounds(*speeds: float | None) -> list[dict[str, Any]]:
        told = {"tokens": 5.5, "prompt": None}
        return [{"speed": 9.0}, *({"speed": each, "first": 10.0 * (each or 1), **told} for each in speeds)]

    known.figures = {("streams", "one"): rounds(4.0, 1.0, 2.0), ("streams", "two"): rounds(2.0, 3.0, None)}
    known.figures["long_prompt", "two"] = [
        {"gap": None, "first": 2.0, "meanwhile": each} for each in (1.0, 3.5, 9.0)
    ]
    results, _ = measured(target("one"), target("two"))
    whole = {"tokens": 6, "prompt": None}
    assert results.run.rows["server.streams"] == [
        {"streams": 1, "server": "one", "speed": 2, "first": 20, "ratio": 1, **whole},
        {"streams": 1, "server": "two", "speed": 2.5, "first": 20, "ratio": 1.75, **whole},
    ]
    assert results.run.rows["server.long"] == [
        {"words": 40, "server": "one", "first": 1, "ratio": 1},
        {"words": 40, "server": "two", "gap": None, "first": 2, "meanwhile": 4, "ratio": None},
    ]
    known.figures = {("streams", name): [{"speed": 9.0}, *[{"speed": None}] * 3] for name in ("one", "two")}
    results, _ = measured(target("one"), target("two"))
    assert results.run.rows["server.streams"][1] == {
        "streams": 1,
        "server": "two",
        "speed": None,
        "ratio": None,
    }


def test_scenarios_come_in_turn_and_servers_within_a_round(known: SimpleNamespace) -> None:
    cpu = iter((1.0, 3.0, 10.0, 10.5, 20.0, 20.5, *range(100, 200)))
    results, lines = measured(
        target("one"), target("two", cpu=lambda: next(cpu)), clients=(1, 2), streams=(1, 2), rounds=2
    )
    titles = [
        "1 stream",
        "2 streams",
        "long prompt",
        "answers of one token, 1 client",
        "answers of one token, 2 clients",
    ]
    assert lines == [
        *("one: warm-up", "two: warm-up"),
        *(
            f"round {number}, {title}, {name}"
            for title in titles
            for number, names in ((1, ("two", "one")), (2, ("one", "two")))
            for name in names
        ),
    ]
    assert [each[::3] for each in known.asked[:2]] == [("streams", {"count": 1})] * 2
    assert [each[::3] for each in known.asked[2::4]] == [
        *(("streams", {"count": 1}), ("streams", {"count": 2}), ("long_prompt", {})),
        *(("short_answers", {"clients": 1}), ("short_answers", {"clients": 2})),
    ]
    rows = results.run.rows
    assert [row.get("cpu") for row in rows["server.streams"][:2]] == [None, 0.5]
    assert [row["streams"] for row in rows["server.streams"]] == [1, 1, 2, 2]
    assert [row["clients"] for row in rows["server.short"]] == [1, 1, 2, 2]
    said = known.said
    assert said[0] == said[1] != said[2] == said[3] != said[4] == said[5], (
        "all are asked the same, and nothing twice"
    )
    assert (said[0][0].count, said[2][0].count) == (2, 64)


def test_a_long_prompt_is_a_quarter_of_the_smallest_context_at_most(known: SimpleNamespace) -> None:
    measured(target("one", context=100), target("two"), target("three", context=90))
    assert {words for _, _, words, _ in known.asked} == {22}
    known.asked.clear()
    measured(target("one", context=1000))
    assert {words for _, _, words, _ in known.asked} == {40}


def test_what_fails_once_is_not_tried_again_and_who_is_gone_not_at_all(known: SimpleNamespace) -> None:
    known.figures = {
        ("streams", "one"): [{"first": 1.0}, {"first": 1.0}, StreamBroken("it broke\noff")],
        ("streams", "two"): [{"first": 1.0}, ServerUnreachable("gone")],
    }
    results, lines = measured(target("one"), target("two"), target("three"), rounds=3)
    assert results.run.skipped == {"two, 1 stream": "gone", "one, 1 stream": "it broke off"}
    assert [line for line in lines if "1 stream" in line] == [
        *("round 1, 1 stream, three", "round 1, 1 stream, two", "round 1, 1 stream, one"),
        *("round 2, 1 stream, one", "round 2, 1 stream, three", "round 3, 1 stream, three"),
    ]
    assert results.run.rows["server.streams"] == [{"streams": 1, "server": "three", "first": 1}]
    assert [row["server"] for row in results.run.rows["server.long"]] == ["one", "three"]
    assert [row["ratio"] for row in results.run.rows["server.long"]] == [1, 1]
    known.figures = {
        ("streams", "one"): [StreamBroken("x" * 400)],
        ("streams", "two"): [ServerUnreachable("gone")],
    }
    results, lines = measured(target("one"), target("two"))
    assert [row["server"] for row in results.run.rows["server.streams"]] == ["one"]
    assert len(results.run.skipped["one, warm-up"]) == 300
