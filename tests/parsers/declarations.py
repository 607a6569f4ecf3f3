"""Output formats as models declare them, in the styles that are in use, each with outputs and their reading.

Where each style is from: `objects` and `tags` from the templates that `transformers serve` has for Qwen 2 to 3.5,
`typed tags` from TRL's for Qwen 3.5 and GLM 4.5, `bare keys` from Gemma 4's own; `list` (Cohere), `messages`
(gpt-oss), `started` (ERNIE) and `blocks` (parts of the content, joined fields) from the tests of transformers.
"""

from __future__ import annotations

from typing import Any

ANCHOR = "<|turn|>assistant\n"


def template(**fields: dict[str, Any]) -> dict[str, Any]:
    """A declaration of these fields."""
    return {"defaults": {"role": "assistant"}, "start_anchor": ANCHOR, "fields": fields}


def called(name: str, arguments: Any) -> dict[str, Any]:
    """A `transform` that finds the name and the arguments there."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


THINK = {"open": "<think>", "close": "</think>", "content": "text"}
WHOLE = {"type": "function", "function": "{content}"}
NAMED = called("{name}", "{content}")
TAG = r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"

DECLARATIONS: dict[str, dict[str, Any]] = {
    "objects": template(
        reasoning_content=THINK,
        tool_calls={
            "open_pattern": r"\s*<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json",
            "transform": WHOLE,
        },
        content={"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)"},
    ),
    "list": template(
        content={"open": "<|START_TEXT|>", "close": "<|END_TEXT|>"},
        thinking={"open": "<|START_THINKING|>", "close": "<|END_THINKING|>"},
        tool_calls={
            "open": "<|START_ACTION|>", "close": "<|END_ACTION|>", "content": "json", "transform_each": True,
            "transform": called("{tool_name}", "{parameters}"),
        },
    ),
    "messages": template(
        reasoning={"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
        content={"open": "<|channel|>final<|message|>", "close": ["<|end|>", "<|return|>"]},
        tool_calls={
            "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
            "close": "<|call|>", "repeats": True, "content": "json", "transform": NAMED,
        },
    ),
    "blocks": template(
        thinking={
            "open_pattern": r"(?:<\|model\|>)?[^<]*<\|thinking\|>", "close": "<|over|>", "repeats": True,
            "join": "", "content_args": {"strip": False},
        },
        content={
            "open_pattern": r"(?:<\|model\|>)?[^<]*<\|text\|>", "close": "<|over|>", "repeats": True, "join": "",
            "content_args": {"strip": False},
        },
        tool_calls={
            "open_pattern": r"(?:<\|model\|>)?[^<]*<\|invoke\|>", "close": "<|over|>", "repeats": True,
            "content": "json", "transform": called("{content.name}", "{content.args}"),
        },
    ),
    "started": template(  # the prompt has opened the reasoning, or the model does
        thinking={"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"},
        content={"open": "<response>\n", "close_pattern": r"\n?</response>"},
        tool_calls={"open": "<call>", "close": "</call>", "repeats": True, "content": "json", "transform": WHOLE},
    ),
    "tags": template(
        thinking=THINK,
        tool_calls={
            "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>\s*</tool_call>", "repeats": True, "content": "xml-inline",
            "content_args": {"tag_pattern": TAG}, "transform": NAMED,
        },
        content={"close": "<|im_end|>"},
    ),
    "typed tags": template(
        tool_calls={
            "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>", "close": "</tool_call>", "repeats": True,
            "content": "xml-inline", "transform": NAMED,
            "content_args": {
                "tag_pattern": TAG, "value_parser": {"name": "json", "args": {"allow_non_json": True}},
            },
        },
        content={},
    ),
    "bare keys": template(
        thinking={"open": "<|channel>thought\n", "close": "<channel|>"},
        tool_calls={
            "open_pattern": r"<\|tool_call>call:(?P<name>\w+)", "close": "<tool_call|>", "repeats": True,
            "content": "json", "transform": NAMED,
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
        },
        content={"close": ["<turn|>", "<|tool_response>"]},
    ),
}  # fmt: skip
"""One declaration for each way to say where a call is."""

OUTCOMES: list[tuple[str, str, dict[str, Any]]] = [
    ("objects", "<think>\nhm\n</think>\n\nHello <b>!\n<|im_end|>\n", {"reasoning": "hm", "content": "Hello <b>!"}),
    (
        "objects",
        'Both:\n<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>\n'
        '<tool_call>{"name": "g", "arguments": {}}</tool_call><|im_end|>',
        {"content": "Both:", "calls": [["f", {"a": "</tool_call>"}], ["g", {}]]},
    ),
    ("objects", "<think>a<tool_call>{}</think>b", {"reasoning": "a<tool_call>{}", "content": "b"}),
    ("objects", "<think>a<tool_call>{}", {"reasoning": "a<tool_call>{}", "malformed": ["call_in_reasoning"]}),
    ("objects", "a</think>b</tool_call>c", {"content": "a</think>bc", "malformed": ["stray_end"]}),
    ("objects", "<tool_call>5</tool_call>a", {"content": "a", "malformed": ["not_a_call"]}),
    ("objects", '<tool_call>{"name": "f", "arguments": {"a": 1', {"malformed": ["truncated"]}),
    (
        "list",
        '<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", '
        '"parameters": {"n": 1}}, {"tool_name": "g"}, {"tool_name": "h", "parameters": {}}]<|END_ACTION|>',
        {"reasoning": "a", "calls": [["f", {"n": 1}], ["g", {}], ["h", {}]]},
    ),
    ("list", "<|START_TEXT|>Hi.<|END_TEXT|>\n<|turn|>assistant\n", {"content": "Hi."}),
    ("list", "No markers, and nothing is lost.", {"content": "No markers, and nothing is lost."}),
    (
        "messages",
        "<|channel|>analysis<|message|>hm<|end|><|turn|>assistant\n<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"a": 1}<|call|>',
        {"reasoning": "hm", "calls": [["f", {"a": 1}]]},
    ),
    ("messages", "<|channel|>final<|message|>done<|return|>", {"content": "done"}),
    (
        "messages",
        "<|channel|>commentary to=functions.f<|message|>null<|call|>",
        {"calls": [["f", {}]]},
    ),
    (
        "blocks",
        '<|thinking|>a <|over|><|model|><|thinking|> b<|over|><|model|>f<|invoke|>{"name":"f","args":{"c":1}}<|over|>',
        {"reasoning": "a  b", "calls": [["f", {"c": 1}]]},
    ),
    ("blocks", "<|text|> a <|over|>", {"content": " a "}),
    ("started", "hm</think>\n<response>\nHi\n</response>\n", {"reasoning": "hm", "content": "Hi"}),
    ("started", "<think>\nhm</think>", {"reasoning": "hm"}),
    ("started", '</think><call>{"name": "f", "arguments": {}}</call>', {"calls": [["f", {}]]}),
    (
        "tags",
        "Hi\n\n<tool_call>\n<function=f>\n<parameter=a>\n 1 \n</parameter>\n<parameter=b>x < y\n</parameter>\n"
        "</function>\n</tool_call><|im_end|>",
        {"content": "Hi", "calls": [["f", {"a": "1", "b": "x < y"}]]},
    ),
    ("tags", "<tool_call><function=f></function></tool_call>", {"calls": [["f", {}]]}),
    (
        "tags",
        "<tool_call><function=f><paraeter=a>1</parameter></function></tool_call> b",
        {"content": "b", "malformed": ["syntax"]},
    ),
    ("tags", "<tool_call><function=f><parameter=a>1</function></tool_call>", {"malformed": ["unclosed_string"]}),
    (
        "tags",
        "<tool_call><function=f>so<parameter=a>1</parameter></function></tool_call> b",
        {"content": "b", "malformed": ["syntax"]},
    ),
    (
        "tags",
        "<tool_call><function=f><parameter=a>1</parameter>so<parameter=b>2</parameter></function></tool_call>",
        {"malformed": ["syntax"]},
    ),
    (
        "tags",
        "<tool_call><function=f><parameter=a>1</parameter>so</function></tool_call>",
        {"malformed": ["syntax"]},
    ),
    (
        "tags",
        "<tool_call><function=f><parameter=a>1<parameter=b>2</parameter></function></tool_call>",
        {"malformed": ["unclosed_string"]},
    ),
    ("tags", "<tool_call><function=f><parameter=a>1</parameter>", {"malformed": ["truncated"]}),
    ("tags", "<tool_call><function=f><parameter=a>1", {"malformed": ["truncated"]}),
    ("tags", "<tool_call>so</tool_call>", {"content": "so", "malformed": ["not_a_call", "stray_end"]}),
    (
        "typed tags",
        "<tool_call>\n<function=f>\n<parameter=a>\n[1, {}]\n</parameter>\n<parameter=b>\nParis\n</parameter>\n"
        '<parameter=c>"7"</parameter><parameter=d>None</parameter><parameter=e>007</parameter>\n</function>\n'
        "</tool_call>",
        {"calls": [["f", {"a": [1, {}], "b": "Paris", "c": "7", "d": "None", "e": "007"}]]},
    ),
    (
        "bare keys",
        '<|channel>thought\nhm<channel|><|tool_call>call:f{a:true,l:[<|"|>x<|"|>],o:{k:<|"|>"<|"|>},n:null}'
        "<tool_call|><|tool_response>",
        {"reasoning": "hm", "calls": [["f", {"a": True, "l": ["x"], "o": {"k": '"'}, "n": None}]]},
    ),
    ("objects", '<tool_call>{"name": "f", "options": {"a": 1}}</tool_call>', {"malformed": ["not_a_call"]}),
    ("bare keys", "<|tool_call>call:f{a:1}<tool_c", {"calls": [["f", {"a": 1}]]}),
    ("bare keys", "<|tool_call>call:f{a:1} x", {"calls": [["f", {"a": 1}]], "content": "x", "malformed": ["missing_end"]}),
    ("bare keys", "<|tool_call>call:", {"malformed": ["truncated"]}),
    ("bare keys", "<|tool_call>call:f{a:1", {"malformed": ["truncated"]}),
    ("bare keys", "<|tool_call>call:f", {"malformed": ["truncated"]}),
    ("bare keys", "<|tool_call>cal x", {"content": "cal x", "malformed": ["not_a_call"]}),
    ("messages", '<|channel|>commentary to=functions.f<|message|>{"a": 1}<|cal', {"calls": [["f", {"a": 1}]]}),
    (
        "messages",
        '<|channel|>commentary to=functions.f<|message|>{"a": 1} x',
        {"calls": [["f", {"a": 1}]], "content": "x", "malformed": ["missing_end"]},
    ),
    ("messages", "<|channel|>comm", {"malformed": ["truncated"]}),
    ("tags", "Hi\n<tool_call>\n<func", {"content": "Hi", "malformed": ["truncated"]}),
    ("tags", "Hi\n<tool_call>\n<func x", {"content": "Hi<func x", "malformed": ["not_a_call"]}),
    ("tags", "<tool_call><function=f></function>\n</tool_c", {"malformed": ["truncated"]}),
]  # fmt: skip
"""Declaration, output, and what is read."""
