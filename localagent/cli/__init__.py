"""The command line. Nothing heavy is imported before a command runs: `--help` must be fast."""

from __future__ import annotations

import gc
import os
import sys

_INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended, as shells have it."""


def main() -> None:
    """Run the `localagent` command; an error is one line on stderr and an exit code."""
    # What a command imports stays until it ends: looking for garbage in it takes a tenth of the start.
    gc.set_threshold(20_000)
    try:
        from localagent.cli.terminal import OutputLost, discard, guard_streams

        guard_streams()
    except KeyboardInterrupt:
        sys.exit(complain("interrupted", _INTERRUPTED))
    try:
        try:
            code = _run()
        except KeyboardInterrupt:
            code = complain("interrupted", _INTERRUPTED)
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)  # the reader of our pipe has gone, so there is nobody to tell
        code = 1
    except OutputLost as error:
        discard(sys.stdout)  # else the interpreter flushes again at exit and prints a traceback
        code = complain(str(error), 1)
    sys.exit(code)


def _run() -> int:
    from typer.exceptions import Abort, TyperException

    from localagent.cli.app import app
    from localagent.cli.terminal import OutputLost
    from localagent.errors import LocalAgentError

    try:
        code = app(prog_name="localagent", standalone_mode=False)
    except LocalAgentError as error:
        return complain(str(error), error.exit_code)
    except TyperException as error:  # wrong options and arguments
        message = error.format_message() if str(error) else ""
        return complain(f"{message} (see --help)", error.exit_code) if message else error.exit_code
    except Abort:
        return complain("interrupted", _INTERRUPTED)
    except (BrokenPipeError, OutputLost):
        raise
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        return complain(f"{error.strerror or error}{where}", 1)
    except Exception as error:
        if os.environ.get("LOCALAGENT_TRACEBACK"):
            raise
        return complain(
            f"internal error, please report it: {type(error).__name__}: {error} "
            "(LOCALAGENT_TRACEBACK=1 shows where)",
            70,
        )
    if code == _INTERRUPTED:  # typer turns Ctrl-C into this
        return complain("interrupted", code)
    return code if isinstance(code, int) else 0


def complain(message: str, code: int) -> int:
    """Print what is wrong, on one line, and return the exit code."""
    from localagent.wording import printable

    print(f"localagent: {printable(' '.join(message.split()))}", file=sys.stderr)  # noqa: T201
    return code
