"""The request builder: its eight rules, one by one and as properties."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from localagent.errors import UnpairedResult, Unsupported, UsageError
from localagent.messages import (
    AssistantMessage,
    AudioPart,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    FlushMessage,
    ImagePart,
    MalformedToolCallPart,
    ReasoningPart,
    RescueMessage,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UnknownPart,
    UserMessage,
    dump_messages,
)
from localagent.prompt.pairing import pair
from localagent.prompt.request import MISSING, LeftOut, RequestWarning, Target, build_request
from tests.messages import strategies

EVERYTHING = Target("everything", reasoning="all", reasoning_forms=frozenset({"plain", "signed", "encrypted", "redacted"}),
                    media_types=frozenset({"image/png", "image/jpeg", "application/pdf", "audio/ogg"}))  # fmt: skip
SLOT = Target("slotted", system="slot")
LOCAL = Target("local", system="slot", vision=False, orphan_results=True)
PNG = ImagePart(data=b"\x89PNG\r\n\x1a\n")


def call(id: str = "c1", name: str = "f", **arguments) -> ToolCallPart:
    return ToolCallPart(id=id, name=name, arguments=arguments)


def sent(*messages, target=EVERYTHING):
    return list(build_request(messages, target).messages)


# -- rule 1: order, and unknown parts -------------------------------------------------------------------


def test_an_image_stays_where_the_author_put_it():
    message = UserMessage(content=("before", PNG, "between", PNG, "after"))
    assert sent(message) == [message]


@pytest.mark.parametrize(
    "message",
    [
        SystemMessage(content=({"kind": "smell"},)),
        UserMessage(content=("x", {"kind": "smell"})),
        AssistantMessage(content=({"kind": "smell"},)),
        RescueMessage(content=({"kind": "smell"},)),
    ],
)
def test_unknown_parts_are_refused_by_name(message):
    with pytest.raises(Unsupported, match=r"message 1: everything cannot carry a part of kind 'smell'"):
        sent(UserMessage.text("hi"), message)
    with pytest.raises(Unsupported, match=r"message 2: .* kind 'smell'"):
        sent(
            AssistantMessage(content=(call(),)),
            ToolMessage.from_result(call().result("x")),
            ToolMessage(content=({"kind": "smell"},)),
        )
    with pytest.raises(Unsupported, match=r"message 1: .* kind 'smell'"):
        result = ToolResultPart(call_id="c1", content=({"kind": "smell"},))
        sent(AssistantMessage(content=(call(),)), ToolMessage(content=(result,)))


# -- rule 2: system messages ----------------------------------------------------------------------------


def test_system_messages_are_lifted_only_where_there_is_a_slot():
    history = [
        SystemMessage.text("One."),
        UserMessage.text("hi"),
        SystemMessage(content=("Two", ", still two.")),
        SystemMessage.text(""),
    ]
    assert sent(*history, target=SLOT) == [
        SystemMessage.text("One.\n\nTwo, still two."),
        UserMessage.text("hi"),
    ]
    assert sent(*history) == history


def test_system_parts_with_provider_data_stay_apart():
    cached = TextPart(text="Long.", provider_metadata={"anthropic": {"cache_control": {"type": "ephemeral"}}})
    history = [SystemMessage(content=(cached,)), SystemMessage.text("Short.")]
    assert sent(*history, target=SLOT) == [SystemMessage(content=(cached, "\n\nShort."))]


# -- rule 3: reasoning ----------------------------------------------------------------------------------


def test_reasoning_goes_back_with_calls_and_not_with_answers():
    thought = ReasoningPart(text="hm")
    acting = AssistantMessage(content=(thought, call()))
    answering = AssistantMessage(content=(thought, "Yes."))
    history = [acting, ToolMessage.from_result(call().result("1")), answering]
    request = build_request(history, Target("calls"))
    assert request.messages[0] == acting
    assert request.messages[2] == AssistantMessage.text("Yes.")
    assert request.left_out == (LeftOut(2, "plain_turn", thought),)
    assert sent(*history) == history
    assert sent(*history, target=Target("none", reasoning="none"))[0].content == (call(),)


def test_signed_and_encrypted_reasoning_goes_back_verbatim_and_in_order():
    parts = (
        ReasoningPart(text="a", signature="sig-a", provider_metadata={"x": {"n": [1]}}),
        ReasoningPart(encrypted="blob", redacted=True),
        TextPart(text="then"),
        ReasoningPart(text="b", signature="sig-b"),
        call(),
    )
    target = Target("provider", reasoning_forms=frozenset({"signed", "redacted"}))
    assert sent(AssistantMessage(content=parts), target=target)[0].content == parts


def test_signatures_do_not_cross_providers():
    parts = tuple(
        ReasoningPart(text="a", signature="s", provider=name) for name in (None, "google", "anthropic")
    )
    message = AssistantMessage(content=(*parts, call()))
    target = dataclasses.replace(EVERYTHING, provider="anthropic")
    request = build_request([message], target)
    assert request.messages[0].content == (parts[0], parts[2], call())
    assert request.left_out == (LeftOut(0, "reasoning_form", parts[1]),)
    assert sent(message)[0] == message


@pytest.mark.parametrize(
    ("part", "form"),
    [
        (ReasoningPart(text="a"), "plain"),
        (ReasoningPart(text="a", signature="s"), "signed"),
        (ReasoningPart(encrypted="e"), "encrypted"),
        (ReasoningPart(text="a", encrypted="e"), "encrypted"),
        (ReasoningPart(signature="s", encrypted="e"), "encrypted"),
        (ReasoningPart(text="a", redacted=True), "encrypted"),
        (ReasoningPart(encrypted="e", redacted=True), "redacted"),
    ],
)
def test_forms_of_reasoning(part, form):
    message = AssistantMessage(content=(part, call()))
    for each in ("plain", "signed", "encrypted", "redacted"):
        target = Target("x", reasoning_forms=frozenset({each}))
        assert (part in sent(message, target=target)[0].content) == (each == form)


def test_reasoning_that_the_wire_cannot_carry_is_accounted_for():
    plain, signed, opaque = (
        ReasoningPart(text="a"),
        ReasoningPart(text="b", signature="s"),
        ReasoningPart(encrypted="e"),
    )
    message = AssistantMessage(content=(plain, signed, opaque, call()))
    request = build_request([message], Target("x", reasoning_forms=frozenset({"signed"})))
    assert request.messages[0].content == (signed, call())
    assert [left.part for left in request.left_out] == [plain, opaque]


# -- rule 4: calls and results --------------------------------------------------------------------------


def results_of(*messages, target=EVERYTHING):
    return [
        [(part.call_id, part.name, part.text, part.is_error) for part in message.content]
        for message in sent(*messages, target=target)
        if isinstance(message, ToolMessage)
    ]


def test_colliding_ids_pair_by_position():
    one, two = call("call_0", "f"), call("call_0", "f")
    turn = AssistantMessage(content=(one, two))
    both = ToolMessage.from_results([one.result("first"), two.result("second")])
    split = [ToolMessage.from_result(one.result("first")), ToolMessage.from_result(two.result("second"))]
    expected = [("call_0", "f", "first", False), ("call_0", "f", "second", False)]
    assert results_of(turn, both, turn, *split) == [expected, expected]


def test_results_in_another_order_pair_by_id():
    a, b = call("a", "f"), call("b", "g")
    turn = AssistantMessage(content=("Both.", a, b))
    assert results_of(turn, ToolMessage.from_results([b.result("B"), a.result("A")])) == [
        [("a", "f", "A", False), ("b", "g", "B", False)]
    ]


def test_a_call_without_a_result_gets_an_error_that_says_so():
    turn = AssistantMessage(content=(call("a"), call("b")))
    missing = ("b", "f", MISSING, True)
    expected = [[("a", "f", "A", False), missing]]
    only_a = ToolMessage.from_result(call("a").result("A"))
    assert results_of(turn, only_a) == expected
    assert results_of(turn, only_a, UserMessage.text("?")) == expected
    assert results_of(AssistantMessage(content=(call("b"),)), AssistantMessage.text("x")) == [[missing]]


def test_names_settle_what_repeated_ids_leave_open():
    f, g = call("call_0", "f"), call("call_0", "g")
    turn = AssistantMessage(content=(f, g))
    assert results_of(turn, ToolMessage.from_result(g.result("G")))[0][1] == ("call_0", "g", "G", False)


def test_results_without_ids_pair_by_position():
    turn = AssistantMessage(content=(call("a", "f"), call("b", "g")))
    bare = ToolMessage.from_results([ToolResultPart(call_id="", content=text) for text in "AB"])
    assert results_of(turn, bare) == [[("a", "f", "A", False), ("b", "g", "B", False)]]


def test_names_settle_what_ids_do_not():
    """Gemini and chat templates have calls without ids: a result must not reach another tool's call."""
    f, g = call("", "f"), call("", "g")
    turn = AssistantMessage(content=(f, g))
    assert results_of(turn, ToolMessage.from_results([g.result("G"), f.result("F")])) == [
        [("", "f", "F", False), ("", "g", "G", False)]
    ]
    assert results_of(turn, ToolMessage.from_result(g.result("G"))) == [
        [("", "f", MISSING, True), ("", "g", "G", False)]
    ]
    with pytest.raises(UnpairedResult):
        results_of(turn, ToolMessage.from_result(call("", "h").result("H")))


