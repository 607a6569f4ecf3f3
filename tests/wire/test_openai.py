"""The OpenAI wire: identity, the official package's types, and what is refused."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
from pydantic import TypeAdapter, ValidationError

from localagent.errors import InvalidMessage, LocalAgentError, UnpairedResult, Unsupported
from localagent.messages import (
    AssistantMessage,
    AudioPart,
    ImagePart,
    MalformedToolCallPart,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    Usage,
    UserMessage,
)
from localagent.prompt.request import build_request
from localagent.wire import openai
from tests.messages import strategies
from tests.messages.strategies import json_values, lists_of, name, text

# -- identity -------------------------------------------------------------------------------------------

keys = st.sampled_from(["cache_control", "format", "index"])
extras = st.just({}) | st.dictionaries(keys, json_values.filter(lambda v: v is not None), min_size=1).map(
    lambda extra: {"openai": extra}
)
texts = st.builds(TextPart, text=text, provider_metadata=extras)
pictures = st.one_of(
    st.builds(ImagePart, data=strategies.files(strategies.MAGIC), provider_metadata=extras),
    st.builds(ImagePart, url=st.sampled_from(["https://a.b/c.png", "https://a.b/c"])),
    st.builds(ImagePart, file_id=name),
)
sounds = st.builds(AudioPart, data=st.sampled_from([b"ID3x", b"RIFF\0\0\0\0WAVE"]), provider_metadata=extras)
maybe = st.none() | text
reasoning = st.one_of(
    st.builds(ReasoningPart, text=text.filter(bool)).map(lambda part: (part,)),
    st.lists(
        st.builds(
            ReasoningPart, text=text, signature=maybe, encrypted=maybe, redacted=st.booleans(), provider_metadata=extras
        ),
        min_size=2,
        max_size=3,
    ).map(tuple),
    st.just(()),
)  # fmt: skip
calls = st.builds(
    ToolCallPart, id=name, name=name, arguments=strategies.json_objects, provider_metadata=extras
)


@st.composite
def expressible(draw):
    """Conversations that the wire carries whole."""
    history = []
    for kind in draw(st.lists(st.sampled_from(["system", "user", "assistant"]), max_size=4)):
        if kind == "system":
            history.append(SystemMessage(content=draw(lists_of(texts, min_size=1))))
        elif kind == "user":
            history.append(UserMessage(content=draw(lists_of(texts, pictures, sounds, min_size=1))))
        else:
            spoken = draw(st.lists(texts, max_size=2).filter(lambda parts: parts != [TextPart(text="")]))
            asked = draw(st.lists(calls, max_size=3))
            history.append(AssistantMessage(content=(*draw(reasoning), *spoken, *asked)))
            if asked and draw(st.booleans()):
                content = text | st.lists(texts, min_size=1, max_size=2)
                answers = [call.result("x").model_copy(update={"content": answer if isinstance(answer, str) else tuple(answer)})
                           for call in asked for answer in [draw(content)]]  # fmt: skip
                history.append(ToolMessage.from_results(answers))
    return history


@given(expressible())
def test_what_the_wire_can_express_comes_back_the_same(history):
    payload = openai.to_wire(history)
    before = copy.deepcopy(payload)
    assert openai.from_wire(payload) == history
    assert payload == before
    assert openai.from_wire(json.loads(json.dumps(payload))) == history


# -- the official types ---------------------------------------------------------------------------------

OFFICIAL = TypeAdapter(ChatCompletionMessageParam)


def validate(turn) -> None:
    """Validate by the official TypedDicts; content is declared Iterable, which is checked as it is read."""
    checked = OFFICIAL.validate_python(turn, strict=True)
    for value in checked.values():
        if not isinstance(value, str | dict | None):
            list(value)


@given(expressible())
def test_payloads_are_what_the_official_package_declares(history):
    for turn in openai.to_wire(history):
        validate(turn)


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "user", "content": 3},
        {"role": "user", "content": [{"type": "text", "text": 3}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": "https://a.b"}]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function"}]},
        {"role": "tool", "content": "x"},
    ],
)
def test_the_official_types_do_refuse(wrong):
    with pytest.raises(ValidationError):
        validate(wrong)


# -- examples -------------------------------------------------------------------------------------------


def test_every_kind_of_part_as_it_goes_over_the_wire():
    png = ImagePart(data=b"\x89PNG\r\n\x1a\n")
    message = UserMessage(
        content=(
            "Look: ",
            png,
            ImagePart(
                url="https://a.b/c.jpg", provider_metadata={"openai": {"image_url": {"detail": "low"}}}
            ),
            ImagePart(data=b"%PDF-", provider_metadata={"openai": {"file": {"filename": "report.pdf"}}}),
            ImagePart(file_id="file-1"),
            AudioPart(data=b"ID3"),
        )
    )
    (turn,) = openai.to_wire([message])
    assert turn["content"] == [
        {"type": "text", "text": "Look: "},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "image_url", "image_url": {"url": "https://a.b/c.jpg", "detail": "low"}},
        {
            "type": "file",
            "file": {"filename": "report.pdf", "file_data": "data:application/pdf;base64,JVBERi0="},
        },
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "input_audio", "input_audio": {"data": "SUQz", "format": "mp3"}},
    ]
    assert openai.from_wire([turn]) == [message]


def test_arguments_stay_the_text_that_was_written():
    written = '{ "city":"NYC" ,"n": 1.50}'
    turn = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": written}}]}  # fmt: skip
    (message,) = openai.from_wire([turn])
    assert message.tool_calls[0].arguments == {"city": "NYC", "n": 1.5}
    assert openai.to_wire([message])[0]["tool_calls"] == turn["tool_calls"]
    turn["tool_calls"][0]["function"]["arguments"] = ""
    assert openai.from_wire([turn])[0].tool_calls[0].arguments == {}


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_read_under_either_name_and_written_under_one(field):
    (message,) = openai.from_wire([{"role": "assistant", "content": "Yes.", field: "hm"}])
    assert message == AssistantMessage(content=(ReasoningPart(text="hm"), "Yes."))
    assert openai.to_wire([message]) == [{"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}]


def test_signed_reasoning_goes_back_verbatim_and_in_order():
    details = [
        {"type": "reasoning.summary", "summary": "In short", "id": "r1", "index": 0},
        {"type": "reasoning.text", "text": "a", "signature": "sig", "format": "anthropic-claude-v1"},
        {"type": "reasoning.encrypted", "data": "blob"},
        {"type": "reasoning.redacted", "data": "gone"},
    ]
    (message,) = openai.from_wire([{"role": "assistant", "content": "", "reasoning_details": details}])
    assert [part.signature for part in message.content] == [None, "sig", None, None]
    assert message.reasoning == "In shorta"
    assert openai.to_wire([message])[0]["reasoning_details"] == details


def test_what_clients_send_besides():
    history = openai.from_wire(
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "hi", "name": "ada", "mood": "good"},
            {"role": "assistant", "content": None, "refusal": "No.", "annotations": [], "audio": None},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "Never."}]},
        ]
    )
    assert history[0] == SystemMessage.text("Be brief.")
    assert (history[1].agent_name, history[1].payload) == ("ada", {"openai": {"mood": "good"}})
    assert [message.text for message in history[2:]] == ["No.", "Never."]
    assert openai.to_wire(history)[3]["content"] == [{"type": "refusal", "refusal": "Never."}]
    assert openai.to_wire(history)[1] == {"role": "user", "content": "hi"}


def test_results_find_the_names_of_their_calls():
    calls = [ToolCallPart(id="call_0", name=name) for name in ("f", "g")]
    history = [
        AssistantMessage(content=tuple(calls)),
        ToolMessage.from_results(call.result(call.name) for call in calls),
    ]
    assert openai.from_wire(openai.to_wire(history)) == history
    swapped = openai.to_wire([AssistantMessage(content=(ToolCallPart(id="a", name="f"), ToolCallPart(id="b", name="g"))),
                              ToolMessage.from_results([ToolCallPart(id="b", name="g").result("G"), ToolCallPart(id="a", name="f").result("F")])])  # fmt: skip
    assert [part.name for part in openai.from_wire(swapped)[1].results] == ["g", "f"]


def test_a_response_becomes_a_message():
    body = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{
            "index": 0, "finish_reason": "tool_calls", "logprobs": None,
            "message": {
                "role": "assistant", "content": "Let me look.", "refusal": None, "reasoning_content": "hm",
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}],
            },
        }],
        "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 5}},
    }  # fmt: skip
    message = openai.read_response(ChatCompletion.model_validate(body).model_dump())
    assert (message.text, message.reasoning, message.stop_reason, message.model) == (
        "Let me look.",
        "hm",
        "tool_calls",
        "m",
    )
    assert message.tool_calls[0].arguments == {"x": 1}
    assert (message.usage.input, message.usage.output, message.usage.cache_read) == (9, 4, 5)
    assert (
        openai.read_response(
            {"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}
        ).stop_reason
        == "length"
    )


def answer(message, reason="stop"):
    return openai.read_response({"choices": [{"message": message, "finish_reason": reason}]})


def test_a_response_is_never_lost_for_bad_arguments():
    good = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    bad = {"id": "b", "function": {"name": "g", "arguments": '{"x": '}}
    message = answer({"content": "So:", "tool_calls": [good, bad]}, "length")
    assert [part.kind for part in message.content] == ["text", "tool_call", "malformed_tool_call"]
    kept = message.malformed_tool_calls[0]
    assert (kept.id, kept.name, kept.reason, kept.raw) == (
        "b",
        "g",
        "truncated",
        '{"name": "g", "arguments": {"x": }',
    )
    assert answer({"tool_calls": [bad]}).malformed_tool_calls[0].reason == "syntax"


def test_what_a_response_may_say_instead():
    with pytest.raises(InvalidMessage, match=r"response: the API answered with an error: 'too\\nmany'"):
        openai.read_response({"error": {"message": "too\nmany"}})
    strange = answer({"content": "x"}, "tired")
    assert (strange.stop_reason, strange.text) == ("error", "x")
    assert "'tired'" in strange.error


@pytest.mark.parametrize(
    ("theirs", "ours", "error"),
    [
        ("stop", "stop", None),
        (None, "stop", None),
        ("length", "length", None),
        ("tool_calls", "tool_calls", None),
        ("function_call", "tool_calls", None),
        ("content_filter", "content_filter", None),
        ("tired", "error", "the API stopped for a reason not known here: 'tired'"),
    ],
)
def test_every_stop_reason_has_ours(theirs, ours, error):
    message = answer({"content": [{"type": "text", "text": "x"}]}, theirs)
    assert (message.stop_reason, message.error, message.text) == (ours, error, "x")
    assert (message.id, message.model, message.usage) == (None, None, Usage())


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ([], "response: a list where an object belongs"),
        ({}, "response.choices: no choice in it"),
        ({"choices": []}, "response.choices: no choice in it"),
        ({"choices": [{}]}, "response.choices[0].message: nothing where an object belongs"),
        ({"choices": [{"message": {}, "finish_reason": 3}]}, "response.choices[0].finish_reason: a number where a string belongs"),
        ({"choices": [{"message": {}}], "usage": {"prompt_tokens": -1}}, "response.usage.prompt_tokens: -1 where a count belongs"),
        ({"choices": [{"message": {"tool_calls": [{"function": {}}]}}]}, "response.choices[0].message.tool_calls[0].function.name: missing"),
        ({"error": {"code": 3}}, "response.error.message: missing"),
    ],
)  # fmt: skip
def test_a_bad_response_is_refused_with_its_place(payload, said):
    with pytest.raises(InvalidMessage) as caught:
        openai.read_response(payload)
    assert str(caught.value) == said


def test_the_usage_of_a_response():
    used = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    for told, cached in (
        (used, 4),
        ({**used, "prompt_tokens_details": None}, 0),
        ({**used, "prompt_tokens_details": {}}, 0),
    ):
        body = {"choices": [{"message": {"content": ""}}], "usage": told, "id": "i", "model": "m"}
        message = openai.read_response(body)
        assert (message.usage.input, message.usage.output, message.usage.cache_read) == (5, 3, cached)
        assert (message.id, message.model, message.content) == ("i", "m", ())


def test_all_that_an_assistant_turn_may_hold_in_its_order():
    function = {"name": "f", "arguments": " "}
    turn = {
        "thinking": "hm",
        "content": "So: ",
        "refusal": "no",
        "audio": {"id": "a1"},
        "tool_calls": [
            {"id": "kept", "type": "function", "function": function, "extra": 1},
            {"id": "back", "type": "function", "function": {"name": "f", "arguments": '{"a'}},
            {"function": {"name": "g", "arguments": None}},
        ],
        "malformed_tool_calls": [
            {"raw": "f(a", "reason": "truncated", "name": "f", "id": "back"},
            {"raw": "x"},
        ],
        "function_call": {"name": "h", "arguments": "{"},
    }
    parts = answer(turn, "length").content
    assert [part.kind for part in parts] == [
        *("reasoning", "text", "text", "openai.message:audio", "tool_call", "tool_call"),
        *("malformed_tool_call", "malformed_tool_call", "malformed_tool_call"),
    ]
    assert parts[2].provider_metadata == {"openai": {"refusal": "no"}}
    assert [(part.id, part.arguments, part.arguments_text) for part in parts[4:6]] == [
        ("kept", {}, "{}"),
        ("", {}, "{}"),
    ]
    assert [part.provider_metadata for part in parts[4:6]] == [{"openai": {"extra": 1}}, {}]
    assert [(part.id, part.name, part.reason, part.raw) for part in parts[6:]] == [
        ("back", "f", "truncated", "f(a"),
        ("", None, "syntax", "x"),
        ("", "h", "truncated", '{"name": "h", "arguments": {}'),
    ]


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ({"file_id": "f"}, ImagePart(file_id="f")),
        ({"file_id": "f", "filename": "file.pdf"}, ImagePart(file_id="f")),
        ({"file_data": "JVBERi0="}, ImagePart(data=b"%PDF-")),
        ({"file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf", "more": 1},
         ImagePart(data=b"%PDF-", provider_metadata={"openai": {"file": {"filename": "a.pdf", "more": 1}}})),
    ],
)  # fmt: skip
def test_files_are_read_with_their_names(file, part):
    (message,) = openai.from_wire([{"role": "user", "content": [{"type": "file", "file": file}]}])
    assert message.content == (part,)
    (turn,) = openai.to_wire([message])
    sent = turn["content"][0]["file"]
    assert sent.get("filename") == (None if "file_id" in file else file.get("filename", "file.pdf"))


def test_results_may_answer_calls_of_messages_before():
    calls = [ToolCallPart(id=each, name=f"f{each}") for each in "ab"]
    before = [
        AssistantMessage(content=(calls[0],)),
        UserMessage.text("x"),
        AssistantMessage(content=(calls[1],)),
    ]
    result = {"role": "tool", "tool_call_id": "b", "content": "4", "more": 1}
    (message,) = openai.from_wire([result], before)
    (part,) = message.results
    assert (part.name, part.text, part.provider_metadata) == ("fb", "4", {"openai": {"more": 1}})
    with pytest.raises(UnpairedResult):
        openai.from_wire([{**result, "tool_call_id": "a"}], before)
    named = openai.from_wire([{**result, "name": "given"}], before)[0].results[0]
    assert named.name == "given"


def test_encrypted_reasoning_is_kept_beside_its_text():
    hidden = {"type": "reasoning.encrypted", "data": "blob"}
    message = answer({"content": "x", "reasoning": "hm", "reasoning_details": [hidden]})
    assert message.content[:2] == (
        ReasoningPart(text="hm"),
        ReasoningPart(encrypted="blob", provider="openai"),
    )
    both = ReasoningPart(text="hm", encrypted="blob")
    (turn,) = openai.to_wire([AssistantMessage(content=(both, "x"))])
    assert openai.from_wire([turn])[0].content[0] == both


def test_calls_get_ids_and_content_is_never_an_empty_list():
    nameless = [ToolCallPart(id="", name="f"), ToolCallPart(id="", name="f"), ToolCallPart(id="x", name="f")]
    request = build_request(
        [AssistantMessage(content=tuple(nameless)), UserMessage(content=())], openai.TARGET
    )
    asked, *results, user = openai.to_wire(request.messages)
    assert [call["id"] for call in asked["tool_calls"]] == ["call", "call_2", "x"]
    assert [result["tool_call_id"] for result in results] == ["call", "call_2", "x"]
    assert user["content"] == ""


# -- what is refused ------------------------------------------------------------------------------------

RESULT = ToolCallPart(id="a", name="f").result([ImagePart(url="https://a.b/c.png")])


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (UserMessage(content=({"kind": "smell"},)), "'smell'"),
        (SystemMessage(content=({"kind": "smell"},)), "'smell'"),
        (UserMessage(content=(ImagePart(url="https://a.b/c.pdf"),)), "application/pdf as image from a URL"),
        (UserMessage(content=(ImagePart(data=b"?"),)), "media of unknown type as image from bytes"),
        (UserMessage(content=(AudioPart(data=b"fLaC"),)), "audio/flac as audio from bytes"),
        (UserMessage(content=(AudioPart(file_id="f"),)), "as audio from a file id"),
        (UserMessage(content=(ToolCallPart(id="a", name="f").result("x"),)), "'tool_result'"),
        (AssistantMessage(content=(ImagePart(file_id="f"),)), "'image' from an assistant"),
        (AssistantMessage(content=(MalformedToolCallPart(raw="[", reason="truncated"),)), "'malformed_tool_call'"),
        (ToolMessage.from_result(RESULT), "'image' in the result of 'f'"),
        (ToolMessage(content=({"kind": "smell"},)), "'smell' in a tool message"),
    ],
)  # fmt: skip
def test_what_the_wire_cannot_carry_is_refused_by_name(message, says):
    with pytest.raises(Unsupported, match=says):
        openai.to_wire([message])


def assistant(**function):
    return [{"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]}]


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({}, "messages: an object where a list belongs"),
        (["x"], "messages[0]: a string where an object belongs"),
        ([{"content": "x"}], "messages[0].role: missing"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role: 'wizard' is no role"),
        ([{"role": "function", "content": "x"}], "messages[0].role: the role 'function' is gone"),
        ([{"role": "user"}], "messages[0].content: nothing where a list belongs"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text: missing"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "image_url: a string where an object"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:;base64,!"}}]}], "messages[0].content[0].image_url.url: not base64"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:;base64," + "A" * 50_000_000}}]}], "37.5 MB of media"),
        ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "SUQz", "format": "aiff"}}]}], "'aiff' is no format"),
        ([{"role": "user", "content": [{"type": "file", "file": {}}]}], "messages[0].content[0].file: an image has exactly one"),
        ([{"role": "user", "content": [{"type": "file", "file": {"file_id": "f", "file_data": "eA=="}}]}], "exactly one"),
        (assistant(arguments="{}"), "function.name: missing"),
        ([{"role": "user", "content": "a\ud800"}], "messages[0].text: lone surrogate"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id: missing"),
    ],
)  # fmt: skip
def test_a_bad_payload_is_refused_with_its_place(payload, says):
    with pytest.raises(InvalidMessage) as caught:
        openai.from_wire(payload)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "before",
    [
        [],
        [{"role": "user", "content": "x"}],
        [*assistant(name="f", arguments="{}"), {"role": "assistant", "content": "x"}],
    ],
)
def test_a_result_without_a_call_is_refused(before):
    with pytest.raises(
        UnpairedResult, match=r"messages\[\d\]: the tool result with call id 'a' answers no call"
    ):
        openai.from_wire([*before, {"role": "tool", "tool_call_id": "a", "content": "x"}])


# -- nothing else escapes -------------------------------------------------------------------------------


@st.composite
def mutated(draw):
    """A good payload with one value anywhere replaced or removed."""
    payload = openai.to_wire(draw(expressible().filter(bool)))
    place = payload
    while True:
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if isinstance(place[key], dict | list) and place[key] and draw(st.booleans()):
            place = place[key]
        elif isinstance(place, dict) and draw(st.booleans()):
            del place[key]
            return payload
        else:
            place[key] = draw(json_values)
            return payload


@given(mutated())
def test_no_payload_raises_anything_else(payload):
    try:
        openai.from_wire(payload)
    except LocalAgentError as error:
        assert "\n" not in str(error)


@given(st.lists(strategies.messages, max_size=4))
def test_any_conversation_is_written_or_refused(history):
    try:
        payload = openai.to_wire(build_request(history, openai.TARGET).messages)
    except LocalAgentError:
        return
    for turn in payload:
        validate(turn)
