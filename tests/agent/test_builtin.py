"""Built-in middleware leaves the history as it is, and says where something is left out."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc

import pytest

from localagent.agent import (
    Agent,
    ClipResults,
    Compaction,
    LogMessages,
    RunDone,
    RunFailed,
    StripImages,
    ToolEnded,
    middleware,
)
from localagent.agent.builtin import LEFT_OUT, clip_text
from localagent.agent.summarising import clip_message
from localagent.errors import UsageError
from localagent.log import MessageLog, read_log
from localagent.messages import (
    AssistantMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ImagePart,
    MalformedToolCallPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from localagent.model import load
from localagent.session import Session
from localagent.tools import Tool, ToolOutput
from tests.agent.replaying import block, scripted
from tests.agent.words import WordHost, words, wordy

PIXEL = ImagePart.from_url("https://example.com/pixel.png")
PDF = ImagePart.from_url("https://example.com/report.pdf")
CALL = ToolCallPart(id="1", name="look")


def looking(content) -> Tool:
    return Tool(
        name="look",
        description="",
        parameters={"type": "object", "properties": {}},
        bind=lambda arguments: lambda context: content,
    )


# -- the log ------------------------------------------------------------------------------------------


def test_every_message_is_logged_with_its_turn(tmp_path):
    with MessageLog(tmp_path) as log:
        agent = Agent(
            scripted(block("look()"), "", "Red."), [looking("red")], middleware=[LogMessages(log, "thread 7")]
        )
        history: list[Message] = []
        agent.respond("Which colour?", history=history)
        assert log.path is not None
        records, problems = read_log(log.path).records, read_log(log.path).problems
    assert problems == ()
    assert [record.message for record in records] == history
    assert [(record.message.role, record.context.iteration) for record in records] == [
        ("user", 0),
        ("assistant", 0),
        ("tool", 0),
        ("assistant", 1),
        ("rescue", 1),
        ("assistant", 2),
    ]
    assert {(record.thread_id, record.context.model) for record in records} == {("thread 7", "replay")}


def test_answers_are_logged_with_their_timings(tmp_path, nano):
    with MessageLog(tmp_path) as log, load(nano["llamacpp"], context=256, threads=1) as model:
        done = Agent(model, middleware=[LogMessages(log)], max_tokens=5).respond("Hello.")
        assert log.path is not None
        asked, answered = read_log(log.path).records
    assert done.message is not None
    assert asked.context.timings is None
    assert answered.context.timings == done.message.timings
    assert answered.context.timings.decode > 0
    assert answered.context.model == done.message.model
    assert answered.thread_id is None


def test_a_log_that_cannot_be_written_ends_the_run(tmp_path):
    log = MessageLog(tmp_path)
    log.close()
    *_, last = Agent(scripted("Red."), middleware=[LogMessages(log)]).run("Which colour?")
    assert isinstance(last, RunFailed)
    assert "the message log is closed" in str(last.error)


class AsyncLog:
    """A log that takes its time, and notes which loop it is awaited on."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.loops: list[object] = []

    async def append(self, message, thread_id=None, context=None):
        await asyncio.sleep(0.01)
        self.messages.append(message)
        self.loops.append(asyncio.get_running_loop())


class NamedLog(AsyncLog):
    """The same under another name."""

    log = AsyncLog.append
    append = None


@pytest.mark.parametrize("kind", [AsyncLog, NamedLog])
def test_a_log_may_be_async(kind):
    log, history = kind(), []
    Agent(scripted("Red."), middleware=[LogMessages(log)]).respond("Which?", history=history)
    assert log.messages == history

    async def main():
        agent = Agent(scripted("Red."), middleware=[LogMessages(log)])
        events = [event async for event in agent.arun("Which?", history=history)]
        assert isinstance(events[-1], RunDone)
        return asyncio.get_running_loop()

    loop = asyncio.run(main())
    assert log.messages == history
    assert log.loops[2:] == [loop, loop]
    assert loop not in log.loops[:2]


