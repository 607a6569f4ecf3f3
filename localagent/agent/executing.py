"""One call: bind its arguments, run it, and make a result of whatever comes of that.

A result comes of it whatever the tool does; only what ends the whole program goes through.
"""

from __future__ import annotations

import dataclasses
import io

from localagent.agent.concurrency import Cancelled, Coroutines
from localagent.messages import ToolCallPart, ToolResultPart
from localagent.tools import ToolContext, ToolSet
from localagent.tools.findings import writable
from localagent.tools.printing import captured
from localagent.tools.results import as_error, as_result
from localagent.tools.tool import Bound

STOPPED = "No result: the run was stopped while this call was running. It may have done part of its work."
MOST_PRINTED = 100_000
"""Characters of what a tool prints that are kept."""


def bind(tools: ToolSet, context: ToolContext, call: ToolCallPart) -> Bound | ToolResultPart:
    """The call with its arguments, ready to run once, or the error result of one that they do not fit."""
    tool = tools.find(call.name)
    if tool is None:
        return call.result(tools.unknown(call.name), is_error=True)
    try:
        with captured(_Printed(context)):  # a type's own validator may print
            bound = tool.bind(call.arguments)
    except BaseException as error:  # InvalidArguments, and whatever somebody's own tool raises
        return as_error(call, error)
    if context.cancel.is_set():  # it was given up meanwhile, and nobody would hear of what it does
        return call.result(STOPPED, is_error=True)
    return bound


def execute(bound: Bound, context: ToolContext, coroutines: Coroutines, call: ToolCallPart) -> ToolResultPart:
    """Run the call in this thread. What it prints is progress, and its result if it returns nothing."""
    printed = _Printed(context)
    try:
        with captured(printed):
            value = bound(dataclasses.replace(context, call=call))
            value = coroutines.settle(value, context.cancel)
    except Cancelled:
        return call.result(STOPPED, is_error=True)
    except BaseException as error:  # a tool may even say sys.exit()
        return as_error(call, error)
    text = printed.text
    if value is None and text:
        value = text
    result = as_result(call, value)
    if not text:
        return result
    return result.model_copy(update={"metadata": {**result.metadata, "printed": text}})


class _Printed:
    """What a call prints: progress as it comes, and kept up to a bound."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._kept = io.StringIO()

    def __call__(self, text: str) -> None:
        text = writable(text)
        if self._kept.tell() < MOST_PRINTED:
            self._kept.write(text)
        if text.strip():
            self._context.progress(text.rstrip("\n"))

    @property
    def text(self) -> str:
        return self._kept.getvalue()[:MOST_PRINTED]
