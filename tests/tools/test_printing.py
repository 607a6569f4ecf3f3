"""What a tool prints goes where it is sent, and nobody else's output is touched."""

from __future__ import annotations

import asyncio
import contextvars
import io
import os
import subprocess
import sys
import threading
from contextlib import redirect_stdout

import pytest

from localagent.tools.printing import captured


@pytest.fixture
def stdout(monkeypatch):
    """Puts a stream in the place of stdout, within the test: pytest puts its own there between."""

    def replace() -> io.TextIOWrapper:
        stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", write_through=True)
        monkeypatch.setattr(sys, "stdout", stream)
        return stream

    return replace


def written(stream) -> str:
    return stream.buffer.getvalue().decode("latin-1")


def test_print_is_captured_and_the_stream_comes_back(stdout):
    outer = stdout()
    got: list[str] = []
    print("before")
    with captured(got.append):
        print("in", "side", flush=True)
        print("", end="")
        sys.stdout.writelines(["a", "b"])
    print("after")
    assert "".join(got) == "in side\nab"
    assert "" not in got
    assert written(outer) == "before\nafter\n"
    assert sys.stdout is outer


def test_other_threads_write_where_they_did(stdout):
    outer = stdout()
    got: list[str] = []
    with captured(got.append):
        thread = threading.Thread(target=print, args=("other",))
        thread.start()
        thread.join(30)
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(print, "mine"))
        thread.start()
        thread.join(30)
    assert "".join(got) == "mine\n"
    assert written(outer) == "other\n"


def test_captures_of_threads_and_tasks_do_not_mix(stdout):
    outer = stdout()
    got: dict[int, list[str]] = {n: [] for n in range(8)}

    async def work(n: int, all_in: asyncio.Event, inside: list[int]) -> None:
        with captured(got[n].append):
            inside.append(n)
            if len(inside) == 4:
                all_in.set()
            await all_in.wait()
            print(n)
            await asyncio.sleep(0)
            await asyncio.to_thread(print, n)

    async def main() -> None:
        all_in, inside = asyncio.Event(), []
        await asyncio.gather(*(work(n, all_in, inside) for n in range(4)))

    barrier = threading.Barrier(4)

    def run(n: int) -> None:
        with captured(got[n].append):
            barrier.wait(30)
            print(n)
            print(n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4, 8)]
    for thread in threads:
        thread.start()
    asyncio.run(main())
    for thread in threads:
        thread.join(30)
    assert {n: "".join(pieces) for n, pieces in got.items()} == {n: f"{n}\n{n}\n" for n in range(8)}
    assert written(outer) == ""
    assert sys.stdout is outer


def test_captures_nest(stdout):
    outer = stdout()
    one: list[str] = []
    two: list[str] = []
    with captured(one.append):
        print("1", end="")
        with captured(two.append):
            print("2", end="")
        print("3", end="")
    assert (one, two) == (["1", "3"], ["2"])
    assert sys.stdout is outer


def test_the_stream_comes_back_after_the_last_capture_only(stdout):
    outer = stdout()
    first, last = [], []
    entered, leave = threading.Event(), threading.Event()

    def run() -> None:
        with captured(last.append):
            entered.set()
            leave.wait(30)
            print("late")

    thread = threading.Thread(target=run)
    with captured(first.append):
        thread.start()
        entered.wait(30)
    assert sys.stdout is not outer
    print("through")
    leave.set()
    thread.join(30)
    assert (last, first) == (["late", "\n"], [])
    assert written(outer) == "through\n"
    assert sys.stdout is outer


def test_somebody_elses_stream_stays(stdout):
    outer = stdout()
    theirs = io.StringIO()
    with captured(lambda text: None):
        routed = sys.stdout
        sys.stdout = theirs
    assert sys.stdout is theirs
    sys.stdout = routed  # as redirect_stdout does when it ends later
    print("passed on")
    assert written(outer) == "passed on\n"
    with captured(lambda text: None):
        assert sys.stdout is routed
    assert sys.stdout is outer


