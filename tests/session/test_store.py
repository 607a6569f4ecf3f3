"""The folder of sessions lists what is there, finds by prefix, and refuses what can be no id."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import localagent.session.store
from localagent.errors import LocalAgentError, SaveFailed, UnknownSession, UsageError
from localagent.messages import AssistantMessage, ImagePart, SystemMessage, UserMessage
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


def test_a_title_given_later_goes_before_the_first_and_can_be_taken_back(store):
    session = store.create(title="First")
    session.append(UserMessage.text("What?"))
    before = session.file.read_bytes()
    title = session.file.with_name(f"{session.file.name}.title")
    assert store.rename(session.id[:-1], "  Trip\nto\tRome ") == session.file
    assert {each.stat().st_mode & 0o777 for each in store.root.iterdir()} == {0o600}
    assert session.title == store.open(session.id).title == store.list()[0].title == "Trip to Rome"
    assert title.read_text() == "Trip to Rome\n"
    assert store.rename(session.file, "y" * 1000) == session.file
    assert session.title == store.list()[0].title == "y" * 197 + "..."
    assert store.rename(session.file, None) == session.file
    assert session.title == store.list()[0].title == "First"
    assert not title.exists()
    store.rename(session.file, None)
    assert session.file.read_bytes() == before, "lines once written are never changed"
    assert sorted(path.name for path in store.root.iterdir() if "lock" not in path.name) == [
        session.file.name
    ]


def test_titles_that_are_none(store):
    session = store.create(title="First")
    for title in ("", " \n "):
        with pytest.raises(UsageError, match=r"^the title is empty$"):
            store.rename(session.id, title)
    with pytest.raises(SaveFailed, match="surrogates"):
        store.rename(session.id, "\ud800")
    with pytest.raises(UnknownSession):
        store.rename("nothing", "x")
    title = session.file.with_name(f"{session.file.name}.title")
    for written in (b"", b" \n", b"\xff"):
        title.write_bytes(written)
        assert session.title == ("\ufffd" if written == b"\xff" else "First")
    store.remove(session.id)
    assert not title.exists()
    with pytest.raises(UnknownSession, match=f"^no session in {session.file}$"):
        store.rename(session.file, "x")


def test_where_words_were_said(store):
    first, second, third = (store.create(title=title) for title in ("Rome", None, None))
    for age, session in enumerate((first, second, third)):
        session.append(UserMessage.text(f"question {age}"))
    start = second.append(UserMessage.text("Where is the Straße?"))
    second.append(AssistantMessage.text("Behind the park."))
    second.branch(start, summary="They spoke of a bridge.")
    third.append_custom("note", {"a": "park"}, content="a park that no model is told of")
    kept = third.append(UserMessage.text("kept"))
    third.compact("An old tower.", first_kept=kept)
    put(store, "broken", b"park", 9)
    for age, session in enumerate((first, second, third)):
        os.utime(session.file, (time.time() - age,) * 2)

    def found(text: str) -> list[tuple[str, str]]:
        return [(each.info.id, each.passage) for each in store.search(text)]

    assert found("rome") == [(first.id, "Rome")]
    assert found("STRASSE") == [(second.id, "Where is the Straße?")]
    assert found("park") == [(second.id, "Behind the park.")]
    assert found("Bridge") == [(second.id, "They spoke of a bridge.")]
    assert found("tower") == [(third.id, "An old tower.")]
    assert found("question") == [
        (each.id, f"question {age}") for age, each in enumerate((first, second, third))
    ]
    assert found("question park") == [(second.id, "Behind the park.")], "of two passages the later one"
    assert found("where is park") == [(second.id, "Where is the Straße?")], "the one that has most of them"
    assert found("rome park") == found("nothing") == found(" ") == []


@pytest.mark.parametrize(
    ("text", "passage"),
    [
        ("needle " + "a" * 153, "needle " + "a" * 153),
        ("needle " + "a" * 154, "needle " + "a" * 150 + "..."),
        ("b" * 52 + " needle", "b" * 52 + " needle"),
        ("b" * 53 + " needle", "..." + "b" * 52 + " needle"),
        ("b" * 52 + "\n needle " + "a" * 200, "b" * 52 + " needle " + "a" * 97 + "..."),
        ("c" * 99 + " Needle eye " + "a" * 200, "..." + "c" * 52 + " Needle eye " + "a" * 93 + "..."),
    ],
)
def test_how_much_is_shown_around_the_words(store, text, passage):
    store.create().append(UserMessage.text(text))
    assert [found.passage for found in store.search("needle")] == [passage]


def test_the_first_of_the_words_is_the_place(store):
    store.create().append(UserMessage.text("x" * 60 + " one " + "y" * 300 + " two"))
    (found,) = store.search("two one")
    assert found.passage.startswith("..." + "x" * 52 + " one yyy")


def test_a_session_that_no_file_keeps_can_be_kept_later(store):
    talk = Session.in_memory()
    assert (talk.title, talk.head, talk.entries, talk.problems) == (None, None, (), ())
    first = talk.append(UserMessage.text("Hello."))
    talk.append(AssistantMessage.text("Hi."))
    talk.branch(first)
    assert (talk.title, talk.head) == ("Hello.", first)
    assert str(talk.file) == os.devnull
    assert not store.root.exists()
    kept = store.create(title="Kept")
    kept.copy_from(talk)
    assert (kept.entries, kept.head, kept.title) == (talk.entries, first, "Kept")
    again = store.open(kept.id)
    assert (again.entries, again.problems) == (talk.entries, ())
    with pytest.raises(UsageError, match=f"^session {kept.id} has entries of its own: copy into a new one$"):
        kept.copy_from(talk)
