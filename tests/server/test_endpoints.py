"""Every endpoint over a real socket: its answer, streamed and whole, its errors, and what official clients make of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from localagent.errors import NotEnoughMemory
from localagent.model import Model, load
from localagent.server.access import Access
from localagent.server.app import all_wires
from localagent.server.bounds import Bounds
from localagent.server.models import ModelPool
from localagent.server.weights import read_weights
from parsers import DIALECTS
from tests.agent.replaying import block, scripted
from tests.hosts.speaking import Speaking, speaking_host
from tests.server.serving import Answered, Running, read, serving

WEATHER = {
    "name": "get_weather",
    "description": "The weather in a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
SAID = "Let me see." + block('get_weather(place="Oslo")')
ASK = [{"role": "user", "content": "Will it rain?"}]
TURNS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK, "tools": [{"type": "function", "function": WEATHER}]},
    "/v1/responses": {"input": "Will it rain?", "tools": [{"type": "function", **WEATHER}]},
    "/v1/messages": {
        "messages": ASK,
        "max_tokens": 32_000,
        "tools": [{"name": "get_weather", "input_schema": WEATHER["parameters"]}],
    },
    "/api/chat": {"messages": ASK, "tools": [{"type": "function", "function": WEATHER}], "stream": False},
}
"""A request to each endpoint that calls tools."""


def large(path: str, name: str, description: str, schema: Any, count: int) -> dict[str, Any]:
    """Such a request with so many of such tools."""
    tools: list[dict[str, Any]] = []
    for number in range(count):
        named = {"name": f"{name}{number}", "description": description}
        if path == "/v1/messages":
            tools.append({**named, "input_schema": schema})
        elif path == "/v1/responses":
            tools.append({"type": "function", **named, "parameters": schema})
        else:
            tools.append({"type": "function", "function": {**named, "parameters": schema}})
    return {**TURNS[path], "tools": tools}


def words(path: str, whole: Any) -> tuple[str, str, Any]:
    """The text of an answer, and the name and the arguments of its call."""
    if path == "/v1/chat/completions":
        message = whole["choices"][0]["message"]
        call = message["tool_calls"][0]["function"]
        return message["content"], call["name"], json.loads(call["arguments"])
    if path == "/v1/responses":
        message, call = whole["output"]
        return message["content"][0]["text"], call["name"], json.loads(call["arguments"])
    if path == "/v1/messages":
        text, call = whole["content"]
        return text["text"], call["name"], call["input"]
    message = whole["message"]
    call = message["tool_calls"][0]["function"]
    return message["content"], call["name"], call["arguments"]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(scripted(SAID), wires=all_wires()) as running:
        yield running


@pytest.fixture(scope="module")
def nano_server(nano: dict[str, Path]) -> Iterator[Running]:
    with serving(load(nano["llamacpp"], lanes=2), wires=all_wires(), buffer_tool_calls=True) as running:
        yield running


@pytest.mark.parametrize("path", TURNS)
def test_a_turn(server: Running, path: str) -> None:
    answer = server.ask(TURNS[path], path=path)
    assert answer.status == 200
    assert "content-type: application/json" in answer.head
    assert "x-localagent-model: model-1" in answer.head
    assert words(path, answer.json) == ("Let me see.", "get_weather", {"place": "Oslo"})


@pytest.mark.parametrize("path", TURNS)
def test_a_stream(server: Running, path: str) -> None:
    answer = server.ask({**TURNS[path], "stream": True}, path=path)
    assert answer.status == 200
    kind = "application/x-ndjson" if path.startswith("/api") else "text/event-stream"
    assert f"content-type: {kind}" in answer.head
    lines = answer.body.decode().split("\n")
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith(("data: {", "{"))]
    assert len(data) > 4
    assert "Oslo" in answer.body.decode()


SIGNS = {
    "/v1/chat/completions": b": working\n\n",
    "/v1/responses": b"event: response.in_progress\n",
    "/v1/messages": b"event: ping\n",
    "/api/chat": b'"message":{"role":"assistant","content":""},"done":false}\n',
}
"""By what a client of each API hears that the server is there."""


@pytest.mark.parametrize("path", TURNS)
@pytest.mark.parametrize("fits", [True, False])
def test_a_stream_is_kept_alive_while_its_model_loads(path: str, fits: bool) -> None:
    heard = threading.Event()

    def loader() -> Model:
        assert heard.wait(60)
        if not fits:
            raise NotEnoughMemory("it does not fit")
        return scripted(SAID)

    pool, bounds = ModelPool({"one": loader}), Bounds(keep_alive=0.2)
    with serving(pool=pool, wires=all_wires(), bounds=bounds) as server, server.connect() as connection:
        connection.sendall(server.request({**TURNS[path], "stream": True}, path=path))
        first = b""
        while first.count(SIGNS[path]) < 3:
            first += connection.recv(10_000)
        heard.set()
        answer = read(connection, 20, time.monotonic())
        answer.data = first + answer.data
        assert answer.status == 200
        assert "x-localagent-model: one" in answer.head
        *_, last = [line for line in answer.body.decode().split("\n") if line not in ("", "data: [DONE]")]
        if fits:
            assert "Oslo" in answer.body.decode()
            assert "error" not in json.loads(last.removeprefix("data: "))
            return
        said = json.loads(last.removeprefix("data: "))
        assert "it does not fit" in str(said.get("response", said)["error"])
        # Who does not stream, or is not kept waiting, gets a status.
        server.service.bounds = Bounds()
        for stream in (True, False):
            answer = server.ask({**TURNS[path], "stream": stream}, path=path)
            assert answer.status == 503
            assert in_shape(path, answer) == "it does not fit"


THINKING: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "/v1/chat/completions": ({"reasoning_effort": "low"}, {"reasoning_effort": "none"}, "reasoning_effort"),
    "/v1/responses": (
        {"reasoning": {"effort": "low"}},
        {"reasoning": {"effort": "none"}},
        "reasoning.effort",
    ),
    "/v1/messages": ({"thinking": {"type": "enabled"}}, {"thinking": {"type": "disabled"}}, "thinking"),
    "/api/chat": ({"think": True}, {"think": False}, "think"),
}


@pytest.mark.parametrize("path", TURNS)
@pytest.mark.parametrize("stream", [True, False])
def test_thinking_that_the_model_has_no_switch_for_is_named(server: Running, path: str, stream: bool) -> None:
    wish, other, field = THINKING[path]
    answer = server.ask({**TURNS[path], "stream": stream, **wish}, path=path)
    assert answer.status == 200
    assert f"\r\nx-localagent-ignored: {field}\r\n" in answer.head + "\r\n"
    for more in (other, {}):
        assert (
            "x-localagent-ignored"
            not in server.ask({**TURNS[path], "stream": stream, **more}, path=path).head
        )


@pytest.mark.parametrize("path", TURNS)
@pytest.mark.parametrize("encoding", ["length", "chunked"])
def test_both_ways_to_send_a_body(server: Running, path: str, encoding: str) -> None:
    body = json.dumps(TURNS[path]).encode()
    if encoding == "length":
        assert server.ask(body, path=path).status == 200
        return
    head = server.request(path=path, content_type="application/json", transfer_encoding="chunked")
    assert server.send(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)).status == 200


def in_shape(path: str, answer: Answered) -> str:
    """The message of an error, which must be in the API's own shape."""
    said = answer.json
    if path.startswith("/api"):
        assert set(said) == {"error"}
        return str(said["error"])
    if path.startswith("/v1/messages"):
        assert said["type"] == "error"
        assert set(said["error"]) >= {"type", "message"}
    else:
        assert set(said["error"]) == {"message", "type", "param", "code"}
    return str(said["error"]["message"])


