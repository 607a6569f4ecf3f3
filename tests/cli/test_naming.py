"""What a person types for a model: aliases, names, beginnings, paths and repositories."""

from __future__ import annotations

import json

import pytest

from localagent.cli import naming
from localagent.cli.naming import Preferences, check_alias, default_model, model_and_words, names, resolve
from localagent.errors import SaveFailed, UnknownModel, UsageError


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    monkeypatch.delenv("LOCALAGENT_MODEL", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "model"),
    [
        ("lfm2-nano", "lfm2-nano"),
        (" LFM2-Nano ", "lfm2-nano"),
        ("lfm2-n", "lfm2-nano"),  # a unique beginning
        ("SMOL", "smollm2-135m"),
        ("LiquidAI/LFM2-1.2B-GGUF", "lfm2-1.2b"),  # a repository of the catalogue
        ("liquidai/lfm2.5-1.2b-instruct-mlx-4bit", "lfm2.5-1.2b-instruct"),
        ("hf:acme/tiny:Q4_K_M", "hf:acme/tiny:Q4_K_M"),
        ("HF:acme/tiny", "hf:acme/tiny"),
        ("https://huggingface.co/acme/tiny", "hf:acme/tiny"),
        ("https://huggingface.co/acme/tiny/?library=mlx", "hf:acme/tiny"),
        ("https://hf.co/acme/tiny/blob/main/q/tiny-Q8_0.gguf", "hf:acme/tiny:q/tiny-Q8_0.gguf"),
    ],
)
def test_w12_what_is_typed_is_a_model(typed, model):
    assert resolve(typed) == model


def test_a_path_is_taken_as_it_is(home, monkeypatch):
    (home / "x.gguf").write_bytes(b"GGUF")
    (home / "lfm").mkdir()
    monkeypatch.chdir(home)
    for path in (str(home / "x.gguf"), "./x.gguf", "x.gguf", "lfm"):
        assert resolve(path) == path
    (home / "lfm2-nano").mkdir()
    assert resolve("lfm2-nano") == "lfm2-nano"  # the catalogue comes first


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "the model name is empty"),
        ("lfm2-9b", r"no model lfm2-9b: did you mean lfm2-\S+ or lfm2"),
        ("1.2b-thinking", "did you mean lfm2.5-1.2b-thinking"),
        ("qwen", "no model qwen: `localagent models list --all` shows all models"),
        ("lfm2.5-1", "several models begin with lfm2.5-1: lfm2.5-1.2b-instruct, lfm2.5-1.2b-thinking"),
        ("./none.gguf", "no such file or folder: ./none.gguf"),
        ("~nobody/x", "no such file or folder"),
        ("acme/tiny", "no such file or folder: acme/tiny: a repository of Hugging Face is hf:acme/tiny"),
        ("a\0b", "no model 'a"),
        ("x" * 5000, "no model 'x"),
    ],
)
def test_w12_what_is_none_is_refused_with_what_comes_near(typed, words):
    with pytest.raises(UnknownModel, match=words):
        resolve(typed)


def test_of_several_a_person_may_choose():
    asked = []

    def ask(question, offered):
        asked.append((question, offered))
        return answer

    answer = "lfm2.5-1.2b-thinking"
    assert resolve("lfm2.5-1", ask=ask) == answer
    assert asked == [("Several models begin with lfm2.5-1", ["lfm2.5-1.2b-instruct", "lfm2.5-1.2b-thinking"])]
    answer = None
    with pytest.raises(UnknownModel, match=r"no model lfm2\.5-1"):
        resolve("lfm2.5-1", ask=ask)


# -- the default and the aliases ------------------------------------------------------------------------


def test_n9_the_default_is_the_variable_then_the_choice_then_the_catalogues(monkeypatch):
    assert default_model("llamacpp") == "smollm2-135m"
    assert default_model("mlx") == "lfm2.5-1.2b-instruct"
    Preferences(default="lfm2-n").write()
    assert default_model() == "lfm2-nano"
    monkeypatch.setenv("LOCALAGENT_MODEL", " smol ")
    assert default_model() == "smollm2-135m"
    monkeypatch.setenv("LOCALAGENT_MODEL", "")
    assert default_model() == "lfm2-nano"
    monkeypatch.setenv("LOCALAGENT_MODEL", "nothing")
    with pytest.raises(UnknownModel, match="LOCALAGENT_MODEL names the model: no model nothing"):
        default_model()


def test_n9_an_alias_is_another_name(home):
    Preferences(aliases={"fast": "hf:acme/tiny:Q4_K_M", "lap": "lfm2.5-1.2b-instruct"}).write()
    assert resolve("FAST") == resolve("fas") == "hf:acme/tiny:Q4_K_M"
    assert resolve("la") == "lfm2.5-1.2b-instruct"
    assert names()[:2] == ["fast", "lap"]


