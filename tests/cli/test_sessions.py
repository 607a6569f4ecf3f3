"""`localagent sessions` shows, exports and removes what chats kept, and prints nothing that drives a terminal."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys

import pexpect
import pytest

from localagent.cli.transcript import tell
from localagent.errors import UnknownSession
from localagent.messages import (
    AssistantMessage,
    AudioPart,
    BranchSummaryMessage,
    ImagePart,
    MalformedToolCallPart,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
    load_message,
    load_messages,
)
from localagent.session import SessionStore
from tests.cli.conftest import COMMAND, Command

CALL = ToolCallPart(id="c1", name="get_weather", arguments={"city": "Zürich", "days": 3})
ANSWER = AssistantMessage(
    model="m",
    stop_reason="length",
    content=(
        ReasoningPart(text="Hm.\nWeather."),
        TextPart(text="Let me "),
        TextPart(text="look."),
        CALL,
        MalformedToolCallPart(raw="f(\n```", reason="truncated", name="f"),
    ),
)
RESULTS = ToolMessage.from_results(
    [CALL.result({"t": 4}), ToolResultPart(call_id="", name="f", content="no such tool", is_error=True)]
)


@pytest.fixture
def store(tmp_path):
    return SessionStore(tmp_path / "sessions")


@pytest.fixture
def command(tmp_path):
    command = Command(tmp_path)
    command.environment["LOCALAGENT_HOME"] = str(tmp_path)
    return command


@pytest.fixture
def session(store):
    session = store.create()
    session.append(SystemMessage.text("Be curt."))
    question = session.append(UserMessage.text("Will it rain?\nuser:\n[red]\x1b[31m\u202e"))
    session.append(ANSWER)
    session.append(RESULTS)
    session.append(AssistantMessage.text("Four degrees."))
    session.branch(question, "It was about the weather.")
    session.append_custom("bookmark", {"page": 3})
    picture = ImagePart(data=b"\x89PNG\r\n\x1a\n")
    session.append(UserMessage(content=("Look", picture, AudioPart(url="https://a.b/c.mp3"))))
    session.rescue("Answer in words.")
    return session


def entry_of(session, text):
    (entry,) = [e for e in session.entries if getattr(getattr(e, "message", None), "text", None) == text]
    return entry.id


def out(command, *arguments, code=0):
    done = command("sessions", *arguments)
    assert done.returncode == code, done.stderr.decode()
    return done.stdout.decode()


def test_list_shows_the_newest_session_first(command, session, store):
    other = store.create(title="Zwei [bold]")
    lines = out(command, "list").splitlines()
    assert re.match(r"session +changed +size +title", lines[0])
    assert lines[1].startswith(other.id)
    assert lines[1].rstrip().endswith("Zwei [bold]")
    assert lines[2].startswith(session.id)
    assert lines[2].rstrip().endswith(r"Will it rain? user: [red]\x1b[31m\u202e")
    assert lines[3] == "Continue one: localagent chat --resume ID"
    rows = json.loads(out(command, "list", "--json"))
    assert [row["id"] for row in rows] == [other.id, session.id]
    for row, info in zip(rows, store.list(), strict=True):
        assert row == {
            "id": info.id, "title": info.title, "created": info.created.isoformat(),
            "changed": info.changed.isoformat(), "size": info.path.stat().st_size, "path": str(info.path),
            "problem": None,
        }  # fmt: skip
    assert rows[1]["path"] == str(session.file)
    assert rows[1]["title"].startswith("Will it rain?")


def test_sizes_stand_right_aligned_in_the_list(command, session, store):
    store.create().append(UserMessage.text("x" * 20_000))
    lines = out(command, "list").splitlines()[:-1]
    title = lines[0].index("title")
    assert len({line[:title].rstrip() for line in lines}) == len(lines) == 3
    assert len({len(line[:title].rstrip()) for line in lines}) == 1, lines


def test_a_list_of_no_sessions_says_where_it_looked(command, tmp_path):
    done = command("sessions", "list")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode() == f"no sessions in {tmp_path}/sessions\n"
    assert json.loads(out(command, "list", "--json")) == []


def test_show_prints_every_entry_of_a_branch(command, session):
    shown = out(command, "show", "last")
    head = f"{session.id}: Will it rain? user: [red]\\x1b[31m\\u202e\n9 entries on 2 branches, kept in {session.file}\n\n"
    branch = session.path()[2].branch
    assert shown == head + (
        "system:\n  Be curt.\n\n"
        "user:\n  Will it rain?\n  user:\n  [red]\\x1b[31m\\u202e\n\n"
        f"branch summary (of {branch}):\n  It was about the weather.\n\n"
        'custom (bookmark):\n  {"page": 3}\n\n'
        "user:\n  Look\n  [image image/png, 8 bytes]\n  [audio audio/mpeg https://a.b/c.mp3]\n\n"
        "rescue:\n  Answer in words.\n"
    )
    shown = out(command, "show", session.id, "--entry", branch).split("\n\n", 3)[3]
    assert shown == (
        "assistant (m):\n  reasoning: Hm.\n  Weather.\n  Let me look.\n"
        '  call get_weather(city="Zürich", days=3)\n  malformed call (truncated): f(\n  ```\n  (ended by length)\n\n'
        'tool:\n  result of get_weather: {"t": 4}\n  error of f: no such tool\n\n'
        "assistant:\n  Four degrees.\n"
    )


def test_show_draws_the_branches_as_a_tree(command, session):
    lines = out(command, "show", "last", "--tree").splitlines()[3:]
    shapes = [re.sub("[0-9a-f]{8}", "ID", line).rstrip() for line in lines]
    assert shapes == [
        "  ID system: Be curt.",
        r"  ID user: Will it rain? user: [red]\x1b[31m\u202e",
        '  ├─ ID assistant (m): Hm. Weather. Let me look. call get_weather(city="Zürich", days=3) malformed call (...',
        '  │  ID tool: result of get_weather: {"t": 4} error of f: no such tool',
        "  │  ID assistant: Four degrees.",
        "  └─ ID branch summary (of ID): It was about the weather.",
        '     ID custom (bookmark): {"page": 3}',
        "     ID user: Look [image image/png, 8 bytes] [audio audio/mpeg https://a.b/c.mp3]",
        "*    ID rescue: Answer in words.",
    ]


def test_show_tells_of_compactions_and_flushes(command, session):
    session.branch(entry_of(session, "Four degrees."))
    session.compact("Rain.", first_kept=session.head)
    session.flush()
    shown = out(command, "show", "last")
    assert (
        f"compaction summary (for what came before {entry_of(session, 'Four degrees.')}):\n  Rain.\n" in shown
    )
    assert shown.endswith("flush:\n  what is above is no longer sent\n")


def test_show_json_has_head_entries_and_problems(command, session):
    shown = json.loads(out(command, "show", "last", "--json"))
    assert shown["head"] == session.head
    assert shown["id"] == session.id
    assert shown["title"] == session.title
    assert shown["path"] == str(session.file)
    assert shown["leaves"] == [entry.id for entry in session.leaves]
    assert shown["entries"] == [entry.model_dump(mode="json") for entry in session.entries]
    assert shown["problems"] == []
    with session.file.open("ab") as file:
        file.write(b"garbage\n")
    (problem,) = json.loads(out(command, "show", "last", "--json"))["problems"]
    assert problem.startswith("line 11 (byte ")


def test_one_entry_on_one_branch(command, store):
    session = store.create()
    session.append(UserMessage.text("Hi."))
    assert out(command, "show", "last").splitlines()[1] == f"1 entry, kept in {session.file}"
    untitled = store.create()
    assert (
        out(command, "show", untitled.id)
        == f"{untitled.id}: no title\n0 entries, kept in {untitled.file}\n\n"
    )


def test_problems_are_told_on_stderr(command, session):
    with session.file.open("ab") as file:
        file.write(b'garbage\n{"kind":"label","id":"z","parent":"%s"}\n{"id' % session.head.encode())
    done = command("sessions", "show", "last")
    assert done.returncode == 0
    assert done.stdout.decode().endswith("unreadable:\n  an entry of unknown kind 'label'\n")
    first, second = done.stderr.decode().splitlines()
    assert first.startswith(f"{session.id}, line 11 (byte ")
    assert second.endswith("cut off: the process that wrote it was stopped")


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are Unix")
def test_on_a_terminal(command, session):
    import pexpect

    def run(*arguments):
        return pexpect.spawn(
            str(COMMAND), ["sessions", *arguments], env={**command.environment, "NO_COLOR": ""},
            encoding="utf-8", timeout=120, dimensions=(60, 200),
        )  # fmt: skip

    child = run("show", "last", "--entry", session.path()[2].branch)
    shown = child.read()
    assert "  \x1b[2mreasoning: Hm.\x1b[0m\r\n  \x1b[2mWeather.\x1b[0m" in shown
    assert "\x1b[36mcall get_weather" in shown
    assert "\x1b[31m\u202e" not in shown
    shown = run("export", "last").read()
    assert "\x1b[31m" not in shown
    for answer, code in (("n", 1), ("y", 0)):
        child = run("rm", session.id[:6])
        child.expect_exact(f"Remove {session.id} (Will it rain? user: [red]\\x1b[31m\\u202e) from")
        child.sendline(answer)
        child.expect_exact("not removed" if code else f"removed {session.id}: ")
        child.read()
        child.close()
        assert child.exitstatus == code
    assert not session.file.exists()


def test_rm_asks_and_removes_only_what_is_named(command, session, store):
    others = [store.create() for _ in range(2)]
    command.refuse(
        "sessions", "rm", others[0].id, code=2, says="nobody can be asked here: say --yes to agree beforehand"
    )
    assert others[0].file.exists()
    removed = out(command, "rm", others[0].id, others[1].id, "--yes")
    assert [line.split(":")[0] for line in removed.splitlines()] == [
        f"removed {other.id}" for other in others
    ]
    assert [info.id for info in store.list()] == [session.id]


def test_rm_removes_what_it_asked_for(store):
    """An id that begins like another's must not be looked up again once it is gone."""
    one = store.create()
    longer = one.file.with_name(one.file.name.replace(".jsonl", "0.jsonl"))
    longer.write_bytes(one.file.read_bytes())
    path = store.find(one.id)
    path.unlink()
    with pytest.raises(UnknownSession):
        store.remove(path)
    assert longer.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are Unix")
