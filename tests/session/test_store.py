"""The folder of sessions lists what is there, finds by prefix, and refuses what can be no id."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import localagent.session.store
from localagent.errors import LocalAgentError, UnknownSession, UsageError
from localagent.messages import ImagePart, SystemMessage, UserMessage
from localagent.session import Session, SessionStore, glance
from localagent.session.entries import load_line
from localagent.session.store import GLANCE


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    return SessionStore()


def put(store, name, content=b"", age=0):
    store.root.mkdir(exist_ok=True)
    path = store.root / f"{name}.jsonl"
    path.write_bytes(content)
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def test_an_empty_store(store, tmp_path):
    assert store.root == tmp_path / "sessions"
    assert store.list() == []
    assert not store.root.exists(), "looking makes nothing"
    for name in ("last", "2026"):
        with pytest.raises(UnknownSession):
            store.find(name)


def test_made_listed_found_removed(store):
    first = store.create()
    first.append(SystemMessage.text("Be curt."))
    first.append(UserMessage.text("What is\nthis?"))
    second = store.create(title="Two")
    os.utime(first.file, (time.time() - 60,) * 2)
    infos = store.list()
    assert [(info.id, info.title, info.problem) for info in infos] == [
        (second.id, "Two", None), (first.id, "What is this?", None),
    ]  # fmt: skip
    assert (infos[1].created, infos[1].size) == (first.header.created, first.file.stat().st_size)
    first.append(UserMessage.text("more"))
    assert store.list()[0].id == first.id, "the last changed comes first"
    assert store.find("last") == store.find(first.id) == first.file
    assert store.open(first.id).entries == first.entries
    assert store.remove(first.id) == first.file
    assert list(store.root.iterdir()) == [second.file], "no lock is left"
    with pytest.raises(UnknownSession, match=r"no session .* in "):
        store.remove(first.id)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("20260101-1", "20260101-100000-aaaa"),
        ("20260102-100000-aaaa", "20260102-100000-aaaa"),
        ("20260103", "20260103"),
    ],
)
def test_the_beginning_of_an_id_is_enough(store, name, found):
    for each in (
        "x-20260101-100000",
        "20260101-100000-aaaa",
        "20260102-100000-aaaa",
        "20260102-100000-aaaab",
        "20260103",
        "20260103-1",
    ):
        put(store, each)
    assert store.find(name) == store.root / f"{found}.jsonl"


@pytest.mark.parametrize(
    "name", ["", "x", "..", "../s", "/etc/passwd", "a\0b", "\ud800", "20260101-1000*", "s" * 9999]
)
def test_a_malformed_id_is_refused_in_one_line(store, name):
    put(store, "20260101-100000-aaaa")
    with pytest.raises(UnknownSession, match=r"no session .* see `localagent sessions list`") as raised:
        store.open(name)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_several_candidates_are_named(store):
    for number in range(7):
        put(store, f"2026-{number}")
    with pytest.raises(UsageError, match=r"several sessions begin with 2026: 2026-0, .*2026-4 and 2 more"):
        store.find("2026")


def test_broken_files_do_not_keep_others_from_being_listed(store):
    good = store.create(title="good")
    put(store, "empty", b"", 1)
    put(store, "binary", b"\xff\0\n" * 99, 2)
    put(store, "newer", b'{"kind":"session","version":9,"id":"x","created":"2026-01-01T00:00:00Z"}\n', 3)
    put(store, "headless", b'x\n{"id":"a","parent":null,"timestamp":"2026-01-01T00:00:00Z","kind":"message",'
        b'"message":{"role":"user","content":[{"kind":"text","text":"Hi"}]}}\n', 4)  # fmt: skip
    put(store, "forever", b"[" * 9_000_000, 5)
    (store.root / "folder.jsonl").mkdir()
    (store.root / "gone.jsonl").symlink_to("nowhere")
    (store.root / "note.txt").touch()
    lost = "its first line is lost"
    assert [(info.id, info.title, info.problem) for info in store.list()] == [
        (good.id, "good", None),
        ("empty", None, lost),
        ("binary", None, lost),
        ("newer", None, "of another version of localagent"),
        ("headless", "Hi", lost),
        ("forever", None, lost),
    ]


def test_a_session_may_go_while_we_look(store, monkeypatch):
    first, second = store.create(), store.create()

    def glance_too_late(path):
        first.file.unlink(missing_ok=True)
        return glance(path)

    monkeypatch.setattr(localagent.session.store, "glance", glance_too_late)
    assert [info.id for info in store.list()] == [second.id]


def test_links_that_lead_nowhere_hide_nothing(store):
    ids = {store.create().id for _ in range(3)}
    for name, target in [("a", "/etc/passwd/x"), ("b", "b.jsonl"), ("c", "nothing")]:
        (store.root / f"{name}.jsonl").symlink_to(target)
    assert {info.id for info in store.list()} == ids
    assert store.find("last").stem in ids


def test_times_that_python_does_not_know(store, monkeypatch):
    session = store.create()
    for moment in (253_402_300_800, -1e18, 1e18):
        state = os.stat_result((*os.stat(session.file)[:8], moment, 0))  # noqa: PTH116
        monkeypatch.setattr(Path, "stat", lambda self, state=state, **_: state)
        assert glance(session.file).changed.year in (1970, 3000)


def test_a_path_that_is_none():
    for call in (SessionStore("a\0b").list, SessionStore("a\0b").create):
        with pytest.raises(LocalAgentError, match="null byte") as raised:
            call()
        assert "\0" not in str(raised.value)


def test_a_list_reads_only_beginnings(store, monkeypatch):
    big = store.create()
    big.append(UserMessage(content=(ImagePart(data=os.urandom(3_000_000)),)))
    big.append(UserMessage.text("after the picture"))
    for number in range(300):
        (store.root / f"2026{number}.jsonl").hardlink_to(big.file)
    read: list[int] = []
    monkeypatch.setattr(
        localagent.session.store, "load_line", lambda line: read.append(len(line)) or load_line(line)
    )
    infos = store.list()
    assert 0 < sum(read) <= 301 * GLANCE
    assert len(infos) == 301
    assert {info.title for info in infos} == {None}
    assert Session.open(big.file).title == "after the picture"


def test_the_folder_of_sessions_follows_localagent_home(monkeypatch, tmp_path):
    monkeypatch.setenv("LOCALAGENT_HOME", "~nosuchuser")
    with pytest.raises(UsageError, match="LOCALAGENT_HOME=~nosuchuser: no such home folder"):
        SessionStore()
    monkeypatch.setenv("LOCALAGENT_HOME", "~/x")
    assert SessionStore().root == Path.home() / "x" / "sessions"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCALAGENT_HOME", "here")
    assert SessionStore().root == tmp_path / "here" / "sessions"
    monkeypatch.delenv("LOCALAGENT_HOME")
    assert SessionStore().root.parts[-2:] == ("localagent", "sessions")


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "sessions").touch()
    assert SessionStore(tmp_path / "sessions").list() == []
