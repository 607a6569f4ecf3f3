"""However a command ends, it is one line on stderr and an exit code that says what kind of end it was."""

from __future__ import annotations

import pytest
import typer.exceptions

from localagent import cli
from localagent.cli import app as app_module
from localagent.errors import ContextOverflow, EngineFailed, UsageError


@pytest.fixture
def end(monkeypatch, capsys):
    """The exit code and the lines on stderr of a command that does this."""

    def run(do):
        def app(**options):
            assert options == {"prog_name": "localagent", "standalone_mode": False}
            if isinstance(do, BaseException):
                raise do
            return do

        monkeypatch.setattr(app_module, "app", app)
        monkeypatch.setattr("localagent.cli.terminal.guard_streams", lambda: None)
        with pytest.raises(SystemExit) as left:
            cli.main()
        printed = capsys.readouterr()
        assert printed.out == ""
        return left.value.code, printed.err.splitlines()

    return run


@pytest.mark.parametrize(
    ("do", "code", "says"),
    [
        (None, 0, None),
        (0, 0, None),
        (3, 3, None),
        ("text", 0, None),
        (EngineFailed("it gave\nup"), 1, "it gave up"),
        (UsageError("no such\x1b[2J"), 2, "no such\\x1b[2J"),
        (ContextOverflow(9, 8), 2, str(ContextOverflow(9, 8))),
        (KeyboardInterrupt(), 130, "interrupted"),
        (typer.exceptions.Abort(), 130, "interrupted"),
        (OSError(28, "No space left on device", "/tmp/x"), 1, "No space left on device /tmp/x"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (OSError("odd"), 1, "odd"),
        (
            KeyError("x"), 70,
            "internal error, please report it: KeyError: 'x' (LOCALAGENT_TRACEBACK=1 shows where)",
        ),
    ],
)  # fmt: skip
def test_ends(end, do, code, says):
    assert end(do) == (code, [f"localagent: {says}"] if says else [])


def test_a_fault_of_ours_is_shown_on_request(end, monkeypatch):
    monkeypatch.setenv("LOCALAGENT_TRACEBACK", "1")
    with pytest.raises(KeyError):
        end(KeyError("x"))


def test_a_reader_that_has_gone_is_told_nothing(end, monkeypatch):
    discarded = []
    monkeypatch.setattr("localagent.cli.terminal.discard", discarded.append)
    assert end(BrokenPipeError()) == (1, [])
    assert len(discarded) == 1


def test_output_that_is_lost(end, monkeypatch):
    from localagent.cli.terminal import OutputLost

    discarded = []
    monkeypatch.setattr("localagent.cli.terminal.discard", discarded.append)
    for error, how in (
        (OSError(28, "No space left on device"), "cannot be written (No space left on device)"),
        (OSError(9, "Bad file descriptor"), "is closed"),
    ):
        assert end(OutputLost(error)) == (
            1, [f"localagent: standard output {how}: there is nowhere to print the result"],
        )  # fmt: skip
    assert len(discarded) == 2
