"""Kimi K2: a section of calls, each an id that holds the name, `functions.f:0`, and an object."""

from __future__ import annotations

import re
from collections.abc import Generator

from ..dialect import Dialect
from ..engine.spans import THINK, Span
from ..literals.near import tool_behind
from .named.section import Section
from .named.written import by_template

_ID = re.compile(r"[\w.\-:]*")
_PREFIX = "functions."
_NAME = re.compile(r"(?:functions\.)?([\w.\-]+?)(?::\d+)?")
_DOCUMENTED = re.compile(r"functions\.[\w.\-]+:\d+")
_NUMBER = re.compile(r"[:_.]?\d+\Z")
_CALLS = Span("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
_SINGULAR = Span("<|tool_call_section_begin|>", "<|tool_call_section_end|>")  # as it is misspelled
_CALL = Span("<|tool_call_begin|>", "<|tool_call_end|>")
_SEPARATOR = "<|tool_call_argument_begin|>"


class KimiSection(Section):
    """`functions.f:0`, whose number is that of the call in the conversation, and its arguments."""

    def name(self) -> Generator[None, None, str]:
        """Read the id, whose prefix and number may be missing."""
        id_ = yield from self.word(_ID)
        yield from self.separator(self.behind_name)
        tools = self.context.tools
        match = _NAME.fullmatch(id_)
        name = match[1] if match else ""
        self.renamed = False
        if not tools or name in tools:
            return name
        # `functions_Bash_2` means the declared tool [mangled-name]; what means none, or more than one,
        # and is not as documented either, is no call.
        unnumbered = _NUMBER.sub("", id_)
        meant = {tool_behind(_PREFIX, word, tools) for word in (id_, unnumbered)} - {""}
        if unnumbered in tools:
            meant.add(unnumbered)
        if len(meant) == 1:
            self.renamed = True
            return meant.pop()
        return name if not meant and _DOCUMENTED.fullmatch(id_) else ""


KIMI_K2 = Dialect(
    name="kimi-k2",
    reasoning=THINK,
    calls=_CALLS,
    ends=("<|im_end|>", "[EOS]"),
    grammar=lambda context: KimiSection(context, _CALL, _SEPARATOR, (_CALLS.close, _SINGULAR.close)),
    slips=(_CALL.open, _SINGULAR.open),
    inner=(_SEPARATOR, _CALL.close, _SINGULAR.close),
    interrupts=dict.fromkeys((_CALLS.open, _SINGULAR.open, _CALL.open), ()),
    renderers={
        "ids": by_template(
            f"{_CALL.open}functions.{{name}}:{{index}}{_SEPARATOR}{{arguments}}{_CALL.close}",
            around=_CALLS,
        )
    },
    shown=THINK.markers,
)
"""Kimi K2 and K2-Thinking. No draft holds the section's marker, so it ends a reasoning left open."""

ALL = (KIMI_K2,)