@pytest.mark.parametrize("log", [None, 5, object()])
def test_what_is_no_log(log):
    with pytest.raises(UsageError, match="must have a method append"):
        LogMessages(log)


@pytest.mark.parametrize("kept_in", [list, Session])
@pytest.mark.parametrize("by_hand", [False, True])
def test_summaries_are_logged(tmp_path, kept_in, by_hand):
    history = [
        UserMessage.text(words(60)),
        AssistantMessage.text(words(60, "a")),
        UserMessage.text(words(60)),
    ]
    if kept_in is Session:
        session = Session.create(tmp_path)
        for message in history:
            session.append(message)
    kept = history if kept_in is list else session
    log = AsyncLog()
    compaction = Compaction(instructions="Summarise.")
    agent = Agent(wordy("It was long.", "Red.", context=220), middleware=[compaction, LogMessages(log)])
    if by_hand:
        list(agent.compact(kept))
    else:
        agent.respond("Which?", history=kept)
    (summary,) = [message for message in log.messages if isinstance(message, CompactionSummaryMessage)]
    told = history if kept_in is list else session.context()
    assert summary == next(message for message in told if isinstance(message, CompactionSummaryMessage))
    assert summary.id
    assert summary.text.startswith("It was long.")


def test_a_summary_that_is_cancelled_while_it_is_logged_is_kept():
    cancel = threading.Event()

    class Stuck:
        async def append(self, message, thread_id, context):
            cancel.set()
            await asyncio.sleep(30)

    history = [
        UserMessage.text(words(60)),
        AssistantMessage.text(words(60, "a")),
        UserMessage.text(words(60)),
    ]
    hooks = [Compaction(instructions="Summarise."), LogMessages(Stuck())]
    agent = Agent(wordy("It was long.", context=220), middleware=hooks)
    *_, ended = agent.compact(history, cancel=cancel)
    assert history[0].text == ended.summary


# -- images -------------------------------------------------------------------------------------------


def showing(*messages: Message) -> list[str]:
    return ["".join(map(shown, message.content)) for message in messages]


def shown(part) -> str:
    match part:
        case TextPart():
            return part.text
        case ImagePart():
            return "<pdf>" if part == PDF else "<image>"
    return f"({''.join(map(shown, part.parts))})"


PICTURES = [
    UserMessage(content=("What? ", PIXEL, " And? ", PIXEL)),
    AssistantMessage(content="A dot."),
    ToolMessage.from_results([CALL.result([TextPart(text="seen "), PIXEL]), CALL.result("nothing")]),
    UserMessage(content=(CALL.result([PIXEL]), "text")),
    AssistantMessage(content=("Here: ", PIXEL)),
    CustomMessage(custom_type="x", content=(PIXEL,)),
    UserMessage(content=("Read ", PDF)),
]
OUT = "[image left out]"
STRIPPED = [f"What? {OUT} And? {OUT}", "A dot.", f"(seen {OUT})(nothing)", f"({OUT})text", f"Here: {OUT}"]


@pytest.mark.parametrize("keep", range(6))
def test_images_are_left_out_of_all_but_the_last(keep):
    original = showing(*PICTURES)
    with_images = [0, 2, 3, 4]
    expected = [*STRIPPED, *original[5:]]
    for at in with_images[max(0, len(with_images) - keep) :]:
        expected[at] = original[at]
    changed = StripImages(keep).rewrite_messages(PICTURES, None)
    assert showing(*changed) == expected
    assert showing(*PICTURES) == original
    assert [each.role for each in changed] == [each.role for each in PICTURES]


def test_images_stay_in_the_history():
    model = scripted(block("look()"), "A dot.")
    history: list[Message] = []
    look = looking((TextPart(text="seen "), PIXEL))
    Agent(model, [look], middleware=[StripImages()]).respond(
        UserMessage(content=("What? ", PIXEL)), history=history
    )
    assert [len(message.images) for message in history] == [1, 0, 0, 0]
    assert history[2].results[0].parts[1] == PIXEL
    first, second = model.host.rendered[0], model.host.rendered[-1]
    assert first[0]["content"] == f"What? {OUT}"
    assert second[-1]["content"] == f"seen {OUT}"