def test_an_id_that_only_one_call_has_outweighs_the_name():
    turn = AssistantMessage(content=(call("a", "get_weather"), call("b", "get_weather")))
    renamed = [ToolResultPart(call_id=id, name="get-weather", content=id) for id in ("b", "a")]
    assert [row[2] for row in results_of(turn, ToolMessage.from_results(renamed))[0]] == ["a", "b"]
    same = AssistantMessage(content=(call("a", "f"), call("a", "g")))
    with pytest.raises(UnpairedResult):
        results_of(same, ToolMessage.from_result(ToolResultPart(call_id="a", name="h", content="?")))


def test_no_result_reaches_a_call_that_it_does_not_answer():
    """All turns of three calls with two ids and two names: results in any order, some of them missing."""
    kinds = [(id, name) for id in ("", "a") for name in ("f", "g")]
    for turn in itertools.product(kinds, repeat=3):
        calls = [call(id, name) for id, name in turn]
        for order in itertools.chain.from_iterable(itertools.permutations(range(3), n) for n in range(4)):
            results = [calls[at].result(str(at)) for at in order]
            slots = pair(calls, results)
            assert sorted(slot.text for slot in slots if slot) == sorted(map(str, order))
            for part, slot in zip(calls, slots, strict=True):
                assert slot is None or (slot.call_id, slot.name) == (part.id, part.name)
            ways = [
                places
                for places in itertools.combinations(range(3), len(order))
                if all(turn[place] == turn[at] for place, at in zip(places, order, strict=True))
            ]
            if list(order) == sorted(order) and len(ways) == 1:  # in order, and nothing is left open
                assert [slots[at].text for at in order] == [str(at) for at in order]


