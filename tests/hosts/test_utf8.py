"""Bytes of tokens to text: nothing lost, nothing in the wrong token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localagent.hosts.protocol import Token
from localagent.hosts.utf8 import TokenText, make_piece

END = b"<|end|>"


def decode(pieces: list[bytes]) -> list[Token]:
    text = TokenText(lambda n: make_piece(n, pieces[n], pieces[n] == END, False))
    tokens = [token for n in range(len(pieces)) for token in text.feed(n)]
    return [*tokens, *text.close()]


def texts(*pieces: bytes) -> list[str]:
    return [token.text for token in decode(list(pieces))]


def test_a_character_comes_with_its_last_byte() -> None:
    assert texts(b"a", b"\xf0\x9f", b"\xa6", b"\x9c!", b"b") == ["a", "", "", "🦜!", "b"]


def test_a_special_token_is_only_itself() -> None:
    assert texts(b"x\xf0\x9f", END, b"\xa6") == ["x\ufffd", "<|end|>", "\ufffd"]


def test_bytes_left_at_the_end_are_replaced() -> None:
    assert texts(b"\xf0\x9f", b"\xa6") == ["", "\ufffd"]


def test_the_token_that_ends_a_turn_says_so_within_a_character_too() -> None:
    for last in (b"\xa6\x9c", b"\xa6"):
        pieces = [b"\xf0\x9f", last]
        text = TokenText(lambda n, pieces=pieces: make_piece(n, pieces[n], False, n == 1))
        tokens = [*text.feed(0), *text.feed(1), *text.close()]
        assert [(token.id, token.special, token.end) for token in tokens] == [
            (0, False, False),
            (1, False, True),
        ]


@given(st.lists(st.binary(max_size=4) | st.sampled_from([END, b"", *(bytes([b]) for b in "🦜é€".encode())])))
def test_texts_join_to_the_decoded_bytes(pieces: list[bytes]) -> None:
    tokens = decode(pieces)
    assert [token.id for token in tokens] == list(range(len(pieces)))
    assert "".join(token.text for token in tokens) == b"".join(pieces).decode("utf-8", "replace")
    assert all(token.text == END.decode() for token in tokens if token.special)
