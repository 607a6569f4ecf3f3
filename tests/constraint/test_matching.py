"""Matchers: their masks, what they take, their limits, and what is said when llguidance is not there."""

from __future__ import annotations

import gc
import sys
import time
from random import Random
from typing import Any
from weakref import ref

import pytest

from localagent.constraint import matching
from localagent.constraint.grammar import block_grammar
from localagent.constraint.matching import Factory, matcher_factory
from localagent.errors import ConstraintFailed, GrammarMissing, GrammarTooLarge
from localagent.hosts.utf8 import make_piece
from parsers import DIALECTS
from tests.constraint.drawing import special_of, tool_of
from tests.constraint.twelve import TWELVE


class Bytes:
    """A vocabulary of the 256 bytes, an end token, a marker, and some that pad."""

    size = 300
    special = {256: "<end>", 257: "<mark>"}  # noqa: RUF012

    def piece(self, token: int) -> Any:
        data = bytes([token]) if token < 256 else self.special.get(token, "").encode()
        return make_piece(token, data, token in self.special, token == 256)

    def tokenize_segments(self, segments: Any, continued: bool = False) -> tuple[int, ...]:
        return tuple(byte for segment in segments for byte in segment.text.encode())


BYTES = Bytes()
"""A factory does not keep its vocabulary."""


def allowed(matcher: Any) -> set[int]:
    import numpy as np

    return set(np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")).tolist())


@pytest.mark.engine
def test_masks_and_tokens() -> None:
    matcher = Factory(BYTES).compile('start: <[257]> "a" /[b-c]/')
    mask = matcher.mask()
    assert (str(mask.dtype), mask.shape) == ("uint32", (10,))
    assert allowed(matcher) == {257}
    assert list(matcher.forced()) == [257, ord("a")]
    for token in (257, ord("a")):
        assert allowed(matcher) == {token}
        assert matcher.forced()[:1] == [token]
        matcher.accept(token)
    assert allowed(matcher) == {ord("b"), ord("c")}
    assert not matcher.accepting
    other = matcher.copy()
    matcher.accept(ord("b"))
    assert (matcher.accepting, matcher.stopped, other.accepting) == (True, True, False)
    assert allowed(other) == {ord("b"), ord("c")}


@pytest.mark.engine
def test_the_end_is_allowed_where_the_grammar_may_end() -> None:
    matcher = Factory(BYTES).compile("start: /a+/")
    assert allowed(matcher) == {ord("a")}
    matcher.accept(ord("a"))
    assert allowed(matcher) == {ord("a"), 256}


@pytest.mark.engine
def test_what_may_not_come_is_an_error() -> None:
    matcher = Factory(BYTES).compile('start: "ab"')
    with pytest.raises(ConstraintFailed, match="the grammar cannot go on"):
        matcher.accept(ord("b"))
    with pytest.raises(ConstraintFailed):
        matcher.mask()


@pytest.mark.engine
def test_grammars_are_compiled_once_and_forgotten_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "KEPT", 2)
    factory, compiled = Factory(BYTES), []
    original = factory._compiled
    monkeypatch.setattr(factory, "_compiled", lambda text: compiled.append(text) or original(text))
    for text in ("a", "b", "a", "c", "a", "b"):
        factory.compile(f'start: "{text}"').accept(ord(text))
    assert [text[-2] for text in compiled] == ["a", "b", "c", "b"]


@pytest.mark.engine
def test_a_factory_goes_with_its_vocabulary() -> None:
    vocabulary = Bytes()
    factory = ref(matcher_factory(vocabulary))
    assert matcher_factory(vocabulary) is factory()
    del vocabulary
    gc.collect()
    assert factory() is None


@pytest.mark.engine
@pytest.mark.parametrize(
    "text",
    [
        "start: " + " | ".join(f'"{n}"' for n in range(700_000)),
        'start: a\na: "x"{1,1000000} "y"{1,1000000} a{3,100000}',
        "start: /" + "|".join(f"(a{{1,{n}}}b){{1,{n}}}" for n in range(1, 400)) + "/",
        "start: nothing",
    ],
    ids=["long", "repeated", "regular expression", "wrong"],
)
def test_too_much_is_a_typed_error_and_no_hang(text: str) -> None:
    start = time.monotonic()
    try:
        Factory(BYTES).compile(text).mask()
    except (GrammarTooLarge, ConstraintFailed) as error:
        assert "\n" not in str(error)
    assert time.monotonic() - start < 20


@pytest.mark.engine
def test_a_grammar_that_is_too_long_is_not_tried() -> None:
    with pytest.raises(
        GrammarTooLarge, match=r"^the grammar has [\d,]{9,} characters, and [\d,]+ are allowed$"
    ):
        Factory(BYTES).compile("start: " + " | ".join(f'"{n}"' for n in range(700_000)))


def test_a_grammar_may_be_so_long_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "LONGEST", len('start: "abc"'))
    Factory(BYTES).compile('start: "abc"').accept(ord("a"))
    with pytest.raises(GrammarTooLarge) as caught:
        Factory(BYTES).compile('start: "abcd"')
    assert str(caught.value) == "the grammar has 13 characters, and 12 are allowed"


def test_a_vocabulary_that_pads_has_a_bit_for_every_token() -> None:
    """Of which those that spell nothing are never drawn."""
    matcher = Factory(BYTES).compile("start: /(?s:.)/")
    assert matcher.mask().shape == (10,)
    assert max(allowed(matcher)) < 256


def test_without_llguidance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(GrammarMissing, match=r"needs llguidance: .*install"):
        matcher_factory(Bytes())
    pattern = {"properties": {"a": {"type": "string", "pattern": "^[x-z]{77}$"}}}
    with pytest.raises(GrammarMissing):
        block_grammar(DIALECTS["lfm2"], [tool_of("f", pattern)])


def test_both_vocabularies_write_the_same_call(vocabularies: dict[str, Any]) -> None:
    tools = [tool_of("f", {"properties": {"a": {"type": "string"}}, "required": ["a"]})]
    text = DIALECTS["lfm2"].render([("f", {"a": "it's"})])
    for vocabulary in vocabularies.values():
        grammar = block_grammar(DIALECTS["lfm2"], tools, special=special_of(vocabulary))
        matcher = matcher_factory(vocabulary).compile(grammar.text)
        for token in vocabulary.tokenize(text, special=True):
            matcher.accept(token)
        assert matcher.accepting
        assert ("<[" in grammar.text) == ("<|tool_call_start|>" in special_of(vocabulary))


@pytest.mark.engine
def test_a_grammar_whose_lexer_is_used_up_is_compiled_anew(vocabulary: Any) -> None:
    """Raw text between tags, of which no tag may be part: each text makes the lexer larger, up to a limit."""
    factory = Factory(vocabulary)
    grammar = block_grammar(DIALECTS["qwen3-coder"], TWELVE, special=special_of(vocabulary))
    first = factory.compile(grammar.text)
    process = first._process
    text = "".join(map(chr, range(97, 123))) * 2
    draw = Random(1)
    with pytest.raises(ConstraintFailed, match="lexer"):
        for _ in range(3000):
            matcher = factory.compile(grammar.text)
            assert matcher._process is process
            words = "".join(draw.sample("</" + text + "parmte=functio>\n ", 30))
            for token in vocabulary.tokenize(_BEGUN + words, special=True):
                matcher.accept(token)
    again = factory.compile(grammar.text)
    assert again._process is not process
    for token in vocabulary.tokenize(_BEGUN, special=True):
        again.accept(token)


_BEGUN = "<tool_call>\n<function=translate>\n<parameter=text>\n"
