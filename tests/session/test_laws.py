"""Whatever is done to a session: saved and opened again it is the same, and its contexts follow the rules."""

from __future__ import annotations

from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from localagent.errors import UnpairedResult, UsageError
from localagent.messages import (
    AssistantMessage,
    CompactionSummaryMessage,
    FlushMessage,
    SystemMessage,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from localagent.prompt.request import Target, build_request
from localagent.session import BranchSummaryEntry, CompactionEntry, Session

text = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8)
RESULT = ToolResultPart(call_id="", content="r")
CALL = ToolCallPart(id="", name="f")
messages = st.one_of(
    st.builds(SystemMessage, content=text),
    st.builds(UserMessage, content=text),
    st.builds(AssistantMessage, content=text, raw=st.none() | text),
    st.just(AssistantMessage(content=(CALL,))),
    st.just(AssistantMessage(content=(CALL, CALL))),
    st.just(ToolMessage.from_result(RESULT)),
    st.just(ToolMessage.from_results([RESULT, RESULT])),
    st.builds(UserMessage, content=st.just((RESULT,))),
)
places = st.integers(0, 30)
steps = st.one_of(
    messages,
    messages,
    st.builds(lambda at: ("branch", at, None), places),
    st.builds(lambda at, summary: ("branch", at, summary), places, text),
    st.builds(lambda at, summary: ("compact", at, summary), places, text),
    st.builds(lambda at, summary: ("compact", at, summary), places, text),
    st.sampled_from(["flush", "custom", "rescue", "reopen", "torn"]),
)


def take(session: Session, step) -> Session:
    match step:
        case ("branch", at, summary):
            known = [None, *(entry.id for entry in session.entries)]
            if summary is None or session.head is not None:
                session.branch(known[at % len(known)], summary)
        case ("compact", at, summary):
            compact(session, at, summary)
        case "flush":
            session.flush()
        case "custom":
            session.append_custom("note", {"n": [1, None]})
        case "rescue":
            session.rescue("go on")
        case "reopen":
            head = session.head
            session = Session.open(session.file)
            session.branch(head)
        case "torn":
            with session.file.open("ab") as file:
                file.write(b'{"id":"torn","par')
        case message:
            session.append(message)
    return session


def compact(session: Session, at: int, summary: str) -> None:
    choices = [None, *(entry.id for entry in session.path())]
    builds = can_be_sent(session)
    try:
        session.compact(summary, first_kept=choices[at % len(choices)])
    except UsageError:
        return
    if builds:
        assert can_be_sent(session), "compacting never costs a result its call"


def can_be_sent(session: Session) -> bool:
    try:
        build_request(session.context(), Target("x"))
    except UnpairedResult:
        return False
    return True


def expected_context(path):
    """The rules once more, entry by entry, oldest first."""
    found, cut = [], False
    for entry in path:
        match entry:
            case CompactionEntry():
                ids = [at for at, _ in found]
                at = ids.index(entry.first_kept) if entry.first_kept else len(found)
                systems = [pair for pair in found[:at] if isinstance(pair[1], SystemMessage)]
                summary = CompactionSummaryMessage(
                    content=entry.summary, id=entry.id, timestamp=entry.timestamp
                )
                found = [*systems, (entry.id, summary), *found[at:]]
            case BranchSummaryEntry():
                found.append((entry.id, entry.summary))
            case _ if isinstance(entry.message, FlushMessage):
                found, cut = [], True
            case _:
                cut = cut and not isinstance(entry.message, AssistantMessage)
                if cut and any(part.kind == "tool_result" for part in entry.message.content):
                    continue  # its calls are before the flush; these messages hold nothing else
                found.append((entry.id, entry.message))
    return [message for _, message in found]


@given(st.lists(steps, max_size=25))
def test_a_session_is_what_was_done_to_it(done):
    with TemporaryDirectory() as folder:
        session = Session.create(folder)
        for step in done:
            session = take(session, step)
        again = Session.open(session.file)
        assert again.entries == session.entries
        assert again.head == (session.entries[-1].id if session.entries else None)
        for entry in session.entries:
            context = again.context(entry.id)
            assert context == session.context(entry.id)
            shown = [m.text if m.role == "branch_summary" else m for m in context]
            assert shown == expected_context(again.path(entry.id))
            assert again.path(entry.id)[-1] == entry
            assert entry in again.children(entry.parent)
        assert all("cut off" in p.reason or "Invalid JSON" in p.reason for p in again.problems)
        leaves = {entry.id for entry in again.entries} - {entry.parent for entry in again.entries}
        assert {entry.id for entry in again.leaves} == leaves
