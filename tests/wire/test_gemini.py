"""Gemini's wire: there and back, by example, and what is refused."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from localagent.wire import gemini
from localagent.wire.gemini import TARGET, from_wire, read_response, to_wire
from tests.messages import strategies as anything
from tests.wire import laws
from tests.wire.strategies import Expressible, conversations, damaged

PNG = b"\x89PNG\r\n\x1a\n rest"
MP3 = b"ID3 rest"
SIGNED = {"google": {"thoughtSignature": "sig-123"}}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# -- what the wire can express ----------------------------------------------------------------------------

OWN = {
    "text",
    "thought",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
}
some = anything.json_values.filter(lambda value: value is not None)
extras = st.dictionaries(
    (anything.text | st.just("videoMetadata")).filter(
        lambda key: key not in OWN | {"thoughtSignature"} and "_" not in key
    ),
    some,
    min_size=1,
    max_size=2,
).map(lambda fields: {"google": fields})
both = {"provider_metadata": st.just({}) | st.just(SIGNED) | extras}
texts = st.builds(TextPart, text=anything.text.filter(bool), **both) | st.builds(
    TextPart, text=st.just(""), provider_metadata=st.just(SIGNED)
)
images = st.one_of(
    st.builds(ImagePart, data=anything.files(anything.MAGIC), **both),
    st.builds(
        ImagePart,
        data=st.binary(max_size=9),
        media_type=st.sampled_from(["image/heic", "video/mp4", "text/plain"]),
        **both,
    ),
    st.builds(ImagePart, url=st.sampled_from(["https://a.b/c", "https://a.b/c.png", "gs://a/b.pdf"]), **both),
    st.builds(
        ImagePart, file_id=anything.name, media_type=st.sampled_from([None, "application/pdf"]), **both
    ),
).filter(lambda part: not (part.media_type or "").startswith("audio/"))
audio = st.one_of(
    st.builds(AudioPart, data=anything.files(anything.SOUNDS), **both),
    st.builds(
        AudioPart, data=st.binary(max_size=9), media_type=st.sampled_from(["audio/aac", "audio/wav"]), **both
    ),
    st.builds(
        AudioPart, url=st.sampled_from(["https://a.b/c", "gs://a/b"]), media_type=st.just("audio/wav"), **both
    ),
    st.builds(AudioPart, file_id=anything.name, media_type=st.just("audio/wav"), **both),
).filter(lambda part: part.media_type.startswith("audio/"))
thoughts = st.one_of(
    st.builds(ReasoningPart, text=anything.text.filter(bool), provider_metadata=st.just({}) | extras),
    st.builds(
        ReasoningPart,
        text=anything.text,
        signature=anything.text.filter(bool),
        provider_metadata=st.just({}) | extras,
    ),
)
shown = texts | images | audio
inner = st.builds(TextPart, text=anything.text) | images | audio
WIRE = Expressible(
    system=texts,
    shown=shown,
    said=shown | thoughts,
    call=lambda call_id: st.builds(
        ToolCallPart, id=st.just(call_id), name=anything.name, arguments=anything.json_objects, **both
    ),
    result=lambda call: st.builds(
        ToolResultPart,
        call_id=st.just(call.id),
        name=st.just(call.name),
        content=anything.text | st.lists(inner, max_size=3).map(tuple),
        is_error=st.booleans(),
        **both,
    ),
    ids=anything.text,
)


@given(conversations(WIRE))
def test_there_and_back(conversation):
    laws.comes_back_the_same(gemini, conversation)


@given(conversations(WIRE))
def test_what_is_written_shares_nothing_with_the_messages(conversation):
    laws.shares_nothing(gemini, conversation)


@given(conversations(WIRE))
def test_snake_case_is_read_as_well(conversation):
    assert from_wire(snake(to_wire(conversation))) == conversation


NAMES = {
    "systemInstruction": "system_instruction", "inlineData": "inline_data", "mimeType": "mime_type",
    "fileData": "file_data", "fileUri": "file_uri", "functionCall": "function_call",
    "functionResponse": "function_response", "thoughtSignature": "thought_signature", "displayName": "display_name",
}  # fmt: skip


def snake(value: Any, opaque: bool = False) -> Any:
    """A payload as Google's Python SDK spells it; what is inside calls and results is not the API's."""
    if isinstance(value, list):
        return [snake(item, opaque) for item in value]
    if not isinstance(value, dict) or opaque:
        return value
    return {
        NAMES.get(key, key): snake(item, key not in {*NAMES, "contents", "parts"})
        for key, item in value.items()
    }


# -- the rules, by example --------------------------------------------------------------------------------


@pytest.mark.parametrize("image", ["data:image/png;base64," + b64(PNG), b64(PNG), PNG])
def test_bytes_a_data_url_and_base64_are_inline_data(image):
    payload = to_wire([UserMessage.with_images("What does this chart show?", [image])])
    assert payload == {
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "What does this chart show?"},
                    {"inlineData": {"mimeType": "image/png", "data": b64(PNG)}},
                ],
            }
        ]
    }


@pytest.mark.parametrize(
    ("part", "wired"),
    [
        (ImagePart(url="https://example.com/cat.jpg"), {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://example.com/cat.jpg"}}),
        (ImagePart(url="https://example.com/cat"), {"fileData": {"fileUri": "https://example.com/cat"}}),
        (ImagePart(file_id="files/a", media_type="application/pdf"), {"fileData": {"mimeType": "application/pdf", "fileUri": "files/a"}}),
        (ImagePart(data=b"%PDF-1"), {"inlineData": {"mimeType": "application/pdf", "data": b64(b"%PDF-1")}}),
        (AudioPart(data=MP3), {"inlineData": {"mimeType": "audio/mpeg", "data": b64(MP3)}}),
        (AudioPart(url="https://a.b/c.mp3"), {"fileData": {"mimeType": "audio/mpeg", "fileUri": "https://a.b/c.mp3"}}),
    ],
)  # fmt: skip
def test_every_source_of_media_has_its_part(part, wired):
    payload = to_wire([UserMessage(content=(part,))])
    assert payload["contents"] == [{"role": "user", "parts": [wired]}]
    assert from_wire(payload) == [UserMessage(content=(part,))]


def test_a_conversation_with_tools_and_signatures():
    call = ToolCallPart(
        id="call_1", name="get_weather", arguments={"city": "Paris"}, provider_metadata=SIGNED
    )
    other = ToolCallPart(id="", name="get_time")
    history = [
        SystemMessage.text("You are concise."),
        UserMessage.text("What is the weather in Paris?"),
        AssistantMessage(
            content=(ReasoningPart(text="hm", signature="sig-0"), TextPart(text="Let me check."), call, other)
        ),
        ToolMessage.from_results([call.result("18 °C"), other.result("no clock", is_error=True)]),
        AssistantMessage.text("18 °C, sunny."),
    ]
    payload = to_wire(history)
    assert payload == {
        "systemInstruction": {"parts": [{"text": "You are concise."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "What is the weather in Paris?"}]},
            {
                "role": "model",
                "parts": [
                    {"text": "hm", "thought": True, "thoughtSignature": "sig-0"},
                    {"text": "Let me check."},
                    {
                        "functionCall": {"id": "call_1", "name": "get_weather", "args": {"city": "Paris"}},
                        "thoughtSignature": "sig-123",
                    },
                    {"functionCall": {"name": "get_time", "args": {}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {
                        "functionResponse": {
                            "id": "call_1",
                            "name": "get_weather",
                            "response": {"result": "18 °C"},
                        }
                    },
                    {"functionResponse": {"name": "get_time", "response": {"error": "no clock"}}},
                ],
            },
            {"role": "model", "parts": [{"text": "18 °C, sunny."}]},
        ],
    }
    assert from_wire(payload) == history


def test_media_in_a_result_stay_where_they_are():
    call = ToolCallPart(id="a", name="look")
    content = (ImagePart(data=PNG), TextPart(text="between"), AudioPart(data=MP3), TextPart(text="behind"))
    history = [AssistantMessage(content=(call,)), ToolMessage.from_result(call.result(content))]
    payload = to_wire(history)
    assert payload["contents"][1]["parts"][0]["functionResponse"] == {
        "id": "a",
        "name": "look",
        "response": {"result": [{"$ref": "part_1"}, "between", {"$ref": "part_2"}, "behind"]},
        "parts": [
            {"inlineData": {"mimeType": "image/png", "data": b64(PNG), "displayName": "part_1"}},
            {"inlineData": {"mimeType": "audio/mpeg", "data": b64(MP3), "displayName": "part_2"}},
        ],
    }
    assert from_wire(payload) == history


def test_empty_text_is_sent_only_with_its_signature():
    history = [
        SystemMessage.text(""),
        UserMessage.text(""),
        AssistantMessage(
            content=(ReasoningPart(text=""), TextPart(text=""), TextPart(text="", provider_metadata=SIGNED))
        ),
        AssistantMessage(content=()),
    ]
    assert to_wire(history) == {
        "contents": [{"role": "model", "parts": [{"text": "", "thoughtSignature": "sig-123"}]}]
    }


def test_what_the_wire_flattens():
    call = ToolCallPart(id="a", name="f", arguments_text='{"x":1}', repaired=True, tool_kind="read")
    marked = TextPart(text="x", provider_metadata={"google": {"y": 1}})
    history = [
        UserMessage(
            content=(
                TextPart(text="x", provider_metadata={"google": {"part_metadata": {"a_b": 1}, "y": None}}),
                ImagePart(file_id="https://a.b/files/1"),
                ImagePart(url="odd"),
                ImagePart(data=MP3),
            )
        ),
        AssistantMessage(content=(call,)),
        ToolMessage.from_result(call.result([marked])),
    ]
    user, assistant, tool = from_wire(to_wire(history))
    assert user.content == (
        TextPart(text="x", provider_metadata={"google": {"partMetadata": {"a_b": 1}}}),
        ImagePart(url="https://a.b/files/1"),
        ImagePart(file_id="odd"),
        AudioPart(data=MP3),
    )
    assert assistant.content == (ToolCallPart(id="a", name="f", arguments={"x": 1}),)
    assert tool.results[0].content == (TextPart(text="x"),)


def test_metadata_goes_back_and_only_ours():
    image = ImagePart(
        data=PNG,
        provider_metadata={
            "google": {"inlineData": {"displayName": "cat", "data": "no"}, "videoMetadata": {"fps": 1}}
        },
    )
    call = ToolCallPart(
        id="a",
        name="f",
        provider_metadata={"google": {"functionCall": {"willContinue": False}}, "anthropic": {"x": 1}},
    )
    assert to_wire([AssistantMessage(content=(image, call))])["contents"][0]["parts"] == [
        {
            "inlineData": {"mimeType": "image/png", "data": b64(PNG), "displayName": "cat"},
            "videoMetadata": {"fps": 1},
        },
        {"functionCall": {"id": "a", "name": "f", "args": {}, "willContinue": False}},
    ]


def test_metadata_inside_a_part_come_back():
    image = ImagePart(data=PNG, provider_metadata={"google": {"inlineData": {"displayName": "cat"}}})
    file = ImagePart(url="gs://a/b.pdf", provider_metadata={"google": {"fileData": {"displayName": "paper"}}})
    call = ToolCallPart(
        id="a", name="f", provider_metadata={"google": {"functionCall": {"willContinue": False}}}
    )
    inside = {"google": {"functionResponse": {"scheduling": "SILENT"}}}
    result = ToolResultPart(call_id="a", name="f", content="x", provider_metadata=inside)
    history = [AssistantMessage(content=(image, file, call)), ToolMessage.from_result(result)]
    assert from_wire(to_wire(history)) == history


def test_bytes_say_what_they_are():
    claims = [("audio/wav", PNG), ("image/png", MP3)]
    parts = [{"inlineData": {"mimeType": kind, "data": b64(data)}} for kind, data in claims]
    assert from_wire(user(*parts))[0].content == (ImagePart(data=PNG), AudioPart(data=MP3))


# -- what is refused --------------------------------------------------------------------------------------


def answer(**fields: Any) -> ToolMessage:
    return ToolMessage.from_result(ToolResultPart(**{"call_id": "a", "name": "f", "content": "x", **fields}))


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (UserMessage(content=(UnknownPart(kind="smell"),)), "'smell'"),
        (UserMessage(content=answer().content), "'tool_result'"),
        (ToolMessage(content=(UnknownPart(kind="smell"),)), "'smell'"),
        (answer(content=(UnknownPart(kind="smell"),)), "'smell'"),
        (answer(name=""), "name of the tool.*'a'"),
        (AssistantMessage(content=(MalformedToolCallPart(raw="f(", reason="x"),)), "'malformed_tool_call'"),
        (AssistantMessage(content=(ReasoningPart(encrypted="e"),)), "encrypted"),
        (AssistantMessage(content=(ReasoningPart(text="hm", redacted=True),)), "redacted"),
        (UserMessage(content=(ImagePart(data=b"what"),)), "unknown media type.*`media_type`"),
        (UserMessage(content=(AudioPart(url="https://a.b/c"),)), "audio.*no media type"),
        (UserMessage(content=(AudioPart(data=PNG),)), "audio.*is image/png"),
        (UserMessage(content=(TextPart(text="x", provider_metadata={"google": []}),)), "no object"),
        (UserMessage(content=(TextPart(text="x", provider_metadata={"google": {"functionCall": {}}}),)), "'functionCall'"),
        (UserMessage(content=(TextPart(text="x", provider_metadata={"google": {"thought": True}}),)), "'thought'"),
        (CustomMessage(custom_type="x"), "'custom'"),
        (SystemMessage.text("again"), "build_request joins"),
    ],
)  # fmt: skip
def test_what_the_wire_cannot_carry_is_refused_by_name(message, says):
    with pytest.raises(Unsupported, match=f"^message 1: .*{says}"):
        to_wire([UserMessage.text("hi"), message])


def user(*parts: Any) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": list(parts)}]}


def said(*parts: Any) -> dict[str, Any]:
    return {"contents": [{"role": "model", "parts": list(parts)}]}


CALL = {"functionCall": {"name": "f"}}


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ([], "payload: "),
        ({}, "contents: not a list"),
        ({"contents": [7]}, r"contents\[0\]: a number"),
        ({"contents": [{"role": "system", "parts": []}]}, r"contents\[0\].role: 'system'"),
        ({"contents": [{"role": "user"}]}, r"contents\[0\].parts: not a list"),
        ({"contents": [], "systemInstruction": 7}, "systemInstruction: a number"),
        ({"contents": [], "systemInstruction": {"parts": [{"inlineData": {}}]}}, r"systemInstruction.parts\[0\]: 'inlineData'"),
        ({"contents": "x", "system_instruction": "y", "systemInstruction": "y"}, "payload: .*both spellings"),
        (user("x"), r"contents\[0\].parts\[0\]: a string"),
        (user({}), r"contents\[0\].parts\[0\]: .*none"),
        (user({"text": "x", "inlineData": {}}), r"parts\[0\]: .*inlineData and text"),
        (user({"text": 7}), r"parts\[0\].text: a number"),
        (user({"text": "\ud800"}), r"parts\[0\].text: lone surrogate"),
        (user({"text": "x", "thought": True}), r"parts\[0\].thought: "),
        (user({"text": "x", "y": {1}}), r"parts\[0\].provider_metadata"),
        (user(CALL), r"parts\[0\]: 'functionCall'"),
        (said({"text": "x", "thought": "yes"}), r"parts\[0\].thought: "),
        (said({"text": "x", "thought": True, "thoughtSignature": 7}), r"parts\[0\].signature"),
        (said({"functionResponse": {"name": "f", "response": {}}}), r"parts\[0\]: 'functionResponse'"),
        (said({"functionCall": {"args": {}}}), r"parts\[0\].functionCall.name: missing"),
        (said({"functionCall": {"name": "f", "args": {"x": {1}}}}), r"parts\[0\].arguments"),
        (user({"inlineData": {"data": "x"}}), r"inlineData.mimeType: missing"),
        (user({"inlineData": {"mimeType": "image/png"}}), r"inlineData.data: missing"),
        (user({"inlineData": {"mimeType": "image/png", "data": "?"}}), r"inlineData: not base64"),
        (user({"fileData": {"mimeType": "image/png"}}), r"fileData.fileUri: missing"),
        (user({"fileData": {"fileUri": "data:x"}}), r"parts\[0\].fileData: not a data URL"),
        (user({"functionResponse": {"response": {}}}), r"functionResponse.name: missing"),
        (user({"functionResponse": {"name": "f"}}), r"functionResponse.response: "),
        (user({"functionResponse": {"name": "f", "response": {"x": float("inf")}}}), r"functionResponse.response: inf"),
        (user({"functionResponse": {"name": "f", "response": {}, "parts": [{"text": "x"}]}}), r"functionResponse.parts\[0\]: no medium"),
        (user({"functionResponse": {"name": "f", "response": {}, "parts": 0}}), r"functionResponse.parts: not a list"),
    ],
)  # fmt: skip
def test_a_bad_payload_is_refused_with_its_place(payload, says):
    with pytest.raises(InvalidMessage, match=says) as raised:
        from_wire(payload)
    assert "\n" not in str(raised.value)


def test_a_result_without_a_call_is_refused():
    with pytest.raises(UnpairedResult, match=r"^contents\[0\].parts: the tool result of 'f'"):
        from_wire(user({"functionResponse": {"name": "f", "response": {"result": "x"}}}))


@given(damaged(conversations(WIRE).map(to_wire)))
def test_no_payload_raises_anything_else(payload):
    laws.is_read_or_refused(gemini, payload)


@given(anything.conversations)
def test_builder_and_wire_carry_a_conversation_or_say_why_not(conversation):
    laws.is_carried_or_refused(gemini, conversation)


# -- reading --------------------------------------------------------------------------------------------------


def test_strings_and_contents_without_a_role_are_what_the_user_said():
    assert from_wire({"contents": "hi", "systemInstruction": "be brief", "tools": []}) == [
        SystemMessage.text("be brief"),
        UserMessage.text("hi"),
    ]
    system = {"role": "user", "parts": [{"text": "be brief"}]}
    assert from_wire({"contents": ["hi", {"parts": [{"text": "ho"}]}], "systemInstruction": system}) == [
        SystemMessage.text("be brief"),
        UserMessage.text("hi"),
        UserMessage.text("ho"),
    ]


@pytest.mark.parametrize(
    ("response", "content", "is_error"),
    [
        ({"output": "x"}, "x", False),
        ({"error": "x", "result": None}, "x", True),
        ({"error": {"said": "não"}}, '{"said": "não"}', True),
        ({"result": 18}, "18", False),
        ({"result": ["a", 3]}, '["a", 3]', False),
        ({"result": ["a", "b"]}, (TextPart(text="a"), TextPart(text="b")), False),
        ({"tempC": 18, "sky": "clear"}, '{"tempC": 18, "sky": "clear"}', False),
        ({"error": "x", "code": 3}, '{"error": "x", "code": 3}', True),
        ({}, "{}", False),
    ],
)
@pytest.mark.parametrize("role", ["user", "function", "tool"])
def test_results_of_any_shape(response, content, is_error, role):
    payload = said(CALL)
    payload["contents"].append(
        {"role": role, "parts": [{"functionResponse": {"name": "f", "response": response}}]}
    )
    result = from_wire(payload)[1].results[0]
    assert (result.content, result.is_error) == (content, is_error)


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"image": {"$ref": "cat.png"}}, '{"image": {"$ref": "cat.png"}}'),
        ({"result": "a cat"}, "a cat"),
        ({"result": ""}, None),
        ({"result": [{"$ref": "dog.png"}]}, '[{"$ref": "dog.png"}]'),
        ({"result": ["x"]}, '["x"]'),
        (
            {"result": [{"$ref": "cat.png"}, {"$ref": "cat.png"}]},
            '[{"$ref": "cat.png"}, {"$ref": "cat.png"}]',
        ),
    ],
)
def test_media_that_a_list_does_not_place_stand_behind_the_text(response, text):
    medium = {"inlineData": {"mimeType": "image/png", "data": b64(PNG), "displayName": "cat.png"}}
    payload = said(CALL)
    payload["contents"] += user({"functionResponse": {"name": "f", "response": response, "parts": [medium]}})[
        "contents"
    ]
    result = from_wire(payload)[1].results[0]
    assert result.content == (*([TextPart(text=text)] if text else []), ImagePart(data=PNG))


def test_media_that_are_named_twice_stand_behind_the_text():
    media = [
        {"inlineData": {"mimeType": "image/png", "data": b64(PNG + end), "displayName": name}}
        for end, name in ((b"1", "a"), (b"2", "b"))
    ]
    payload, twice = said(CALL), [{"$ref": "a"}, {"$ref": "a"}]
    payload["contents"] += user(
        {"functionResponse": {"name": "f", "response": {"result": twice}, "parts": media}}
    )["contents"]
    content = from_wire(payload)[1].results[0].content
    assert content[1:] == (ImagePart(data=PNG + b"1"), ImagePart(data=PNG + b"2"))


def test_what_the_sdk_dumps_is_read():
    payload = {
        "contents": [
            {
                "role": "model",
                "parts": [
                    {"text": "hm", "thought": True, "thought_signature": b"\xff\xfe", "inline_data": None},
                    {"text": "x", "thought": None, "thought_signature": b"\x01"},
                    {"inline_data": {"data": PNG, "mime_type": "image/png", "display_name": None}},
                ],
            }
        ]
    }
    assert from_wire(payload)[0].content == (
        ReasoningPart(text="hm", signature="//4="),
        TextPart(text="x", provider_metadata={"google": {"thoughtSignature": "AQ=="}}),
        ImagePart(data=PNG),
    )


def test_what_stands_beside_a_turn_is_kept_and_stays():
    (message,) = from_wire({"contents": [{"role": "user", "parts": [{"text": "x"}], "name": "Ann"}]})
    assert message.payload == {"google": {"name": "Ann"}}
    assert to_wire([message]) == user({"text": "x"})


# -- responses ------------------------------------------------------------------------------------------------

RESPONSE: dict[str, Any] = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [
                    {"text": "The user wants the weather.", "thought": True},
                    {"functionCall": {"name": "get_weather", "args": {"city": "Paris"}}, "thoughtSignature": "c2ln"},
                ],
            },
            "finishReason": "STOP",
            "index": 0,
        }
    ],
    "usageMetadata": {
        "promptTokenCount": 100, "cachedContentTokenCount": 60, "candidatesTokenCount": 7, "thoughtsTokenCount": 30,
        "toolUsePromptTokenCount": 5, "totalTokenCount": 142,
    },
    "modelVersion": "gemini-x",
    "responseId": "r1",
}  # fmt: skip


def test_a_response_becomes_a_message_with_every_part():
    message = read_response(RESPONSE)
    assert message == AssistantMessage(
        content=(
            ReasoningPart(text="The user wants the weather."),
            ToolCallPart(
                id="",
                name="get_weather",
                arguments={"city": "Paris"},
                provider_metadata={"google": {"thoughtSignature": "c2ln"}},
            ),
        ),
        id="r1",
        model="gemini-x",
        stop_reason="tool_calls",
        usage=Usage(input=105, output=37, cache_read=60),
    )
    history = [message, ToolMessage.from_result(message.tool_calls[0].result("ok"))]
    sent = to_wire(build_request(history, TARGET).messages)["contents"]
    assert sent[0] == RESPONSE["candidates"][0]["content"]
    assert sent[1]["parts"] == [{"functionResponse": {"name": "get_weather", "response": {"result": "ok"}}}]


@pytest.mark.parametrize(
    ("theirs", "ours", "error"),
    [
        ("STOP", "stop", None),
        (None, "stop", None),
        ("MAX_TOKENS", "length", None),
        ("SAFETY", "content_filter", "SAFETY"),
        ("RECITATION", "content_filter", "RECITATION"),
        ("MALFORMED_FUNCTION_CALL", "error", "MALFORMED_FUNCTION_CALL: print(f("),
        ("BORED", "error", "BORED"),
    ],
)
def test_every_stop_reason_has_ours(theirs, ours, error):
    candidate = {
        "finishReason": theirs,
        "finishMessage": error.split(": ")[1] if error and ": " in error else None,
    }
    message = read_response({"candidates": [{**candidate, "content": {"parts": [{"text": "x"}]}}]})
    assert (message.stop_reason, message.error, message.text) == (ours, error, "x")
    assert read_response({"candidates": [{**candidate, "content": {"role": "model"}}]}).content == ()
    assert read_response({"candidates": [candidate]}).content == ()


def test_the_usage_of_a_response():
    def usage(**used: int) -> Usage:
        return read_response({"candidates": [{}], "usageMetadata": used}).usage

    assert usage(promptTokenCount=9, cachedContentTokenCount=4) == Usage(input=9, cache_read=4)
    assert usage(toolUsePromptTokenCount=5, candidatesTokenCount=7) == Usage(input=5, output=7)
    assert usage(thoughtsTokenCount=3, totalTokenCount=99) == Usage(output=3)
    message = read_response({"candidates": [{}, {"content": {"parts": [{"text": "of another"}]}}]})
    assert (message.usage, message.content, message.id, message.model) == (Usage(), (), None, None)


@pytest.mark.parametrize("reason", ["SAFETY", "MAX_TOKENS", "BORED"])
def test_words_about_the_end_are_kept_with_its_reason(reason):
    message = read_response({"candidates": [{"finishReason": reason, "finishMessage": "why"}]})
    assert message.error == (None if reason == "MAX_TOKENS" else f"{reason}: why")
    blocked = read_response({"promptFeedback": {}})
    assert (blocked.error, blocked.content) == ("the prompt was blocked: no reason given", ())


def test_a_blocked_prompt():
    message = read_response(
        {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}}
    )
    assert (message.stop_reason, message.error) == ("content_filter", "the prompt was blocked: SAFETY")
    assert message.usage == Usage(input=3)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (7, "response: "),
        ({}, "response.candidates: no candidate"),
        ({"candidates": []}, "response.candidates: no candidate"),
        ({"candidates": [7]}, r"response.candidates\[0\]: a number"),
        ({"candidates": [{"content": 7}]}, r"response.candidates\[0\].content: a number"),
        ({"candidates": [{"content": {"parts": [{}]}}]}, r"response.candidates\[0\].content.parts\[0\]: "),
        ({"candidates": [{}], "usageMetadata": []}, "response.usageMetadata: a list"),
        ({"error": {"code": 400, "message": "bad key"}}, "response: .*bad key"),
    ],
)
def test_a_bad_response_is_refused_with_its_place(payload, says):
    with pytest.raises(InvalidMessage, match=says):
        read_response(payload)


@given(damaged(st.just(RESPONSE)))
def test_no_response_raises_anything_else(payload):
    try:
        assert read_response(payload).model_dump_json()
    except InvalidMessage as error:
        assert str(error)
