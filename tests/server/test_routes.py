"""The server's own endpoints over a socket, each answer whole; its document, and the lines of its log."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from localagent.distribution import version
from localagent.errors import EngineFailed, NotEnoughMemory
from localagent.hosts.replay import ReplayHost
from localagent.model import Model
from localagent.server.access import Access
from localagent.server.app import all_wires, shapes
from localagent.server.bounds import Bounds
from localagent.server.exchange import BadRequest, Wire
from localagent.server.models import ModelPool
from localagent.server.openapi import openapi
from localagent.server.weights import Weights
from parsers import DIALECTS
from tests.agent.replaying import LFM2, block, recording, scripted
from tests.server.serving import Answered, PlainWire, Running, serving
from tests.server.test_faults import busy, speaking, until

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "Hello."}]}
KEY = {"x_api_key": "k"}


def replay(output: str = "Yes.") -> Model:
    return Model(ReplayHost([recording(output)], LFM2.markers, context=4096, lanes=2), LFM2)


def get(server: Running, path: str, **headers: str) -> Answered:
    return server.ask(path=path, method="GET", **headers)


@pytest.fixture
def two() -> Iterator[Running]:
    """A model that is loaded, and one whose weights are known, and that does not fit into memory."""

    def no_room() -> Model:
        raise NotEnoughMemory("it does not fit")

    header = Weights("lfm2", 512, "mlx", "{{ messages }}", DIALECTS["plain"])
    pool = ModelPool({"one": replay, "two": no_room}, headers={"two": lambda: header})
    pool.begin_with("one")
    for served in pool.served.values():
        served.created = 1_700_000_000
    with serving(pool=pool, wires=all_wires()) as running:
        yield running


# -- models ------------------------------------------------------------------------------------------------

NOW = {"created": 1_700_000_000, "created_at": "2023-11-14T22:13:20Z", "running": 0, "waiting": 0}
OURS = {"object": "model", "owned_by": "localagent", "type": "model", **NOW}
ONE = {**OURS, "id": "one", "display_name": "one", "context_length": 4096, "state": "ready", "lanes": 2}
TWO = {**OURS, "id": "two", "display_name": "two", "context_length": 512, "state": "unloaded", "lanes": 0}


def test_every_model_is_described_in_the_words_of_two_apis(two: Running) -> None:
    listed = get(two, "/v1/models")
    ends = {"object": "list", "has_more": False, "first_id": "one", "last_id": "two"}
    assert listed.json == {**ends, "data": [ONE, TWO]}
    assert "content-type: application/json" in listed.head
    assert get(two, "/v1/models/two").json == TWO
    assert get(two, "/v1/models/three").status == 404


def test_a_model_that_cannot_be_loaded_says_why(two: Running) -> None:
    answer = two.ask({"model": "two"}, path="/v1/models/load")
    assert (answer.status, "retry-after: 5" in answer.head) == (503, True)
    assert answer.json["error"]["message"] == "it does not fit"
    assert get(two, "/v1/models/two").json == {**TWO, "state": "failed", "error": "it does not fit"}
    health = get(two, "/health")
    states = {name: {"state": "unloaded", "lanes": 0, "running": 0, "waiting": 0} for name in ("one", "two")}
    states["two"] |= {"state": "failed", "error": "it does not fit"}
    assert (health.status, health.json) == (200, {"status": "ok", "models": states}), "the other made room"
    two.service.pool.served["one"].error = EngineFailed("gone")
    health = get(two, "/health")
    assert (health.status, health.json["status"], "retry-after: 5" in health.head) == (503, "failed", True)


def test_a_model_is_unloaded_and_loaded_by_its_name(two: Running) -> None:
    assert two.ask({"model": "one"}, path="/v1/models/unload").json["state"] == "unloaded"
    assert two.ask({"model": "one:latest"}, path="/v1/models/load").json == ONE


@pytest.mark.parametrize("path", ["/v1/models/load", "/v1/models/unload"])
@pytest.mark.parametrize("body", [{}, [], {"model": 7}, {"model": ""}])
def test_which_model_must_be_said(two: Running, path: str, body: Any) -> None:
    answer = two.ask(body, path=path)
    error = {"message": "model: the name of a model is needed", "param": "model", "code": None}
    assert (answer.status, answer.json["error"]) == (400, {**error, "type": "invalid_request_error"})


def test_what_ollamas_clients_are_told_of_both(two: Running) -> None:
    shown = {name: two.ask({"model": name}, path="/api/show").json for name in ("one", "two")}
    details = {"parent_model": "", "parameter_size": "0", "quantization_level": ""}
    assert shown["one"]["details"] == {**details, "format": "mlx", "family": "replay", "families": ["replay"]}
    assert shown["two"]["details"] == {**details, "format": "mlx", "family": "lfm2", "families": ["lfm2"]}
    assert [each["capabilities"] for each in shown.values()] == [
        ["completion", "tools", "thinking"],
        ["completion", "thinking"],
    ]
    assert [each["template"] for each in shown.values()] == ["", "{{ messages }}"]
    assert [each["parameters"] for each in shown.values()] == ["num_ctx 4096", "num_ctx 512"]
    assert {each["modified_at"] for each in shown.values()} == {"2023-11-14T22:13:20.000000Z"}
    tags, running = (get(two, path).json["models"] for path in ("/api/tags", "/api/ps"))
    assert [each["name"] for each in tags] == ["one", "two"]
    assert [(each["name"], each["context_length"]) for each in running] == [("one", 4096)]


def test_what_lm_studios_clients_are_told_of_both(two: Running) -> None:
    listed = get(two, "/api/v0/models").json
    same = {"object": "model", "type": "llm", "publisher": "localagent", "quantization": ""}
    one = {
        "id": "one",
        "arch": "replay",
        "state": "loaded",
        "loaded_context_length": 4096,
        "max_context_length": 4096,
    }
    other = {"id": "two", "arch": "lfm2", "state": "not-loaded", "max_context_length": 512}
    assert listed == {
        "object": "list",
        "data": [
            {**same, **one, "compatibility_type": "mlx", "capabilities": ["tool_use"]},
            {**same, **other, "compatibility_type": "mlx", "capabilities": []},
        ],
    }
    assert get(two, "/api/v0/models/two").json == listed["data"][1]
    assert get(two, "/api/v0/models/three").status == 404


def test_what_llama_servers_clients_are_told(two: Running) -> None:
    told = get(two, "/props").json
    assert told["default_generation_settings"] == {"n_ctx": 4096}
    assert (told["total_slots"], told["model_alias"], told["chat_template"]) == (2, "one", "")
    other = get(two, "/props?model=two").json
    assert (other["total_slots"], other["chat_template"]) == (0, "{{ messages }}")
    assert get(two, "/props?model=three").status == 404


def test_of_weights_that_nobody_can_read_the_best_is_assumed() -> None:
    with serving(pool=ModelPool({"m": replay}), wires=all_wires()) as server:
        shown = server.ask({"model": "m"}, path="/api/show").json
        assert (shown["capabilities"], shown["parameters"]) == (["completion", "tools"], "num_ctx 0")
        assert shown["details"]["family"] == "unknown"
        assert get(server, "/v1/models").json["data"][0]["context_length"] is None


def test_health_says_no_more_without_a_key_and_that_the_server_ends() -> None:
    with serving(replay(), access=Access(keys=("k",))) as server:
        assert get(server, "/health", **KEY).json == {"status": "ok"}
        server.service.stopping = True
        answer = get(server, "/health")
        assert (answer.status, answer.json) == (503, {"status": "stopping"})
        refused = server.ask({"prompt": "Go."}, **KEY)
        server.service.stopping = False
    said = "the server is stopping: ask again when it is back"
    assert (refused.status, refused.json["plain"]) == (503, {"message": said, "code": "overloaded"})


def test_metrics_are_there_where_they_are_wanted() -> None:
    with serving(replay(), metrics=True) as server:
        server.ask({"prompt": "Go."})
        answer = get(server, "/metrics")
    assert "content-type: text/plain; version=0.0.4; charset=utf-8" in answer.head
    assert b'localagent_requests_total{model="model-1",outcome="ok"} 1.0' in answer.body


def test_a_fault_of_the_server_is_told_to_its_log_alone(
    two: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(two.service.pool, "load", broken)
    answer = two.ask({"model": "one"}, path="/v1/models/load")
    assert answer.status == 500
    assert answer.json["error"]["message"] == "the server failed; its log says more"
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert record.getMessage() == "/v1/models/load failed"
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError
    caplog.clear()
    assert two.ask({"model": "three"}, path="/v1/models/load").status == 404
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "said"),
    [
        ("GET", "/v1/nothing", 404, "not_found", "GET /v1/nothing: no such endpoint"),
        ("PUT", "/v1/models", 405, "method_not_allowed", "/v1/models does not take PUT"),
        ("GET", CHAT, 405, "method_not_allowed", f"{CHAT} does not take GET"),
    ],
)
def test_what_is_not_here_is_said(
    two: Running, method: str, path: str, status: int, code: str, said: str
) -> None:
    answer = two.ask(path=path, method=method)
    error = {"message": said, "type": "invalid_request_error", "param": None, "code": code}
    assert (answer.status, answer.json) == (status, {"error": error})


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/chat/completions", "choices"),
        ("/v1//chat/completions", "choices"),
        ("//v1/chat/completions/", "choices"),
        ("/v1/v1/chat/completions", "choices"),
        ("/messages?beta=true", "stop_reason"),
        ("/v1/v1/messages", "stop_reason"),
        ("/messages/count_tokens", "input_tokens"),
        ("//api/chat", "message"),
    ],
)
def test_a_path_that_a_base_url_has_spoilt_is_understood(two: Running, path: str, key: str) -> None:
    answer = two.ask({**ASK, "stream": False}, path=path)
    assert (answer.status, key in answer.json) == (200, True), answer.json


def test_spoilt_paths_of_models_and_errors_in_the_shape_of_their_api(two: Running) -> None:
    assert get(two, "/models").json == get(two, "//v1//models").json == get(two, "/v1/models").json
    assert get(two, "/models/two").json == TWO
    assert two.ask({}, path="/v1/v1/messages").json["type"] == "error"
    assert get(two, "//").body == get(two, "/").body


@pytest.mark.parametrize("path", ["/openai/chat/completions", "/engines/v1/completions", "/nothing"])
def test_what_no_base_url_explains_is_told_which_one_is_right(two: Running, path: str) -> None:
    answer = two.ask(ASK, path=path)
    said = f"POST {path}: no such endpoint: the base URL for OpenAI's API ends in /v1 here"
    assert (answer.status, answer.json["error"]["message"]) == (404, said)


@pytest.mark.parametrize(
    ("path", "like"),
    [
        ("/v1/messages/batches", "/v1/messages"),
        ("/v1/messages/count_tokens/x", "/v1/messages/count_tokens"),
        ("/api/tags", "/api/chat"),
        ("/api/generate", "/api/generate"),
        ("/v1/models", CHAT),
        ("/nothing", CHAT),
        ("/", CHAT),
    ],
)
def test_errors_have_the_shape_of_the_api_that_is_most_alike(path: str, like: str) -> None:
    assert shapes(all_wires())(path).path == like


def test_a_route_that_fails_is_told_in_the_shape_of_its_api(
    two: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("localagent.server.routes.openapi", broken)
    answer = get(two, "/openapi.json")
    error = {"message": "the server failed; its log says more", "type": "server_error"}
    assert (answer.status, answer.json) == (500, {"error": {**error, "param": None, "code": None}})
    assert get(two, "/health").status == 200


# -- the document ------------------------------------------------------------------------------------------

MESSAGES = [{"role": "user", "content": "Hello."}]
LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES},
    "/v1/responses": {"input": "Hello."},
    "/v1/completions": {"prompt": "H"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/infill": {},
    "/api/chat": {},
    "/api/generate": {},
}
"""What each request must have."""
VALUES: list[tuple[str, Any, bool]] = [
    ("temperature", 0, True),
    ("temperature", -0.1, False),
    ("top_p", 1, True),
    ("top_p", 0.01, True),
    ("top_p", 1.1, False),
    ("max_tokens", 1, True),
    ("max_tokens", 0, False),
    ("max_completion_tokens", 0, False),
    ("max_output_tokens", 1, True),
    ("max_output_tokens", 0, False),
    ("top_k", 1, True),
    ("top_k", "1", False),
    ("top_logprobs", 0, True),
    ("top_logprobs", 21, False),
    ("seed", 7, True),
    ("seed", "7", False),
    ("stream", True, True),
    ("stream", "yes", False),
    ("raw", 7, False),
    ("parallel_tool_calls", 7, False),
    ("model", "m", True),
    ("model", 7, False),
    ("instructions", 7, False),
    ("stream_options", {}, True),
    ("stream_options", [], False),
    ("response_format", 7, False),
    ("options", 7, False),
    ("messages", [], False),
    ("messages", [{"role": "wizard", "content": "x"}], False),
    ("messages", [{"content": "x"}], False),
    ("messages", [{"role": "user", "content": 7}], False),
    ("messages", [{"role": "user", "content": [{"type": "text", "text": "x"}]}], True),
    ("prompt", "", False),
    ("input", [{"role": "user", "content": "x"}], True),
    ("input", 7, False),
    ("tools", [], True),
    ("tools", {}, False),
    ("tools", [7], False),
]


def schema_of(path: str) -> dict[str, Any]:
    document = openapi(all_wires(), keys=False)
    body = document["paths"][path]["post"]["requestBody"]
    assert body["required"] is True
    schema: dict[str, Any] = body["content"]["application/json"]["schema"]
    return schema


def takes(wire: Wire, body: Any) -> bool:
    try:
        wire.read(body)
    except BadRequest:
        return False
    return True


@pytest.mark.parametrize("wire", all_wires(), ids=lambda wire: wire.path)
def test_the_document_and_the_server_take_the_same_requests(wire: Wire) -> None:
    schema, least = schema_of(wire.path), LEAST[wire.path]
    validator = Draft202012Validator(schema)
    typed = {name for name, how in schema["properties"].items() if "description" not in how}
    rows = [({**least, name: value}, good) for name, value, good in VALUES if name in typed]
    if wire.path.startswith(("/api/", "/infill")):  # an empty conversation or prompt loads the model there
        rows = [
            (body, good) for body, good in rows if body.get("messages") != [] and body.get("prompt") != ""
        ]
    rows += [(least, True), *(({k: v for k, v in least.items() if k != name}, False) for name in least)]
    if wire.path == "/v1/messages":  # whose limit is asked for in the document, as by the API, and not needed
        rows = [(body, good) for body, good in rows if "max_tokens" in body]
    assert [(body, good) for body, good in rows if validator.is_valid(body) is not good] == []
    assert [(body, good) for body, good in rows if takes(wire, body) is not good] == []


def test_what_the_document_says_of_fields_that_do_nothing_or_cannot_be_had() -> None:
    fields = schema_of(CHAT)["properties"]
    assert fields["user"] == {"description": "Ignored, and named in the header x-localagent-ignored."}
    assert fields["audio"] == {"description": "An error: the server answers in text alone."}
    assert fields["stop"] == {}


def test_what_the_document_says_of_answers() -> None:
    document = openapi(all_wires(), keys=False)
    assert document["openapi"] == "3.1.0"
    assert document["info"] == {"title": "localagent", "version": version()}
    for path, kind in ((CHAT, "text/event-stream"), ("/api/chat", "application/x-ndjson")):
        turn = document["paths"][path]["post"]
        assert turn["responses"]["200"]["content"].keys() == {"application/json", kind}
    assert turn["summary"] == "Ollama's chat"
    told = turn["responses"]["404"]
    assert told == {"description": "No such model or endpoint", "content": {"application/json": {}}}
    assert turn["responses"].keys() == {
        *("200", "400", "401", "403", "404", "405", "408", "413", "415", "500", "503", "504")
    }
    one = document["paths"]["/v1/models/{name}"]["get"]
    assert one["parameters"] == [
        {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
    assert one["responses"]["200"]["content"].keys() == {"application/json"}
    assert "requestBody" not in one
    load = document["paths"]["/v1/models/load"]["post"]["requestBody"]
    named = {"type": "object", "required": ["model"], "properties": {"model": {"type": "string"}}}
    assert load == {"required": True, "content": {"application/json": {"schema": named}}}
    assert "parameters" not in document["paths"]["/health"]["get"]


def test_keys_are_in_the_document_where_they_are_needed() -> None:
    assert openapi(all_wires(), keys=False).keys() == {"openapi", "info", "paths"}
    document = openapi(all_wires(), keys=True)
    assert document.keys() == {"openapi", "info", "paths", "components", "security"}
    assert document["components"] == {
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
    }
    assert document["security"] == [{"bearer": []}, {"header": []}]
    with serving(replay(), access=Access(keys=("k",))) as server:
        assert "security" in get(server, "/openapi.json", **KEY).json
        assert CHAT not in get(server, "/openapi.json", **KEY).json["paths"], "which is not served here"


# -- the log -----------------------------------------------------------------------------------------------


def access_lines(caplog: pytest.LogCaptureFixture, count: int) -> list[str]:
    """The lines of so many requests: each is written when its answer has been sent."""

    def found() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name == "localagent.access"]

    until(lambda: len(found()) == count)
    return [re.sub(r"\d+\.\d{3} s", "T", line) for line in found()]


def test_a_line_for_every_request(caplog: pytest.LogCaptureFixture) -> None:
    model = replay(block("f(a=1)"))
    with (
        caplog.at_level(logging.INFO, "localagent.access"),
        serving(model, wires=all_wires(), access=Access(keys=("k",))) as server,
    ):
        server.ask(ASK, path=CHAT, **KEY)
        server.ask({**ASK, "model": "x", "n": 200}, path=CHAT, **KEY)
        server.ask(ASK, path=CHAT)
        get(server, "/v1/nothing%07?secret", user_agent="curl/8", **KEY)
        get(server, "/health", user_agent="curl/8 (linux)")
        lines = access_lines(caplog, 5)
        totals = server.service.metrics.totals()
    assert lines == [
        "key 1 POST /v1/chat/completions 200 ok model-1 1 (0 cached) + 5 tokens first T T",
        "key 1 POST /v1/chat/completions 400 refused T",
        "127.0.0.1 POST /v1/chat/completions 401 refused T",
        *lines[3:4],
        "127.0.0.1 curl GET /health 200 T",
    ]
    assert "secret" not in lines[3] and re.search(r"GET .*nothing.* 40[04]", lines[3])
    assert (totals["model-1"]["ok"], totals[""]["refused"]) == (1, 2)


def test_how_a_request_ended_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Model:
        said = ASK["messages"][0]["content"]
        raise OSError(said)

    pool = ModelPool({"good": replay, "broken": broken, "calls": lambda: replay(block("f(a=)"))})
    with serving(pool=pool, wires=all_wires()) as server:

        def ask(model: str) -> Answered:
            return server.ask({**ASK, "model": model}, path=CHAT)

        assert [ask(name).status for name in ("good", "broken", "calls", "nobody")] == [200, 500, 200, 404]
        until(lambda: "" in server.service.metrics.totals())
        totals = server.service.metrics.totals()
        text = server.service.metrics.text().decode()
    assert totals["good"]["ok"] == totals["calls"]["ok"] == totals["broken"]["failed"] == 1
    assert totals[""]["refused"] == 1
    assert 'localagent_malformed_calls_total{dialect="lfm2",model="calls"} 1.0' in text
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    said = record.getMessage()
    assert said.startswith(f"{CHAT} failed: OSError\n") and "in broken" in said
    assert "Hello." not in said, "what was said"


def test_who_leaves_is_counted_as_such() -> None:
    model = speaking()
    with serving(model) as server:
        with server.connect() as connection:
            connection.sendall(server.request({"prompt": "Go."}))
            until(lambda: busy(model))
        until(lambda: server.service.metrics.totals().get("model-1", {}).get("cancelled") == 1)


def test_what_is_said_is_logged_where_that_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "localagent.prompts"):
        for log_prompts in (False, True):
            with serving(replay("Good day."), wires=all_wires(), log_prompts=log_prompts) as server:
                server.ask(ASK, path=CHAT)
    asked, answered = [each.getMessage() for each in caplog.records if each.name == "localagent.prompts"]
    assert asked.startswith(f"{CHAT} TurnRequest(") and "Hello." in asked
    assert answered == f"{CHAT} 'Good day.<|im_end|>'"


def test_a_whole_answer_is_not_kept_alive_by_pieces_of_a_stream() -> None:
    def slow() -> Model:
        time.sleep(0.3)
        return replay()

    bounds = Bounds(keep_alive=0.02)
    for body in ({**ASK, "stream": False}, {"model": "m", "stream": True}):  # the second one only loads
        with serving(pool=ModelPool({"m": slow}), wires=all_wires(), bounds=bounds) as server:
            answer = server.ask(body, path="/api/chat")
            assert "content-type: application/json" in answer.head
            assert answer.json["done"] is True


def test_the_time_that_a_model_took_to_load_is_told() -> None:
    def slow() -> Model:
        time.sleep(0.05)
        return replay()

    with serving(pool=ModelPool({"m": slow}), wires=all_wires()) as server:
        first, second = (server.ask({**ASK, "stream": False}, path="/api/chat").json for _ in range(2))
    assert first["load_duration"] > 50_000_000
    assert second["load_duration"] == 0


@pytest.mark.parametrize("length", [1 << 16, (1 << 16) + 1])
def test_a_long_request_is_read_while_others_are_served(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    read: Callable[..., Any] = PlainWire.read

    def noted(self: PlainWire, *given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return read(self, *given)

    monkeypatch.setattr(PlainWire, "read", noted)
    body = b'{"prompt": "%s"}' % (b"a" * (length - 14))
    with serving(scripted("Yes.")) as server:
        assert len(body) == length
        assert server.ask(body).status == 200
    assert (threads == ["server under test"]) is (length == 1 << 16)
