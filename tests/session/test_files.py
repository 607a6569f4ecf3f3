"""The files of sessions: torn, damaged, of other versions, removed, shared by processes, killed."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock
from pydantic import ValidationError

import localagent.session.file as session_file
from localagent.errors import InvalidMessage, SaveFailed, UnknownSession, UsageError
from localagent.messages import (
    AssistantMessage,
    FlushMessage,
    SystemMessage,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from localagent.session import Session, UnknownEntry
from tests.durable import Durable

ROOT = Path(__file__).parents[2]


@pytest.fixture
def session(tmp_path):
    session = Session.create(tmp_path / "sessions")
    session.append(SystemMessage.text("Be curt."))
    session.append(UserMessage.text("Hi"))
    session.append(AssistantMessage.text("Hello, Z\u00fcrich"))
    return session


def line(**fields):
    return json.dumps(fields).encode() + b"\n"


def entry(name, parent, text, **fields):
    message = {"role": "user", "content": [{"kind": "text", "text": text}]}
    time = "2026-01-01T00:00:00Z"
    return line(
        **{"id": name, "parent": parent, "timestamp": time, "kind": "message", "message": message} | fields
    )


HEADER = line(kind="session", version=1, id="s", created="2026-01-01T00:00:00Z")


def opened(tmp_path, *lines):
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"".join(lines))
    return Session.open(path)


def told(session, entry=None):
    return [message.text for message in session.context(entry)]


def test_a_session_cut_anywhere(session):
    whole, entries = session.file.read_bytes(), session.entries
    lines = whole.splitlines()
    for cut in range(len(whole) + 1):
        session.file.write_bytes(whole[:cut])
        rest = whole[:cut].rpartition(b"\n")[2]
        found = Session.open(session.file)
        complete = whole[:cut].count(b"\n") + (rest in lines)
        assert found.entries == entries[: max(0, complete - 1)]
        torn = [problem for problem in found.problems if "cut off" in problem.reason]
        assert len(torn) == (bool(rest) and rest not in lines)
        assert len(found.problems) == max(len(torn), complete == 0)
        if cut % 7 and cut < len(whole) - 9:
            continue  # appending waits for the disk: not at every byte
        fresh = found.append(UserMessage.text("next"))
        again = Session.open(session.file)
        assert again.entries == (*found.entries[:-1], again.entry(fresh)) == found.entries
        assert again.entry(fresh).parent == (entries[complete - 2].id if complete > 1 else None)
        assert len(again.problems) == len(found.problems)
        assert session.file.read_bytes().startswith(whole[:cut])


def test_an_entry_whose_parent_is_lost_is_a_beginning(tmp_path):
    session = opened(
        tmp_path, HEADER, entry("a", None, "1"), b"garbage\n", entry("c", "b", "3"), entry("d", "c", "4")
    )
    assert told(session) == ["3", "4"]
    assert [each.id for each in session.children(None)] == ["a", "c"]
    assert [(p.line, p.reason) for p in session.problems] == [
        (3, "entry: Invalid JSON: expected value at line 1 column 1"),
        (4, "its parent 'b' could not be read: kept as a new start"),
    ]
    session.branch("a")
    assert told(session) == ["1"]


def test_entries_of_another_time_keep_their_place(tmp_path):
    label = line(id="b", parent="a", kind="label", label="important", extra=[1])
    session = opened(tmp_path, HEADER, entry("a", None, "1"), label, entry("c", "b", "3"))
    assert isinstance(session.entry("b"), UnknownEntry)
    assert session.entry("b").model_dump() == json.loads(label)
    with pytest.raises(ValidationError, match="frozen"):
        session.entry("b").label = "another"
    assert (told(session), session.problems) == (["1", "3"], ())
    assert told(opened(tmp_path, HEADER, entry("a", None, "1"), label)) == ["1"], "also at the end"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"message": {"role": "wizard", "content": []}}, "'wizard' is not a role here"),
        ({"timestamp": "yesterday"}, "entry.message.timestamp"),
        ({"kind": "compaction"}, "entry.compaction"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_damaged_entry_keeps_its_place(tmp_path, fields, says):
    session = opened(
        tmp_path, HEADER, entry("a", None, "1"), entry("b", "a", "2", **fields), entry("c", "b", "3")
    )
    assert told(session) == ["1", "3"]
    (problem,) = session.problems
    assert problem.line == 3
    assert says in problem.reason
    assert problem.reason.endswith("kept only as a link in the tree")


CALLS = AssistantMessage(content=(ToolCallPart(id="c", name="f"),))
ANSWERS = ToolMessage.from_result(CALLS.tool_calls[0].result("42"))


def test_results_whose_calls_were_lost_are_left_out(tmp_path):
    """A damaged line must not make every later request fail, nor give a result to another call."""
    whole = [
        UserMessage.text("go"),
        CALLS,
        ANSWERS,
        UserMessage(content=(*ANSWERS.results, "and?")),
        UserMessage.text("well"),
    ]
    session = Session.create(tmp_path)
    for message in whole:
        session.append(message)
    lines = session.file.read_bytes().splitlines(keepends=True)
    for damage in (lines[2].replace(b'"assistant"', b'"wizard"'), b"\0" * 40 + b"\n"):
        session.file.write_bytes(b"".join([*lines[:2], damage, *lines[3:]]))
        again = Session.open(session.file)
        assert again.problems
        assert [message.text for message in again.context()][-2:] == ["and?", "well"]
        assert not any(isinstance(message, ToolMessage) for message in again.context())


def test_a_flush_between_call_and_result(session):
    session.append(CALLS)
    session.flush()
    session.append(ANSWERS)
    session.append(UserMessage.text("well"))
    assert told(session) == ["well"]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (line(id="b", kind="message"), "parent"),
        (line(parent=None, kind="message"), "id"),
        (line(id=3, parent=None, kind="label"), "id"),
        (entry("a", None, "again"), "the id 'a' is taken"),
        (HEADER, "a second session header"),
        (b"\0" * 100 + b"\n", "100 NUL bytes"),
        (b'{"a":"\xff"}\n', "not UTF-8"),
        (b"[]\n", "object"),
    ],
)
def test_a_bad_line_is_told_and_passed_over(tmp_path, bad, says):
    session = opened(tmp_path, HEADER, entry("a", None, "1"), bad, entry("c", "a", "3"))
    assert told(session) == ["1", "3"]
    (problem,) = session.problems
    assert problem.line == 3
    assert says in problem.reason


def test_entries_that_name_each_other_as_parents_are_cut(tmp_path):
    session = opened(tmp_path, HEADER, entry("a", "b", "1"), entry("b", "a", "2"), entry("c", "c", "3"))
    assert told(session, "b") == ["1", "2"]
    assert told(session, "c") == ["3"]
    assert [problem.line for problem in session.problems] == [2, 4]


@pytest.mark.parametrize("first_kept", ["gone", "later", "flushed"])
def test_a_compaction_that_keeps_from_nowhere_takes_nothing_away(tmp_path, first_kept):
    compaction = entry("k", "b", "", kind="compaction", summary="S", first_kept=first_kept)
    body = json.loads(compaction)
    del body["message"]
    flush = entry("f", "flushed", "", message={"role": "flush", "content": []})
    session = opened(
        tmp_path, HEADER, entry("flushed", None, "0"), flush, entry("a", "f", "1"), entry("b", "a", "2"),
        line(**body), entry("later", "k", "3"),
    )  # fmt: skip
    assert session.problems == ()
    expected = ["S", "3"] if first_kept == "later" else ["S", "1", "2", "3"]
    assert told(session)[-1] == "3"
    assert set(expected) <= set(told(session))
    assert "0" not in told(session)


@pytest.mark.parametrize(
    "header", [b"", b"garbage\n", HEADER[:30] + b"\n", b"\0\0\0\n", line(kind="session", version=1)]
)
def test_a_lost_header_loses_nothing_else(tmp_path, header):
    session = opened(tmp_path, header, entry("a", None, "1"), entry("b", "a", "2"))
    assert told(session) == ["1", "2"]
    assert (session.header, session.title, session.id) == (None, "1", "s")
    (problem,) = session.problems
    assert problem.line == 1
    session.append(UserMessage.text("3"))
    assert told(Session.open(session.file)) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        (b"hello\n", UnknownSession, "is not a session"),
        (b"\x89PNG\r\n\x1a\n\0\0\n\xff", UnknownSession, "is not a session"),
        (b"[1, 2]\n{}\n", UnknownSession, "is not a session"),
        (b'{"role":"user","content":[]}\n', UnknownSession, "is not a session"),
        (b"\0" * 4096, UnknownSession, "is not a session"),
        (HEADER.replace(b'"version": 1', b'"version": 2'), UsageError, "of version 2, but this localagent reads version 1"),
        (HEADER.replace(b'"version": 1', b'"version": "x"'), UsageError, "of version 'x'"),
        (None, UnknownSession, "no session s in "),
    ],
)  # fmt: skip
def test_what_is_no_session(tmp_path, content, error, says):
    path = tmp_path / "s.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=re.escape(says)) as raised:
        Session.open(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("path", ["folder", "file/s.jsonl", "a\0b"])
def test_a_path_that_can_be_no_session_is_refused(tmp_path, path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError):
        Session.open(tmp_path / path)


def test_a_later_header_may_have_more_fields(tmp_path):
    session = opened(tmp_path, HEADER.replace(b"}", b', "colour": "red", "title": "T"}'))
    assert (session.title, session.problems) == ("T", ())


def test_a_removed_session_stays_removed(session):
    session.file.unlink()
    Path(f"{session.file}.lock").unlink(missing_ok=True)
    calls = [
        session.flush,
        session.refresh,
        lambda: session.append(UserMessage.text("x")),
        lambda: session.branch(None, "s"),
    ]
    for call in calls:
        with pytest.raises(UnknownSession, match=f"no session {session.id} in "):
            call()
    assert list(session.file.parent.iterdir()) == []


def test_another_session_in_the_same_inode_is_noticed(session):
    """File systems use inodes again at once, so that the number alone proves nothing."""
    other = Session.create(session.file.parent)
    for _ in range(9):
        other.append(UserMessage.text("other"))
    content = other.file.read_bytes()
    assert len(content) > session.file.stat().st_size
    session.file.write_bytes(content)
    for call in (session.flush, session.refresh):
        with pytest.raises(UnknownSession, match="was replaced"):
            call()
    assert session.file.read_bytes() == content


def test_one_lock_whichever_link_leads_to_it(session, tmp_path, monkeypatch):
    link = tmp_path / "link.jsonl"
    link.symlink_to(session.file)
    monkeypatch.setattr(session_file, "PATIENCE", 0.05)
    with FileLock(f"{session.file}.lock"), pytest.raises(SaveFailed, match="another process"):
        Session.open(link).flush()


def test_what_was_changed_after_validation_is_refused(session):
    call = ToolCallPart(id="c", name="f", arguments={"a": 1})
    odd = call.model_copy(update={"arguments": {"a": object()}})
    message = AssistantMessage(content=(call,)).model_copy(update={"content": (odd,)})
    before = session.file.read_bytes()
    with pytest.raises(InvalidMessage, match="entry: ") as raised:
        session.append(message)
    assert "\n" not in str(raised.value)
    assert session.file.read_bytes() == before


def test_a_title_is_one_line(tmp_path):
    header = HEADER.replace(b"}", b', "title": "a\\nb"}')
    assert opened(tmp_path, header).title == "a b"


@pytest.mark.parametrize("how", ["replaced", "shortened"])
def test_another_file_in_its_place_is_not_written_to(session, how):
    before = session.file.read_bytes()
    if how == "replaced":
        other = session.file.with_name("other")
        other.write_bytes(before)
        other.replace(session.file)
    else:
        before = before[:200]
        session.file.write_bytes(before)
    for call in (session.flush, session.refresh):
        with pytest.raises(UnknownSession, match="was replaced by another file: open it again"):
            call()
    assert session.file.read_bytes() == before


def test_a_name_that_is_taken_is_not_taken_again(tmp_path, monkeypatch):
    tokens = iter(["aaaa", "aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr(session_file.secrets, "token_hex", lambda _: next(tokens))
    first = Session.create(tmp_path, title="first")
    second = first.file.with_name(first.file.name.replace("aaaa", "bbbb"))
    if Session.create(tmp_path, title="second").file != second:
        pytest.skip("the clock ticked between the two")
    assert Session.open(first.file).title == "first"


def test_a_full_disk_leaves_the_session_as_it_was(session):
    before, head = session.file.read_bytes(), session.head
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
    try:
        with pytest.raises(SaveFailed, match="cannot write to"):
            session.append(UserMessage.text("x" * 5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (session.file.read_bytes(), session.head, len(session.entries)) == (before, head, 3)
    session.append(UserMessage.text("y"))
    assert Session.open(session.file).problems == ()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    for folder in ("file", "file/x"):
        with pytest.raises(SaveFailed, match="cannot write to "):
            Session.create(tmp_path / folder)


def test_a_stuck_process_is_told_of(session, monkeypatch):
    monkeypatch.setattr(session_file, "PATIENCE", 0.05)
    with FileLock(f"{session.file}.lock"), pytest.raises(SaveFailed, match="another process has held it"):
        session.append(UserMessage.text("x"))
    session.append(UserMessage.text("x"))


def test_two_that_have_a_session_open(session):
    other = Session.open(session.file)
    mine = session.append(UserMessage.text("mine"))
    theirs = other.append(UserMessage.text("theirs"))
    assert (session.head, other.head) == (mine, theirs), "each has its own head"
    assert session.entry(mine).parent == other.entry(theirs).parent
    assert [each.id for each in session.refresh()] == [theirs]
    assert session.head == mine
    assert session.refresh() == ()
    assert session.entries == other.entries == Session.open(session.file).entries
    assert {each.id for each in session.leaves} == {mine, theirs}
    session.branch(theirs)
    assert told(session)[-1] == "theirs"


WRITER = """
import sys
from localagent.messages import UserMessage
from localagent.session import Session
session = Session.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for number in range(100):
    session.append(UserMessage.text(f"{number} " + "x" * (number % 5 * 3000), agent_name=sys.argv[2]))
