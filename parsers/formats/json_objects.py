"""Formats whose calls are JSON objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ..dialect import Calls, Context, Dialect, Grammar, Render
from ..engine.spans import QWEN_THINK, THINK, Span
from ..events import MAX_DEPTH
from ..literals.object_call import ObjectShape
from ..literals.writer import JSON, Writer
from .lists.code import CodeOpening
from .mixed import JSON_BLOCKS, tool_call
from .objects.block import JsonBlock
from .objects.python_tag import PythonTagBlock
from .objects.role import CALL_ROLE, ROLE_END, CallRole
from .objects.unmarked import LeadingCalls, functools_lists, json_of_tools, leading_calls
from .pairs.shape import GLM_ELSEWHERE
from .tags.block import TagBlock, functions_of_tools
from .tags.shape import FUNCTION


def render_blocks(span: Span, markers: Iterable[str], calls: Calls) -> str:
    """Hermes: one `<open>\\n{"name": "f", "arguments": {}}\\n<close>` for each call, on lines of their own.

    Raises ValueError for what no call can hold, as everything here. `markers`: the texts that must not stand
    in a string as they are; spelled out, they could become control tokens when the text goes into a prompt.
    """
    writer = Writer(markers, JSON)
    return "\n".join(f"{span.open}\n{writer.json(*call)}\n{span.close}" for call in calls)


def render_list(span: Span, markers: Iterable[str], calls: Calls) -> str:
    """Phi, Hunyuan: `<open>[{"name": "f", "arguments": {}}]<close>`."""
    return f"{span.open}{_list(markers, calls)}{span.close}"


def render_open_list(span: Span, markers: Iterable[str], calls: Calls) -> str:
    """Granite: such a list, up to the end of the turn."""
    return f"{span.open}{_list(markers, calls)}"


def render_marked(opening: str) -> Render:
    """GigaChat: an object for each call, behind a marker and up to the end of the message.

    `opening`: the text that takes the place of its marker.
    """

    def render(span: Span, markers: Iterable[str], calls: Calls) -> str:
        writer = Writer(markers, JSON)
        return "".join(f"{opening or span.open}{writer.json(*call)}" for call in calls)

    return render


def render_actions(span: Span, markers: Iterable[str], calls: Calls) -> str:
    """Command R: `<open>[\\n    {"tool_call_id": "0", "tool_name": "f", "parameters": {}}\\n]<close>`."""
    writer = Writer(markers, JSON)
    lines = ",\n".join(
        f'    {{"tool_call_id": "{id_}", "tool_name": "{name}", "parameters": {_object(writer, name, args)}}}'
        for id_, (name, args) in enumerate(calls)
    )
    return f"{span.open}[\n{lines}\n]{span.close}"


def render_keyed(span: Span, markers: Iterable[str], calls: Calls) -> str:
    """Apertus: `<open>[{"f": {}}]<close>`."""
    writer = Writer(markers, JSON)
    items = (f'{{"{name}": {_object(writer, name, arguments)}}}' for name, arguments in calls)
    return f"{span.open}[{', '.join(items)}]{span.close}"


def render_parameters(span: Span, markers: Iterable[str], calls: Calls) -> str:
    """Llama: `{"name": "f", "parameters": {}}`, several with a semicolon between them."""
    writer = Writer(markers, JSON)
    return "; ".join(
        f'{{"name": "{name}", "parameters": {_object(writer, name, arguments)}}}' for name, arguments in calls
    )


def render_bare(span: Span, markers: Iterable[str], calls: Calls) -> str:
    """No markers: one object, or a list of several."""
    calls = list(calls)
    if len(calls) == 1:
        return Writer(markers, JSON).json(*calls[0])
    return _list(markers, calls)


def _list(markers: Iterable[str], calls: Calls) -> str:
    writer = Writer(markers, JSON)
    return f"[{', '.join(writer.json(*call) for call in calls)}]"


def _object(writer: Writer, name: str, arguments: Mapping[str, Any]) -> str:
    """The arguments of a call in whose object they are one level down."""
    writer.check_name(name)
    return writer.mapping(arguments, MAX_DEPTH - 1)


TOOL_CALL = Span("<tool_call>", "</tool_call>", before=("\n",))
"""The block of Hermes."""
_ANSWER = Span("<answer>", "</answer>")
_RESPONSE = Span("<response>", "</response>")
_FINAL = "[BEGIN FINAL RESPONSE]"
"""With which Apriel 1.6 ends its reasoning [reasoning-in-words]."""
_GRANITE_PHRASES: Mapping[str, Literal["open", "close"]] = {
    "Here is my thought process:": "open",
    "Here's my thought process:": "open",
    "Here is my response:": "close",
    "Here's my response:": "close",
}
"""In place of tags, in Granite 3.2 [reasoning-in-words]."""
_CHATML_ENDS = ("<|im_end|>", "<|endoftext|>")


_TOOL_NAMES = ObjectShape(name_keys=("tool_name", "name"))
_KEYED = ObjectShape(keyed=True)
_tool_call = tool_call(GLM_ELSEWHERE, {**JSON_BLOCKS, "`": JsonBlock})  # in a Markdown fence as well


def _llama(context: Context) -> Grammar:
    """What follows `<|python_tag|>`, or a tag with an object: Llama 3.1 calls the user's tools so."""
    source = context.source
    block = TagBlock if source.text.startswith(FUNCTION.call, source.pos) else PythonTagBlock
    return block(context)


