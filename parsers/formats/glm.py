"""GLM: a name and pairs, `<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`."""

from __future__ import annotations

from ..dialect import Dialect
from ..engine.spans import THINK, Span
from ..literals.writer import RawWriter
from .mixed import tool_call
from .pairs.shape import GLM
from .pairs.written import Pairs
from .tags.written import in_blocks

_GLM_ENDS = ("<|observation|>", "<|user|>", "<|endoftext|>")
GLM45 = Dialect(
    name="glm45",
    reasoning=Span("<think>", "</think>", before=("\n",), after_close=("\n",)),  # [glm-white-space]
    calls=Span("<tool_call>", "</tool_call>", before=("\n",)),
    ends=_GLM_ENDS,
    grammar=tool_call(GLM),
    renderers={"pairs": in_blocks(Pairs("\n"), RawWriter, inside="")},
    shown=("<tool_call>", "</tool_call>", *THINK.markers),
    tags=GLM.tags,
    aliases=("glm46",),
)
GLM47 = Dialect(
    name="glm47",
    reasoning=THINK,
    calls=Span("<tool_call>", "</tool_call>"),
    ends=_GLM_ENDS,
    grammar=tool_call(GLM),
    interrupts={"<tool_call>": ()},
    renderers={"pairs": in_blocks(Pairs(""), RawWriter, between="", inside="")},
    shown=("<tool_call>", "</tool_call>", *THINK.markers),
    tags=GLM.tags,
    aliases=("laguna", "poolside"),
)

ALL = (GLM45, GLM47)
