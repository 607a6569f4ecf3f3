"""`localagent run`: one prompt, one answer."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from localagent.agent import Agent, AgentEvent, Approvals, Compaction, RunDone, RunFailed
from localagent.cli.approving import TerminalApprover
from localagent.cli.input import require_text, whole_prompt
from localagent.cli.loading import open_model
from localagent.cli.terminal import require_stdout, say, show_json
from localagent.cli.tooling import ToolOptions
from localagent.cli.view import StreamView, print_stats

if TYPE_CHECKING:
    from localagent.catalog import Backend


def run_once(
    words: Sequence[str],
    model: str | None,
    system: str | None,
    sampling: dict[str, Any],
    *,
    backend: Backend | None,
    context: int | None,
    threads: int | None,
    tools: ToolOptions,
    as_json: bool,
    stats: bool,
) -> None:
    """Load, answer, calling tools on the way, print. Raises LocalAgentError, OutputLost."""
    require_stdout()
    require_text("--system", system)
    prompt = whole_prompt(words)
    given = {key: value for key, value in sampling.items() if value is not None}
    with ExitStack() as stack:
        offered = tools.open(stack, say)
        loaded = stack.enter_context(open_model(model, backend=backend, context=context, threads=threads))
        cancel = threading.Event()
        approvals = Approvals(tools.rules(), TerminalApprover(say, lambda: cancel))
        agent = Agent(loaded, offered, instructions=system, approvals=approvals, middleware=[Compaction()])
        view = StreamView(answers=not as_json)
        done = _follow(agent.run(prompt, cancel=cancel, **given), view)
        if done.stop_reason == "cancelled":  # by an answer to a question, which means the same as Ctrl-C
            raise KeyboardInterrupt
        if done.message is not None:
            if as_json:
                show_json(done.message.model_dump_json())
            if stats:
                print_stats(done)


def _follow(events: Iterable[AgentEvent], view: StreamView) -> RunDone:
    """Show a run to its end. Raises what made it fail."""
    for event in events:
        if isinstance(event, RunDone | RunFailed):
            view.end()
            if isinstance(event, RunFailed):
                raise event.error
            return event
        view.show(event)
    raise AssertionError("a run ends in RunDone or RunFailed")
