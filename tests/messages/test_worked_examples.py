"""The worked examples of the message models that this one was made from say the same in it."""

from __future__ import annotations

import base64

import pytest

from localagent.messages import (
    AssistantMessage,
    FlushMessage,
    ImagePart,
    ReasoningPart,
    RescueMessage,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
    dump_messages,
    load_messages,
)
from localagent.prompt.request import build_request
from localagent.session import Session
from localagent.wire import anthropic, gemini, openai

# -- the two-city weather exchange ----------------------------------------------------------------------


def weather(first: str, second: str) -> list[dict]:
    """As the document shows it on the wire, with the ids that a model gave."""
    calls = [
        {
            "id": id,
            "type": "function",
            "function": {"name": "get_weather", "arguments": f'{{"city":"{city}"}}'},
        }
        for id, city in ((first, "NYC"), (second, "London"))
    ]
    return [
        {"role": "system", "content": "You are a helpful weather assistant."},
        {"role": "user", "content": "What's the weather in NYC and London?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": first, "content": "72°F and sunny"},
        {"role": "tool", "tool_call_id": second, "content": "55°F and rainy"},
        {"role": "assistant", "content": "NYC is 72°F and sunny; London is 55°F and rainy."},
    ]


@pytest.mark.parametrize(("first", "second"), [("call_a", "call_b"), ("call_0", "call_0")])
def test_the_two_city_exchange(first, second):
    wire = weather(first, second)
    history = openai.from_wire(wire)
    assert [message.role for message in history] == ["system", "user", "assistant", "tool", "assistant"]
    assert [call.arguments["city"] for call in history[2].tool_calls] == ["NYC", "London"]
    assert [result.text for result in history[3].results] == ["72°F and sunny", "55°F and rainy"]
    assert openai.to_wire(build_request(history, openai.TARGET).messages) == wire
    assert load_messages(dump_messages(history)) == history


def test_ids_that_collide_in_every_turn():
    """The same id for every call of two turns: each result stays with its own call, on every wire."""
    history = [
        *openai.from_wire(weather("call_0", "call_0")),
        *openai.from_wire(weather("call_0", "call_0"))[1:],
    ]
    written = anthropic.to_wire(build_request(history, anthropic.TARGET).messages)["messages"]
    ids = [block["id"] for turn in written for block in turn["content"] if block["type"] == "tool_use"]
    assert len(set(ids)) == 4
    answers = {
        block["tool_use_id"]: block["content"]
        for turn in written
        for block in turn["content"]
        if block["type"] == "tool_result"
    }
    assert [answers[id] for id in ids] == ["72°F and sunny", "55°F and rainy"] * 2


def test_reasoning_of_the_tool_call_turn_goes_back_and_that_of_the_answer_does_not():
    wire = weather("call_a", "call_b")
    wire[2]["reasoning"] = "The user wants two cities. I'll call get_weather for each."
    wire[5]["reasoning"] = "Both are in."
    sent = openai.to_wire(build_request(openai.from_wire(wire), openai.TARGET).messages)
    assert sent[2]["reasoning_content"] == wire[2]["reasoning"]
    assert "reasoning" not in sent[2]
    assert not {"reasoning", "reasoning_content"} & sent[5].keys()


# -- vision messages in their four source forms ---------------------------------------------------------

PNG = b"\x89PNG\r\n\x1a\n"
PACKED = base64.b64encode(PNG).decode()


