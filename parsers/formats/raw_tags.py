"""Formats whose calls are tags with raw text between them."""

from __future__ import annotations

from dataclasses import replace

from ..dialect import Context, Dialect, Grammar
from ..engine.spans import QWEN_THINK, THINK, Span
from ..literals.writer import JsonContainers, PythonText, RawWriter
from .mixed import tool_call
from .pairs.shape import GLM_ELSEWHERE
from .tags.block import LoneTagBlock, TagBlock, opening_of
from .tags.shape import (
    DSML,
    FUNCTION,
    FUNCTION_INLINE,
    GCML,
    INVOKE,
    NAMED_FUNCTION,
    dsml,
)
from .tags.written import Tags, alone, in_blocks, in_one_block, render_functions

_tool_call = tool_call(GLM_ELSEWHERE)


def _coder(context: Context) -> Grammar:
    """A block as `_tool_call` reads it, or a call whose block is not opened."""
    source = context.source
    block = TagBlock if source.text.startswith(FUNCTION.call, source.pos) else _tool_call
    return block(context)


QWEN3_CODER = Dialect(
    name="qwen3-coder",
    reasoning=QWEN_THINK,
    calls=Span("<tool_call>", "</tool_call>", before=("\n\n", "\n")),
    ends=("<|im_end|>", "<|endoftext|>"),
    grammar=_coder,
    slips=(FUNCTION.call,),
    interrupts={"<tool_call>": (FUNCTION.call, "{"), FUNCTION.call: ()},
    renderers={"tags": in_blocks(Tags(FUNCTION), JsonContainers)},
    cores={FUNCTION.call: ""},
    shown=("<tool_call>", "</tool_call>", *THINK.markers),
    aliases=("qwen3.5", "nemotron3", "step3.5"),
)
SEED_OSS = Dialect(
    name="seed-oss",
    reasoning=Span("<seed:think>", "</seed:think>"),
    calls=Span("<seed:tool_call>", "</seed:tool_call>"),
    ends=("<seed:eos>",),
    grammar=lambda context: TagBlock(context, FUNCTION_INLINE),
    opening=opening_of(FUNCTION_INLINE),
    renderers={"tags": in_blocks(Tags(FUNCTION_INLINE, inline=True), PythonText, between="")},
    shown=("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"),
)
MINIMAX_M2 = Dialect(
    name="minimax-m2",
    reasoning=THINK,
    calls=Span("<minimax:tool_call>", "</minimax:tool_call>"),
    ends=("[e~[",),
    grammar=lambda context: TagBlock(context, INVOKE),
    opening=opening_of(INVOKE),
    renderers={"tags": in_one_block(Tags(INVOKE), RawWriter)},
    shown=("<minimax:tool_call>", "</minimax:tool_call>", *THINK.markers),
)
_FUNCTION_CALL = Span(FUNCTION.call, FUNCTION.call_end)
FUNCTIONARY = Dialect(
    name="functionary",
    calls=_FUNCTION_CALL,
    ends=("<|eom_id|>", "<|eot_id|>", "<|end_of_text|>"),
    grammar=lambda context: LoneTagBlock(context, FUNCTION),
    renderers={"object": render_functions(FUNCTION)},
    cores=dict.fromkeys(_FUNCTION_CALL.markers, ""),
    aliases=("functionary3.1",),
)
"""Functionary 3.1, and Llama 3.1 where it is given tools of the user's: an object in a tag."""
_MINICPM_CALL = Span(NAMED_FUNCTION.call + NAMED_FUNCTION.quote, NAMED_FUNCTION.call_end)
MINICPM5 = Dialect(
    name="minicpm5",
    reasoning=THINK,
    calls=_MINICPM_CALL,
    ends=("<|im_end|>", "</s>"),
    grammar=lambda context: LoneTagBlock(context, NAMED_FUNCTION),
    slips=NAMED_FUNCTION.alias(NAMED_FUNCTION.call),
    renderers={"tags": alone(Tags(NAMED_FUNCTION, newline=""), PythonText)},
    cores=dict.fromkeys((*_MINICPM_CALL.markers, *NAMED_FUNCTION.alias(NAMED_FUNCTION.call)), ""),
    shown=THINK.markers,
)


_DSML_CALLS = {"function_calls": "tool_calls", "tool_calls": "function_calls", "calls": "tool_calls"}


def _deepseek(name: str, calls: str, space: str = "") -> Dialect:
    """A version of DeepSeek's markup. `calls`: what its block is called; `space`: behind the token."""
    token = DSML + space
    shape = replace(dsml(token), inserted=(f"<{token}", "r:"))  # V4's openers of 2026-07-31 [loose-dsml]
    span = Span(f"<{token}{calls}>", f"</{token}{calls}>", before=("\n\n", "\n"))
    other = _DSML_CALLS[calls]  # that of the version before or behind it, which models write as well
    foreign = Span(f"<{token}{other}>", f"</{token}{other}>")
    slips = (shape.call, *shape.alias(span.open), *shape.alias(shape.call), foreign.open)

    def grammar(context: Context) -> Grammar:
        source = context.source
        if source.text.startswith(foreign.open, source.pos):
            context = replace(context, dialect=replace(context.dialect, calls=foreign))
        return TagBlock(context, shape)

    return Dialect(
        name=name,
        reasoning=THINK,
        calls=span,
        ends=("<\uff5cend\u2581of\u2581sentence\uff5c>",),
        grammar=grammar,
        slips=slips,
        inner=(foreign.close,),
        renderers={"tags": in_one_block(Tags(shape, typed=True), RawWriter, before="\n\n")},
        cores=dict.fromkeys((*span.markers, foreign.close, *slips), DSML),
    )


DEEPSEEK_V32 = _deepseek("deepseek-v32", "function_calls")
DEEPSEEK_V4 = _deepseek("deepseek-v4", "tool_calls")
DEEPSEEK_V41 = _deepseek("deepseek-v41", "calls", space=" ")

_GCML = dsml(GCML)
_GCML_CALLS = Span(f"<{GCML}tool_calls>", f"</{GCML}tool_calls>", before=("\n\n",))
GIGACHAT35 = Dialect(
    name="gigachat35",
    reasoning=Span("<think>", "</think>", after_close=("\n\n",)),
    calls=_GCML_CALLS,
    ends=("<|message_sep|>", "</s>"),
    grammar=lambda context: TagBlock(context, _GCML),
    slips=(_GCML.call,),
    renderers={"tags": in_one_block(Tags(_GCML, typed=True), RawWriter, before="\n\n")},
    cores=dict.fromkeys((*_GCML_CALLS.markers, _GCML.call), GCML),
    shown=THINK.markers,
    aliases=("gigachat3.5",),
)
"""GigaChat 3.5: DeepSeek's markup with a token of its own."""

ALL = (
    QWEN3_CODER,
    SEED_OSS,
    MINIMAX_M2,
    FUNCTIONARY,
    MINICPM5,
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    DEEPSEEK_V41,
    GIGACHAT35,
)
