"""What a repository's answer means: which files are wanted, and what is said where it cannot be had."""

from __future__ import annotations

import errno
import json
import sys
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from huggingface_hub import errors as hf

from localagent.catalog import HubSource
from localagent.distribution import install_command
from localagent.errors import DownloadFailed, HashMismatch
from localagent.store import hub, wheel

FILE = HubSource(repo="a/b", file="x/m.gguf")
PARTS = HubSource(repo="a/b", file="m-00001-of-00002.gguf")
FOLDER = HubSource(repo="a/b", patterns=("*.json", "sub/*.bin"))
INSIDE = HubSource(repo="a/b", patterns=("*.json",), subfolder="8bit")


@pytest.mark.parametrize(
    ("source", "remote", "local"),
    [
        (FILE, "x/m.gguf", "m.gguf"),
        (FILE, "m.gguf", None),
        (FILE, "y/x/m.gguf", None),
        (PARTS, "m-00001-of-00002.gguf", "m-00001-of-00002.gguf"),
        (PARTS, "m-00002-of-00002.gguf", "m-00002-of-00002.gguf"),
        (PARTS, "m-00003-of-00002.gguf", None),
        (FOLDER, "config.json", "config.json"),
        (FOLDER, "Config.JSON", None),
        (FOLDER, ".hidden.json", None),
        (FOLDER, "deep/config.json", None),
        (FOLDER, "sub/x.bin", "sub/x.bin"),
        (FOLDER, "sub/deep/x.bin", None),
        (FOLDER, "x.bin", None),
        (FOLDER, "../config.json", None),
        (FOLDER, "/config.json", None),
        (FOLDER, "C:config.json", None),
        (FOLDER, "a\\config.json", None),
        (INSIDE, "8bit/config.json", "config.json"),
        (INSIDE, "8bits/config.json", None),
        (INSIDE, "config.json", None),
        (INSIDE.model_copy(update={"subfolder": "8bit/"}), "8bit/config.json", "config.json"),
    ],
)
def test_which_files_are_wanted(source: HubSource, remote: str, local: str | None) -> None:
    assert hub.local_name(remote, source) == local


def answering(status: int) -> Any:
    return SimpleNamespace(status_code=status, headers={}, request=None)


BROKE_OFF = "fetching a/b broke off ({}): check the network and pull again, what was fetched is kept"
NO_HUB = "the answer for a/b does not come from a hub: is there a login page, or a wrong HF_ENDPOINT?"
FAILURES = [
    (
        hf.GatedRepoError("x", response=answering(403)),
        "a/b is gated: accept its terms on its page and log in with `hf auth login`",
    ),
    (
        hf.RepositoryNotFoundError("x", response=answering(404)),
        "repository a/b does not exist, or is private: then log in with `hf auth login`",
    ),
    (hf.RevisionNotFoundError("x", response=answering(404)), "a/b has no revision v1"),
    (hf.EntryNotFoundError("x"), "a/b (v1) no longer has a file it listed"),
    (hf.HfHubHTTPError("x", response=answering(503)), "Hugging Face answered with HTTP status 503 for a/b"),
    (httpx.ConnectError("x"), BROKE_OFF.format("ConnectError")),
    (ConnectionResetError("x"), BROKE_OFF.format("ConnectionResetError")),
    (TimeoutError("x"), BROKE_OFF.format("TimeoutError")),
    (OSError("Consistency check failed"), BROKE_OFF.format("OSError")),
    (json.JSONDecodeError("x", "<html>", 0), NO_HUB),
    (KeyError("siblings"), NO_HUB),
    (TypeError("x"), NO_HUB),
    (OSError(errno.ENOSPC, "No space left on device"), None),
    (PermissionError(errno.EACCES, "Permission denied"), None),
    (ZeroDivisionError("x"), None),
]


def answer(monkeypatch: pytest.MonkeyPatch, said: Any) -> list[tuple[tuple, dict]]:
    """What the hub says when it is asked for a repository, or the error; and how it was asked."""
    asked = []

    def model_info(_: object, *arguments: Any, **options: Any) -> Any:
        asked.append((arguments, options))
        if isinstance(said, Exception):
            raise said
        return said

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    return asked


@pytest.mark.parametrize(("error", "message"), FAILURES)
def test_what_cannot_be_had_is_said_in_a_line(monkeypatch, error, message):
    answer(monkeypatch, error)
    with pytest.raises(DownloadFailed if message else type(error)) as caught:
        hub.list_files("a/b", "v1")
    if message:
        assert str(caught.value) == message
    else:
        assert caught.value is error, "it is no failure of the network"


