"""What messages cost: building a conversation, sending it, and loading a log.

    python benchmarks/messages.py [--messages 1000] [--records 10000] [--rounds 7] [--json]

A conversation of user, calling, tool and answering turns. `construct` makes the messages, `request` runs the
request builder, `request + WIRE` also writes the wire's payload; `whole` is all of that for OpenAI. `log` is
read_log on a file of as many records as asked. Each is timed in turn with Python's own json module doing the
smallest job of the kind: json.dumps of the finished OpenAI payload, json.loads of every line of the log. The
ratio to that says how much the model costs above the bare JSON. Imports are timed in fresh processes.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from localagent.log import MessageLog, RunContext, read_log
from localagent.messages import (
    AssistantMessage,
    Message,
    ReasoningPart,
    SystemMessage,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from localagent.parsers import DIALECTS
from localagent.prompt.request import build_request
from localagent.wire import anthropic, chat_template, gemini, openai


def conversation(size: int) -> list[Message]:
    """Turns of four messages: asked, called, answered by the tool, answered."""
    messages: list[Message] = [SystemMessage.text("You are a helpful weather assistant.")]
    for day in range(size // 4 + 1):
        call = ToolCallPart(id=f"call_{day}", name="get_weather", arguments={"city": "Paris", "day": day})
        messages += (
            UserMessage.text(f"What will the weather be in Paris in {day} days?"),
            AssistantMessage(content=(ReasoningPart(text="I need the tool."), "Let me look.", call)),
            ToolMessage.from_result(call.result({"sky": "clear", "temp": 18})),
            AssistantMessage.text(f"In {day} days it will be clear and 18 degrees in Paris."),
        )
    return messages[:size]


def write_log(folder: Path, records: int) -> Path:
    """A log of that many messages."""
    with MessageLog(folder) as log:
        for number, message in enumerate(conversation(records)):
            log.append(message, "thread", RunContext(iteration=number, model="any"))
        assert log.path is not None
        return log.path


def lanes(size: int, log: Path) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    made = conversation(size)
    payload = openai.to_wire(build_request(made, openai.TARGET).messages)
    lfm2 = DIALECTS["lfm2"]
    return {
        "json.dumps": lambda: json.dumps(payload),
        "construct": lambda: conversation(size),
        "request": lambda: build_request(made, openai.TARGET),
        "request + openai": lambda: openai.to_wire(build_request(made, openai.TARGET).messages),
        "request + anthropic": lambda: anthropic.to_wire(build_request(made, anthropic.TARGET).messages),
        "request + gemini": lambda: gemini.to_wire(build_request(made, gemini.TARGET).messages),
        "request + chat template": lambda: chat_template.to_wire(
            build_request(made, chat_template.TARGET).messages, lfm2
        ),
        "whole": lambda: openai.to_wire(build_request(conversation(size), openai.TARGET).messages),
        "json.loads": lambda: [json.loads(line) for line in log.read_bytes().splitlines()],
        "log": lambda: read_log(log),
    }


def measure(size: int, records: int, rounds: int) -> list[dict[str, Any]]:
    """One row per lane: milliseconds, and the ratio to the json module."""
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        chosen = lanes(size, write_log(Path(folder), records))
        for _ in range(rounds):
            for name, run in chosen.items():
                started = perf_counter()
                run()
                times.setdefault(name, []).append(perf_counter() - started)
    rows = []
    for name, taken in times.items():
        bare = "json.loads" if name in ("log", "json.loads") else "json.dumps"
        ratio = median(taken) / median(times[bare])
        rows.append({"lane": name, "ms": round(1e3 * median(taken), 1), "ratio": round(ratio, 1)})
    return rows


def imports(rounds: int) -> dict[str, float]:
    """Milliseconds to import a module in a fresh process, the interpreter's own start left out."""
    code = "from time import perf_counter as t; a = t(); import {}; print(t() - a)"
    found = {}
    for module in ("localagent", "localagent.messages", "json"):
        taken = [
            float(
                subprocess.run(
                    [sys.executable, "-c", code.format(module)], capture_output=True, check=True
                ).stdout
            )
            for _ in range(rounds)
        ]
        found[module] = round(1e3 * median(taken), 1)
    return found


def main() -> None:
    """Parse the command line, measure, print."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--messages", type=int, default=1000)
    arguments.add_argument("--records", type=int, default=10_000)
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    rows = measure(options.messages, options.records, options.rounds)
    imported = imports(options.rounds)
    machine = f"Python {platform.python_version()}, {platform.machine()}, {platform.system()}"
    if options.json:
        print(json.dumps({"machine": machine, "rows": rows, "imports": imported}))
        return
    print(f"{machine}; {options.messages:,} messages, {options.records:,} log records")
    print(f"{'lane':<26}{'ms':>8}{'ratio':>8}")
    for row in rows:
        print(f"{row['lane']:<26}{row['ms']:>8}{row['ratio']:>8}")
    for module, milliseconds in imported.items():
        print(f"import {module:<19}{milliseconds:>8}")


if __name__ == "__main__":
    main()
