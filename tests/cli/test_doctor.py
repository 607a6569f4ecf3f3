"""`localagent doctor` names every problem with its fix, on engines that are missing, broken, crash or hang, too."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from localagent.cli.doctor import models
from localagent.cli.doctor.engines import describe_engine
from localagent.cli.doctor.findings import Finding
from localagent.cli.doctor.machine import LITTLE_DISK, folder_findings, machine_findings, setting_findings
from localagent.cli.doctor.models import model_findings
from localagent.engines.check import Report
from localagent.hosts import host
from localagent.hosts.llamacpp import backend as llamacpp
from localagent.hosts.memory import Machine
from tests.engines.fakes import CRASHES, MISCALCULATES, MISSING, impostor, llamacpp_build


def findings(done: subprocess.CompletedProcess[bytes]) -> dict[tuple[str, str], dict[str, Any]]:
    assert done.stderr == b""
    found = json.loads(done.stdout)["findings"]
    return {(each["section"], each["name"]): each for each in found}


@pytest.fixture
def no_mlx(tmp_path: Path) -> str:
    """A PYTHONPATH on which MLX is not installed, for tests that are about something else."""
    return impostor(tmp_path / "no-mlx", "mlx", MISSING)


def test_a_working_machine(localagent):
    done = localagent("doctor")
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0, lines
    assert done.stderr == b""
    assert [line for line in lines if line and not line.startswith(" ")][:-1] == [
        "program", "engines", "machine", "folders", "models", "settings",
    ]  # fmt: skip
    engine = next(line for line in lines if line.startswith("  ok       llama.cpp "))
    assert ", ran lfm2-nano, also quantized to Q8_0 and Q4_0, " in engine
    model = next(line for line in lines if "smollm2-135m (llamacpp)" in line)
    assert "98 MB, verified; needs 3" in model
    assert "with 8,192 tokens of context: fits" in model
    assert lines[-1].endswith("models can run")
    columns = {line.index(line[11:].split("  ", 1)[1].strip()) for line in lines if line.startswith("  ok ")}
    assert len(columns) == 1


def test_json_has_every_finding_with_its_data(localagent, tmp_path, no_mlx):
    done = localagent("doctor", "--json", HF_HUB_OFFLINE="1", PYTHONPATH=no_mlx)
    found = findings(done)
    assert json.loads(done.stdout)["works"] is True
    engine = found["engines", "llama.cpp"]["data"]
    assert engine["outcome"] == "works"
    assert engine["version"][0].isdigit()
    assert engine["devices"]
    assert "=" in engine["build"]
    memory = found["machine", "memory"]["data"]
    assert 0 < memory["available"] <= memory["total"]
    assert found["machine", "CPU"]["data"]["default_threads"] >= 1
    assert found["folders", "sessions"]["data"]["path"].startswith(str(tmp_path))
    assert found["folders", "disk"]["data"]["free"] > 0
    model = found["models", "smollm2-135m (llamacpp)"]
    assert (model["status"], model["data"]["verified"], model["data"]["fitting_context"]) == (
        "ok",
        True,
        8192,
    )
    assert found["settings", "HF_HUB_OFFLINE"]["text"].startswith("1 (")
    assert found["settings", "HF_HUB_OFFLINE"]["status"] == "note"
    assert found["settings", "HF_HUB_OFFLINE"]["data"] == {"value": "1"}
    assert found["settings", "LOCALAGENT_OFFLINE"]["data"] == {"value": os.environ.get("LOCALAGENT_OFFLINE")}
    hub = found["settings", "huggingface_hub"]
    installed = metadata.version("huggingface_hub")
    assert (hub["status"], hub["text"], hub["fix"], hub["data"]) == (
        "ok", installed, None, {"version": installed},
    )  # fmt: skip
    assert found["program", "localagent"]["text"] == metadata.version("localagent-runtime")
    assert found["program", "Python"]["text"].startswith(f"{platform.python_version()}, {sys.executable}")
    assert found["program", "platform"]["text"] == platform.platform()
    assert found["program", "Python"]["data"] == {"version": platform.python_version()}
    machine = found["machine", "CPU"]["data"]
    assert machine["threads"] == os.cpu_count()
    assert machine["default_threads"] <= machine["threads"]
    assert set(memory) == {"total", "available", "limit", "gpu_share"}
    assert found["folders", "disk"]["data"]["free"] <= found["folders", "disk"]["data"]["total"]
    for each in found.values():
        assert each["status"] != "problem" or each["fix"], each


# What stands in the place of llama.cpp, and how the doctor is to speak of it.
BROKEN = {
    "missing": (MISSING, "not installed"),
    "raises": ("raise ImportError('libcuda.so.1: cannot open')", "ImportError: libcuda.so.1: cannot open"),
    "aborts": (
        "import os, sys; print('ggml: bad state', file=sys.stderr, flush=True); os.abort()",
        "installed, but broken: crashes (SIGABRT: Aborted) while importing llama_cpp: ggml: bad state",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_engines_that_do_not_work(localagent, tmp_path, how):
    code, says = BROKEN[how]
    path = impostor(tmp_path / "first", "llama_cpp", code)
    impostor(tmp_path / "first", "mlx", MISSING)
    done = localagent("doctor", "--json", PYTHONPATH=path)
    assert done.returncode == 1
    engine = findings(done)["engines", "llama.cpp"]
    assert engine["status"] == "problem"
    assert says in engine["text"]
    assert "\n" not in engine["text"]
    assert " install " in engine["fix"] or engine["fix"].startswith("make ")
    assert findings(done)["engines", "MLX"]["data"]["outcome"] == "missing"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (CRASHES, "crashes (SIGSEGV: Segmentation fault) while running lfm2-nano quantized to Q8_0"),
        (MISCALCULATES, "computes wrong tokens: lfm2-nano quantized to Q8_0 wrote "),
    ],
    ids=["crashes", "miscalculates"],
)
def test_a_build_that_imports_and_does_not_work(localagent, tmp_path, code, says):
    path = llamacpp_build(tmp_path / "first", code)
    impostor(tmp_path / "first", "mlx", MISSING)
    done = localagent("doctor", PYTHONPATH=path)
    text = done.stdout.decode()
    assert done.returncode == 1
    assert f"installed, but broken: {says}" in text
    assert "no engine works, so no model can run" in text
    line = next(line for line in text.splitlines() if "fix: " in line)
    assert "llama-cpp-python" in line or "fix: make " in line


def test_mlx_is_run_too(localagent, tmp_path):
    path = impostor(tmp_path / "first", "llama_cpp", MISSING)
    impostor(tmp_path / "first", "mlx_lm", "import os; os.abort()")
    engine = findings(localagent("doctor", "--json", PYTHONPATH=path))["engines", "MLX"]
    assert (
        engine["text"] == "installed, but broken: crashes (SIGABRT: Aborted) while importing mlx and mlx_lm"
    )
    assert "mlx-lm" in engine["fix"]


def test_an_engine_that_hangs(localagent, tmp_path):
    path = impostor(tmp_path / "first", "llama_cpp", "import time; time.sleep(600)")
    impostor(tmp_path / "first", "mlx", MISSING)
    started = perf_counter()
    done = localagent("doctor", "--timeout", "10", PYTHONPATH=path)
    assert perf_counter() - started < 100
    assert done.returncode == 1
    text = done.stdout.decode()
    assert "installed, but could not be tried: gave no answer in 10 seconds while importing llama_cpp" in text
    assert "no engine works, so no model can run" in text


FACTS = {"version": "0.3.36", "uses": ["AVX2"], "gpu": False, "devices": ["CPU: x"]}
RAN = ("lfm2-nano", "lfm2-nano quantized to Q8_0", "lfm2-nano quantized to Q4_0")


def test_a_hub_that_is_not_installed_is_a_note(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    hub, *_ = setting_findings()
    assert (hub.status, hub.data) == ("note", {"version": None})
    assert "install" in hub.fix


def test_a_disk_that_is_nearly_full_is_a_problem(monkeypatch, tmp_path):
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))

    def disk(free):
        usage = shutil._ntuple_diskusage(10**12, 10**12 - free, free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        (found,) = (each for each in folder_findings() if each.name == "disk")
        assert found.data == {"free": free, "total": 10**12}
        return found

    assert (disk(LITTLE_DISK).status, disk(LITTLE_DISK).fix) == ("ok", None)
    little = disk(LITTLE_DISK - 1)
    assert (little.status, little.fix) == ("problem", "localagent models rm NAME")


def test_folders_are_told_with_what_they_take(monkeypatch, tmp_path):
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    (tmp_path / "sessions" / "inner").mkdir(parents=True)
    (tmp_path / "sessions" / "inner" / "a.jsonl").write_bytes(bytes(3_000_000))
    found = {each.name: each for each in folder_findings()}
    assert found["sessions"].text == f"{tmp_path}/sessions (3 MB)"
    assert found["sessions"].data == {"path": f"{tmp_path}/sessions", "size": 3_000_000, "exists": True}
    assert found["logs"].text == f"{tmp_path}/logs (empty)"
    assert {each.status for each in found.values()} == {"ok"}


def test_a_gpu_that_the_build_cannot_use(monkeypatch):
    monkeypatch.setattr(llamacpp, "gpu_option", lambda: "-DGGML_CUDA=on")
    works = Report("llamacpp", "works", FACTS, RAN)
    found = describe_engine(works, alone=False)
    assert found.status == "problem"
    assert found.text == (
        "llama-cpp-python 0.3.36, ran lfm2-nano, also quantized to Q8_0 and Q4_0, no GPU offload (CPU: x), "
        "built with AVX2; there is a GPU, and this build cannot use it"
    )
    assert found.fix
    assert "-DGGML_CUDA=on" in found.fix
    assert "--force-reinstall --no-cache-dir" in found.fix
    assert found.fix.count("CMAKE_ARGS=") == 1
    able = describe_engine(Report("llamacpp", "works", {**FACTS, "gpu": True}, RAN), alone=False)
    assert (able.status, able.fix) == ("ok", None)
    monkeypatch.setattr(llamacpp, "gpu_option", lambda: None)
    assert describe_engine(works, alone=False).status == "ok"
    missing = Report("llamacpp", "missing")
    assert describe_engine(missing, alone=False).status == "note"
    assert describe_engine(missing, alone=True).status == "problem"


def test_an_empty_home(localagent, tmp_path, no_mlx):
    home = tmp_path / "home"
    done = localagent("doctor", "--json", LOCALAGENT_HOME=str(home), PYTHONPATH=no_mlx)
    found = findings(done)
    assert done.returncode == 0
    model = found["models", "smollm2-135m"]
    assert model["status"] == "note"
    assert model["text"] == "the default model, not here yet; 98 MB, fits into memory"
    assert model["fix"] == "localagent models pull smollm2-135m"
    assert found["models", "lfm2-nano (llamacpp)"]["status"] == "ok"  # comes with the package
    assert found["folders", "models"]["data"] == {
        "path": str(home / "models"), "size": 0, "exists": False,
    }  # fmt: skip
    assert not home.exists()  # the doctor looks only


@pytest.fixture
def home(tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own with the default model in it."""
    shutil.copytree(gguf.parents[1], tmp_path / "models" / gguf.parents[1].name)
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    return tmp_path


