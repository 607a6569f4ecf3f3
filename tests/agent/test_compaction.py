"""Compaction loses no call, result or open request, and leaves the history as it was when it fails.

The rules are tested on a host that counts words, tokens on lfm2-nano.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.agent import (
    Agent,
    ClipResults,
    Compaction,
    CompactionEnded,
    CompactionStarted,
    RunDone,
    RunFailed,
    TurnEnded,
    compaction,
    middleware,
)
from localagent.agent.boundaries import places
from localagent.agent.compaction import LEFT_OUT, REQUEST
from localagent.errors import (
    ContextOverflow,
    EngineFailed,
    SaveFailed,
    ServerUnreachable,
    Unsupported,
    UsageError,
)
from localagent.hosts.protocol import Token
from localagent.hosts.sampling import Sampling
from localagent.messages import (
    AssistantMessage,
    CompactionSummaryMessage,
    CustomMessage,
    FlushMessage,
    MalformedToolCallPart,
    Message,
    RescueMessage,
    SystemMessage,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from localagent.model import Model, load
from localagent.nano.tasks import make_tasks
from localagent.prompt.request import build_request
from localagent.session import CompactionEntry, MessageEntry, Session
from localagent.tools import Tool
from localagent.wire.chat_template import TARGET
from parsers import DIALECTS
from tests.agent.replaying import block
from tests.agent.solving import Bench
from tests.agent.words import WordHost, words, wordy

SUMMARY = "You talked about colours."
LOOK = block("look()")


def short(**options: Any) -> Compaction:
    return Compaction(instructions="Summarise.", **options)


def tool(text: str, name: str = "look") -> Tool:
    parameters = {"type": "object", "properties": {}}
    return Tool(name=name, description="", parameters=parameters, bind=lambda arguments: lambda context: text)


def talk(turns: int, size: int = 10) -> list[Message]:
    """Requests and answers with `size` words each; a message has a word more, which is its role."""
    history: list[Message] = []
    for turn in range(turns):
        history += [
            UserMessage(content=words(size, f"u{turn}.")),
            AssistantMessage(content=words(size, f"a{turn}.")),
        ]
    return history


def compactions(events) -> list:
    return [event for event in events if isinstance(event, CompactionStarted | CompactionEnded)]


def told(history) -> list[str]:
    """Each message by its role and its first word."""
    return [f"{message.role} {(message.text.split() or [''])[0]}".strip() for message in history]


def host(agent: Agent) -> WordHost:
    assert isinstance(agent.model.host, WordHost)
    return agent.model.host


# -- in a run -----------------------------------------------------------------------------------------


def test_older_turns_become_a_summary():
    agent = Agent(wordy(SUMMARY, "Red."), middleware=[short()])
    history = talk(8)  # 176 words of 200, 160 are the limit
    before = list(history)
    events = list(agent.run("Which colour?", history=history))
    started, ended = compactions(events)
    assert started == CompactionStarted(179, 200)
    assert (ended.summary, ended.tokens_before, ended.problem) == (SUMMARY, 179, None)
    assert told(history) == [
        "compaction_summary You", "assistant a5.0", "user u6.0", "assistant a6.0", "user u7.0", "assistant a7.0",
        "user Which", "assistant Red.",
    ]  # fmt: skip
    assert history[0].source == "compaction"
    assert history[1:6] == before[11:]  # as they were said
    *_, done = events
    assert isinstance(done, RunDone)
    assert done.message.text == "Red."
    summarising, answering = host(agent).asked
    assert ended.tokens_after == len(answering.split())
    turn = next(event for event in events if isinstance(event, TurnEnded))
    assert done.usage == ended.usage + turn.message.usage
    assert ended.usage.input == len(summarising.split())
    assert summarising.endswith("user: Summarise.")


def test_the_request_for_a_summary_begins_as_the_conversation_did():
    agent = Agent(wordy(SUMMARY, "Red."), [tool("x")], instructions="Be brief.", middleware=[short()])
    history: list[Message] = [SystemMessage(content="You are a painter."), *talk(8)]
    whole = agent.model.host.render(
        [{"role": "system", "content": "Be brief.\n\nYou are a painter."}]
        + [{"role": message.role, "content": message.text} for message in history[1:]],
        [tool("x").schema],
    ).text
    list(agent.run("Which colour?", history=history))
    summarising = host(agent).asked[0]
    older = summarising.removesuffix("\nuser: Summarise.")
    assert whole.startswith(older)
    assert "a4.9" in older
    assert told(history)[:2] == ["system You", "compaction_summary You"]


@pytest.mark.parametrize(
    ("outputs", "problem", "turns"),
    [
        ((SUMMARY,), None, 1),
        (("", SUMMARY), None, 2),
        ((LOOK, SUMMARY), None, 2),
        ((f"Well. {LOOK}", SUMMARY), None, 2),
        ((block("look("), SUMMARY), None, 2),
        (("", " \n", "never asked"), "the model wrote an empty summary", 2),
        ((LOOK, "", "never asked"), "the model wrote an empty summary", 2),
        (("", LOOK, "never asked"), "the model called a tool instead of summarising", 2),
    ],
)
def test_a_summary_must_be_usable(outputs, problem, turns):
    looked: list[str] = []
    look = Tool(
        name="look", description="", parameters={"type": "object", "properties": {}},
        bind=lambda arguments: lambda context: looked.append("!") or "x",
    )  # fmt: skip
    agent = Agent(wordy(*outputs), [look], middleware=[short()])
    history = talk(8)
    before = list(history)
    _, ended = agent.compact(history)
    assert (ended.summary, ended.problem) == (None if problem else SUMMARY, problem)
    assert len(host(agent).asked) == turns
    assert (history == before) is bool(problem)
    assert looked == []
    assert ended.usage.output == sum(len(spoken) for spoken in host(agent)._recordings[:turns])
    first, *again = host(agent).asked
    assert first.startswith("tools: look")
    # The second request begins as the first did, unless the model could not be kept from calling.
    called = "look(" in outputs[0]
    assert [asked.startswith("tools:") for asked in again] == [not called] * (turns - 1)


def test_after_a_failure_the_run_goes_on_and_does_not_try_in_every_turn():
    answers = [words(3, f"b{turn}.") for turn in range(4)]
    agent = Agent(wordy("", "", *answers[:2], SUMMARY, *answers[2:]), middleware=[short()])
    history = talk(7)
    tried = []
    for turn in range(4):  # a question and an answer have 11 words, a tenth of the context are 20
        events = list(agent.run(words(6, f"q{turn}."), history=history))
        assert isinstance(events[-1], RunDone)
        assert events[-1].message.text == answers[turn]
        tried.append([event.summary for event in compactions(events)[1:]])
    assert tried == [[None], [], [SUMMARY], []]


# -- a model that cannot summarise --------------------------------------------------------------------

CALLED = "the model called a tool instead of summarising"


def test_a_summary_is_asked_for_with_the_tools_and_none_may_be_called():
    agent = Agent(wordy("", SUMMARY, "Red."), [tool("x")], middleware=[short()], tool_choice="required")
    respond, asked = agent.model.respond, []

    def noting(messages, **options):
        asked.append((bool(options["tools"]), options.get("tool_choice")))
        return respond(messages, **options)

    agent.model.respond = noting
    list(agent.compact(talk(8)))
    assert asked == [(True, "none")] * 2


def test_where_calls_cannot_be_barred_it_is_asked_for_all_the_same():
    agent = Agent(wordy(SUMMARY), [tool("x")], middleware=[short()])
    stream = agent.model.stream

    def cannot(messages, **options):
        if "tool_choice" in options:
            raise Unsupported("calls in this dialect begin like other text: they cannot be barred")
        return stream(messages, **options)

    agent.model.stream = cannot
    _, ended = agent.compact(talk(8))
    assert ended.summary == SUMMARY


def test_where_there_is_no_summary_and_no_room_older_turns_are_left_out():
    agent = Agent(wordy(LOOK, LOOK, "Red."), [tool("x")], instructions="Paint.", middleware=[short()])
    history: list[Message] = [SystemMessage(content="You are a painter."), *talk(10)]
    before = list(history)
    events = list(agent.run("Which colour?", history=history))
    _, ended = compactions(events)
    assert (ended.summary, ended.problem) == (LEFT_OUT, f"{CALLED}; older turns were left out")
    assert ended.tokens_after == len(host(agent).asked[-1].split()) <= 0.7 * 200
    assert isinstance(events[-1], RunDone)
    kept = history[2:-2]
    assert kept == before[-len(kept) :]
    assert told(history)[:3] == ["system You", "compaction_summary Earlier", "user u5.0"]
    assert told(history)[-2:] == ["user Which", "assistant Red."]


def test_what_an_earlier_summary_says_stays_when_turns_are_left_out():
    agent = Agent(wordy("", "", "Red."), middleware=[short()])
    history: list[Message] = [CompactionSummaryMessage(content=f"Colours.{REQUEST}Paint."), *talk(10)]
    for _ in range(2):
        done = agent.respond("Which colour?", history=history)
        assert history[0].text == f"Colours.\n\n{LEFT_OUT}"
        history += talk(4)
        agent.model = wordy("", "", "Red.")
    assert done.text == "Red."


def test_a_conversation_that_is_never_summarised_goes_on_for_ever(tmp_path):
    """It neither overflows nor loses the last request, and the file keeps everything."""
    session = Session.create(tmp_path)
    look = Tool(
        name="look", description="", parameters={"type": "object", "properties": {}}, repeatable=True,
        bind=lambda arguments: lambda context: words(12, "seen"),
    )  # fmt: skip
    asked: list[str] = []
    for number in range(25):
        # It calls before each answer, and in place of each summary.
        model = wordy(*[LOOK] * 4) if number % 2 else wordy(LOOK)
        agent = Agent(model, [look], middleware=[short()], max_turns=2)
        asked.append(words(8, f"q{number}."))
        *_, last = agent.run(asked[-1], history=session)
        assert isinstance(last, RunDone), last
        assert max(len(each.split()) for each in host(agent).asked) <= 200
        assert asked[-1].split()[0] in host(agent).asked[-1]
        build_request(session.context(), TARGET)
    entries = [entry for entry in session.entries if isinstance(entry, MessageEntry)]
    assert [e.message.text for e in entries if isinstance(e.message, UserMessage)] == asked


def test_by_hand_turns_are_left_out_only_where_there_is_no_room():
    for turns, dropped in ((8, False), (9, True)):
        history = talk(turns)
        _, ended = Agent(wordy("")).compact(history)
        assert bool(ended.summary) is dropped
        assert (len(history) < 2 * turns) is dropped


@pytest.mark.parametrize("error", [EngineFailed("gone"), ServerUnreachable("nobody is there")])
def test_where_nobody_answers_nothing_is_left_out(error):
    agent = Agent(wordy("unused"), middleware=[short()])
    agent.model.respond = lambda *_, **__: (_ for _ in ()).throw(error)  # type: ignore[method-assign]
    history = talk(10)
    _, ended = agent.compact(history)
    assert (ended.summary, ended.problem) == (None, str(error))
    assert len(history) == 20


def test_stopped_while_it_is_summarised_nothing_is_left_out():
    cancel = threading.Event()
    agent = Agent(wordy(SUMMARY), middleware=[short()])
    history = talk(10)
    events = agent.compact(history, cancel=cancel)
    next(events)
    cancel.set()
    (ended,) = events
    assert (ended.summary, ended.problem, len(history)) == (None, "it was stopped", 20)


def test_without_compaction_a_conversation_that_is_too_long_fails():
    *events, last = Agent(wordy("unused")).run("Well?", history=talk(10))
    assert compactions(events) == []
    assert isinstance(last, RunFailed)
    assert isinstance(last.error, ContextOverflow)


@pytest.mark.parametrize(
    ("turns", "options", "compacts"),
    [
        (7, {}, False),  # 156 words of 200
        (8, {}, True),
        (7, {"max_tokens": 40}, False),
        (7, {"max_tokens": 45}, True),
        (3, {"max_tokens": 5000}, False),
        (4, {"max_tokens": 5000}, True),
    ],
)
def test_the_limit_leaves_room_for_the_answer(turns, options, compacts):
    agent = Agent(wordy(SUMMARY), middleware=[short()], **options)
    assert bool(compactions(agent.run("?", history=talk(turns)))) is compacts


@pytest.mark.parametrize(
    ("most", "options"),
    [
        (160, {}),
        (160, {"max_tokens": 40}),
        (159, {"max_tokens": 41}),
        (80, {"max_tokens": 120}),
        (80, {"max_tokens": 121}),
        (80, {"max_tokens": 5000}),
    ],
)
def test_the_longest_request_that_is_sent_as_it_is(most, options):
    for tokens, compacts in ((most, False), (most + 1, True)):
        history = [UserMessage(content=words(tokens - 5)), AssistantMessage(content="Yes.")]
        agent = Agent(wordy(SUMMARY), middleware=[short()], **options)
        own = Agent(wordy(SUMMARY), middleware=[short()])
        own.model.sampling = Sampling(**options)
        for each in (agent, own):
            found = compactions(each.run("?", history=list(history)))
            assert bool(found) is compacts
            assert not compacts or found[0] == CompactionStarted(tokens, 200)


class Sampled(WordHost):
    """Notes how long the answers may be."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.limits: list[int | None] = []

    def generate(self, prompt, sampling, cancel=None, constraint=None):
        self.limits.append(sampling.max_tokens)
        return super().generate(prompt, sampling, cancel, constraint)