PATHS = [*TURNS, "/v1/completions", "/v1/messages/count_tokens", "/api/generate"]


@pytest.mark.parametrize("path", PATHS)
def test_errors_have_the_shape_of_their_api(path: str) -> None:
    access, bounds = Access(keys=("k",)), Bounds(body=500)
    with serving(scripted("Yes."), wires=all_wires(), access=access, bounds=bounds) as server:
        assert "API key" in in_shape(path, server.ask({}, path=path))
        key = {"x_api_key": "k"}
        assert "host name" in in_shape(path, server.ask({}, path=path, host="evil.example", **key))
        assert "may not use" in in_shape(path, server.ask({}, path=path, origin="null", **key))
        assert "application/json" in in_shape(path, server.ask({}, path=path, content_type="nonsense", **key))
        assert "larger than" in in_shape(path, server.ask({"a": "b" * 600}, path=path, **key))
        assert "not JSON" in in_shape(path, server.ask(b"{", path=path, **key))
        wrong = server.ask([], path=path, **key)
        assert wrong.status == 400
        assert in_shape(path, wrong)
        missing = server.ask({}, path=f"{path}/nothing", **key)
        assert missing.status == 404
        assert "no such endpoint" in in_shape(path, missing)
        wrong = server.ask(path=path, method="GET", **key)
        assert (wrong.status, "\r\nallow: post" in wrong.head) == (405, True)
        assert "does not take" in in_shape(path, wrong)


