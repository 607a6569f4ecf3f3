"""Hostile schemas through each API of a running server, beside a stream that must not stand still.

python -m tests.server.test_hostile_schemas      prints the table: status, seconds, the stream's longest gap
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from tests.constraint.hostile import HOSTILE
from tests.server.test_serve import Process, served

ASK = [{"role": "user", "content": "Use the tool."}]
SECONDS = 15
"""A request that takes longer, or a stream that stands still for so long, is stuck; machines are busy."""


def _parameters(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, "required": ["x"]}


def _function(schema: Any, **more: Any) -> dict[str, Any]:
    return {"name": "f", "parameters": _parameters(schema), **more}


def _tools(schema: Any, **more: Any) -> list[Any]:
    return [{"type": "function", "function": _function(schema, **more)}]


def _format(schema: Any) -> dict[str, Any]:
    return {"name": "answer", "schema": _parameters(schema), "strict": True}


REQUESTS: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    "chat, auto": ("/v1/chat/completions", lambda s: {"tools": _tools(s)}),
    "chat, required": ("/v1/chat/completions", lambda s: {"tools": _tools(s), "tool_choice": "required"}),
    "chat, strict": (
        "/v1/chat/completions",
        lambda s: {"tools": _tools(s, strict=True), "tool_choice": "required"},
    ),
    "chat, format": (
        "/v1/chat/completions",
        lambda s: {"response_format": {"type": "json_schema", "json_schema": _format(s)}},
    ),
    "responses, required": (
        "/v1/responses",
        lambda s: {"tools": [{"type": "function", **_function(s, strict=False)}], "tool_choice": "required"},
    ),
    "responses, strict": (
        "/v1/responses",
        lambda s: {"tools": [{"type": "function", **_function(s, strict=True)}], "tool_choice": "required"},
    ),
    "responses, format": (
        "/v1/responses",
        lambda s: {"text": {"format": {"type": "json_schema", **_format(s)}}},
    ),
    "messages, any": (
        "/v1/messages",
        lambda s: {"tools": [{"name": "f", "input_schema": _parameters(s)}], "tool_choice": {"type": "any"}},
    ),
    "ollama, tools": ("/api/chat", lambda s: {"tools": _tools(s)}),
    "ollama, format": ("/api/chat", lambda s: {"format": _parameters(s)}),
}
"""Each way to send a schema: its path, and the body without what all bodies have."""


def _body(path: str) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": "lfm2-nano", "temperature": 0}
    if path == "/v1/responses":
        return {**asked, "input": "Use the tool.", "max_output_tokens": 48}
    if path == "/api/chat":
        return {"model": "lfm2-nano", "messages": ASK, "stream": False, "options": {"num_predict": 48}}
    return {**asked, "messages": ASK, "max_tokens": 48}


@contextmanager
def _running(home: Path) -> Iterator[Process]:
    """A server whose log is read, or a full pipe would stop it."""
    with served("-m", "lfm2-nano", home=home) as server:
        threading.Thread(target=lambda: deque(server.child.stderr or (), 0), daemon=True).start()
        yield server
        server.child.kill()


class Beside:
    """A stream that runs all the while, and the longest time that it stood still since `begin`."""

    def __init__(self, server: Process) -> None:
        self._server = server
        self._stopping = False
        self._last = time.monotonic()
        self._longest = 0.0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._thread.join(2 * SECONDS)

    def _run(self) -> None:
        body = {"model": "lfm2-nano", "messages": ASK, "stream": True, "max_tokens": 2000, "temperature": 1.5}
        with httpx.Client(base_url=self._server.client.url, timeout=4 * SECONDS) as client:
            while not self._stopping:
                with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                    for _ in answer.iter_lines():
                        now = time.monotonic()
                        self._longest, self._last = max(self._longest, now - self._last), now
                        if self._stopping:
                            return

    def begin(self) -> None:
        """Forget what was before."""
        self._longest = 0.0

    @property
    def gap(self) -> float:
        """The longest time until now, in seconds."""
        return max(self._longest, time.monotonic() - self._last)


def _asked(server: Process, way: str, schema: Any) -> tuple[httpx.Response, float]:
    path, more = REQUESTS[way]
    start = time.monotonic()
    answer = httpx.post(server.client.url + path, json={**_body(path), **more(schema)}, timeout=4 * SECONDS)
    return answer, time.monotonic() - start


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with _running(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(scope="module")
def beside(server: Process) -> Iterator[Beside]:
    with Beside(server) as stream:
        yield stream


@pytest.mark.engine
@pytest.mark.parametrize(("row", "way"), list(zip(HOSTILE, itertools.cycle(REQUESTS))))
def test_a_hostile_schema_is_answered_or_refused_and_others_go_on(
    row: str, way: str, server: Process, beside: Beside
) -> None:
    beside.begin()
    answer, seconds = _asked(server, way, HOSTILE[row])
    assert answer.status_code in (200, 400) or "the grammar cannot go on" in answer.text
    assert max(seconds, beside.gap) < SECONDS


def main() -> None:
    """Print the table."""
    with TemporaryDirectory() as home, _running(Path(home)) as server:
        before, most = _memory(server), 0
        with Beside(server) as beside:
            for row, schema in HOSTILE.items():
                cells = []
                for way in REQUESTS:
                    beside.begin()
                    answer, seconds = _asked(server, way, schema)
                    time.sleep(0.02)
                    cells.append((answer.status_code, seconds, beside.gap))
                    most = max(most, _memory(server))
                statuses = " ".join(str(status) for status, *_ in cells)
                slowest, gap = max(cell[1] for cell in cells), max(cell[2] for cell in cells)
                print(f"{row:<46}{statuses}{slowest:>8.2f} s{gap:>8.2f} s", flush=True)
        print(
            f"memory, what is shared counted once: {before} MB before, {most} MB at most, {_memory(server)} MB after"
        )


def _memory(server: Process) -> int:
    import psutil

    process = psutil.Process(server.child.pid)
    return sum(each.memory_full_info().pss for each in (process, *process.children(recursive=True))) >> 20


if __name__ == "__main__":
    main()
