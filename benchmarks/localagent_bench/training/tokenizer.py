"""The tokenizer: 16 special tokens, 256 bytes, letter pairs, and whole words.

No merge holds a space or a digit, and pairs never merge further, so a word that is no token itself splits in
the same way wherever it stands. That is what makes copying learnable for so small a network. Whole words are
found before any merge is tried (`ignore_merges`); llama.cpp does so for vocabularies of type "lfm2".
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from localagent.nano.words import NAMES, REAL
from localagent_bench.training.shape import VOCABULARY

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = (
    *("<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|fim_pre|>", "<|fim_mid|>", "<|fim_suf|>"),
    *("<|im_start|>", "<|im_end|>", "<|tool_list_start|>", "<|tool_list_end|>"),
    *("<|tool_call_start|>", "<|tool_call_end|>", "<|tool_response_start|>", "<|tool_response_end|>"),
    *("<think>", "</think>"),
)
"""The first ids, as in LFM2's own vocabulary, and then the tags of reasoning."""
BOS, EOS, PAD = "<|startoftext|>", "<|im_end|>", "<|pad|>"
PAIRS = 160

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = re.compile("|".join(map(re.escape, SPECIAL)))


def learn(texts: Iterable[str]) -> dict[str, Any]:
    """The `tokenizer.json` of a vocabulary for these texts: their most frequent words and letter pairs."""
    from tokenizers import pre_tokenizers

    split = pre_tokenizers.Sequence(_splitters())
    counts: Counter[str] = Counter()
    for text in texts:
        for run in _SPECIAL.split(text):
            counts.update(piece for piece, _ in split.pre_tokenize_str(run))
    values = {
        form for word in (*REAL, *NAMES) for form in (word, word.lower(), word.upper(), word.capitalize())
    }
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    wanted = VOCABULARY - len(SPECIAL) - len(letters) - PAIRS
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    words = [word for word, _ in ranked if _is_word(word) and word.lstrip("Ġ") not in values][:wanted]
    pairs = _pairs({word: count for word, count in ranked if word not in words})
    vocabulary = [*SPECIAL, *letters, *pairs, *words]
    return _tokenizer_json(vocabulary, [list(pair) for pair in pairs])


def load(tokenizer_json: dict[str, Any]) -> Tokenizer:
    """A tokenizer from what `learn` returned or `tokenizer.json` holds."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(json.dumps(tokenizer_json))


def config() -> dict[str, Any]:
    """The `tokenizer_config.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "additional_special_tokens": [token for token in SPECIAL if token not in (BOS, EOS, PAD)],
    }


def _is_word(piece: str) -> bool:
    """Whether a piece may be a token of its own: no single letters, pairs, numbers or other scripts."""
    ascii_only = piece.replace("Ġ", " ").isascii()
    return len(piece) > 1 and ascii_only and not re.search("[0-9]|^[A-Za-z]{1,2}$|^Ġ+[A-Za-z]?$", piece)


def _pairs(counts: dict[str, int]) -> list[str]:
    """The most frequent pairs of ASCII letters in the words that are no tokens themselves."""
    pairs: Counter[str] = Counter()
    for word, count in counts.items():
        for run in re.findall("[A-Za-z]+", word):
            for left, right in itertools.pairwise(run):
                pairs[left + right] += count
    return [pair for pair, _ in sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:PAIRS]]


def _splitters() -> list[Any]:
    from tokenizers import Regex, pre_tokenizers

    return [
        pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


def _tokenizer_json(vocabulary: list[str], merges: list[list[str]]) -> dict[str, Any]:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    ids = {token: at for at, token in enumerate(vocabulary)}
    model = models.BPE(vocab=ids, merges=[(left, right) for left, right in merges], ignore_merges=True)
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Sequence(_splitters())
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    made.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, ids[BOS])]
    )
    parsed: dict[str, Any] = json.loads(made.to_str())
    return parsed
