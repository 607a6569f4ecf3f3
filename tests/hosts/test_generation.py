"""One generation on an engine whose state is known: what comes out, what is kept, and how it fails."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Generator
from typing import Any

import numpy
import pytest

from localagent.agent import Agent, RunFailed
from localagent.errors import ContextOverflow, EngineFailed, UsageError
from localagent.hosts import generation as module
from localagent.hosts.generation import Step, cut, generate
from localagent.hosts.prefix import PrefixCache
from localagent.hosts.protocol import Finish, Prefilled, Prompt, Token
from localagent.hosts.sampling import Sampling
from localagent.messages.usage import Timings
from localagent.model import Model
from localagent.turn import BrokenOff
from parsers import DIALECTS, Text
from tests.hosts.prefix.chain import folded
from tests.hosts.speaking import END, START, Bytes, Speaking, SpeakingEngine, failing, speaking_host

IDS = [*b"a prompt of more than three chunks: each of them has sixteen tokens"]
HELLO = [*b"hello"]


def start(
    sequence: Speaking,
    sampling: Sampling | None = None,
    ids: list[int] = IDS,
    cancelled: Any = None,
    **engine: Any,
) -> Generator[Step, None, Finish]:
    prefix = PrefixCache(sequence)
    asked = cancelled or (lambda: False)
    return generate(SpeakingEngine(sequence, **engine), prefix, ids, sampling or Sampling(), asked)


def run(
    steps: Generator[Step, None, Finish], between: Callable[[], object] = lambda: None
) -> tuple[list[Step], Finish]:
    """The steps, and what the generator returned."""
    found: list[Step] = []
    while True:
        try:
            found.append(next(steps))
        except StopIteration as end:
            return found, end.value
        between()


def texts(steps: list[Step]) -> list[str]:
    return [step.text for step in steps if isinstance(step, Token)]


# -- an engine that fails -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("works", "written"),
    [
        (failing("evaluate", 1), []),
        (failing("evaluate", 3), []),
        (failing("draw", 1), []),
        (failing("draw", 4), ["h", "e", "l"]),
    ],
)
def test_an_error_of_the_engine_is_told_and_nothing_it_holds_is_used_again(
    works: Any, written: list[str]
) -> None:
    sequence = Speaking(HELLO, works)
    prefix = PrefixCache(sequence)
    steps = generate(SpeakingEngine(sequence), prefix, IDS, Sampling(), lambda: False)
    found = []
    with pytest.raises(EngineFailed, match="gave up"):
        for step in steps:
            found.append(step)
    assert texts(found) == written
    assert (sequence.ids, prefix.resume(IDS)) == ([], 0)


@pytest.mark.parametrize(
    ("work", "at", "written"), [("evaluate", 2, None), ("draw", 1, None), ("draw", 4, "hel")]
)
def test_an_error_of_the_engine_is_never_the_end_of_an_answer(
    work: str, at: int, written: str | None
) -> None:
    with speaking_host(Speaking(HELLO, failing(work, at)), chunk=4) as host:
        model = Model(host, DIALECTS["plain"])
        events: list[Any] = []
        with pytest.raises(EngineFailed):
            events.extend(model.stream("What?"))
        kept = [event.message for event in events if isinstance(event, BrokenOff)]
        assert [message.text for message in kept] == ([written] if written else [])
        assert [message.stop_reason for message in kept] == (["error"] if written else [])
        assert model.respond("What?").text == "hello", "the next one begins afresh"


def test_a_run_whose_engine_fails_has_failed() -> None:
    with speaking_host(Speaking(HELLO, failing("draw", 4))) as host:
        history: list[Any] = []
        *events, last = Agent(Model(host, DIALECTS["plain"])).run("What?", history=history)
    assert "".join(event.text for event in events if isinstance(event, Text)) == "hel"
    assert isinstance(last, RunFailed)
    assert isinstance(last.error, EngineFailed)
    assert (history[-1].text, history[-1].stop_reason) == ("hel", "error")


def test_a_generation_that_failed_has_no_finish() -> None:
    with speaking_host(Speaking(HELLO, failing("draw", 2))) as host:
        generation = host.generate(Prompt((1, 2), ""), Sampling())
        assert next(generation).text == "h"
        with pytest.raises(EngineFailed):
            next(generation)
        assert generation.finish is None
        generation.close()
        assert generation.finish is None


# -- what comes out -----------------------------------------------------------------------------------


def test_progress_and_then_every_token_with_the_end() -> None:
    sequence = Speaking(HELLO)
    steps, finish = run(start(sequence))
    assert len(IDS) == 67
    assert steps[:5] == [Prefilled(done, 67, 0) for done in (0, 16, 32, 48, 64)]
    assert steps[5:] == [Bytes().piece(token).whole for token in (*HELLO, END)]
    assert dataclasses.replace(finish, timings=Timings()) == Finish("stop", 67, 0, 6)
    assert sequence.histories == [IDS]
    assert (sequence.closed, sequence.value) == (1, folded(sequence.ids))


def test_what_is_reused_is_not_evaluated() -> None:
    sequence = Speaking(HELLO)
    engine, prefix = SpeakingEngine(sequence), PrefixCache(sequence)
    run(generate(engine, prefix, IDS, Sampling(), lambda: False))
    before = sequence.evaluated
    again = [*IDS[:48], *b"!" * 20]
    steps, finish = run(generate(engine, prefix, again, Sampling(), lambda: False))
    assert [step for step in steps if isinstance(step, Prefilled)] == [
        Prefilled(48, 68, 48),
        Prefilled(64, 68, 48),
    ]
    assert (finish.cached, finish.prefilled) == (48, 20)
    assert sequence.evaluated - before == 20 + len(HELLO)


@pytest.mark.parametrize(
    ("most", "context", "written", "reason"),
    [
        (3, 1000, "hel", "length"),
        (5, 1000, "hello", "length"),
        (6, 1000, "hello<e>", "stop"),
        (None, 67, "h", "length"),
        (None, 69, "hel", "length"),
        (2, 69, "he", "length"),
        (9, 69, "hel", "length"),
    ],
)
def test_a_generation_ends_at_its_limit_or_at_the_context(
    most: int | None, context: int, written: str, reason: str
) -> None:
    """The context holds one token less than may be drawn: the last one is not evaluated."""
    steps, finish = run(start(Speaking(HELLO), Sampling(max_tokens=most), context_size=context))
    assert ("".join(texts(steps)), finish.stop_reason) == (written, reason)
    assert finish.generated == len(texts(steps))


def test_a_prompt_is_cut_behind_messages_and_at_the_size_of_a_chunk() -> None:
    ids = [1, 2, END, 3, 4, 5, 6, 7, 8, END, END, 9]
    engine = SpeakingEngine(Speaking(), chunk=4)
    whole = [(3, [1, 2, END]), (7, [3, 4, 5, 6]), (10, [7, 8, END]), (11, [END]), (12, [9])]
    assert cut(ids, 0, engine) == whole
    assert cut(ids, 7, engine) == whole[2:]
    assert cut([*ids, END], 11, engine) == [(13, [9, END])]


def test_characters_of_several_tokens_come_whole_also_at_the_end() -> None:
    steps, finish = run(start(Speaking([*"é".encode(), *"🦜".encode()[:3]]), Sampling(max_tokens=5)))
    assert texts(steps) == ["", "é", "", "", "\ufffd"]
    assert finish.generated == 5


# -- stopped ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stops", "written", "stop", "reason"),
    [
        (("llo",), "he", "llo", "stop"),
        (("x", "l"), "he", "l", "stop"),
        (("lx",), "hello<e>", None, "stop"),
        (("o<",), "hell", "o<", "stop"),
        (("lo!",), "hello", None, "length"),
    ],
)
def test_a_stop_string_ends_a_generation(
    stops: tuple[str, ...], written: str, stop: str | None, reason: str
) -> None:
    most = 5 if reason == "length" else None
    sequence = Speaking(HELLO)
    steps, finish = run(start(sequence, Sampling(stop=stops, max_tokens=most)))
    assert ("".join(texts(steps)), finish.stop, finish.stop_reason) == (written, stop, reason)
    assert sequence.closed == 1, "nothing more is drawn"


@pytest.mark.parametrize(("at", "evaluated"), [(1, 0), (2, 16), (3, 32)])
def test_cancelled_within_a_chunk_of_the_prompt(at: int, evaluated: int) -> None:
    """What the engine has of that chunk is not trusted; the chunks before it are."""
    asked = itertools.count(1)
    sequence = Speaking(HELLO)
    steps, finish = run(start(sequence, cancelled=lambda: next(asked) >= at))
    assert [type(step) for step in steps] == [Prefilled] * at
    assert (finish.stop_reason, finish.generated) == ("cancelled", 0)
    assert (len(sequence.ids), sequence.value) == (evaluated, folded(IDS[:evaluated]))


def test_cancelled_within_the_last_chunk() -> None:
    asked = itertools.count(1)
    sequence = Speaking(HELLO)
    steps, finish = run(start(sequence, cancelled=lambda: next(asked) >= 5))
    assert texts(steps) == []
    assert (finish.stop_reason, finish.generated, len(sequence.ids)) == ("cancelled", 0, 64)
    assert sequence.closed == 1


def test_cancelled_between_tokens() -> None:
    sequence = Speaking(HELLO)
    written: list[Step] = []
    steps = start(sequence, cancelled=lambda: len(texts(written)) == 2)
    while True:
        try:
            written.append(next(steps))
        except StopIteration as end:
            finish = end.value
            break
    assert texts(written) == ["h", "e"]
    assert (finish.stop_reason, finish.generated, sequence.closed) == ("cancelled", 2, 1)


# -- what it says of itself ---------------------------------------------------------------------------


def test_timings_are_the_engines_and_leave_the_reader_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def work(done: str) -> None:
        nonlocal now
        now += {"evaluate": 1.0, "draw": 0.5}[done]

    def read() -> None:
        nonlocal now
        now += 1000.0

    monkeypatch.setattr(module, "perf_counter", lambda: now)
    _, finish = run(start(Speaking(HELLO, work)), read)
    assert finish.timings == Timings(prefill=5 * 1.0 + 0.5, decode=5 * 0.5)


def test_every_token_has_its_own_log_probability_also_one_that_was_held_back() -> None:
    said = [*"é".encode(), 70, *"🦜".encode()[:2]]
    steps, _ = run(start(Speaking(said), Sampling(logprobs=2, max_tokens=5)))
    tokens = [step for step in steps if isinstance(step, Token)]
    assert [token.text for token in tokens] == ["", "é", "F", "", "\ufffd"]
    likely = [(len(IDS) + number) % 200 for number in range(5)]
    assert [token.logprobs.top for token in tokens] == [((each, -0.5), (0, -9.0)) for each in likely]  # type: ignore[union-attr]
    assert [token.logprobs.token for token in tokens] == [-9.0, -9.0, -9.0, -9.0, -9.0]  # type: ignore[union-attr]
    steps, _ = run(start(Speaking([67]), Sampling(logprobs=0, max_tokens=1)))
    assert [token.logprobs for token in steps if isinstance(token, Token)] == [module.Logprobs(-0.5, ())]


def test_the_likeliest_come_in_order_and_of_equals_the_lower_id() -> None:
    scores = numpy.array([-3.0, -1.0, -math.inf, -1.0, -2.0], dtype=numpy.float32)
    assert module._score(scores, 4, 4) == module.Logprobs(-2.0, ((1, -1.0), (3, -1.0), (4, -2.0), (0, -3.0)))


# -- what a host refuses before it computes -----------------------------------------------------------


def test_prompts_that_cannot_be_read() -> None:
    sequence = Speaking(HELLO)
    with speaking_host(sequence, context_size=8) as host:
        for ids, says in (((), "empty"), ((1, 260), "outside the vocabulary of 260"), ((-1,), "outside")):
            with pytest.raises(UsageError, match=says):
                host.generate(Prompt(ids, ""), Sampling())
        with pytest.raises(ContextOverflow):
            host.generate(Prompt((1,) * 9, ""), Sampling())
        assert sequence.evaluated == 0
        assert texts(list(host.generate(Prompt((0, START, *[1] * 6), ""), Sampling()).steps())) == ["h"]