@pytest.mark.parametrize(
    ("context", "size", "options", "tokens", "shown"),
    [
        (200, 10, {}, 25, "15"),
        (20_000, 1000, {}, 2048, "1,228"),
        (200, 10, {"max_tokens": 40}, 40, "24"),
        (200, 10, {"max_tokens": 100}, 50, "30"),
        (200, 10, {"max_tokens": 16}, 16, "10"),
        (200, 10, {"max_tokens": 20}, 20, "12"),
    ],
)
def test_how_long_a_summary_may_be(context, size, options, tokens, shown):
    host = Sampled([SUMMARY, "Red."], context)
    history = talk(8, size)
    compaction = Compaction(instructions="Summarise in {words} words.", **options)
    agent = Agent(Model(host, DIALECTS["lfm2"]), middleware=[compaction], max_tokens=7)
    assert compactions(agent.run("?", history=history))
    assert host.limits == [tokens, 7]
    assert host.asked[0].endswith(f"user: Summarise in {shown} words.")


def test_a_summary_by_default():
    made = Compaction()
    assert (made.share, made.keep, made.max_tokens) == (0.8, 0.3, None)
    assert made.instructions.count("{words}") == 1
    least = Compaction(share=1, keep=0, max_tokens=16)
    assert (least.share, least.keep, least.max_tokens) == (1, 0, 16)