def default_model(machine: Machine) -> Finding:
    (found,) = (finding for finding in model_findings(machine) if "smollm2-135m" in finding.name)
    return found


def test_damaged_and_unfinished_models(home, gguf):
    plenty = Machine(total=1 << 40, available=1 << 40)
    assert default_model(plenty).status == "ok"
    file = home / "models" / "smollm2-135m" / "llamacpp" / gguf.name
    with file.open("ab") as weights:
        weights.write(b"!")
    damaged = default_model(plenty)
    assert (damaged.status, damaged.text) == ("problem", "damaged: not the files that were verified")
    assert damaged.fix == "localagent models pull smollm2-135m --backend llamacpp"
    (file.parent / ".localagent.json").unlink()
    part = home / "models" / ".partial" / "smollm2-135m" / "llamacpp"
    part.mkdir(parents=True)
    (part / "piece").write_bytes(bytes(3_000_000))
    unfinished = default_model(plenty)
    assert (unfinished.status, unfinished.text) == ("note", "unfinished: 3 MB fetched so far")


def test_lanes_and_what_limits_them(home):
    plenty = default_model(Machine(total=1 << 40, available=1 << 40))
    assert plenty.data["lanes"] == {
        "count": 8, "context": 8192, "capacity": 65_536, "limit": "default", "why": "",
    }  # fmt: skip
    assert plenty.text.endswith(": fits, with 8 lanes of 8,192 tokens each (the default)")
    short = default_model(Machine(total=1 << 40, available=500_000_000))
    assert short.data["lanes"]["count"] == 1
    assert short.text.endswith(": fits, with 1 lane (limited by memory)")


