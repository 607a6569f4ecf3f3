"""The tokenizer of a model whose weights are elsewhere, and whether the server's is the same.

It comes from a folder that is laid out as on Hugging Face, from a repository there, of which only the small
files are fetched, or from a GGUF file, of which only the head is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from localagent.distribution import install_command
from localagent.errors import DownloadFailed, EngineMissing, StreamBroken, UsageError
from localagent.hosts.engine import Vocabulary
from localagent.hosts.prefix.matching import common
from localagent.remote.tokens.apis import Chunk
from localagent.wording import quoted

if TYPE_CHECKING:
    from localagent.hosts.tokenizer_files import TokenizerFiles

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "config.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""What is fetched of a repository."""
PROBES = (
    "The quick brown fox, 12,345.67 \u20ac: na\u00efve \u6f22\u5b57 \U0001f600\n\n\tdef f(x):  return x\n",
    "  leading and trailing  ",
    '<|im_start|>user\n</s><think>[INST] {"a": [1, 2]}',
)
"""Texts in which vocabularies differ: accents, other scripts, white space, numbers, markers."""
_MOST_LOST = 16
"""Tokens that are looked for by their bytes: a character has four, so no honest server leaves out more."""
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What is known of a model without its weights."""

    vocabulary: Vocabulary
    chat_template: str | None
    architecture: str
    context: int | None
    path: Path


def read_model_files(where: str | Path) -> ModelFiles:
    """The files at `where`: a folder, a GGUF file, or owner/name of a repository.

    Raises UsageError, InvalidWeights, EngineMissing, DownloadFailed.
    """
    path = Path(where).expanduser()
    if path.is_dir():
        return _of_folder(path)
    if path.is_file():
        return _of_gguf(path)
    if isinstance(where, str) and _REPOSITORY.fullmatch(where):
        return _of_folder(_fetched(where))
    raise UsageError(
        f"no tokenizer at {quoted(str(where), 200)}: give tokenizer= a folder with tokenizer.json, a GGUF "
        "file, or owner/name of a repository of Hugging Face"
    )


def _of_folder(path: Path) -> ModelFiles:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise EngineMissing(
            f"the package tokenizers is not installed: {install_command('remote')} [{error}]"
        ) from error
    from localagent.hosts.tokenizer import FileVocabulary
    from localagent.hosts.tokenizer_files import read_tokenizer_files

    files = read_tokenizer_files(path)
    return ModelFiles(
        FileVocabulary(Tokenizer, files, _size(files)),
        files.chat_template,
        files.architecture,
        files.context_length,
        path,
    )


def _size(files: TokenizerFiles) -> int:
    """How many ids there are, as far as the files say. What is wrong with them the vocabulary says itself."""
    model, added = files.tokenizer.get("model"), files.tokenizer.get("added_tokens")
    words = model.get("vocab") if isinstance(model, dict) else None
    sizes = [len(words if isinstance(words, dict | list) else ()), files.config.get("vocab_size")]
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, dict) and type(entry.get("id")) is int:
            sizes.append(entry["id"] + 1)
    return max(size for size in sizes if type(size) is int)


def _of_gguf(path: Path) -> ModelFiles:
    from localagent.hosts.llamacpp.gguf import read_header
    from localagent.hosts.llamacpp.vocabulary import LlamaCppVocabulary

    header = read_header(path)
    return ModelFiles(
        LlamaCppVocabulary.read(path), header.chat_template, header.architecture, header.context_length, path
    )


def _fetched(repository: str) -> Path:
    """The folder in the cache of Hugging Face with the small files of a repository."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise EngineMissing(
            f"huggingface_hub is not installed: {install_command('hub')} [{error}]"
        ) from error
    try:
        return Path(snapshot_download(repository, allow_patterns=list(FILES)))
    except Exception as error:  # a library's own errors, and those of the network
        said = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DownloadFailed(
            f"the tokenizer of {repository} cannot be fetched ({said}): give tokenizer= a folder with it"
        ) from error


def disagreement(vocabulary: Vocabulary, tokenized: Callable[[str], Sequence[int]]) -> str | None:
    """Where the server's tokenizer gives other ids; None if nowhere. `tokenized` asks it."""
    for text in (*PROBES, *list(vocabulary.special.values())[:8]):
        ours, theirs = vocabulary.tokenize(text, special=True), tuple(tokenized(text))
        if ours != theirs:
            shared = common(list(ours), list(theirs))
            here, there = (list(each[shared : shared + 4]) for each in (ours, theirs))
            return f"{quoted(text, 40)} has the tokens ... {here} here and ... {there} there"
    return None


class TokenFinder:
    """Finds tokens by what they spell, for servers that leave ids out."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        """The ordinary tokens by their bytes; the first of several."""
        found: dict[bytes, int] = {}
        for token in range(self._vocabulary.size):
            piece = self._vocabulary.piece(token)
            if piece.data and not piece.special:
                found.setdefault(piece.data, token)
        return found

    def lost(self, chunk: Chunk) -> Sequence[int]:
        """The tokens that were left out before those of the chunk. Where several would do, as the tokenizer
        has them; the text is the same. Raises StreamBroken if there are none.
        """
        sent = b"".join(self._vocabulary.piece(token).data for token in chunk.ids)
        data, count = chunk.text.encode("utf-8", "replace"), chunk.lost
        usual = self._vocabulary.tokenize(chunk.text, special=False)
        if len(usual) == count + len(chunk.ids) and usual[count:] == tuple(chunk.ids):
            return usual[:count]
        tellable = data.endswith(sent) and count <= _MOST_LOST
        found = self._split(data.removesuffix(sent), count) if tellable else None
        if found is None:
            raise StreamBroken(
                f"the server left out {count:,} tokens before {quoted(chunk.text, 40)}, and which they were "
                "cannot be told: ask again"
            )
        return found

    def _split(self, data: bytes, count: int) -> list[int] | None:
        """So many tokens that spell `data`, the first as long as may be."""
        if count == 0 or not data:
            return [] if not data and count == 0 else None
        for end in range(len(data) - count + 1, 0, -1):
            token = self._ids.get(data[:end])
            if token is not None and (rest := self._split(data[end:], count - 1)) is not None:
                return [token, *rest]
        return None