@pytest.mark.parametrize("keep", [-1, 1.0, True, "1", None])
def test_how_many_to_keep_is_checked(keep):
    with pytest.raises(UsageError, match="keep is"):
        StripImages(keep)


# -- long texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 1, 40, 60, 100, 101, 500, 998, 999, 1000, 1001])
def test_a_clipped_text_has_head_and_tail_and_says_what_is_missing(limit):
    text = "".join(f"{number:04}" for number in range(250))
    clipped = clip_text(text, limit)
    assert len(clipped) <= max(limit, len(LEFT_OUT.format(1000)))
    if limit >= 1000:
        assert clipped == text
        return
    head, _, rest = clipped.partition("\n[... ")
    number, _, tail = rest.partition(" characters left out here ...]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) >= len(tail)
    assert int(number.replace(",", "")) == len(text) - len(head) - len(tail)


def test_a_short_text_does_not_grow():
    assert clip_text("just a few words", 3) == "just a few words"


@pytest.mark.parametrize("raw", [None, "as it was written"])
def test_every_part_of_a_message_is_clipped(raw):
    long = "x" * 1000
    message = AssistantMessage(
        content=(
            ReasoningPart(text=long),
            TextPart(text=long),
            TextPart(text="short"),
            ToolCallPart(id="1", name="write", arguments={"path": "a", "text": long}),
            ToolCallPart(id="2", name="look"),
            MalformedToolCallPart(raw=long, reason="truncated", id="3"),
        ),
        raw=raw,
    )
    clipped = clip_message(message, 200)
    thought, said, short, write, look, broken = clipped.content
    assert (short, look) == (message.content[2], message.content[4])
    assert clipped.raw is None
    for text in (thought.text, said.text, write.arguments["arguments"], broken.raw):
        assert 100 < len(text) <= 200
        assert "characters left out here" in text
    assert (write.id, write.name, broken.id, broken.reason) == ("1", "write", "3", "truncated")
    assert '"path": "a"' in write.arguments["arguments"]
    same = AssistantMessage(content="short", raw=raw)
    assert clip_message(same, 200) is same


def test_results_are_clipped_in_requests_and_kept_in_the_history():
    text = words(2000)
    model = wordy(block("look()"), "Done.", "Done again.", context=400)
    agent = Agent(model, [looking(text)], middleware=[ClipResults(1000)])
    history: list[Message] = []
    agent.respond("Look.", history=history)
    agent.respond("And?", history=history)
    assert history[2].results[0].content == text
    assert isinstance(model.host, WordHost)
    assert [len(asked.split()) < 200 for asked in model.host.asked] == [True] * 3
    assert "word0 " in model.host.asked[1]
    assert "word1999" in model.host.asked[1]
    assert "characters left out here" in model.host.asked[1]
    *_, last = Agent(wordy(block("look()"), "Done.", context=400), [looking(text)]).run("Look.")
    assert isinstance(last, RunFailed)


def test_only_long_results_are_clipped():
    long = "y" * 1000
    messages: list[Message] = [
        UserMessage(content=long),
        AssistantMessage(content=(CALL, CALL)),
        ToolMessage.from_results([CALL.result(long), CALL.result("short"), CALL.result(long, is_error=True)]),
        UserMessage(content=(CALL.result([TextPart(text=long), PIXEL, TextPart(text=long)]), long)),
    ]
    told = ClipResults(500).rewrite_messages(messages, None)
    assert told[:2] == messages[:2]
    first, second, third = told[2].results
    assert second.text == "short"
    assert all(490 < len(each.text) <= 500 for each in (first, third))
    assert third.is_error
    mixed, plain = told[3].content
    assert plain.text == long
    assert [type(part) for part in mixed.parts] == [TextPart, ImagePart, TextPart]
    assert 490 < len(mixed.text) <= 500
    assert messages[2].results[0].text == long


HUGE = 100_000_000


def got(agent: Agent) -> ToolResultPart:
    """The one result of a run, which everybody who is told of it is told alike."""
    history: list[Message] = []
    events = list(agent.run("Go.", history=history))
    assert isinstance(events[-1], RunDone), events[-1]
    (ended,) = (event for event in events if isinstance(event, ToolEnded))
    assert ended.result.content == history[2].results[0].content
    return history[2].results[0]


def test_a_huge_result_is_cut_before_it_is_kept():
    text = "first " + "#" * HUGE + " last"
    model = wordy(block("look()"), "Done.", context=400)
    tracemalloc.start()
    result = got(Agent(model, [looking(text)]))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 20_000_000, "nobody holds on to it"
    assert 999_000 < len(result.text) <= 1_000_000
    assert (result.text[:6], result.text[-5:]) == ("first ", " last")
    missing = len(text) - len(result.text)
    assert (
        f"\n[... {missing + len(LEFT_OUT.format(missing)):,} characters left out here ...]\n" in result.text
    )
    assert isinstance(model.host, WordHost)
    asked = model.host.asked[1]
    assert len(asked) < 101_000
    shown = asked.count("#")
    assert f"[... {HUGE - shown:,} characters left out here ...]" in asked, "what is missing in all"


def test_an_own_clipping_takes_the_place_of_the_first():
    assert len(got(Agent(scripted(block("look()"), "x"), [looking("#" * 5000)])).text) == 5000
    own = ClipResults(200, kept=1000)
    model = wordy(block("look()"), "Done.", context=400)
    assert len(got(Agent(model, [looking("#" * 5000)], middleware=[own])).text) == 1000
    assert isinstance(model.host, WordHost)
    asked = model.host.asked[1]
    assert f"[... {5000 - asked.count('#'):,} characters left out here ...]" in asked
    generous = ClipResults(2_000_000, kept=3_000_000)
    agent = Agent(scripted(block("look()"), "x"), [looking("y" * 2_000_000)], middleware=[generous])
    assert len(got(agent).text) == 2_000_000


def test_what_middleware_makes_of_a_result_is_cut_as_well():
    @middleware("around_tool")
    def repeat(call, proceed, run):
        result = proceed(call)
        return result.model_copy(update={"content": result.text * 2_000_000})

    text = got(Agent(scripted(block("look()"), "x"), [looking("y")], middleware=[repeat])).text
    assert 999_000 < len(text) <= 1_000_000
    assert f"\n[... {2_000_000 - text.count('y'):,} characters left out here ...]\n" in text


def test_metadata_and_parts_are_bounded_too():
    output = ToolOutput("short", metadata={"a": 1, "long": "z" * 2_000_000, "b": [2]})
    result = got(Agent(scripted(block("look()"), "x"), [looking(output)]))
    assert result.metadata == {"a": 1, "b": [2], "left_out": "long"}
    parts = [TextPart(text=f"<{n}>") for n in range(3000)]
    result = got(Agent(scripted(block("look()"), "x"), [looking(parts)]))
    texts = [part.text for part in result.parts]
    assert texts[:500] == [f"<{n}>" for n in range(500)]
    assert texts[500] == "[... 2,000 parts left out here ...]"
    assert texts[501:] == [f"<{n}>" for n in range(2500, 3000)]


def test_what_was_left_out_before_is_counted():
    whole = "#" * 100_000
    twice = clip_text(clip_text(whole, 10_000), 1000)
    assert len(twice) <= 1000
    assert f"[... {len(whole) - twice.count('#'):,} characters left out here ...]" in twice
    same = clip_text(whole + "\n[... , characters left out here ...]\n", 1000)
    assert len(same) <= 1000


@pytest.mark.parametrize("kept", [99, None])
def test_how_much_is_kept_is_checked(kept):
    with pytest.raises(UsageError, match="kept is"):
        ClipResults(kept=kept)


@pytest.mark.parametrize("characters", [0, 99, 1e4, True, None])
def test_how_much_is_left_is_checked(characters):
    with pytest.raises(UsageError, match="characters is"):
        ClipResults(characters)
