"""How an answer is taken apart and judged: what is in it, what it refuses, where it differs, and when it is left."""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from localagent.remote import Server
from localagent_bench.results import Results
from localagent_bench.server import checking, of_http, rules
from localagent_bench.server.checking import check_servers
from localagent_bench.server.hearing import Caller, Heard, ServerGone
from localagent_bench.server.rules import Check, Fails, NotOffered, NotSeen, Probe, Verdict
from localagent_bench.server.target import MeasuredServer, describe
from tests.bench.server.imitation import KEY, imitation
from tests.remote.scripted import DONE, HANG, chunk, event, scripted, stream, whole


def answer(body: Any, status: int = 200, problem: str = "", **more: Any) -> Heard:
    return Heard(status, "application/json", [json.dumps(body).encode()], [1.5], problem, **more)


def streamed(*events: Any, status: int = 200, problem: str = "") -> Heard:
    lines = [f"data: {each if isinstance(each, str) else json.dumps(each)}\n".encode() for each in events]
    return Heard(status, "text/event-stream", lines, [float(at) for at in range(len(lines))], problem)


def choices(*told: Any) -> dict[str, Any]:
    return {"choices": list(told)}


def why(call: Any, *given: Any) -> tuple[type, str]:
    with pytest.raises(Verdict) as verdict:
        call(*given)
    return type(verdict.value), str(verdict.value)


# -- what is in an answer ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "heard", "found"),
    [
        (rules.whole, answer({"a": 1}), {"a": 1}),
        (rules.choice, answer(choices({"a": 1}, {})), {"a": 1}),
        (rules.message, answer(choices({"message": {"content": "x"}})), {"content": "x"}),
        (rules.text_of, answer(choices({"message": {"content": "x"}})), "x"),
        (rules.text_of, answer(choices({"message": {"content": None}})), ""),
        (rules.text_of, answer(choices({"message": {}})), ""),
        (rules.finish_of, answer(choices({"finish_reason": "stop"})), "stop"),
        (
            rules.chunks_of,
            streamed(choices(), choices({"delta": {}}), "[DONE]"),
            [choices(), choices({"delta": {}})],
        ),
        (rules.choices_of, streamed(choices({"delta": {}, "a": 1}), choices()), [{"delta": {}, "a": 1}]),
        (rules.deltas_of, streamed(choices({"delta": {"a": 1}}, {"delta": {}})), [{"a": 1}, {}]),
        (
            rules.streamed_text,
            streamed(*(choices({"delta": {"content": each}}) for each in ("a", None, 7, "b"))),
            "ab",
        ),
    ],
)
def test_an_answer_is_taken_apart(read: Any, heard: Heard, found: Any) -> None:
    assert read(heard) == found


@pytest.mark.parametrize(
    ("read", "heard", "says"),
    [
        (rules.whole, answer({"a": 1}, 201), "201: '{\"a\": 1}'"),
        (rules.whole, answer({"a": 1}, problem="no end"), "no end"),
        (rules.whole, answer([1]), "200: [1]"),
        (rules.choice, answer({"choices": {}}), "there is no choice in the answer"),
        (rules.choice, answer({"choices": []}), "there is no choice in the answer"),
        (rules.choice, answer({"choices": [1]}), "there is no choice in the answer"),
        (rules.message, answer(choices({"message": "x"})), "there is no message in the answer"),
        (rules.text_of, answer(choices({"message": {"content": [1]}})), "the content is no text: [1]"),
        (rules.chunks_of, streamed(choices(), status=500), "500: "),
        (rules.chunks_of, streamed(choices(), problem="cut"), "cut"),
        (rules.chunks_of, streamed(), "there are no events in the answer"),
        (rules.chunks_of, streamed(choices(), [1]), "chunk 2 is no chunk of a chat completion: [1]"),
        (rules.chunks_of, streamed({"choices": 1}), "chunk 1 is no chunk of a chat completion: "),
        (rules.chunks_of, streamed("{{"), "chunk 1 is no chunk of a chat completion: {{"),
        (rules.chunks_of, streamed(choices(), choices({"delta": {}}, 1)), "a choice of chunk 2 has no delta"),
        (rules.chunks_of, streamed(choices({"delta": 1})), "a choice of chunk 1 has no delta"),
    ],
)
def test_what_is_not_there_fails(read: Any, heard: Heard, says: str) -> None:
    kind, told = why(read, heard)
    assert kind is Fails
    assert told.replace("'", "").startswith(says.replace("'", ""))


