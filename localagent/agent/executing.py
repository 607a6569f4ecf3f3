"""One call: bind its arguments, run it, and make a result of whatever comes of that.

A result comes of it whatever the tool does; only what ends the whole program goes through.
"""

from __future__ import annotations

import dataclasses

from localagent.agent.waiting import Cancelled, Coroutines
from localagent.messages import ToolCallPart, ToolResultPart
from localagent.tools import ToolContext, ToolSet
from localagent.tools.outcome import as_error, as_result
from localagent.tools.tool import Bound

STOPPED = "No result: the run was stopped while this call was running. It may have done part of its work."


def bind(tools: ToolSet, context: ToolContext, call: ToolCallPart) -> Bound | ToolResultPart:
    """The call with its arguments, ready to run once, or the error result of one that they do not fit."""
    tool = tools.find(call.name)
    if tool is None:
        return call.result(tools.unknown(call.name), is_error=True)
    try:
        bound = tool.bind(call.arguments)
    except BaseException as error:  # InvalidArguments, and whatever somebody's own tool raises
        return as_error(call, error)
    if context.cancel.is_set():  # it was given up meanwhile, and nobody would hear of what it does
        return call.result(STOPPED, is_error=True)
    return bound


def execute(bound: Bound, context: ToolContext, coroutines: Coroutines, call: ToolCallPart) -> ToolResultPart:
    """Run the call in this thread."""
    try:
        value = bound(dataclasses.replace(context, call=call))
        value = coroutines.settle(value, context.cancel)
    except Cancelled:
        return call.result(STOPPED, is_error=True)
    except BaseException as error:  # a tool may even say sys.exit()
        return as_error(call, error)
    return as_result(call, value)
