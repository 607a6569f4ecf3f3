"""Grammars compiled for one vocabulary, and the matchers that say which token may come next.

llguidance does the matching: an Earley parser over a lexer of regular expressions, 5 to 50 us a mask. It is
an optional package, imported here when the first grammar is compiled.

Threads: `matcher_factory` reads the whole vocabulary, and a `Matcher` may tokenize with it, so both belong on
the thread that the vocabulary belongs to. `Factory.compile` may run on any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary, ref

from localagent.errors import ConstraintFailed, GrammarMissing, GrammarTooLarge

if TYPE_CHECKING:
    from localagent.hosts.engine import Vocabulary

KEPT: Final = 32
"""Compiled grammars kept for each vocabulary, those used last."""
LONGEST: Final = 4_000_000
"""Characters of a grammar: reading a longer one takes seconds."""
_LIMITS: Final = {
    "initial_lexer_fuel": 10_000_000,  # about 0.2 s; a large enumeration takes a tenth of it
    "step_lexer_fuel": 1_000_000,
    "step_max_items": 100_000,
    "max_items_in_row": 10_000,  # 200 tools with their optional arguments
    "max_grammar_size": 2_000_000,
    "verbose_errors": False,  # they would repeat the grammar
}
_SLICES: Final = (
    # Tokens that are text in any string, whatever markers it must not spell: decided all at once.
    r'[^"\'\\<>/\[\]\x00-\x1F\x7F]{1,10}',
    r'[^"\'\\<>/\[\]\x00-\x1F\x7F]{1,30}',
    r'[^"\'\\<>/\[\]\x00-\x1F\x7F]+',
    r'[^"\\\x00-\x1F\x7F]{1,30}',
    r'[^"\\\x00-\x1F\x7F]+',
)

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


class Written(Protocol):
    """A `grammar.Grammar`."""

    @property
    def text(self) -> str:
        """It, in llguidance's Lark."""


class Matcher:
    """What may come next in one generation. Not to be shared."""

    __slots__ = ("_matcher", "_words")

    def __init__(self, matcher: Any, size: int) -> None:
        self._matcher = matcher
        self._words = (size + 31) // 32

    def mask(self) -> Any:
        """numpy uint32 [ceil(vocabulary size / 32)]: bit `id % 32` of word `id // 32` is set for each token
        that may come next. Where the grammar may end, the tokens that end a turn are among them.

        Raises ConstraintFailed when no token can come, or a limit was hit.
        """
        import numpy as np

        mask = np.zeros(self._words, dtype=np.uint32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check("a limit was hit")
        if not mask.any():  # the vocabulary has no token for what must come
            raise ConstraintFailed("the grammar cannot go on: no token of the vocabulary may come next")
        return mask

    def accept(self, token: int) -> None:
        """`token` came. Raises ConstraintFailed for one that may not."""
        self._matcher.consume_token(token)
        self._check(f"token {token} may not come here")

    def forced(self) -> Sequence[int]:
        """The tokens that come next whatever the model thinks of them; none where there is a choice."""
        found: list[int] = self._matcher.compute_ff_tokens()
        return found

    @property
    def accepting(self) -> bool:
        """Whether what came so far is whole."""
        return bool(self._matcher.is_accepting())

    @property
    def stopped(self) -> bool:
        """Whether nothing more may come."""
        return bool(self._matcher.is_stopped())

    def copy(self) -> Matcher:
        """Another matcher in the same state."""
        copy = Matcher.__new__(Matcher)
        copy._matcher, copy._words = self._matcher.deep_copy(), self._words
        return copy

    def _check(self, otherwise: str) -> None:
        if self._matcher.is_error():
            raise ConstraintFailed(f"the grammar cannot go on: {_first_line(self._matcher) or otherwise}")


class Factory:
    """Compiles grammars for one vocabulary, and keeps those used last."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._package = llguidance()
        self._size = vocabulary.size
        self._tokenizer = _tokenizer(self._package, vocabulary)
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Any] = OrderedDict()

    def compile(self, grammar: Written | str) -> Matcher:
        """A matcher at the start of `grammar`, for one generation. Raises GrammarTooLarge."""
        text = grammar if isinstance(grammar, str) else grammar.text
        with self._lock:
            matcher = self._kept.get(text)
            if matcher is not None:
                self._kept.move_to_end(text)
        if matcher is None:
            matcher = self._compiled(text)
            with self._lock:
                self._kept[text] = matcher
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        return Matcher(matcher.deep_copy(), self._size)

    def _compiled(self, text: str) -> Any:
        if len(text) > LONGEST:
            raise GrammarTooLarge(f"the grammar has {len(text):,} characters, and {LONGEST:,} are allowed")
        matcher = self._package.LLMatcher(
            self._tokenizer, self._package.LLMatcher.grammar_from_lark(text), log_level=0, limits=limits()
        )
        if matcher.is_error():
            raise GrammarTooLarge(f"the grammar cannot be compiled: {_first_line(matcher)}")
        return matcher


def matcher_factory(vocabulary: Vocabulary) -> Factory:
    """The one that compiles for `vocabulary`, made once: that takes 0.3 s for 49,000 tokens.

    Raises GrammarMissing.
    """
    with _lock:
        factory = _factories.get(vocabulary)
        if factory is None:
            factory = _factories[vocabulary] = Factory(vocabulary)
        return factory


def limits() -> Any:
    """What compiling and matching may cost."""
    return llguidance().LLParserLimits(**_LIMITS)


def _tokenizer(package: Any, vocabulary: Vocabulary) -> Any:
    pieces = [vocabulary.piece(token) for token in range(vocabulary.size)]
    known = ref(vocabulary)  # a factory must not keep its own key alive

    class Source:
        eos_token_id = next((token for token, piece in enumerate(pieces) if piece.end), 0)
        bos_token_id = None
        # llguidance takes a token for a special one, which no text matches, by the byte that UTF-8 never has.
        tokens = [(b"\xff" if piece.special else b"") + piece.data for piece in pieces]  # noqa: RUF012
        special_token_ids: Sequence[int] = ()

        def __call__(self, text: str | bytes) -> list[int]:
            alive = known()
            written = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
            return _written(alive, written) if alive else []

    ends = [token for token, piece in enumerate(pieces) if piece.end]
    return package.LLTokenizer(
        package.TokenizerWrapper(Source()), eos_token=ends or None, slices=list(_SLICES)
    )


def _written(vocabulary: Vocabulary, text: str) -> list[int]:
    """The tokens of a text, as far as they are that text: not every vocabulary has a token for every byte."""
    from localagent.prompt.segments import Segment

    data, found = text.encode("utf-8", "replace"), []
    for token in vocabulary.tokenize_segments([Segment(text, special=False)], continued=True):
        piece = vocabulary.piece(token).data
        if not data.startswith(piece):
            break
        data = data[len(piece) :]
        found.append(token)
    return found


def _first_line(matcher: Any) -> str:
    return next(iter(matcher.get_error().splitlines()), "")
