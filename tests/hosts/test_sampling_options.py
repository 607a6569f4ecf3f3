"""The options of sampling are said once: what depends on them names the same ones, with the same defaults."""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

import pytest

from localagent.catalog import SamplingDefaults
from localagent.cli.options import ModelOptions
from localagent.errors import UsageError
from localagent.hosts.sampling import MOST_LOGPROBS, Sampling, SamplingOptions

DEFAULTS = {each.name: each.default for each in fields(Sampling)}
NUMBERS = [each for each in fields(Sampling) if each.metadata]


def test_type_checkers_see_the_options_that_there_are():
    assert list(get_type_hints(SamplingOptions)) == list(DEFAULTS)
    taken, given = get_type_hints(Sampling), get_type_hints(SamplingOptions)
    wider = {"stop", "logit_bias"}  # than what is kept of them
    assert {name: taken[name] for name in taken if name not in wider} == {
        name: given[name] for name in given if name not in wider
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {5: 101},
        {5: float("nan")},
        {-1: 1},
        {True: 1},
        {5: True},
        [(5,)],
        [[5, 1]],
        5,
        True,
        dict.fromkeys(range(301), 1),
    ],
)
def test_a_bias_is_a_number_for_a_token(wrong):
    with pytest.raises(UsageError, match=r"^logit_bias is .*: it must be at most 300 token ids"):
        Sampling(logit_bias=wrong)


def test_biases_are_kept_as_pairs():
    sampling = Sampling(logit_bias={5: -100, 7: 2.5})
    assert sampling.logit_bias == ((5, -100), (7, 2.5)) == Sampling(logit_bias=sampling.logit_bias).logit_bias
    assert sampling.biases == ([5, 7], [-1e9, 2.5])
    assert Sampling(logit_bias=None) == Sampling() and hash(sampling)


def test_the_catalogue_has_the_same_defaults_and_types():
    types = get_type_hints(Sampling)
    for name, field in SamplingDefaults.model_fields.items():
        assert (field.default, field.annotation) == (DEFAULTS[name], types[name])


def test_the_command_line_has_options_of_the_same_names():
    assert set(ModelOptions(max_tokens=1, temperature=0.5, seed=3).of_turns()) <= set(DEFAULTS)


@pytest.mark.parametrize("field", NUMBERS, ids=lambda field: field.name)
def test_an_option_says_what_it_means_and_refuses_what_it_cannot_be(field):
    assert field.metadata["meaning"].endswith(".")
    for value in ("1", True, float("nan"), float("inf"), [1]):
        with pytest.raises(UsageError, match=f"^{field.name} is .*: it must be a (whole )?number"):
            Sampling(**{field.name: value})
    assert getattr(Sampling(**{field.name: field.default}), field.name) == field.default


@pytest.mark.parametrize(
    ("name", "wrong", "range_"),
    [
        ("max_tokens", 0, "a whole number, at least 1"),
        ("temperature", None, "a number, at least 0"),
        ("top_k", 1.0, "a whole number, at least 1"),
        ("top_p", 0, "a number, above 0 and at most 1"),
        ("top_p", 1.01, "a number, above 0 and at most 1"),
        ("min_p", 1, "a number, at least 0 and below 1"),
        ("repetition_penalty", 0.0, "a number, above 0"),
        ("seed", 0.5, "a whole number"),
        ("logprobs", 21, "a whole number, at least 0 and at most 20"),
    ],
)
def test_a_refusal_names_the_range(name, wrong, range_):
    with pytest.raises(UsageError) as caught:
        Sampling(**{name: wrong})
    assert str(caught.value) == f"{name} is {str(wrong)!r}: it must be {range_}"


def test_the_ends_of_the_ranges():
    Sampling(max_tokens=1, temperature=0, top_p=1, min_p=0.0, seed=-(10**30), logprobs=MOST_LOGPROBS)
    Sampling(top_p=1e-9, repetition_penalty=1e-9, min_p=0.999, logprobs=0, top_k=1, temperature=1e9)
    for wrong in (
        {"logprobs": -1},
        {"min_p": -0.001},
        {"top_p": -0.5},
        {"temperature": -0.001},
        {"top_k": 0},
    ):
        with pytest.raises(UsageError):
            Sampling(**wrong)


@pytest.mark.parametrize(
    ("stop", "kept"),
    [("END", ("END",)), (["a", "b"], ("a", "b")), (("a",), ("a",)), (None, ()), ([], ())],
)
def test_stops_in_any_form(stop, kept):
    assert Sampling(stop=stop).stop == kept


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [1], 7, {"a": 1}, ("a", None), b"a"])
def test_what_cannot_be_a_stop(stop):
    with pytest.raises(UsageError, match=r"^stop is .*: it must be a list of texts, none of them empty"):
        Sampling(stop=stop)


def test_a_refusal_is_short():
    with pytest.raises(UsageError) as caught:
        Sampling(seed="x" * 1000)
    assert len(str(caught.value)) < 150


def test_the_command_line_has_the_ranges_too():
    from typer.main import get_command

    from localagent.cli.app import app

    parameters = {each.name: each for each in get_command(app).commands["run"].params}
    assert [parameters[name].min for name in ("max_tokens", "temperature", "seed")] == [1, 0, None]
    for name in ("max_tokens", "temperature", "seed"):
        assert parameters[name].help.startswith(Sampling.__dataclass_fields__[name].metadata["meaning"])
