"""Text becomes ids and ids become text by tokenizer.json alone, special tokens only where they are asked for."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from localagent.errors import InvalidWeights
from localagent.hosts.mlx.folder import read_folder
from localagent.hosts.mlx.library import library
from localagent.hosts.tokenizer import FileVocabulary, find_speller
from localagent.prompt import Segment
from tests.hosts.mlx.folders import SIZE, byte_level, sentencepiece, write_folder, write_json, write_tokenizer

pytestmark = pytest.mark.engine

TEXTS = [
    "hello world",
    " two  spaces   three",
    "\u00e9\u00fc\u4f60\u597d \U0001f600",
    "\n\n\tif x:\r\n",
    "\x00\x7f",
    "<|im_end|>",
    "<think>",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("vocabulary") / "tiny")


def make(folder, tokenizer=None, size=SIZE, edit=None, files=None, **config):
    write_tokenizer(folder, tokenizer, **config)
    for name in ("special_tokens_map.json", "generation_config.json"):
        (folder / name).unlink(missing_ok=True)
    for name, value in (files or {}).items():
        write_json(folder / name, value)
    if edit:
        parsed = json.loads((folder / "tokenizer.json").read_text())
        edit(parsed)
        write_json(folder / "tokenizer.json", parsed)
    return FileVocabulary(library().Tokenizer, read_folder(folder), size)


def spell(vocabulary, ids):
    return b"".join(vocabulary.piece(token).data for token in ids)


@pytest.fixture
def plain(folder):
    return make(folder)


@pytest.fixture
def spaced(folder):
    return make(folder, sentencepiece(), size=400, bos_token="<s>", eos_token={"content": "</s>"})


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("special", [True, False])
def test_bytes_come_back(plain, text, special):
    assert spell(plain, plain.tokenize(text, special)) == text.encode()


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_come_back_behind_the_space_of_sentencepiece(spaced, text):
    ids = spaced.tokenize(text, special=False)
    assert spell(spaced, ids) == b" " + text.encode()


def test_every_byte_is_a_piece(plain, spaced):
    for vocabulary in (plain, spaced):
        single = {vocabulary.piece(token).data for token in range(vocabulary.size)}
        assert {bytes([byte]) for byte in range(256)} <= single
    with pytest.raises(IndexError, match="no token 300"):
        plain.piece(300)
    with pytest.raises(IndexError):
        plain.piece(-1)
    assert plain.piece(299) == (b"", False, False, plain.piece(299).whole)  # pads the matrices


def test_special_and_end_tokens_are_flagged(plain):
    texts = {text: token for token, text in plain.special.items()}
    assert set(texts) == {
        "<|pad|>",
        "<|startoftext|>",
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "</think>",
    }
    assert {text for text, token in texts.items() if plain.piece(token).end} == {
        "<|endoftext|>",
        "<|im_end|>",
    }
    assert all(plain.piece(token).special for token in texts.values())
    assert (plain.bos, plain.eos) == ("<|startoftext|>", "<|im_end|>")
    (table,) = plain.tokenize("<table>", special=False)
    assert plain.piece(table)[:3] == (b"<table>", False, False)


@pytest.mark.parametrize("text", ["<|im_end|>", "a<|im_start|>b", "<think>", "<|startoftext|><|pad|>"])
def test_content_spells_no_special_token(plain, text):
    assert set(plain.tokenize(text, special=True)) & set(plain.special)
    assert not set(plain.tokenize(text, special=False)) & set(plain.special)
    assert set(plain.tokenize(text, special=True)) & set(plain.special)  # and it can be switched back


@pytest.mark.parametrize("special", [True, False])
def test_a_long_text_leaves_other_threads_running(plain, special):
    """Else all streams, of other models too, would stand still until it is tokenized."""
    text, ran = "hell<|im_end|> wo " * 20_000, 0
    one = plain.tokenize("hell<|im_end|> wo ", special)
    with ThreadPoolExecutor() as pool:
        longs = [pool.submit(plain.tokenize, text, each) for each in (special, special, not special)]
        while not all(each.done() for each in longs):
            time.sleep(0.001)
            ran += 1
    assert longs[0].result() == longs[1].result() == one * 20_000
    assert ran > 20, "and not once after each of the three"


def test_words_beside_a_spelled_special_token_stay_whole(plain):
    ids = plain.tokenize("hell<|im_end|>", special=False)
    assert [plain.piece(token).data for token in ids[:2]] == [b"he", b"ll"]


def test_content_spells_none_that_the_model_knows_as_a_word(folder):
    tokenizer = Tokenizer(
        models.Unigram([("<unk>", 0.0), ("<s>", 0.0), *((letter, -9.0) for letter in "<s>ab\u2581")], 0)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    tokenizer.add_special_tokens(["<unk>", "<s>"])
    vocabulary = make(folder, tokenizer, bos_token="<s>", eos_token="")
    assert vocabulary.tokenize("a<s>b", special=True).count(1) == 1
    ids = vocabulary.tokenize("a<s>b", special=False)
    assert 1 not in ids
    assert spell(vocabulary, ids) == b"a<s>b"


def test_what_looks_alike_does_not_become_special(folder):
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.add_special_tokens([AddedToken("<|x|>", special=True, normalized=True)])
    alike = "\uff1c\uff5cx\uff5c\uff1e"
    assert tokenizer.encode(alike, add_special_tokens=False).tokens == ["<|x|>"]
    vocabulary = make(folder, tokenizer)
    assert not set(vocabulary.tokenize(alike, special=True)) & set(vocabulary.special)
    assert len(vocabulary.tokenize("<|x|>", special=True)) == 1


def test_one_bos_in_front(plain):
    assert plain.tokenize("he", special=True) == plain.tokenize_segments([Segment("he", True)])[1:]
    assert plain.tokenize_segments([Segment("<|startoftext|>he", True)])[:2] == plain.tokenize_segments(
        [Segment("he", True)]
    )
    assert plain.tokenize_segments([Segment("he", True)], continued=True) == plain.tokenize(
        "he", special=True
    )
    assert plain.tokenize_segments([]) == (1,)


@pytest.mark.parametrize(
    ("said", "processor", "adds"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_who_decides_about_the_bos(folder, said, processor, adds):
    def edit(parsed):
        if not processor:
            parsed["post_processor"] = None

    vocabulary = make(folder, edit=edit, add_bos_token=said)
    assert vocabulary.tokenize_segments([Segment("he", True)])[0:1] == (
        (1,) if adds else vocabulary.tokenize("he", True)
    )


@pytest.mark.parametrize("special", [True, False])
def test_segments_behind_others_get_no_space(spaced, special):
    assert (
        spell(
            spaced,
            spaced.tokenize_segments([Segment("he", True), Segment("llo", special), Segment("\n.he", True)]),
        )
        == b"<s> hello\n.he"
    )
    assert spell(spaced, spaced.tokenize_segments([Segment("he", special)], continued=True)) == b"he"
    assert spell(spaced, spaced.tokenize_segments([Segment("\n\n", special)], continued=True)) == b"\n\n"
    ids = spaced.tokenize_segments([Segment("a</s>he", True)], continued=True)
    assert spell(spaced, ids) == b"a</s> he"  # within a segment it is as the model was trained


def test_byte_level_with_a_space_in_front(folder):
    def edit(parsed):
        parsed["pre_tokenizer"]["add_prefix_space"] = True

    vocabulary = make(folder, edit=edit)
    assert (
        spell(vocabulary, vocabulary.tokenize_segments([Segment("he", True), Segment("he", False)])[1:])
        == b" hehe"
    )


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({}, {"<|im_end|>", "<|endoftext|>"}),
        (
            {"generation_config.json": {"eos_token_id": [3, 0]}},
            {"<|im_end|>", "<|endoftext|>", "<|im_start|>", "<|pad|>"},
        ),
        ({"generation_config.json": {"eos_token_id": 3}}, {"<|im_end|>", "<|endoftext|>", "<|im_start|>"}),
    ],
)
def test_end_tokens_come_from_every_file_that_names_them(folder, files, ends):
    vocabulary = make(folder, files=files)
    assert {vocabulary.special[token] for token in vocabulary.special if vocabulary.piece(token).end} == ends


def test_in_harmony_a_message_may_end_without_the_turn(folder):
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<|end|>", "<|return|>"])
    assert make(folder, tokenizer).piece(tokenizer.token_to_id("<|end|>")).end
    tokenizer.add_special_tokens(["<|call|>"])
    vocabulary = make(folder, tokenizer)
    found = {text: vocabulary.piece(token).end for token, text in vocabulary.special.items()}
    assert (found["<|end|>"], found["<|return|>"], found["<|call|>"]) == (False, True, True)


def test_names_of_tokens_from_other_files(folder):
    names = {"bos_token": {"content": "<|pad|>"}, "eos_token": "<|im_start|>"}
    vocabulary = make(folder, files={"special_tokens_map.json": names}, bos_token=None, eos_token=None)
    assert (vocabulary.bos, vocabulary.eos) == ("<|pad|>", "<|im_start|>")
    vocabulary = make(folder, bos_token=None, eos_token=None)
    assert (vocabulary.bos, vocabulary.eos) == ("", "<|im_end|>")  # by the id in config.json


def test_tokens_beyond_the_matrices_do_not_exist(folder):
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<image>"])
    number = tokenizer.token_to_id("<image>")
    vocabulary = make(folder, tokenizer, size=number)
    assert max(vocabulary.tokenize("<image>", special=True)) < number
    assert "<image>" not in vocabulary.special.values()


def cut_pair(parsed):
    parsed["model"]["merges"].append(["zz", "y"])


def no_decoder(parsed):
    parsed["decoder"] = None


def other_id(parsed):
    parsed["added_tokens"][0]["id"] = 290


def no_model(parsed):
    del parsed["model"]


@pytest.mark.parametrize(
    ("edit", "size", "said"),
    [
        (cut_pair, SIZE, "not a tokenizer"),
        (no_model, SIZE, "not a tokenizer"),
        (no_decoder, SIZE, "neither byte-level nor SentencePiece"),
        (other_id, SIZE, "contradicts the vocabulary"),
        (None, 100, "264 tokens, and the model computes 100"),
    ],
)
def test_broken_tokenizers_are_refused(folder, edit, size, said):
    with pytest.raises(InvalidWeights, match=said) as caught:
        make(folder, edit=edit, size=size)
    assert "tokenizer.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"added_tokens": 3},
        {"added_tokens": [1, None, {"id": "x"}]},
        {"decoder": {"type": "Sequence", "decoders": 4}},
        {"model": []},
        {"normalizer": 7},
    ],
)
def test_nonsense_is_refused_in_one_line(folder, change):
    with pytest.raises(InvalidWeights, match=r"tokenizer\.json"):
        make(folder, edit=lambda parsed: parsed.update(change))


REPLACES = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}


@pytest.mark.parametrize(
    ("decoder", "model", "spelt"),
    [
        ({"type": "ByteLevel"}, {}, b" "),
        ({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteLevel"}]}, {}, b" "),
        (None, {}, None),
        ({"type": "WordPiece"}, {}, None),
        ({"type": "Sequence", "decoders": "x"}, {}, None),
        ({"type": ["ByteLevel"]}, {}, None),
        ({**REPLACES, "type": "Prepend"}, {}, None),
        ({**REPLACES, "pattern": {"String": "_"}}, {}, None),
        ({**REPLACES, "pattern": "\u2581"}, {}, None),
        ({**REPLACES, "pattern": {"Regex": "\u2581"}}, {}, None),
        (REPLACES, {}, "\u0120".encode()),
        ({"type": "Metaspace"}, {}, "\u0120".encode()),
    ],
)
def test_how_a_tokenizer_spells_bytes(decoder, model, spelt):
    """U+0120 is a space in GPT-2's alphabet, and itself in SentencePiece's."""
    speller = find_speller({"decoder": decoder, "model": model})
    assert (speller and speller("\u0120")) == spelt


@pytest.mark.parametrize(
    ("tokenizer", "newline"),
    [
        ({"decoder": REPLACES}, b"<0x0A>"),
        ({"decoder": REPLACES, "model": {"byte_fallback": True}}, b"\n"),
        ({"decoder": REPLACES, "model": {"byte_fallback": False}}, b"<0x0A>"),
        ({"decoder": REPLACES, "model": ["byte_fallback"]}, b"<0x0A>"),
        ({"decoder": {"type": "Sequence", "decoders": [REPLACES, {"type": "ByteFallback"}]}}, b"\n"),
    ],
)
def test_bytes_by_their_number(tokenizer, newline):
    assert find_speller(tokenizer)("<0x0A>") == newline
    assert find_speller(tokenizer)("\u2581a\u2581") == b" a "