def test_tools_and_instructions_count():
    many = [tool("x", name=f"look{number}") for number in range(30)]
    assert not compactions(Agent(wordy("Yes."), middleware=[short()]).run("?", history=talk(6)))
    agent = Agent(wordy("Yes."), many, instructions=words(5), middleware=[short()])
    assert compactions(agent.run("?", history=talk(6)))


def test_what_middleware_leaves_out_does_not_count():
    history = [*talk(1), AssistantMessage(content=(ToolCallPart(id="1", name="look"),))]
    history.append(ToolMessage.from_result(ToolResultPart(call_id="1", name="look", content=words(150))))
    for clip, compacts in (([], True), ([ClipResults(200)], False)):
        agent = Agent(wordy("Yes."), middleware=[*clip, short()])
        assert bool(compactions(agent.run(None, history=list(history)))) is compacts


def test_within_one_request_the_words_of_the_user_are_carried_on():
    """The loop is long, the request is at its beginning: no summary may lose what is to be done."""
    agent = Agent(
        wordy(LOOK, LOOK, SUMMARY, LOOK, "They are red and blue.", context=130),
        [Tool(
            name="look", description="", parameters={"type": "object", "properties": {}}, repeatable=True,
            bind=lambda arguments: lambda context: words(50, "seen"),
        )],
        middleware=[short()],
    )  # fmt: skip
    history: list[Message] = []
    done = agent.respond("Tell me all colours.", history=history)
    assert done.message.text == "They are red and blue."
    summaries = [message for message in history if isinstance(message, CompactionSummaryMessage)]
    assert [message.text.partition(REQUEST)[2] for message in summaries] == ["Tell me all colours."]
    assert f"{REQUEST.strip()}\nTell me all colours." in host(agent).asked[-1]
    build_request(history, TARGET)


