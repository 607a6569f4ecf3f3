"""What models take, by what is known of them, and which are proposed: exact figures, where test_home has real models."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from localagent.cli import fitting, home
from localagent.cli.fitting import Need, need, proposals
from localagent.cli.naming import Preferences
from localagent.cli.options import ModelOptions
from localagent.errors import InvalidWeights, UsageError

SPEC = SimpleNamespace(
    name="m", context=40_000, parameters=None, kv_per_token=10, suggested=True, preferred_backend=lambda: "mlx",
    sources={"mlx": SimpleNamespace(model_dump=lambda: {"repo": "a/b-4BIT"})},
)  # fmt: skip


def spec(**more):
    return SimpleNamespace(**{**vars(SPEC), **more})


def store(size=None, path=None):
    return SimpleNamespace(size=lambda *_: size, find=lambda *_: path)


@pytest.mark.parametrize(
    ("model", "size", "expected"),
    [
        (spec(), 1000, Need(1000, 1000 + 32_768 * 10 + 64_000_000, 32_768)),
        (spec(context=5), 1000, Need(1000, 1000 + 50 + 64_000_000, 5)),
        (spec(context=5, kv_per_token=None), 1000, Need(1000, None, 5)),
        (spec(context=5), None, Need(None, None, 5)),
        (spec(context=5, parameters=1600), None, Need(900, 900 + 50 + 64_000_000, 5)),
        (spec(context=5, parameters=1600), 7, Need(7, 7 + 50 + 64_000_000, 5)),
    ],
)
def test_what_a_model_takes_that_is_not_here(model, size, expected):
    assert need(model, "mlx", store(size)) == expected
    assert not expected.exact


def test_weights_that_are_here_say_it(monkeypatch):
    asked = []

    def estimate(path, trained):
        asked.append((path, trained))
        return SimpleNamespace(total=77, context=6)

    monkeypatch.setattr("localagent.cli.doctor.models.estimate_weights", estimate)
    assert need(SPEC, "mlx", store(5, "here")) == Need(5, 77, 6, exact=True)
    assert asked == [("here", 40_000)]

    def refuse(*_: object) -> None:
        raise InvalidWeights("broken")

    monkeypatch.setattr("localagent.cli.doctor.models.estimate_weights", refuse)
    assert need(SPEC, "mlx", store(5, "here")) == Need(5, None, 32_768, exact=True)


@pytest.mark.parametrize(
    ("source", "bits"),
    [
        ("x-4bit", 4.5), ("x-8BIT", 8.5), ("x-q4_k_m.gguf", 5.0), ("x-Q4_1", 5.0), ("Q8_0", 8.5), ("x", 16.0),
        ("x-4bit and Q8_0", 4.5),
    ],
)  # fmt: skip
def test_a_parameter_takes_what_the_name_of_its_source_says(source, bits):
    model = spec(sources={"mlx": SimpleNamespace(model_dump=lambda: {"size": None, "file": source})})
    assert fitting._bits(model, "mlx") == bits


def test_sizes_are_told_as_estimates_unless_they_are_exact():
    assert Need(1, None, 5).told(2_000_000) == "~2 MB"
    assert Need(1, None, 5, exact=True).told(2_000_000) == "2 MB"
    assert Need(1, None, 5).told(None) == ""


def test_the_largest_models_that_fit_are_proposed(monkeypatch):
    """A model may take three fifths of what is free: of the GPU's memory for MLX."""
    takes = {"a": 59, "b": 60, "c": 61, "d": None, "e": 1, "f": 58, "g": 30, "h": 60}
    models = [spec(name=name, suggested=name != "f") for name in takes]
    models[-1].preferred_backend = lambda: "llamacpp"
    needs = {name: Need(1, memory, 5) for name, memory in takes.items()}
    backends = []
    monkeypatch.setattr(
        fitting, "need", lambda model, backend, _: backends.append(backend) or needs[model.name]
    )
    monkeypatch.setattr("localagent.hosts.memory.available_memory", lambda gpu: 100 if gpu else 99)

    def proposed(*most):
        return [(model.name, told) for model, told in proposals(models, store(), *most)]

    assert proposed() == [(name, needs[name]) for name in "bag"]
    assert [name for name, _ in proposed(9)] == ["b", "a", "g", "e"]
    assert [name for name, _ in proposed(1)] == ["b"]
    assert backends[:7] == ["mlx"] * 6 + ["llamacpp"], "only what is suggested is looked at"


# How a model is told of


