"""A side is a model with settings; what is no setting is refused in a line."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from localagent.errors import UsageError
from localagent.hosts.protocol import Prefilled, Token
from localagent.nano import GGUF
from localagent_bench.model import sides
from localagent_bench.model.sides import (
    Arrivals,
    Side,
    opened,
    quantized,
    read_settings,
    resident,
    weights_of,
)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        *(("constraint=auto", "constraint", "auto"), ("constraint=off", "constraint", "off")),
        *(("thinking=on", "thinking", True), ("thinking=low", "thinking", "low")),
        *(("thinking=medium", "thinking", "medium"), ("thinking=high", "thinking", "high")),
        *(("dialect=plain", "dialect", "plain"), ("context=512", "context", 512)),
        *(("prefix_cache=0", "prefix_cache", 0), ("max_tokens=9", "max_tokens", 9), ("seed=7", "seed", 7)),
        *(("top_k=3", "top_k", 3), ("top_p=0.9", "top_p", 0.9), ("min_p=1", "min_p", 1.0)),
    ],
)
def test_each_setting_has_its_kind_of_value(text, key, value):
    (read,) = read_settings(text).items()
    assert (*read, type(read[1])) == (key, value, type(value))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("threads=many", "threads=many: it must be a whole number"),
        ("top_k=1.5", "top_k=1.5: it must be a whole number"),
        ("temperature=warm", "temperature=warm: it must be a number"),
        ("constraint=on", "constraint=on: it must be auto, off, required"),
        ("thinking=auto", "thinking=auto: it must be on, off, low, medium, high"),
        (
            "colour=red",
            "colour=red is no setting: write KEY=VALUE with constraint, backend, dialect, context, threads, ",
        ),
    ],
)
def test_a_wrong_setting_is_told_what_it_must_be(text, says):
    with pytest.raises(UsageError) as refused:
        read_settings(text)
    assert str(refused.value).startswith(says)


def test_settings_are_read_as_what_they_are():
    assert read_settings("threads=1, temperature=0.5,thinking=off,backend=mlx,constraint=required") == {
        "threads": 1,
        "temperature": 0.5,
        "thinking": False,
        "backend": "mlx",
        "constraint": "required",
    }


@pytest.mark.parametrize(
    "text",
    [
        *("", "threads", "threads=", "threads=many", "threads=1.5", "=1", "nothing=1", "temperature=warm"),
        *("constraint=sometimes", "thinking=2", "threads=1,,", "logprobs=1", "stop=x", "\x1b[31m=1"),
    ],
)
def test_what_is_no_setting_is_refused_in_a_line(text):
    with pytest.raises(UsageError) as refused:
        read_settings(text)
    assert str(refused.value).isprintable()


def test_a_side_knows_what_is_for_loading_and_what_for_turns():
    side = Side("models/tiny.gguf").with_settings(
        read_settings("threads=1,temperature=0.5,constraint=required")
    )
    assert side.name == "tiny threads=1 temperature=0.5 constraint=required"
    assert side.loading == {"threads": 1}
    assert side.turn == {"temperature": 0.5, "tool_choice": "required"}
    assert side.with_settings({"constraint": "off"}).turn == {"temperature": 0.5}
    assert Side("lfm2-nano").constraint == "auto"
    shared = Side("lfm2-nano", common=(("threads", 1), ("backend", "mlx"))).with_settings({"threads": 2})
    assert (shared.name, shared.loading) == ("lfm2-nano threads=2", {"threads": 2, "backend": "mlx"})


def test_a_side_is_called_by_its_file_and_its_own_settings():
    own = read_settings("thinking=off,constraint=off,seed=3")
    assert (
        Side("/models/tiny.Q4.gguf", tuple(own.items())).name == "tiny.Q4 thinking=off constraint=off seed=3"
    )
    assert Side("x", (("thinking", True),)).name == "x thinking=on"
    assert Side("x", (("thinking", True), ("seed", 3)), (("top_k", 1),)).turn == {
        "thinking": True,
        "seed": 3,
        "top_k": 1,
    }
    assert Side("x", (), (("constraint", "required"),)).constraint == "required"


class Loaded:
    """A model that is open until its block ends."""

    def __init__(self, name):
        self.name, self.open, self.host = name, True, SimpleNamespace(name=name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.open = False


def test_sides_with_the_same_weights_share_them_and_all_are_freed_at_the_end(monkeypatch):
    grown, clock, asked = itertools.count(0, 1000), itertools.count(0.0, 2.0), []
    monkeypatch.setattr(sides, "resident", lambda: next(grown))
    monkeypatch.setattr(sides, "perf_counter", lambda: next(clock))

    def load(model, options):
        asked.append((model, options))
        return Loaded(model)

    wanted = [
        Side("lfm2-nano"),
        Side("lfm2-nano", (("seed", 1),)),
        Side("lfm2-nano", (("threads", 2),)),
        Side("b"),
    ]
    with opened(wanted, load) as found:
        assert asked == [("lfm2-nano", {}), ("lfm2-nano", {"threads": 2}), ("b", {})]
        assert [each.side for each in found] == wanted
        assert [each.name for each in found] == [side.name for side in wanted]
        assert [each.own for each in found] == [True, False, True, True]
        assert [each.seconds for each in found] == [2, None, 2, 2]
        assert {each.grown for each in found} == {1000}
        assert [each.nano for each in found] == [True, True, True, False]
        assert found[0].model is found[1].model
        assert found[0].model is not found[2].model
        models = [each.model for each in found]
        assert all(model.open for model in models)
        models[3].host.name, models[3].name = "other", "lfm2-nano"
        assert found[3].nano, "however it was loaded"
    assert not any(model.open for model in models)


def test_a_host_that_is_watched_notes_when_each_token_comes(monkeypatch):
    clock = itertools.count(5.0)
    monkeypatch.setattr(sides, "perf_counter", lambda: next(clock))
    steps = [Prefilled(1, 2, 0), Token(1, "a", special=False), Token(2, "b", special=False)]
    made = SimpleNamespace(steps=lambda: iter(steps), finish="the end")
    host = SimpleNamespace(
        generate=lambda *given: asked.append(given) or made, vocabulary="words", engine="e"
    )
    asked = []
    watched = Arrivals(host)
    generation = watched.generate("prompt", "sampling", None)
    assert list(generation.steps()) == steps
    assert watched.times == [5, 6]
    assert (generation.finish, watched.engine, asked) == ("the end", "e", [("prompt", "sampling", None)])
    assert (watched.vocabulary, Arrivals(host, bounded=False).vocabulary) == ("words", None)
    watched.generate("prompt")
    assert watched.times == [], "of the last one"


@pytest.mark.parametrize(
    ("config", "found"), [('{"quantization": {"bits": 4}}', True), ("{}", False), ("{", None), (None, None)]
)
def test_a_folder_says_whether_its_weights_are_quantized(config, found, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(sides, "weights_of", lambda *given: asked.append(given) or tmp_path)
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert quantized("x", "mlx") is found
    assert asked == [("x", "mlx")]


def test_weights_are_found_on_this_machine_alone(tmp_path, monkeypatch):
    assert (quantized("lfm2-nano", "llamacpp"), quantized("lfm2-nano", "mlx")) == (False, False)
    assert weights_of("lfm2-nano", "llamacpp") == GGUF
    assert weights_of(str(GGUF), None) == GGUF
    asked = []
    monkeypatch.setattr(
        "localagent.model.locate", lambda *given, **more: asked.append((given, more)) or ("spec", "mlx")
    )
    monkeypatch.setattr("localagent.store.WeightStore.find", lambda self, *given: given)
    assert weights_of("x", "mlx") == ("spec", "mlx")
    assert asked == [(("x", "mlx"), {"offline": True})]
    monkeypatch.setattr(sides, "weights_of", lambda *_: None)
    assert quantized("x", None) is None


def test_memory_is_that_of_this_process():
    assert 10**7 < resident() < 10**11


def test_sides_that_could_not_be_told_apart_are_refused():
    def load(*_: object) -> None:
        raise AssertionError("nothing is loaded")

    with (
        pytest.raises(UsageError, match=r"^two sides are both a: they would not be told apart$"),
        opened([Side("a"), Side("b"), Side("a")], load),  # type: ignore[arg-type]
    ):
        pass
