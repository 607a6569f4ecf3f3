"""The grammar of a whole turn, as a server is told it, and how what came back is judged."""

from __future__ import annotations

from typing import Any

import pytest

from localagent.constraint.gbnf import core
from localagent.constraint.grammar import Grammar
from localagent.constraint.guide import Fixed, Guide, Way, only
from localagent.constraint.passing import Passed, PassedSchema, Thought, Turns
from localagent.errors import ConstraintFailed, Unsupported
from localagent.hosts.utf8 import Piece, make_piece
from parsers import DIALECTS, StreamParser

ONE, TWO = Grammar('start: x\nx: "a"\n', ()), Grammar('start: y x\nx: "a"\ny: "start:"\n', ())


@pytest.mark.parametrize("form", ["lark", "core"])
def test_turns_say_what_is_allowed_by_ranges_of_tokens(form: Any) -> None:
    turns = Turns(16, [7, 2], form)
    assert turns.barred([10, 11], [10]) == "start: (<[0-1,3-6,8-9,12-15]>)*\n"
    assert turns.barred([0, 15, 3], [0]) == "start: (<[1-1,4-6,8-14]>)*\n"
    assert turns.required([ONE]) == 'start: turn\nturn: way0\nway0: x\nx: "a"\n'
    assert turns.required([ONE, TWO], Thought(open=4, close=5)) == (
        "start: (<[4]> thought)? turn\nturn: way0 | way1\n"
        'way0: x\nx: "a"\nway1: y x\ny: "start:"\nthought: (<[0-1,3-4,6-6,8-15]>)* <[5]>\n'
    )
    assert turns.required([ONE], Thought(open=None, close=5)).startswith("start: thought turn\n")
    assert turns.offered(ONE, [10], parallel=True) == (
        'start: free (block free)*\nfree: (<[0-1,3-6,8-9,11-15]>)*\nblock: x\nx: "a"\n'
    )
    assert turns.offered(ONE, [10], parallel=False).startswith("start: free (block free)?\n")


@pytest.mark.parametrize("form", ["gbnf", "ebnf"])
def test_servers_without_ranges_are_told_of_one_token(form: Any) -> None:
    turns = Turns(16, [7, 2], form)
    assert turns.barred([10, 11], [10, 7, 2]) == "start: (<[^10]>)*\n"
    for openers in ([10, 11], [7]):
        with pytest.raises(Unsupported) as caught:
            turns.barred([10], openers)
        assert str(caught.value) == (
            "a server without llguidance cannot be told to leave out several markers"
        )


def test_what_xgrammar_cannot_read_is_not_told_to_it() -> None:
    for fine in ('start: "& ~"\n', "start: /[&~]/ x\n", 'start: "\\"&" /\\/~/\n'):
        assert core(fine) == fine
    for wrong in ("X: /a/ & /b/\n", "X: ~/a/\n"):
        with pytest.raises(Unsupported) as caught:
            core(wrong)
        assert str(caught.value) == (
            "XGrammar, with which a server may draw, knows no intersection of patterns"
        )


class Letters:
    """A vocabulary of 128 letters, of which the last one ends a turn."""

    size = 128

    def piece(self, token: int) -> Piece:
        return make_piece(token, bytes([token]), False, token == 127)

    def tokenize_segments(self, segments: Any, continued: bool = False) -> Any:
        return tuple(byte for text, _ in segments for byte in text.encode())


def guide_of(*ways: Way, bars: Any = None) -> Guide:
    return Guide(Letters(), StreamParser(DIALECTS["plain"]), ends=[127], ways=ways, bars=bars)  # type: ignore[arg-type]


def passed(guide: Guide) -> Passed:
    return Passed(guide, "lark", "start: x", "nano", Letters().piece)


def failed(what: str) -> str:
    return (
        f"the server of nano did not hold to what it was told: it {what}: leave tool_choice, strict and "
        "response_format out, or have it draw with another grammar backend"
    )


def test_what_must_come_is_told_and_nothing_else_is_taken() -> None:
    word = passed(guide_of(Way(Fixed(b"ab", 128), "over")))
    assert (word.form, word.said, word.relaxed) == ("lark", "start: x", ())
    assert list(word.forced()) == [*b"ab"]
    assert (word.mask() == only(b"a", 128)).all()
    word.accept(ord("a"))
    with pytest.raises(ConstraintFailed) as caught:
        word.end()
    assert str(caught.value) == failed("ended the turn before the grammar does")
    word.accept(ord("b"))
    word.end()
    assert list(word.forced()) == [127]
    with pytest.raises(ConstraintFailed) as caught:
        word.accept(ord("c"))
    assert str(caught.value) == failed("wrote 'c', which may not come there")


def test_a_word_that_was_not_asked_for_is_named() -> None:
    with pytest.raises(ConstraintFailed) as caught:
        passed(guide_of(Way(Fixed(b"ab", 128), "over"))).accept(ord("x"))
    assert str(caught.value) == failed("wrote 'x', which may not come there")


@pytest.mark.parametrize("barred", [1, 31, 32, 33, 63, 64, 100])
def test_each_token_is_held_against_its_own_bit(barred: int) -> None:
    class Barring:
        def mask(self) -> Any:
            return ~only([barred], 128)

        def accept(self, token: int) -> None:
            """It came."""

    for token in range(126):
        judged = passed(guide_of(bars=Barring()))
        if token == barred:
            with pytest.raises(ConstraintFailed, match="which may not come there"):
                judged.accept(token)
        else:
            judged.accept(token)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ('{"n": 7}', None),
        (' {"n":\n7 } ', None),
        ('{"n": "x"}', "answered what does not fit the schema (/n 'x' is not of type 'integer')"),
        ("[]", "answered what does not fit the schema ( [] is not of type 'object')"),
        ("Seven.", "answered 'Seven.', which is no JSON"),
        ("", "answered '', which is no JSON"),
    ],
)
def test_an_answer_is_held_against_its_schema_when_it_is_over(answer: str, what: str | None) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    judged = PassedSchema(StreamParser(DIALECTS["hermes"]), Letters().piece, schema, "nano")
    assert (judged.form, judged.said, judged.relaxed) == ("schema", schema, ())
    assert (list(judged.forced()), judged.mask()) == ([], None)
    for byte in f"<think>hm</think>{answer}".encode():
        judged.accept(byte)
    if what is None:
        judged.end()
    else:
        with pytest.raises(ConstraintFailed) as caught:
            judged.end()
        assert str(caught.value) == failed(what)


@pytest.mark.parametrize(
    ("schema", "said"), [(None, {"type": "object"}), (True, {}), ({"type": "null"},) * 2]
)
def test_what_a_server_is_told_of_a_schema(schema: Any, said: Any) -> None:
    assert PassedSchema(StreamParser(DIALECTS["plain"]), Letters().piece, schema, "nano").said == said