def test_results_in_a_user_message_answer_the_turn_before():
    turn = AssistantMessage(content=(call(),))
    mixed = UserMessage(content=("And", call().result("1"), "hurry."))
    assert sent(turn, mixed) == [
        turn,
        ToolMessage.from_result(call().result("1")),
        UserMessage(content=("And", "hurry.")),
    ]
    assert sent(turn, UserMessage(content=(call().result("1"),))) == [
        turn,
        ToolMessage.from_result(call().result("1")),
    ]


def test_a_late_result_moves_behind_its_call():
    turn, asked = AssistantMessage(content=(call(),)), UserMessage.text("Well?")
    answer = ToolMessage.from_result(call().result("1"))
    assert sent(turn, asked, answer) == [turn, answer, asked]


@pytest.mark.parametrize(
    "history",
    [
        [ToolMessage.from_result(call().result("x"))],
        [UserMessage.text("hi"), ToolMessage.from_result(call().result("x"))],
        [AssistantMessage(content=(call("a"),)), ToolMessage.from_result(call("b").result("x"))],
        [AssistantMessage(content=(call("a"),)), ToolMessage.from_results([call("a").result("x")] * 2)],
        [AssistantMessage(content=(call("a"),)), AssistantMessage.text("x"), ToolMessage.from_result(call("a").result("x"))],
        [UserMessage(content=(call().result("x"),))],
    ],
)  # fmt: skip
def test_a_result_without_a_call_is_an_error(history):
    with pytest.raises(
        UnpairedResult, match=r"message \d: the tool result of 'f' with call id '.*' answers no call"
    ):
        sent(*history)


