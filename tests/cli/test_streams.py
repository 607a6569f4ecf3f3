"""Standard streams that are closed, full, left or silent: no result is lost without a word, nothing hangs."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from select import select
from time import monotonic, sleep

import pexpect
import psutil
import pytest

if sys.platform == "win32":
    pytest.skip("shells and descriptors of Unix", allow_module_level=True)

from localagent.messages import UserMessage
from localagent.session import SessionStore
from tests.cli.conftest import COMMAND, commands

NANO = ("--model", "lfm2-nano", "--temperature", "0", "--threads", "1", "--max-tokens", "12")
RESULTS = {
    "": ["--help"],
    "run": ["Hi.", *NANO],
    "chat": [*NANO],
    "tools": [],
    "parse": ["--jsonl"],
    "doctor": ["--timeout", "0.1"],
    "models list": [],
    "models default": [],
    "models alias": ["nano", "lfm2-nano"],
    "models show": ["lfm2-nano"],
    "models pull": ["lfm2-nano"],
    "models verify": [],
    "models requantize": ["lfm2-nano", "--to", "$LOCALAGENT_HOME/made.gguf"],
    "models rm": ["lfm2-350m", "--yes"],
    "sessions list": [],
    "sessions search": ["Hi."],
    "sessions rename": ["last", "Greeting"],
    "sessions show": ["last"],
    "sessions rm": ["last", "--yes"],
    "sessions export": ["last"],
    "cache list": ["--json"],
    "connect": ["openwebui", "--print"],
    "bench report": ["$LOCALAGENT_HOME/results"],
}
"""Arguments with which each command has something to print."""
NO_RESULT = {"cache clear", "serve"}
"""What these say is for people, on stderr."""
ELSEWHERE = {"bench model", "bench parsers", "bench server"}
"""What takes long, or needs a server: tests/bench."""
CLOSED = "localagent: standard output is closed: there is nowhere to print the result\n"


def test_every_command_is_here():
    assert {*RESULTS, *NO_RESULT, *ELSEWHERE} - {""} == commands()


@pytest.fixture
def home(localagent, tmp_path):
    """A home in which every command has something to print."""
    folder = tmp_path / "home"
    localagent.environment["LOCALAGENT_HOME"] = str(folder)
    SessionStore(folder / "sessions").create().append(UserMessage.text("Hi."))
    weights = folder / "models" / "lfm2-350m" / "llamacpp"
    weights.mkdir(parents=True)
    (weights / "part.gguf").write_bytes(b"x" * 100)
    (folder / "results").write_text('{"kind": "run", "bench": "parsers"}\n')
    return folder


def each(localagent, redirection: str, before: str = "printf 'Hi.\\n' | ") -> dict[str, tuple[int, str]]:
    """Every command with its streams redirected: its exit code, and what it says on stderr."""
    order = sorted(RESULTS, key=lambda name: name.endswith(" rm"))  # what removes comes last

    def run(name: str) -> tuple[int, str]:
        words = " ".join([*name.split(), *RESULTS[name]])
        done = localagent.shell(f"set -o pipefail; {before}{{}} {words} {redirection}")
        return done.returncode, done.stderr.decode()

    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(order[:-2], pool.map(run, order[:-2]), strict=True))
    return found | {name: run(name) for name in order[-2:]}


def test_a_closed_stdout_is_said(localagent, home):
    for name, found in each(localagent, ">&-").items():
        assert found == (1, CLOSED), (name, found)


@pytest.mark.parametrize("name", ["", "run", "parse", "models list"])
def test_a_stdout_that_cannot_be_written_is_said(localagent, home, name):
    words = " ".join([name, *RESULTS[name]])
    done = localagent.shell(f"printf 'Hi.\\n' | {{}} {words} > /dev/full")
    assert (done.returncode, done.stderr.decode()) == (
        1,
        "localagent: standard output cannot be written (No space left on device): "
        "there is nowhere to print the result\n",
    )


def test_a_stdout_for_reading_is_a_closed_one(localagent):
    assert localagent.shell("{} tools 1< /dev/null").stderr.decode() == CLOSED


def test_a_reader_that_left_is_no_error_to_tell_of(localagent, home):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb", 0) as left:
        for name, arguments in RESULTS.items():
            done = subprocess.run(
                [COMMAND, *name.split(), *(word.replace("$LOCALAGENT_HOME", str(home)) for word in arguments)], env=localagent.environment, input=b"Hi.\n",
                stdout=left, stderr=subprocess.PIPE, timeout=120, check=False,
            )  # fmt: skip
            said = done.stderr.decode()
            assert done.returncode == 1, (name, said)
            assert not any(word in said for word in ("localagent: ", "Traceback", "Exception", "roken")), said


def test_without_stdin_and_stderr_results_are_what_they_were(localagent, home):
    """Nothing crashes, and notes that nobody can read cost no result."""
    for name, (code, said) in each(localagent, "<&- 2>&-", before="").items():
        assert (code, said) == (1 if name == "doctor" else 0, ""), name
    for words in (f"run Hi. --stats {' '.join(NANO)}", "models pull lfm2-nano"):  # both have notes to tell
        done = localagent.shell(f"{{}} {words} < /dev/null 2> /dev/full")
        assert (done.returncode, bool(done.stdout)) == (0, True), words


def test_files_do_not_take_the_number_of_a_closed_stream(localagent, home):
    """An engine that prints to descriptor 1 must not write into a session."""
    script = (
        "import sys; from localagent.cli.terminal import guard_streams; guard_streams(); "
        "sys.exit(open('/dev/null').fileno())"
    )
    done = subprocess.run(["bash", "-c", f'{sys.executable} -c "{script}" <&- >&- 2>&-'], check=False)
    assert done.returncode == 3


# -- what comes in ----------------------------------------------------------------------------------------


def prompt_of(localagent, script: str) -> str:
    """The prompt that a line of bash gives `run`."""
    code = (
        "import sys; from localagent.cli.terminal import guard_streams; guard_streams(); "
        "from localagent.cli.input import whole_prompt; print(ascii(whole_prompt(sys.argv[1:])))"
    )
    done = localagent.shell(script.replace("RUN", f"{sys.executable} -c '{code}'"))
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    return eval(done.stdout)


@pytest.mark.parametrize(
    ("script", "prompt"),
    [
        ("RUN Name three colours.", "Name three colours."),
        ("echo red | RUN Name three colours.", "Name three colours.\n\nred\n"),
        ("echo red | RUN", "red\n"),
        ("echo red | RUN -", "red\n"),
        ("(sleep 3; echo red) | RUN Name it: -", "Name it:\n\nred\n"),
        ("(sleep 3; echo red) | RUN Name it:", "Name it:\n\nred\n"),
        ("RUN What is 5 - 3 < /dev/null", "What is 5 - 3"),
        ("RUN Hi. < /dev/null", "Hi."),
        ("RUN Hi. <&-", "Hi."),
        ("RUN Hi. 0> /dev/null", "Hi."),
        ("printf ' \\n' | RUN Hi.", "Hi."),
        ("printf '\\xef\\xbb\\xbfred' | RUN Name it:", "Name it:\n\nred"),
        ("RUN Name it: <<< red", "Name it:\n\nred\n"),
    ],
)
def test_what_is_piped_in_joins_the_words(localagent, script, prompt):
    assert prompt_of(localagent, script) == prompt


def test_the_model_is_told_words_and_pipe_together(localagent):
    told = [
        json.loads(localagent("run", *words, *NANO, "--json", stdin=piped).stdout)["usage"]["input"]
        for words, piped in (
            (["Add", "3 and 4."], b"All of it."),
            (["Add 3 and 4.\n\nAll of it."], b""),
            (["Add 3 and 4."], b""),
        )
    ]
    assert told[0] == told[1] > told[2]


@pytest.mark.parametrize("words", [["Hi."], ["Hi.", "-"], []])
def test_a_terminal_is_read_only_when_asked(localagent, words):
    import pexpect

    code = (
        "from localagent.cli.input import whole_prompt; import sys; print(repr(whole_prompt(sys.argv[1:])))"
    )
    child = pexpect.spawn(sys.executable, ["-c", code, *words], encoding="utf-8", timeout=120)
    if words[-1:] == ["-"]:
        child.expect_exact("then press Ctrl-D")
        child.sendline("red")
        child.sendeof()
        child.expect_exact(r"'Hi.\n\nred\n'")
    else:
        child.expect_exact("'Hi.'" if words else "the prompt is empty")
    child.close(force=True)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_what_is_open_and_silent_does_not_hang(localagent, kind):
    """With a shorter patience, for the test; `-` goes on waiting."""
    code = "import localagent.cli.input as i; i.SOON = 0.1; i.PATIENCE = 0.5; from localagent.cli import main; main()"
    theirs, ours = os.pipe() if kind == "pipe" else [end.detach() for end in socket.socketpair()]
    try:
        started = monotonic()
        silent = {"stdin": theirs, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        waiting = subprocess.Popen([sys.executable, "-c", code, "run", "Hi.", "-", *NANO], **silent)
        done = subprocess.run(
            [sys.executable, "-c", code, "run", "Hi.", *NANO], timeout=60, check=False, **silent
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            "localagent: standard input is open and has sent nothing for 0.5 seconds: "
            "use </dev/null if there is no input, or - as the last word to wait for it\n"
        )
        assert waiting.poll() is None
        os.write(ours, b"Read the file plan.txt.")
        os.close(ours)
        ours = None
        answer, said = waiting.communicate(timeout=60)
        assert (waiting.returncode, said, bool(answer.strip())) == (0, "", True)
        assert monotonic() - started > 0.5
    finally:
        os.close(theirs)
        if ours is not None:
            os.close(ours)


@pytest.mark.parametrize("there", [True, False])
def test_who_sits_at_a_terminal_is_told_of_a_pipe_that_sends_nothing_yet(tmp_path, there):
    """Of one that has sent something before it is looked at, nothing is told."""
    os.mkfifo(pipe := tmp_path / "pipe")
    ours = os.open(pipe, os.O_RDWR)
    if there:
        os.write(ours, b"red")
    told = "(waiting for standard input; use </dev/null if there is none)"
    code = "import localagent.cli.input as i; i.SOON = 0.1; print('began'); print([i.whole_prompt(['Hi.'])])"
    command = f"{shlex.join([sys.executable, '-uc', code])} < {shlex.quote(str(pipe))}"
    with pexpect.spawn("/bin/sh", ["-c", command], encoding="utf-8", timeout=60) as child:
        child.expect_exact("began")
        if not there:
            child.expect_exact(told)
            os.write(ours, b"red")
        os.close(ours)
        child.expect_exact(r"['Hi.\n\nred']")
        assert told not in child.before


def test_a_pipe_that_is_not_blocking_is_read_to_its_end(localagent):
    code = "import sys; from localagent.cli.input import whole_prompt; print(len(whole_prompt([])))"
    read, write = os.pipe()
    os.set_blocking(read, False)
    child = subprocess.Popen([sys.executable, "-c", code], stdin=read, stdout=subprocess.PIPE)
    with os.fdopen(write, "wb") as end:
        os.write(write, b"x" * 9_999 + b"\n")
        # Until it has read that, and waits for more or has failed.
        while select([read], [], [], 0)[0] or psutil.Process(child.pid).status() == psutil.STATUS_RUNNING:
            sleep(0.01)
        os.close(read)  # so that nobody waits for a child that has failed
        for _ in range(39):
            end.write(b"x" * 9_999 + b"\n")
    assert int(child.communicate(timeout=60)[0]) == 400_000


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("{} run - <&-", "the prompt is empty"),
        ("{} run < /dev/null", "the prompt is empty"),
        ("printf '\\xff' | {} run Hi.", "standard input is not UTF-8 text: byte 0xff at offset 0"),
        ("printf 'a\\0b' | {} run Hi.", "standard input is binary: NUL at character 1"),
        ("{} run $'Hi \\xff' < /dev/null", "the prompt is not UTF-8 text: see character 4"),
        ("{} run Hi. --system $'\\xff' < /dev/null", "--system is not UTF-8 text: see character 1"),
        ("{} chat --system $'\\xff' < /dev/null", "--system is not UTF-8 text: see character 1"),
        ("printf '\\xff\\xfe\\n' | {} chat", "not UTF-8"),
    ],
)
def test_what_is_no_prompt_is_one_line(localagent, script, says):
    done = localagent.shell(script)
    said = done.stderr.decode()
    assert done.returncode == 2, said
    assert says in said
    assert "Traceback" not in said


def test_what_never_ends_does_not_fill_the_memory(localagent):
    code = "import localagent.cli.input as i; i.LIMIT = 1 << 20; from localagent.cli import main; main()"
    done = localagent.shell(f"yes | {sys.executable} -c '{code}' run Hi.")
    assert done.stderr.decode().startswith("localagent: standard input is longer than 1 MB")
