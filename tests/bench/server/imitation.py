"""A server that keeps every rule, and breaks one when it is told to: no model, no engine, a few words."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-imitation"
WORDS = [
    "Red",
    "is",
    "warm,",
    "blue",
    "is",
    "cold,",
    "and",
    "green",
    "—",
    "你好",
    "🌈",
    "—",
    "lies",
    "between",
    "them",
    "all",
    "day",
    "long.",
]
CONTEXT = 4096
CHAT = "/v1/chat/completions"


class Refused(Exception):
    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Imitation(ThreadingHTTPServer):
    """`faults`: names of what it does wrong; each is looked for by name below."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, faults: set[str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults = faults
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked = 0
        self.heard: list[tuple[str, bytes]] = []
        """What came: the address, and the body."""
        self.broken = False

    def handle_error(self, *_: Any) -> None:
        """Clients leave: that is no error."""


@contextmanager
def imitation(*faults: str) -> Iterator[Imitation]:
    server = Imitation(set(faults))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Imitation

    def log_message(self, *_: Any) -> None:
        pass

    def faulty(self, name: str) -> bool:
        return name in self.server.faults

    def do_GET(self) -> None:
        self.answer(self.get)

    def do_POST(self) -> None:
        self.server.asked += 1
        if self.faulty("dies") and self.server.asked > 5:
            threading.Thread(target=self.server.shutdown).start()
            self.server.socket.close()
            self.close_connection = True
            return
        if self.faulty("hangs"):
            time.sleep(1.5)
        if self.faulty("rubbish"):
            self.wfile.write(b"220 mail.example ESMTP\r\n")
            self.close_connection = True
            return
        self.answer(self.post)

    def answer(self, make: Any) -> None:
        with suppress(ConnectionError):
            try:
                make()
            except Refused as refused:
                self.refuse(refused)

    def refuse(self, refused: Refused) -> None:
        error = {"message": str(refused), "type": "invalid_request_error", "param": None, "code": None}
        self.send(refused.status, {"detail": str(refused)} if self.faulty("detail") else {"error": error})

    def send(self, status: int, value: Any, kind: str = "application/json") -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        if self.faulty("closes"):
            self.send_header("connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(data)

    def get(self) -> None:
        self.server.heard.append((self.path, b""))
        names = ["words", "more words"] if self.faulty("two models") else ["words"]
        if self.path == "/v1/models":
            data = [{"id": name, "object": "model", "max_model_len": CONTEXT} for name in names]
            self.send(200, {"object": "list", "data": [] if self.faulty("no models") else data})
        elif self.path == "/v1/models/words":
            self.send(200, {"id": "other" if self.faulty("other id") else "words", "object": "model"})
        elif self.faulty("lenient"):
            self.send(200, {})
        else:
            raise Refused(
                "no such endpoint" if self.path != CHAT else "POST it", 405 if self.path == CHAT else 404
            )

    def post(self) -> None:
        if self.headers.get("transfer-encoding") == "chunked" and not self.faulty("no chunks"):
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers.get("content-length", 0)))
            self.close_connection = "transfer-encoding" in self.headers
        self.server.heard.append((self.path, data))
        if self.server.broken:
            raise Refused("still busy with somebody who left", 503)
        if self.headers.get("authorization") != f"Bearer {KEY}" and not self.faulty("no key"):
            raise Refused("an API key is needed", 401)
        try:
            body = json.loads(data)
        except ValueError:
            body = None
        if self.faulty("lenient") and not (isinstance(body, dict) and body.get("messages")):
            body = {"messages": [{"role": "user", "content": "?"}]}
        self.check(body)
        if self.faulty("leaving") and body.get("max_tokens") == 2000:
            self.server.broken = True
        Turn(body, self.server.faults).send(self)

    def check(self, body: Any) -> None:
        """Refuse what has to be refused, and what a fault refuses."""
        messages = body.get("messages") if isinstance(body, dict) else None
        if not isinstance(messages, list) or not messages:
            raise Refused("messages: a list is needed")
        length = sum(len(str(each.get("content")).split()) for each in messages)
        if not self.faulty("lenient"):
            if any(each["role"] not in ("system", "user", "assistant", "tool") for each in messages):
                raise Refused("no such role")
            if not isinstance(body.get("temperature", 0), int | float):
                raise Refused("temperature: a number is needed")
            if body.get("model") not in ("words", "more words"):
                raise Refused("no such model", 404)
            if length > CONTEXT:
                told = "too long" if self.faulty("no numbers") else f"{length} tokens, and {CONTEXT} fit"
                raise Refused(f"the prompt does not fit: {told}")
            if body.get("n", 1) > 1 and not self.faulty("one choice"):
                raise Refused("n: one answer is given")
        calls = [call for each in messages for call in each.get("tool_calls") or ()]
        refused = {
            "no hints": "store" in body,
            "no clamping": body.get("max_tokens", 0) > CONTEXT,
            "no null": any("tool_calls" in each and each["content"] is None for each in messages),
            "no empty": any(each.get("content") == "" for each in messages),
            "no parts": any(isinstance(each.get("content"), list) for each in messages),
            "no reasoning": any("reasoning_content" in each for each in messages),
            "no web": any(tool["type"] == "web_search" for tool in body.get("tools") or ()),
        }
        for fault, found in refused.items():
            if found and self.faulty(fault):
                raise Refused(fault)
        if self.faulty("no malformed") and any(call["function"]["arguments"][-1] != "}" for call in calls):
            raise Refused("Traceback (most recent call last)", 500)
        if self.faulty("no twins") and sum(each["role"] == "system" for each in messages) > 1:
            raise Refused("the template failed", 500)


