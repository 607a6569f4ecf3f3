"""`localagent run`: one prompt, one answer."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from localagent.agent import Agent, AgentEvent, Approvals, Compaction, RunDone, RunFailed
from localagent.cli.approving import TerminalApprover
from localagent.cli.attaching import read_files, tell, with_files
from localagent.cli.input import require_text, whole_prompt
from localagent.cli.loading import open_model
from localagent.cli.options import AnswerOptions, ModelOptions, ToolOptions
from localagent.cli.roles import with_role
from localagent.cli.show import View, open_view
from localagent.cli.show.view import print_stats
from localagent.cli.terminal import require_stdout, say, show_json
from localagent.cli.tools import open_tools, permissions, rules
from localagent.control import TurnOptions, control_of
from localagent.tools import Tool


def run_once(
    words: Sequence[str],
    options: ModelOptions,
    tools: ToolOptions,
    answer: AnswerOptions,
    *,
    files: Sequence[Path] = (),
    as_json: bool,
    stats: bool,
) -> None:
    """Load a model, run the prompt with its tool calls, print. Raises LocalAgentError, OutputLost."""
    require_stdout()
    require_text("--system", options.system)
    options, tools = with_role(options, tools)
    attached = read_files(files)
    prompt = whole_prompt(words, required=not attached)
    with ExitStack() as stack:
        wishes: TurnOptions = {**options.of_turns(), **answer.of_turns()}
        offered = open_tools(tools, stack, say)
        # Before a model is loaded, which takes long. MCP servers are sources of tools.
        known = [tool for each in offered for tool in ([each] if isinstance(each, Tool) else each.tools())]
        control_of(wishes).check_tools([tool.schema for tool in known])
        loaded = stack.enter_context(open_model(options))
        cancel = threading.Event()
        approvals = Approvals(rules(tools), TerminalApprover(say, lambda: cancel, permissions(tools)))
        agent = Agent(
            loaded, offered, instructions=options.system, approvals=approvals, middleware=[Compaction()]
        )
        for line in tell(attached, prompt, loaded) if attached else ():
            say(line)
        asked = with_files(prompt, attached)
        with open_view(answers=not as_json, keys=False) as view:
            done = _follow(agent.run(asked, cancel=cancel, **wishes), view)
        if done.stop_reason == "cancelled":  # by the answer "stop" to an approval, which means Ctrl-C
            raise KeyboardInterrupt
        if done.message is not None:
            if answer.schema is not None and done.stop_reason == "length":
                say("warning: the answer is cut off before it fits the schema: raise --max-tokens")
            if as_json:
                show_json(done.message.model_dump_json())
            if stats:
                print_stats(done)


def _follow(events: Iterable[AgentEvent], view: View) -> RunDone:
    """Show a run to its end. Raises the error that made it fail."""
    for event in events:
        if isinstance(event, RunDone | RunFailed):
            view.end()
            if isinstance(event, RunFailed):
                raise event.error
            return event
        view.show(event)
    raise AssertionError("a run ends in RunDone or RunFailed")
