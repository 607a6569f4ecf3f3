"""The prompt of a turn, and what a chat template is asked about calls before it is trusted with them."""

from __future__ import annotations

import dataclasses

import pytest

from localagent.errors import TemplateFailed, UsageError
from localagent.messages import (
    AssistantMessage,
    ImagePart,
    SystemMessage,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from localagent.prompt.probe import NAME, TemplateSupport, probe, probe_calls
from localagent.prompt.rendering import render_turn, request_for
from localagent.prompt.segments import Prompt
from localagent.prompt.template import ChatTemplate
from localagent.prompt.thinking import opens_reasoning
from parsers import DIALECTS
from parsers.engine.spans import Span

LFM2, PLAIN = DIALECTS["lfm2"], DIALECTS["plain"]
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"


def turns(calls: str = "") -> str:
    """A template of all turns, and of what it does with calls."""
    return "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}" + calls + "{% endfor %}"


def prompts(end: str = "") -> str:
    """The end of a template, with a turn of the model that has begun."""
    return "{% if add_generation_prompt %}<|assistant|>" + end + "{% endif %}"


TALK = turns() + prompts()
TALK_WITH_CALLS = turns(CALLS) + prompts()
ALTERNATING = (
    "{% for m in messages %}{% if not loop.first and m.role == loop.previtem.role %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
)
NEEDS_CALLS = (
    "{% for m in messages %}{% if m.role == 'tool' and not loop.previtem.tool_calls and loop.previtem.role != 'tool' %}"
    "{{ raise_exception('a result without a call') }}{% endif %}<|{{ m.role }}|>{{ m.content or '' }}"
    + CALLS
    + "{% endfor %}"
)
DROPS_RESULTS = "{% for m in messages if m.role != 'tool' %}<|{{ m.role }}|>{{ m.content or '' }}{% endfor %}"

CALL = ToolCallPart(id="c1", name="find", arguments={"name": "Bob"})
USED = (
    UserMessage(content="Who is Bob?"),
    AssistantMessage(content=[CALL]),
    ToolMessage.from_result(CALL.result("a friend of mine")),
)
SCHEMA = {"type": "function", "function": {"name": "find", "parameters": {}}}


class Host:
    """A host as far as a prompt needs one; keeps what it is asked to render."""

    name = "the model"

    def __init__(self, source: str) -> None:
        self._template = ChatTemplate(source, "", "", ())
        self.asked: list[tuple[tuple[str, ...], object, object]] = []

    def render(self, messages, tools=None, **options) -> Prompt:
        self.asked.append((tuple(turn["role"] for turn in messages), tools, options))
        return Prompt((), self._template.render(messages, tools).text)

    def write(self, messages, tools=None, **variables) -> str:
        return self.render(messages, tools).text


def rendered(host: Host, *messages, dialect=LFM2, **options) -> Prompt:
    return render_turn(host, dialect, request_for(host, messages), **options)


def test_tools_and_limits_reach_the_template_where_they_are_given():
    host = Host(TALK)
    rendered(host, UserMessage(content="Hi."))
    rendered(host, UserMessage(content="Hi."), tools=[], limit=None)
    rendered(host, UserMessage(content="Hi."), tools=[SCHEMA], limit=7.0)
    assert host.asked == [(("user",), None, {}), (("user",), None, {}), (("user",), [SCHEMA], {"limit": 7.0})]


def test_a_request_names_the_model():
    picture = UserMessage(content=["Look", ImagePart.from_url("https://example.org/a.png")])
    for name, shown in ((None, "the model"), ("llama", "llama")):
        (warning,) = request_for(Host(TALK), [picture], name).warnings
        assert warning.text.startswith(f"{shown} sees no images")


def test_what_cannot_be_asked():
    with pytest.raises(UsageError, match="at least one message"):
        rendered(Host(TALK))
    with pytest.raises(UsageError, match=r"the model takes no tools: its dialect 'plain' has no tool calls"):
        rendered(Host(TALK), UserMessage(content="Hi."), dialect=PLAIN, tools=[SCHEMA])


def test_roles_that_must_take_turns():
    host = Host(ALTERNATING)
    asked = (SystemMessage(content="Be curt."), UserMessage(content="One."), UserMessage(content="Two."))
    assert rendered(host, *asked, tools=[SCHEMA], limit=9.0).text == "<|system|>Be curt.<|user|>One.\n\nTwo."
    assert [options for _, *options in host.asked] == [[[SCHEMA], {"limit": 9.0}]] * 2


def test_what_a_template_refuses_anyway_is_not_tried_again():
    host = Host("{{ raise_exception('not today') }}")
    with pytest.raises(TemplateFailed, match="not today"):
        rendered(host, UserMessage(content="Hi."))
    assert len(host.asked) == 1


@pytest.mark.parametrize(
    ("end", "opened"),
    [
        ("<think>", True),
        ("<think>\n", True),
        ("<think>\n\n", True),
        ("<think></think>", False),
        ("think>", False),
    ],
)
def test_a_prompt_that_opens_the_reasoning_says_so(end, opened):
    host = Host(turns() + prompts(end))
    assert rendered(host, UserMessage(content="Hi.")).inside == ("reasoning" if opened else None)
    assert opens_reasoning(LFM2, end) is opened
    assert not opens_reasoning(dataclasses.replace(PLAIN, reasoning=None), end)


def test_the_marker_of_the_reasoning_may_end_in_white_space():
    """As in templates that tell the effort behind it, or nothing."""
    dialect = dataclasses.replace(LFM2, reasoning=Span("<think>\n", "</think>"))
    assert opens_reasoning(dialect, "<|assistant|><think>\n\n")
    assert not opens_reasoning(dialect, "<|assistant|>\n")


def test_no_content_opens_the_reasoning():
    """A template without a generation prompt ends in content, which anybody may have written."""

    class Cut(Host):
        def render(self, messages, tools=None, **options) -> Prompt:
            return Prompt((), super().render(messages, tools).text, tail="</s>")

    assert rendered(Cut(turns()), UserMessage(content="<think>")).inside is None
    assert rendered(Host(turns()), UserMessage(content="<think>")).inside == "reasoning"


# -- calls and their results --------------------------------------------------------------------------------


def test_a_template_that_shows_all_is_not_probed():
    host = Host(TALK)
    text = rendered(host, *USED, tools=[SCHEMA]).text
    assert (
        '<|assistant|><|tool_call_start|>[find(name="Bob")]<|tool_call_end|><|tool|>a friend of mine' in text
    )
    assert host.asked == [(("user", "assistant", "tool"), [SCHEMA], {})]


def test_calls_are_left_to_a_template_where_the_dialect_cannot_write_them():
    host = Host(TALK_WITH_CALLS)
    assert '<call>find {"name": "Bob"}<|tool|>a friend' in rendered(host, *USED, dialect=PLAIN).text
    probed = len(host.asked)
    assert probed > 1
    assert '<call>find {"name": "Bob"}<|tool|>a friend' in rendered(host, *USED, dialect=PLAIN).text
    assert len(host.asked) == probed + 1, "a template never changes: it is probed once"


def test_results_that_need_their_calls():
    text = rendered(Host(NEEDS_CALLS), *USED, tools=[SCHEMA]).text
    assert '<call>find {"name": "Bob"}<|tool|>a friend of mine' in text


def test_results_that_a_template_drops_are_told_by_the_user():
    host = Host(DROPS_RESULTS)
    text = rendered(host, *USED, tools=[SCHEMA]).text
    assert text.endswith("<|user|>Result of find:\na friend of mine")
    assert host.asked[-1][1] == [SCHEMA]


def test_a_host_that_cannot_be_remembered_is_probed_each_time():
    class Unhashable(Host):
        __hash__ = None

    host = Unhashable(DROPS_RESULTS)
    for _ in range(2):
        assert "Result of find" in rendered(host, *USED).text


# -- what a template is found to do -------------------------------------------------------------------------


def of(source: str) -> TemplateSupport:
    template = ChatTemplate(source, "", "", ())
    return probe(lambda turns: template.render(turns).text)


@pytest.mark.parametrize(
    ("calls", "support"),
    [
        (CALLS, TemplateSupport(tool_calls=True)),
        ("", TemplateSupport(tool_calls=False)),
        (
            "{% for c in m.tool_calls or [] %}{{ c.function.name }} {{ c.function.arguments + '' }}{% endfor %}",
            TemplateSupport(tool_calls=True, text_arguments=True),
        ),
        (
            "{% if m.content is none %}" + CALLS + "{% endif %}",
            TemplateSupport(tool_calls=True, none_content=True, text_with_calls=False),
        ),
        (
            "{% if not m.content %}" + CALLS + "{% endif %}",
            TemplateSupport(tool_calls=True, text_with_calls=False),
        ),
        (
            "{% if m.content is none %}{% for c in m.tool_calls %}{{ c.function.name }} "
            "{{ c.function.arguments + '' }}{% endfor %}{% endif %}",
            TemplateSupport(tool_calls=True, text_arguments=True, none_content=True, text_with_calls=False),
        ),
    ],
)  # fmt: skip
def test_the_shape_in_which_calls_appear(calls, support):
    assert of(turns(calls)) == support


def test_a_call_has_an_id_that_every_template_takes():
    """Some want nine letters and digits, and refuse the conversation otherwise."""
    checks = "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('id') }}{% endif %}{% endfor %}"
    checks += (
        "{% if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ raise_exception('id') }}{% endif %}"
    )
    assert of(turns(checks + CALLS)) == TemplateSupport(tool_calls=True)


def test_an_example_in_a_template_is_no_call():
    assert not of("Example: {'name': 'get_weather'}" + turns()).tool_calls


def test_results_that_are_shown_without_calls_and_not_with_them():
    dropped = "{% for m in messages if m.role != 'tool' %}{{ m.content }}" + CALLS + "{% endfor %}"
    assert of(dropped) == TemplateSupport(tool_calls=True, tool_results=False)


@pytest.mark.parametrize(
    ("prompt", "turn", "parts"),
    [
        ("<|bot|>", "<|bot|>CALL", ("<|bot|>", "CALL")),
        ("<|bot|><think>\n", "<|bot|>CALL", ("<|bot|>", "CALL")),  # to the last marker that both have
        ("<|bot|><think>\n", "<|bot|><think>\n</think>CALL", ("<|bot|><think>\n", "</think>CALL")),
        ("<|s|>\n<|bot|><think>", "<|s|>\n<|bot|>CALL", ("<|s|>\n<|bot|>", "CALL")),
        ("\nbot:", "\nassistant: CALL", ("\n", "assistant: CALL")),  # or to a line's end
        ("[bot]", "[bot][call]CALL", ("[bot]", "[call]CALL")),
        ("[bot][think]", "[bot][call]CALL", ("[bot]", "[call]CALL")),
        ("bot: ", "assistant: CALL", ("", "assistant: CALL")),
        ("bot: go", "bot: CALL", ("", "bot: CALL")),  # a half line is nobody's marker
        ("<|bot|>then", "<|bot|>", None),
    ],
)
def test_a_written_call_begins_where_the_prompt_ends(prompt, turn, parts):
    call = "{{ m.tool_calls[0].function.name }}"
    source = (
        "{% for m in messages %}{% if m.tool_calls %}" + turn.replace("CALL", call) + "{% else %}{{ m.content }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}" + prompt + "{% endif %}"
    )  # fmt: skip
    source = source.replace("\n", "{{ '\\n' }}")  # a line's end after a tag is not written
    found = [(written.prompt, written.text) for written in probe_calls(source)]
    assert found == ([(parts[0], parts[1].replace("CALL", NAME))] if parts else [])


def test_every_way_of_writing_a_call_is_found_once():
    call = (
        "{% for c in m.tool_calls or [] %}{% if c.function.arguments is string %}text{% else %}mapping{% endif %}"
        "{% if c.id == 'functions.' + c.function.name + ':0' %} named{% endif %}"
        "{% if m.content is none %} none{% endif %}{% if m.thinking %} thought{% endif %} {{ c.function.name }};{% endfor %}"
    )
    texts = [
        written.text
        for written in probe_calls("{% for m in messages %}{{ m.content or '' }}" + call + "{% endfor %}")
    ]
    assert len(texts) == len(set(texts)) == 16
    assert {tuple(text.removesuffix(f" {NAME};").split()) for text in texts} == {
        tuple(word for word in (kind, named, none, thought) if word)
        for kind in ("text", "mapping") for named in ("", "named") for none in ("", "none") for thought in ("", "thought")
    }  # fmt: skip


def test_a_question_that_a_template_repeats():
    """What comes after its last mention is the turn."""
    echo = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{{ m.content or '' }}"
        + CALLS
        + "{% endfor %}"
    )
    assert {written.text.split("<call>")[0] for written in probe_calls(echo)} == {"[assistant]"}


@pytest.mark.parametrize("source", ["{% broken", "", "{{ raise_exception('no') }}", TALK])
def test_templates_that_write_no_call(source):
    assert list(probe_calls(source)) == []
