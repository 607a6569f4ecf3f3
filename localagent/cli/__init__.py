"""The command line. Only typer and the standard library are imported before a command runs."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the `localagent` command; an error is one line on stderr and an exit code."""
    try:
        _mend_streams()
        code = _run()
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = complain("interrupted", 130)
    except BrokenPipeError:
        code = _give_up_stdout(1)  # whoever read our output has left: there is nobody to say it to
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        code = complain(f"{error.strerror or error}{where}", _give_up_stdout(1))
    sys.exit(code)


def _run() -> int:
    from typer.exceptions import Abort, TyperException

    from localagent.cli.app import app
    from localagent.errors import LocalAgentError

    try:
        code = app(prog_name="localagent", standalone_mode=False)
    except LocalAgentError as error:
        return complain(str(error), error.exit_code)
    except TyperException as error:  # wrong options and arguments
        message = error.format_message() if str(error) else ""
        return complain(f"{message} (see --help)", error.exit_code) if message else error.exit_code
    except Abort:
        return complain("interrupted", 130)
    except OSError:
        raise
    except Exception as error:
        if os.environ.get("LOCALAGENT_TRACEBACK"):
            raise
        return complain(
            f"internal error, please report it: {type(error).__name__}: {error} "
            "(LOCALAGENT_TRACEBACK=1 shows where)",
            70,
        )
    return code if isinstance(code, int) else 0


def complain(message: str, code: int) -> int:
    """Say what is wrong, on one line; returns the exit code."""
    from localagent.cli.terminal import printable

    print(f"localagent: {printable(' '.join(message.split()))}", file=sys.stderr)  # noqa: T201
    return code


def _mend_streams() -> None:
    """A closed stream is an empty one, and what an encoding cannot write appears as its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _give_up_stdout(code: int) -> int:
    """Nothing more can be written: keep the interpreter from trying again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
