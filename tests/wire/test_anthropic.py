"""Anthropic's wire: there and back, against the types of the official package, and what is refused."""

from __future__ import annotations

import base64
import string
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from anthropic.types import Message as OfficialMessage
from anthropic.types import MessageParam, TextBlockParam
from anthropic.types import Usage as OfficialUsage
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from localagent.errors import InvalidMessage, UnpairedResult, Unsupported
from localagent.messages import (
    AssistantMessage,
    AudioPart,
    CustomMessage,
    ImagePart,
    MalformedToolCallPart,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UnknownPart,
    Usage,
    UserMessage,
)
from localagent.prompt.request import build_request
from localagent.wire import anthropic
from localagent.wire.anthropic import TARGET, from_wire, read_response, to_wire
from tests.messages import strategies as anything
from tests.wire import laws
from tests.wire.strategies import Expressible, conversations, damaged

PNG = b"\x89PNG\r\n\x1a\n rest"
PDF = b"%PDF-1.7 rest"

# -- what the wire can express ----------------------------------------------------------------------------

OWN = {
    "type",
    "text",
    "source",
    "thinking",
    "signature",
    "data",
    "id",
    "name",
    "input",
    "tool_use_id",
    "content",
    "is_error",
}
some = anything.json_values.filter(lambda value: value is not None)
extras = st.just({}) | st.dictionaries(
    (anything.text | st.sampled_from(["cache_control", "citations", "title", "type_"])).filter(
        lambda key: key not in OWN
    ),
    some,
    min_size=1,
    max_size=2,
).map(lambda fields: {"anthropic": fields})
marked = st.sampled_from([{}, {"anthropic": {"cache_control": {"type": "ephemeral"}}}])
visible = anything.text.filter(str.strip)
signature = anything.text.filter(bool)


def expressible(metadata: Any) -> Expressible:
    """With the given provider metadata."""
    both = {"provider_metadata": metadata}
    texts = st.builds(TextPart, text=visible, **both)
    media = st.one_of(
        st.builds(ImagePart, data=anything.files(anything.MAGIC), **both),
        st.builds(
            ImagePart,
            data=st.binary(max_size=9),
            media_type=st.sampled_from(["image/png", "application/pdf"]),
            **both,
        ),
        st.builds(
            lambda said, data: ImagePart(data=said.encode(), media_type="text/plain", **data),
            anything.text,
            st.fixed_dictionaries(both),
        ),
        st.builds(
            ImagePart,
            url=st.sampled_from(["https://a.b/c", "https://a.b/c.png", "https://a.b/c.pdf"]),
            **both,
        ),
        st.builds(ImagePart, url=st.just("https://a.b/c"), media_type=st.just("application/pdf"), **both),
        st.builds(
            ImagePart, file_id=anything.name, media_type=st.sampled_from([None, "application/pdf"]), **both
        ),
    ).filter(lambda part: part.media_type in {None, *TARGET.media_types})
    reasoning = st.one_of(
        st.builds(ReasoningPart, text=anything.text, signature=signature, **both),
        st.builds(ReasoningPart, encrypted=signature, redacted=st.just(True), **both),
    )
    return Expressible(
        system=texts,
        shown=texts | media,
        said=texts | reasoning,
        call=lambda call_id: st.builds(
            ToolCallPart, id=st.just(call_id), name=anything.text, arguments=anything.json_objects, **both
        ),
        result=lambda call: st.builds(
            ToolResultPart,
            call_id=st.just(call.id),
            name=st.just(call.name),
            content=anything.text | st.lists(texts | media, max_size=3).map(tuple),
            is_error=st.booleans(),
            **both,
        ),
        ids=st.text(alphabet=string.ascii_letters + string.digits + "_-", min_size=1, max_size=6),
        arrange=thinking_first,
    )


def thinking_first(content: list[Any]) -> list[Any]:
    first = [part for part in content if isinstance(part, ReasoningPart)][:1]
    return first + [part for part in content if part not in first] if first else content


@given(conversations(expressible(extras)))
def test_there_and_back(conversation):
    laws.comes_back_the_same(anthropic, conversation)


@given(conversations(expressible(extras)))
def test_what_is_written_shares_nothing_with_the_messages(conversation):
    laws.shares_nothing(anthropic, conversation)


# -- the official types -----------------------------------------------------------------------------------

MESSAGE: TypeAdapter[Any] = TypeAdapter(MessageParam)
SYSTEM: TypeAdapter[Any] = TypeAdapter(str | list[TextBlockParam])