@pytest.mark.parametrize(
    ("width", "name", "details", "lines"),
    [
        (80, "m", ["1 GB", "", "MIT"], ["  m" + " " * 39 + "1 GB, MIT"]),
        (80, "n" * 38, ["x"], ["  " + "n" * 38 + "  x"]),
        (80, "n" * 39, ["x"], ["  " + "n" * 39, "      x"]),
        (52, "m", ["0123456789"], ["  m" + " " * 39 + "0123456789"]),
        (51, "m", ["0123456789"], ["  m", "      0123456789"]),
        (20, "m", ["one two three four"], ["  m", "      one two three", "      four"]),
    ],
)
@pytest.mark.parametrize("aside", [True, False])
def test_a_line_for_a_model_or_more_where_there_is_no_room(
    monkeypatch, capsys, width, name, details, lines, aside
):
    monkeypatch.setattr(home, "table_width", lambda: width)
    home._tell(name, details, aside=aside)
    printed = capsys.readouterr()
    shown, other = (printed.err, printed.out) if aside else (printed.out, printed.err)
    assert (shown.splitlines(), other) == (lines, "")


@pytest.mark.parametrize(
    ("typed", "chosen", "asked"),
    [("\n", "a", 1), ("2\n", "b", 1), ("3\n0\nx\n-1\n²\n 1 \n", "a", 6), ("", None, 1)],
)
def test_one_of_several_names_is_chosen_by_its_number(monkeypatch, capsys, typed, chosen, asked):
    lines = iter([*typed.splitlines(keepends=True), ""])
    monkeypatch.setattr("sys.stdin", SimpleNamespace(readline=lambda: next(lines)))
    if chosen is None:
        with pytest.raises(UsageError, match="no model was chosen: name one with --model"):
            home.choose("Which one", ["a", "b"])
        assert capsys.readouterr().err.endswith("[1-2]: \n")
        return
    assert home.choose("Which one", ["a", "b"]) == chosen
    prompt = "Number, or Enter for 1 [1-2]: "
    assert capsys.readouterr().err == f"Which one:\n  1  a\n  2  b\n{prompt * asked}"


@pytest.fixture
def first_chat(monkeypatch, tmp_path):
    """A terminal with nothing here, where the second model that is offered is chosen."""
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    monkeypatch.delenv("LOCALAGENT_MODEL", raising=False)
    monkeypatch.setattr(home, "on_terminal", lambda: True)
    monkeypatch.setattr(home, "sys", SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(home, "_number", lambda most: most)
    monkeypatch.setattr(home, "table_width", lambda: 200)
    monkeypatch.setattr("localagent.hosts.memory.available_memory", lambda **_: 64 << 30)
    return monkeypatch


def test_a_first_chat_offers_the_default_and_the_best(first_chat, capsys):
    assert home.offer(ModelOptions(seed=3)) == ModelOptions(model="lfm2.5-2.6b", seed=3)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "No model is on this machine yet. Which one shall be fetched?"
    assert [line.split()[:2] for line in said[1:]] == [
        ["1", "smollm2-135m"], ["2", "lfm2-24b-a2b"], ["3", "lfm2.5-8b-a1b"], ["4", "lfm2.5-2.6b"],
    ]  # fmt: skip
    assert said[1].startswith("  1  smollm2-135m" + " " * 25 + "~98 MB, ~")
    first_chat.setattr("localagent.hosts.memory.available_memory", lambda **_: 1 << 20)
    assert home.offer(ModelOptions()) == ModelOptions(), "there is no choice"


@pytest.mark.parametrize(
    "how", ["model", "server", "variable", "default", "backend", "no terminal", "no stderr", "weights"]
)
def test_nobody_is_asked_who_has_chosen_or_cannot_answer(first_chat, tmp_path, capsys, how):
    options = {
        "model": ModelOptions(model="m"), "server": ModelOptions(url="http://a"), "backend": ModelOptions(backend="mlx"),
    }.get(how, ModelOptions())  # fmt: skip
    if how == "variable":
        first_chat.setenv("LOCALAGENT_MODEL", "m")
    elif how == "default":
        Preferences(default="m").write()
    elif how == "no terminal":
        first_chat.setattr(home, "on_terminal", lambda: False)
    elif how == "no stderr":
        first_chat.setattr(home, "sys", SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: False)))
    elif how == "weights":
        here = SimpleNamespace(sources={"mlx": object()})
        first_chat.setattr(home, "present", lambda _: [(here, "mlx")])
    assert home.offer(options) is options
    assert capsys.readouterr().err == ""


def test_a_server_that_is_none_is_not_named(first_chat):
    assert home.offer(ModelOptions(url="none")).model == "lfm2.5-2.6b"
