"""A vocabulary as llama.cpp gives it out: ids of texts, bytes of ids, and which of them are special."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Any

import pytest

from localagent.hosts.llamacpp.vocabulary import LlamaCppVocabulary
from localagent.prompt import Segment

UNKNOWN, NORMAL, CONTROL, USER = 1, 4, 8, 16
# Text and attribute of each id; those from 10 on are the letters.
TOKENS: list[tuple[bytes, int]] = [
    (b"<unk>", UNKNOWN), (b"<s>", CONTROL), (b"</s>", CONTROL), (b"<think>", USER), (b"   ", USER),
    (b"<table>", USER), (b"x" * 300, NORMAL), (b"\xe2\x82", NORMAL), (b"<|im_end|>", CONTROL), (b"\n", NORMAL),
    *((bytes([letter]), NORMAL) for letter in b" abc\n"),
]  # fmt: skip
LETTERS = {text: token for token, (text, _) in enumerate(TOKENS) if token > 9}


class Native:
    """llama.cpp with this vocabulary. A SentencePiece one puts a space in front of what it tokenizes."""

    def __init__(
        self, bos: int = 1, eos: int = 2, adds: bool = True, spaced: bool = False, joins: bool = False
    ) -> None:
        """`joins`: a line break and what follows are other tokens than by themselves."""
        self._bos, self._eos, self._adds, self._spaced, self._joins = bos, eos, adds, spaced, joins
        self.asked: list[tuple[int, int]] = []

    def llama_vocab_n_tokens(self, handle: str) -> int:
        assert handle == "handle"
        return len(TOKENS)

    def llama_vocab_bos(self, _: str) -> int:
        return self._bos

    def llama_vocab_eos(self, _: str) -> int:
        return self._eos

    def llama_vocab_get_add_bos(self, _: str) -> bool:
        return self._adds

    def llama_vocab_type(self, _: str) -> int:
        return 1 if self._spaced else 2

    def llama_vocab_get_attr(self, _: str, token: int) -> int:
        return TOKENS[token][1]

    def llama_vocab_get_text(self, _: str, token: int) -> bytes:
        return TOKENS[token][0]

    def llama_vocab_is_eog(self, _: str, token: int) -> bool:
        return token in (2, 8)

    def llama_token_to_piece(
        self, _: str, token: int, buffer: Any, room: int, strip: int, special: bool
    ) -> int:
        assert (strip, special, room) == (0, True, len(buffer))
        text = TOKENS[token][0]
        self.asked.append((token, room))
        if len(text) > room:
            return -len(text)
        buffer[: len(text)] = text
        return len(text)

    def llama_tokenize(
        self, _: str, data: bytes, size: int, ids: Any, count: int, adds: bool, special: bool
    ) -> int:
        assert not adds
        assert size == len(data)
        text = (b" " if self._spaced else b"") + data
        found: list[int] = []
        while text:
            name, token = (
                (b"<s>", 1) if special and text.startswith(b"<s>") else (text[:1], LETTERS.get(text[:1], 0))
            )
            if self._joins and text.startswith(b"\n") and len(text) > 1:
                token = 9
            found += [token] * (20 if name == b"c" else 1)  # more tokens than there are bytes
            text = text[len(name) :]
        if len(found) > count:
            return -len(found)
        ids[: len(found)] = found
        return len(found)


def made(**options: Any) -> LlamaCppVocabulary:
    return LlamaCppVocabulary(Native(**options), "handle")


def test_control_tokens_and_markers_are_special():
    vocabulary = made()
    assert vocabulary.special == {0: "<unk>", 1: "<s>", 2: "</s>", 3: "<think>", 8: "<|im_end|>"}
    assert (vocabulary.bos, vocabulary.eos, vocabulary.size) == ("<s>", "</s>", 15)
    assert (made(bos=-1, eos=-1).bos, made(bos=-1, eos=-1).eos) == ("", "")
    assert made(eos=0).eos == "<unk>"


def test_pieces_have_their_bytes_and_flags_and_are_asked_for_once():
    native = Native()
    vocabulary = LlamaCppVocabulary(native, "handle")
    for token, (text, _) in enumerate(TOKENS):
        piece = vocabulary.piece(token)
        assert vocabulary.piece(token) is piece
        assert (piece.data, piece.special, piece.end) == (text, token in vocabulary.special, token in (2, 8))
    assert [room for token, room in native.asked if token == 6] == [256, 300], "what is longer gets more room"
    assert sorted(token for token, _ in native.asked if token != 6) == [*range(6), *range(7, 15)]
    for wrong in (-1, 15):
        with pytest.raises(IndexError, match=f"^no token {wrong} in a vocabulary of 15$"):
            vocabulary.piece(wrong)


def test_a_text_may_have_more_tokens_than_bytes():
    vocabulary = made()
    assert vocabulary.tokenize("abc", special=False) == (11, 12, *[13] * 20)
    assert vocabulary.tokenize("", special=True) == ()
    assert vocabulary.tokenize("\ud800", special=True) == (0,), "a lone surrogate is a question mark"


@pytest.mark.parametrize(
    ("options", "segments", "continued", "ids"),
    [
        ({}, [("ab", False)], False, (1, 11, 12)),
        ({}, [("ab", False)], True, (11, 12)),
        ({}, [("<s>a", True), ("b", False)], False, (1, 11, 12)),
        ({}, [], False, (1,)),
        ({"adds": False}, [("a", False)], False, (11,)),
        ({"bos": -1}, [("a", False)], False, (11,)),
        ({"bos": 0}, [("a", False)], False, (0, 11)),
        ({"spaced": True}, [("a", False), ("b", False)], False, (1, 10, 11, 12)),
        ({"spaced": True}, [("a", False), ("<s>b", True)], True, (11, 1, 12)),
        ({"spaced": True, "joins": True}, [("a", False)], True, (10, 11)),  # it cannot be told apart
        ({"spaced": True, "joins": True}, [("<s>a", True)], True, (10, 1, 11)),
    ],
)
def test_prompts_begin_with_one_bos_and_what_follows_with_no_space(options, segments, continued, ids):
    prompt = [Segment(text, special) for text, special in segments]
    assert made(**options).tokenize_segments(iter(prompt), continued) == ids


def test_tokens_are_spelled_in_several_threads_at_once():
    """llama.cpp writes into a buffer while Python runs other threads."""

    class Slow(Native):
        def llama_token_to_piece(self, handle: str, token: int, buffer: Any, room: int, *rest: Any) -> int:
            size = super().llama_token_to_piece(handle, token, buffer, room, *rest)
            sleep(0.0005)
            return size

    vocabulary = LlamaCppVocabulary(Slow(), "handle")
    tokens = [token for token in range(len(TOKENS)) if token != 6]
    with ThreadPoolExecutor(4) as pool:
        spelled = list(pool.map(vocabulary._spell, tokens * 20))
    assert spelled == [TOKENS[token][0] for token in tokens] * 20