def test_ids_become_unique_where_the_wire_asks():
    turn = AssistantMessage(content=(call("call_0"), call("call_0"), call("")))
    answer = ToolMessage.from_results([call("call_0").result(text) for text in "AB"])
    target = dataclasses.replace(EVERYTHING, call_ids="unique")
    messages = sent(turn, answer, turn, target=target)
    ids = [
        part.id for message in messages if isinstance(message, AssistantMessage) for part in message.content
    ]
    assert ids == ["call_0", "call_0_2", "call", "call_0_3", "call_0_4", "call_2"]
    answered = [
        part.call_id for message in messages if isinstance(message, ToolMessage) for part in message.content
    ]
    assert answered == ids


def test_ids_are_given_only_where_there_is_none():
    turn = AssistantMessage(content=(call("call_0"), call("call_0"), call(""), call("")))
    for wanted, ids in (
        ("any", ["call_0", "call_0", "", ""]),
        ("given", ["call_0", "call_0", "call", "call_2"]),
        ("unique", ["call_0", "call_0_2", "call", "call_2"]),
    ):
        target = dataclasses.replace(EVERYTHING, call_ids=wanted)
        assert [part.id for part in sent(turn, target=target)[0].content] == ids


# -- rule 5: session messages and malformed calls -------------------------------------------------------


def test_a_flush_cuts_what_came_before():
    history = [
        SystemMessage.text("Old."),
        UserMessage.text("a"),
        FlushMessage(),
        FlushMessage(),
        UserMessage.text("b"),
    ]
    request = build_request(history, SLOT)
    assert request.messages == (UserMessage.text("b"),)
    assert [(left.message, left.why) for left in request.left_out] == [(0, "flushed"), (1, "flushed"), (2, "flushed"), (3, "flushed")]  # fmt: skip


def test_summaries_and_rescues_become_user_messages_and_custom_ones_stay():
    history = [
        CompactionSummaryMessage.text("They met."),
        BranchSummaryMessage.text("They parted."),
        CustomMessage(custom_type="note", content=({"kind": "smell"},)),
        RescueMessage.text("Say it plainly."),
    ]
    request = build_request(history, EVERYTHING)
    assert [(message.role, message.text) for message in request.messages] == [
        ("user", "Summary of the conversation so far:\n\nThey met."),
        ("user", "Summary of another branch of this conversation:\n\nThey parted."),
        ("user", "Say it plainly."),
    ]
    assert request.left_out == (LeftOut(2, "custom"),)


BROKEN = MalformedToolCallPart(raw="[f(a=", reason="truncated", name="f", id="m1")


def test_a_malformed_call_goes_back_as_written_with_its_error():
    turn = AssistantMessage(content=("So: ", BROKEN, call("c1", "g")))
    answer = ToolMessage.from_result(call("c1", "g").result("G"))
    said, results = sent(turn, answer, target=LOCAL)
    assert said.content == (TextPart(text="So: "), TextPart(text="[f(a="), call("c1", "g"))
    assert [(part.call_id, part.is_error) for part in results.content] == [("m1", True), ("c1", False)]
    assert "(truncated)" in results.content[0].text
    _, results, told = sent(turn, answer)
    assert results == answer
    assert told.role == "user"
    assert "(truncated)" in told.text


def test_an_answer_to_a_malformed_call_that_is_there_is_used():
    turn = AssistantMessage(content=(BROKEN, call("c1")))
    answers = ToolMessage.from_results([BROKEN.result("Close the bracket."), call("c1").result("1")])
    assert [part.text for part in sent(turn, answers, target=LOCAL)[1].content] == ["Close the bracket.", "1"]
    assert [m.text for m in sent(turn, answers)[1:]] == ["1", "Close the bracket."]


def test_answers_without_ids_count_malformed_calls_when_there_are_enough():
    nameless = BROKEN.model_copy(update={"id": ""})
    turn = AssistantMessage(content=(nameless, call("c1")))
    bare = [ToolResultPart(call_id="", content=text) for text in ("Close it.", "1")]
    assert [part.text for part in sent(turn, ToolMessage.from_results(bare), target=LOCAL)[1].content] == [
        "Close it.",
        "1",
    ]
    only_call = sent(turn, ToolMessage.from_results(bare[1:]), target=LOCAL)[1].content
    assert [part.is_error for part in only_call] == [True, False]
    assert only_call[1].text == "1"


