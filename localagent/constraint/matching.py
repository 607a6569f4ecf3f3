"""Grammars compiled for one vocabulary, and the matchers that say which token may come next.

llguidance does the matching: an Earley parser over a lexer of regular expressions, 5 to 50 us a mask, in a
process of its own (see `worker`), which adds 10 us. It is an optional package.

Threads: `matcher_factory` reads the whole vocabulary, and a `Matcher` may tokenize with it, so both belong on
the thread that the vocabulary belongs to. `Factory.compile` may run on any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary, ref

from localagent.constraint import worker
from localagent.constraint.bars import only
from localagent.constraint.processes import Child, Ended, Here, Worker
from localagent.constraint.processes import Vocabulary as Pieces
from localagent.errors import ConstraintFailed, GrammarMissing, GrammarTooLarge

if TYPE_CHECKING:
    from localagent.hosts.engine import Vocabulary

KEPT: Final = 16
"""Compiled grammars kept for each vocabulary, those used last; each has a process of some 5 MB."""
LONGEST: Final = 4_000_000
"""Characters of a grammar: reading a longer one takes seconds."""

_lock = threading.Lock()
_factories: WeakKeyDictionary[Any, Factory] = WeakKeyDictionary()


def llguidance() -> Any:
    """The package. Raises GrammarMissing."""
    try:
        import llguidance as package
        import numpy  # noqa: F401  (masks are its arrays)
    except ImportError as error:
        from localagent.distribution import install_command

        raise GrammarMissing(
            f"bounding what a model writes needs llguidance: {install_command('grammar')}"
        ) from error
    return package


class State(NamedTuple):
    """Where a matcher is. An `error` says why it cannot go on; it is "" where it can."""

    error: str
    accepting: bool
    """Whether what came so far is whole."""
    stopped: bool
    """Whether nothing more may come."""
    forced: Sequence[int]
    """The tokens that come next, where there is no choice."""
    mask: bytes
    """A bit for each token that may come next, unless several are forced."""


class Matcher:
    """What may come next in one generation. Not to be shared.

    A token costs one request to its process, and of those that are forced only the last one.
    """

    __slots__ = ("_came", "_number", "_process", "_state")

    def __init__(self, process: Child | Here, of: int, state: State, came: Sequence[int] = ()) -> None:
        """A copy of the matcher `of` in `process`. Raises ConstraintFailed."""
        self._process = process
        self._state = state
        self._came = list(came)
        """Tokens that have come, of which the process does not know."""
        self._number = -1  # of none, should the process be gone
        self._number = self._ask("copy", of)

    def __del__(self) -> None:
        self._process.forgotten.append(self._number)

    @property
    def accepting(self) -> bool:
        """Whether what came so far is whole."""
        return self._state.accepting and not self._came

    @property
    def stopped(self) -> bool:
        """Whether nothing more may come."""
        return self._state.stopped and not self._came

    def forced(self) -> Sequence[int]:
        """The tokens that come next whatever the model thinks of them; none where there is a choice."""
        return self._state.forced[len(self._came) :]

    def mask(self) -> Any:
        """numpy uint32 [ceil(vocabulary size / 32)]: bit `id % 32` of word `id // 32` is set for each token
        that may come next. Where the grammar may end, the tokens that end a turn are among them.

        Raises ConstraintFailed when no token can come, or a limit was hit.
        """
        import numpy as np

        state = self._state
        if state.error:
            raise ConstraintFailed(f"the grammar cannot go on: {state.error}")
        if len(state.forced) > 1:
            return only([state.forced[len(self._came)]], 8 * len(state.mask))
        if not any(state.mask):  # the vocabulary has no token for what must come
            raise ConstraintFailed("the grammar cannot go on: no token of the vocabulary may come next")
        return np.frombuffer(state.mask, np.uint32)

    def accept(self, token: int) -> None:
        """`token` came. Raises ConstraintFailed for one that may not."""
        due = self.forced()
        self._came.append(token)
        if len(due) > 1 and token == due[0]:
            return
        came, self._came = self._came, []
        self._state = State(*self._ask("accept", self._number, came))
        if self._state.error:
            # Copies share a lexer, which grows with all that they read, up to a limit.
            self._process.spent |= "lexer" in self._state.error
            raise ConstraintFailed(f"the grammar cannot go on: {self._state.error}")

    def copy(self) -> Matcher:
        """Another matcher in the same state."""
        return Matcher(self._process, self._number, self._state, self._came)

    def _ask(self, name: str, *arguments: object) -> Any:
        try:
            return self._process.ask(name, *arguments)
        except Ended:
            raise ConstraintFailed(
                f"the grammar cannot go on: what may come next is not known after {worker.PATIENCE} s"
            ) from None


class Factory:
    """Compiles grammars for one vocabulary, and keeps those used last."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        llguidance()  # there is no use for a process without it
        pieces = _pieces(vocabulary)
        known = ref(vocabulary)  # a factory must not keep its own key alive

        def tokenize(text: str) -> Sequence[int]:
            alive = known()
            return _written(alive, text) if alive else []

        self._worker = Worker(lambda: pieces, tokenize)
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Child | Here, State]] = OrderedDict()

    def compile(self, text: str) -> Matcher:
        """A matcher at the start of a grammar in llguidance's Lark, for one generation.

        Raises GrammarTooLarge.
        """
        with self._lock:
            kept = self._kept.get(text)
            if kept is not None:
                self._kept.move_to_end(text)
        if kept is not None and not kept[0].spent:
            with suppress(ConstraintFailed):  # it has been ended since
                return Matcher(kept[0], 0, kept[1])
        kept = self._compiled(text)
        with self._lock:
            self._kept[text] = kept
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return Matcher(kept[0], 0, kept[1])

    def _compiled(self, text: str) -> tuple[Child | Here, State]:
        if len(text) > LONGEST:
            raise GrammarTooLarge(f"the grammar has {len(text):,} characters, and {LONGEST:,} are allowed")
        process = self._worker.fork()
        try:
            state = State(*process.ask("compile", text))
        except Ended:
            raise GrammarTooLarge(
                f"the grammar cannot be compiled: it takes more than {worker.SECONDS['compile']} s"
            ) from None
        if state.error:
            raise GrammarTooLarge(f"the grammar cannot be compiled: {state.error}")
        return process, state