def test_without_the_package_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub.utils.tqdm", None)
    with pytest.raises(DownloadFailed) as caught:
        hub.list_files("a/b", "main")
    needs = "a/b is on Hugging Face, which needs one more package: "
    assert str(caught.value) == needs + install_command("hub")


def sibling(name: str, size: int | None = 3, sha256: str | None = None, blob: str | None = "b") -> Any:
    lfs = SimpleNamespace(sha256=sha256) if sha256 else None
    return SimpleNamespace(rfilename=name, size=size, lfs=lfs, blob_id=blob)


def repository(*siblings: Any, **fields: Any) -> Any:
    return SimpleNamespace(
        **{"siblings": [*siblings], "sha": "c0ffee", "card_data": None, "id": None} | fields
    )


def test_a_listing_has_what_is_safe_with_its_sizes(monkeypatch):
    asked = answer(monkeypatch, repository(sibling("a"), sibling("b", None), sibling("../c")))
    listing = hub.list_files("a/b", "v1")
    assert (listing.files, listing.repo, listing.licence) == ({"a": 3, "b": 0}, "a/b", None)
    assert asked == [(("a/b",), {"revision": "v1", "files_metadata": True, "timeout": 30})]
    answer(monkeypatch, SimpleNamespace(siblings=None, card_data=None, id="A/B"))
    assert hub.list_files("a/b", "v1") == hub.Listing({}, "A/B", None)


def test_a_plan_names_each_file_with_its_hash(monkeypatch):
    large, small = "1" * 64, "2" * 64
    answer(monkeypatch, repository(sibling("config.json"), sibling("sub/x.bin", 5, large), sibling("no.txt")))
    plan = hub.plan(FOLDER)
    assert plan == hub.PinnedFiles(
        "a/b",
        "c0ffee",
        (
            hub.RemoteFile("config.json", "config.json", 3, None, "b"),
            hub.RemoteFile("sub/x.bin", "sub/x.bin", 5, large, "b"),
        ),
    )
    assert plan.size == 8
    others = [hub.PinnedFiles("a/b", "c0ffef", plan.files), hub.PinnedFiles("a/b", "c0ffee", plan.files[:1])]
    keys = {each.key for each in (plan, *others)}
    assert len(keys) == 3
    assert {len(key) for key in keys} == {16}
    expecting = FILE.model_copy(update={"sha256": small})
    answer(monkeypatch, repository(sibling("x/m.gguf")))
    assert hub.plan(expecting).files[0].sha256 == small, "the hub has none of it"
    answer(monkeypatch, repository(sibling("x/m.gguf", sha256=small, blob=None)))
    assert hub.plan(expecting).files[0].sha256 == small


NO_HASH = "a/b publishes no size and hash for x/m.gguf"


@pytest.mark.parametrize(
    ("source", "said", "message"),
    [
        (FILE, repository(sibling("m.gguf")), "a/b (main) has no file x/m.gguf"),
        (FILE, repository(sibling("x/m.gguf"), sha=None), "a/b (main) has no file x/m.gguf"),
        (PARTS, repository(sibling("m-00001-of-00002.gguf")), "a/b (main) has no file m-00001-of-00002.gguf"),
        (FOLDER, repository(siblings=None), "a/b (main) has no file ./{*.json,sub/*.bin}"),
        (INSIDE, repository(sibling("config.json")), "a/b (main) has no file 8bit/{*.json}"),
        (FILE, repository(sibling("x/m.gguf", None)), NO_HASH),
        (FILE, repository(sibling("x/m.gguf", blob=None)), NO_HASH),
    ],
)
def test_a_repository_without_the_files(monkeypatch, source, said, message):
    answer(monkeypatch, said)
    with pytest.raises(DownloadFailed) as caught:
        hub.plan(source)
    assert str(caught.value) == message


def test_another_file_than_the_catalogue_expects(monkeypatch):
    answer(monkeypatch, repository(sibling("x/m.gguf", sha256="1" * 64)))
    with pytest.raises(HashMismatch) as caught:
        hub.plan(FILE.model_copy(update={"sha256": "2" * 64}))
    expected = "is not the file that the catalogue expects: nothing was fetched"
    assert str(caught.value) == f"x/m.gguf in a/b (main) {expected}"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("", ""),
        ("\n[notice] A new release of pip\n", ""),
        ("first\n  last \n\n[notice] A new release of pip\n", "last"),
        ("ERROR: one\nERROR: two\nlater\n", "two"),
        ("ERROR two\n", "ERROR two"),
        (
            "ERROR: no (https://me:secret@example.com/simple) and file:///x or host='h', port=8.",
            "no the package index and the package index or the package index.",
        ),
    ],
)
def test_the_last_words_of_pip_tell_no_address(output, words):
    assert wheel._last_words(output) == words
