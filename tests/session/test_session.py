"""A session is a tree that only grows: branches, flushes and compactions, and what a model is told of them."""

from __future__ import annotations

import pytest

from localagent.errors import InvalidMessage, UnknownSession, UsageError
from localagent.messages import (
    AssistantMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    FlushMessage,
    MalformedToolCallPart,
    RescueMessage,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from localagent.prompt.request import Target, build_request
from localagent.session import BranchSummaryEntry, CompactionEntry, Session


@pytest.fixture
def session(tmp_path):
    return Session.create(tmp_path / "sessions")


def user(session, text):
    return session.append(UserMessage.text(text))


def answer(session, text):
    return session.append(AssistantMessage.text(text))


def told(session, entry=None):
    """The context in short: roles' first letters and texts."""
    return [f"{message.role[0]}:{message.text}" for message in session.context(entry)]


def same_again(session):
    again = Session.open(session.file)
    assert (again.entries, again.problems, again.header) == (session.entries, (), session.header)
    assert {e.id: again.context(e.id) for e in again.entries} == {
        e.id: session.context(e.id) for e in session.entries
    }
    return again


def test_a_conversation_outlives_the_program(session):
    system = session.append(SystemMessage.text("Be curt."))
    question = user(session, "Hi  there,\nyou")
    reply = answer(session, "Hello")
    assert session.head == reply
    assert [entry.id for entry in session.path()] == [system, question, reply]
    assert [entry.parent for entry in session.path()] == [None, system, question]
    assert session.entry(question).message == UserMessage.text("Hi  there,\nyou"), "as it was, without an id"
    assert session.title == "Hi there, you"
    again = same_again(session)
    assert (again.head, again.title, again.id) == (reply, session.title, session.id)
    assert (session.file.stat().st_mode & 0o777, session.file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_title_is_given_or_taken_from_the_first_words(tmp_path):
    assert Session.create(tmp_path).title is None
    assert Session.create(tmp_path, title=" My \n title ").title == "My title"
    session = Session.create(tmp_path, title="  ")
    session.append(UserMessage(content=(ToolResultPart(call_id="", content="x"),)))
    user(session, "word " * 100)
    assert len(session.title) == 80
    assert session.title.endswith(" wo...")


def test_a_session_goes_on_from_any_entry(session):
    question = user(session, "Hi")
    first = answer(session, "one")
    deep = user(session, "more")
    assert session.branch(question) == question
    second = answer(session, "two")
    assert [entry.id for entry in session.children(question)] == [first, second]
    assert [entry.id for entry in session.leaves] == [deep, second]
    assert told(session) == ["u:Hi", "a:two"]
    assert told(session, deep) == ["u:Hi", "a:one", "u:more"]
    session.branch(None)
    assert (session.head, session.path(), session.context()) == (None, [], [])
    other = user(session, "Anew")
    assert [entry.id for entry in session.children(None)] == [question, other]
    assert told(session) == ["u:Anew"]
    assert same_again(session).head == other, "the head is on what was written last"


def test_a_branch_with_a_summary(session):
    question = user(session, "Hi")
    left = answer(session, "one")
    head = session.branch(question, "It said one.")
    entry = session.entry(head)
    assert isinstance(entry, BranchSummaryEntry)
    assert (session.head, entry.parent, entry.branch) == (head, question, left)
    user(session, "And?")
    assert session.context()[1] == BranchSummaryMessage(
        content="It said one.", branch=left, id=head, timestamp=entry.timestamp
    )
    session.branch(None, "All of it.")
    assert told(session) == ["b:All of it."]
    same_again(session)


def test_there_must_be_a_branch_to_summarise(session):
    with pytest.raises(UsageError, match="nothing was said yet"):
        session.branch(None, "Nothing")
    assert session.entries == ()


def test_a_flush_cuts_what_came_before(session):
    session.append(SystemMessage.text("Be curt."))
    before = user(session, "Hi")
    session.flush()
    assert session.context() == []
    user(session, "Anew")
    assert told(session) == ["u:Anew"]
    session.flush()
    session.append(SystemMessage.text("Be kind."))
    assert told(session) == ["s:Be kind."]
    assert told(session, before) == ["s:Be curt.", "u:Hi"], "before it, all is as it was"
    session.branch(before)
    assert told(session) == ["s:Be curt.", "u:Hi"]
    same_again(session)


def test_a_compaction_stands_for_what_came_before(session):
    session.append(SystemMessage.text("Be curt."))
    user(session, "1")
    answer(session, "2")
    session.append(SystemMessage.text("In French."))
    kept = user(session, "3")
    answer(session, "4")
    entry = session.compact("Counting.", first_kept=kept, tokens_before=99)
    user(session, "5")
    assert told(session) == ["s:Be curt.", "s:In French.", "c:Counting.", "u:3", "a:4", "u:5"]
    summary = session.context()[2]
    assert isinstance(summary, CompactionSummaryMessage)
    assert (summary.source, summary.id) == ("compaction", entry)
    assert session.entry(entry).tokens_before == 99
    assert told(session, session.entry(entry).parent) == [
        "s:Be curt.",
        "u:1",
        "a:2",
        "s:In French.",
        "u:3",
        "a:4",
    ]
    same_again(session)


def test_compactions_follow_each_other(session):
    early = user(session, "1")
    first = answer(session, "2")
    second = user(session, "3")
    one = session.compact("A", first_kept=first)
    later = user(session, "4")
    assert told(session) == ["c:A", "a:2", "u:3", "u:4"]
    for gone in (early, one):
        with pytest.raises(UsageError, match="not a message of the current context"):
            session.compact("B", first_kept=gone)
    session.compact("B", first_kept=second)
    assert told(session) == ["c:B", "u:3", "u:4"], "the older summary is in the newer one"
    session.compact("C", first_kept=None)
    assert told(session) == ["c:C"]
    user(session, "5")
    assert told(session) == ["c:C", "u:5"]
    assert told(session, later) == ["c:A", "a:2", "u:3", "u:4"]
    session.branch(second)
    assert told(session) == ["u:1", "a:2", "u:3"], "on a branch from before, nothing was compacted"
    same_again(session)


def test_flushes_and_compactions(session):
    before = user(session, "1")
    session.compact("A", first_kept=before)
    flush = session.flush()
    assert told(session) == []
    for gone in (before, flush):
        with pytest.raises(UsageError, match="after the last flush"):
            session.compact("B", first_kept=gone)
    after = user(session, "2")
    assert told(session) == ["u:2"], "a compaction before the flush is flushed too"
    session.compact("B", first_kept=after)
    assert told(session) == ["c:B", "u:2"]
    session.flush()
    assert told(session) == []
    same_again(session)


CALL = ToolCallPart(id="c", name="f", arguments={"x": 1})
OTHER = ToolCallPart(id="d", name="f", arguments={"x": 2})


def test_a_compaction_never_separates_results_from_calls(session):
    user(session, "1")
    calls = session.append(AssistantMessage(content=(CALL, OTHER)))
    first = session.append(ToolMessage.from_result(CALL.result("one")))
    note = session.append_custom("note", {"a": 1})
    for torn in (first, note, None):  # one result is still to come
        with pytest.raises(UsageError, match="separate tool results from their calls"):
            session.compact("S", first_kept=torn)
    in_user = session.append(UserMessage(content=(OTHER.result("two"), TextPart(text="and?"))))
    for torn in (first, note, in_user):
        with pytest.raises(UsageError, match="separate tool results from their calls"):
            session.compact("S", first_kept=torn)
    session.compact("S", first_kept=calls)
    assert [message.role for message in session.context()] == [
        "compaction_summary", "assistant", "tool", "custom", "user",
    ]  # fmt: skip
    reply = answer(session, "done")
    session.compact("S", first_kept=reply)
    assert told(session) == ["c:S", "a:done"]
    build_request(session.context(), Target("x"))


def test_an_answer_to_a_malformed_call_stays_with_it(session):
    session.append(AssistantMessage(content=(MalformedToolCallPart(raw="f(", reason="truncated"),)))
    result = session.append(ToolMessage.from_result(ToolResultPart(call_id="", content="no", is_error=True)))
    with pytest.raises(UsageError, match="separate"):
        session.compact("S", first_kept=result)
    session.compact("S", first_kept=None)


def test_what_only_sessions_hold(session):
    user(session, "Hi")
    custom = session.append_custom("bookmark", {"page": 3}, content="here")
    rescue = session.rescue("Answer in words.")
    assert session.context()[1:] == [
        CustomMessage(custom_type="bookmark", payload={"page": 3}, content="here"),
        RescueMessage(content="Answer in words."),
    ]
    assert session.entry(rescue).parent == custom
    sent = build_request(session.context(), Target("x")).messages
    assert [message.text for message in sent] == ["Hi", "Answer in words."]
    session.append(FlushMessage())
    assert session.context() == []


@pytest.mark.parametrize("entry", ["", "nope", "\0", "../x", None, 3, "x" * 1000])
def test_an_unknown_entry_is_refused_everywhere(session, entry):
    known = user(session, "Hi")
    calls = [session.entry, session.path, session.context, session.branch, session.children]
    calls.append(lambda entry: session.compact("S", first_kept=entry))
    for call in calls if entry is not None else [session.entry]:
        with pytest.raises(UnknownSession, match="has no entry") as raised:
            call(entry)
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 200
    assert session.head == known


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda s: s.append("hi"), "entry.message"),
        (lambda s: s.append({"role": "wizard"}), "wizard"),
        (lambda s: s.rescue("\ud800"), "surrogate"),
        (lambda s: s.append_custom("x", float("nan")), "nan is not JSON"),
        (lambda s: s.append_custom("x", content="a", colour=1), "colour"),
        (lambda s: s.branch(s.head, "\ud800"), "surrogate"),
        (lambda s: s.branch(s.head, 3), "summary"),
        (lambda s: s.compact("\ud800", first_kept=None), "surrogate"),
        (lambda s: s.compact("x", first_kept=None, tokens_before=-1), "tokens_before"),
        (lambda s: s.append(UserMessage.model_construct(content=(TextPart.model_construct(text=3),))), "text"),
        (lambda s: Session.create(s.file.parent, title="\ud800"), "surrogate"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_bad_input_writes_nothing(session, call, says):
    head = user(session, "Hi")
    before = session.file.read_bytes()
    with pytest.raises(InvalidMessage, match=says) as raised:
        call(session)
    assert "\n" not in str(raised.value)
    assert (session.head, session.file.read_bytes()) == (head, before)
    assert len(list(session.file.parent.glob("*.jsonl"))) == 1


def test_kinds_of_entries(session):
    kept = user(session, "Hi")
    assert isinstance(session.entry(session.compact("S", first_kept=kept)), CompactionEntry)
    assert [entry.kind for entry in session.entries] == ["message", "compaction"]


def test_a_result_that_a_flush_took_the_call_from_does_not_come_back_by_a_compaction(tmp_path):
    call = ToolCallPart(id="", name="f")
    session = Session.create(tmp_path)
    session.append(AssistantMessage(content=(call,)))
    session.flush()
    session.append(SystemMessage.text("Be curt."))
    kept = session.append(SystemMessage.text("Be kind."))
    session.append(ToolMessage.from_result(call.result("lost")))
    assert [message.role for message in session.context()] == ["system", "system"]
    session.compact("nothing was said", first_kept=kept)
    assert [message.role for message in session.context()] == ["system", "compaction_summary", "system"]