def test_a_long_request_is_carried_on_with_its_beginning_and_its_end():
    """In a quarter of a character for each token of the context."""
    request = " ".join(f"colour-{number}" for number in range(60))
    call = ToolCallPart(id="1", name="look")
    rounds = [AssistantMessage(content=(call,)), ToolMessage.from_result(call.result(words(150)))]
    history = [UserMessage(content=request), *rounds, *rounds]
    _, ended = Agent(wordy(SUMMARY, context=1000), middleware=[short(keep=0.1)]).compact(history)
    carried = ended.summary.partition(REQUEST)[2]
    assert len(carried) <= 250
    assert carried.startswith("colour-0 ")
    assert carried.endswith("colour-59")
    assert len(carried) > 200


@pytest.mark.parametrize(("size", "kept"), [(45, True), (75, False)])
def test_the_newest_results_are_kept_if_that_leaves_room_to_go_on(size, kept):
    history: list[Message] = [UserMessage(content="Look.")]
    for number in (90, size):
        call = ToolCallPart(id="", name="look", arguments={"number": number})
        history += [
            AssistantMessage(content=(call,)),
            ToolMessage.from_result(call.result(words(number))),
        ]
    agent = Agent(wordy(SUMMARY, "Red."), middleware=[short(keep=0.1)], max_tokens=80)
    assert agent.respond(history=history).message.text == "Red."
    assert [message.role for message in history] == (
        ["compaction_summary", "assistant", "tool", "assistant"]
        if kept
        else ["compaction_summary", "assistant"]
    )


def test_an_earlier_summary_is_told_again_with_the_request_in_it():
    agent = Agent(wordy("First. Second."), middleware=[short()])
    call = ToolCallPart(id="1", name="look")
    rounds = [AssistantMessage(content=(call,)), ToolMessage.from_result(call.result(words(30)))]
    history = [
        CompactionSummaryMessage(content=f"First.{REQUEST}Tell me all colours."),
        *rounds,
        *rounds,
        *rounds,
    ]
    _, ended = agent.compact(history)
    assert "Summary of the conversation so far:\n\nFirst." in host(agent).asked[0]
    assert ended.summary == f"First. Second.{REQUEST}Tell me all colours."
    assert told(history)[0] == "compaction_summary First."
    assert sum(isinstance(message, CompactionSummaryMessage) for message in history) == 1


