"""Formats of a name and pairs whose tags are special tokens: Hunyuan 3 and 4, LongCat, K2 Horizon, Solar 2.

The grammar is that of `pairs`; here is how each format spells its tags, and what else it does.
"""

from __future__ import annotations

from ..dialect import Dialect
from ..engine.source import Reading
from ..engine.spans import Span
from ..engine.turn import MarkedTurn
from ..literals.writer import RawWriter
from .mixed import JSON_BLOCKS, MixedBlock
from .pairs.block import PairsSection
from .pairs.shape import PairShape
from .pairs.written import Pairs
from .tags.written import in_blocks, in_one_block


def hunyuan(name: str, label: str, newline: str, separator: str) -> Dialect:
    """A version of Hunyuan. `label`: what the vocabulary of a checkpoint appends to the name of each tag.

    `separator`: what the version writes between a call's name and its pairs; both versions are read with and
    without it, and with any line ends.
    """

    def tags(of: str) -> Span:
        return Span(f"<{of}{label}>", f"</{of}{label}>")

    block, call, key, value = tags("tool_calls"), tags("tool_call"), tags("arg_key"), tags("arg_value")
    shape = PairShape(
        key.open,
        key.close,
        value.open,
        value.close,
        separator=f"<tool_sep{label}>",
        closers=(f"<end_of_tool_call{label}>",),
    )
    written = Pairs(newline, shape, call.markers, separator)
    return Dialect(
        name=name,
        reasoning=tags("think"),
        calls=block,
        ends=(f"<\uff5chy_eos{label}\uff5c>",),
        grammar=lambda context: PairsSection(context, call, shape),
        slips=(call.open,),
        inner=(call.close, *shape.closers),
        renderers={"pairs": in_one_block(written, RawWriter, between=newline)},
        tags=shape.tags,
    )


def labelled(label: str) -> tuple[Dialect, Dialect]:
    """Both versions with that label, which differs between checkpoints."""
    return hunyuan("hy3", label, "\n", f"<tool_sep{label}>"), hunyuan("hy4", label, "", "")


HY3, _ = labelled(":opensource")
_, HY4 = labelled("")

_LONGCAT = PairShape(
    "<longcat_arg_key>",
    "</longcat_arg_key>",
    "<longcat_arg_value>",
    "</longcat_arg_value>",
    namespace="functions.",
)
LONGCAT = Dialect(
    name="longcat",
    reasoning=Span("<longcat_think>", "</longcat_think>"),
    calls=Span("<longcat_tool_call>", "</longcat_tool_call>", before=("\n",)),
    ends=("</longcat_s>",),
    grammar=lambda context: MixedBlock(context, JSON_BLOCKS, _LONGCAT),
    renderers={"pairs": in_blocks(Pairs("\n", _LONGCAT), RawWriter, inside="")},
    tags=_LONGCAT.tags,
    aliases=("longcat-flash",),
)

_K2 = PairShape(
    "<ifm|arg_key>",
    "</ifm|arg_key>",
    "<ifm|arg_value>",
    "</ifm|arg_value>",
    kind=("<ifm|arg_type>", "</ifm|arg_type>"),
)
_K2_CALL = Span("<ifm|tool_call>", "</ifm|tool_call>")


K2_HORIZON = Dialect(
    name="k2-horizon",
    reasoning=Span("<ifm|think>", "</ifm|think>", after_open=("\n",)),
    calls=Span("<ifm|tool_calls>", "</ifm|tool_calls>"),
    ends=("<|ifm|im_end|>",),
    grammar=lambda context: PairsSection(context, _K2_CALL, _K2),
    slips=(_K2_CALL.open,),
    inner=(_K2_CALL.close,),
    renderers={
        "pairs": in_one_block(Pairs("\n", _K2, _K2_CALL.markers), RawWriter),
    },
    spellings={  # the other efforts have tags of their own
        "<ifm|think_fast>": "open",
        "</ifm|think_fast>": "close",
        "<ifm|think_faster>": "open",
        "</ifm|think_faster>": "close",
    },
    tags=_K2.tags,
    aliases=("ifm",),
)

_SOLAR = PairShape("<|tool_arg:start|>", "<|tool_arg:value|>", "", "<|tool_arg:end|>")


class SolarTurn(MarkedTurn):
    """A turn in whose reasoning calls are real: nothing but a call begins with the token of one."""

    def reasoning(self) -> Reading:
        """Read the reasoning, which goes on behind a call."""
        dialect, source, emit = self._dialect, self._source, self._emit
        assert dialect.reasoning is not None and dialect.grammar is not None
        if source.offset > emit.end:
            emit.markup(source.offset)
        while True:
            with emit.within("reasoning", emit.end):
                marker = yield from self._stretch(emit.reasoning, self._in_reasoning)
            if not marker:
                return
            if marker == dialect.reasoning.close:
                source.pos += len(marker)
                emit.markup(source.offset)
                return
            self.has_content()
            emit.amiss = True  # a draft, where it contradicts the tools
            with emit.within("calls", source.offset):
                yield from dialect.grammar(self._context).read()


SOLAR_OPEN2 = Dialect(
    name="solar-open2",
    reasoning=Span("<|think:start|>", "<|think:end|>"),
    calls=Span("<|tool_call:start|>", "<|tool_call:end|>", before=("\n",)),
    ends=("<|im:end|>",),
    turn=SolarTurn,
    grammar=lambda context: MixedBlock(context, JSON_BLOCKS, _SOLAR),
    renderers={"pairs": in_blocks(Pairs("\n", _SOLAR), RawWriter, inside="")},
    tags=_SOLAR.tags,
    aliases=("solar2",),
)

ALL = (HY3, HY4, LONGCAT, K2_HORIZON, SOLAR_OPEN2)
