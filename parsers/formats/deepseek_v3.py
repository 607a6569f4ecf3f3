"""DeepSeek V3, R1 and V3.1: a section of calls, each a name, a separator and an object between tokens."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from ..dialect import Dialect
from ..engine.faults import Fault
from ..engine.source import Reading
from ..engine.spans import THINK, Span
from ..events import Reason
from .named.block import FENCED_END
from .named.section import Section
from .named.written import by_template

_KIND = "function"
_CALLS = Span("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_CALL = Span("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
_SEPARATOR = "<｜tool▁sep｜>"


class DeepSeekSection(Section):
    """`f`, a separator and its arguments; in V3 and R1 `function`, a separator, `f` and fenced arguments."""

    def name(self) -> Generator[None, None, str]:
        """Read the name, in either layout: distilled models mix the two."""
        tools = self.context.tools
        self.renamed = False
        name = yield from self.word()
        if not (yield from self.separator(self.behind_name)):
            if name in tools or not name.startswith(_KIND):
                return name
            self.renamed = True  # the name is glued to the word in front of it [glued-name]
            name = name.removeprefix(_KIND)
            return name if name in tools else ""
        if name in ("", _KIND):
            fallback = name
            name = yield from self.word()
            if not name and (yield from self.source.char()) == "{":
                name = fallback  # a tool of that name
        return name

    def confirm(self) -> Reading:
        """A call has at least one of its two markers [glm-white-space]."""
        yield from super().confirm()
        source = self.source
        end = source.offset
        yield from source.run(FENCED_END)
        if not self.opened and not (yield from self.at_marker((self.span.close,))):
            raise Fault(Reason.NOT_A_CALL, final=True)
        source.rewind(end)


DEEPSEEK_V3 = Dialect(
    name="deepseek-v3",
    reasoning=THINK,
    calls=_CALLS,
    ends=("<｜end▁of▁sentence｜>",),
    grammar=lambda context: DeepSeekSection(context, _CALL, _SEPARATOR, (_CALLS.close,)),
    slips=(_CALL.open,),
    inner=(_SEPARATOR, _CALL.close),
    renderers={
        "fenced": by_template(
            f"{_CALL.open}function{_SEPARATOR}{{name}}\n```json\n{{arguments}}\n```{_CALL.close}",
            between="\n",
            around=_CALLS,
        )
    },
    shown=THINK.markers,
    aliases=("deepseek-r1",),
)
"""V3-0324, R1, and what was distilled from them."""

DEEPSEEK_V31 = replace(
    DEEPSEEK_V3,
    name="deepseek-v31",
    aliases=(),
    renderers={
        "plain": by_template(
            f"{_CALL.open}{{name}}{_SEPARATOR}{{arguments}}{_CALL.close}",
            around=_CALLS,
        )
    },
)
"""V3.1: the same markers."""

ALL = (DEEPSEEK_V3, DEEPSEEK_V31)