ERROR = {"error": {"message": "too\nlong", "type": "t"}}


@pytest.mark.parametrize(
    ("heard", "statuses", "told"),
    [
        (answer(ERROR, 400), (range(400, 500),), "400: too long"),
        (answer(ERROR, 499), (), "499: too long"),
        (answer(ERROR, 404), ((404, 405),), "404: too long"),
    ],
)
def test_a_refusal_says_why(heard: Heard, statuses: Any, told: str) -> None:
    assert rules.refusal(heard, *statuses) == told


@pytest.mark.parametrize(
    ("heard", "says"),
    [
        (answer(ERROR, 399), "399: too long"),
        (answer(ERROR, 500), "500: too long"),
        (answer(ERROR, 400, "cut"), "cut"),
        (answer({"detail": "no"}, 400), '400, but no error object: {"detail": "no"}'),
        (answer({"error": "no"}, 400), '400, but no error object: {"error": "no"}'),
        (answer([], 400), "400, but no error object: []"),
        (answer({"error": {"message": "", "type": "t"}}, 400), "400, but the error has no message: "),
        (answer({"error": {"message": 7, "type": "t"}}, 400), "400, but the error has no message: "),
        (answer({"error": {"message": "m"}}, 400), "400, but the error has no type: "),
        (answer({"error": {"message": "m", "type": ""}}, 400), "400, but the error has no type: "),
    ],
)
def test_a_refusal_in_another_form_fails(heard: Heard, says: str) -> None:
    kind, told = why(rules.refusal, heard)
    assert kind is Fails
    assert told.replace("'", "").startswith(says)


@pytest.mark.parametrize(
    ("heard", "kind", "says"),
    [
        (answer(ERROR, 400), NotOffered, "400: too long"),
        (answer(ERROR, 499), NotOffered, "499: too long"),
        (answer(ERROR, 501), NotOffered, "501: too long"),
        (answer(ERROR, 399), Fails, "399: too long"),
        (answer(ERROR, 500), Fails, "500: too long"),
        (answer(ERROR, 502), Fails, "502: too long"),
        (answer({}, 200, "cut"), Fails, "cut"),
        (answer({}, 400), Fails, "400, but no error object: {}"),
    ],
)
def test_what_is_refused_is_not_offered(heard: Heard, kind: type, says: str) -> None:
    assert why(rules.offered, heard) == (kind, says)
    assert rules.offered(answer({})).status == 200


@pytest.mark.parametrize(
    ("first", "other", "says"),
    [
        ("a" * 20 + "b", "a" * 20 + "c", f"it: {'a' * 10}b and {'a' * 10}c"),
        ("abc", "ab", "it: abc and ab"),
        ("x" + "y" * 50, "z" + "y" * 50, f"it: x{'y' * 29} and z{'y' * 29}"),
    ],
)
def test_two_texts_are_shown_from_where_they_differ(first: str, other: str, says: str) -> None:
    assert why(rules.differs, "it", first, other) == (Fails, says)


# -- bytes ------------------------------------------------------------------------------------------------