class _Trials:
    """Tries grammars in one process after the other, a new one wherever a grammar had to be ended."""

    def __init__(self) -> None:
        self._worker = Worker(lambda: ((), ()), lambda text: ())
        self._lock = threading.Lock()
        self._child: Child | Here | None = None

    def __call__(self, text: str) -> tuple[str, float]:
        """Why a grammar cannot be used, "" if it can: the first bytes of a text are written in it. And how
        many seconds of processor time that took.

        Raises GrammarMissing.
        """
        llguidance()
        with self._lock:
            if self._child is None or not self._child.usable:
                self._child = self._worker.fork()
            try:
                answer: tuple[str, float] = self._child.ask("trial", text)
            except Ended:
                return f"it takes more than {worker.SECONDS['trial']} s", worker.SECONDS["trial"]
            return answer


trial: Final = _Trials()  # of this whole process


def matcher_factory(vocabulary: Vocabulary) -> Factory:
    """The one that compiles for `vocabulary`, made once: that takes 0.3 s for 49,000 tokens.

    Raises GrammarMissing.
    """
    with _lock:
        factory = _factories.get(vocabulary)
        if factory is None:
            factory = _factories[vocabulary] = Factory(vocabulary)
        return factory


def _pieces(vocabulary: Vocabulary) -> Pieces:
    pieces = [vocabulary.piece(token) for token in range(vocabulary.size)]
    ends = [token for token, piece in enumerate(pieces) if piece.end]
    return [(b"\xff" if piece.special else b"") + piece.data for piece in pieces], ends


def _written(vocabulary: Vocabulary, text: str) -> list[int]:
    """The tokens of a text, as far as they are that text: not every vocabulary has a token for every byte."""
    from localagent.prompt.segments import Segment

    data, tokens = text.encode("utf-8", "replace"), []
    for token in vocabulary.tokenize_segments([Segment(text, special=False)], continued=True):
        piece = vocabulary.piece(token).data
        if not data.startswith(piece):
            break
        data = data[len(piece) :]
        tokens.append(token)
    return tokens
