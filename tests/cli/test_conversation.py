"""What `localagent chat` keeps is what was said, whether it is resumed, compacted or interrupted; without a model."""

from __future__ import annotations

import pytest

from localagent.cli.talk.conversation import Conversation
from localagent.errors import ConversationBusy, UnknownSession, UsageError
from localagent.messages import (
    AssistantMessage,
    CustomMessage,
    FlushMessage,
    RescueMessage,
    SystemMessage,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from localagent.session import SessionStore


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    return SessionStore()


@pytest.fixture
def said():
    return []


def talk(said, *words, system=None, resume=None, save=True):
    conversation = Conversation.open(said.append, system=system, resume=resume, save=save)
    for word in words:
        talk_once(conversation, UserMessage.text(word), AssistantMessage.text(word.upper()))
    return conversation


def talk_once(conversation, *messages):
    for message in messages:
        conversation.append(message)


def texts(messages):
    return [f"{message.role[0]}:{message.text}" for message in messages]


def test_every_turn_is_kept_at_once(store, said):
    conversation = talk(said, system="Be curt.")
    assert texts(conversation.messages()) == ["s:Be curt."]
    assert not store.root.exists(), "nothing is made before something is said"
    for count, word in enumerate(("hi", "and"), 1):
        talk_once(conversation, UserMessage.text(word), AssistantMessage.text(word.upper()))
        session = store.open("last")
        assert session.context() == conversation.messages()
        assert len(session.entries) == 1 + 2 * count
    assert said == [f"(saved in {session.file}; continue with: localagent chat --resume {session.id})"]


def test_what_was_not_answered_leaves_no_trace(store, said):
    conversation = talk(said, "hi")
    conversation.append(UserMessage.text("never mind"))
    assert texts(conversation.messages()) == ["u:hi", "a:HI", "u:never mind"]
    conversation.forget_unanswered()
    assert texts(conversation.messages()) == texts(store.open("last").context()) == ["u:hi", "a:HI"]


@pytest.mark.parametrize("save", [True, False])
def test_a_compaction_shortens_the_context_and_keeps_the_session(store, said, save):
    conversation = talk(said, "hi", "and", system="Be curt.", save=save)
    conversation.append(UserMessage.text("now"))
    conversation.compact("Greetings.", 3, 99)
    talk_once(conversation, AssistantMessage.text("NOW"))
    expected = ["s:Be curt.", "c:Greetings.", "u:and", "a:AND", "u:now", "a:NOW"]
    assert texts(conversation.messages()) == expected
    if save:
        session = store.open("last")
        assert texts(session.context()) == expected
        assert len(session.entries) == 8, "everything is still there"


@pytest.mark.parametrize("save", [True, False])
def test_a_summary_does_not_keep_what_was_not_answered(store, said, save):
    conversation = talk(said, "hi", "and", save=save)
    conversation.append(UserMessage.text("never mind"))
    conversation.compact("Greetings.", 1)
    assert texts(conversation.messages()) == ["c:Greetings.", "u:never mind"]
    conversation.forget_unanswered()
    talk_once(conversation, UserMessage.text("you"), AssistantMessage.text("me"))
    expected = ["c:Greetings.", "u:you", "a:me"]
    assert texts(conversation.messages()) == expected
    if save:
        assert texts(store.open("last").context()) == expected


def test_compaction_of_what_is_not_to_be_kept(store, said):
    talk(said, "hi", "and")
    before = store.open("last").entries
    conversation = talk(said, "secret", resume="last", save=False)
    conversation.compact("Summary.", 2)
    assert texts(conversation.messages()) == ["c:Summary.", "u:secret", "a:SECRET"]
    assert store.open("last").entries == before


def test_clear_begins_anew_in_the_session_too(store, said):
    conversation = talk(said, "hi", system="Be curt.")
    conversation.restart("Be curt.")
    assert texts(store.open("last").context()) == ["s:Be curt."]
    conversation.restart("Be kind.")
    talk_once(conversation, UserMessage.text("you"), AssistantMessage.text("me"))
    expected = ["s:Be kind.", "u:you", "a:me"]
    assert texts(store.open("last").context()) == texts(conversation.messages()) == expected
    assert (len(store.list()), len(said)) == (1, 1)
    resumed = talk(said, resume="last")
    assert (texts(resumed.messages()), resumed.system) == (expected, "Be kind.")
    resumed.restart(None)
    assert store.open("last").context() == []
    assert talk(said, resume="last").system is None


def test_clear_before_anything_was_said(store, said):
    conversation = talk(said)
    conversation.restart("Be kind.")
    assert not store.root.exists()
    talk_once(conversation, UserMessage.text("you"), AssistantMessage.text("me"))
    assert texts(store.open("last").context()) == ["s:Be kind.", "u:you", "a:me"]


def test_a_resumed_conversation_goes_on_in_its_session(store, said):
    talk(said, "hi")
    said.clear()
    session = store.open("last")
    talk(said, "more", resume=session.id[:8])
    assert said == [f"(continuing {session.id}: hi)"]
    again = store.open("last")
    assert texts(again.context()) == ["u:hi", "a:HI", "u:more", "a:MORE"]
    assert (again.entries[:2], again.problems) == (session.entries, ())


def test_an_unsaved_conversation_writes_nothing(store, said):
    talk(said, "hi", save=False).restart("x")
    assert not store.root.exists()
    talk(said, "hi")
    before = store.open("last").entries
    conversation = talk(said, "more", resume="last", save=False)
    assert texts(conversation.messages()) == ["u:hi", "a:HI", "u:more", "a:MORE"]
    conversation.restart(None)
    assert store.open("last").entries == before


def test_words_without_an_answer_are_not_sent(store, said):
    session = store.create()
    for message in (
        UserMessage.text("hi"),
        AssistantMessage.text("HI"),
        UserMessage.text("are"),
        UserMessage.text("you"),
    ):
        session.append(message)
    talk(said, "more", resume="last")
    assert "your last message in it has no answer" in said[1]
    session.refresh()
    assert texts(store.open("last").context()) == ["u:hi", "a:HI", "u:more", "a:MORE"]
    assert [leaf.message.text for leaf in session.leaves] == ["you", "MORE"], "they are still there"


@pytest.mark.parametrize("last", [RescueMessage.text("Go on."), CustomMessage(custom_type="note")])
def test_what_follows_words_without_an_answer_goes_with_them(store, said, last):
    session = store.create()
    for message in (UserMessage.text("hi"), AssistantMessage.text("HI"), UserMessage.text("you"), last):
        session.append(message)
    talk(said, "more", resume="last")
    assert texts(store.open("last").context()) == ["u:hi", "a:HI", "u:more", "a:MORE"]


@pytest.mark.parametrize("kind", [UserMessage, ToolMessage])
def test_results_are_no_words_without_an_answer(store, said, kind):
    call = ToolCallPart(id="c", name="f")
    session = store.create()
    for message in (
        UserMessage.text("go"),
        AssistantMessage(content=(call,)),
        kind(content=(call.result("42"),)),
    ):
        session.append(message)
    conversation = talk(said, resume="last")
    assert len(conversation.messages()) == 3
    assert not any("no answer" in line for line in said)


def test_only_words_without_an_answer(store, said):
    store.create().append(UserMessage.text("hi"))
    conversation = talk(said, resume="last")
    assert conversation.messages() == []
    conversation.restart("Be kind.")
    talk_once(conversation, UserMessage.text("you"), AssistantMessage.text("me"))
    assert texts(store.open("last").context()) == ["s:Be kind.", "u:you", "a:me"]


def test_a_session_of_an_agent(store, said):
    session = store.create()
    session.append(UserMessage.text("gone"))
    session.append(FlushMessage())
    session.append(SystemMessage.text("One."))
    session.append(SystemMessage.text("Two."))
    kept = session.append(UserMessage.text("hi"))
    session.append(AssistantMessage.text("HI"))
    session.compact("Greetings.", first_kept=kept)
    conversation = talk(said, "more", resume="last")
    assert conversation.system == "One.\n\nTwo."
    expected = ["s:One.", "s:Two.", "c:Greetings.", "u:hi", "a:HI", "u:more", "a:MORE"]
    assert texts(conversation.messages()) == texts(store.open("last").context()) == expected


def test_a_damaged_session(store, said):
    talk(said, "hi")
    session = store.open("last")
    with session.file.open("ab") as file:
        file.write(b"garbage\n{")
    said.clear()
    talk(said, "more", resume="last")
    assert said[0] == f"(2 lines of {session.id} could not be read: see `localagent sessions show`)"
    assert texts(store.open("last").context()) == ["u:hi", "a:HI", "u:more", "a:MORE"]


def test_what_is_said_of_a_session_that_is_gone_on_with(store, said):
    session = store.create()
    session.append(UserMessage.text("hi"))
    with session.file.open("ab") as file:
        file.write(b"garbage\n")
    conversation = talk(said, resume="last")
    assert said == [
        f"(1 line of {session.id} could not be read: see `localagent sessions show`)",
        f"(continuing {session.id}: hi)",
        "(your last message in it has no answer: it stays in the session and is not sent)",
    ]
    assert conversation.where == str(session.file)
    untitled = store.create()
    said.clear()
    talk(said, resume=untitled.id)
    assert said == [f"(continuing {untitled.id}: nothing said yet)"]
    assert talk(said, resume="last", save=False).where is None


def test_where_a_conversation_is_saved_is_said_once(store, said):
    conversation = talk(said)
    assert conversation.where is None
    talk_once(conversation, UserMessage.text("hi"), AssistantMessage.text("HI"))
    conversation.save()
    session = store.open("last")
    assert said == [f"(saved in {session.file}; continue with: localagent chat --resume {session.id})"]
    assert conversation.where == str(session.file)


def test_settings_are_recorded_when_they_change(store, said):
    def recorded_in(session):
        return [
            entry.message.payload for entry in session.entries if isinstance(entry.message, CustomMessage)
        ]

    conversation = talk(said)
    for settings, word in (({"a": 1}, "one"), ({"a": 1}, "two"), ({"a": 2}, "three")):
        conversation.settings = settings
        talk_once(conversation, UserMessage.text(word), AssistantMessage.text(word))
    assert recorded_in(store.open("last")) == [{"a": 1}, {"a": 2}]
    again = talk(said, resume="last")
    assert again.settings == {"a": 2}
    talk_once(again, UserMessage.text("x"), AssistantMessage.text("y"))
    assert len(recorded_in(store.open("last"))) == 2


def test_a_removed_session_is_said_once(store, said):
    conversation = talk(said, "hi")
    store.remove("last")
    for word in ("more", "again"):
        talk_once(conversation, UserMessage.text(word), AssistantMessage.text(word.upper()))
    conversation.restart("x")
    (complaint,) = said[1:]
    assert complaint.startswith("localagent: no session ")
    assert complaint.endswith("; this conversation goes on and is no longer saved")
    assert "\n" not in complaint
    assert list(store.root.iterdir()) == []
    assert texts(conversation.messages()) == ["s:x"]


def test_a_place_that_cannot_be_written_is_said_once(store, said):
    store.root.touch()
    conversation = talk(said, "hi", "more")
    (complaint,) = said
    assert complaint.startswith(f"localagent: cannot write to {store.root}")
    assert len(conversation.messages()) == 4


def test_what_cannot_be_resumed(store, said):
    with pytest.raises(UnknownSession, match="there are no sessions in "):
        talk(said, resume="last")
    with pytest.raises(UsageError, match="leave out --system"):
        talk(said, resume="last", system="x")
    assert said == []


def test_a_conversation_that_is_first_saved_while_it_is_answered_is_held_as_well(store, said, monkeypatch):
    monkeypatch.setattr("localagent.files.lock.MOMENT", 0.05)
    conversation = talk(said)
    with conversation.alone():
        talk_once(conversation, UserMessage.text("hi"), AssistantMessage.text("HI"))
        with pytest.raises(ConversationBusy), store.open("last").alone():
            pass
        with pytest.raises(ConversationBusy), talk(said, resume="last").alone():
            pass
    with store.open("last").alone():
        pass
    assert not any("no longer saved" in line for line in said)


def test_what_is_removed_before_it_is_answered_goes_on_unsaved(store, said):
    conversation = talk(said, "hi")
    store.remove("last")
    with conversation.alone():
        talk_once(conversation, UserMessage.text("and"), AssistantMessage.text("AND"))
    assert texts(conversation.messages()) == ["u:hi", "a:HI", "u:and", "a:AND"]
    assert said[-1].endswith("this conversation goes on and is no longer saved")
