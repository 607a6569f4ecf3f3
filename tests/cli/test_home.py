"""The first minute: `localagent` alone, a first chat without a model, and what the shell completes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are Unix", allow_module_level=True)

import pexpect
import pyte

from localagent.catalog import PathSource, load_catalog
from localagent.cli import completing, fitting
from localagent.cli.fitting import need, proposals
from localagent.cli.naming import Preferences
from localagent.session import SessionStore
from localagent.store import WeightStore
from tests.cli.conftest import COMMAND, Command


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home without weights."""
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    monkeypatch.delenv("LOCALAGENT_MODEL", raising=False)
    return tmp_path


@pytest.fixture
def terminal(home):
    """Runs a command on a terminal: what is typed when, then its exit code and all that stands on the screen."""

    def run(*arguments, columns=80, keys=(), **more):
        # A terminal of the tests' own must not tell the width.
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        child = pexpect.spawn(
            str(COMMAND), [*arguments], env={**environment, "TERM": "xterm", "NO_COLOR": "1", **more},
            dimensions=(60, columns), encoding="utf-8", timeout=60,
        )  # fmt: skip
        screen = pyte.Screen(columns, 60)
        stream = pyte.Stream(screen)
        for awaited, typed in keys:
            child.expect_exact(awaited)
            stream.feed(child.before + awaited)
            child.send(typed)
        stream.feed(child.read())
        child.close()
        return child.exitstatus, [line.rstrip() for line in screen.display if line.strip()]

    return run