def test_models_that_do_not_fit(home):
    tight = default_model(Machine(total=1 << 40, available=250_000_000))
    context = tight.data["fitting_context"]
    assert isinstance(context, int)
    assert 512 <= context < 8192
    assert tight.status == "note"
    assert f"only {context:,} tokens fit now" in tight.text
    assert tight.fix == f"localagent chat --model smollm2-135m --context {context}"
    none = default_model(Machine(total=1 << 40, available=1000))
    assert none.status == "note"
    assert none.text.endswith(": does not fit now")
    assert none.data["fitting_context"] == 0
    assert "lanes" not in tight.data | none.data
    assert none.fix == "localagent models list  # smaller ones"


def test_the_context_is_what_a_load_would_choose():
    assert models.DEFAULT_CONTEXT == host.DEFAULT_CONTEXT


def test_a_default_model_that_would_not_fit(monkeypatch, tmp_path):
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    size = 98_362_432
    for available, room in ((size + 1, "fits into memory"), (size, "does not fit into memory now")):
        found = default_model(Machine(total=1 << 40, available=available))
        assert found.text == f"the default model, not here yet; 98 MB, {room}"
        assert found.data == {"model": "smollm2-135m", "backend": "llamacpp", "verified": False, "size": size}


def test_limits_of_the_machine_are_told():
    memory, _ = machine_findings(Machine(16 * 10**9, 5 * 10**9, limit=8 * 10**9, gpu_share=12 * 10**9))
    assert memory.text == (
        "16.0 GB, 5.0 GB available, limited to 8.0 GB by a control group, the GPU may use 12.0 GB"
    )


