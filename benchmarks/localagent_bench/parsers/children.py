"""A parser in a child process that speaks lines of JSON, and may hang, die or talk nonsense.

An answer that does not come in time, is none or belongs to another request ends the process: that output
counts as refused, and the process is started again. A parser that has never answered and fails twice, or
that fails too often, takes no further part: `Gone`.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

from localagent_bench.parsers.corpora import DEEPEST, too_deep
from localagent_bench.parsers.judging import Reading

ADAPTERS = {
    "ours": "localagent",
    "mlx_lm": "mlx-lm",
    "transformers": "transformers",
    "sglang": "SGLang",
    "llamacpp": "llama.cpp",
}
"""The files in adapters/, and what people call the parsers."""
OURS = "localagent"
ANSWER_SECONDS = 3.0
START_SECONDS = 60.0
_GRACE = 1.0
"""Seconds for reading the rest of an answer that has begun to come in time."""
_MOST_FAILURES = 60
_LONGEST = 64 << 20
"""Bytes of an answer."""


class Gone(Exception):
    """The parser takes no further part; says why."""


class _Failed(Exception):
    """An answer did not come, or was none."""


@dataclass
class Child:
    """A parser. `dialects` are those that it claims; None: whatever it is asked."""

    name: str
    command: Sequence[str]
    dialects: frozenset[str] | None = None
    version: str = ""
    needs_tools: bool = False
    """It reads no calls where no tools are declared, and is not asked to."""
    flags: bool = False
    """It can be told which pieces are special tokens."""
    introduces: bool = False
    """Its first line says what it is."""
    seconds: float = ANSWER_SECONDS
    failures: list[str] = field(default_factory=list)
    """What went wrong, each time the process had to be ended."""
    _process: subprocess.Popen[bytes] | None = None
    _errors: Any = None
    _rest: bytearray = field(default_factory=bytearray)
    _count: int = 0
    _answered: bool = False

    def claims(self, dialect: str, tools: object) -> bool:
        """Whether it is to read outputs in this dialect, with these tools declared."""
        return (self.dialects is None or dialect in self.dialects) and (bool(tools) or not self.needs_tools)

    def open(self) -> None:
        """Start the process. Raises Gone."""
        try:
            self._start()
        except _Failed as failed:
            self.close()
            raise Gone(str(failed)) from None

    def ask(self, request: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """The answer to a request. Raises Gone."""
        self._count += 1
        asked = self._count
        try:
            if self._process is None:
                self._start()
            line = json.dumps({"id": asked, **request}) + "\n"
            answer = self._exchange(line.encode(), monotonic() + (seconds or self.seconds))
            if answer.get("id") != asked:
                raise _Failed(f"answered {str(answer.get('id'))[:40]!r} where {asked} was due")
        except _Failed as failed:
            self.close()
            self.failures.append(str(failed))
            # One output is read in several ways: one that a parser cannot bear fails several times in a row.
            most = _MOST_FAILURES if self._answered else 2
            if len(self.failures) >= most:
                raise Gone(self.failures[-1]) from None
            return {"id": asked, "error": str(failed)}
        self._answered = True
        return answer

    def read(self, request: dict[str, Any]) -> Reading:
        """What it makes of an output. Raises Gone."""
        return reading_of(self.ask(request))

    def close(self) -> None:
        """End the process and what it has started."""
        process, self._process, self._rest = self._process, None, bytearray()
        errors, self._errors = self._errors, None
        if errors is not None:
            errors.close()
        if process is None:
            return
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        process.wait()

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # so that what it starts can be ended with it
                bufsize=0,
            )
        except OSError as error:
            raise _Failed(f"{self.command[0]} cannot be started: {error.strerror or error}") from error
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        if not self.introduces:
            return
        told = self._exchange(b"", monotonic() + START_SECONDS)
        if "absent" in told:
            raise _Failed(str(told["absent"])[:300])
        try:
            self.version, self.dialects = str(told["version"]), frozenset(told["dialects"])
            self.needs_tools, self.flags = bool(told.get("needs_tools")), bool(told.get("flags"))
        except (KeyError, TypeError):
            raise _Failed("did not say what it is") from None

    def _exchange(self, line: bytes, deadline: float) -> dict[str, Any]:
        """Write a line while reading one: a process that writes before it reads must not block both."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        waiting = memoryview(line)
        while b"\n" not in self._rest:
            left = deadline - monotonic()
            writers = [process.stdin] if waiting else []
            ready, writable, _ = select([process.stdout], writers, [], max(0.0, left))
            # What has come by now may be the answer, but one that goes on and on is none.
            if left <= 0 and (left < -_GRACE or not (ready or writable)):
                raise _Failed("gave no answer in time")
            try:
                if writable:
                    waiting = waiting[process.stdin.write(waiting) or 0 :]
                if ready:
                    piece = os.read(process.stdout.fileno(), 1 << 20)
                    if not piece:
                        raise _Failed(self._end())
                    self._rest += piece
            except BlockingIOError:
                continue
            except OSError:
                raise _Failed(self._end()) from None
            if len(self._rest) > _LONGEST:
                raise _Failed("its answer has no end")
        answer, _, self._rest = self._rest.partition(b"\n")
        try:
            told = json.loads(answer.decode("utf-8"))
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            raise _Failed("its answer is no JSON object")
        return told

    def _end(self) -> str:
        """Why it ended: its exit status, and the last line that it wrote for people."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self._errors.seek(0)
        said = self._errors.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        return f"ended with status {self._process.poll()}" + (f": {said[-1][:200]}" if said else "")


def reading_of(answer: dict[str, Any]) -> Reading:
    """An answer in our terms; one whose parts are of other types is refused as a whole."""
    if answer.get("error") is not None:
        return Reading(kept=True, error=str(answer["error"]))
    try:
        calls = tuple((call["name"], call["arguments"]) for call in answer["tool_calls"])
        content, reasoning = answer.get("content") or "", answer.get("reasoning") or ""
        if not all(isinstance(name, str) and isinstance(given, dict) for name, given in calls) or not (
            isinstance(content, str) and isinstance(reasoning, str)
        ):
            raise TypeError
        if too_deep([given for _, given in calls]):
            return Reading(kept=True, error=f"arguments of more than {DEEPEST} levels")
    except (KeyError, TypeError):
        return Reading(kept=True, error="its answer has no tool_calls with names and objects of arguments")
    return Reading(content, reasoning, calls, bool(answer.get("malformed")))


def adapter(file: str, python: str | None = None) -> Child:
    """The parser in adapters/FILE.py, in another Python if one is named."""
    script = Path(__file__).parent / "adapters" / "child.py"
    return Child(ADAPTERS[file], [python or sys.executable, str(script), file], introduces=True)


def commanded(command: str) -> Child:
    """A command that speaks the protocol of `localagent parse --jsonl`. Raises ValueError for open quotes."""
    words = shlex.split(command)
    if not words:
        raise ValueError("the command is empty")
    return Child(command, words)