def test_answers_do_not_wait_for_acknowledgements(server: Running) -> None:
    """Nagle's algorithm would hold the body back for 40 ms, until the client has acknowledged the head."""
    with server.connect() as connection:
        times = []
        for _ in range(60):
            began = time.monotonic()
            connection.sendall(server.request(path="/v1/models", method="GET", connection="keep-alive"))
            data = b""
            while not data.endswith(b"}"):
                data += connection.recv(10_000)
            times.append(time.monotonic() - began)
    assert sorted(times)[5] < 0.03


def test_what_is_ignored_is_named_in_a_header(server: Running) -> None:
    body = {**TURNS["/v1/chat/completions"], "user": "me", "store": True, "sparkle": 1, " ": 1}
    answer = server.ask(body, path="/v1/chat/completions")
    named = [line for line in answer.head.split("\r\n") if line.startswith("x-localagent-ignored")]
    assert named == ["x-localagent-ignored: user, store, sparkle, ?"]


CALL = {"name": "look", "arguments": "{}"}
PNG = "data:image/png;base64,iVBORw0KGgo="
IGNORED: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": (
        {
            "messages": [
                *ASK,
                {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": CALL}]},
                {
                    "role": "tool",
                    "tool_call_id": "a",
                    "content": [{"type": "image_url", "image_url": {"url": PNG}}],
                },
            ]
        },
        "image",
    ),
    "/v1/responses": (
        {
            "input": [
                *ASK,
                {"type": "function_call", "call_id": "a", **CALL},
                {
                    "type": "function_call_output",
                    "call_id": "a",
                    "output": [{"type": "input_image", "image_url": PNG}],
                },
            ]
        },
        "image",
    ),
    "/v1/messages/count_tokens": (
        {"messages": ASK, "betas": ["new"], "tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "betas, web_search",
    ),
    "/api/generate": ({"model": "model-1", "keep_alive": 0, "sparkle": 1}, "sparkle"),
}


@pytest.mark.parametrize("path", IGNORED)
def test_what_is_left_out_of_a_prompt_or_of_no_use_is_named_too(path: str) -> None:
    body, named = IGNORED[path]
    model = Model(speaking_host(Speaking(b"Yes.")), DIALECTS["lfm2"])
    with serving(model, wires=all_wires()) as server:
        answer = server.ask(body, path=path)
    assert answer.status == 200
    assert f"\r\nx-localagent-ignored: {named}\r\n" in answer.head + "\r\n"
    assert "x-localagent-model: model-1" in answer.head


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_root_says_that_somebody_is_here(server: Running, method: str) -> None:
    answer = server.ask(path="/", method=method)
    assert answer.status == 200
    assert answer.body == (b"Ollama is running" if method == "GET" else b"")


def test_ollamas_lists(server: Running) -> None:
    assert server.ask(path="/api/tags", method="GET").json["models"][0]["name"] == "model-1"
    assert server.ask(path="/api/version", method="GET").json["version"]
    shown = server.ask({"model": "model-1:latest"}, path="/api/show").json
    assert "tools" in shown["capabilities"]
    assert server.ask({"model": "other"}, path="/api/show").status == 404
    server.ask(TURNS["/api/chat"], path="/api/chat")
    assert [each["name"] for each in server.ask(path="/api/ps", method="GET").json["models"]] == ["model-1"]


