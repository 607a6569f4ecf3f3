"""The command line. Only typer and the standard library are imported before a command runs."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the `localagent` command; an error is one line on stderr and an exit code."""
    from typer.exceptions import Abort, TyperException

    from localagent.cli.app import app
    from localagent.errors import LocalAgentError

    try:
        code = app(prog_name="localagent", standalone_mode=False)
    except LocalAgentError as error:
        code = complain(str(error), error.exit_code)
    except TyperException as error:  # wrong options and arguments
        message = error.format_message() if str(error) else ""
        code = complain(f"{message} (see --help)", error.exit_code) if message else error.exit_code
    except (Abort, KeyboardInterrupt):
        code = complain("interrupted", 130)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has left: nothing to say, and nobody to say it to
        code = 1
    except Exception as error:
        if os.environ.get("LOCALAGENT_TRACEBACK"):
            raise
        code = complain(
            f"internal error, please report it: {type(error).__name__}: {error} "
            "(LOCALAGENT_TRACEBACK=1 shows where)",
            70,
        )
    sys.exit(code if isinstance(code, int) else 0)


def complain(message: str, code: int) -> int:
    """Say what is wrong, on one line; returns the exit code."""
    print(f"localagent: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
    return code
