"""The arguments of one call, for whoever gets a call's name and the text of its arguments separately.

That is how OpenAI's API streams calls: the name first, then a JSON object in pieces.
"""

from __future__ import annotations

from collections.abc import Generator

from .dialect import Context, Dialect, Inside
from .engine.driver import Block, Call
from .engine.faults import Fault
from .engine.source import Reading
from .engine.spans import NOWHERE
from .engine.stream import StreamParser
from .engine.writer import CallWriter
from .events import Event, Finish, Reason
from .literals.object_call import JsonCall


class ArgumentsReader:
    """Reads the arguments of the call `name`, the call number `index` of its turn, as they arrive.

    The events are those of a `StreamParser`, with the same laws, and their spans count the text of the
    arguments. The first one is CallStart. CallEnd or Malformed comes from `close`, because only then is it
    known that nothing follows the object.
    """

    def __init__(self, name: str, index: int = 0) -> None:
        self._name = name
        self._index = index
        self._object: _Arguments | None = None
        self._parser = StreamParser(Dialect("arguments", turn=self._turn))

    def _turn(self, context: Context) -> _Arguments:
        context.emit.calls = self._index
        self._object = _Arguments(context, self._name)
        return self._object

    @property
    def complete(self) -> bool:
        """Whether the object is closed, and nothing that does not belong to it has followed."""
        return self._object is not None and self._object.complete

    def feed(self, text: str) -> list[Event]:
        """The events that `text`, the next piece, completes."""
        return self._parser.feed(text)

    def close(self, finish: Finish = "stop") -> list[Event]:
        """The last events; as `StreamParser.close`."""
        return self._parser.close(finish)


class _Object(JsonCall):
    """The arguments alone: the name is known already."""

    def read(self) -> Reading:
        return self.read_arguments()


class _Arguments(Block):
    """One object, which is everything that there is to read."""

    complete = False

    def __init__(self, context: Context, name: str) -> None:
        super().__init__(context)
        self._name = name

    def read(self, inside: Inside | None) -> Reading:
        self.source.keep_from(0)
        writer = CallWriter(self.source, self.emit, self.context.tools)
        writer.start(self._name)
        yield from self.read_call(_Object(self.context, NOWHERE, self._ends, writer=writer), 0)

    def confirm(self) -> Reading:
        self.complete = True
        if (yield from self.source.space()):
            self.complete = False
            raise Fault(Reason.SYNTAX)

    def _ends(self, inner: bool, opener: str) -> Generator[None, None, bool]:
        """Behind a quote, a brace that closes the object shows that the quote closes its string: JSON escapes
        all others. So nothing is waited for that may never come.
        """
        return True
        yield

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """All the rest belongs to what is no object."""
        source, cut = self.source, self.source.ended and self.source.pos == len(self.source.text)
        while (yield from source.char()):
            source.pos = len(source.text)
        return Reason.TRUNCATED if cut and fault.reason is Reason.SYNTAX else fault.reason