def test_an_answer_is_kept_as_it_came() -> None:
    heard = Heard(
        200,
        "",
        [b"data: {}\r\n", b"data:{\n", b": alive\n", b"data: [DONE] \n", b"data:  x\xff\n"],
        [1, 2, 3, 4, 5],
    )
    assert heard.body == b"data: {}\r\ndata:{\n: alive\ndata: [DONE] \ndata:  x\xff\n"
    assert heard.data == [(1, "{}"), (2, "{"), (4, "[DONE] "), (5, " x\ufffd")]
    assert heard.chunks == [{}, None, None]
    assert heard.json is None
    assert Heard(200, lines=[b"[" * 100_000]).json is None
    assert Heard(200, lines=[b"data: " + b"[" * 100_000], times=[1.0]).chunks == [None]
    assert Heard(500, lines=[b"x" * 300]).told() == f"500: '{'x' * 119}"


def caller(url: str, limit: float = 10) -> Caller:
    return Caller(Server.at(url, KEY, 5), limit)


def test_lines_have_the_times_at_which_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(stream(chunk({"content": "a"}), DONE)) as server:
        heard = caller(server.url).hear("POST", rules.CHAT, b"{}")
        assert (heard.status, heard.content_type, heard.problem) == (200, "text/event-stream", "")
        assert len(heard.lines) == len(heard.times) == 4
        assert 0 <= heard.times[0] <= heard.times[-1] < 10
        assert heard.times == sorted(heard.times)


def test_a_client_leaves_when_it_has_enough_and_gives_up_what_has_no_end() -> None:
    endless = [*stream(chunk({"content": "a"})), HANG]
    with scripted(endless) as server:
        left = caller(server.url).hear(
            "POST", rules.CHAT, b"{}", enough=lambda line: line.startswith(b"data")
        )
        assert (left.problem, len(left.lines)) == ("", 1)
        cut = caller(server.url, 0.3).hear("POST", rules.CHAT, b"{}", enough=lambda line: False)
        assert cut.problem == "no end after 0.3 seconds"
        assert cut.lines[0].startswith(b"data")


@pytest.mark.parametrize("check", [of_http.a_client_may_leave, of_http.a_limit_above_the_room_is_clamped])
def test_a_stream_without_an_end_is_left_after_its_first_chunk(check: Any) -> None:
    endless = [*stream(b": alive\n\n", chunk({"content": "a"})), HANG]
    with scripted(endless, whole({"choices": []})) as server:
        target = MeasuredServer("scripted", Server.at(server.url, KEY, 5), "theirs")
        assert re.fullmatch(
            r"answered|the next one was answered after \d\.\d\d s",
            check(Probe(target, Caller(target.server, 10))),
        )
        assert server.chats[0]["stream"] is True


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([whole({}, 500)], "500: "),
        ([stream(event({})), whole({}, 503)], "the next one gets 503: "),
        ([stream(event({}), more="content-length: 999\r\n"), whole({})], ""),
    ],
)
def test_a_server_that_does_not_let_a_client_leave_fails(answers: Any, says: str) -> None:
    with scripted(*answers) as server:
        target = MeasuredServer("scripted", Server.at(server.url, KEY, 5), "theirs")
        probe = Probe(target, Caller(target.server, 10))
        if says:
            kind, told = why(of_http.a_client_may_leave, probe)
            assert kind is Fails
            assert told.startswith(says)
        else:
            assert of_http.a_client_may_leave(probe).startswith("the next one was answered after 0.")


def test_a_connection_that_breaks_is_told_by_what_broke_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with imitation("rubbish") as server:
        asking = Probe(MeasuredServer("t", Server.at(server.url, KEY, 5), "words"), caller(server.url))
        kind, told = why(of_http.a_connection_serves_two_requests, asking)
    assert (kind, told.strip()) == (Fails, "after 0 answers: 220 mail.example ESMTP")

    def broken(*_: Any) -> None:
        raise http.client.CannotSendRequest

    with imitation() as server:
        asking = Probe(MeasuredServer("t", Server.at(server.url, KEY, 5), "words"), caller(server.url))
        sent = http.client.HTTPConnection.request
        asked: list[int] = []

        def once(*given: Any, **more: Any) -> Any:
            asked.append(1)
            return broken() if len(asked) > 1 else sent(*given, **more)

        monkeypatch.setattr(http.client.HTTPConnection, "request", once)
        assert why(of_http.a_connection_serves_two_requests, asking) == (
            Fails,
            "after 1 answers: CannotSendRequest",
        )


