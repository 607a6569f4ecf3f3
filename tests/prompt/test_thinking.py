"""What chat templates can be told about thinking, and what a turn makes of it."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Event

import pytest

import localagent.nano
from localagent.errors import UsageError
from localagent.messages import SystemMessage, UserMessage
from localagent.prompt.rendering import render_turn, request_for, thinking_for, thinking_support
from localagent.prompt.segments import Prompt
from localagent.prompt.template import ChatTemplate
from localagent.prompt.thinking import LEVELS, Switch, ThinkingPlan, ThinkingSupport, check_thinking
from parsers import DIALECTS
from tests.test_detection import TEMPLATES as CALLING

TURNS = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"
    "{% endif %}{{ m.content }}{% endfor %}"
)
QWEN_TURNS = TURNS.replace("<think>", "<think>\n").replace("</think>", "\n</think>\n\n")
PLAIN_TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"


def template(tail: str = "", head: str = "", turns: str = PLAIN_TURNS) -> str:
    """A chat template with `head` in front of the turns, and a prompt that ends in `tail`."""
    return head + turns + "{% if add_generation_prompt %}{{ '<|assistant|>' }}" + tail + "{% endif %}"


WRITES_EFFORT = "Reasoning: {{ reasoning_effort if reasoning_effort is defined else 'medium' }}."
REFUSES = (
    "{% if EFFORT is defined and EFFORT not in KNOWN %}{{ raise_exception('no such effort') }}{% endif %}"
)
SCANS = (
    "{% set ns = namespace(on=true) %}{% for m in messages if m.role == 'system' %}"
    "{% if '/no_think' in m.content %}{% set ns.on = false %}{% endif %}{% endfor %}"
)
STRIPPED = PLAIN_TURNS.replace("m.content }}", "m.content.replace('/no_think', '').replace('/think', '') }}")

# The switches as the families' own templates have them; the rest of those is left out.
TEMPLATES = {
    "apertus": (
        "apertus",
        template(head="Deliberation: {{ 'enabled' if enable_thinking is defined and enable_thinking else 'disabled' }}"),
    ),
    "cohere-command-a": (
        "command-r7b",
        template(
            "<|START_THINKING|>{% if not reasoning %}<|END_THINKING|>{% endif %}",
            "{% set reasoning = reasoning if reasoning is not undefined else "
            "not (reasoning_effort is defined and reasoning_effort == 'none') %}",
        ),
    ),
    "deepseek-r1": ("deepseek-v3", template("<think>\n")),
    "deepseek-v3.1": (
        "deepseek-v31",
        template(
            "{{ '<think>' if thinking else '</think>' }}",
            "{% if not thinking is defined %}{% set thinking = false %}{% endif %}",
        ),
    ),
    "deepseek-v4-flash": (
        "deepseek-v4",
        template(
            "{{ '<think>' if thinking else '</think>' }}",
            "{% if not thinking is defined %}{% set thinking = enable_thinking | default(false) %}{% endif %}"
            "{% if thinking and reasoning_effort is defined and reasoning_effort == 'high' %}Be thorough.{% endif %}",
        ),
    ),
    "gemma-4": (
        "gemma4",
        template(
            "{% if not enable_thinking | default(false) %}<|channel>thought\n<channel|>{% endif %}",
            "{% if enable_thinking is defined and enable_thinking %}<|think|>{% endif %}",
        ),
    ),
    "glm-4.5": (
        "glm45",
        template("{{ '\n<think></think>' if enable_thinking is defined and not enable_thinking else '' }}"),
    ),
    "glm-4.7": (
        "glm47",
        template("{{ '</think>' if enable_thinking is defined and not enable_thinking else '<think>' }}"),
    ),
    "glm-5.2": (  # whatever it does not know is the most
        "glm47",
        template(
            "{{ '</think>' if enable_thinking is defined and not enable_thinking else '<think>' }}",
            "Effort: {{ 'high' if reasoning_effort is defined and reasoning_effort == 'high' else 'max' }}",
        ),
    ),
    "gpt-oss": ("harmony", template(head=WRITES_EFFORT).replace("{{ '<|assistant|>' }}", "<|start|>assistant")),
    "granite-3.3": (
        "granite3",
        template(
            head="{% if messages[0].role == 'system' %}{% elif tools %}Tools.{% elif thinking %}Write your thoughts."
            "{% else %}Help.{% endif %}"
        ),
    ),
    "granite-4": ("hermes", template()),
    "granite-4.2": (
        "hermes",
        template(
            "{% if enable_thinking is defined and enable_thinking %}<think>{% endif %}",
            "{% set low_effort = low_effort if low_effort is defined else False %}"
            "{% if reasoning_effort is defined %}{% set low_effort = reasoning_effort == 'low' %}{% endif %}"
            "{% if low_effort %}Be brief.{% endif %}",
        ),
    ),
    "hunyuan-a13b": (
        "hunyuan",
        template("{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n{% endif %}"),
    ),
    "hunyuan-hy3": (
        "hy3",
        template(
            "{{ '<think:opensource>' if effort in ['low', 'high'] else '<think:opensource></think:opensource>' }}",
            REFUSES.replace("EFFORT", "reasoning_effort").replace("KNOWN", "['high', 'low', 'no_think']")
            + "{% set effort = reasoning_effort if reasoning_effort is defined else 'no_think' %}effort:{{ effort }}",
        ),
    ),
    "kimi-k2.5": (
        "kimi-k2",
        template("{{ '<think></think>' if thinking is defined and thinking is false else '<think>' }}"),
    ),
    "kimi-k3": (
        "kimi-k3",
        template(
            "{{ '<|open|>think<|sep|>' if thinking else '<|open|>response<|sep|>' }}",
            REFUSES.replace("EFFORT", "thinking_effort").replace("KNOWN", "['low', 'high', 'max']")
            + "{% if thinking is undefined %}{% set thinking = true %}{% endif %}"
            "{% if thinking %}effort={{ thinking_effort | default('max') }}{% endif %}",
        ),
    ),
    "lfm2": ("lfm2", template()),
    "lfm2.5-2.6b": ("lfm2", template("<think>", turns=TURNS)),
    "ling-3": (
        "glm45",
        template(
            "{{ '<think>' if thinking_option == 'on' else '<think></think>' }}",
            "{% if thinking_option is not defined %}{% set thinking_option = 'on' %}{% endif %}"
            "detailed thinking {{ thinking_option }}",
        ),
    ),
    "magistral": ("mistral", template(head="Draft your thoughts in [THINK].[/THINK]")),
    "minicpm-5": (
        "minicpm5",
        template(
            "{% if enable_thinking is defined %}"
            "{{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}{% endif %}"
        ),
    ),
    "minimax-m2": ("minimax-m2", template("<think>\n", turns=QWEN_TURNS)),
    "minimax-m3": (
        "minimax-m3",
        template(
            "{{ {'disabled': '</mm:think>', 'enabled': '<mm:think>'}.get(mode, '') }}",
            "{% set mode = thinking_mode | default('adaptive') %}thinking mode: {{ mode }}",
        ),
    ),
    "mistral-small-4": (
        "mistral",
        template(
            head=REFUSES.replace("EFFORT", "reasoning_effort").replace("KNOWN", "['none', 'high']")
            + '[MODEL_SETTINGS]{"reasoning_effort": "{{ reasoning_effort | default("none") }}"}[/MODEL_SETTINGS]'
        ),
    ),
    "muse": ("muse", template(head="Reasoning strength: {{ reasoning_strength or 'high' }}.")),
    "nemotron-3-super": (
        "qwen3-coder",
        template(
            "{{ '<think>\n' if enable_thinking else '<think></think>' }}",
            "{% set enable_thinking = enable_thinking if enable_thinking is defined else True %}"
            "{% if low_effort %}{reasoning effort: low}{% endif %}",
            turns=QWEN_TURNS,
        ),
    ),
    "nemotron-nano-2": (
        "nemotron-nano-v2",
        template("{{ '<think>\n' if ns.on else '<think></think>' }}", SCANS, STRIPPED),
    ),
    "nemotron-super-1.5": (
        "nemotron-nano-v2",
        template("{{ '' if ns.on else '<think>\n\n</think>\n\n' }}", SCANS, STRIPPED),
    ),
    "qwen2.5": ("hermes", template()),
    "qwen3": (
        "hermes",
        template(
            "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}",
            turns=QWEN_TURNS,
        ),
    ),
    "qwen3.5": (
        "qwen3-coder",
        template(
            "{{ '<think>\n\n</think>\n\n' if enable_thinking is defined and enable_thinking is false else '<think>\n' }}",
            turns=QWEN_TURNS,
        ),
    ),
    "refuses-off": (
        "hermes",
        template("<think>", "{% if enable_thinking is false %}{{ raise_exception('cannot') }}{% endif %}"),
    ),
    "seed-oss": (
        "seed-oss",
        template(
            "{% if budget == 0 %}<seed:think>\nDirectly.\n</seed:think>{% endif %}",
            "{% set budget = thinking_budget | default(-1) %}{% if budget != -1 %}Think for {{ budget }}.{% endif %}",
        ),
    ),
    "smollm3": (
        "smollm3",
        template(
            "{{ '' if enable_thinking else '<think>\n\n</think>\n' }}",
            "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}"
            "Reasoning Mode: {{ '/think' if enable_thinking else '/no_think' }}",
        ),
    ),
    "solar-open": (
        "solar-open",
        template(
            "{% if reasoning_effort in ['low', 'minimal'] %}<|think|><|end|>{% endif %}",
            turns=PLAIN_TURNS + "{% set ask = reasoning_effort %}",
        ),
    ),
    "step-3.5": ("qwen3-coder", template("<think>\n", turns=QWEN_TURNS.replace("\n\n", "\n"))),
    "step-3.7": (
        "qwen3-coder",
        template(
            "<think>\n", "{% if reasoning_effort is defined %}Reasoning: {{ reasoning_effort }}{% endif %}"
        ),
    ),
}  # fmt: skip

# What each is told for on and for off; the variable for the levels, and those that it knows; the variable for
# a budget; whether the prompt opens the reasoning by default; how the reasoning is ended.
TABLE = r"""
model               on                     off                        levels                              budget           prompt  closing
apertus             enable_thinking=True   enable_thinking=False      -                                   -                -       <|inner_suffix|>
cohere-command-a    reasoning=True         reasoning=False            -                                   -                open    <|END_THINKING|>
deepseek-r1         -                      -                          -                                   -                open    </think>
deepseek-v3.1       thinking=True          thinking=False             -                                   -                -       </think>
deepseek-v4-flash   enable_thinking=True   enable_thinking=False      reasoning_effort high               -                -       </think>
gemma-4             enable_thinking=True   enable_thinking=False      -                                   -                -       \n<channel|>
glm-4.5             enable_thinking=True   enable_thinking=False      -                                   -                -       </think>\n
glm-4.7             enable_thinking=True   enable_thinking=False      -                                   -                open    </think>
glm-5.2             enable_thinking=True   enable_thinking=False      reasoning_effort high               -                open    </think>
gpt-oss             default                -                          reasoning_effort low medium high    -                -       <|end|>
granite-3.3         thinking=True          thinking=False             -                                   -                -       </think>
granite-4           -                      -                          -                                   -                -       \n</think>\n\n
granite-4.2         enable_thinking=True   enable_thinking=False      reasoning_effort low                -                -       \n</think>\n\n
hunyuan-a13b        enable_thinking=True   enable_thinking=False      -                                   -                -       </think>
hunyuan-hy3         reasoning_effort=high  reasoning_effort=no_think  reasoning_effort low high           -                -       </think:opensource>
kimi-k2.5           thinking=True          thinking=False             -                                   -                open    </think>
kimi-k3             thinking=True          thinking=False             thinking_effort low high            -                open    <|close|>think<|sep|>
lfm2                -                      -                          -                                   -                -       </think>
lfm2.5-2.6b         -                      -                          -                                   -                open    </think>
ling-3              thinking_option=on     thinking_option=off        -                                   -                open    </think>\n
magistral           -                      -                          -                                   -                -       [/THINK]
minicpm-5           enable_thinking=True   enable_thinking=False      -                                   -                -       </think>
minimax-m2          -                      -                          -                                   -                open    \n</think>\n\n
minimax-m3          thinking_mode=enabled  thinking_mode=disabled     -                                   -                -       </mm:think>
mistral-small-4     reasoning_effort=high  reasoning_effort=none      reasoning_effort high               -                -       [/THINK]
muse                default                -                          reasoning_strength low medium high  -                -       <|eom|>
nemotron-3-super    enable_thinking=True   enable_thinking=False      low_effort low                      -                open    \n</think>\n\n
nemotron-nano-2     /think                 /no_think                  -                                   -                open    </think>
nemotron-super-1.5  /think                 /no_think                  -                                   -                -       </think>
qwen2.5             -                      -                          -                                   -                -       \n</think>\n\n
qwen3               enable_thinking=True   enable_thinking=False      -                                   -                -       \n</think>\n\n
qwen3.5             enable_thinking=True   enable_thinking=False      -                                   -                open    \n</think>\n\n
refuses-off         -                      -                          -                                   -                open    \n</think>\n\n
seed-oss            thinking_budget=-1     thinking_budget=0          -                                   thinking_budget  -       </seed:think>
smollm3             enable_thinking=True   enable_thinking=False      -                                   -                -       </think>
solar-open          default                -                          reasoning_effort low                -                -       <|end|>
step-3.5            -                      -                          -                                   -                open    \n</think>\n
step-3.7            default                -                          reasoning_effort low medium high    -                open    \n</think>\n\n
"""
ROWS = {row.split()[0]: re.split(" {2,}", row)[1:] for row in TABLE.strip().split("\n")}


class Host:
    """A host as far as a prompt needs one; keeps the variables that it is asked to render with."""

    name = "the model"

    def __init__(self, source: str) -> None:
        self._template = ChatTemplate(source, "", "", ())
        self.asked: list[dict[str, object]] = []
        self.written = 0

    def render(self, messages, tools=None, *, limit=None, **variables) -> Prompt:
        self.asked.append(variables)
        return Prompt((), self.write(messages, tools, **variables))

    def write(self, messages, tools=None, **variables) -> str:
        self.written += 1
        return self._template.render(messages, tools, **variables).text


def support(name: str, **beside: bool) -> ThinkingSupport:
    dialect, source = TEMPLATES[name]
    return thinking_support(Host(source), DIALECTS[dialect], **beside)


def row_of(found: ThinkingSupport) -> list[str]:
    def shown(switch: Switch | None) -> str:
        if switch is None:
            return "-"
        return " ".join(f"{k}={v}" for k, v in switch.variables.items()) or switch.word or "default"

    names = {list(switch.variables)[-1] for switch in found.levels.values()}
    return [
        shown(found.on),
        shown(found.off),
        " ".join((*names, *found.levels)) or "-",
        found.budget or "-",
        "open" if found.opened else "-",
        found.closing.replace("\n", "\\n") or "-",
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_a_template_can_be_told(name):
    assert row_of(support(name)) == ROWS[name]


def test_no_row_is_left_over():
    assert [*ROWS] == ["model", *TEMPLATES]


@pytest.mark.parametrize("name", CALLING)
def test_a_template_without_a_switch_has_none(name):
    found = thinking_support(Host(CALLING[name]), DIALECTS[name], tools=True)
    assert (found.on, found.off, found.levels, found.budget) == (None, None, {}, "")


def test_nano_has_no_switch():
    source = (Path(localagent.nano.__file__).parent / "weights/mlx/chat_template.jinja").read_text("utf-8")
    assert row_of(thinking_support(Host(source), DIALECTS["lfm2"])) == ["-", "-", "-", "-", "-", "</think>"]


def test_a_template_that_refuses_everything_can_be_told_nothing():
    host = Host("{{ raise_exception('not today') }}")
    assert thinking_support(host, DIALECTS["hermes"]) == ThinkingSupport(closing="\n</think>\n\n")


@pytest.mark.parametrize(
    ("shown", "closing"),
    [
        ("<think>{{ m.thinking }}\n</think>\n\n{{ m.content }}", "\n</think>\n\n"),
        ("<think>{{ m.reasoning }}</think>\n<answer>\n{{ m.content }}", "</think>\n"),
        ("({{ m.thinking }}) <think>{{ m.thinking }} </think>{{ m.content }}", " </think>"),
        ("{{ m.thinking }}</think></think> {{ m.content }}", "</think>"),
        ("{{ m.thinking }}.</think>  {{ m.content }}", "\n</think>\n\n"),  # not only white space before it
        ("{{ m.thinking }}{{ m.content }}", "\n</think>\n\n"),
        ("{{ raise_exception('no') }}", "\n</think>\n\n"),
    ],
)
def test_how_a_template_ends_the_reasoning(shown, closing):
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        + shown
        + "{% else %}{{ m.content }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<think>{% endif %}"
    )
    assert thinking_support(Host(source), DIALECTS["hermes"]).closing == closing


def test_a_level_comes_with_what_switches_thinking_on():
    for name in TEMPLATES:
        found = support(name)
        for switch in found.levels.values():
            on = {} if found.on is None else {**found.on.variables}
            assert list(on)[-1:] == list(switch.variables)[-1:] or switch.variables.items() >= on.items(), (
                name
            )


def test_a_switch_that_tools_or_instructions_hide():
    """As in granite 3.3, whose words on thinking stand in a system message of its own, without tools."""
    for beside in ({"tools": True}, {"system": True}, {"tools": True, "system": True}):
        assert row_of(support("granite-3.3", **beside))[:2] == ["-", "-"]
        assert row_of(support("qwen3", **beside)) == ROWS["qwen3"]


def test_a_template_is_asked_once_for_each_kind_of_conversation():
    host, dialect = Host(TEMPLATES["qwen3"][1]), DIALECTS["hermes"]
    thinking_support(host, dialect)
    asked = host.written
    assert asked
    assert thinking_support(host, dialect) is thinking_support(host, dialect)
    assert host.written == asked
    thinking_support(host, dialect, tools=True)
    assert host.written == 2 * asked
    assert not host.asked, "the engine has nothing to do with it"


# -- a turn -------------------------------------------------------------------------------------------------

ASKED = UserMessage(content="Why?")
TOLD = SystemMessage(content="Be curt.")
TOOL = {"type": "function", "function": {"name": "find", "parameters": {}}}


def turn(name: str, *messages, thinking=None, budget=None, tools=None):
    """The plan and the prompt of a turn."""
    dialect, source = TEMPLATES[name]
    host = Host(source)
    request = request_for(host, messages or [ASKED])
    plan = thinking_for(host, DIALECTS[dialect], request, tools, thinking, budget)
    return plan, render_turn(host, DIALECTS[dialect], request, tools, switch=plan.switch)


def test_nothing_wanted_is_the_prompt_of_the_template():
    """Exactly: what was evaluated of it before is used again. And the template is not even asked."""
    for name, (dialect, source) in TEMPLATES.items():
        host = Host(source)
        request = request_for(host, [TOLD, ASKED])
        plan = thinking_for(host, DIALECTS[dialect], request)
        before = render_turn(host, DIALECTS[dialect], request)
        assert render_turn(host, DIALECTS[dialect], request, switch=plan.switch) == before, name
        assert host.asked == [{}, {}]
        assert (plan.budget, plan.closing, plan.warnings) == (None, "", ())


@pytest.mark.parametrize(
    ("name", "thinking", "end", "inside"),
    [
        ("qwen3", True, "<|assistant|>", None),
        ("qwen3", False, "<|assistant|><think>\n\n</think>\n\n", None),
        ("qwen3.5", True, "<|assistant|><think>\n", "reasoning"),
        ("deepseek-v3.1", True, "<|assistant|><think>", "reasoning"),
        ("deepseek-v3.1", None, "<|assistant|></think>", None),
        ("hunyuan-hy3", True, "<think:opensource>", "reasoning"),
        ("nemotron-nano-2", False, "<|assistant|><think></think>", None),
        ("nemotron-nano-2", True, "<|assistant|><think>\n", "reasoning"),
    ],
)
def test_a_prompt_with_a_switch(name, thinking, end, inside):
    for messages in ((ASKED,), (TOLD, ASKED)):
        plan, prompt = turn(name, *messages, thinking=thinking)
        assert prompt.text.endswith(end)
        assert "no_think" not in prompt.text or name == "hunyuan-hy3"
        assert prompt.inside == inside
        assert not plan.warnings


def test_a_word_stands_at_the_end_of_the_instructions():
    word = Switch(word="/no_think")
    assert [m.text for m in word.said_in([TOLD, ASKED])] == ["Be curt. /no_think", "Why?"]
    assert [m.text for m in word.said_in([ASKED])] == ["/no_think", "Why?"]
    assert [*Switch().said_in([ASKED])] == [ASKED]
    assert [m.text for m in word.said_in([])] == ["/no_think"]
    assert Switch({"a": 1}, "/w") | {"a": 2, "b": 3} == Switch({"a": 2, "b": 3}, "/w")


@pytest.mark.parametrize(
    ("name", "thinking", "warning"),
    [
        ("gpt-oss", "low", None),
        ("gpt-oss", True, None),
        ("gpt-oss", False, "cannot be told not to think: its chat template has no switch for it; what it"),
        (
            "qwen3",
            "low",
            "has no thinking level 'low': it thinks as it does when thinking is just switched on",
        ),
        ("kimi-k3", "medium", "has no thinking level 'medium', only low and high: it thinks"),
        ("kimi-k3", "high", None),
        ("lfm2.5-2.6b", True, None),
        ("lfm2.5-2.6b", "high", "has no thinking level 'high': "),
        ("lfm2", True, "cannot be told to think: its chat template has no switch for it"),
        ("lfm2", "low", "cannot be told to think: "),
        ("lfm2", False, "cannot be told not to think: "),
        ("granite-3.3", True, None),
    ],
)
def test_what_a_model_cannot_be_told_is_said(name, thinking, warning):
    said = [f"{each.kind}: {each.text}" for each in turn(name, thinking=thinking)[0].warnings]
    assert len(said) == (warning is not None)
    assert not said or said[0].startswith(f"thinking: the model {warning}")


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("lfm2", {"thinking": True}, "cannot be told to think: its chat template has no switch for it"),
        (
            "lfm2",
            {"thinking": False},
            "cannot be told not to think: its chat template has no switch for it; what it begins to think is "
            "ended at once",
        ),
        (
            "lfm2.5-2.6b",
            {"thinking": "high"},
            "has no thinking level 'high': it thinks as it does when thinking is just switched on",
        ),
        (
            "kimi-k3",
            {"thinking": "medium"},
            "has no thinking level 'medium', only low and high: it thinks as it does when thinking is just "
            "switched on",
        ),
    ],
)
def test_what_a_model_cannot_be_told_is_said_to_the_letter(name, options, says):
    (warning,) = turn(name, **options)[0].warnings
    assert (warning.kind, warning.text) == ("thinking", f"the model {says}")


def test_what_may_end_the_reasoning_otherwise_is_told_how():
    host, dialect = Host(TEMPLATES["qwen3"][1]), DIALECTS["hermes"]
    request = request_for(host, [ASKED])
    plan = thinking_for(host, dialect, request, ends=True)
    assert plan == ThinkingPlan(closing="\n</think>\n\n")
    assert thinking_for(host, dialect, request) == ThinkingPlan()
    assert thinking_for(host, dialect, request, budget=0).budget == 0
    with pytest.raises(UsageError, match="thinking is off"):
        thinking_for(host, dialect, request, None, False, 5)


def test_a_warning_says_beside_what_a_switch_does_not_work():
    plan, prompt = turn("granite-3.3", TOLD, ASKED, thinking=True, tools=[TOOL])
    assert plan.warnings[0].text.endswith(
        "no switch for it, or none that works beside tools and instructions"
    )
    assert prompt.text == "<|system|>Be curt.<|user|>Why?<|assistant|>"


def test_the_name_in_a_warning_is_the_callers():
    host = Host(TEMPLATES["lfm2"][1])
    plan = thinking_for(host, DIALECTS["lfm2"], request_for(host, [ASKED]), thinking=True, name="nano")
    assert plan.warnings[0].text.startswith("nano cannot")


def test_reasoning_that_cannot_be_switched_off_is_ended_at_once():
    for name in TEMPLATES:
        plan, _ = turn(name, thinking=False)
        can = support(name).off is not None
        assert (plan.budget, len(plan.warnings)) == ((None, 0) if can else (0, 1)), name
        assert plan.closing


def test_a_budget_is_told_to_a_template_that_takes_one():
    plan, prompt = turn("seed-oss", budget=512)
    assert (plan.budget, prompt.text) == (512, "Think for 512.<|user|>Why?<|assistant|>")
    plan, prompt = turn("seed-oss", thinking=True, budget=512)
    assert (plan.budget, prompt.text) == (512, "Think for 512.<|user|>Why?<|assistant|>")
    plan, prompt = turn("qwen3", budget=512)
    assert (plan.budget, prompt.text) == (512, "<|user|>Why?<|assistant|>")
    assert plan.closing == "\n</think>\n\n"


def test_a_budget_where_there_is_no_reasoning():
    host = Host(CALLING["gigachat3"])
    assert DIALECTS["gigachat3"].reasoning is None
    request = request_for(host, [ASKED])
    plan = thinking_for(host, DIALECTS["gigachat3"], request, budget=3)
    assert plan.budget is None
    assert plan.warnings[0].text == (
        "the model has no reasoning that thinking_budget could bound: what it writes is all answer"
    )
    assert thinking_for(host, DIALECTS["gigachat3"], request, thinking=False).warnings == ()


@pytest.mark.parametrize("thinking", [*LEVELS, True, False, None])
def test_good_values(thinking):
    turn("qwen3", thinking=thinking)
    turn("qwen3", thinking=thinking, budget=0 if thinking is False else 1)


@pytest.mark.parametrize(
    ("thinking", "budget", "message"),
    [
        ("none", None, "thinking is 'none': it must be True, False, 'low', 'medium', 'high' or None"),
        (1, None, "thinking is 1: "),
        ([], None, r"thinking is \[\]: "),
        (None, -1, "thinking_budget is -1: it must be tokens, 0 or more"),
        (None, 2.0, "thinking_budget is 2.0: "),
        (None, True, "thinking_budget is True: "),
        (False, 5, "thinking is off, and thinking_budget is 5: choose one of them"),
        ("high", 0, "thinking is 'high', and thinking_budget is 0: choose one of them"),
    ],
)
def test_values_that_mean_nothing(thinking, budget, message):
    with pytest.raises(UsageError, match=f"^{message}"):
        turn("qwen3", thinking=thinking, budget=budget)


def test_a_flag_is_something_that_can_be_asked():
    check_thinking(None, None, Event())
    for flag in (True, lambda: True):
        with pytest.raises(UsageError, match=r"^end_thinking is .*: it must be a flag, such as a threading"):
            check_thinking(None, None, flag)