def walk(value: Any) -> Any:
    """Consume what pydantic validates lazily; without this, `Iterable` fields are not looked at."""
    match value:
        case str() | bytes() | BaseModel():
            return value
        case Mapping():
            return {key: walk(item) for key, item in value.items()}
        case Iterable():
            return [walk(item) for item in value]
    return value


def check(payload: dict[str, Any]) -> None:
    """Raise ValidationError unless the official package takes the payload, and reads all of it."""
    for message in payload["messages"]:
        assert walk(MESSAGE.validate_python(message)) == message
    if "system" in payload:
        assert walk(SYSTEM.validate_python(payload["system"])) == payload["system"]


@given(conversations(expressible(st.just({}))))
def test_the_official_types_take_every_payload(conversation):
    check(to_wire(conversation))


@given(conversations(expressible(marked)))
def test_the_official_types_take_cache_control(conversation):
    payload = to_wire(conversation)
    for message in payload["messages"]:
        walk(MESSAGE.validate_python(message))


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text"}],
        [{"type": "text", "text": 1}],
        [{"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": ""}}],
        [{"type": "image", "source": {"type": "url"}}],
        [{"type": "document", "source": {"type": "base64", "media_type": "image/png", "data": ""}}],
        [{"type": "tool_use", "id": "a", "name": "f", "input": "{}"}],
        [{"type": "thinking", "thinking": "x"}],
        [{"type": "tool_result", "content": "x"}],
        [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text"}]}],
        [{"type": "smell", "text": "x"}],
        7,
    ],
)
def test_the_check_finds_a_wrong_payload(content):
    with pytest.raises(ValidationError):
        check({"messages": [{"role": "user", "content": content}]})


# -- the rules, by example --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "image",
    [
        "data:image/png;base64," + base64.b64encode(PNG).decode(),
        base64.b64encode(PNG).decode(),
        PNG,
    ],
)
def test_bytes_a_data_url_and_base64_are_a_base64_source(image):
    payload = to_wire([UserMessage.with_images("What does this chart show?", [image])])
    assert payload["messages"][0]["content"] == [
        {"type": "text", "text": "What does this chart show?"},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
        },
    ]


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (ImagePart(url="https://example.com/cat.jpg"), {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.jpg"}}),
        (ImagePart(url="https://example.com/a.pdf"), {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}),
        (ImagePart(file_id="file_1"), {"type": "image", "source": {"type": "file", "file_id": "file_1"}}),
        (ImagePart(file_id="file_1", media_type="text/plain"), {"type": "document", "source": {"type": "file", "file_id": "file_1"}}),
        (ImagePart(data=PDF), {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(PDF).decode()}}),
        (ImagePart(data=b"hi", media_type="text/plain"), {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}}),
    ],
)  # fmt: skip
def test_every_source_of_media_has_its_block(part, block):
    payload = to_wire([UserMessage(content=(part,))])
    check(payload)
    assert payload["messages"] == [{"role": "user", "content": [block]}]


def test_a_conversation_with_tools():
    call = ToolCallPart(id="call_1", name="get_weather", arguments={"city": "Paris"})
    history = [
        SystemMessage.text("You are concise."),
        UserMessage.text("What is the weather in Paris?"),
        AssistantMessage(
            content=(
                ReasoningPart(text="hm", signature="sig"),
                TextPart(text="Let me check."),
                call,
            )
        ),
        ToolMessage.from_result(call.result({"tempC": 18, "sky": "clear"})),
        UserMessage.text("And tomorrow?"),
    ]
    payload = to_wire(history)
    check(payload)
    assert payload == {
        "system": "You are concise.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What is the weather in Paris?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "sig"},
                    {"type": "text", "text": "Let me check."},
                    {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Paris"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_1",
                        "content": '{"tempC": 18, "sky": "clear"}',
                    }
                ],
            },
            {"role": "user", "content": [{"type": "text", "text": "And tomorrow?"}]},
        ],
    }
    assert from_wire(payload) == history


def test_a_turn_with_thinking_begins_with_it():
    call = ToolCallPart(id="a", name="f")
    text, thought = TextPart(text="Well"), ReasoningPart(text="hm", signature="s1")
    hidden = ReasoningPart(encrypted="e", redacted=True)
    sent = to_wire([AssistantMessage(content=(text, thought, call, hidden))])["messages"][0]["content"]
    assert [block["type"] for block in sent] == ["thinking", "redacted_thinking", "text", "tool_use"]
    assert sent[1] == {"type": "redacted_thinking", "data": "e"}
    # Thinking between blocks is the model's own order, as long as the turn begins with thinking.
    kept = AssistantMessage(content=(thought, text, hidden, call))
    assert from_wire(to_wire([kept])) == [kept]