@pytest.mark.parametrize(
    ("source", "on_openai", "on_anthropic", "on_gemini"),
    [
        (
            "https://example.com/cat.jpg",
            "https://example.com/cat.jpg",
            {"type": "url", "url": "https://example.com/cat.jpg"},
            {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://example.com/cat.jpg"}},
        ),
        *[
            (
                source,
                f"data:image/png;base64,{PACKED}",
                {"type": "base64", "media_type": "image/png", "data": PACKED},
                {"inlineData": {"mimeType": "image/png", "data": PACKED}},
            )
            for source in (f"data:image/png;base64,{PACKED}", PACKED, PNG)
        ],
    ],
    ids=["url", "data url", "base64", "bytes"],
)
def test_an_image_in_its_four_source_forms(source, on_openai, on_anthropic, on_gemini):
    message = UserMessage.with_images("What does this chart show?", [source])
    (turn,) = openai.to_wire([message])
    assert turn["content"][1] == {"type": "image_url", "image_url": {"url": on_openai}}
    (turn,) = anthropic.to_wire([message])["messages"]
    assert turn["content"][1] == {"type": "image", "source": on_anthropic}
    (turn,) = gemini.to_wire([message])["contents"]
    assert turn["parts"][1] == on_gemini
    for wire in (openai, anthropic, gemini):
        assert wire.from_wire(wire.to_wire([message])) == [message]


def test_a_pdf_rides_on_the_image_part():
    message = UserMessage(content=("Summarize the key findings.", ImagePart(data=b"%PDF-1.7 ")))
    assert message.images[0].media_type == "application/pdf"
    (turn,) = gemini.to_wire([message])["contents"]
    assert turn["parts"][1]["inlineData"]["mimeType"] == "application/pdf"
    (turn,) = anthropic.to_wire([message])["messages"]
    assert turn["content"][1]["type"] == "document"


# -- reasoning with a signature -------------------------------------------------------------------------


def test_reasoning_with_its_signature():
    thought = ReasoningPart(text="The user wants a summary…", signature="opaque-provider-signature")
    hidden = ReasoningPart(encrypted="opaque", redacted=True)
    call = ToolCallPart(id="call_1", name="get_weather", arguments={"city": "Paris"})
    history = [
        UserMessage.text("What is the weather in Paris?"),
        AssistantMessage(content=(TextPart(text="Let me check."), thought, hidden, call)),
        ToolMessage.from_result(call.result({"tempC": 18, "sky": "clear"})),
    ]
    turn = anthropic.to_wire(build_request(history, anthropic.TARGET).messages)["messages"][1]
    assert turn["content"] == [
        {
            "type": "thinking",
            "thinking": "The user wants a summary…",
            "signature": "opaque-provider-signature",
        },
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "text", "text": "Let me check."},
        {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Paris"}},
    ]
    assert anthropic.from_wire({"messages": [turn]})[0].content[:2] == (thought, hidden)


# -- the Gemini thought signature -----------------------------------------------------------------------


def test_the_thought_signature_comes_back_with_its_call():
    answer = gemini.read_response(
        {
            "candidates": [
                {
                    "content": {
                        "role": "model",
                        "parts": [
                            {"functionCall": {"id": "call_1", "name": "get_weather", "args": {"city": "Paris"}}, "thoughtSignature": "sig-123"}
                        ],
                    },
                    "finishReason": "STOP",
                }
            ]
        }
    )  # fmt: skip
    (call,) = answer.tool_calls
    assert call.provider_metadata == {"google": {"thoughtSignature": "sig-123"}}
    stored = load_messages(dump_messages([UserMessage.text("Paris?"), answer]))
    stored.append(ToolMessage.from_result(call.result({"tempC": 18})))
    written = gemini.to_wire(build_request(stored, gemini.TARGET).messages)["contents"]
    assert written[1]["parts"][0]["thoughtSignature"] == "sig-123"
    assert written[1]["parts"][0]["functionCall"]["args"] == {"city": "Paris"}


# -- a batch of tool results ----------------------------------------------------------------------------


def test_a_batch_of_results():
    calls = [
        ToolCallPart(id=f"c{n}", name="read", tool_kind="read", arguments={"path": f"{n}.txt"})
        for n in range(3)
    ]
    done, failed, last = (call.result(f"content of {call.arguments['path']}") for call in calls)
    failed = calls[1].result("no such file", is_error=True).model_copy(update={"metadata": {"errno": 2}})
    last = last.model_copy(update={"terminate": True})
    batch = ToolMessage.from_results([done, failed, last])
    assert [result.call_id for result in batch.results] == ["c0", "c1", "c2"]
    assert load_messages(dump_messages([batch])) == [batch]
    history = [AssistantMessage(content=tuple(calls)), batch]
    written = anthropic.to_wire(build_request(history, anthropic.TARGET).messages)["messages"][1]
    assert written["role"] == "user"
    assert [block.get("is_error", False) for block in written["content"]] == [False, True, False]
    assert "errno" not in str(written)
    assert "terminate" not in str(written)


# -- a swarm history ------------------------------------------------------------------------------------


def test_a_swarm_history_with_flush_and_rescue(tmp_path):
    session = Session.create(tmp_path)
    session.append(SystemMessage.text("You sell shoes.", agent_name="sales"))
    session.append(UserMessage.text("hello", agent_name="sales", mode="user"))
    session.append(AssistantMessage.text("%$#@", agent_name="sales"))
    session.append(FlushMessage(agent_name="sales"))
    session.append(SystemMessage.text("You sell shoes, and answer in words.", agent_name="sales"))
    session.append(RescueMessage.text("Start the conversation.", agent_name="sales", mode="tool"))
    session.append(AssistantMessage.text("Welcome! Looking for shoes?", agent_name="sales"))
    session.append(
        UserMessage.text("These, please.", agent_name="sales", mode="user", payload={"image_id": "7f0c"})
    )
    reopened = Session.open(session.file)
    assert len(reopened.entries) == 8
    context = reopened.context()
    assert [message.role for message in context] == ["system", "rescue", "assistant", "user"]
    assert {message.agent_name for message in context} == {"sales"}
    assert context[-1].payload == {"image_id": "7f0c"}
    assert openai.to_wire(build_request(context, openai.TARGET).messages) == [
        {"role": "system", "content": "You sell shoes, and answer in words."},
        {"role": "user", "content": "Start the conversation."},
        {"role": "assistant", "content": "Welcome! Looking for shoes?"},
        {"role": "user", "content": "These, please."},
    ]
