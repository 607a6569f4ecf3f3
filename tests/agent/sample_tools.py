"""Tools for agents in tests, and what models write that calls them."""

from __future__ import annotations

import threading
import time
from typing import Any

from localagent.errors import ToolError
from localagent.messages import AssistantMessage, ToolCallPart
from localagent.tools import ToolContext, ToolOutput, tool
from tests.agent.replaying import block

START = block("x()").split("[")[0]


@tool
def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


@tool(side_effects=True)
def write(path: str, text: str = "") -> str:
    """Write."""
    return f"wrote {path}"


@tool
def fail(how: str) -> Any:
    """Go wrong."""
    match how:
        case "tool":
            raise ToolError("the cat sleeps")
        case "bug":
            raise KeyError("k")
        case "exit":
            raise SystemExit(3)
        case "socket":
            return threading.Lock()
    return float("nan")


@tool
def show() -> None:
    """Print."""
    print("a line")


@tool
def finish() -> ToolOutput:
    """End the run."""
    return ToolOutput("the end", terminate=True, metadata={"n": 1})


@tool(repeatable=True)
def look() -> str:
    """Look again."""
    return "not yet"


@tool
def get() -> str:
    """Get."""
    return "got"


_barrier = threading.Barrier(3)
_inside = threading.Semaphore(1)


@tool
def meet() -> str:
    """Wait until three are here."""
    _barrier.wait(timeout=30)
    return "all here"


@tool(timeout=0.1)
def slow(context: ToolContext) -> None:
    """Never answer."""
    context.cancel.wait(30)


@tool(sequential=True)
def alone() -> str:
    """Tell whether somebody else is here."""
    if not _inside.acquire(blocking=False):
        return "not alone"
    time.sleep(0.05)
    _inside.release()
    return "alone"


TOOLS = [add, write, fail, show, finish, look, get, meet, slow, alone]
BROKEN = f"{START}[add(a=1, b=oops(2))]<|tool_call_end|>"
MIXED = f"{START}[add(a=1), add(a=1, b=oops(2))]<|tool_call_end|>"


def approver(*decisions: Any) -> Any:
    return lambda requests: list(decisions)


def asked(*calls: str) -> AssistantMessage:
    return AssistantMessage(
        content=tuple(ToolCallPart(id=f"c{n}", name=name) for n, name in enumerate(calls))
    )