# -- W1: alone ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["models"], ["sessions"], ["cache"]])
def test_w1_alone_in_a_pipe_is_readable_help(home, words):
    done = subprocess.run(
        [COMMAND, *words], stdin=subprocess.DEVNULL, capture_output=True, check=True, text=True
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Usage: localagent")
    assert "Commands:" in lines
    assert len(lines) > 8
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("words", [["models"], ["sessions"], ["cache"]])
def test_w1_a_group_alone_on_a_terminal_is_readable_help(terminal, words):
    code, lines = terminal(*words)
    assert code == 0
    assert lines[0].startswith("Usage: localagent")
    assert any(line.startswith("  list ") for line in lines)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_w1_localagent_alone_says_what_to_do_next(terminal, columns):
    code, lines = terminal(columns=columns)
    assert code == 0
    text = " ".join(" ".join(lines).split())
    for words in (
        "On this machine: lfm2-nano 2 MB, 28 MB of memory",  # it comes with the package
        "Start: localagent chat talk with smollm2-135m (98 MB, fetched first)",
        'localagent run "Name three colours." ask once',
        "localagent --help shows all commands",
    ):
        assert words in text, lines
    assert max(map(len, lines)) <= columns
    fitting_one = proposals(load_catalog(), WeightStore(), 1)
    if fitting_one:  # there is not much memory everywhere
        assert f"localagent models pull {fitting_one[0][0].name} ~" in text


def test_w1_the_default_is_marked(terminal, home):
    Preferences(default="lfm2-nano").write()
    _, lines = terminal()
    assert any(line.startswith("  lfm2-nano * ") for line in lines)
    assert any("talk with lfm2-nano" in line and "fetched" not in line for line in lines)


def test_a_default_that_is_gone_stops_nothing_that_needs_none(terminal, localagent, home):
    warned = "warning: LOCALAGENT_MODEL names the model: no model gone"
    code, lines = terminal(LOCALAGENT_MODEL="gone", columns=120)
    assert code == 0
    assert lines[0].startswith(warned)
    assert any(line.split() == ["localagent", "chat", "talk"] for line in lines)
    for words in (["list"], ["show", "lfm2-nano"], ["pull", "lfm2-nano"]):
        done = localagent("models", *words, LOCALAGENT_MODEL="gone", LOCALAGENT_HOME=str(home))
        assert (done.returncode, b"lfm2-nano" in done.stdout + done.stderr) == (0, True), done.stderr
        assert done.stderr.decode().startswith(warned) is (words[0] != "pull")
    localagent.refuse(
        "models", "pull", code=2, says="unset LOCALAGENT_MODEL goes back", LOCALAGENT_MODEL="gone"
    )


# -- what fits ------------------------------------------------------------------------------------------


def test_n9_the_best_that_fits_into_memory_is_proposed(monkeypatch, home):
    def proposed(size):
        monkeypatch.setattr("localagent.hosts.memory.available_memory", lambda **_: size)
        return [spec.name for spec, _ in proposals(load_catalog(), WeightStore())]

    assert proposed(64 << 30) == ["lfm2-24b-a2b", "lfm2.5-8b-a1b", "lfm2.5-2.6b"]
    assert proposed(16 << 30)[0] == "lfm2.5-8b-a1b"
    assert proposed(4 << 30)[0] == "lfm2.5-2.6b"
    assert proposed(2 << 30)[0] == "lfm2.5-1.2b-instruct"
    assert proposed(1 << 30) == []


def test_n9_every_model_of_the_catalogue_says_what_it_costs(home):
    store = WeightStore()
    for spec in load_catalog():
        for backend in spec.backends:
            takes = need(spec, backend, store)
            assert takes.size and takes.memory and takes.size < takes.memory, spec.name
            told = spec.sources[backend].size
            if told and spec.parameters:  # the estimate is near what is known
                assert abs(spec.parameters * fitting._bits(spec, backend) / 8 - told) < 0.2 * told, spec.name


def test_n9_the_estimate_is_near_what_the_header_says(gguf, home):
    spec = load_catalog().get("smollm2-135m")
    before = need(spec, "llamacpp", WeightStore())
    here = need(spec, "llamacpp", WeightStore(gguf.parents[2]))
    assert (before.exact, here.exact) == (False, True)
    assert abs(before.memory - here.memory) < 0.2 * here.memory


def test_weights_that_cannot_be_read_have_their_size_and_no_estimate(home):
    path = home / "one.gguf"
    path.write_bytes(b"GGUF, or not")
    source = PathSource(path=path, size=12)
    spec = load_catalog().get("smollm2-135m").model_copy(update={"sources": {"llamacpp": source}})
    takes = need(spec, "llamacpp", WeightStore())
    assert (takes.size, takes.memory, takes.exact) == (12, None, True)
    assert (takes.told(takes.size), takes.told(takes.memory)) == ("12 bytes", "")


# -- a first chat ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not proposals(load_catalog(), WeightStore()), reason="nothing else fits into memory")
@pytest.mark.parametrize(
    ("typed", "fetched"), [("\r", "smollm2-135m"), ("x\r2\r", None), ("0\r9\r1\r", "smollm2-135m")]
)
def test_n9_a_first_chat_offers_the_choice(terminal, typed, fetched):
    better, takes = proposals(load_catalog(), WeightStore())[0]
    code, lines = terminal(
        "chat", columns=200, keys=[("Number, or Enter for 1 [1-", typed)],
        LOCALAGENT_OFFLINE="1", LOCALAGENT_ENGINE_CHECK="0",
    )  # fmt: skip
    text = "\n".join(lines)
    assert code == 1
    assert "No model is on this machine yet" in lines[0]
    assert "1  smollm2-135m" in lines[1] and "98 MB" in lines[1] and "Apache-2.0" in lines[1]
    assert (
        f"2  {better.name}" in lines[2]
        and takes.told(takes.size) in lines[2]
        and better.licence.name in lines[2]
    )
    assert f"no weights of {fetched or better.name} (" in text  # offline, nothing more can come


def test_n9_a_first_chat_without_a_choice(terminal):
    code, lines = terminal("chat", keys=[("Number, or Enter for 1 [1-", "\4")])
    assert (code, lines[-1]) == (2, "localagent: no model was chosen: name one with --model")


@pytest.mark.engine
@pytest.mark.parametrize("more", [["lfm2-n"], ["--model", "lfm2-nano"]])
def test_w12_chat_takes_the_model_as_a_word_and_asks_nothing(terminal, more):
    code, lines = terminal(
        "chat", *more, "--no-save", keys=[("/help tells more.", ""), ("\x1b[?2004h", "/exit\r")]
    )
    assert code == 0
    assert not any("Number, or" in line for line in lines)
    assert any(line.startswith("lfm2-nano, ") for line in lines)


def test_w12_of_several_models_one_is_chosen_by_its_number(terminal):
    keys = [("2  lfm2.5-1.2b-thinking", ""), ("Number, or Enter for 1 [1-2]: ", "2\r")]
    code, lines = terminal(
        "run",
        "-m",
        "lfm2.5-1",
        "Hi.",
        columns=200,
        keys=keys,
        LOCALAGENT_OFFLINE="1",
        LOCALAGENT_ENGINE_CHECK="0",
    )
    assert code == 1
    assert lines[0] == "Several models begin with lfm2.5-1:"
    assert "no weights of lfm2.5-1.2b-thinking" in "".join(lines)


@pytest.mark.engine
def test_w12_run_takes_a_first_word_that_is_a_model(home):
    done = subprocess.run(
        [COMMAND, "run", "lfm2-nano", "What", "is 2 + 2?", "--max-tokens", "4"], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stderr == ""  # nothing was fetched


def test_w12_two_models_are_one_too_many(home):
    done = subprocess.run(
        [COMMAND, "chat", "lfm2-nano", "-m", "lfm2-350m"], capture_output=True, check=False, text=True
    )
    assert (done.returncode, done.stderr) == (
        2, "localagent: lfm2-nano and --model lfm2-350m both name the model: leave one out\n",
    )  # fmt: skip


# -- W8: arguments that are not UTF-8 -------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere arguments are Unicode")
@pytest.mark.parametrize(
    "line",
    [
        "run X", "run hi -m X", "run hi -m hf:a/X", "run hi -m ./X.gguf", "run hi -s X", "run hi --tools X", "run hi --tool X",
        "run hi --mcp X", "run hi --schema X", "run hi --allow X", "chat X", "chat --resume X", "chat -s X", "serve -m X",
        "serve -m lfm2-nano --alias X", "parse X", "parse -d X", "parse --dialect-from X", "connect X", "connect codex --url X",
        "connect codex --model X --print", "models show X", "models pull X", "models rm X", "models verify X", "models default X",
        "models alias X", "models alias a X", "sessions show X", "sessions rm X", "sessions rename X y", "sessions search X",
        "sessions export X", "X", "--X",
    ],
)  # fmt: skip
def test_w8_arguments_that_are_not_utf8_are_told_in_one_line(tmp_path, line):
    command = Command(tmp_path)
    command.environment["LOCALAGENT_HOME"] = str(tmp_path)
    done = command(*(os.fsdecode(word.encode().replace(b"X", b"\xff")) for word in line.split()))
    said = done.stderr.decode()
    assert done.returncode in (1, 2), said
    assert said.count("\n") == 1
    assert "internal error" not in said
    assert ("--system is not UTF-8 text: see character 1" in said) == (" -s " in line)


# -- W13: completion ------------------------------------------------------------------------------------


def completed(line: str, **more: str) -> list[str]:
    """What bash is told to complete, by the protocol that its script speaks."""
    words = line.split(" ")
    environment = {
        **os.environ, **more, "_LOCALAGENT_COMPLETE": "complete_bash", "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }  # fmt: skip
    done = subprocess.run([COMMAND], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


def test_w13_names_are_completed_where_names_are_meant(home):
    Preferences(aliases={"lazy": "lfm2-nano"}).write()
    session = SessionStore().create(title="t")
    assert completed("localagent run --model smo") == ["smollm2-135m"]
    assert completed("localagent chat la") == ["lazy"]
    assert completed("localagent run -m lfm2.5-1.2b-") == ["lfm2.5-1.2b-instruct", "lfm2.5-1.2b-thinking"]
    for command in ("show", "pull", "verify", "rm", "default", "alias x"):
        assert completed(f"localagent models {command} lfm2-nan") == ["lfm2-nano"], command
    assert completed("localagent chat --resume l") == ["last"]
    for command in ("show", "rm", "export", "rename"):
        assert completed(f"localagent sessions {command} {session.id[:6]}") == [session.id], command
    assert completed("localagent run --tools calc") == ["calculator"]
    assert completed("localagent run --tools time,calc") == ["time,calculator"]
    assert completed("localagent parse --dialect lf") == ["lfm2"]
    assert completed("localagent connect cod") == ["codex"]
    assert completed("localagent serve -m smo") == ["smollm2-135m"]


def test_a_completion_that_fails_is_silent(home, monkeypatch):
    (home / "models.json").write_text("{")
    assert completed("localagent run -m lfm2") == []
    for complete in (completing.session_names, completing.tool_names, completing.client_names):
        assert isinstance(complete("x"), list)