def test_a_rescue_answers_a_malformed_call():
    rescued = [AssistantMessage(content=(BROKEN,)), RescueMessage.text("Again, please.")]
    for target in (LOCAL, EVERYTHING):
        assert [message.text for message in sent(*rescued, target=target)] == ["[f(a=", "Again, please."]


def test_what_answers_a_malformed_call_goes_out_whole():
    answer = ToolResultPart(call_id="m1", content=("Like this:", PNG), is_error=True)
    turn = AssistantMessage(content=(BROKEN,))
    assert sent(turn, ToolMessage.from_result(answer))[1] == UserMessage(content=("Like this:", PNG))


def test_an_empty_system_message_is_accounted_for():
    assert build_request([SystemMessage.text("")], SLOT).left_out == (LeftOut(0, "empty"),)


def test_an_error_that_says_nothing_is_told():
    turn = AssistantMessage(content=(call(),))
    for silent in ("", ()):
        result = ToolResultPart(call_id="c1", content=silent, is_error=True)
        assert sent(turn, ToolMessage.from_result(result))[1].text == "The tool failed and said nothing."


def test_what_is_no_message_is_an_error():
    with pytest.raises(UsageError, match="message 1 is not a message, but dict"):
        sent(UserMessage.text("hi"), {"role": "user"})


def test_an_empty_turn_is_left_out():
    request = build_request([UserMessage.text("a"), AssistantMessage(stop_reason="cancelled")], SLOT)
    assert request.messages == (UserMessage.text("a"),)
    assert request.left_out == (LeftOut(1, "empty"),)


# -- rule 6: what is local stays ------------------------------------------------------------------------


def test_local_fields_never_leave():
    secret = "SECRET"
    common = {"id": secret, "source": secret, "agent_name": secret, "mode": "tool", "payload": {secret: 1}}
    result = ToolResultPart(call_id="c1", name="f", content="1", metadata={secret: 1}, terminate=True)
    history = [
        SystemMessage.text("x", **common),
        UserMessage.text("x", **common),
        AssistantMessage(
            content=(call(),), model=secret, raw=secret, error=secret, usage={"input": 7}, **common
        ),
        ToolMessage.from_result(result, **common),
        CompactionSummaryMessage.text("x", **common),
        RescueMessage.text("x", **common),
    ]
    dumped = dump_messages(sent(*history))
    assert secret not in dumped
    for gone in ('"mode"', '"terminate"', '"metadata"', '"input":7'):
        assert gone not in dumped
    assert result.metadata == {secret: 1}


# -- rule 7: media --------------------------------------------------------------------------------------


def test_a_model_without_vision_gets_no_images_and_one_warning():
    result = call().result([TextPart(text="see"), PNG])
    history = [
        UserMessage(content=("a", PNG, "b", ImagePart(url="https://a.b/c"))),
        AssistantMessage(content=(call(),)),
        ToolMessage.from_result(result),
        UserMessage(content=(PNG,)),
    ]
    request = build_request(history, LOCAL)
    assert request.warnings == (
        RequestWarning("images_removed", "local sees no images: 4 left out of the request"),
    )
    assert request.messages[0] == UserMessage(content=("a", "b"))
    assert request.messages[2].text == "see"
    assert request.messages[3] == UserMessage(content=())
    assert [(left.message, left.why) for left in request.left_out] == [(0, "no_vision")] * 2 + [(3, "no_vision"), (2, "no_vision")]  # fmt: skip
    assert [type(left.part) for left in request.left_out] == [ImagePart] * 4
    assert not build_request(history[1:2], LOCAL).warnings


@pytest.mark.parametrize(
    ("part", "media_type"),
    [
        (ImagePart(data=b"%PDF-1"), "application/pdf"),
        (ImagePart(data=b"x", media_type="image/tiff"), "image/tiff"),
        (AudioPart(data=b"fLaC"), "audio/flac"),
    ],
)
def test_media_that_the_target_does_not_take_are_an_error_that_names_them(part, media_type):
    with pytest.raises(Unsupported, match=f"message 0: seeing takes no {media_type}"):
        sent(UserMessage(content=(part,)), target=Target("seeing", media_types=frozenset({"image/png"})))


