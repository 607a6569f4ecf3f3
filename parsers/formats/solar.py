"""Solar Open: a section of calls, each an id, a name and an object behind markers of their own."""

from __future__ import annotations

from collections.abc import Generator

from ..dialect import Context, Dialect
from ..engine.faults import Fault
from ..engine.spans import Span
from ..events import Reason
from .named.section import Section
from .named.written import by_template

_CALLS = Span("<|tool_calls|>", "<|calls|>")
_CALL = Span("<|tool_call:begin|>", "<|tool_call:end|>")
_NAME, _ARGUMENTS = "<|tool_call:name|>", "<|tool_call:args|>"


class SolarSection(Section):
    """An id, a marker, `f`, a separator and its arguments. The id may be missing."""

    def __init__(
        self, context: Context, span: Span, behind_id: str, separator: str, closes: tuple[str, ...]
    ) -> None:
        super().__init__(context, span, separator, closes)
        self._behind_id = behind_id

    def name(self) -> Generator[None, None, str]:
        """Read the id, the marker behind it and the name."""
        yield from self.word()
        if not (yield from self.passed(self._behind_id)):
            raise Fault(Reason.SYNTAX)
        name = yield from self.word()
        yield from self.separator(self.behind_name)
        return name


SOLAR_OPEN = Dialect(
    name="solar-open",
    reasoning=Span("<|think|>", "<|end|>"),
    calls=_CALLS,
    ends=("<|flush|>", "<|end|>"),
    grammar=lambda context: SolarSection(context, _CALL, _NAME, _ARGUMENTS, (_CALLS.close,)),
    slips=(_CALL.open,),
    inner=(_NAME, _ARGUMENTS, _CALL.close),
    renderers={
        "json": by_template(
            f"{_CALL.open}{{index}}{_NAME}{{name}}{_ARGUMENTS}{{arguments}}{_CALL.close}",
            around=_CALLS,
        )
    },
    answers=(Span("<|begin|>assistant", "<|content|>"),),  # what each message of a turn begins with
    spellings={"<|end|>": ""},  # it ends an answer, too
    cores={"<|begin|>assistant": "<|begin|>"},
    aliases=("solar",),
)

ALL = (SOLAR_OPEN,)