"""


def test_processes_append_to_one_session_at_once(session):
    names = ["a", "b", "c"]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, session.file, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for name in names
    ]
    for writer in writers:
        assert writer.stdout.readline() == b"ready\n"
    for writer in writers:
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    found = Session.open(session.file)
    assert found.problems == ()
    assert len(found.entries) == 3 + 300
    assert all(json.loads(each) for each in session.file.read_bytes().splitlines())
    for name in names:
        own = [
            each
            for each in found.entries
            if getattr(each, "message", None) and each.message.agent_name == name
        ]
        assert [int(each.message.text.split()[0]) for each in own] == list(range(100))
        assert [each.parent for each in own] == [session.head, *(each.id for each in own[:-1])]
    order = [each.message.agent_name for each in found.entries[3:]]
    assert order != sorted(order), "they did write at the same time"


def test_threads_that_share_a_file(session):
    def work() -> None:
        own = Session.open(session.file)
        for _ in range(20):
            own.append(UserMessage.text("x"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Session.open(session.file)
    assert (len(found.entries), found.problems) == (3 + 80, ())


def test_kills_at_random_moments(tmp_path):
    """Real writers, two at a time, real SIGKILLs: each one's entries are a prefix, and all is told."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.killing", "session", tmp_path, "120", str(time.time_ns())],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["kills"] == 120


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which file it is")
def test_what_was_said_is_on_the_disk_when_append_returns(tmp_path, monkeypatch):
    """And the name of a new session is: else a power cut would take all of it."""
    durable = Durable(monkeypatch, tmp_path)
    session = Session.create(tmp_path / "sessions")
    name = f"sessions/{session.file.name}"
    assert durable.done == [("sync", name), ("sync", "sessions")]
    session.append(UserMessage.text("Hi"))
    assert durable.done[2:] == [("sync", name)]