def test_w12_a_first_word_that_is_a_model_is_the_model():
    Preferences(aliases={"fast": "lfm2-350m"}).write()
    for first in ("fast", "LFM2-nano", "hf:a/b"):
        assert model_and_words(None, [first, "Hi."]) == (first, ["Hi."])
        assert model_and_words("other", [first, "Hi."]) == ("other", [first, "Hi."])
    for words in ([], ["Hi."], ["lfm2-n", "Hi."], ["Hi.", "lfm2-nano"], ["lfm2-nano says"]):
        assert model_and_words(None, words) == (None, words)


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "hf:a", "-x", "ä", "x" + "\x1b[31m"])
def test_an_alias_must_be_easy_to_type(name):
    with pytest.raises(UsageError, match="cannot be an alias"):
        check_alias(name)


def test_an_alias_does_not_hide_a_model():
    with pytest.raises(UsageError, match="lfm2-nano is a model of the catalogue"):
        check_alias("LFM2-nano")
    assert check_alias(" Quick.1 ") == "quick.1"


@pytest.mark.parametrize(
    "body", ["[]", "{", '{"default": 1}', '{"aliases": {"a": 1}}', '{"aliases": []}', "\xff"]
)
def test_a_damaged_file_is_told(home, body):
    (home / "models.json").write_text(body, "latin-1")
    with pytest.raises(UsageError, match=r"models\.json .* mend it or remove it"):
        resolve("lfm2-nano")


def test_what_a_newer_version_wrote_does_no_harm(home):
    (home / "models.json").write_text(json.dumps({"default": "lfm2-nano", "more": 1}))
    assert Preferences.read() == Preferences("lfm2-nano", {})


def test_a_home_that_cannot_be_written(home, monkeypatch):
    (home / "file").write_text("")
    monkeypatch.setenv("LOCALAGENT_HOME", str(home / "file"))
    assert naming.Preferences.read() == Preferences()
    with pytest.raises(SaveFailed, match="cannot write"):
        Preferences().write()


def test_whoever_named_a_model_that_is_none_is_told(monkeypatch):
    none = "no model gone: `localagent models list --all` shows all models"
    Preferences(default="gone").write()
    said = []
    told = (
        f"`localagent models default` names the model: {none}; `localagent models default --forget` goes back"
    )
    assert naming.known_default(said.append) is None
    assert said == [f"warning: {told}"]
    monkeypatch.setenv("LOCALAGENT_MODEL", "gone")
    with pytest.raises(UnknownModel) as error:
        default_model()
    assert str(error.value) == f"LOCALAGENT_MODEL names the model: {none}; unset LOCALAGENT_MODEL goes back"
    monkeypatch.setenv("LOCALAGENT_MODEL", "lfm2-nano")
    assert naming.known_default(pytest.fail) == "lfm2-nano"


def test_a_model_is_the_same_from_any_folder(home, monkeypatch):
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home / "me"))
    for named in ("lfm2-nano", "hf:a/b", "vllm://a:1/b"):
        assert naming.absolute(named) == named
    assert naming.absolute("x.gguf") == str(home / "x.gguf")
    assert naming.absolute("~/x") == str(home / "me" / "x")


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (
            "lfm2-9",
            "no model lfm2-9: did you mean lfm2-nano or lfm2-700m or lfm2-350m? `localagent models list --all` shows all models",
        ),
        ("https://example.org/a/b", "no such file or folder: https://example.org/a/b"),
        ("a\\b", "no such file or folder: a\\b"),
        ("x.gguf", "no such file or folder: x.gguf"),
        ("a b/c", "no such file or folder: a b/c"),
        ("lfm2.5-1.2b-", "several models begin with lfm2.5-1.2b-: lfm2.5-1.2b-instruct, lfm2.5-1.2b-thinking: write one of them"),
        ("  ", "the model name is empty: `localagent models list --all` shows all models"),
    ],
)  # fmt: skip
def test_all_that_is_said_of_a_name_that_is_none(typed, says):
    with pytest.raises(UnknownModel) as error:
        resolve(typed)
    assert str(error.value) == says


def test_preferences_are_kept_for_people_to_read(home):
    Preferences("m", {"b": "1", "a": "2"}).write()
    assert (
        home / "models.json"
    ).read_text() == '{\n "default": "m",\n "aliases": {\n  "a": "2",\n  "b": "1"\n }\n}\n'
    for body, says in (
        ("{", "cannot be read (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))"),
        ("7", "does not hold a default and aliases"),
        ('{"default": 7}', "does not hold a default and aliases"),
    ):
        (home / "models.json").write_text(body)
        with pytest.raises(UsageError) as error:
            Preferences.read()
        assert str(error.value) == f"{home / 'models.json'} {says}: mend it or remove it"
