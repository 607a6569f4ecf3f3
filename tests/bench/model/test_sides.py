"""A side is a model with settings; what is no setting is refused in a line."""

from __future__ import annotations

import pytest

from localagent.bench.model.sides import Side, opened, read_settings
from localagent.errors import UsageError


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


def test_sides_that_could_not_be_told_apart_are_refused():
    def load(*_: object) -> None:
        raise AssertionError("nothing is loaded")

    with (
        pytest.raises(UsageError, match="told apart"),
        opened([Side("a"), Side("b"), Side("a")], load),  # type: ignore[arg-type]
    ):
        pass