class Turn:
    """One answer."""

    def __init__(self, body: dict[str, Any], faults: set[str]) -> None:
        self.body, self.faults = body, faults
        self.calls = self._calls()
        self.words = [] if self.calls else self._words()
        most = body.get("max_tokens") or 1000
        self.cut = len(self.words) > most and "no limit" not in faults
        self.words = self.words[:most] if self.cut else self.words
        self.stopped = False
        for at, word in enumerate(self.words):
            if any(stop in word for stop in body.get("stop") or ()) and "no stop" not in faults:
                self.words, self.stopped, self.cut = self.words[:at], True, False
                break
        prompt = sum(len(str(each["content"]).split()) for each in body["messages"])
        count = len(self.words) + len(self.calls)
        self.usage = {"prompt_tokens": min(prompt, CONTEXT) + 1, "completion_tokens": count}
        self.usage["total_tokens"] = sum(self.usage.values()) + ("bad sum" in faults)

    def _words(self) -> list[str]:
        form = (self.body.get("response_format") or {}).get("type")
        if form == "json_schema" and "no schema" not in self.faults:
            return ['{"colour": "yellow", "hot": true}']
        if form == "json_object" and "no object" not in self.faults:
            return ['{"colour": "yellow"}']
        words = list(WORDS)
        if self.body.get("temperature"):
            seed = None if "no seed" in self.faults else self.body.get("seed")
            random.Random(seed).shuffle(words)
        if "unsteady" in self.faults:
            words.append(str(time.monotonic_ns()))
        return [word if not at else f" {word}" for at, word in enumerate(words)]

    def _calls(self) -> list[dict[str, Any]]:
        choice, tools = self.body.get("tool_choice", "auto"), self.body.get("tools")
        if not tools or (choice == "none" and "calls on none" not in self.faults):
            return []
        if choice == "required" and "not required" in self.faults:
            return []
        name = "get_weather"
        if isinstance(choice, dict) and "not named" not in self.faults:
            name = choice["function"]["name"]
        cities = (
            ["Oslo", "Rome"]
            if self.body.get("parallel_tool_calls", True) or "parallel" in self.faults
            else ["Oslo"]
        )
        if "unsteady" in self.faults:
            cities.append(f"City {time.monotonic_ns()}")
        return [
            {
                "id": f"call_{at}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps({"city": city})},
            }
            for at, city in enumerate(cities)
        ]

    @property
    def finish(self) -> str:
        if self.calls:
            return "stop" if "finish of calls" in self.faults else "tool_calls"
        return "length" if self.cut else "stop"

    def send(self, handler: Handler) -> None:
        if self.body.get("stream"):
            self._stream(handler)
            return
        silent = self.calls and "empty content" not in self.faults
        content = None if silent or "only reasoning" in self.faults else "".join(self.words)
        message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning_content": "Hm."}
        if self.calls:
            message["tool_calls"] = self.calls
            if "object arguments" in self.faults:
                for call in self.calls:
                    call["function"]["arguments"] = {"city": "Oslo"}
        scores = None
        if self.body.get("logprobs") and "no logprobs" not in self.faults:
            entry = {"token": "a", "logprob": -0.5, "bytes": [97]}
            scores = {"content": [{**entry, "top_logprobs": [entry, entry]} for _ in self.words]}
        choice = {"index": 0, "message": message, "finish_reason": self.finish, "logprobs": scores}
        whole = {
            "id": "c-1",
            "object": "chat.completion",
            "created": 1,
            "model": "words",
            "choices": [choice],
        }
        if "no id" in self.faults:
            del whole["id"]
        handler.send(200, {**whole, "usage": self.usage})

    def _stream(self, handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/plain" if "plain" in self.faults else "text/event-stream")
        handler.send_header("connection", "close")
        handler.close_connection = True
        handler.end_headers()
        if len(str(self.body["messages"])) > 5000:
            if "silent" in self.faults:
                time.sleep(0.5)
            else:
                handler.wfile.write(b": working\n\n")
        chunks = [*self._chunks()]
        if "lost" in self.faults:
            del chunks[4]
        for at, chunk in enumerate(chunks):
            if "many ids" in self.faults:
                chunk["id"] = f"c-{at}"
            text = json.dumps(chunk, ensure_ascii=False)
            if "cut characters" in self.faults:
                text = text.replace("\U0001f308", "\ufffd\ufffd")
            handler.wfile.write(f"data: {text}\n\n".encode())
        if "no done" not in self.faults:
            handler.wfile.write(b"data: [DONE]\n\n")

    def _chunks(self) -> Iterator[dict[str, Any]]:
        for delta in self._deltas():
            yield self._chunk({"role": "assistant", **delta} if "role again" in self.faults else delta)
        wanted = (self.body.get("stream_options") or {}).get("include_usage")
        yield self._chunk({"content": "."} if "full end" in self.faults else {}, self.finish)
        if (wanted and "no usage" not in self.faults) or "usage unasked" in self.faults:
            yield {**self._chunk({}), "choices": [], "usage": self.usage}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {
            "id": "c-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "words",
            "choices": [choice],
        }

    def _deltas(self) -> Iterator[dict[str, Any]]:
        yield {"role": "assistant"}
        yield {"reasoning_content": "Hm."} | ({"reasoning": "Hm."} if "two reasonings" in self.faults else {})
        for word in self.words:
            yield {"content": word}
        if "entries together" in self.faults and self.calls:
            yield {"tool_calls": [{"index": at, **call} for at, call in enumerate(self.calls)]}
            return
        for at, call in enumerate(self.calls):
            place = {} if "no index" in self.faults else {"index": at}
            text = call["function"]["arguments"]
            yield {"tool_calls": [{**place, **call, "function": {**call["function"], "arguments": ""}}]}
            for piece in (text[:6], "" if "pieces lost" in self.faults else text[6:9], text[9:]):
                name = {"name": call["function"]["name"]} if "name again" in self.faults else {}
                yield {"tool_calls": [{**place, "function": {"arguments": piece, **name}}]}