@pytest.mark.parametrize(
    ("name", "says", "fix"),
    [
        ("~nosuchuser", "~nosuchuser: no such home", "unset LOCALAGENT_HOME"),
        ("{}/file/x\x1b[31m", "file/x\\x1b[31m/models cannot be written", "export LOCALAGENT_HOME=FOLDER"),
    ],
)
def test_homes_that_cannot_be_used(localagent, tmp_path, no_mlx, name, says, fix):
    (tmp_path / "file").write_text("no folder")
    done = localagent("doctor", LOCALAGENT_HOME=name.format(tmp_path), PYTHONPATH=no_mlx)
    text = done.stdout.decode()
    assert done.returncode == 0, text
    assert done.stderr == b""
    assert "\x1b" not in text
    for folder in ("models", "prefixes", "sessions", "logs"):
        assert f"\n  problem  {folder} " in text
    assert f"fix: {fix}\n" in text
    assert says in text


def test_a_store_that_cannot_be_read(home, monkeypatch):
    def refuse(*_: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("localagent.store.WeightStore.holds", refuse)
    (found,) = model_findings(Machine(total=1 << 40, available=1 << 40))
    assert (found.status, found.text) == ("problem", f"{home}/models cannot be read: Permission denied")


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are Unix")
def test_on_a_narrow_terminal(localagent, no_mlx):
    import pexpect

    from tests.cli.conftest import COMMAND

    environment = {name: text for name, text in localagent.environment.items() if name != "NO_COLOR"}
    environment["PYTHONPATH"] = no_mlx
    child = pexpect.spawn(
        str(COMMAND), ["doctor"], env=environment, encoding="utf-8", timeout=60, dimensions=(50, 80)
    )
    child.expect(pexpect.EOF)
    assert "\x1b[32mok     \x1b[0m" in child.before
    plain = (
        child.before.replace("\x1b[32m", "")
        .replace("\x1b[33m", "")
        .replace("\x1b[0m", "")
        .replace("\x1b[1m", "")
    )
    wide = [line for line in plain.splitlines() if len(line) > 80 and "fix:" not in line and "/" not in line]
    assert wide == []


def test_help_and_bad_options(localagent):
    text = localagent("doctor", "--help").stdout.decode()
    assert "Examples:" in text
    assert "localagent doctor --json | jq" in text
    localagent.refuse("doctor", "--timeout", "0", code=2, says="--timeout")
    localagent.refuse("doctor", "me", code=2, says="me")
