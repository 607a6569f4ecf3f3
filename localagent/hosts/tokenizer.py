"""A model's vocabulary from its tokenizer files, which are laid out as on Hugging Face.

It is an `engine.Vocabulary`. `special` decides two things: which tokens content must not spell, and
`Token.special`. A token is special when tokenizer.json says so, when another file names it as the BOS, EOS or
unknown token, or when it is kept whole and looks like a marker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from localagent.errors import EngineFailed, InvalidWeights, LocalAgentError
from localagent.hosts.markers import GapMarks, find_gap_marks, looks_like_marker
from localagent.hosts.tokenizer_files import TokenizerFiles
from localagent.hosts.utf8 import Piece, make_piece
from localagent.prompt.segments import Segment
from localagent.wording import one_line

# Special tokens that end a turn whatever the configuration says: many name only one of several.
_ENDS = {
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<|return|>"),
    *("<|call|>", "<|calls|>", "<|flush|>", "<end_of_turn>", "<|end_of_turn|>", "<|END_OF_TURN_TOKEN|>"),
    *("<turn|>", "<end_of_utterance>", "<eos>", "</s>", "<EOT>", "<|eot|>", "[EOS]", "[EOT]"),
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
}
_HARMONY = ("<|return|>", "<|call|>")
"""Where these end a turn, `<|end|>` only ends a message within it."""
_LEADS = ("\n", ".")
_LONG = 4096
"""Characters, which take about 2 ms."""
_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

Spell = Callable[[str], bytes]


class FileVocabulary:
    """The vocabulary of one model. `size`: how many logits the model computes."""

    def __init__(self, kind: Any, folder: TokenizerFiles, size: int) -> None:
        """`kind`: the class `tokenizers.Tokenizer`. Raises InvalidWeights."""
        self.size = size
        self._file = folder.path / "tokenizer.json"
        spell = find_speller(folder.tokenizer)
        if spell is None:
            raise InvalidWeights(f"{self._file}: unsupported: neither byte-level nor SentencePiece")
        self._spell = spell
        entries = [entry for entry in _entries(self._file, folder.tokenizer) if entry["id"] < size]
        self._added: dict[int, str] = {entry["id"]: entry["content"] for entry in entries}
        listed = {entry["id"] for entry in entries if entry.get("special")}
        self.bos, self.eos, unknown = (_text_of(folder, self._added, name) for name in ("bos", "eos", "unk"))
        self.special: dict[int, str] = {
            token: text
            for token, text in self._added.items()
            if token in listed or text in (self.bos, self.eos, unknown) or looks_like_marker(text)
        }
        self._tokenizer = self._build(kind, folder.tokenizer, entries)
        self._ends = self._find_ends(folder)
        self._pieces: dict[int, Piece] = {}
        bos = self._tokenizer.token_to_id(self.bos) if self.bos else None
        self._lead_bos: list[int] = [bos] if bos is not None and self._adds_bos(folder, bos) else []
        self._spaced = self.tokenize("a", special=True) != self._continue("a", special=True)

    def piece(self, token: int) -> Piece:
        """The bytes and flags of a token, cached. An id that only pads the model's matrices is empty."""
        piece = self._pieces.get(token)
        if piece is None:
            if not 0 <= token < self.size:
                raise IndexError(f"no token {token} in a vocabulary of {self.size:,}")
            piece = make_piece(token, self._bytes(token), token in self.special, token in self._ends)
            self._pieces[token] = piece
        return piece

    def tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        """The ids of `text`, with nothing added. Control tokens are recognised only when `special`."""
        ids = self._encode(text, special)
        if special or not any(token in self.special and token != self._unknown for token in ids):
            return ids
        # Some models know the text of a special token as an ordinary word: no word is one character long.
        return tuple(token for letter in text for token in self._continue(letter, special=False))

    def tokenize_segments(self, segments: Iterable[Segment], continued: bool = False) -> tuple[int, ...]:
        """The ids of a rendered prompt; a BOS is put in front where the vocabulary asks for it."""
        ids: list[int] = []
        for number, (text, special) in enumerate(segments):
            follows = continued or number > 0
            ids += self._continue(text, special) if follows and self._spaced else self.tokenize(text, special)
        if not continued and ids[:1] != self._lead_bos:
            ids = self._lead_bos + ids
        return tuple(ids)

    @cached_property
    def gap(self) -> GapMarks | None:
        """The tokens of a prompt with a gap, found by their names."""
        return find_gap_marks(self._tokenizer.token_to_id)

    def _continue(self, text: str, special: bool) -> tuple[int, ...]:
        """Tokenize what follows other text: after a character whose tokens are then taken off again."""
        for lead in _LEADS:
            before, ids = self._encode(lead, special), self._encode(lead + text, special)
            if ids[: len(before)] == before:
                return ids[len(before) :]
        return self._encode(text, special)

    def _encode(self, text: str, special: bool) -> tuple[int, ...]:
        text = text.encode("utf-8", "replace").decode()
        with self._reported(EngineFailed, "it cannot be tokenized with"):
            tokenizer = self._tokenizer if special else self._plain
            if len(text) < _LONG:
                return tuple(tokenizer.encode(text, add_special_tokens=False).ids)
            # `encode` keeps the interpreter to itself until it is done, and every other thread waits.
            return tuple(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    @cached_property
    def _plain(self) -> Any:
        """The tokenizer that recognises no control tokens. It is one of its own, since switching back and
        forth would disturb other threads; it is made when it is first needed, since most content spells no
        control token.
        """
        plain = type(self._tokenizer).from_str(self._tokenizer.to_str())
        plain.encode_special_tokens = True
        return plain

    @contextmanager
    def _reported(self, kind: type[LocalAgentError], what: str) -> Iterator[None]:
        """Raise `kind` for whatever the library raises, its panics included, which are no `Exception`s."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise kind(
                f"{self._file}: {what}: {one_line(str(error)) or type(error).__name__:.300}"
            ) from error

    def _bytes(self, token: int) -> bytes:
        text = self._added.get(token)
        if text is not None and (token in self.special or "\u2581" not in text):
            return text.encode("utf-8", "replace")
        word: str | None = self._tokenizer.id_to_token(token)
        return b"" if word is None else self._spell(word)

    # -- reading the files ----------------------------------------------------------------------------

    def _build(self, kind: Any, parsed: Mapping[str, Any], entries: list[dict[str, Any]]) -> Any:
        """The tokenizer, with every special token marked as one, so that all can be switched off together.

        They match the text as it stands: a normalizer must not make one of what looks alike.
        """
        marks = [
            {**entry, "special": True, "normalized": False}
            if entry["id"] in self.special
            else {**entry, "special": False}
            for entry in entries
        ]
        with self._reported(InvalidWeights, "not a tokenizer that can be used"):
            tokenizer = kind.from_str(json.dumps({**parsed, "added_tokens": marks}))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        model = parsed.get("model")
        unknown = model.get("unk_token") if isinstance(model, dict) else None
        self._unknown = tokenizer.token_to_id(unknown) if isinstance(unknown, str) else None
        wrong = next(
            (text for token, text in self._added.items() if tokenizer.token_to_id(text) != token), None
        )
        if wrong is not None:
            raise InvalidWeights(f"{self._file}: the id of {wrong[:80]!r} contradicts the vocabulary")
        count = tokenizer.get_vocab_size(with_added_tokens=False)
        if count > self.size:
            raise InvalidWeights(f"{self._file}: {count:,} tokens, and the model computes {self.size:,}")
        return tokenizer

    def _adds_bos(self, folder: TokenizerFiles, bos: int) -> bool:
        said = folder.tokenizer_config.get("add_bos_token")
        if isinstance(said, bool):
            return said
        if not any(steps(folder.tokenizer.get("post_processor"))):
            return False
        with self._reported(InvalidWeights, "not a tokenizer that can be used"):
            return bool(self._tokenizer.encode("a", add_special_tokens=True).ids[:1] == [bos])

    def _find_ends(self, folder: TokenizerFiles) -> frozenset[int]:
        text_config = folder.config.get("text_config")
        sources = (folder.generation, folder.config, text_config if isinstance(text_config, dict) else {})
        ends: set[int] = set()
        for source in sources:
            said = source.get("eos_token_id")
            ends.update(token for token in (said if isinstance(said, list) else [said]) if type(token) is int)
        texts = {text: token for token, text in self.special.items()}
        known = _ENDS - {"<|end|>"} if all(text in texts for text in _HARMONY) else _ENDS
        ends.update(token for text, token in texts.items() if text in known or text == self.eos)
        return frozenset(ends)


def _entries(file: Path, tokenizer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tokens that are kept whole, as tokenizer.json lists them."""
    listed = tokenizer.get("added_tokens") or []
    for entry in listed if isinstance(listed, list) else [listed]:
        match entry:
            case {"id": int(token), "content": str(text)} if token >= 0 and text:
                continue
        raise InvalidWeights(f"{file}: an entry of added_tokens is not a token")
    return list(listed)


def _text_of(folder: TokenizerFiles, added: Mapping[int, str], name: str) -> str:
    """The text of the token that the configuration names "bos", "eos" or "unk", or empty."""
    for source in (folder.tokenizer_config, folder.special_tokens):
        said = source.get(f"{name}_token")
        text = said.get("content") if isinstance(said, dict) else said
        if isinstance(text, str):
            return text
    # Where no file gives the text, config.json may give the id.
    said = folder.config.get(f"{name}_token_id")
    return added.get(said, "") if type(said) is int else ""


# How a vocabulary writes bytes as text. There are two ways: the byte-level alphabet of GPT-2, where every
# byte is one printable character, and SentencePiece, where U+2581 is a space and `<0x0A>` a byte. Joining the
# bytes of a text's tokens gives the text back, up to the space that SentencePiece puts in front.


def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for what follows U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def find_speller(tokenizer: Mapping[str, Any]) -> Spell | None:
    """How the parsed tokenizer.json writes the bytes of its tokens; None for a way not known here."""
    decoders = list(steps(tokenizer.get("decoder")))
    if any(step["type"] == "ByteLevel" for step in decoders):
        return _from_alphabet(byte_alphabet())
    if any(step["type"] == "Metaspace" or _replaces_space(step) for step in decoders):
        model = tokenizer.get("model")
        fallback = isinstance(model, dict) and bool(model.get("byte_fallback"))
        return _from_sentencepiece(fallback or any(step["type"] == "ByteFallback" for step in decoders))
    return None


def steps(part: Any) -> Iterator[Mapping[str, Any]]:
    """The single steps of a normalizer, pre-tokenizer, post-processor or decoder, sequences unfolded."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return
    if part["type"] != "Sequence":
        yield part
        return
    for name in ("normalizers", "pretokenizers", "processors", "decoders"):
        inner = part.get(name)
        for step in inner if isinstance(inner, list) else ():
            yield from steps(step)


def _replaces_space(step: Mapping[str, Any]) -> bool:
    pattern = step.get("pattern")
    return step["type"] == "Replace" and isinstance(pattern, dict) and pattern.get("String") == _SPACE


def _from_alphabet(alphabet: Mapping[str, int]) -> Spell:
    def spell(text: str) -> bytes:
        try:
            return bytes([alphabet[character] for character in text])
        except KeyError:  # not written in the alphabet: some vocabularies hold plain words, too
            return text.encode()

    return spell


def _from_sentencepiece(fallback: bool) -> Spell:
    def spell(text: str) -> bytes:
        found = _BYTE.fullmatch(text) if fallback else None
        return bytes([int(found[1], 16)]) if found else text.replace(_SPACE, " ").encode()

    return spell
