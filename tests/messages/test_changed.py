"""What a message is made from and made into: validated changes, other spellings that load, media as text."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from localagent.errors import InvalidMedia, InvalidMessage
from localagent.messages import (
    AssistantMessage,
    AudioPart,
    ImagePart,
    Prices,
    ReasoningPart,
    RescueMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UnknownPart,
    Usage,
    UsageCost,
    UserMessage,
    load_message,
    load_messages,
)
from localagent.messages.usage import Timings
from localagent.session.entries import CompactionEntry, MessageEntry

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_change_makes_another_message_and_leaves_the_first():
    first = UserMessage(content="hi", id="m1")
    second = first.changed(content=["hi", ImagePart(data=PNG)], agent_name="a")
    assert (first.text, first.agent_name) == ("hi", None)
    assert (second.id, second.agent_name, len(second.content)) == ("m1", "a", 2)
    assert load_message(second.model_dump_json()) == second
    assert first.changed() == first


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (UserMessage(content="hi"), {"content": 7}),
        (UserMessage(content="hi"), {"colour": "red"}),
        (AssistantMessage(content="hi"), {"stop_reason": "tired"}),
        (AssistantMessage(content="hi"), {"content": [ToolResultPart(call_id="a", content="x")]}),
        (TextPart(text="hi"), {"text": "\ud800"}),
        (ToolCallPart(id="a", name="f", arguments_text='{"x": 1}'), {"arguments_text": "{"}),
        (ImagePart(data=PNG), {"url": "https://a.b/c.png", "file_id": "f"}),
    ],
)
def test_a_change_is_validated(value, fields):
    with pytest.raises(InvalidMessage) as caught:
        value.changed(**fields)
    assert "\n" not in str(caught.value)


def test_fields_that_say_the_same_change_together():
    call = ToolCallPart(id="a", name="f", arguments_text='{"x":1}')
    assert call.changed(arguments={"x": 2}).arguments_text == '{"x": 2}'
    assert call.changed(arguments_text='{"x":3}').arguments == {"x": 3}
    assert call.changed(name="g").arguments_text == '{"x":1}'
    picture = ImagePart(url="https://a.b/c.jpg")
    assert picture.media_type == "image/jpeg"
    assert picture.changed(data=PNG) == ImagePart(data=PNG)
    assert picture.changed(file_id="f") == ImagePart(file_id="f")
    assert ImagePart(data=PNG).changed(url="https://a.b/c") == ImagePart(url="https://a.b/c")
    assert picture.changed(media_type="image/x") == ImagePart(url=picture.url, media_type="image/x")


def test_reasoning_parts_keep_what_the_joined_text_loses():
    parts = (ReasoningPart(text="a", signature="s"), TextPart(text="x"), ReasoningPart(encrypted="e"))
    assert AssistantMessage(content=parts).reasoning_parts == (parts[0], parts[2])


def test_media_as_text():
    assert ImagePart(data=PNG).to_base64() == "iVBORw0KGgo="
    assert ImagePart(data=PNG).data_url() == "data:image/png;base64,iVBORw0KGgo="
    assert ImagePart(data=b"?").data_url() == "data:application/octet-stream;base64,Pw=="
    assert AudioPart.from_url(AudioPart(data=b"fLaC").data_url()) == AudioPart(data=b"fLaC")
    for elsewhere, where in (
        (ImagePart(url="https://a.b/c.png"), "URL"),
        (AudioPart(file_id="f"), "file id"),
    ):
        for write in (elsewhere.to_base64, elsewhere.data_url):
            with pytest.raises(InvalidMedia, match=f"by {where} has no bytes here"):
                write()


def test_other_spellings_are_read_when_loading():
    parts = [
        {"type": "reasoning", "text": "hm"},
        "plain",
        {"type": "tool_call", "id": "a", "name": "f"},
        {"type": "smell", "of": "roses"},
        {"kind": "text", "text": "x"},
    ]
    usage = {"input_tokens": 3, "output_tokens": 4, "cache_read_tokens": 1}
    said = load_message(json.dumps({"role": "assistant", "content": parts, "usage": usage}))
    assert [part.kind for part in said.content] == ["reasoning", "text", "tool_call", "smell", "text"]
    assert isinstance(said.content[3], UnknownPart)
    assert said.usage == Usage(input=3, output=4, cache_read=1)
    assert load_message(
        '{"role": "resque", "content": [{"type": "text", "text": "go on"}]}'
    ) == RescueMessage(content="go on")
    result = {"type": "tool_result", "call_id": "a", "content": [{"type": "text", "text": "x"}]}
    (answer,) = load_messages(json.dumps([{"role": "tool", "content": [result]}]))
    assert answer == ToolMessage.from_result(ToolResultPart(call_id="a", content=(TextPart(text="x"),)))


@pytest.mark.parametrize("usage", [{"input": 1, "input_tokens": 2}, {"prompt_tokens": 2}])
def test_two_spellings_of_one_number_and_unknown_ones_are_refused(usage):
    with pytest.raises(InvalidMessage):
        load_message(json.dumps({"role": "assistant", "content": [], "usage": usage}))


def test_cost_is_none_unless_somebody_set_prices():
    assert Usage(input=10).cost is None
    assert (Usage(input=1) + Usage(input=2)).cost is None
    prices = Prices(input=2.0, output=10.0, cache_read=0.5)
    used = Usage(input=3_000_000, output=100_000, cache_read=1_000_000)
    cost = prices.cost(used)
    assert cost == UsageCost(input=4.0, output=1.0, cache_read=0.5)
    assert cost.total == 5.5
    paid = Usage(input=1, cost=cost)
    assert (paid + Usage(input=1)).cost == (Usage(input=1) + paid).cost == cost
    assert (paid + paid).cost.total == 11.0
    assert Prices(input=2.0, output=1.0).cost(used).total == 6.1
    written = Usage(input=6_000_000, cache_read=1_000_000, cache_write=2_000_000)
    assert Prices(input=2.0, output=1.0).cost(written) == UsageCost(
        input=6.0, cache_read=2.0, cache_write=4.0
    )
    assert Prices(input=2.0, output=1.0, cache_read=0.0, cache_write=3.0).cost(written) == UsageCost(
        input=6.0, cache_write=6.0
    )


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Usage, {"input": 1}),
        (UsageCost, {"input": 1.0}),
        (Prices, {"input": 1.0, "output": 2.0}),
        (Timings, {"decode": 1.0}),
    ],
)
def test_a_misspelt_cost_is_refused(kind, given):
    """It would be counted as nothing."""
    kind(**given)
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        kind(**given, outptu=1)
    for name in given:
        for wrong in (-1, float("nan"), float("inf"), "much"):
            with pytest.raises(ValidationError):
                kind(**given | {name: wrong})
    with pytest.raises(ValidationError, match="frozen"):
        kind(**given).output = 3


@pytest.mark.parametrize(
    "make",
    [
        lambda said: TextPart(text=[said]),
        lambda said: ToolCallPart(id="1", name="f", arguments=said),
        lambda said: UserMessage(content=[{"kind": "text", "text": {said: 1}}]),
        lambda said: AssistantMessage(content="x", usage=said),
        lambda said: MessageEntry(id="a", parent=None, timestamp=said, message=UserMessage(content=said)),
        lambda said: CompactionEntry(id="a", parent=None, timestamp=None, summary=[said], first_kept=None),
    ],
)
def test_what_was_said_stays_out_of_errors(make):
    """They end in logs and in reports."""
    with pytest.raises(ValidationError) as caught:
        make("SECRET")
    assert "SECRET" not in str(caught.value)
