"""A model's vocabulary in llama.cpp: text to ids, ids to bytes, and which tokens are special.

It is an `engine.Vocabulary`. `special` decides two things: which tokens content must not spell, and
`Token.special`. A token is special when its attribute is CONTROL or UNKNOWN, or when it is USER_DEFINED and
looks like a marker; see `markers`.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from localagent.errors import InvalidWeights
from localagent.hosts.llamacpp.library import forget, library, reason
from localagent.hosts.markers import GapMarks, find_gap_marks, looks_like_marker
from localagent.hosts.utf8 import Piece, make_piece
from localagent.prompt.segments import Segment

_UNKNOWN, _CONTROL, _USER_DEFINED = 1 << 0, 1 << 3, 1 << 4
_SENTENCEPIECE = 1


class LlamaCppVocabulary:
    """The vocabulary of one loaded model. It must not outlive the model."""

    def __init__(self, native: Any, handle: Any) -> None:
        self._native = native
        self._handle = handle
        self._pieces: dict[int, Piece] = {}
        self.size: int = native.llama_vocab_n_tokens(handle)
        self.special: dict[int, str] = self._find_special()
        bos = native.llama_vocab_bos(handle)
        self.bos = self._text_of(bos)
        self.eos = self._text_of(native.llama_vocab_eos(handle))
        self._lead_bos: list[int] = [bos] if native.llama_vocab_get_add_bos(handle) and bos >= 0 else []
        # SentencePiece vocabularies put a space before the first word of whatever they tokenize.
        self._spaced = native.llama_vocab_type(handle) == _SENTENCEPIECE
        self._lead = self.tokenize("\n", special=False) if self._spaced else ()

    @classmethod
    def read(cls, path: Path) -> LlamaCppVocabulary:
        """The vocabulary of a GGUF file, without its weights. Raises EngineMissing, InvalidWeights."""
        native = library()
        forget()
        parameters = native.llama_model_default_params()
        parameters.vocab_only = True
        model = native.llama_model_load_from_file(os.fsencode(path), parameters)
        if not model:
            raise InvalidWeights(f"{path}: unsupported by llama.cpp: {reason('no reason given')}")
        try:
            vocabulary = cls(native, native.llama_model_get_vocab(model))
        except BaseException:
            native.llama_model_free(model)
            raise
        weakref.finalize(vocabulary, native.llama_model_free, model)
        return vocabulary

    def tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        """The ids of `text`, with nothing added. Control tokens are recognised only when `special`.

        llama.h says that this call is thread-safe, and ctypes releases the interpreter's lock meanwhile.
        """
        data = text.encode("utf-8", "replace")
        count = len(data) + 8
        while True:
            ids = (ctypes.c_int32 * count)()
            written = self._native.llama_tokenize(self._handle, data, len(data), ids, count, False, special)
            if written >= 0:
                return tuple(ids[:written])
            count = -written  # there are so many

    def tokenize_segments(self, segments: Iterable[Segment], continued: bool = False) -> tuple[int, ...]:
        """The ids of a rendered prompt; a BOS is put in front where the vocabulary asks for it."""
        ids: list[int] = []
        for number, (text, special) in enumerate(segments):
            follows = continued or number > 0
            ids += self._continue(text, special) if follows and self._spaced else self.tokenize(text, special)
        if not continued and ids[:1] != self._lead_bos:
            ids = self._lead_bos + ids
        return tuple(ids)

    def piece(self, token: int) -> Piece:
        """The bytes and flags of a token, cached."""
        piece = self._pieces.get(token)
        if piece is None:
            end = self._native.llama_vocab_is_eog(self._handle, token)
            piece = make_piece(token, self._spell(token), token in self.special, end)
            self._pieces[token] = piece
        return piece

    @cached_property
    def gap(self) -> GapMarks | None:
        """The tokens of a prompt with a gap: those that the file names, or else found by their names."""
        native, handle = self._native, self._handle
        names = ("fim_pre", "fim_suf", "fim_mid", "fim_sep")
        before, after, fill, file = (getattr(native, f"llama_vocab_{name}")(handle) for name in names)
        if min(before, after, fill) >= 0:
            return GapMarks(before, after, fill, file if file >= 0 else None)
        return find_gap_marks({text: token for token, text in self.special.items()}.get)

    def _text_of(self, token: int) -> str:
        """The text of a token; empty for the id -1, which stands for none."""
        return self.piece(token).data.decode("utf-8", "replace") if token >= 0 else ""

    def _spell(self, token: int) -> bytes:
        if not 0 <= token < self.size:
            raise IndexError(f"no token {token} in a vocabulary of {self.size:,}")
        room = 256
        while True:
            # Not shared between calls, since readers make them in threads of their own.
            buffer = ctypes.create_string_buffer(room)
            size = self._native.llama_token_to_piece(self._handle, token, buffer, room, 0, True)
            if size >= 0:
                return buffer.raw[:size]
            room = -size

    def _find_special(self) -> dict[int, str]:
        attribute, text = self._native.llama_vocab_get_attr, self._native.llama_vocab_get_text
        names: dict[int, str] = {}
        for token in range(self.size):
            kind = attribute(self._handle, token)
            if not kind & (_CONTROL | _UNKNOWN | _USER_DEFINED):
                continue
            name = text(self._handle, token).decode("utf-8", "replace")
            if kind & (_CONTROL | _UNKNOWN) or looks_like_marker(name):
                names[token] = name
        return names

    def _continue(self, text: str, special: bool) -> tuple[int, ...]:
        """Tokenize what follows other text: after a line break, whose tokens are then taken off again."""
        ids = self.tokenize("\n" + text, special)
        return (
            ids[len(self._lead) :] if ids[: len(self._lead)] == self._lead else self.tokenize(text, special)
        )
