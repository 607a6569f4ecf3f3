"""What bounds the tokens of one turn: a `protocol.Constraint` that follows the output with its own parser.

    free        text, where a call may be made, and reasoning: nothing is masked
    barred      text in which no call may be made (tool_choice="none"): see `bars`
    waiting     reasoning in front of what must come: only the end of the turn is masked
    bounded     a matcher says what may come: calls, or an answer in a given format
    over        what was asked for has been written: only the end of the turn may come

Where calls are left to the model, the parser is the trigger: when it says that a block of them has been
opened, a matcher is started at the opener, and let go of at the block's end. Where they are required, the
matcher is there from the beginning, or from the end of the reasoning on. What ends the reasoning early comes
before all of that.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union

from localagent.constraint.bars import Bars, only
from localagent.constraint.schema import Relaxed
from localagent.errors import ConstraintFailed
from localagent.hosts.utf8 import TokenText
from localagent.parsers import CallEnd, CallStart, StreamParser
from localagent.prompt.segments import Segment

if TYPE_CHECKING:
    from localagent.constraint.ending import Ending
    from localagent.constraint.matching import Matcher
    from localagent.hosts.engine import Vocabulary

_REMEMBERED = 256
"""Tokens and characters before the point at which the parser says that a block has begun."""
UNFORESEEN = "the model began its calls in a way that its own template does not"
_BETWEEN = re.compile(r"(?:[\s,;\[\]]|`+[\w-]*)*")
"""What may stand between calls without markers: white space, brackets of a list, Markdown fences."""


class Guide:
    """The constraint of one turn. All of it runs on the host's owner thread, but for making it."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        parser: StreamParser,
        *,
        ends: Sequence[int],
        ways: Sequence[Way] = (),
        block: Matching | None = None,
        bars: Bars | None = None,
        parallel: Bars | None = None,
        ending: Ending | None = None,
        relaxed: Sequence[Relaxed] = (),
        inside: bool = False,
        strict: bool = False,
    ) -> None:
        """`ends`: the tokens that end a turn. `ways`: how it must go on, once the reasoning that the prompt
        left open (`inside`) is closed. `block`: for calls that the model may make. `bars`: hold everywhere;
        `parallel`: after the first call. `strict`: a call that the model may make and that cannot be bounded
        is an error.
        """
        self.relaxed = tuple(relaxed)
        """What is not enforced; complete when the turn is over."""
        self._parser = parser
        self._piece = vocabulary.piece
        self._text = TokenText(vocabulary.piece)
        self._size = vocabulary.size
        self._tokenize = vocabulary.tokenize_segments
        self._ends = ends
        self._ending_mask = only(ends, vocabulary.size)
        self._must = tuple(ways)
        self._ways: list[Way] = []
        self._waiting = inside and bool(ways)
        if not inside:
            self._start()
        self._over = False
        self._begun: list[CallStart] = []
        """The calls that have begun with the present token."""
        self._ended = False
        """A call has ended with it."""
        self._rest: Matching | None = None
        """The matcher of a block that is whole, and in which more may come."""
        self._bare = False
        """The call that is bounded, or was last, has no marker."""
        self._behind: int | None = None
        """The offset at which that call ended, where another one may follow."""
        self._block = block
        self._bars = bars
        self._parallel = parallel
        self._ending = ending
        self._strict = strict
        self._recent: deque[int] = deque(maxlen=_REMEMBERED)
        self._said = ""
        """The text of these, or the end of it, up to `_offset`."""
        self._offset = 0
        self._pending = 0
        """Bytes at the end that are no text yet."""
        self._seen = -1
        """The offset of the block of calls that was seen last."""

    # -- what may come --------------------------------------------------------------------------------

    def forced(self) -> Sequence[int]:
        """The tokens that come next whatever the model thinks of them; none where there is a choice."""
        if self._ending is not None and (due := self._ending.forced()):
            return due
        if len(self._ways) == 1:
            return self._ways[0].matcher.forced()
        return self._ends if self._over and len(self._ends) == 1 else ()

    def mask(self) -> Any | None:
        """The tokens that may come next, as `protocol.Constraint` has them; None where any may."""
        if self._ending is not None and (due := self._ending.forced()):
            return only(due[:1], self._size)
        if self._ways:
            mask = self._ways[0].matcher.mask()
            for way in self._ways[1:]:
                mask = mask | way.matcher.mask()
            return mask
        if self._over:
            return only(self._ends, self._size)
        if self._waiting:
            return ~only(self._ends, self._size)  # the turn must not end before it has come to the calls
        return None if self._bars is None else self._bars.mask()

    def otherwise(self) -> int | None:
        """The token that ends the turn, where the model would choose one that is not in the mask.

        Behind a call that was required, the model decides whether it makes another one, and not the grammar,
        which may have left over nothing else for it to write.
        """
        required = any(way.then == "over" for way in self._ways)
        return self._ends[0] if self._ends and required and self._may_end() else None

    def _may_end(self) -> bool:
        """Whether the matchers let the turn end here."""
        return any(
            way.matcher.accepting or (way.matcher.mask() & self._ending_mask).any() for way in self._ways
        )

    @property
    def bounded(self) -> bool:
        """Whether a matcher says what may come, and `accept` raises ConstraintFailed for what may not."""
        return bool(self._ways)

    @property
    def whole(self) -> bool:
        """Whether the turn may end here."""
        return not self._waiting and (not self._ways or self._may_end())

    # -- what came ------------------------------------------------------------------------------------

    def accept(self, token: int) -> None:
        """This token came. Raises ConstraintFailed for one that may not."""
        bounded = bool(self._ways)
        text = self._read(token)
        place = self._parser.place
        if self._bars is not None:
            self._bars.accept(token)
        if self._ending is not None:
            self._ending.accept(token, text, place == "reasoning")
        if self._ways:
            self._follow(token)
        elif self._waiting:
            # What closes the reasoning early may be more than its marker, and comes first.
            if place != "reasoning" and not (self._ending is not None and self._ending.forced()):
                self._waiting = False
                self._start()
        elif place == "calls" and self._parser.since != self._seen and self._block is not None:
            self._seen = self._parser.since
            self._enter(self._seen)
        elif self._rest is not None:
            self._look_on(token)
        elif self._behind is not None:
            self._look_behind(self._behind)
        if not self._ways and not bounded:  # what has begun nevertheless is a call without a marker
            for call in self._begun:
                self._enter(call.start, call.name, bare=True)
        self._begun.clear()
        self._ended = False

    def _read(self, token: int) -> str:
        """Have the parser read it; returns the text that it completes."""
        text = ""
        self._recent.append(token)
        self._pending += len(self._piece(token).data)
        for part in self._text.feed(token):
            text += part.text
            for event in self._parser.feed(part.text, part.special):
                if isinstance(event, CallStart):
                    self._begun.append(event)
                self._ended |= isinstance(event, CallEnd)
        self._pending -= len(text.encode())
        self._offset += len(text)
        self._said = (self._said + text)[-_REMEMBERED:]
        return text

    def _start(self) -> None:
        """Begin with what must come."""
        self._ways = [Way(way.matcher.copy(), way.then) for way in self._must]

    def _follow(self, token: int) -> None:
        """Go on with the ways that are left."""
        if len(self._ways) == 1:
            self._ways[0].matcher.accept(token)
        else:
            self._ways = [way for way in self._ways if _goes_on(way.matcher, token)]
        if not self._ways:
            raise ConstraintFailed(f"token {token} may not come here")
        way = self._ways[0]
        # Where calls are left to the model, what comes after a whole block is, too.
        if len(self._ways) > 1 or not (way.matcher.accepting if way.then == "free" else way.matcher.stopped):
            return
        self._ways = []
        self._rest = None if way.matcher.stopped else way.matcher
        self._over = way.then == "over"
        self._behind = self._offset if self._bare else None
        if way.then == "reasoning":
            self._waiting = True
            self._must = tuple(other for other in self._must if other.then != "reasoning")
        self._seen = self._parser.since if self._parser.place == "calls" else self._seen
        if way.then == "free" and self._parallel is not None:
            self._bars, self._parallel = self._parallel, None

    def _enter(self, since: int, tool: str = "", bare: bool = False) -> None:
        """A block of calls was opened, or, `bare`, a call of `tool` without one: bound the rest of it."""
        if self._block is None:
            return
        matcher = self._block.copy()
        try:
            for token in self._held(since):
                matcher.accept(token)
        except ConstraintFailed:
            self._let_through(since, tool)
            return
        self._bare = bare
        # Behind a call without a marker nothing can keep the model from another one but the end of the turn.
        over = bare and self._parallel is not None
        if not matcher.accepting:
            self._ways = [Way(matcher, "over" if over else "free")]
        elif bare:
            self._over, self._behind = over, self._offset

    def _look_behind(self, end: int) -> None:
        """Behind a call without a marker, which ended at the offset `end`: bound another one.

        Whether it counts is only known when the turn is over, so until then the parser says nothing of it.
        """
        behind = self._offset - end
        text = self._said[-behind:] if behind else ""
        between = _BETWEEN.match(text)
        if between is not None and between.end() < len(text):
            self._behind = None
            if text[between.end()] == "{":
                self._enter(self._offset - len(text) + between.end(), bare=True)

    def _held(self, since: int) -> Sequence[int]:
        """The tokens of the block so far, which begins at the offset `since`. One that began before it is
        cut, and the rest tokenized anew.
        """
        behind = self._offset - since
        text = self._said[-behind:] if behind else ""
        size = len(text.encode()) + self._pending
        held: deque[int] = deque()
        for token in reversed(self._recent):
            if size <= 0:
                break
            held.appendleft(token)
            size -= len(self._piece(token).data)
        if size == 0:
            return held
        rest = self._piece(held.popleft()).data[-size:]
        while held and not self._piece(held[0]).special and not _is_text(rest):
            rest += self._piece(held.popleft()).data
        again = Segment(rest.decode(errors="replace"), special=False)
        return [*self._tokenize([again], continued=True), *held]

    def _look_on(self, token: int) -> None:
        """The block could have ended, and more came: another call in it, or what follows it."""
        rest = self._rest
        if rest is None or not _goes_on(rest, token):
            self._rest = None
        elif self._begun or (self._piece(token).special and self._parser.place == "calls"):
            self._rest, self._ways = None, [Way(rest, "free")]

    def _let_through(self, since: int, tool: str) -> None:
        """From the offset `since` on there are calls that are not bounded. Raises ConstraintFailed if they
        must be.
        """
        if self._strict:
            dialect, begun = self._parser.dialect, self._said[since - self._offset :]
            raise ConstraintFailed(
                f"strict: a call of {repr(tool) if tool else 'a tool'} began with {begun[:40]!r}, and calls "
                f"of the dialect {dialect.name} are bounded where they begin with "
                f"{repr(dialect.calls.open) if dialect.calls else 'a JSON object'}: "
                "require the call with tool_choice, or leave strict out"
            )
        if self._parallel is not None:
            self._bars, self._parallel = self._parallel, None
            self._over = self._ended and self._parser.place != "calls"
        relaxed = Relaxed(tool, "", "", UNFORESEEN)
        if relaxed not in self.relaxed:
            self.relaxed += (relaxed,)