HERMES = Dialect(
    name="hermes",
    reasoning=QWEN_THINK,
    calls=TOOL_CALL,
    ends=(*_CHATML_ENDS, "<|end_of_text|>", "<|role_end|>"),
    grammar=_tool_call,
    opening=functions_of_tools,
    interrupts={TOOL_CALL.open: ("{", "<function=")},
    renderers={"json": render_blocks},
    shown=(*TOOL_CALL.markers, *THINK.markers),
    aliases=("qwen2.5", "qwen3", "qwq", "granite4"),
)
SMOLLM3 = Dialect(
    name="smollm3",
    reasoning=THINK,
    calls=TOOL_CALL,
    ends=_CHATML_ENDS,
    grammar=_tool_call,
    opening=CodeOpening,
    renderers={"json": render_blocks},
    shown=(*TOOL_CALL.markers, *THINK.markers),
)
HUNYUAN = Dialect(
    name="hunyuan",
    reasoning=THINK,
    calls=Span("<tool_calls>", "</tool_calls>"),
    ends=("<|eos|>", "<|endoftext|>"),
    grammar=JsonBlock,
    renderers={"json": render_list},
    answers=(_ANSWER,),
    phrases={_FINAL: "close"},
    cores=dict.fromkeys((*THINK.markers, *_ANSWER.markers), ""),
    shown=("<tool_calls>", "</tool_calls>"),
    aliases=("hunyuan-a13b", "apriel", "jamba", "minimax-m1"),
)
PHI4_MINI = Dialect(
    name="phi4-mini",
    reasoning=THINK,
    calls=Span("<|tool_call|>", "<|/tool_call|>"),
    ends=("<|end|>", "<|endoftext|>"),
    grammar=JsonBlock,
    opening=functools_lists,
    renderers={"json": render_list},
    aliases=("phi4",),
)
GRANITE3 = Dialect(
    name="granite3",
    reasoning=THINK,
    calls=Span("<|tool_call|>", "<|end_of_text|>"),
    ends=("<|end_of_text|>",),
    grammar=JsonBlock,
    slips=("<tool_call>",),
    renderers={"json": render_open_list},
    answers=(_RESPONSE,),
    phrases=_GRANITE_PHRASES,
    cores=dict.fromkeys((*THINK.markers, *_RESPONSE.markers, "<tool_call>"), ""),
)
COMMAND_R7B = Dialect(
    name="command-r7b",
    reasoning=Span("<|START_THINKING|>", "<|END_THINKING|>"),
    calls=Span("<|START_ACTION|>", "<|END_ACTION|>"),
    ends=("<|END_OF_TURN_TOKEN|>",),
    grammar=lambda context: JsonBlock(context, _TOOL_NAMES),
    renderers={"json": render_actions},
    answers=(Span("<|START_RESPONSE|>", "<|END_RESPONSE|>"), Span("<|START_TEXT|>", "<|END_TEXT|>")),
    spellings={"<|START_OF_TURN_TOKEN|>": "", "<|CHATBOT_TOKEN|>": ""},
    aliases=("command-a",),
)
APERTUS = Dialect(
    name="apertus",
    reasoning=Span("<|inner_prefix|>", "<|inner_suffix|>"),
    calls=Span("<|tools_prefix|>", "<|tools_suffix|>"),
    ends=("<|assistant_end|>",),
    grammar=lambda context: JsonBlock(context, _KEYED),
    renderers={"json": render_keyed},
)
ERNIE = Dialect(
    name="ernie",
    reasoning=QWEN_THINK,  # ERNIE's template writes the same white space
    calls=TOOL_CALL,
    ends=("</s>", "<|im_end|>"),
    grammar=_tool_call,
    renderers={"json": render_blocks},
    answers=(Span("<response>", "</response>", after_open=("\n",), before_close=("\n",)),),
    shown=(*TOOL_CALL.markers, *THINK.markers),
    aliases=("ernie4.5",),
)
NEMOTRON_NANO_V2 = Dialect(
    name="nemotron-nano-v2",
    reasoning=THINK,
    calls=Span("<TOOLCALL>", "</TOOLCALL>", before=("\n\n",)),
    ends=("<SPECIAL_12>",),
    grammar=JsonBlock,
    renderers={"json": render_list},
    cores={"<TOOLCALL>": "", "</TOOLCALL>": ""},
    shown=THINK.markers,
    aliases=("nemotron-json",),
)
GIGACHAT3 = Dialect(
    name="gigachat3",
    calls=Span("<|function_call|>", "<|message_sep|>"),
    ends=("<|message_sep|>", "</s>"),
    grammar=JsonBlock,
    opening=CallRole,
    inner=(ROLE_END,),
    renderers={
        "marker": render_marked(""),
        "role": render_marked(f"<|message_sep|>\n\n{CALL_ROLE}{ROLE_END}\n"),
    },
    aliases=("gigachat3.1",),
)
"""GigaChat 3.1, whose calls have a marker; those of 3 are messages of a role of their own."""
LLAMA3_JSON = Dialect(
    name="llama3-json",
    calls=Span("<|python_tag|>", "<|eom_id|>"),
    ends=("<|eom_id|>", "<|eot_id|>", "<|end_of_text|>"),
    turn=LeadingCalls,
    grammar=_llama,
    opening=leading_calls,
    slips=(FUNCTION.call,),
    renderers={"json": render_parameters},
    cores={FUNCTION.call: ""},
    aliases=("llama3.1", "llama3.3"),
)
BARE_JSON = Dialect(
    name="json",
    reasoning=THINK,
    ends=_CHATML_ENDS,
    opening=json_of_tools,
    renderers={"json": render_bare},
    aliases=("xlam",),
)

ALL = (
    HERMES,
    SMOLLM3,
    HUNYUAN,
    PHI4_MINI,
    GRANITE3,
    COMMAND_R7B,
    APERTUS,
    ERNIE,
    NEMOTRON_NANO_V2,
    GIGACHAT3,
    LLAMA3_JSON,
    BARE_JSON,
)