def test_failed_results_and_results_with_images():
    call = ToolCallPart(id="a", name="f")
    failed = ToolResultPart(call_id="a", name="f", content="no such city", is_error=True)
    seen = ToolResultPart(call_id="a", name="f", content=(ImagePart(data=PNG), TextPart(text="a map")))
    for result in (failed, seen):
        history = [AssistantMessage(content=(call,)), ToolMessage.from_result(result)]
        payload = to_wire(history)
        check(payload)
        assert from_wire(payload) == history
    assert to_wire([ToolMessage.from_result(failed)])["messages"][0]["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": "no such city", "is_error": True}
    ]
    blocks = to_wire([ToolMessage.from_result(seen)])["messages"][0]["content"][0]["content"]
    assert [block["type"] for block in blocks] == ["image", "text"]


def test_text_without_content_is_left_out():
    history = [
        SystemMessage.text(" "),
        UserMessage.text(""),
        UserMessage(content=()),
        AssistantMessage(content=(TextPart(text="\n\n"), ToolCallPart(id="a", name="f"))),
        ToolMessage.from_result(ToolResultPart(call_id="a", content=(TextPart(text=""),))),
    ]
    assert to_wire(history) == {
        "messages": [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": []}]},
        ]
    }


def test_ids_that_the_api_refuses_are_written_in_its_characters():
    ids = ["functions.get_weather:0", "functions:get_weather.0", "é", "fine-1_A"]
    calls = [ToolCallPart(id=call_id, name=str(at)) for at, call_id in enumerate(ids)]
    results = [call.result("ok") for call in calls]
    history = [AssistantMessage(content=tuple(calls)), ToolMessage.from_results(results)]
    payload = to_wire(history)
    sent = [block["id"] for block in payload["messages"][0]["content"]]
    assert all(set(call_id) <= set(string.ascii_letters + string.digits + "_-") for call_id in sent)
    assert len(set(sent)) == 4
    assert sent[3] == "fine-1_A"
    assert sent[0].startswith("functions_get_weather_0_")
    assert [block["tool_use_id"] for block in payload["messages"][1]["content"]] == sent
    assert [result.name for result in from_wire(payload)[1].results] == ["0", "1", "2", "3"]


def test_what_the_wire_flattens():
    call = ToolCallPart(id="a", name="f", arguments_text='{"x":1}', repaired=True, tool_kind="read")
    history = [
        UserMessage(
            content=(
                TextPart(text="x", provider_metadata={"anthropic": {"y": None}}),
                ImagePart(url="https://a.b/c", media_type="image/png"),
                ImagePart(file_id="1", media_type="text/plain"),
            )
        ),
        AssistantMessage(content=(call,)),
        ToolMessage.from_result(ToolResultPart(call_id="a", name="g", content="x")),
    ]
    user, assistant, tool = from_wire(to_wire(history))
    assert user.content == (
        TextPart(text="x"),
        ImagePart(url="https://a.b/c"),
        ImagePart(file_id="1", media_type="application/pdf"),
    )
    assert assistant.content == (ToolCallPart(id="a", name="f", arguments={"x": 1}),)
    assert tool.results[0].name == "f"


def test_metadata_goes_back_and_only_ours():
    text = TextPart(
        text="x",
        provider_metadata={
            "anthropic": {"citations": [{"a": 1}], "type": "no"},
            "google": {"thoughtSignature": "s"},
        },
    )
    pdf = ImagePart(
        data=PDF, provider_metadata={"anthropic": {"title": "T", "source": {"x": 1, "type": "no"}}}
    )
    call = ToolCallPart(
        id="a",
        name="f",
        arguments={"b": 1},
        provider_metadata={"anthropic": {"input": {"c": 2}}, "openai": {"x": 1}},
    )
    assert to_wire([UserMessage(content=(text, pdf)), AssistantMessage(content=(call,))])["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "x", "citations": [{"a": 1}]},
                {
                    "type": "document",
                    "title": "T",
                    "source": {
                        "x": 1,
                        "type": "base64",
                        "media_type": "application/pdf",
                        "data": base64.b64encode(PDF).decode(),
                    },
                },
            ],
        },
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"b": 1}}]},
    ]