def test_cancelled_it_leaves_the_history_as_it_was():
    cancel = threading.Event()

    @middleware("rewrite_messages")
    def stop(messages, run):
        if messages[-1].role != "user":  # what is to be summarised, and not the request itself
            cancel.set()

    agent = Agent(wordy(SUMMARY), middleware=[short(), stop])
    history = talk(8)
    before = list(history)
    events = list(agent.run("Which colour?", history=history, cancel=cancel))
    assert [event.problem for event in compactions(events)[1:]] == ["it was stopped"]
    assert events[-1].stop_reason == "cancelled"
    assert history[:-1] == before


def test_left_at_its_beginning_it_leaves_the_history_as_it_was():
    agent = Agent(wordy(SUMMARY), middleware=[short()])
    history = talk(8)
    before = list(history)
    events = agent.run("Which colour?", history=history)
    assert isinstance(next(events), CompactionStarted)
    events.close()
    assert history[:-1] == before


def test_one_conversation_that_waits_lets_others_not_wait():
    compaction = short()
    summaries = []
    for first, outputs in (("Hello.", ("", "", "Yes.")), ("Good day.", (SUMMARY, "Yes."))):
        history = [SystemMessage(content="Paint."), UserMessage(content=first), *talk(7)]
        events = Agent(wordy(*outputs), middleware=[compaction]).run(words(6), history=history)
        summaries.append([event.summary for event in compactions(events)[1:]])
    assert summaries == [[None], [SUMMARY]]


def test_of_too_many_conversations_that_wait_the_oldest_is_forgotten(monkeypatch):
    monkeypatch.setattr(compaction, "MOST_WAITING", 2)
    made, tried = short(), []
    for first in ("one", "two", "one", "three", "two", "one"):
        history = [UserMessage(content=first), *talk(7)]
        events = Agent(wordy("", "", "Yes."), middleware=[made]).run(words(6), history=history)
        tried.append(bool(compactions(events)))
    assert tried == [True, True, False, True, False, True]


def test_a_summary_is_no_answer_of_the_agent():
    """What the agent's answers end at, and what is told about their tokens, is not for summaries."""
    agent = Agent(wordy(SUMMARY), middleware=[short()], stop="colours", logprobs=1)
    _, ended = agent.compact(talk(8))
    assert ended.summary == SUMMARY


# -- what does not fit into one request ---------------------------------------------------------------


def test_a_conversation_far_too_long_is_told_in_pieces():
    agent = Agent(wordy("One.", "Two.", "Three.", "Done."), middleware=[short()])
    history = talk(20)  # 440 words
    done = agent.respond("Well?", history=history)
    assert done.message.text == "Done."
    *pieces, _ = host(agent).asked
    assert [piece.splitlines()[0].split()[-1] for piece in pieces] == ["u0.9", "far:", "far:"]
    assert "\n\nOne.\n" in pieces[1]
    assert "\n\nTwo.\n" in pieces[2]
    lines = [
        line
        for piece in pieces
        for line in piece.splitlines()
        if line.startswith(("user: u", "assistant: a"))
    ]
    assert all(len(piece.split()) <= 175 for piece in pieces)
    spoken = [line.split(": ")[1] for line in lines]
    assert spoken == [message.text for message in talk(20)][: len(spoken)]  # each once, in order
    assert history[0].text == "Three."


def test_a_message_that_does_not_fit_is_clipped_for_the_summary_alone():
    agent = Agent(wordy("One.", "Two.", "Three.", "Done."), [tool(words(1000, "big"))], middleware=[short()])
    call = ToolCallPart(id="1", name="look")
    big = ToolMessage.from_result(call.result(words(1000, "big")))
    history: list[Message] = [*talk(1), UserMessage(content="Look."), AssistantMessage(content=(call,)), big]
    original = list(history)
    events = list(agent.run(None, history=history))
    assert isinstance(events[-1], RunDone)
    clipped = next(asked for asked in host(agent).asked if "big0 " in asked)
    assert "characters left out here" in clipped
    assert "big999" in clipped
    assert 100 < len(clipped.split()) <= 175  # as little as need be
    assert told(history)[0].startswith("compaction_summary")
    assert history[0].text.endswith(f"{REQUEST}Look.")
    assert original[-1].text == words(1000, "big")


@pytest.mark.parametrize(
    ("history", "prompt", "problem"),
    [
        (talk(2), words(300), "the last request does not fit"),
        ([], words(300), None),
        ([SystemMessage(content="Paint.")], words(190), None),
    ],
)
def test_a_request_of_the_user_is_never_summarised(history, prompt, problem):
    agent = Agent(wordy("unused"), middleware=[short()])
    history = list(history)
    before = list(history)
    events = list(agent.run(prompt, history=history))
    found = [event.problem[: len(problem)] for event in compactions(events)[1:] if problem]
    assert found == ([problem] if problem else [])
    assert problem or not compactions(events), "there is nothing to tell"
    assert history[: len(before) + 1][:-1] == before
    assert history[len(before)].text == prompt


