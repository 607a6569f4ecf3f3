"""The line below an answer: how full the context window is, how fast the model wrote, what was cached."""

from __future__ import annotations

import sys

from localagent.chat_model import UNKNOWN_CONTEXT
from localagent.cli.terminal import styled, takes_colour, write_raw
from localagent.messages import AssistantMessage


def status_line(message: AssistantMessage, context: int) -> str:
    """Such as `1,204/32k · 71 tok/s · 96 % cached`. What is not known is left out."""
    usage, timings = message.usage, message.timings
    parts = []
    if usage.total:
        parts.append(f"{usage.total:,}{_window(context)}")
    if timings.decode > 0 and usage.output:
        parts.append(f"{usage.output / timings.decode:,.0f} tok/s")
    if usage.input:
        # Rounded down: a prompt is read anew from somewhere on, and 100 % would say that nothing was.
        parts.append(f"{100 * usage.cache_read // usage.input} % cached")
    return " · ".join(parts)


def show_status(message: AssistantMessage, context: int) -> None:
    """Print the line for the person at the terminal; nothing where stderr is read by somebody else."""
    if sys.stderr.isatty() and (line := status_line(message, context)):
        write_raw(sys.stderr, styled(line, "dim" if takes_colour(sys.stderr) else None) + "\n")
        sys.stderr.flush()


def _window(tokens: int) -> str:
    """What of it is known, in thousands of tokens; windows are powers of two, so that 32,768 is 32k."""
    if tokens >= UNKNOWN_CONTEXT:
        return " tokens"
    if tokens < 1024:
        return f"/{tokens:,}"
    return f"/{tokens / 1024:.0f}k" if tokens % 1024 == 0 else f"/{tokens / 1000:.0f}k"
