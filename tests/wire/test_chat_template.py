"""Chat templates are given every message in the keys that they read, and what is rendered reads back the same."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.errors import InvalidMessage, LocalAgentError, Unsupported
from localagent.messages import (
    AssistantMessage,
    FlushMessage,
    ImagePart,
    MalformedToolCallPart,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from localagent.prompt import ChatTemplate, Mixed, Trusted
from localagent.prompt.request import build_request
from localagent.wire import chat_template
from localagent.wire.chat_template import TemplateSupport, from_wire, probe, to_wire
from parsers import DIALECTS, CallPart, StreamParser, collect
from parsers import ReasoningPart as ParsedReasoning
from parsers import TextPart as ParsedText
from tests.messages import strategies
from tests.messages.strategies import lists_of, text

LFM2, PLAIN = DIALECTS["lfm2"], DIALECTS["plain"]
START, END = LFM2.calls.open, LFM2.calls.close


def test_history_shows_calls_as_the_model_writes_them():
    call = ToolCallPart(id="c1", name="f", arguments={"a": f"say {END}"})
    history = [
        SystemMessage(content="One."),
        UserMessage(content="go"),
        AssistantMessage(content=(ReasoningPart(text="hm"), TextPart(text="Let me. "), call)),
        ToolMessage.from_result(call.result("42")),
        SystemMessage(content="Two."),
    ]
    system, user, assistant, tool = to_wire(build_request(history, chat_template.TARGET).messages, LFM2)
    assert system["content"] == "One.\n\nTwo."
    assert user["content"] == "go"
    said, opener, payload, closer = assistant["content"]
    assert said == "Let me. "
    assert [isinstance(piece, Trusted) for piece in (said, opener, payload, closer)] == [
        False,
        True,
        False,
        True,
    ]
    assert END not in payload
    parser = StreamParser(LFM2)
    parts = collect([*parser.feed(opener + payload + closer), *parser.close()])
    assert [(part.name, part.arguments) for part in parts] == [("f", call.arguments)]
    assert assistant["reasoning_content"] == assistant["thinking"] == "hm"
    assert tool == {"role": "tool", "name": "f", "tool_call_id": "c1", "content": "42"}


# -- what templates show --------------------------------------------------------------------------------

PLAIN_TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
WITH_CALLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
)
NO_TOOLS = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
SKIPS_TOOLS = "{% for m in messages if m.role != 'tool' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def rendering(source: str):
    template = ChatTemplate(source, "<s>", "</s>", ())
    return lambda turns: template.render(turns).text


@pytest.mark.parametrize(
    ("source", "support"),
    [
        (WITH_CALLS, TemplateSupport(tool_calls=True, tool_results=True)),
        (PLAIN_TURNS, TemplateSupport(tool_calls=False, tool_results=True)),
        (NO_TOOLS, TemplateSupport(tool_calls=False, tool_results=False)),
        (SKIPS_TOOLS, TemplateSupport(tool_calls=False, tool_results=False)),
        ("nothing", TemplateSupport(tool_calls=False, tool_results=False)),
    ],
    ids=["calls", "no calls", "refuses tools", "skips tools", "shows nothing"],
)
def test_a_template_is_asked_what_it_shows(source, support):
    assert probe(rendering(source)) == support


def test_the_real_template_of_a_model_without_tools(model):
    support = probe(lambda turns: model.host.render(turns).text)
    assert support == TemplateSupport(tool_calls=False, tool_results=True)


CALL = ToolCallPart(id="c1", name="f", arguments={"a": [1, None]})
ACTED = [AssistantMessage(content=("Let me. ", CALL)), ToolMessage.from_result(CALL.result("42"))]


def test_a_dialect_without_calls_leaves_them_to_a_template_that_shows_them():
    turns = to_wire(ACTED, PLAIN, probe(rendering(WITH_CALLS)))
    assert turns[0]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": [1, None]}}}
    ]
    assert '<tool_call>{"name": "f", "arguments": {"a": [1, null]}}</tool_call>' in rendering(WITH_CALLS)(
        turns
    )
    assert from_wire(turns, PLAIN) == ACTED
    with pytest.raises(Unsupported) as refused:
        to_wire(ACTED, PLAIN, probe(rendering(PLAIN_TURNS)))
    assert str(refused.value) == (
        "the history holds calls of 'f', which neither this model's template nor the dialect 'plain' can write"
    )


def test_results_that_a_template_drops_become_user_turns():
    turns = to_wire(ACTED, LFM2, probe(rendering(NO_TOOLS)))
    assert turns[1] == {"role": "user", "content": "Result of f:\n42"}
    assert "42" in rendering(NO_TOOLS)(turns)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (UserMessage.with_images("?", [b"GIF89a"]), "'image'"),
        (SystemMessage(content=({"kind": "smell"},)), "'smell'"),
        (
            AssistantMessage(content=(MalformedToolCallPart(raw="[", reason="truncated"),)),
            "'malformed_tool_call'",
        ),
        (AssistantMessage(content=(ReasoningPart(encrypted="blob"),)), "'reasoning'"),
        (ToolMessage(content=({"kind": "smell"},)), "'smell'"),
        (ToolMessage.from_result(CALL.result([ImagePart(file_id="f")])), "'image'"),
        (
            FlushMessage(),
            "^a chat template cannot carry a message of role 'flush': build_request makes one of it that can be "
            "sent$",
        ),
    ],
)
def test_what_a_template_cannot_carry_is_refused_by_name(message, says):
    with pytest.raises(Unsupported, match=says):
        to_wire([message], LFM2)


# -- and back -------------------------------------------------------------------------------------------

words = text.filter(bool)
texts = st.builds(TextPart, text=words)


@st.composite
def expressible(draw):
    """Conversations that a chat template is given whole, calls with their results."""
    history = []
    for kind in draw(st.lists(st.sampled_from(["system", "user", "assistant"]), max_size=4)):
        if kind == "assistant":
            thought = draw(st.just(()) | words.map(lambda said: (ReasoningPart(text=said),)))
            asked = st.builds(
                ToolCallPart,
                id=strategies.name,
                name=st.sampled_from(["f", "g.h"]),
                arguments=strategies.json_objects,
            )
            message = AssistantMessage(content=(*thought, *draw(lists_of(texts, asked))))
            history.append(message)
            if message.tool_calls:
                history.append(
                    ToolMessage.from_results(call.result(draw(text)) for call in message.tool_calls)
                )
        else:
            make = SystemMessage if kind == "system" else UserMessage
            history.append(make.text(draw(text)))
    return history


@given(expressible())
def test_what_a_template_can_be_given_comes_back_the_same(history):
    assert from_wire(to_wire(history, LFM2), LFM2) == history


ONLY_TEXT = """{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}
{{- raise_exception('no mapping') if c.function.arguments is mapping -}}
{{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}"""
ONLY_NONE = """{% for m in messages %}{% if m.content is not none %}{{ m.content }}{% else %}
{%- for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endif %}{% endfor %}"""


@pytest.mark.parametrize(
    ("template", "text_arguments", "none_content"),
    [(WITH_CALLS, False, False), (ONLY_TEXT, True, False), (ONLY_NONE, False, True)],
)
def test_the_shape_that_a_template_shows_is_found_and_used(template, text_arguments, none_content):
    render = rendering(template)
    support = probe(render)
    assert (support.tool_calls, support.text_arguments, support.none_content) == (
        True,
        text_arguments,
        none_content,
    )
    call = ToolCallPart(id="1", name="look_up", arguments={"city": "Paris"})
    shown = render(to_wire([UserMessage.text("go"), AssistantMessage(content=(call,))], PLAIN, support))
    assert "look_up" in shown
    assert "Paris" in shown


def test_calls_that_a_template_would_drop_beside_text_are_refused():
    support = probe(rendering(ONLY_NONE))
    call = ToolCallPart(id="1", name="look_up", arguments={})
    with pytest.raises(Unsupported) as refused:
        to_wire([AssistantMessage(content=(TextPart(text="Well."), call))], PLAIN, support)
    assert str(refused.value) == (
        "a turn of the history holds text and a call of 'look_up', and this model's template shows only one of them"
    )
    (turn,) = to_wire([AssistantMessage(content=(TextPart(text=" \n"), call))], PLAIN, support)
    assert turn["content"] is None


def test_ids_find_their_calls_by_name():
    a, b = ToolCallPart(id="", name="f"), ToolCallPart(id="", name="g")
    answers = [ToolCallPart(id="1", name="g").result("G"), ToolCallPart(id="2", name="f").result("F")]
    turns = to_wire([AssistantMessage(content=(a, b)), ToolMessage.from_results(answers)], LFM2)
    assert [call.id for call in from_wire(turns, LFM2)[0].tool_calls] == ["2", "1"]


def test_turns_as_others_write_them():
    calls = [{"id": "1", "function": {"name": "f"}}, {"function": {"name": "g", "arguments": '{"a":1}'}}]
    turns = [
        {"role": "system", "content": None},
        {"role": "user", "content": "u", "name": "ann", "mood": None},
        {"role": "assistant", "content": None, "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "content": "F", "tool_call_id": "1"},
        {"role": "tool", "content": "G", "name": "g"},
        {"role": "user"},
    ]
    system, user, said, answers, last = from_wire(turns, LFM2)
    assert (system, last) == (SystemMessage.text(""), UserMessage.text(""))
    assert (user.text, user.payload) == ("u", {"chat_template": {"name": "ann"}})
    assert (said.reasoning, said.text, said.payload) == ("hm", "", None)
    assert [(c.id, c.name, c.arguments) for c in said.tool_calls] == [("1", "f", {}), ("", "g", {"a": 1})]
    results = [(each.call_id, each.name, each.text) for each in answers.results]
    assert results == [("1", "", "F"), ("", "g", "G")]


def test_ids_of_results_that_answer_nothing_are_given_to_no_call():
    call, other = (
        {"function": {"name": "f"}},
        {"role": "tool", "name": "g", "tool_call_id": "9", "content": "G"},
    )
    said, answer = from_wire([{"role": "assistant", "content": "", "tool_calls": [call]}, other], LFM2)
    assert [each.id for each in said.tool_calls] == [""]
    assert answer.results[0].call_id == "9"
    user, alone = from_wire([{"role": "user", "content": "x"}, other], LFM2)
    assert (user, alone.results[0].call_id) == (UserMessage.text("x"), "9")


def test_markers_in_a_plain_string_are_text():
    written = f"{START}[f()]{END}"
    assert from_wire([{"role": "assistant", "content": written}], LFM2) == [AssistantMessage.text(written)]


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        ({"role": "wizard"}, "messages[0]: 'wizard' is no role of a chat template"),
        ("x", "messages[0]: a string where an object belongs"),
        ({"role": "user", "content": ["x"]}, "messages[0].content: no string"),
        ({"role": "assistant", "content": Mixed([Trusted(START), "[f(", Trusted(END)])}, "a block of calls that cannot be read"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function.name: missing"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}, "not the JSON text of an object"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}, "arguments: Input should be an object"),
        ({"role": "user", "content": 0}, "messages[0].content: no string"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": []}}]}, "arguments: Input should be an object"),
        ({"role": "assistant", "reasoning_content": 3}, "messages[0].reasoning_content: a number where a string belongs"),
    ],
)  # fmt: skip
def test_bad_turns_are_refused_with_their_place(turn, says):
    with pytest.raises(InvalidMessage) as caught:
        from_wire([turn], LFM2)
    assert says in str(caught.value)


@given(st.lists(strategies.messages, max_size=4), st.sampled_from([LFM2, PLAIN]))
def test_any_conversation_is_written_or_refused(history, dialect):
    try:
        messages = build_request(history, chat_template.TARGET).messages
        turns = to_wire(messages, dialect)
    except LocalAgentError:
        return
    shown = rendering(WITH_CALLS)(turns)
    said = [message.text for message in messages if isinstance(message, UserMessage | SystemMessage)]
    for part in [*said, *(str(turn.get("content") or "") for turn in turns)]:
        assert re.sub("[\ud800-\udfff]", "\ufffd", part) in shown


# -- the model's own words ----------------------------------------------------------------------------


def spoken(raw: str, inside=None) -> AssistantMessage:
    """A message as a turn makes it of `raw`."""
    return from_wire_parts(raw, inside).model_copy(update={"raw": raw})


def from_wire_parts(raw: str, inside) -> AssistantMessage:
    parser = StreamParser(LFM2, inside=inside)
    parts = []
    for part in collect([*parser.feed(raw), *parser.close()]):
        match part:
            case ParsedText(text=text):
                parts.append(TextPart(text=text))
            case ParsedReasoning(text=text):
                parts.append(ReasoningPart(text=text))
            case CallPart(name=name, arguments=arguments, arguments_text=text, repaired=repaired):
                text = json.dumps(arguments) if repaired else text  # as a turn does: a key may be there twice
                parts.append(ToolCallPart(id="1", name=name, arguments_text=text))
    return AssistantMessage(content=tuple(parts))


@pytest.mark.parametrize(
    ("raw", "inside", "shown"),
    [
        (f"{START}[f(a=\"x\",  b=[1,2])]{END}<|im_end|>", None, f"{START}[f(a=\"x\",  b=[1,2])]{END}"),
        (f"One. {START}[f()]{END} Two. {START}[ g() ]{END}<|im_end|>", None, f"One. {START}[f()]{END} Two. {START}[ g() ]{END}"),
        (f"<think>hm</think>{START}[f(a='it''s')]{END}", None, f"{START}[f(a='it''s')]{END}"),
        (f"hm</think>\n\n{START}[f( a = 1 )]{END}<|im_end|>", "reasoning", f"\n\n{START}[f( a = 1 )]{END}"),
        (f"<think>hm</think>\n{START}[f(a=1 )]{END}", None, f"\n{START}[f(a=1 )]{END}"),
        ("Just text.<|im_end|>", None, "Just text."),
    ],
)  # fmt: skip
def test_a_turn_is_shown_letter_for_letter(raw, inside, shown):
    message = spoken(raw, inside)
    (turn,) = to_wire([message], LFM2)
    assert str(turn["content"]) == shown
    markers = [piece for piece in turn["content"] if isinstance(piece, Trusted)]
    assert markers == [START, END] * (len(markers) // 2)


def test_a_marker_that_a_call_quotes_is_content():
    raw = f'{START}[f(a="{START}")]{END}'
    (turn,) = to_wire([spoken(raw)], LFM2)
    assert list(turn["content"]) == [START, f'[f(a="{START}")]', END]
    assert [isinstance(piece, Trusted) for piece in turn["content"]] == [True, False, True]


def test_raw_output_that_the_parts_contradict_is_not_shown():
    """The parts are what a program edits; a stale raw output must not win over them."""
    message = spoken(f"{START}[pay(amount=900)]{END}").model_copy(
        update={"content": (ToolCallPart(id="1", name="pay", arguments={"amount": 9}),)}
    )
    assert "900" not in str(to_wire([message], LFM2)[0]["content"])
    assert "amount=9)" in str(to_wire([message], LFM2)[0]["content"])


@given(
    st.text("ab \"'[](),=<>{}1\n", max_size=40).map(lambda inner: f"{START}[f(a={inner})]{END}"),
    st.booleans(),
)
def test_whatever_was_written_reads_back_as_what_was_shown(raw, end):
    message = spoken(raw + "<|im_end|>" * end)
    try:
        turns = to_wire([message], LFM2)
    except LocalAgentError:
        return
    again = from_wire(turns, LFM2)[0]
    assert [(c.name, c.arguments) for c in again.tool_calls] == [
        (c.name, c.arguments) for c in message.tool_calls
    ]


@pytest.mark.parametrize("key", ["reasoning_content", "thinking"])
def test_reasoning_is_read_under_either_name(key):
    (message,) = from_wire([{"role": "assistant", "content": "x", key: "hm"}], DIALECTS["lfm2"])
    assert message.reasoning == "hm"
