"""`localagent run`: one prompt, one answer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from localagent.agent import Agent, AgentEvent, Approvals, Compaction, RunDone, RunFailed
from localagent.cli.approving import TerminalApprover
from localagent.cli.attaching import read_files, tell, with_files
from localagent.cli.event_lines import EventLines
from localagent.cli.input import require_text, whole_prompt
from localagent.cli.loading import open_model
from localagent.cli.options import AnswerOptions, ModelOptions, RunOptions, ToolOptions
from localagent.cli.roles import with_role
from localagent.cli.show import View, open_view
from localagent.cli.show.view import print_stats
from localagent.cli.talk.conversation import Conversation
from localagent.cli.talk.settings import loadable, record, restore
from localagent.cli.terminal import require_stdout, say, show_json
from localagent.cli.tools import open_tools, permissions, rules
from localagent.control import TurnOptions, control_of
from localagent.errors import UsageError
from localagent.tools import Tool


def run_once(
    words: Sequence[str],
    options: ModelOptions,
    tools: ToolOptions,
    answer: AnswerOptions,
    how: RunOptions,
    files: Sequence[Path] = (),
) -> None:
    """Load a model, run the prompt with its tool calls, print. Raises LocalAgentError, OutputLost."""
    require_stdout()
    require_text("--system", options.system)
    options, tools = with_role(options, tools)
    attached = read_files(files)
    prompt = whole_prompt(words, required=not attached)
    conversation = _conversation(options, how)
    options, tools, turn = restore(conversation.settings, options, tools)
    with ExitStack() as stack:
        wishes: TurnOptions = {**turn, **answer.of_turns()}
        offered = open_tools(tools, stack, say)
        # Before a model is loaded, which takes long. MCP servers are sources of tools.
        known = [tool for each in offered for tool in ([each] if isinstance(each, Tool) else each.tools())]
        control_of(wishes).check_tools([tool.schema for tool in known])
        loaded = stack.enter_context(open_model(options, snapshots=how.go_on))
        conversation.settings = record(loadable(options, loaded.name), options, tools, turn)
        cancel = threading.Event()
        approvals = Approvals(rules(tools), TerminalApprover(say, lambda: cancel, permissions(tools)))
        agent = Agent(loaded, offered, approvals=approvals, middleware=[Compaction()])
        for line in tell(attached, prompt, loaded) if attached else ():
            say(line)
        asked = with_files(prompt, attached)
        events = agent.run(asked, history=conversation, cancel=cancel, **wishes)
        if how.events:
            done = _follow(events, EventLines())
        else:
            with open_view(answers=not how.as_json, keys=False) as view:
                done = _follow(events, view)
        if done.stop_reason == "cancelled":  # by the answer "stop" to an approval, which means Ctrl-C
            raise KeyboardInterrupt
        if done.message is not None:
            if answer.schema is not None and done.stop_reason == "length":
                say("warning: the answer is cut off before it fits the schema: raise --max-tokens")
            if how.as_json and not how.events:
                show_json(done.message.model_dump_json())
            if how.stats:
                print_stats(done)


def _conversation(options: ModelOptions, how: RunOptions) -> Conversation:
    """The last conversation with --continue, else a new one.

    A person at a terminal may want to go on with it; what a program asks, in a pipe, is not kept.
    """
    if how.go_on and how.no_save:
        raise UsageError("--continue goes on with a saved conversation, and --no-save saves none")
    if how.go_on:
        return Conversation.open(say, system=options.system, resume="last", save=True)
    keeps = sys.stdout.isatty() and not (how.as_json or how.events or how.no_save)
    return Conversation.open(_say_troubles, system=options.system, resume=None, save=keeps)


def _say_troubles(text: str) -> None:
    """Where a new conversation is saved is said in the chat; here it would follow every answer."""
    if not text.startswith("(saved in "):
        say(text)


def _follow(events: Iterable[AgentEvent], view: View | EventLines) -> RunDone:
    """Show a run to its end. Raises the error that made it fail."""
    for event in events:
        if isinstance(event, RunDone | RunFailed):
            view.end()
            if isinstance(view, EventLines):
                view.show(event)
            if isinstance(event, RunFailed):
                raise event.error
            return event
        view.show(event)
    raise AssertionError("a run ends in RunDone or RunFailed")