def test_instructions_that_fill_the_context_leave_no_room():
    agent = Agent(wordy("unused"), instructions=words(300), middleware=[short()])
    history = talk(3)
    *events, last = agent.run("?", history=history)
    assert compactions(events)[1].summary is None
    assert isinstance(last, RunFailed)
    assert host(agent).asked == []


def test_a_summary_that_gains_nothing_is_not_used():
    agent = Agent(wordy("unused"), middleware=[short()])
    history = [*talk(1, 3), UserMessage(content=words(155))]
    events = list(agent.run(None, history=history))
    assert [event.problem for event in compactions(events)[1:]] == [
        "there is too little to summarise: nothing would be gained"
    ]


def test_a_summary_that_is_longer_than_what_was_said_is_not_used():
    agent = Agent(wordy("unused"), middleware=[short()])
    long = Token(0, words(500), special=False)  # one token by its count, many when it is read again
    host(agent)._recordings = [[long]]
    history = talk(8)
    before = list(history)
    _, ended = agent.compact(history)
    assert (ended.summary, ended.problem) == (None, "the summary is longer than what it would replace")
    assert history == before


# -- by hand ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (talk(4), ["compaction_summary You", "user u3.0", "assistant a3.0"]),
        (talk(1, 40), ["compaction_summary You"]),
        ([SystemMessage(content="Paint."), *talk(4)], ["system Paint.", "compaction_summary You", "user u3.0", "assistant a3.0"]),
        ([SystemMessage(content="Old."), *talk(2), FlushMessage(), SystemMessage(content="New."), *talk(4)],
         ["system New.", "compaction_summary You", "user u3.0", "assistant a3.0"]),
    ],
)  # fmt: skip
def test_by_hand_it_needs_no_limit(history, expected):
    agent = Agent(wordy(SUMMARY, context=100_000))
    history = list(history)
    started, ended = agent.compact(history)
    assert isinstance(started, CompactionStarted)
    assert ended.problem is None
    assert ended.tokens_before > ended.tokens_after
    assert told(history) == expected


@pytest.mark.parametrize(
    "history", [[], talk(1, 2), [UserMessage(content=words(100))], [CompactionSummaryMessage(content="S")]]
)
def test_by_hand_there_may_be_nothing_to_do(history):
    before = list(history)
    _, ended = Agent(wordy("unused")).compact(history)
    assert ended.summary is None
    assert ended.problem
    assert history == before


def test_by_hand_the_settings_are_those_of_the_agent():
    agent = Agent(
        wordy(SUMMARY), middleware=[Compaction(instructions="Be quick, {words} words.", max_tokens=20)]
    )
    list(agent.compact(talk(8)))
    assert host(agent).asked[0].endswith("user: Be quick, 12 words.")


def test_by_hand_tools_and_instructions_do_not_count_as_the_conversation():
    agent = Agent(wordy(SUMMARY, context=100_000), [tool("x")], instructions=words(5000))
    history = talk(4)
    _, ended = agent.compact(history)
    assert ended.problem is None
    assert told(history)[1:] == ["user u3.0", "assistant a3.0"]


def test_by_hand_it_can_be_cancelled():
    history = talk(8)
    before = list(history)
    cancel = threading.Event()
    cancel.set()
    _, ended = Agent(wordy(SUMMARY)).compact(history, cancel=cancel)
    assert (ended.summary, ended.problem) == (None, "it was stopped")
    assert history == before


def test_what_the_model_raises_is_a_problem_and_what_the_history_raises_is_an_error():
    class Full:
        def messages(self):
            return talk(8)

        def append(self, message):
            raise SaveFailed("disk full")

        def compact(self, summary, kept, tokens_before=None):
            raise SaveFailed("disk full")

    with pytest.raises(SaveFailed, match="disk full"):
        list(Agent(wordy(SUMMARY)).compact(Full()))
    agent = Agent(wordy(SUMMARY))
    host(agent).generate = lambda *_: (_ for _ in ()).throw(ContextOverflow(9, 5))  # type: ignore[method-assign]
    _, ended = agent.compact(talk(8))
    assert ended.problem.startswith("the prompt has 9 tokens")


SHARES = "both are shares of the context, from 0 to 1, and keep must be the smaller one"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"share": 1.5}, f"keep is 0.3 and share is 1.5: {SHARES}"),
        ({"share": float("nan")}, f"keep is 0.3 and share is nan: {SHARES}"),
        ({"keep": 0.8}, f"keep is 0.8 and share is 0.8: {SHARES}"),
        ({"keep": -0.1}, f"keep is -0.1 and share is 0.8: {SHARES}"),
        ({"keep": True}, f"keep is True and share is 0.8: {SHARES}"),
        ({"share": "half"}, f"keep is 0.3 and share is 'half': {SHARES}"),
        ({"share": 1.0001}, f"keep is 0.3 and share is 1.0001: {SHARES}"),
        ({"instructions": " "}, "instructions is empty: say what a summary should hold"),
        ({"instructions": None}, "instructions is empty: say what a summary should hold"),
        ({"max_tokens": 15}, "max_tokens is 15: it must be 16 or more"),
        ({"max_tokens": 99.5}, "max_tokens is 99.5: it must be 16 or more"),
    ],
)
def test_options_are_checked(options, says):
    with pytest.raises(UsageError) as refused:
        Compaction(**options)
    assert str(refused.value) == says