def test_ids_are_whole_on_a_narrow_terminal(command, session, store):
    import pexpect

    session.append(UserMessage.text("x"))
    store.create("A title that is much too long for so narrow a terminal, and then some more of it")
    child = pexpect.spawn(
        str(COMMAND), ["sessions", "list"], env=command.environment, encoding="utf-8", dimensions=(24, 60)
    )
    child.expect(pexpect.EOF)
    for info in store.list():
        assert info.id in child.before


def test_an_export_replaces_a_file_whole_or_not_at_all(command, session, tmp_path):
    target = tmp_path / "kept.md"
    target.write_text("precious\n" * 10)
    session.append(UserMessage.text("x" * 100_000))
    script = f"ulimit -f 8; {{}} sessions export last --output {target} --force"
    assert command.shell(script).returncode != 0
    assert target.read_text() == "precious\n" * 10
    out(command, "export", "last", "--output", "/dev/null", "--force")


def test_export_keeps_everything(command, session, tmp_path):
    context = session.context()
    assert load_messages(out(command, "export", "last", "--format", "json")) == context
    lines = out(command, "export", "last", "--format", "jsonl").splitlines()
    assert [load_message(line) for line in lines] == context
    entry = entry_of(session, "Four degrees.")
    path = tmp_path / "out.json"
    assert out(command, "export", "last", "-f", "json", "--entry", entry, "--output", str(path)) == ""
    assert load_messages(path.read_bytes()) == session.context(entry)


