"""Lists of calls in Python: Liquid's LFM2 and LFM2.5, Llama 3.2 and 4, OLMo 3; and text without calls."""

from __future__ import annotations

from collections.abc import Iterable

from ..dialect import Calls, Dialect
from ..engine.spans import THINK, Span
from ..literals.writer import JSON, PYTHON, Writer
from .lists.bare import bare_lists
from .lists.block import ListBlock
from .lists.leading import ListTurn


def render_pythonic(span: Span, markers: Iterable[str], calls: Calls) -> str:
    """`<start>[f(city="Paris", days=3), g()]<end>`. Raises ValueError for what no call can hold.

    `markers`: the texts that must not stand in a string as they are; spelled out, they could become
    control tokens when the text goes back into a prompt.
    """
    writer = Writer(markers, PYTHON)
    return f"{span.open}[{', '.join(writer.pythonic(*call) for call in calls)}]{span.close}"


def render_json(span: Span, markers: Iterable[str], calls: Calls) -> str:
    """`<start>[{"name": "f", "arguments": {"city": "Paris"}}]<end>`; otherwise as `render_pythonic`."""
    writer = Writer(markers, JSON)
    return f"{span.open}[{', '.join(writer.json(*call) for call in calls)}]{span.close}"


def render_bare_list(_span: Span, markers: Iterable[str], calls: Calls) -> str:
    """`[f(city="Paris", days=3), g()]`, as the whole turn."""
    writer = Writer(markers, PYTHON)
    return f"[{', '.join(writer.pythonic(*call) for call in calls)}]"


def render_lines(span: Span, markers: Iterable[str], calls: Calls) -> str:
    """One call per line between the markers, its values as JSON."""
    writer = Writer(markers, JSON)
    lines = "\n".join(writer.pythonic(*call) for call in calls)
    return f"{span.open}{lines}{span.close}"


_ENDS = ("<|im_end|>", "<|endoftext|>")

LFM2 = Dialect(
    name="lfm2",
    reasoning=THINK,
    calls=Span("<|tool_call_start|>", "<|tool_call_end|>"),
    ends=_ENDS,
    grammar=ListBlock,
    opening=bare_lists,
    renderers={"pythonic": render_pythonic, "json": render_json},
    aliases=("lfm2.5",),
)
PLAIN = Dialect(name="plain", reasoning=THINK, ends=_ENDS)


LLAMA_PYTHONIC = Dialect(
    name="llama-pythonic",
    calls=Span("<|python_start|>", "<|python_end|>"),
    ends=("<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<|end_of_text|>"),
    turn=ListTurn,
    grammar=ListBlock,
    opening=bare_lists,
    slips=("<|python_tag|>",),
    renderers={"pythonic": render_bare_list},
    aliases=("llama4", "pythonic"),
)
OLMO3 = Dialect(
    name="olmo3",
    reasoning=THINK,
    calls=Span("<function_calls>", "</function_calls>"),
    ends=("<|im_end|>", "<|endoftext|>"),
    grammar=ListBlock,
    renderers={"lines": render_lines},
    shown=("<function_calls>", "</function_calls>", *THINK.markers),
)

ALL = (LFM2, PLAIN, LLAMA_PYTHONIC, OLMO3)
