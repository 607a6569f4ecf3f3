"""Questions before something is deleted."""

from __future__ import annotations

import sys

from localagent.cli.terminal import flat


def agrees(question: str) -> bool:
    """Ask on the terminal. Raises UsageError when nobody is there to answer."""
    from localagent.errors import UsageError

    # typer.confirm makes an end of input and Ctrl-C the same Abort.
    answer = ""
    if sys.stdin and sys.stdin.isatty():
        sys.stderr.write(f"{flat(question)} [y/N]: ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not answer:  # Ctrl-D leaves the cursor behind the question
            sys.stderr.write("\n")
    if not answer:
        raise UsageError("say --yes to remove without being asked")
    return answer.strip().lower() in ("y", "yes")