def test_files_are_no_images_for_a_model_without_vision():
    with pytest.raises(Unsupported, match="local takes no application/pdf"):
        sent(UserMessage(content=(ImagePart(data=b"%PDF-1"),)), target=LOCAL)


# -- as properties --------------------------------------------------------------------------------------

targets = st.builds(
    Target,
    name=st.just("any"),
    system=st.sampled_from(["slot", "inline"]),
    reasoning=st.sampled_from(["calls", "all", "none"]),
    reasoning_forms=st.frozensets(st.sampled_from(["plain", "signed", "encrypted", "redacted"])),
    vision=st.booleans(),
    media_types=st.just(frozenset([*strategies.MAGIC.values(), *strategies.SOUNDS.values()])),
    orphan_results=st.booleans(),
    call_ids=st.sampled_from(["any", "given", "unique"]),
)


@st.composite
def histories(draw):
    """Conversations whose results answer calls, some of them late, missing, repeated in id or in a user message."""
    history = []
    for message in draw(st.lists(strategies.messages, max_size=4)):
        content = tuple(part for part in message.content if part.kind != "tool_result")
        if message.role == "tool":
            continue
        history.append(message.model_copy(update={"content": content}))
        if isinstance(message, AssistantMessage):
            answers = [part.result("ok") for part in content if isinstance(part, ToolCallPart)]
            answers = answers[: draw(st.integers(0, len(answers)))]
            if draw(st.booleans()):
                history.append(
                    draw(strategies.user).model_copy(update={"content": (TextPart(text="while"),)})
                )
            if answers:
                history.append(ToolMessage.from_results(answers))
    return history


def everything_in(messages):
    return [part for message in messages for part in message.content]


@given(histories(), targets)
def test_the_builder_keeps_order_and_loses_nothing_silently(history, target):
    before = dump_messages(history)
    try:
        request = build_request(history, target)
    except Unsupported as error:
        unknown = any(isinstance(part, UnknownPart) for part in everything_in(history))
        media = any(isinstance(part, ImagePart | AudioPart | ReasoningPart | ToolCallPart | TextPart) for part in everything_in(history))  # fmt: skip
        assert unknown or media, error
        return
    assert dump_messages(history) == before
    started = max((at for at, m in enumerate(history) if isinstance(m, FlushMessage)), default=-1)
    gone = {left.message for left in request.left_out if left.part is None}
    left = [id(left.part) for left in request.left_out if left.part is not None]
    for wanted in ("text", "image", "audio", "reasoning"):  # these go out as they are, in order
        kept = [
            part
            for at, message in enumerate(history)
            if at > started and at not in gone and message.role in ("user", "assistant")
            for part in message.content
            if part.kind == wanted and id(part) not in left
        ]
        out = [part for part in everything_in(request.messages) if part.kind == wanted]
        rest = iter(out)
        assert all(any(part is other for other in rest) for part in kept), wanted


@given(histories(), targets)
def test_n_calls_have_n_results_in_the_order_of_the_calls(history, target):
    try:
        messages = build_request(history, target).messages
    except Unsupported:
        assume(False)
    for at, message in enumerate(messages):
        if not isinstance(message, AssistantMessage):
            continue
        calls = message.tool_calls
        follower = messages[at + 1] if at + 1 < len(messages) else None
        answers = follower.results if isinstance(follower, ToolMessage) else ()
        if not target.orphan_results:
            assert [call.id for call in calls] == [answer.call_id for answer in answers]
        rest = iter(answers)
        assert all(any(answer.call_id == call.id for answer in rest) for call in calls)


@given(st.lists(st.sampled_from(["a", "b", ""]), max_size=5), st.data())
def test_pairing_answers_every_call_once(ids, data):
    """Results that were made for the calls are all placed, in any order, however the ids collide."""
    calls = [call(id, "f") for id in ids]
    answered = data.draw(st.permutations(calls))
    results = [part.result(str(number)) for number, part in enumerate(answered)]
    slots = pair(calls, results)
    assert sorted(slot.text for slot in slots) == sorted(result.text for result in results)
    for part, slot in zip(calls, slots, strict=True):
        assert slot.call_id in (part.id, "")
    if answered == calls:
        assert slots == results