# -- laws ---------------------------------------------------------------------------------------------

text = st.integers(0, 40).map(words)
brief = st.integers(1, 5).map(lambda number: words(number, "call"))


@st.composite
def exchanges(draw) -> list[Message]:
    """Calls and what answers them, as the loop would leave them."""
    calls = [
        ToolCallPart(id="", name="look", arguments={"at": draw(text)}) for _ in range(draw(st.integers(0, 3)))
    ]
    broken = (
        [MalformedToolCallPart(raw=draw(text), reason="truncated")]
        if not calls or draw(st.booleans())
        else []
    )
    found: list[Message] = [AssistantMessage(content=(*calls, *broken))]
    results = [call.result(draw(text)) for call in calls]
    if results and draw(st.booleans()):
        found.append(ToolMessage.from_results(results))
    else:
        found += (UserMessage(content=(result,)) for result in results)
    if broken:
        found.append(RescueMessage(content=draw(brief)))
    return found


one = st.one_of(
    text.map(lambda content: [UserMessage(content=content)]),
    text.map(lambda content: [AssistantMessage(content=content)]),
    exchanges(),
    exchanges(),
    brief.map(lambda content: [SystemMessage(content=content)]),
    brief.map(lambda content: [CompactionSummaryMessage(content=content)]),
    st.just([CustomMessage(custom_type="note")]),
)
flushed = st.one_of(*[one] * 12, st.just([FlushMessage()]))
conversations = st.lists(flushed, max_size=14).map(
    lambda parts: [message for part in parts for message in part]
)


@given(conversations, st.integers(60, 400), st.floats(0, 0.7), st.booleans(), st.booleans())
def test_whatever_was_said_can_go_on_after_a_compaction(messages, context, keep, by_hand, able):
    compaction = short(keep=keep, share=0.75)
    outputs = words(9, "sum") if able else ""
    agent = Agent(wordy(outputs, context=context), [tool("x")], middleware=[compaction])
    with TemporaryDirectory() as folder:
        session = Session.create(folder)
        for message in messages:
            session.append(message)
        before, context_before = session.entries, session.context()
        events = agent.compact(session) if by_hand else agent.run("And now?", history=session)
        ended = [event for event in events if isinstance(event, CompactionEnded)]
        again = Session.open(session.file)
        assert again.problems == ()
        assert again.entries[: len(before)] == before  # the file still has everything
        assert [e for e in again.entries if isinstance(e, MessageEntry)][: len(messages)] == list(before)
        ended = [event for event in ended if event.summary]
        if not ended:
            assert not any(isinstance(entry, CompactionEntry) for entry in again.entries)
            return
        assert [event.summary for event in ended] == [
            entry.summary for entry in again.entries if isinstance(entry, CompactionEntry)
        ]
        after = session.context()
        assert again.context() == after
        check(messages if by_hand else context_before, after, ended[0])

        plain = list(context_before)
        if by_hand:  # a list becomes the same conversation
            list(Agent(wordy(outputs, context=context), [tool("x")], middleware=[compaction]).compact(plain))
            assert build_request(plain, TARGET).messages == build_request(after, TARGET).messages


def check(before: list[Message], after: list[Message], ended: CompactionEnded) -> None:
    request = build_request(after, TARGET).messages  # raises for a result without its call
    assert ended.tokens_after < ended.tokens_before
    results = [part for message in after for part in message.content if isinstance(part, ToolResultPart)]
    sent = [part for message in request for part in message.content if isinstance(part, ToolResultPart)]
    calls = [part for message in after for part in message.content if isinstance(part, ToolCallPart)]
    assert len(calls) == len(results) == len([part for part in sent if not part.is_error])
    for at, message in enumerate(after):
        if isinstance(message, RescueMessage):
            assert not isinstance(after[at - 1], CompactionSummaryMessage)
    flush = max((at for at, m in enumerate(before) if isinstance(m, FlushMessage)), default=-1)
    systems = [message for message in before[flush + 1 :] if isinstance(message, SystemMessage)]
    assert [message for message in after if isinstance(message, SystemMessage)] == systems
    at = next(at for at, message in enumerate(after) if isinstance(message, CompactionSummaryMessage))
    assert all(isinstance(message, SystemMessage) for message in after[:at])
    assert sum(isinstance(message, CompactionSummaryMessage) for message in after) == 1
    kept = [message for message in after[at + 1 :] if message in before]
    assert kept == before[len(before) - len(kept) :]  # the newest, as they were