def test_a_tool_may_redirect_its_own_output(stdout):
    outer = stdout()
    theirs = io.StringIO()
    got: list[str] = []
    with captured(got.append):
        with redirect_stdout(theirs):
            print("redirected", end="")
            before = contextvars.copy_context()
            with captured(got.append):
                print("mine")
                before.run(print, " still", end="")
            print(" and still")
        print("again")
    assert "".join(got) == "mine\nagain\n"
    assert theirs.getvalue() == "redirected still and still\n"
    assert written(outer) == ""
    assert sys.stdout is outer


def test_an_exception_restores_too(stdout):
    outer = stdout()
    with pytest.raises(ZeroDivisionError), captured(lambda text: None):
        1 / 0  # noqa: B018
    assert sys.stdout is outer


def test_bytes_are_captured_as_text(stdout):
    outer = stdout()
    got: list[str] = []
    with captured(got.append):
        data = "grüße".encode()
        assert sys.stdout.buffer.write(data[:3]) == 3
        sys.stdout.buffer.write(memoryview(data)[3:])
        sys.stdout.buffer.flush()
        sys.stdout.buffer.write(b"\xff")
    assert "".join(got) == "grüße\N{REPLACEMENT CHARACTER}"
    assert written(outer) == ""


def test_the_stream_answers_for_whoever_asks(tmp_path, monkeypatch):
    with (tmp_path / "out").open("w", encoding="latin-1") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        got: list[str] = []
        context = contextvars.copy_context()
        with captured(got.append):
            assert not sys.stdout.isatty()
            assert sys.stdout.encoding == "utf-8"
            assert sys.stdout.errors == "strict"
            with pytest.raises(io.UnsupportedOperation):
                sys.stdout.fileno()
            with pytest.raises(TypeError, match="must be str, not int"):
                sys.stdout.write(3)
            with pytest.raises(io.UnsupportedOperation):
                sys.stdout.detach()
            sys.stdout.reconfigure(encoding="ascii")
            sys.stdout.close()
            assert not stream.closed
            assert stream.encoding == "latin-1"
            assert context.run(lambda: sys.stdout.encoding) == "latin-1"
            assert context.run(sys.stdout.fileno) == stream.fileno()
            assert context.run(lambda: sys.stdout.buffer) is stream.buffer
            assert context.run(lambda: sys.stdout.errors) == stream.errors
            assert context.run(lambda: sys.stdout.name) == stream.name
            context.run(print, "out", flush=True)
            assert os.stat(stream.name).st_size == 4  # noqa: PTH116
            assert not context.run(sys.stdout.isatty)


def test_without_any_stdout(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    got: list[str] = []
    context = contextvars.copy_context()
    with captured(got.append):
        print("x", flush=True)
        context.run(lambda: print("y", flush=True))
    assert "".join(got) == "x\n"
    assert sys.stdout is None


def test_stderr_is_left_alone(stdout, monkeypatch):
    stdout()
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    with captured(lambda text: None):
        print("bad", file=sys.stderr)
        assert sys.stderr is errors
    assert errors.getvalue() == "bad\n"


REPLACED = """
import io, os, sys, threading, time
from localagent.tools.printing import captured

def chat():
    with captured(lambda text: None):
        while True:
            print("x" * 100)

real = sys.stdout
kept = []  # whoever replaces the stream must hold it, too
for _ in range(20):
    threading.Thread(target=chat, daemon=True).start()
end = time.monotonic() + 2
while time.monotonic() < end:
    kept.append(io.StringIO())
    sys.stdout = kept[-1]
    threading.Thread(target=captured(lambda text: None).__enter__).start()
    sys.stdout = real
os._exit(0)  # threads that print would disturb the end of the interpreter, too
"""


def test_a_stream_that_is_replaced_while_others_print_crashes_nothing():
    """It did: `print` does not hold the stream it writes to."""
    done = subprocess.run([sys.executable, "-c", REPLACED], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