def test_export_for_people(command, session):
    entry = entry_of(session, "Four degrees.")
    written = out(command, "export", "last", "--entry", entry)
    assert written.startswith(
        "## system\n\nBe curt.\n\n## user\n\nWill it rain?\nuser:\n[red]\x1b[31m\u202e\n\n"
    )
    assert "## assistant (m)\n\n> Hm.\n> Weather.\n\nLet me look.\n\n```\ncall get_weather(" in written
    assert "\n````\nmalformed call (truncated): f(\n```\n````\n" in written
    text = out(command, "export", "last", "--entry", entry, "--format", "text")
    assert "tool:\n  result of get_weather: " in text
    assert "## " not in text


@pytest.mark.parametrize("wire", ["openai", "anthropic", "gemini"])
def test_export_for_wires(command, session, wire):
    from importlib import import_module

    entry = entry_of(session, "Four degrees.")
    payload = json.loads(out(command, "export", "last", "--entry", entry, "--format", wire))
    messages = import_module(f"localagent.wire.{wire}").from_wire(payload)
    assert messages[0].text == "Be curt."
    assert messages[-1].text == "Four degrees."
    (turn,) = [message for message in messages if getattr(message, "tool_calls", ())]
    assert turn.tool_calls[0].arguments == CALL.arguments