Matching = Union["Matcher", "Fixed"]
"""Says what may come next, and is given what came."""


@dataclass(slots=True)
class Way:
    """One of the ways in which a turn that is bounded may go on, and what comes after it."""

    matcher: Matching
    then: Literal["free", "over", "reasoning"]


class Fixed:
    """Matches these tokens and nothing else, as a `Matcher` does what its grammar says."""

    def __init__(self, tokens: Sequence[int], size: int) -> None:
        self._due = tuple(tokens)
        self._size = size

    @property
    def accepting(self) -> bool:
        """Whether all of them have come."""
        return not self._due

    stopped = accepting

    def mask(self) -> Any:
        """The mask of the next one."""
        return only(self._due[:1], self._size)

    def forced(self) -> Sequence[int]:
        """Those that have not come yet."""
        return self._due

    def accept(self, token: int) -> None:
        """This token came. Raises ConstraintFailed for one that may not."""
        if self._due[:1] != (token,):
            raise ConstraintFailed(f"token {token} may not come here")
        self._due = self._due[1:]

    def copy(self) -> Fixed:
        """Another one in the same state."""
        return Fixed(self._due, self._size)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _goes_on(matcher: Matching, token: int) -> bool:
    try:
        matcher.accept(token)
    except ConstraintFailed:
        return False
    return True