def test_metadata_of_a_source_come_back():
    pdf = ImagePart(data=PDF, provider_metadata={"anthropic": {"title": "T", "source": {"x": 1}}})
    image = ImagePart(file_id="f", provider_metadata={"anthropic": {"source": {"x": 1}}})
    history = [UserMessage(content=(pdf, image))]
    assert from_wire(to_wire(history)) == history


def test_a_cached_system_prompt_is_a_list_of_blocks():
    metadata = {"anthropic": {"cache_control": {"type": "ephemeral"}}}
    history = [SystemMessage(content=(TextPart(text="a"), TextPart(text="b", provider_metadata=metadata)))]
    payload = to_wire(history)
    check(payload)
    assert payload["system"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}},
    ]
    assert from_wire(payload) == history


# -- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (UserMessage(content=(AudioPart(data=b"ID3"),)), "'audio'"),
        (UserMessage(content=(UnknownPart(kind="smell"),)), "'smell'"),
        (UserMessage(content=(ToolResultPart(call_id="a", content="x"),)), "'tool_result'"),
        (ToolMessage(content=(UnknownPart(kind="smell"),)), "'smell'"),
        (ToolMessage.from_result(ToolResultPart(call_id="a", content=(AudioPart(data=b"ID3"),))), "'audio'"),
        (AssistantMessage(content=(ImagePart(data=PNG),)), "'image'"),
        (AssistantMessage(content=(MalformedToolCallPart(raw="f(", reason="x"),)), "'malformed_tool_call'"),
        (AssistantMessage(content=(ReasoningPart(text="hm"),)), "unsigned"),
        (AssistantMessage(content=(ReasoningPart(text="hm", signature=""),)), "unsigned"),
        (AssistantMessage(content=(ReasoningPart(encrypted="e"),)), "encrypted"),
        (AssistantMessage(content=(ReasoningPart(encrypted="e", redacted=True, signature="s"),)), "encrypted"),
        (AssistantMessage(content=(ReasoningPart(text="hm", signature="s", redacted=True),)), "redacted"),
        (AssistantMessage(content=(ToolCallPart(id="", name="f"),)), "an id for the call of 'f'"),
        (UserMessage(content=(ImagePart(data=b"what"),)), "unknown media type.*`media_type`"),
        (UserMessage(content=(ImagePart(data=b"what", media_type="image/bmp"),)), "no image/bmp"),
        (UserMessage(content=(ImagePart(url="https://a.b/c.svg"),)), "no image/svg"),
        (UserMessage(content=(ImagePart(url="https://a.b/c.txt"),)), "text/plain by URL"),
        (UserMessage(content=(ImagePart(data=b"\xff\xfe", media_type="text/plain"),)), "UTF-8"),
        (UserMessage(content=(TextPart(text="x", provider_metadata={"anthropic": "x"}),)), "no object"),
        (UserMessage(content=(TextPart(text="x", provider_metadata={"anthropic": {"is_error": True}}),)), "is_error"),
        (CustomMessage(custom_type="x"), "'custom'"),
        (SystemMessage.text("again"), "build_request joins"),
    ],
)  # fmt: skip
def test_what_the_wire_cannot_carry_is_refused_by_name(message, says):
    with pytest.raises(Unsupported, match=f"^message 1: .*{says}"):
        to_wire([UserMessage.text("hi"), message])


def test_an_unknown_part_of_the_system_message_is_refused_too():
    with pytest.raises(Unsupported, match=r"^message 0: .*'smell'"):
        to_wire([SystemMessage(content=(UnknownPart(kind="smell"),))])


