"""Drafts from the prompt: when there is one, when it pays, and that it changes no token."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from localagent.errors import EngineFailed
from localagent.hosts.host import Reuse
from localagent.hosts.llamacpp.engine import LlamaCppEngine, Options
from localagent.hosts.llamacpp.gguf import read_header
from localagent.hosts.llamacpp.host import LlamaCppHost, _batch_exact
from localagent.hosts.llamacpp.lanes import Context
from localagent.hosts.llamacpp.prefill import Prefill
from localagent.hosts.lookup import PromptLookup
from localagent.hosts.protocol import Token
from localagent.hosts.sampling import Sampling
from localagent.nano.requests import KINDS, make_requests
from localagent_bench.training.measure import _messages
from tests.conftest import LONG
from tests.hosts.speaking import Speaking, failing
from tests.hosts.stepping import Stepping

WORDS = [*b"one two three four five six seven eight nine ten"]


def lookup(ids: list[int], plain: float = 1.0) -> PromptLookup:
    """One that has seen a token come alone."""
    made = PromptLookup(ids)
    made.took(plain)
    return made


# -- what is drafted ----------------------------------------------------------------------------------


def test_what_followed_the_last_tokens_earlier_is_the_draft() -> None:
    made = lookup([*WORDS, *b"? thr"])
    assert bytes(made.draft(9)) == b"ee "
    made.drawn([*b"ee f"])
    assert bytes(made.draft(9)) == b"our"


def test_of_several_places_the_last_one_counts() -> None:
    assert bytes(lookup([*b"abcdef abcxyz abc"]).draft(9)) == b"xyz"


@pytest.mark.parametrize("ids", [[], [1, 2], [1, 2, 3], [1, 2, 3, 4, 5, 6, 7]])
def test_without_a_place_that_says_more_there_is_no_draft(ids: list[int]) -> None:
    assert list(lookup(ids).draft(9)) == []


def test_a_draft_is_never_longer_than_what_may_still_come() -> None:
    made = lookup([*b"abcdefgh abc"])
    assert [len(made.draft(most)) for most in (0, 2, 3, 9)] == [0, 0, 3, 3]


def test_nothing_is_drafted_before_a_token_alone_was_timed() -> None:
    assert list(PromptLookup([*b"abcdefgh abc"]).draft(9)) == []


# -- whether it pays ----------------------------------------------------------------------------------


def test_drafts_that_are_right_grow_and_drafts_that_are_wrong_shrink() -> None:
    made = lookup([*b"abcdefghijklmnopqrstuvwxyz abc"])
    made.took(1.5, 3, 4)
    assert len(made.draft(99)) == 6
    made.took(1.5, 6, 7)
    assert len(made.draft(99)) == 12
    made.took(1.5, 12, 13)
    assert len(made.draft(99)) == 12
    made.took(1.5, 12, 2)
    assert len(made.draft(99)) == 6


def pause(made: PromptLookup) -> int:
    """How many tokens are drawn until there is a draft again; the text stays as it is."""
    for count in range(1000):
        if made.draft(9):
            return count
        made.drawn([7])
        made._ids.pop()
    raise AssertionError("it is given up")


@pytest.mark.parametrize(("seconds", "tokens"), [(4.0, 0), (4.01, 8)])
def test_the_first_draft_pays_or_is_followed_by_a_pause(seconds: float, tokens: int) -> None:
    made = lookup([*b"abcdefgh abc"])
    made.took(seconds, 3, 4)
    assert pause(made) == tokens


def test_pauses_grow_until_a_draft_pays() -> None:
    made, found = lookup([*b"abcdefgh abc"]), []
    for _ in range(8):
        made.took(9.0, 3, 1)
        found.append(pause(made))
    assert found == [8, 16, 32, 64, 128, 256, 512, 512]
    made.took(0.5, 3, 4)
    made.took(99.0, 3, 1)
    assert pause(made) == 8


def test_what_was_measured_last_counts_for_a_fifth() -> None:
    for seconds, tokens in ((4.79, 0), (4.81, 8)):  # four times 1.2
        made = lookup([*b"abcdefgh abc"])
        made.took(2.0)
        made.took(seconds, 3, 4)
        assert pause(made) == tokens
    for seconds, tokens in ((7.99, 0), (8.01, 8)):  # what is over from the first, 1.0, pays for the second
        made = lookup([*b"abcdefgh abc"])
        made.took(-1.0, 3, 4)  # five seconds saved, of which one counts
        made.took(seconds, 3, 4)
        assert pause(made) == tokens


def test_what_does_not_pay_is_tried_less_and_less_but_never_given_up() -> None:
    made = lookup([*b"abcdefgh abc"])
    tried = []
    for number in range(4000):
        if made.draft(9):
            tried.append(number)
            made.took(5.0, 3, 1)
        made.drawn([*b"abc"])
        made._ids[-3:] = []  # the text stays as it is: only the count of tokens goes on
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 20 * gaps[0]
    assert len(tried) > 10


# -- in the scheduler -----------------------------------------------------------------------------------


STORY = [*b"one two three four five six"]


def test_one_that_is_alone_is_drafted_for_and_many_are_not() -> None:
    engine = Speaking(STORY, drafts=True, lanes=2)
    stepping = Stepping(engine)
    alone = stepping.ask(WORDS)
    stepping.run()
    assert alone.text == "one two three four five six<e>"
    assert ("verify", (0,)) in engine.log
    assert alone.finish.generated == len(STORY) + 1
    both = [stepping.ask(WORDS) for _ in range(2)]
    while not all(each.tokens for each in both):
        stepping.step()
    engine.log.clear()
    for _ in range(9):
        stepping.step()
    assert {what for what, _ in engine.log} == {"draw"}
    stepping.run()
    assert [each.text for each in both] == ["one two three four five six<e>"] * 2


@pytest.mark.parametrize("most", range(1, 20))
def test_a_limit_holds_within_a_draft(most: int) -> None:
    engine = Speaking(STORY, drafts=True)
    stepping = Stepping(engine)
    asked = stepping.ask(WORDS, Sampling(max_tokens=most))
    stepping.run()
    assert (asked.ids, asked.finish.stop_reason) == (STORY[:most], "length")
    [lane] = engine.lanes
    assert len(lane.ids) <= len(WORDS) + most, "no more is evaluated than was drawn"


def test_a_stop_string_within_a_draft_ends_it() -> None:
    stepping = Stepping(Speaking(STORY, drafts=True))
    asked = stepping.ask(WORDS, Sampling(stop=("ee fo",)))
    stepping.run()
    assert (asked.text, asked.finish.stop) == ("one two thr", "ee fo")


def test_log_probabilities_are_those_of_single_tokens() -> None:
    engine = Speaking(STORY, drafts=True)
    stepping = Stepping(engine)
    asked = stepping.ask(WORDS, Sampling(logprobs=1))
    stepping.run()
    assert all(token.logprobs for token in asked.tokens)
    assert "verify" not in {what for what, _ in engine.log}


def test_a_draft_that_fails_ends_the_generation_and_empties_the_lane() -> None:
    engine = Speaking(STORY, failing("draw", 9), drafts=True)
    stepping = Stepping(engine)
    asked = stepping.ask(WORDS)
    stepping.run()
    assert asked.outcome is EngineFailed
    assert "verify" in {what for what, _ in engine.log}
    assert (engine.lanes[0].ids, stepping.busy) == ([], 0)


# -- on real weights ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host(nano: dict[str, Path]) -> Iterator[LlamaCppHost]:
    with LlamaCppHost.load(nano["llamacpp"], context=2048, threads=1, reuse=Reuse(0)) as loaded:
        yield loaded


def turns(host: LlamaCppHost, count: int, **sampling: object) -> list[list[Token]]:
    """What the model writes to so many requests of every kind."""
    requests = [request for kind in KINDS for request in make_requests(kind, count, 31)]
    prompts = [host.render(list(_messages(request)), request.tools or None) for request in requests]
    return [list(host.generate(prompt, Sampling(max_tokens=120, **sampling))) for prompt in prompts]


@pytest.mark.parametrize("sampling", [{}, {"repetition_penalty": 1.1}])
def test_every_token_is_that_without_drafts(
    host: LlamaCppHost, monkeypatch: pytest.MonkeyPatch, sampling: dict[str, object]
) -> None:
    came: list[int] = []
    took = PromptLookup.took

    def counted(self: PromptLookup, seconds: float, drafted: int = 0, tokens: int = 1) -> None:
        if drafted:
            came.append(tokens)
        # A draft that costs nothing always pays, so there are as many as there can be.
        took(self, 0.0 if drafted else 1.0, drafted, tokens)

    with monkeypatch.context() as drafting:
        drafting.setattr(PromptLookup, "took", counted)
        drafted = turns(host, 20 if LONG else 3, **sampling)
    assert len(came) > 20
    assert sum(came) > 1.5 * len(came), "some of them are right"
    assert min(came) == 1, "and some are wrong from the first token on"
    monkeypatch.setattr(PromptLookup, "draft", lambda *_: ())
    assert turns(host, 20 if LONG else 3, **sampling) == drafted


def test_quantized_weights_are_drafted_for_where_a_batch_changes_nothing(gguf: Path) -> None:
    """Flash attention takes each row by itself."""
    engine = LlamaCppEngine(gguf, Options(512, 1, chunk=64))
    try:
        ids = engine.vocabulary.tokenize("one two three four five six seven one two three", special=False)
        stepping = Stepping(engine, budget=0)
        asked = stepping.ask(ids, Sampling(max_tokens=24))
        asked.job.lookup = lookup([*ids], 1000.0)
        stepping.run()
        assert engine.lanes[0]._context.exact is True
        alone = stepping.ask(ids, Sampling(max_tokens=24))
        alone.job.lookup = None
        stepping.run()
        assert asked.ids == alone.ids
    finally:
        engine.close()


def test_a_batch_that_changes_logits_is_noticed_and_nothing_more_is_drafted(
    gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LlamaCppEngine(gguf, Options(512, 1, chunk=64))
    logits = Context.logits

    def another(self: Context, rows: int) -> Any:
        return logits(self, rows) + (1e-6 if rows > 1 else 0)

    try:
        ids = engine.vocabulary.tokenize("one two three four five six seven one two three", special=False)
        stepping = Stepping(engine, budget=0)
        with monkeypatch.context() as changed:
            changed.setattr(Context, "logits", another)
            asked = stepping.ask(ids, Sampling(max_tokens=24))
            asked.job.lookup = lookup([*ids], 1000.0)
            stepping.run()
        assert engine.lanes[0]._context.exact is False
        assert asked.finish.generated == 24
        alone = stepping.ask(ids, Sampling(max_tokens=24))
        alone.job.lookup = None
        stepping.run()
        assert asked.ids == alone.ids
    finally:
        engine.close()


def test_who_may_be_drafted_for(gguf: Path, nano: dict[str, Path]) -> None:
    small, large = read_header(nano["llamacpp"]), read_header(gguf)
    assert _batch_exact(small, Prefill(256, 256, flash=False, divisible=False), offloads=False) is True
    assert _batch_exact(large, Prefill(32, 32, flash=False, divisible=False), offloads=False) is False
    assert _batch_exact(large, Prefill(64, 64, flash=True, divisible=False), offloads=False) is False
    assert _batch_exact(small, Prefill(64, 64, flash=True, divisible=False), offloads=False) is False
    assert _batch_exact(small, Prefill(256, 256, flash=True, divisible=False), offloads=True) is None