def test_what_never_answers_is_given_up_after_three_requests_in_a_row() -> None:
    silent, good = [HANG], whole({})
    with scripted(silent, silent, good, silent, silent, silent) as server:
        asking = caller(server.url, 0.2)
        problems = [asking.hear("POST", rules.CHAT, b"{}").problem for _ in range(5)]
        assert [bool(each) for each in problems] == [True, True, False, True, True]
        with pytest.raises(ServerGone, match=r"^3 requests in a row were not answered: .+$"):
            asking.hear("POST", rules.CHAT, b"{}")
    with pytest.raises(ServerGone):
        caller(server.url).hear("GET", "/v1/models")


# -- probes and rows --------------------------------------------------------------------------------------


class Counting:
    """A caller that answers with the number of the request, and notes what it was."""

    limit = 1.0

    def __init__(self, *statuses: int) -> None:
        self.asked: list[Any] = []
        self.statuses = list(statuses)

    def hear(self, method: str, path: str, data: Any = None, **_: Any) -> Heard:
        self.asked.append(
            (method, path, None if data is None else data if b"{" not in data else json.loads(data))
        )
        return answer(len(self.asked), self.statuses.pop(0) if self.statuses else 200)


def probe(*statuses: int) -> tuple[Probe, Counting]:
    counting = Counting(*statuses)
    target = MeasuredServer("t", Server.at("http://127.0.0.1:9", KEY, 5), "m")
    return Probe(target, counting), counting  # type: ignore[arg-type]


def test_the_same_request_is_sent_once() -> None:
    asking, counting = probe()
    asks = [
        lambda: asking.get("/a"),
        lambda: asking.post(b"a"),
        asking.chat,
        lambda: asking.chat(again=1),
    ]
    asks += [lambda: asking.chat(n=2), asking.stream]
    assert [ask().json for ask in asks] == [ask().json for ask in asks] == [1, 2, 3, 4, 5, 6]
    usual = {"model": "m", "messages": rules.said(rules.QUESTION), "max_tokens": 24, "temperature": 0}
    assert counting.asked == [
        ("GET", "/a", None),
        ("POST", rules.CHAT, b"a"),
        *(("POST", rules.CHAT, usual) for _ in range(2)),
        ("POST", rules.CHAT, usual | {"n": 2}),
        ("POST", rules.CHAT, usual | {"stream": True}),
    ]
    asking.chat(temperature=None, max_tokens=None)
    assert counting.asked[-1][2] == {"model": "m", "messages": usual["messages"]}


@pytest.mark.parametrize(("status", "forced"), [(200, {"tool_choice": "required"}), (400, {})])
def test_calls_are_forced_where_that_can_be_done(status: int, forced: dict[str, Any]) -> None:
    asking, counting = probe(status)
    usual = {
        "model": "m",
        "messages": rules.said(rules.WEATHER),
        "max_tokens": 128,
        "temperature": 0,
        "tools": rules.TOOLS,
    }
    first = asking.call()
    assert asking.call() is first
    asking.call(stream=True)
    asking.call(tool_choice="none")
    bodies = [body for _, _, body in counting.asked]
    assert bodies[0] == usual | {"tool_choice": "required"}
    assert bodies[-2:] == [usual | forced | {"stream": True}, usual | {"tool_choice": "none"}]
    assert len(bodies) == (3 if forced else 4)