def user(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


def said(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": list(content)}]}


RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "x"}


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ([], "payload: "),
        ({}, "messages: nothing where a list belongs"),
        ({"messages": {}}, "messages: "),
        ({"messages": ["hi"]}, r"messages\[0\]: a string where an object belongs"),
        ({"messages": [{"content": "hi"}]}, r"messages\[0\].role: missing"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, r"messages\[0\].role: 'wizard'"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\].content: nothing"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, r"messages\[0\].content.text: lone surrogate"),
        ({"messages": [{"role": "user", "content": "x", "y": b""}]}, r"messages\[0\].payload"),
        ({"system": 7, "messages": []}, "system: a number"),
        ({"system": [{"type": "image"}], "messages": []}, r"system\[0\].type: 'image'"),
        (user("hi"), r"messages\[0\].content\[0\]: a string"),
        (user({"text": "hi"}), r"messages\[0\].content\[0\].type: missing"),
        (user({"type": "text"}), r"messages\[0\].content\[0\].text: missing"),
        (user({"type": "text", "text": "x", "y": float("nan")}), r"content\[0\].provider_metadata.*nan"),
        (user({"type": "tool_use", "id": "a", "name": "f", "input": {}}), r"content\[0\].type: 'tool_use'"),
        (user({"type": "image"}), r"messages\[0\].content\[0\].source: "),
        (user({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "?"}}), r"source.*not base64"),
        (user({"type": "image", "source": {"type": "url", "url": 7}}), r"content\[0\].source.url: a number"),
        (user({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "\ud800"}}), r"source.data: not Unicode"),
        (said({"type": "image", "source": {"type": "url", "url": "x"}}), r"content\[0\].type: 'image'"),
        (said({"type": "thinking", "thinking": "x", "signature": 1}), r"content\[0\].signature: a number"),
        (said({"type": "redacted_thinking"}), r"content\[0\].data: missing"),
        (said({"type": "tool_use", "id": "a", "name": "f", "input": {"x": {1}}}), r"content\[0\].arguments"),
        (user({**RESULT, "is_error": "yes"}), r"content\[0\].is_error"),
        (user({**RESULT, "content": 7}), r"content\[0\].content: a number"),
    ],
)  # fmt: skip
def test_a_bad_payload_is_refused_with_its_place(payload, says):
    with pytest.raises(InvalidMessage, match=says) as raised:
        from_wire(payload)
    assert "\n" not in str(raised.value)


def test_a_result_without_a_call_is_refused():
    with pytest.raises(UnpairedResult, match=r"^messages\[0\].content: the tool result with call id 'a'"):
        from_wire(user(RESULT))
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    payload = said(call)
    for again in (user(RESULT, RESULT), {"messages": [*user(RESULT)["messages"], *user(RESULT)["messages"]]}):
        with pytest.raises(UnpairedResult):
            from_wire({"messages": payload["messages"] + again["messages"]})


@given(damaged(conversations(expressible(extras)).map(to_wire)))
def test_no_payload_raises_anything_else(payload):
    laws.is_read_or_refused(anthropic, payload)


@given(anything.conversations)
def test_builder_and_wire_carry_a_conversation_or_say_why_not(conversation):
    laws.is_carried_or_refused(anthropic, conversation)


# -- reading --------------------------------------------------------------------------------------------------


def test_strings_are_text():
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ho"},
        {"role": "system", "content": "ha"},
    ]
    assert from_wire({"system": "be brief", "messages": messages, "model": "m", "max_tokens": 3}) == [
        SystemMessage.text("be brief"),
        UserMessage.text("hi"),
        AssistantMessage.text("ho"),
        SystemMessage.text("ha"),
    ]
    assert from_wire({"system": [], "messages": ()}) == []


def test_results_and_what_stands_around_them():
    def calls(*ids):
        return {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": i, "name": f"f{n}", "input": {}} for n, i in enumerate(ids)
            ],
        }

    def result(call_id, **fields):
        return {"type": "tool_result", "tool_use_id": call_id, **fields}

    read = from_wire(
        {
            "messages": [
                calls("call_0", "call_0"),
                {
                    "role": "user",
                    "content": [result("call_0"), result("call_0"), {"type": "text", "text": "and?"}],
                },
                calls("call_0", "b"),
                {"role": "user", "content": [result("b", content=[{"type": "text", "text": "x"}])]},
                {"role": "user", "content": [result("call_0", content=None, is_error=True)]},
            ]
        }
    )
    assert [message.role for message in read] == ["assistant", "tool", "user", "assistant", "tool", "tool"]
    assert [part.name for message in read if message.role == "tool" for part in message.content] == [
        "f0",
        "f1",
        "f1",
        "f0",
    ]
    assert read[4].content[0].content == (TextPart(text="x"),)
    assert (read[5].content[0].content, read[5].content[0].is_error) == ("", True)


@pytest.mark.parametrize("signature", [{}, {"signature": ""}, {"signature": None}])
def test_an_empty_signature_is_none(signature):
    thought = {"type": "thinking", "thinking": "hm", **signature}
    assert from_wire(said(thought)) == [AssistantMessage(content=(ReasoningPart(text="hm"),))]


def test_what_stands_beside_a_turn_is_kept_and_stays():
    (message,) = from_wire({"messages": [{"role": "user", "content": "x", "name": "Ann"}]})
    assert message.payload == {"anthropic": {"name": "Ann"}}
    assert to_wire([message]) == user({"type": "text", "text": "x"})