@given(conversations)
def test_every_place_can_be_cut_in_a_session(messages):
    with TemporaryDirectory() as folder:
        session = Session.create(folder)
        for message in messages:
            session.append(message)
        told, entries, head = session.context(), session.context_entries(), session.head
        for place in places(told):
            session.branch(head)
            session.compact("S", first_kept=entries[place].id if place < len(told) else None)
            after = session.context()
            (at,) = (at for at, each in enumerate(after) if isinstance(each, CompactionSummaryMessage))
            assert after[at].text == "S"
            assert after[at + 1 :] == told[place:]
            assert build_request(after, TARGET).messages


# -- the real model -----------------------------------------------------------------------------------

QUESTIONS = [
    "What is the weather in Paris?", "Set a timer for ten minutes.", "Who wrote this book?", "Add 2 and 3.",
    "Play some music in the kitchen.", "How far is it to Rome?", "Remind me to call Anna.", "Turn on the lamp.",
]  # fmt: skip


def test_nano_is_compacted_closed_opened_and_goes_on(tmp_path: Path, nano):
    with load(nano["llamacpp"], context=512, threads=1) as model:
        counted: list[int] = []
        agent = Agent(model, instructions="You are a helpful assistant.", middleware=[short()], max_tokens=40)
        session = Session.create(tmp_path)
        ended: list[CompactionEnded] = []
        for question in QUESTIONS * 4:
            for event in agent.run(question, history=session):
                assert not isinstance(event, RunFailed), event
                if isinstance(event, CompactionEnded):
                    ended.append(event)
                if isinstance(event, TurnEnded):
                    counted.append(event.message.usage.input)
            if len([event for event in ended if event.summary]) == 2:
                break
        first, second = [event for event in ended if event.summary][:2]
        assert max(counted) <= 0.8 * 512
        assert first.tokens_before > 0.8 * 512 - 40
        assert first.tokens_after == model.count_tokens(
            session_context_at_first_compaction(session), system="You are a helpful assistant."
        )
        # The engine had the older messages already: only the request for the summary was computed.
        assert first.usage.cache_read > first.usage.input // 2
        assert first.usage.prefilled < 120
        entries, told_before = session.entries, session.context()
        again = Session.open(session.file)
        assert again.entries == entries
        assert again.context() == told_before
        assert sum(isinstance(entry, CompactionEntry) for entry in entries) == 2
        done = agent.respond("What is the weather in Rome?", history=again)
        assert done.stop_reason in ("answer", "length")
        asked = [
            e.message.text for e in again.entries if isinstance(e, MessageEntry) and e.message.role == "user"
        ]
        assert asked[0] == QUESTIONS[0]
        assert asked[-1] == "What is the weather in Rome?"
        assert second.tokens_before > second.tokens_after


def session_context_at_first_compaction(session: Session) -> list[Message]:
    first = next(entry for entry in session.entries if isinstance(entry, CompactionEntry))
    return session.context(first.id)


def test_nano_takes_up_a_session_in_a_smaller_context(tmp_path: Path, nano):
    session = Session.create(tmp_path)
    for question in QUESTIONS * 6:
        session.append(UserMessage(content=question))
        session.append(AssistantMessage(content=f"You said: {question}"))
    before = len(session.entries)
    with load(nano["llamacpp"], context=320, threads=1) as model:
        assert model.count_tokens(session.context()) > 1000
        agent = Agent(model, middleware=[short()], max_tokens=30)
        events = list(agent.run("Turn on the lamp.", history=session))
        ended = compactions(events)[-1]
        assert isinstance(events[-1], RunDone)
        assert ended.summary
        assert ended.tokens_after <= 0.8 * 320
        assert ended.usage.input > 1000  # in pieces
    assert len(session.entries) == before + 3


def test_nano_that_would_rather_call_is_compacted_all_the_same(nano):
    """Its conversations are full of calls, and so it calls where a summary is asked for, if it can."""
    tasks = [task for kind in ("one", "two", "chain") for task in make_tasks(kind, 4, seed=7)]
    random.Random(3).shuffle(tasks)
    history: list[Message] = []
    ended: list[CompactionEnded] = []
    with load(nano["llamacpp"], threads=1, context=768) as model:
        for task in tasks:
            tools = Bench(task).tools
            agent = Agent(model, tools, middleware=[Compaction()], max_turns=4, temperature=0, max_tokens=100)
            *events, last = agent.run(task.prompt, history=history)
            assert isinstance(last, RunDone), last
            ended += [event for event in events if isinstance(event, CompactionEnded)]
            assert history[-1] is last.message
            build_request(history, TARGET)
    assert not any(CALLED in (event.problem or "") for event in ended)
    assert any(event.summary and event.problem is None for event in ended), "the model summarised"
    assert any(event.summary and event.problem for event in ended), "older turns were left out"
    assert sum(event.usage.cache_read for event in ended) > 0