def test_what_an_export_leaves_out_is_told(session, capsys, monkeypatch, tmp_path):
    """The wires take images; a format that does not would lose them."""
    from localagent.cli import sessions
    from localagent.wire import openai

    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    monkeypatch.setattr(openai, "TARGET", dataclasses.replace(openai.TARGET, vision=False))
    target = tmp_path / "request.json"
    session.branch(None)
    picture = ImagePart(data=b"\x89PNG\r\n\x1a\n")
    session.append(UserMessage(content=("Look", picture, picture)))
    sessions.export(session.id, "openai", output=target)
    assert capsys.readouterr().err == "warning: the OpenAI wire sees no images: 2 left out of the request\n"
    assert "image" not in target.read_text()


def test_export_overwrites_nothing_unasked(command, session, tmp_path):
    path = tmp_path / "there.md"
    path.write_text("mine")
    command.refuse("sessions", "export", "last", "-o", str(path), code=2, says="--force overwrites it")
    assert path.read_text() == "mine"
    out(command, "export", "last", "-o", str(path), "--force")
    assert path.read_text().startswith("## system")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "nope"], "no session 'nope' in "),
        (["show", ""], "no session '' in "),
        (["show", "../../etc/passwd"], "no session"),
        (["show", "2"], "several sessions begin with 2: "),
        (["show", "last", "--entry", "nope"], "has no entry 'nope'"),
        (["show"], "ID"),
        (["rm", "nope", "--yes"], "no session 'nope' in "),
        (["export", "last", "--format", "klingon"], "klingon"),
        (["export", "last", "--output", "/none/x.md"], "cannot write /none/x.md: No such file"),
        (["export", "last", "--output", "/", "--force"], "cannot write /: Is a directory"),
        (["export", "last", "--entry", ""], "has no entry ''"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(command, session, store, arguments, says):
    store.create()
    session.append(UserMessage.text("so that it is the last"))
    command.refuse("sessions", *arguments, code=2, says=says)


def test_what_cannot_be_sent_is_one_line(command, session):
    session.append(UserMessage(content=({"kind": "smell", "text": "x"},)))
    command.refuse("sessions", "export", "last", "-f", "openai", code=2, says="'smell'")
    session.branch(None)
    session.append(RESULTS)
    command.refuse("sessions", "export", "last", "-f", "openai", code=2, says="answers no call")


def test_files_that_are_no_sessions(command, store):
    store.root.mkdir()
    (store.root / "a.jsonl").write_bytes(b"hello\n")
    (store.root / "b.jsonl").write_bytes(
        b'{"kind":"session","version":2,"id":"b","created":"2026-01-01T00:00:00Z"}\n'
    )
    assert "its first line is lost" in out(command, "list")
    command.refuse("sessions", "show", "a", code=2, says="a.jsonl is not a session")
    command.refuse("sessions", "show", "b", code=2, says="is a session of version 2")
    out(command, "rm", "a", "b", "--yes")
    assert not list(store.root.glob("*.jsonl"))


def test_home_of_nobody(command):
    command.refuse(
        "sessions", "list", code=2, says="~nosuchuser: no such home", LOCALAGENT_HOME="~nosuchuser"
    )


def test_help_has_examples_and_loads_nothing_heavy(command):
    import subprocess

    for name in ("list", "show", "rm", "export"):
        text = out(command, name, "--help")
        assert "Examples:" in text
        assert f"localagent sessions {name}" in text
    heavy = ("pydantic", "rich.table", "filelock", "platformdirs")
    code = f"import localagent.cli.app, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_a_summary_of_a_branch_says_of_which():
    assert tell(BranchSummaryMessage(content="x", branch="e7")).heading == "branch summary (of e7)"
    assert tell(BranchSummaryMessage(content="x")).heading == "branch summary"


# -- search and rename ----------------------------------------------------------------------------------


@pytest.fixture
def others(store):
    """Sessions beside the first, the last of them changed last."""
    trip, code = store.create(title="Trip"), store.create()
    trip.append(UserMessage.text("Where is the best bread in Paris?"))
    trip.append(AssistantMessage.text("x " * 300 + "Near the Gare du Nord.\nTry the RYE " + "y " * 300))
    code.append(UserMessage.text('Sort "words" in Python'))
    code.append_custom("note", {"secret": "rye"})
    return trip, code


def test_n8_a_search_finds_what_was_said_on_any_branch(command, session, others):
    trip, code = others
    done = command("sessions", "search", "rye", "paris")
    first, passage = done.stdout.decode().splitlines()
    assert first.startswith(f"{trip.id}  20")
    assert first.endswith("  Trip")
    assert "Try the RYE" in passage or "Paris" in passage
    assert len(passage) < 170
    for words, found in (
        (["TRIP"], [trip]),  # the title
        (["degrees"], [session]),  # a branch that was left
        (["about", "weather"], [session]),  # a summary
        (['"words"'], [code]),
        (["in"], [code, trip, session]),
    ):
        rows = json.loads(command("sessions", "search", *words, "--json").stdout)
        assert [row["id"] for row in rows] == [each.id for each in found], words


def test_n8_a_search_that_finds_nothing(command, others):
    for words in (["rye", "python"], ["secret"], [""]):
        done = command("sessions", "search", *words)
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr.decode().startswith("no session has")
    assert command("sessions", "search", "x", "--json").returncode == 0


def test_a_session_that_cannot_be_read_does_not_end_a_search(command, store, others):
    (store.root / "20200101-000000-abcd.jsonl").write_text("rye")
    assert command("sessions", "search", "rye").stdout.decode().startswith(others[0].id)


def test_n8_a_session_gets_another_title(command, store, session):
    first = store.list()[0].title
    done = command("sessions", "rename", session.id, "Rain", "in  Zürich")
    assert done.stdout.decode() == f"{session.id}: Rain in Zürich\n"
    assert store.list()[0].title == store.open(session.id).title == session.title == "Rain in Zürich"
    assert b"Rain in Z" in command("sessions", "list").stdout
    session.append(UserMessage.text("More."))  # whoever has it open goes on
    assert store.open(session.id).title == "Rain in Zürich"
    assert command("sessions", "rename", "last", "--forget").returncode == 0
    assert store.list()[0].title == first


def test_a_title_that_is_none(command, store, session):
    command.refuse("sessions", "rename", "last", code=2, says="either the new title or --forget")
    command.refuse("sessions", "rename", "last", "x", "--forget", code=2, says="either")
    command.refuse("sessions", "rename", "last", " ", code=2, says="the title is empty")
    command.refuse("sessions", "rename", "none", "x", code=2, says="no session 'none'")
    command.refuse("sessions", "rename", "last", os.fsdecode(b"\xff"), code=2, says="not UTF-8")


def test_a_removed_session_leaves_nothing(command, store, session):
    store.rename(session.id, "x" * 500)
    assert len(store.list()[0].title) == 200
    command("sessions", "rm", "last", "--yes")
    assert list(store.root.iterdir()) == []


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_w15_a_list_of_sessions_fits_the_terminal(command, store, session, columns):
    store.rename(session.id, "A title of a good many words that does not fit on a narrow line")
    child = pexpect.spawn(
        str(COMMAND), ["sessions", "list"], env={k: v for k, v in command.environment.items() if k != "COLUMNS"},
        dimensions=(24, columns), encoding="utf-8", timeout=60,
    )  # fmt: skip
    lines = re.sub(r"\x1b\[[\d;]*m", "", child.read()).splitlines()
    assert max(map(len, lines)) <= columns
    assert session.id in " ".join(lines)
    if columns == 40:
        assert "does not fit on a narrow line" in " ".join(" ".join(lines).split())  # not cut