# -- responses ------------------------------------------------------------------------------------------------


def response(*content: Any, **fields: Any) -> OfficialMessage:
    usage = fields.pop("usage", {"input_tokens": 3, "output_tokens": 5})
    return OfficialMessage.model_validate(
        {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "end_turn",
            "stop_sequence": None, "usage": OfficialUsage.model_validate(usage), "content": content, **fields,
        }
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["python", "json"])
def test_a_response_becomes_a_message_with_every_part(mode):
    citation = {
        "type": "page_location",
        "cited_text": "x",
        "document_index": 0,
        "start_page_number": 1,
        "end_page_number": 2,
        "document_title": None,
        "file_id": None,
    }
    official = response(
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "zzz"},
        {"type": "text", "text": "Let me check.", "citations": [citation]},
        {
            "type": "tool_use",
            "id": "toolu_1",
            "name": "get_weather",
            "input": {"city": "Paris"},
            "caller": {"type": "direct"},
        },
        stop_reason="tool_use",
        usage={
            "input_tokens": 3,
            "output_tokens": 5,
            "cache_read_input_tokens": 100,
            "cache_creation_input_tokens": 20,
        },
    )
    message = read_response(official.model_dump(mode=mode))
    assert message == AssistantMessage(
        content=(
            ReasoningPart(text="hm", signature="sig", provider="anthropic"),
            ReasoningPart(encrypted="zzz", redacted=True, provider="anthropic"),
            TextPart(text="Let me check.", provider_metadata={"anthropic": {"citations": [citation]}}),
            ToolCallPart(
                id="toolu_1",
                name="get_weather",
                arguments={"city": "Paris"},
                provider_metadata={"anthropic": {"caller": {"type": "direct"}}},
            ),
        ),
        id="msg_1",
        model="claude-x",
        stop_reason="tool_calls",
        usage=Usage(input=123, output=5, cache_read=100, cache_write=20),
    )
    sent = to_wire(
        build_request([message, ToolMessage.from_result(message.tool_calls[0].result("ok"))], TARGET).messages
    )
    assert sent["messages"][0]["content"] == [
        block.model_dump(exclude_none=True) | ({"citations": [citation]} if block.type == "text" else {})
        for block in official.content
    ]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "length"),
        ("refusal", "content_filter"),
        (None, "stop"),
    ],
)
def test_every_stop_reason_has_ours(theirs, ours):
    assert read_response(response(stop_reason=theirs).model_dump()).stop_reason == ours


def test_why_a_turn_failed_is_kept():
    refused = response(
        stop_reason="refusal", stop_details={"type": "refusal", "explanation": "no", "category": "bio"}
    )
    assert read_response(refused.model_dump()).error == "no"
    new = read_response({**response({"type": "text", "text": "x"}).model_dump(), "stop_reason": "bored"})
    assert (new.stop_reason, new.text) == ("error", "x")
    assert "bored" in new.error


def test_the_usage_of_a_response():
    def usage(**used: int) -> Usage:
        return read_response({"type": "message", "content": [], "usage": used}).usage

    assert usage(input_tokens=3, output_tokens=5) == Usage(input=3, output=5)
    assert usage(cache_read_input_tokens=7) == Usage(input=7, cache_read=7)
    assert usage(cache_creation_input_tokens=2) == Usage(input=2, cache_write=2)
    bare = read_response({"type": "message", "content": []})
    assert (bare.usage, bare.stop_reason, bare.error, bare.id, bare.model) == (
        Usage(),
        "stop",
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            "response: .*Overloaded",
        ),
        ({"type": "completion"}, "response.type: 'completion'"),
        ({"content": None}, "response.content: "),
        ({"usage": {"input_tokens": -1}}, "response.usage.input_tokens: -1"),
        ({"usage": {"input_tokens": "3"}}, "response.usage.input_tokens: '3'"),
        ({"id": "\ud800"}, "response.id"),
    ],
)
def test_a_bad_response_is_refused_with_its_place(change, says):
    with pytest.raises(InvalidMessage, match=says):
        read_response({**response().model_dump(), **change})


@given(
    damaged(
        st.just(
            response(
                {"type": "text", "text": "x"},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"a": [1]}},
            ).model_dump()
        )
    )
)
def test_no_response_raises_anything_else(payload):
    try:
        assert read_response(payload).model_dump_json()
    except InvalidMessage as error:
        assert str(error)
