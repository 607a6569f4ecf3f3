"""What is known of a model whose weights are elsewhere, and which tokens a server left out."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from localagent.errors import DownloadFailed, EngineMissing, InvalidWeights, StreamBroken, UsageError
from localagent.nano import MLX
from localagent.remote.tokens import vocabulary as module
from localagent.remote.tokens.apis import Chunk
from localagent.remote.tokens.vocabulary import FILES, PROBES, TokenFinder, disagreement, read_model_files
from tests.hosts.speaking import HEL, LO, Bytes


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(shutil.copytree(MLX, tmp_path / "m", ignore=shutil.ignore_patterns("*.safetensors")))


def change(file: Path, **values) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_the_files_of_a_folder(folder):
    found = read_model_files(str(folder))
    assert (found.path, found.architecture, found.context) == (folder, "lfm2", 4096)
    assert found.chat_template == (MLX / "chat_template.jinja").read_text()
    assert "<|im_end|>" in found.vocabulary.special.values()


@pytest.mark.parametrize(
    ("told", "added", "more"),
    [
        (None, 0, 0),
        (-1, 0, 0),
        (True, 0, 0),
        ("9999", 0, 0),
        (9999, 0, 0),
        (9999, 12_000, 12_001),
        (None, 9000, 9001),
    ],
)
def test_there_are_as_many_ids_as_any_file_says(folder, told, added, more):
    parsed = json.loads((folder / "tokenizer.json").read_text())
    words = len(parsed["model"]["vocab"])
    change(folder / "config.json", vocab_size=told)
    if added:
        parsed["added_tokens"].append({**parsed["added_tokens"][-1], "id": added, "content": "<|far|>"})
        (folder / "tokenizer.json").write_text(json.dumps(parsed))
        with pytest.raises(InvalidWeights, match="contradicts the vocabulary"):  # there is a gap
            read_model_files(folder)
    assert module._size(files_of(folder)) == (more or (told if told == 9999 else words))


def files_of(folder):
    from localagent.hosts.tokenizer_files import read_tokenizer_files

    return read_tokenizer_files(folder)


@pytest.mark.parametrize(
    "wrong",
    [
        {"added_tokens": 7},
        {"added_tokens": ["x"]},
        {"added_tokens": [{"id": "7", "content": "x"}]},
        {"added_tokens": [{"content": "x"}]},
        {"model": 7},
        {"model": {"type": "BPE", "vocab": 7}},
    ],
    ids=str,
)
def test_damaged_files_are_refused_in_one_line(folder, wrong):
    change(folder / "tokenizer.json", **wrong)
    with pytest.raises(InvalidWeights) as caught:
        read_model_files(folder)
    assert str(caught.value).startswith(f"{folder / 'tokenizer.json'}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("where", ["/no/such", "owner/name/more", "owner", Path("owner/name"), "own er/name"])
def test_a_place_without_a_tokenizer(where):
    with pytest.raises(UsageError) as caught:
        read_model_files(where)
    assert str(caught.value) == (
        f"no tokenizer at {where}: give tokenizer= a folder with tokenizer.json, a GGUF file, or owner/name of "
        "a repository of Hugging Face"
    )


def test_of_a_repository_the_small_files_are_fetched(monkeypatch, folder):
    asked = []

    def snapshot_download(repository, allow_patterns):
        asked.append((repository, allow_patterns))
        return str(folder)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    assert read_model_files("some-owner/some.name_1").path == folder
    assert asked == [("some-owner/some.name_1", list(FILES))]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError("no network\nat all"), "no network"),
        (ValueError(), "ValueError"),
        (OSError("x" * 300), "x" * 200),
    ],
)
def test_a_repository_that_cannot_be_fetched(monkeypatch, error, says):
    def snapshot_download(*_, **__):
        raise error

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    with pytest.raises(DownloadFailed) as caught:
        read_model_files("owner/name")
    assert str(caught.value) == (
        f"the tokenizer of owner/name cannot be fetched ({says}): give tokenizer= a folder with it"
    )


@pytest.mark.parametrize(
    ("package", "where", "says"),
    [
        ("huggingface_hub", "owner/name", "huggingface_hub is not installed: "),
        ("tokenizers", MLX, "the package tokenizers is not installed: "),
    ],
)
def test_a_package_that_is_missing_is_named(monkeypatch, package, where, says):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EngineMissing) as caught:
        read_model_files(where)
    assert str(caught.value).startswith(says)
    assert "install" in str(caught.value).removeprefix(says)


def test_where_two_tokenizers_differ():
    """The texts are asked for one after the other, up to the first in which they do."""
    vocabulary, asked = Bytes(), []

    def tokenized(text, wrong=None):
        asked.append(text)
        ids = [*vocabulary.tokenize(text, special=True)]
        return [*ids[:2], 1, 2, 3] if text == wrong else ids

    assert disagreement(vocabulary, tokenized) is None
    assert asked == [*PROBES, "<e>", "<s>"]
    here = [*PROBES[1].encode()][2:6]
    assert disagreement(vocabulary, lambda text: tokenized(text, PROBES[1])) == (
        f"{PROBES[1]} has the tokens ... {here} here and ... [1, 2, 3] there"
    )
    many = Bytes()
    many.special = {number: f"<{number}>" for number in range(20)}
    asked.clear()
    assert disagreement(many, lambda text: asked.append(text) or many.tokenize(text, special=True)) is None
    assert len(asked) == len(PROBES) + 8


@pytest.mark.parametrize(
    ("text", "ids", "lost", "found"),
    [
        ("abc", [], 3, [*b"abc"]),
        ("abc", [*b"c"], 2, [*b"ab"]),
        ("hello", [], 2, [HEL, LO]),
        ("hello", [LO], 1, [HEL]),
        ("hello", [LO], 3, [*b"hel"]),
        ("hello", [*b"o"], 4, [*b"hell"]),
        ("helhel", [], 2, [HEL, HEL]),
        ("hel", [], 1, [HEL]),
        ("lolo", [], 3, [LO, *b"lo"]),
        ("\u20ac", [], 3, [*"\u20ac".encode()]),
        ("x" * 16 + "lo", [LO], 16, [*b"x" * 16]),
    ],
)
def test_the_tokens_that_were_left_out_are_found_by_what_they_spell(text, ids, lost, found):
    assert list(TokenFinder(Bytes()).lost(Chunk(ids, text=text, lost=lost))) == found


@pytest.mark.parametrize(
    ("text", "ids", "lost"),
    [
        ("abc", [*b"x"], 2),  # it does not end so
        ("abc", [], 2),
        ("abc", [], 4),
        ("", [], 1),
        ("c", [*b"c"], 1),
        ("hel" * 17, [], 17),  # no character has so many
        ("<e>", [], 1),  # which content must not spell
    ],
)
def test_what_nobody_can_tell_is_not_guessed(text, ids, lost):
    with pytest.raises(StreamBroken, match=rf"^the server left out {lost} tokens? before .*: ask again$"):
        TokenFinder(Bytes()).lost(Chunk(ids, text=text, lost=lost))
