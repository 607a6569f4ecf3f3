"""Messages: conveniences, the exact JSON form, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from localagent.messages import (
    AssistantMessage,
    MalformedToolCallPart,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    Usage,
    UserMessage,
    dump_messages,
    load_messages,
)
from tests.parsers.outputs import values

text = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
arguments = st.dictionaries(text, values.filter(lambda value: "\\ud" not in json.dumps(value)), max_size=3)
parts = st.one_of(
    st.builds(TextPart, text=text),
    st.builds(ReasoningPart, text=text),
    st.builds(ToolCallPart, id=text, name=text, arguments=arguments, repaired=st.booleans()),
    st.builds(MalformedToolCallPart, raw=text, reason=text, name=st.none() | text, partial=arguments),
)
times = st.none() | st.datetimes(timezones=st.just(UTC))
messages = st.one_of(
    st.builds(SystemMessage, content=text),
    st.builds(UserMessage, content=text, timestamp=times),
    st.builds(AssistantMessage, content=st.lists(parts, max_size=4), timestamp=times, raw=st.none() | text),
    st.builds(
        ToolMessage,
        content=st.lists(
            st.builds(ToolResultPart, call_id=text, name=text, content=text, is_error=st.booleans()),
            min_size=1,
            max_size=3,
        ),
    ),
)


@given(st.lists(messages, max_size=4))
def test_json_form_round_trips_exactly(conversation):
    assert load_messages(dump_messages(conversation)) == conversation


def test_conveniences():
    call = ToolCallPart(id="c1", name="get_weather", arguments={"city": "Zürich", "days": 3})
    message = AssistantMessage(
        content=(
            ReasoningPart(text="hm"),
            TextPart(text="Let me "),
            call,
            TextPart(text="look."),
            MalformedToolCallPart(raw="g('x')", reason="positional_argument", name="g"),
        )
    )
    assert message.text == "Let me look."
    assert message.reasoning == "hm"
    assert message.tool_calls == (call,)
    assert message.malformed_tool_call_blocks == ("g('x')",)
    assert call.described_arguments == 'city="Zürich", days=3'
    assert json.loads(call.arguments_text) == call.arguments
    assert ToolMessage.from_result(call, "4 °C").content[0].call_id == "c1"
    assert Usage(input=3, output=4).total == 7


def test_messages_are_values():
    message = UserMessage(content="hi")
    assert message == UserMessage(content=(TextPart(text="hi"),))
    with pytest.raises(ValidationError):
        message.content = ()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: UserMessage(content="x", colour="red"), "colour"),
        (lambda: AssistantMessage(content=({"kind": "smell", "text": "x"},)), "smell"),
        (lambda: load_messages('[{"role": "wizard", "content": []}]'), "wizard"),
        (lambda: ToolMessage(content=()), "at least 1"),
        (lambda: ToolCallPart(id="c", name="f", arguments=[1]), "arguments"),
        (lambda: ToolCallPart(id="c", name="f", arguments={"a": 1}, arguments_text='{"a": 2}'), "not the JSON text"),
        (lambda: ToolCallPart(id="c", name="f", arguments_text="{"), "not the JSON text"),
        (lambda: UserMessage(content="x", timestamp=datetime(2026, 1, 1)), "timezone"),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(make, says):
    with pytest.raises(ValidationError, match=says):
        make()
