"""Messages: conveniences, factories, the exact JSON form, and what is refused."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from localagent.errors import InvalidMessage
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
    SystemMessage,
    TextPart,
    Timings,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UnknownPart,
    Usage,
    UsageCost,
    UserMessage,
    dump_messages,
    json_schema,
    load_message,
    load_messages,
)
from localagent.messages.values import same_json
from parsers import Misfit, MisfitKind
from tests.messages import strategies


@given(strategies.conversations)
def test_json_form_round_trips_exactly(conversation):
    again = load_messages(dump_messages(conversation))
    assert again == conversation
    assert dump_messages(again) == dump_messages(conversation)  # to `==` 1 is True


@given(strategies.messages)
def test_every_message_loads_by_its_own_class_too(message):
    assert type(message).model_validate_json(message.model_dump_json()) == message
    assert load_message(message.model_dump_json()) == message


@given(strategies.calls)
def test_arguments_and_their_text_are_equal(call):
    assert same_json(json.loads(call.arguments_text), call.arguments)
    assert ToolCallPart(id="", name="f", arguments_text=call.arguments_text).arguments == call.arguments


def test_the_json_form_is_small_and_begins_with_what_matters():
    assert UserMessage.text("hi").model_dump_json() == (
        '{"role":"user","content":[{"kind":"text","text":"hi"}],"id":null,"timestamp":null}'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (TextPart(text="a"), '{"kind":"text","text":"a"}'),
        (ReasoningPart(), '{"kind":"reasoning","text":""}'),
        (ImagePart(file_id="f"), '{"kind":"image","file_id":"f"}'),
        (ImagePart(url="https://a.b/c.png"), '{"kind":"image","url":"https://a.b/c.png","media_type":"image/png"}'),
        (AudioPart(data=b"x"), '{"kind":"audio","data":"eA==","media_type":"audio/mpeg"}'),
        (
            ToolCallPart(id="1", name="f"),
            '{"kind":"tool_call","id":"1","name":"f","arguments":{},"arguments_text":"{}","repaired":false}',
        ),
        (
            ToolCallPart(id="1", name="f", fits=(Misfit(MisfitKind.MISSING, "/a"),)),
            '{"kind":"tool_call","id":"1","name":"f","arguments":{},"arguments_text":"{}","repaired":false,'
            '"fits":[{"kind":"missing_required","path":"/a"}]}',
        ),
        (
            MalformedToolCallPart(raw="f(", reason="truncated"),
            '{"kind":"malformed_tool_call","raw":"f(","reason":"truncated","name":null,"partial":{}}',
        ),
        (
            ToolResultPart(call_id="1", content="x"),
            '{"kind":"tool_result","call_id":"1","name":"","content":"x","is_error":false}',
        ),
        (UnknownPart(kind="smell", of="roses"), '{"kind":"smell","of":"roses"}'),
        (Usage(), '{"input":0,"output":0,"cache_read":0,"cache_write":0,"cost":null}'),
        (UsageCost(), '{"input":0.0,"output":0.0,"cache_read":0.0,"cache_write":0.0,"total":0.0}'),
        (Timings(), '{"prefill":0.0,"decode":0.0}'),
        (
            AssistantMessage(),
            '{"role":"assistant","content":[],"id":null,"timestamp":null,'
            '"usage":{"input":0,"output":0,"cache_read":0,"cache_write":0,"cost":null},'
            '"timings":{"prefill":0.0,"decode":0.0},"stop_reason":"stop","model":null,"raw":null}',
        ),
        (FlushMessage(), '{"role":"flush","content":[],"id":null,"timestamp":null}'),
        (
            CompactionSummaryMessage.text(""),
            '{"role":"compaction_summary","content":[{"kind":"text","text":""}],"id":null,"timestamp":null,"source":"compaction"}',
        ),
        (
            BranchSummaryMessage(content=()),
            '{"role":"branch_summary","content":[],"id":null,"timestamp":null,"branch":null}',
        ),
        (
            CustomMessage(custom_type="note"),
            '{"role":"custom","content":[],"id":null,"timestamp":null,"custom_type":"note"}',
        ),
    ],
)  # fmt: skip
def test_what_nobody_said_is_left_at_nothing(value, text):
    assert json.loads(value.model_dump_json()) == json.loads(text)
    assert type(value).model_validate_json(text) == value


def test_there_is_a_json_schema():
    schema = json_schema()
    definitions = schema["$defs"]
    assert definitions["ToolCallPart"]["properties"]["kind"]["const"] == "tool_call"
    assert definitions["ImagePart"]["properties"]["data"]["anyOf"][0] == {
        "type": "string",
        "contentEncoding": "base64",
    }
    assert set(schema["items"]["discriminator"]["mapping"]) == {
        "system", "user", "assistant", "tool", "custom", "branch_summary", "compaction_summary", "rescue", "flush",
    }  # fmt: skip


SCHEMA = Draft202012Validator(json_schema())


@given(strategies.conversations)
def test_what_is_dumped_is_valid_by_the_schema(conversation):
    SCHEMA.validate(json.loads(dump_messages(conversation)))


@pytest.mark.parametrize(
    "wrong",
    [
        [{"role": "wizard", "content": []}],
        [{"content": []}],
        [{"role": "user", "content": [{"text": "x"}]}],
        [{"role": "user", "content": [{"kind": "text"}]}],
        [{"role": "user", "content": [{"kind": "reasoning", "text": "x"}]}],
    ],
)
def test_what_is_no_message_is_invalid_by_the_schema(wrong):
    assert not SCHEMA.is_valid(wrong)


def test_properties_show_the_parts_of_each_kind():
    call = ToolCallPart(id="c1", name="get_weather", arguments={"city": "Zürich", "days": 3})
    image = ImagePart(url="https://a.b/c.png")
    message = AssistantMessage(
        content=(
            ReasoningPart(text="hm"),
            "Let me ",
            call,
            TextPart(text="look."),
            MalformedToolCallPart(raw="g('x')", reason="positional_argument", name="g"),
            image,
        )
    )
    assert message.text == "Let me look."
    assert message.reasoning == "hm"
    assert message.images == (image,)
    assert message.tool_calls == (call,)
    assert message.malformed_tool_call_blocks == ("g('x')",)
    assert call.described_arguments == 'city="Zürich", days=3'
    result = call.result({"temp": 4, "sky": None})
    assert (result.call_id, result.name, result.text) == ("c1", "get_weather", '{"temp": 4, "sky": null}')
    assert ToolMessage.from_result(result).results == (result,)
    assert ToolMessage.from_results([result, call.result("x", is_error=True)]).text == result.text + "\nx"
    assert call.result([TextPart(text="see "), image]).parts == (TextPart(text="see "), image)
    assert call.result([]).text == "[]"


def test_factories_make_what_the_constructors_make():
    assert SystemMessage.text("Be brief.") == SystemMessage(content="Be brief.")
    assert SystemMessage.text("Be brief.").text == "Be brief."
    assert UserMessage.text("hi", agent_name="a", mode="user", payload={"image_id": 7}).payload == {
        "image_id": 7
    }
    assert AssistantMessage.text("yes").text == "yes"
    assert CompactionSummaryMessage.text("They met.").source == "compaction"
    assert CustomMessage(custom_type="note", payload=[1]).text == ""
    shown = UserMessage.with_images("this", [b"GIF89a", "https://a.b/c.png"])
    assert [part.kind for part in shown.content] == ["text", "image", "image"]
    assert UserMessage.with_audio("hear", [b"OggS"]).content[1].media_type == "audio/ogg"
    result = ToolResultPart(call_id="c", content="x")
    for message in (
        SystemMessage.text("x", id="m1"),
        UserMessage.with_images("x", [], id="m1"),
        UserMessage.with_audio("x", [], id="m1"),
        ToolMessage.from_result(result, id="m1"),
        ToolMessage.from_results([result], id="m1"),
    ):
        assert message.id == "m1"


def test_a_result_says_what_it_answers():
    call = ToolCallPart(id="c1", name="f")
    assert call.result("no", is_error=True) == ToolResultPart(
        call_id="c1", name="f", content="no", is_error=True
    )
    assert call.result("yes") == ToolResultPart(call_id="c1", name="f", content="yes")
    assert call.result("yes").parts == (TextPart(text="yes"),)
    assert call.result(["a", {"b": "\u20ac"}]).text == '["a", {"b": "\u20ac"}]'
    mixed = call.result([TextPart(text="a"), ImagePart(file_id="f"), TextPart(text="b")])
    assert mixed.text == "ab"
    named = MalformedToolCallPart(raw="f(", reason="truncated", name="f", id="m1")
    assert named.result("again") == ToolResultPart(call_id="m1", name="f", content="again", is_error=True)
    nameless = MalformedToolCallPart(raw="f(", reason="truncated")
    assert nameless.result("again") == ToolResultPart(call_id="", name="", content="again", is_error=True)


@pytest.mark.parametrize(
    ("reason", "lost"), [("truncated", True), ("missing_end", False), ("stray_end", False), ("echo", False)]
)
def test_a_stray_marker_is_no_call_that_was_lost(reason, lost):
    assert MalformedToolCallPart(raw="x", reason=reason).lost_call is lost


def test_usage_adds_up():
    turn = Usage(input=3, output=4, cache_read=1, cost=UsageCost(input=0.5, output=0.25))
    assert turn.total == 7
    assert turn.cost.total == 0.75
    twice = turn + turn
    assert (twice.input, twice.cache_read, twice.cost.total) == (6, 2, 1.5)
    assert UsageCost(input=1, total=3).total == 3
    one = Usage(input=10, output=20, cache_read=3, cache_write=4)
    assert (one.prefilled, one.total) == (7, 30)
    assert one + Usage(input=1, output=2, cache_read=5, cache_write=6) == Usage(
        input=11, output=22, cache_read=8, cache_write=10
    )
    paid = UsageCost(input=1, output=2, cache_read=3, cache_write=4)
    assert paid.total == 10
    assert paid + UsageCost(input=10, output=20, cache_read=30, cache_write=40, total=1) == UsageCost(
        input=11, output=22, cache_read=33, cache_write=44, total=11
    )


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({}, ""),
        ({"a b": [1, None], "c": {"d": True}}, '"a b"=[1, null], c={"d": true}'),
        ({"path": "a\nb\x1b[2J"}, 'path="a\\nb\\u001b[2J"'),
        ({"evil": "\u202ecod.exe", "\u202e": 1}, 'evil="\\u202ecod.exe", "\\u202e"=1'),
    ],
)
def test_described_arguments_hide_nothing(arguments, shown):
    assert ToolCallPart(id="", name="f", arguments=arguments).described_arguments == shown


def test_messages_are_values():
    message = UserMessage(content="hi")
    assert message == UserMessage(content=(TextPart(text="hi"),))
    with pytest.raises(ValidationError):
        message.content = ()
    given_arguments = {"a": [1]}
    call = ToolCallPart(id="c", name="f", arguments=given_arguments)
    given_arguments["a"].append(2)
    assert call.arguments == {"a": [1]}


def test_unknown_parts_are_kept():
    text = '{"kind":"smell","strength":[1,null,{"x":true}]}'
    for role in ("system", "user", "assistant", "tool", "custom"):
        extra = ',"custom_type":"t"' if role == "custom" else ""
        message = load_message(f'{{"role":"{role}","content":[{text}]{extra}}}')
        (part,) = message.content
        assert isinstance(part, UnknownPart)
        assert part.strength == [1, None, {"x": True}]
        assert text in message.model_dump_json()
        assert load_message(message.model_dump_json()) == message
    result = ToolResultPart(call_id="c", content=({"kind": "smell"},))
    assert ToolResultPart.model_validate_json(result.model_dump_json()) == result


def nested(depth: int):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: UserMessage(content="x", colour="red"), "colour"),
        (lambda: UserMessage(content=[{"kind": "tool_call", "id": "", "name": "f"}]), "tool_call"),
        (lambda: UserMessage(content=[{"text": "x"}]), "discriminator"),
        (lambda: AssistantMessage(content=[{"kind": 3}]), "content"),
        (lambda: ToolMessage(content=()), "at least 1"),
        (lambda: ToolCallPart(id="c", name="f", arguments=[1]), "arguments"),
        (lambda: ToolCallPart(id="c", name="f", arguments={"a": 1}, arguments_text='{"a": 2}'), "another object"),
        (lambda: ToolCallPart(id="c", name="f", arguments={"a": 1}, arguments_text='{"a": true}'), "another object"),
        (lambda: ToolCallPart(id="c", name="f", arguments={"a": 1}, arguments_text='{"a": 1.0}'), "another object"),
        (lambda: ToolCallPart(id="c", name="f", arguments={"a": 1}, arguments_text='{"a": 1, "a": 1}'), "repeated"),
        (lambda: ToolCallPart(id="c", name="f", arguments_text="{"), "not the JSON text"),
        (lambda: ToolCallPart(id="c", name="f", arguments_text="[1]"), "a JSON list, not an object"),
        (lambda: ToolCallPart(id="c", name="f", arguments_text='{"a": NaN}'), "NaN is not JSON"),
        (lambda: ToolCallPart(id="c", name="f", arguments_text='{"a": 1e999}'), "inf is not JSON"),
        (lambda: ToolCallPart(id="c", name="f", arguments={"a": float("nan")}), "nan is not JSON"),
        (lambda: ToolCallPart(id="c", name="f", arguments={"a": nested(129)}), "nested more than 128"),
        (lambda: ToolCallPart(id="c", name="f", arguments_text="[" * 100_000), "nested more than 128"),
        (lambda: ToolCallPart(id="c", name="f", arguments={"\ud800": 1}), "lone surrogate U\\+D800"),
        (lambda: TextPart(text="ab\udfff"), "lone surrogate U\\+DFFF at character 2"),
        (lambda: UserMessage(content="x", payload={"a": object()}), "payload"),
        (lambda: UnknownPart(kind="smell", x=float("inf")), "inf is not JSON"),
        (lambda: UserMessage(content="x", timestamp=datetime(2026, 1, 1)), "timezone"),
        (lambda: UserMessage(content="x", timestamp=datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))), "years"),
        (lambda: UserMessage(content="x", payload=10**4300), "more than 4,298 digits"),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(make, says):
    with pytest.raises(ValidationError, match=says):
        make()


def test_json_that_is_the_same_is_told_from_what_only_equals_it():
    assert same_json({"a": [1, {"b": None}], "c": 1.0}, {"c": 1.0, "a": [1, {"b": None}]}) is True
    assert same_json([], []) is True
    for one, other in ((1, True), (1, 1.0), ([1], [True]), ({"a": 1}, {"a": 1.0}), (None, False), ([1], [])):
        assert same_json(one, other) is same_json(other, one) is False


NOT_JSON_TEXT = "arguments_text is not the JSON text of an object: "


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('"x"', "a JSON string, not an object"),
        ("1", "a JSON number, not an object"),
        ("1.5", "a JSON number, not an object"),
        ("true", "a JSON boolean, not an object"),
        ("null", "a JSON null, not an object"),
        ("[]", "a JSON list, not an object"),
        ('{"a": 1, "{b}": 2, "{b}": 3}', "the key '{b}' is repeated"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ('{"a": ' + "[" * 100_000, "nested more than 128 deep"),
    ],
)
def test_what_is_no_text_of_an_object_is_told_to_the_letter(text, says):
    with pytest.raises(InvalidMessage) as caught:
        ToolCallPart(id="", name="f").changed(arguments_text=text)
    assert str(caught.value) == f"ToolCallPart: {NOT_JSON_TEXT}{says}"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"a": [1]}, '{"a": [1, 2]}'),
        ({"a": [1, 2]}, '{"a": [1]}'),
        ({"a": [1, 2]}, '{"a": [1, 3]}'),
        ({"a": 1}, '{"a": 1, "b": 1}'),
        ({"a": {"b": 1}}, '{"a": {"c": 1}}'),
        ({"a": {"b": 1}}, '{"a": {"b": true}}'),
        ({"a": "1"}, '{"a": 1}'),
        ({"a": None}, '{"a": false}'),
    ],
)
def test_arguments_and_a_text_that_says_something_else_are_refused(arguments, text):
    with pytest.raises(ValidationError, match="not the JSON text of arguments: another object"):
        ToolCallPart(id="c", name="f", arguments=arguments, arguments_text=text)


@pytest.mark.parametrize(
    ("fits", "does_not", "says"),
    [
        (2**14_280 - 1, 2**14_280, "an integer of more than 4,298 digits"),
        (-(2**14_280) + 1, -(2**14_280), "an integer of more than 4,298 digits"),
        (nested(128), nested(129), "JSON nested more than 128 deep"),
        ({"a": 1e308}, {"a": [1, float("-inf")]}, "-inf is not JSON"),
        ("x" * 1234, "x" * 1234 + "\udc00", "lone surrogate U+DC00 at character 1,234: not Unicode text"),
        ({"\u20ac": 1}, {"\u20ac\ud800": 1}, "lone surrogate U+D800 at character 1: not Unicode text"),
    ],
)
def test_what_json_can_hold_comes_back_and_nothing_more_is_taken(fits, does_not, says):
    message = UserMessage(content="x", payload=fits)
    assert load_message(message.model_dump_json()) == message
    with pytest.raises(InvalidMessage) as caught:
        message.changed(payload=does_not)
    assert str(caught.value) == f"UserMessage.payload: {says}"


def test_moments_are_kept_whatever_their_offset():
    moment = datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=3725)))
    message = UserMessage(content="x", timestamp=moment)
    assert message.timestamp == moment
    assert load_message(message.model_dump_json()) == message


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), nested(100_000), [TextPart(text="x"), 1], object()])
def test_a_result_that_is_nothing_a_model_can_be_told_is_refused(value):
    with pytest.raises(InvalidMessage, match="the result of 'f' is neither text, nor parts, nor JSON"):
        ToolCallPart(id="c", name="f").result(value)


def test_arguments_at_the_depth_limit_survive_a_file():
    message = AssistantMessage(content=(ToolCallPart(id="c", name="f", arguments={"a": nested(128)}),))
    assert load_messages(dump_messages([message])) == [message]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[{"role": "wizard", "content": []}]', "messages[0]: 'wizard' is not a role here; there are 'system', 'user'"),
        ('[{"role": "' + "w" * 1_000_000 + '"}]', " is not a role here"),
        ('[{"content": []}]', "messages[0]: Unable to extract tag"),
        ('[{"role": "user"}]', "messages[0].user.content: Field required"),
        ('[{"role": "user", "content": "x", "a\\n\\u001b": 1}]', "messages[0].user.'a\\n\\x1b': Extra inputs"),
        ("[", "messages: Invalid JSON"),
        ("{}", "messages: Input should be a valid array"),
        ('[{"role": "user", "content": [{"kind": "reasoning"}]}]', "'reasoning' is not a kind of part here"),
        ('[{"role": "user", "content": [{"kind": "text", "text": 3, "x": 1}]}]', "(and 1 more)"),
        (
            '[{"role": "user", "content": [{"kind": "image", "url": "https://a.b", "file_id": "f"}]}]',
            "messages[0].user.content[0].image: an image has exactly one of url, data, file_id; this has url and file_id",
        ),
        (
            '[{"role": "assistant", "content": [{"kind": "tool_call", "id": "", "name": "f", "arguments": "{}"}]}]',
            "messages[0].assistant.content[0].tool_call.arguments: Input should be an object",
        ),
    ],
)  # fmt: skip
def test_loading_says_in_one_line_what_is_wrong_and_where(text, says):
    with pytest.raises(InvalidMessage) as caught:
        load_messages(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


ROLES = "'system', 'user', 'assistant', 'tool', 'custom', 'branch_summary', 'compaction_summary', 'rescue', 'flush'"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"role": "wizard"}', f"message: 'wizard' is not a role here; there are {ROLES}"),
        ('{"role": "user"}', "message.user.content: Field required"),
        (
            '{"role": "user", "content": [{"kind": "reasoning"}]}',
            "message.user.content[0]: 'reasoning' is not a kind of part here; there are 'text', 'image', 'audio', "
            "'tool_result', 'unknown'",
        ),
        (
            '{"role": "user", "content": [{"kind": "text", "text": 3, "x": 1, "y": 2}]}',
            "message.user.content[0].text.text: Input should be a valid string (and 2 more)",
        ),
        (
            '{"role": "user", "content": ["x", {"kind": "audio"}]}',
            "message.user.content[1].audio: audio has exactly one of url, data, file_id; this has none",
        ),
        (
            '{"role": "user", "content": "x", "timestamp": "0001-01-01T00:00:00+01:00"}',
            "message.user.timestamp: outside the years 1 to 9999 in UTC",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_one_message_is_told_to_the_letter(text, says):
    with pytest.raises(InvalidMessage) as caught:
        load_message(text)
    assert str(caught.value) == says


def test_a_call_with_other_arguments_is_not_known_to_fit():
    call = ToolCallPart(id="1", name="f", arguments={"a": 1}, fits=True)
    assert call.changed(id="2").fits is True
    for change in ({"name": "g"}, {"arguments": {"b": 1}}, {"arguments_text": '{"b": 1}'}):
        assert call.changed(**change).fits is None
