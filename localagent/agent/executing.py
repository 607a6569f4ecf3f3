"""One call: bind its arguments, run it, and make a result of whatever comes of that.

Knows tools, not the loop. Contract: returns a result, whatever the tool does; only what ends the whole
program goes through.
"""

from __future__ import annotations

import dataclasses
import io

from localagent.agent.waiting import Cancelled, Coroutines
from localagent.messages import ToolCallPart, ToolResultPart
from localagent.tools import ToolContext, ToolSet
from localagent.tools.findings import writable
from localagent.tools.outcome import as_error, as_result
from localagent.tools.printing import captured

STOPPED = "No result: the run was stopped while this call was running. It may have done part of its work."
MOST_PRINTED = 100_000
"""Characters of what a tool prints that are kept."""


def execute(
    tools: ToolSet, context: ToolContext, coroutines: Coroutines, call: ToolCallPart
) -> ToolResultPart:
    """Run the call in this thread. What it prints is progress, and its result if it returns nothing."""
    tool = tools.find(call.name)
    if tool is None:
        return call.result(tools.unknown(call.name), is_error=True)
    printed = io.StringIO()

    def hear(text: str) -> None:
        text = writable(text)
        if printed.tell() < MOST_PRINTED:
            printed.write(text)
        if text.strip():
            context.progress(text.rstrip("\n"))

    try:
        with captured(hear):
            value = tool.bind(call.arguments)(dataclasses.replace(context, call=call))
            value = coroutines.settle(value, context.cancel)
    except Cancelled:
        return call.result(STOPPED, is_error=True)
    except BaseException as error:  # a tool may even say sys.exit()
        return as_error(call, error)
    text = printed.getvalue()[:MOST_PRINTED]
    if value is None and text:
        value = text
    result = as_result(call, value)
    if not text:
        return result
    return result.model_copy(update={"metadata": {**result.metadata, "printed": text}})
