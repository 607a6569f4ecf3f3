"""How reasoning is ended: after a number of tokens, or when somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from localagent.hosts.engine import Vocabulary
from localagent.hosts.protocol import CancelFlag
from localagent.hosts.utf8 import TokenText
from localagent.prompt.segments import Segment
from parsers import StreamParser


class Ending:
    """The end of the reasoning in one generation: says when its closing marker is forced, and by what tokens.

    It is told of every token. What is reasoning is the business of whoever reads the output.
    """

    def __init__(
        self,
        closing: str,
        tokenize: Callable[[str], Sequence[int]],
        *,
        budget: int | None = None,
        flag: CancelFlag | None = None,
        inside: bool = False,
        token: bool = True,
    ) -> None:
        """`closing`: the marker, with the white space around it. `tokenize` recognises special tokens.

        `budget`: tokens. `flag`: ends it when set. `inside`: the prompt has opened the reasoning. `token`:
        the marker is a special token, of which the model cannot have written a part.
        """
        self._closing = closing
        self._tokenize = tokenize
        self._budget = budget
        self._flag = flag
        self._inside = inside
        blank = len(closing) - len(closing.lstrip())
        self._most = blank if token else len(closing) - 1
        self._tail = ""
        """The end of the reasoning so far, as far as it may begin the closing."""
        self._spent = 0
        self._pieces = 0
        """Tokens at the end that complete no text: they may be a part of a character."""
        self._due: tuple[int, ...] = ()

    def forced(self) -> Sequence[int]:
        """The tokens that are due; none while the reasoning may go on, or outside of it."""
        if not self._due and self._inside and not self._pieces and self._is_over():
            said = next(n for n in range(self._most, -1, -1) if self._tail.endswith(self._closing[:n]))
            self._due = tuple(self._tokenize(self._closing[said:]))
        return self._due

    def _is_over(self) -> bool:
        spent = self._budget is not None and self._spent >= self._budget
        return spent or (self._flag is not None and self._flag.is_set())

    def accept(self, token: int, text: str, inside: bool) -> None:
        """A token came and completed `text`; after it, the output is `inside` the reasoning or not."""
        if self._due:
            self._due = self._due[1:] if token == self._due[0] else ()
        elif self._inside and inside:
            self._spent += 1
        self._tail = (self._tail + text)[-self._most :] if inside and self._most else ""
        # No character has more than four bytes: what completes no text after that never will.
        self._pieces = 0 if text or self._pieces == 3 else self._pieces + 1
        self._inside = inside


class EndingGuide:
    """The `protocol.Constraint` of a turn of which nothing but the reasoning is bounded."""

    def __init__(
        self,
        parser: StreamParser,
        vocabulary: Vocabulary,
        closing: str,
        budget: int | None,
        flag: CancelFlag | None,
        token: bool,
    ) -> None:
        """`parser`: at the start of the turn, and nobody else's. For the others see `Ending`."""
        self._parser = parser
        self._text = TokenText(vocabulary.piece)
        self._size = vocabulary.size

        def tokenize(text: str) -> Sequence[int]:
            return vocabulary.tokenize_segments([Segment(text, special=True)], continued=True)

        inside = parser.place == "reasoning"
        self._ending = Ending(closing, tokenize, budget=budget, flag=flag, inside=inside, token=token)

    def forced(self) -> Sequence[int]:
        """The closing marker, when it is due."""
        return self._ending.forced()

    def mask(self) -> Any | None:
        """Its next token alone, when it is due."""
        forced = self._ending.forced()
        if not forced:
            return None
        import numpy

        mask = numpy.zeros((self._size + 31) // 32, numpy.uint32)
        mask[forced[0] // 32] = 1 << forced[0] % 32
        return mask

    def accept(self, token: int) -> None:
        """This token came."""
        text = ""
        for each in self._text.feed(token):
            self._parser.feed(each.text, each.special)
            text += each.text
        self._ending.accept(token, text, self._parser.place == "reasoning")