def run_of(
    checks: tuple[Check, ...], monkeypatch: pytest.MonkeyPatch
) -> tuple[Results, list[MeasuredServer], list[str]]:
    monkeypatch.setattr(checking, "CHECKS", checks)
    results, told = Results("server", {}), list[str]()
    targets = [MeasuredServer(name, Server.at("http://127.0.0.1:9", None, 5), "m") for name in ("one", "two")]
    there = check_servers(results, targets, 3, told.append)
    return results, there, told


def test_each_outcome_is_a_row_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def says(verdict: Any) -> Any:
        def check(asking: Probe) -> str:
            """A rule."""
            assert asking.caller.limit == 3
            if isinstance(verdict, Exception):
                raise verdict
            return verdict

        return check

    long = "a\n" * 200
    verdicts = [
        long,
        Fails("f"),
        Fails("g"),
        NotOffered("o"),
        NotSeen("s"),
        KeyError("k"),
        ZeroDivisionError("z"),
    ]
    results, there, told = run_of(
        tuple(Check("a", f"sent {at}", says(each)) for at, each in enumerate(verdicts)), monkeypatch
    )
    assert [each.name for each in there] == ["one", "two"]
    assert told == ["one: 7 rules", "two: 7 rules"]
    counts = {"passes": 1, "fails": 4, "not_offered": 1, "not_seen": 1}
    assert results.run.rows["server.outcomes"] == [{"server": name} | counts for name in ("one", "two")]
    rows = results.run.rows["server.rules"]
    assert rows[0] | {"seen": ""} == {
        "rule": "A rule.",
        "server": "one",
        "outcome": "passes",
        "seen": "",
        "sent": "sent 0",
    }
    assert len(rows[0]["seen"]) == 200
    assert [(row["outcome"], row["seen"]) for row in rows[1:7]] == [
        *(("fails", "f"), ("fails", "g"), ("not offered", "o"), ("not seen", "s")),
        ("fails", "an answer of another shape (KeyError: 'k')"),
        ("fails", "an answer of another shape (ZeroDivisionError: z)"),
    ]


def test_a_server_that_is_gone_is_left_with_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(_: Probe) -> str:
        return "fine"

    def gone(_: Probe) -> str:
        raise ServerGone("x\n" * 300)

    results, there, _ = run_of(
        (Check("a", "b", first), Check("a", "c", gone), Check("a", "d", first)), monkeypatch
    )
    assert there == []
    assert [(row["rule"], row["outcome"]) for row in results.run.rows["server.rules"]] == [
        ("first", "passes")
    ] * 2
    assert list(results.run.skipped) == ["one, 2 of 3 rules", "two, 2 of 3 rules"]
    assert {len(why) for why in results.run.skipped.values()} == {300}
    assert results.run.rows["server.outcomes"][0]["passes"] == 1


def test_servers_are_described() -> None:
    results = Results("server", {})
    one = MeasuredServer("one", Server.at("http://a:1", None, 5), "m", 512, build="CPU")
    describe(results, [one, replace(one, name="two", context=None, build="")])
    told = {"url": "http://a:1", "model": "m"}
    assert results.run.rows["server.servers"] == [
        {"server": "one", **told, "context": 512, "build": "CPU"},
        {"server": "two", **told, "context": None, "build": None},
    ]


@pytest.mark.parametrize(("length", "context"), [(2048, 2048), (None, None)])
def test_a_server_is_found_at_its_address(length: int | None, context: int | None) -> None:
    models = {"object": "list", "data": [{"id": "theirs", **({"max_model_len": length} if length else {})}]}
    with scripted(models=models) as server:
        found, named = (
            MeasuredServer.at(server.url, None, 5),
            MeasuredServer.at(server.url, "theirs", 5, "mine"),
        )
    assert (found.name, found.model, found.context) == (server.url.removeprefix("http://"), "theirs", context)
    assert (named.name, named.server.silence, named.extra) == ("mine", 5, {})