@pytest.mark.parametrize(
    "change",
    [session_file.remove_file, lambda path: session_file.rename_file(path, "Trip")],
    ids=["remove", "rename"],
)
def test_a_session_whose_folder_is_not_there_is_no_session(tmp_path, change):
    path = tmp_path / "none" / "x.jsonl"
    with pytest.raises(UnknownSession, match=re.escape(f"no session in {path}")):
        change(path)
    assert not path.parent.exists()


def test_the_system_s_reasons_are_told(session, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(session_file, "open_lines", refused)
        with pytest.raises(SaveFailed, match=r"^cannot write to .* \(Permission denied\): "):
            session.append(UserMessage.text("x"))
        with pytest.raises(SaveFailed, match=r"^cannot write to .* \(Permission denied\): "):
            Session.create(session.file.parent)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refused)
        with pytest.raises(SaveFailed, match=r"^cannot write to .* \(Permission denied\): "):
            session_file.remove_file(session.file)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refused)
        with pytest.raises(UsageError, match=f"^cannot read {session.file}: Permission denied$"):
            Session.open(session.file)
    assert len(Session.open(session.file).entries) == 3


def test_a_session_that_goes_while_somebody_waits_for_it(session, monkeypatch):
    def gone(*_, **__):
        raise FileNotFoundError

    with monkeypatch.context() as patched:
        patched.setattr(session_file, "open_lines", gone)
        with pytest.raises(UnknownSession) as refused:
            session.append(UserMessage.text("x"))
    message = f"no session {session.id} in {session.file.parent}"
    assert str(refused.value) == message
    session.file.unlink()
    for call in (session.refresh, lambda: Session.open(session.file), lambda: session.append(FlushMessage())):
        with pytest.raises(UnknownSession) as refused:
            call()
        assert str(refused.value) == message


def test_a_first_line_that_cannot_be_written_leaves_no_file(tmp_path, monkeypatch):
    def full(*_, **__):
        raise SaveFailed("no room")

    monkeypatch.setattr(session_file, "append_line", full)
    with pytest.raises(SaveFailed, match="no room"):
        Session.create(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_id_that_is_taken_is_not_taken_again_by_an_entry(session, monkeypatch):
    ids = iter([session.head, session.head, "f00dcafe"])
    monkeypatch.setattr("localagent.session.session.secrets.token_hex", lambda size: next(ids))
    assert session.append(UserMessage.text("x")) == session.head == "f00dcafe"