@pytest.mark.parametrize("engine", ["llamacpp", "mlx"])
def test_a_model_is_described_as_well_before_it_is_loaded(nano: dict[str, Path], engine: str) -> None:
    path = nano[engine]
    if engine == "mlx":
        pytest.importorskip("mlx_lm")
    pool = ModelPool({"m": lambda: load(path)}, headers={"m": partial(read_weights, path, None, None)})
    with serving(pool=pool, wires=all_wires()) as server:
        before = (
            server.ask({"model": "m"}, path="/api/show").json,
            server.ask(path="/api/tags", method="GET").json,
            server.ask(path="/v1/models", method="GET").json["data"][0]["context_length"],
        )
        assert pool.served["m"].model is None
        assert set(before[0]["capabilities"]) == {"completion", "tools", "thinking"}
        assert server.ask({"model": "m"}, path="/v1/models/load").status == 200
        after = (
            server.ask({"model": "m"}, path="/api/show").json,
            server.ask(path="/api/tags", method="GET").json,
            server.ask(path="/v1/models", method="GET").json["data"][0]["context_length"],
        )
    assert before == after


def test_weights_that_cannot_be_read_are_described_by_their_name(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    read = partial(read_weights, tmp_path / "m.gguf", None, None)
    pool = ModelPool({"m": lambda: scripted("Yes.")}, headers={"m": read})
    with serving(pool=pool, wires=all_wires()) as server:
        assert server.ask({"model": "m"}, path="/api/show").json["details"]["family"] == "unknown"


def test_errors_name_a_model_as_it_is_served() -> None:
    plain = Model(scripted("Yes.").host, DIALECTS["plain"], name="A Title Of Its Makers")
    with serving(plain, wires=all_wires()) as server:
        answer = server.ask(TURNS["/v1/messages"], path="/v1/messages")
        assert "model-1 takes no tools" in in_shape("/v1/messages", answer)
        answer = server.ask({"prompt": "Once"}, path="/v1/completions")
        assert "model-1 takes conversations" in in_shape("/v1/completions", answer)


def test_ollamas_clients_load_and_unload() -> None:
    with serving(scripted("Yes."), wires=all_wires()) as server:
        served = server.service.pool.served["model-1"]
        assert server.ask({"model": "model-1"}, path="/api/generate").json["done"] is True
        assert served.model is not None
        answer = server.ask({"model": "model-1", "keep_alive": 0}, path="/api/generate")
        assert answer.json["done_reason"] == "unload"
        assert served.model is None


def test_the_document_has_every_endpoint(server: Running) -> None:
    document = server.ask(path="/openapi.json", method="GET").json
    assert document["openapi"].startswith("3.")
    assert set(document["paths"]) >= set(PATHS)
    fields = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
    assert "x-localagent-ignored" in fields["schema"]["properties"]["user"]["description"]
    for path, operations in document["paths"].items():
        for method in operations:
            answer = server.ask({} if method == "post" else None, path=path, method=method.upper())
            assert answer.status not in (404, 405) or "{name}" in path, path


# -- lfm2-nano ---------------------------------------------------------------------------------------------


def test_text_is_continued_without_a_template(nano_server: Running) -> None:
    body = {"prompt": "<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\n", "max_tokens": 5}
    whole = nano_server.ask({**body, "logprobs": 2}, path="/v1/completions").json
    text = whole["choices"][0]["text"]
    assert text
    assert "".join(whole["choices"][0]["logprobs"]["tokens"]) == text
    streamed = nano_server.ask({**body, "stream": True}, path="/v1/completions").body.decode()
    data = [json.loads(line[6:]) for line in streamed.split("\n") if line.startswith("data: {")]
    assert "".join(each["choices"][0]["text"] for each in data) == text
    raw = nano_server.ask(
        {"prompt": body["prompt"], "raw": True, "stream": False, "options": {"num_predict": 5}},
        path="/api/generate",
    )
    assert raw.json["response"] == text


def test_tokens_are_counted_as_they_are_prompted(nano_server: Running) -> None:
    body = {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 1}
    counted = nano_server.ask(body, path="/v1/messages/count_tokens").json["input_tokens"]
    usage = nano_server.ask(body, path="/v1/messages").json["usage"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"] > 5
    streamed = nano_server.ask({**body, "stream": True}, path="/v1/messages").body.decode()
    data = [json.loads(line[6:]) for line in streamed.split("\n") if line.startswith("data: {")]
    usage = data[0]["message"]["usage"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert usage["output_tokens"] == 0


def test_a_prompt_that_is_too_long_is_an_error_with_both_numbers(nano_server: Running) -> None:
    context = nano_server.ask(path="/v1/models", method="GET").json["data"][0]["context_length"]
    body = {"messages": [{"role": "user", "content": "word " * 3 * context}]}
    for stream in (False, True):
        answer = nano_server.ask({**body, "stream": stream}, path="/v1/chat/completions")
        assert answer.status == 400
        assert answer.json["error"]["code"] == "context_length_exceeded"
        said = answer.json["error"]["message"]
        assert said.startswith(f"This model's maximum context length is {context} tokens.")


def test_logprobs_name_their_tokens(nano_server: Running) -> None:
    body = {"messages": ASK, "max_tokens": 3, "logprobs": True, "top_logprobs": 4}
    answer = nano_server.ask(body, path="/v1/chat/completions")
    entries = answer.json["choices"][0]["logprobs"]["content"]
    assert all(len(entry["top_logprobs"]) == 4 for entry in entries)
    assert "".join(entry["token"] for entry in entries) == answer.json["choices"][0]["message"]["content"]


# -- official clients --------------------------------------------------------------------------------------


def test_the_openai_package(server: Running) -> None:
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
        tools: Any = TURNS["/v1/chat/completions"]["tools"]
        whole = client.chat.completions.create(model="gpt-5", messages=ASK, tools=tools)  # type: ignore[arg-type]
        assert whole.choices[0].finish_reason == "tool_calls"
        with client.chat.completions.stream(model="gpt-5", messages=ASK, tools=tools) as stream:  # type: ignore[arg-type]
            message = stream.get_final_completion().choices[0].message
        assert message.tool_calls is not None
        assert json.loads(message.tool_calls[0].function.arguments) == {"place": "Oslo"}
        assert [each.id for each in client.models.list()] == ["model-1"]
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("gpt-5")
        with pytest.raises(openai.BadRequestError, match="n"):
            client.chat.completions.create(model="gpt-5", messages=ASK, n=2)  # type: ignore[arg-type]


def test_the_anthropic_package(server: Running) -> None:
    import anthropic

    with anthropic.Anthropic(base_url=server.url, api_key="any") as client:
        tools: Any = TURNS["/v1/messages"]["tools"]
        with client.messages.stream(model="claude", max_tokens=99, messages=ASK, tools=tools) as stream:  # type: ignore[arg-type]
            message = stream.get_final_message()
        assert message.stop_reason == "tool_use"
        assert message.content[1].input == {"place": "Oslo"}  # type: ignore[union-attr]
        assert [each.id for each in client.models.list()] == ["model-1"]
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(model="claude", max_tokens=9, messages=ASK, extra_body={"temperature": -1})  # type: ignore[arg-type]


def test_the_ollama_package(server: Running) -> None:
    import ollama

    client = ollama.Client(host=server.url)
    assert client.list().models[0].model == "model-1"
    *_, last = client.chat("model-1", messages=ASK, tools=TURNS["/api/chat"]["tools"], stream=True)
    assert last.done
    with pytest.raises(ollama.ResponseError):
        client.show("other")
    client._client.close()


LARGE = {
    "name": (("n" * 100_000, "", {}, 1), "its name has 100,001 characters, and at most 256 are taken"),
    "description": (
        ("f", "d" * 50_001, {}, 1),
        "its description has 50,001 characters, and at most 50,000 are",
    ),
    "schema": (
        ("f", "", {"enum": [*range(99_999)]}, 1),
        "a schema of 688,893 characters, and the server takes",
    ),
    "together": (("f", "d" * 49_999, {}, 41), "with it all tools together have 2,0"),
    "count": (("f", "", {}, 1_001), "1,001 of them, and the server takes 1,000"),
}


@pytest.mark.parametrize("path", TURNS)
@pytest.mark.parametrize(("tools", "says"), LARGE.values(), ids=LARGE)
def test_tools_that_are_too_large_are_refused_on_every_wire(server, path, tools, says):
    answered = server.ask(large(path, *tools), path=path)
    assert answered.status == 400
    error = answered.json["error"]
    if path == "/api/chat":
        assert error.startswith("tools") and says in error
        return
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("tools") and says in error["message"]
    if path != "/v1/messages":
        assert error["message"].startswith(f"{error['param']}: ")
