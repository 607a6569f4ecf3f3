"""One generation as a state machine: what it needs, what it answers, and how it ends."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.agent import Agent, RunFailed
from localagent.errors import ContextOverflow, EngineFailed, UsageError
from localagent.hosts import generation as module
from localagent.hosts import scheduler
from localagent.hosts.generation import Cuts, GenerationState, stops
from localagent.hosts.protocol import Finish, Logprobs, Prefilled, Prompt, Token
from localagent.hosts.sampling import Sampling
from localagent.messages.usage import Timings
from localagent.model import Model
from localagent.turn import BrokenOff
from parsers import DIALECTS, Text
from tests.hosts.prefix.chain import folded
from tests.hosts.speaking import END, HEL, LO, START, Bytes, Speaking, SpeakingLane, failing, speaking_host
from tests.hosts.stepping import Asked, Stepping

IDS = [*b"a prompt of more than three chunks: each of them has sixteen tokens"]
HELLO = [*b"hello"]


def run(engine: Speaking, sampling: Sampling | None = None, ids: list[int] = IDS) -> Asked:
    """The only generation on an engine, from its beginning to its end."""
    stepping = Stepping(engine)
    asked = stepping.ask(ids, sampling)
    stepping.run()
    assert stepping.busy == 0
    return asked


def test_what_it_will_have_read_of_another_prompt_is_yet_to_come() -> None:
    """What is read already is found in its lane."""
    ids = [number % 200 for number in range(60)]
    generation = GenerationState(ids, Sampling(), Bytes(), 1000, Cuts(None, None))
    generation.resume(0)
    for shared, comes in ((15, 0), (16, 16), (40, 40), (60, 60)):
        assert generation.will_reach([*ids[:shared], 250, 251, 252]) == comes
    assert generation.evaluated(40) == []
    for shared, comes in ((16, 0), (40, 0), (41, 41)):
        assert generation.will_reach([*ids[:shared], 250, 251, 252]) == comes


def texts(tokens: Any) -> list[str]:
    return [token.text for token in tokens if isinstance(token, Token)]


# -- the machine by itself ----------------------------------------------------------------------------


def fresh(ids: list[int] = IDS, context: int = 1000, chunk: int = 16, **sampling: Any) -> GenerationState:
    return GenerationState(ids, Sampling(**sampling), Bytes(), context, Cuts(chunk, chunk))


def unasked() -> Any:
    raise AssertionError("nobody asked for log-probabilities")


@pytest.mark.parametrize("cached", [0, 5, 16, 66])
def test_it_asks_for_its_prompt_chunk_by_chunk(cached: int) -> None:
    generation = fresh()
    generation.resume(cached)
    found, progress = [], []
    while not generation.whole:
        size = generation.size(7)
        assert generation.takes(size)
        assert generation.size(100) == size, "asking for more or less changes nothing"
        progress.append(generation.progress())
        found.append(list(generation.chunk(size)))
        generation.evaluated(size)
    assert [token for chunk in found for token in chunk] == IDS[cached:]
    assert {len(chunk) for chunk in found[:-1]} <= {16}
    done = [cached + sum(map(len, found[:count])) for count in range(len(found))]
    assert progress == [Prefilled(each, len(IDS), cached) for each in done]
    assert generation.ended is None


def test_it_answers_every_token_until_it_has_ended() -> None:
    generation = fresh()
    generation.resume(0)
    for token in HELLO:
        assert generation.drawn(token, unasked) == (Bytes().piece(token).whole,)
        assert generation.ended is None
    assert texts(generation.drawn(END, unasked)) == ["<e>"]
    assert generation.ended == "stop"
    generation.cached, generation.prefill, generation.decode = 7, 1.5, 2.5
    assert generation.finish() == Finish("stop", 67, 7, 6, Timings(prefill=1.5, decode=2.5))


@given(
    said=st.lists(
        st.one_of(st.integers(0, 255), st.sampled_from([HEL, LO, START, *"é🦜".encode()])), max_size=20
    ),
    stops=st.lists(st.sampled_from(["hel", "lo", "o<s>", "é", "\ufffd", "ab"]), max_size=2),
    most=st.one_of(st.none(), st.integers(1, 12)),
    scored=st.booleans(),
    left=st.one_of(st.none(), st.integers(0, 20)),
)
def test_it_answers_every_token_once_in_order_whatever_holds_it_back(
    said: list[int], stops: list[str], most: int | None, scored: bool, left: int | None
) -> None:
    """Characters of several tokens, stop strings, scores, a limit, and a reader that leaves."""
    generation = fresh(stop=tuple(stops), max_tokens=most, logprobs=0 if scored else None)
    generation.resume(66)
    found: list[Token] = []
    drawn: list[int] = []
    for token in [*said, END]:
        if len(drawn) == left:
            found += generation.cancelled()
            break
        drawn.append(token)
        scores = numpy.full(Bytes.size, -float(len(drawn)), dtype=numpy.float32)
        found += generation.drawn(token, (lambda scores=scores: scores) if scored else unasked)
        if generation.ended is not None:
            break
    finish = generation.finish()
    assert finish.generated == len(drawn) <= (most or 99)
    assert [token.id for token in found] == drawn[: len(found)]
    piece = Bytes().piece
    whole = "".join(each.text for each in [*decoded(drawn, piece)])
    text = "".join(texts(found))
    if finish.stop is None:
        assert (len(found), text) == (len(drawn), whole)
        assert not any(stop in whole for stop in stops)
    else:
        assert finish.stop_reason == "stop"
        assert text == whole[: whole.index(finish.stop)]
        assert min(whole.index(stop) for stop in stops if stop in whole) == len(text)
    expected = [-(number + 1.0) for number in range(len(found))] if scored else [None] * len(found)
    assert [token.logprobs and token.logprobs.token for token in found] == expected


def decoded(ids: list[int], piece: Any) -> list[Token]:
    text = module.TokenText(piece)
    return [token for each in ids for token in text.feed(each)] + [*text.close()]


def test_a_prompt_is_cut_behind_messages_and_at_the_size_of_a_chunk() -> None:
    ids = [1, 2, END, 3, 4, 5, 6, 7, 8, END, END, 9]
    whole = [(3, True), (7, True), (10, True), (11, True), (12, False)]
    assert list(stops(ids, 0, Cuts(4, 4), Bytes())) == whole
    assert list(stops(ids, 7, Cuts(4, 4), Bytes())) == whole[2:]
    assert list(stops([*ids, END], 11, Cuts(4, 4), Bytes())) == [(13, True)]
    assert list(stops([1] * 11, 0, Cuts(4, 8), Bytes())) == [(4, False), (8, True), (11, False)]


def test_where_cuts_change_nothing_a_prompt_stops_only_for_its_checkpoints() -> None:
    ids = [1, 2, END, 3, 4, 5, 6, 7, 8, END, END, 9]
    marked = [(3, True), (7, True), (10, True), (11, True), (12, False)]
    assert list(stops(ids, 0, Cuts(None, 4), Bytes())) == marked
    assert list(stops(ids, 2, Cuts(None, None), Bytes())) == [(12, False)]


@given(
    st.lists(st.sampled_from([1, 2, END]), min_size=1, max_size=60),
    st.lists(st.integers(2, 20), min_size=1),
    st.sampled_from([None, 5, 16]),
)
def test_where_cuts_change_nothing_no_chunk_is_a_single_token(
    ids: list[int], wanted: list[int], spacing: int | None
) -> None:
    """But where two checkpoints, or the ends of the prompt, are no more apart."""
    generation = GenerationState(ids, Sampling(), Bytes(), 1000, Cuts(None, spacing))
    generation.resume(0)
    ends = [0, *(stop.end for stop in stops(ids, 0, Cuts(None, spacing), Bytes()))]
    found: list[int] = []
    position = 0
    while not generation.whole:
        size = generation.size(wanted[len(found) % len(wanted)])
        assert generation.takes(size)
        assert size <= max(wanted[len(found) % len(wanted)], 3)
        assert size > 1 or {position, position + 1} <= set(ends)
        found += generation.chunk(size)
        position += size
        assert bool(generation.evaluated(size)) == (
            position in ends
            and (spacing is not None)
            and (ids[position - 1] == END or position - max(e for e in ends if e < position) >= spacing)
        )
    assert found == ids


@given(
    st.lists(st.sampled_from([1, 1, 1, 2, END]), min_size=1, max_size=90),
    st.lists(st.integers(2, 20), min_size=1),
)
def test_short_chunks_reach_over_the_ends_of_messages(ids: list[int], wanted: list[int]) -> None:
    """Chunks of eight stay as they are, shorter ones are read in whatever pieces, and no checkpoint is lost."""
    cuts = Cuts(8, 8, short=8, over=True)
    generation = GenerationState(ids, Sampling(), Bytes(), 1000, cuts)
    generation.resume(0)
    plan = list(stops(ids, 0, cuts, Bytes()))
    whole = {(end - 8, end) for (start, _), (end, _) in pairwise([(0, False), *plan]) if end - start == 8}
    marked: list[int] = []
    pieces: set[tuple[int, int]] = set()
    turn = 0
    while not generation.whole:
        size = generation.size(wanted[turn % len(wanted)])
        assert generation.takes(size)
        begin, turn = generation.position, turn + 1
        marked += generation.evaluated(size)
        pieces.add((begin, begin + size))
    assert {piece for piece in pieces if piece[1] - piece[0] >= 8} == whole
    assert marked == [stop.end for stop in plan if stop.marked]


@given(st.lists(st.sampled_from([1, 2, END]), min_size=1, max_size=60), st.integers(1, 20))
def test_the_cuts_depend_on_the_prompt_alone(ids: list[int], size: int) -> None:
    """Wherever a prompt is entered at a cut, and whatever follows it, the other cuts are the same."""
    cuts = Cuts(size, size)
    whole = list(stops(ids, 0, cuts, Bytes()))
    ends = [0, *(stop.end for stop in whole)]
    assert ends[-1] == len(ids)
    assert all(0 < end - start <= size for start, end in pairwise(ends))
    for number, (end, _) in enumerate(whole[:-1], 1):
        assert list(stops(ids, end, cuts, Bytes())) == whole[number:]
    assert list(stops([*ids, 1], 0, cuts, Bytes()))[: len(whole) - 1] == whole[:-1]


# -- an engine that fails -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("works", "written"),
    [
        (failing("evaluate", 1), ""),
        (failing("evaluate", 3), ""),
        (failing("begin", 1), ""),
        (failing("draw", 1), ""),
        (failing("draw", 4), "hel"),
        (failing("step", 1), ""),
        (failing("step", 4), "hel"),
    ],
)
def test_an_error_of_the_engine_is_told_and_nothing_it_holds_is_used_again(works: Any, written: str) -> None:
    engine = Speaking(HELLO, works)
    stepping = Stepping(engine)
    asked = stepping.ask(IDS)
    stepping.run()
    assert (asked.text, asked.outcome) == (written, EngineFailed)
    assert (engine.lanes[0].ids, stepping.busy) == ([], 0)
    again = stepping.ask(IDS)
    stepping.run()
    assert (again.text, again.finish.cached) == ("hello<e>", 0)


@pytest.mark.parametrize(
    ("work", "at", "written"), [("evaluate", 2, None), ("draw", 1, None), ("draw", 4, "hel")]
)
def test_an_error_of_the_engine_is_never_the_end_of_an_answer(
    work: str, at: int, written: str | None
) -> None:
    with speaking_host(Speaking(HELLO, failing(work, at), chunk=4)) as host:
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
    engine = Speaking(HELLO)
    asked = run(engine)
    assert len(IDS) == 67
    assert asked.progress == [Prefilled(done, 67, 0) for done in (0, 16, 32, 48, 64)]
    assert asked.tokens == [Bytes().piece(token).whole for token in (*HELLO, END)]
    assert dataclasses.replace(asked.finish, timings=Timings()) == Finish("stop", 67, 0, 6)
    assert engine.histories == [IDS]
    [lane] = engine.lanes
    assert (engine.ended, lane.value) == (1, folded(lane.ids))


def test_what_is_reused_is_not_evaluated() -> None:
    engine = Speaking(HELLO)
    stepping = Stepping(engine)
    stepping.ask(IDS)
    stepping.run()
    before = engine.evaluated
    asked = stepping.ask([*IDS[:48], *b"!" * 20])
    stepping.run()
    assert asked.progress == [Prefilled(48, 68, 48), Prefilled(64, 68, 48)]
    assert (asked.finish.cached, asked.finish.prefilled) == (48, 20)
    assert engine.evaluated - before == 20 + len(HELLO)


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
    asked = run(Speaking(HELLO, context_size=context), Sampling(max_tokens=most))
    assert (asked.text, asked.finish.stop_reason) == (written, reason)
    assert asked.finish.generated == len(asked.tokens)


def test_characters_of_several_tokens_come_whole_also_at_the_end() -> None:
    asked = run(Speaking([*"é".encode(), *"🦜".encode()[:3]]), Sampling(max_tokens=5))
    assert texts(asked.tokens) == ["", "é", "", "", "\ufffd"]
    assert asked.finish.generated == 5


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
    engine = Speaking(HELLO)
    asked = run(engine, Sampling(stop=stops, max_tokens=most))
    finish = asked.finish
    assert (asked.text, finish.stop, finish.stop_reason) == (written, stop, reason)
    assert engine.ended == 1, "nothing more is drawn"


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_cancelled_within_a_chunk_of_the_prompt(at: int) -> None:
    """What the engine has of that chunk is not trusted; the chunks before it are. So it is in the last chunk."""
    left = at
    asked: Asked

    def works(done: str, _: SpeakingLane) -> None:
        nonlocal left
        left -= done == "evaluate"
        if left == 0:
            asked.cancel.set()

    engine = Speaking(HELLO, works)
    stepping = Stepping(engine)
    asked = stepping.ask(IDS)
    stepping.run()
    assert (len(asked.progress), asked.tokens) == (at, [])
    assert (asked.finish.stop_reason, asked.finish.generated) == ("cancelled", 0)
    [lane] = engine.lanes
    assert (len(lane.ids), lane.value) == (16 * (at - 1), folded(IDS[: 16 * (at - 1)]))
    assert (engine.histories, stepping.busy) == ([], 0), "it has never begun to draw"


def test_cancelled_between_tokens() -> None:
    engine = Speaking(HELLO)
    stepping = Stepping(engine)
    asked = stepping.ask(IDS)
    while len(asked.tokens) < 2:
        assert stepping.step()
    asked.channel.cancel()
    assert len(stepping.wakes) == 1
    stepping.step()
    assert asked.text == "he"
    assert (asked.finish.stop_reason, asked.finish.generated, engine.ended) == ("cancelled", 2, 1)
    assert stepping.busy == 0


# -- what it says of itself ---------------------------------------------------------------------------


def test_timings_are_the_engines_and_leave_the_reader_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def work(done: str, _: SpeakingLane) -> None:
        nonlocal now
        now += {"evaluate": 1.0, "draw": 0.5}.get(done, 0.0)

    monkeypatch.setattr(scheduler, "perf_counter", lambda: now)
    stepping = Stepping(Speaking(HELLO, work))
    asked = stepping.ask(IDS)
    while stepping.step():
        now += 1000.0
    assert asked.finish.timings == Timings(prefill=5 * 1.0 + 0.5, decode=5 * 0.5)


def test_timings_count_what_others_have_computed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def work(done: str, _: SpeakingLane) -> None:
        nonlocal now
        now += {"evaluate": 1.0, "step": 0.5}.get(done, 0.0)

    monkeypatch.setattr(scheduler, "perf_counter", lambda: now)
    stepping = Stepping(Speaking(HELLO, work, lanes=3))
    running = stepping.ask(IDS[:5])
    stepping.step()
    first, second = stepping.ask(IDS[:16]), stepping.ask([*IDS[1:17], *IDS[:3]])
    stepping.run()
    assert running.finish.timings == Timings(prefill=1.5, decode=5 * 0.5 + 3 * 1.0)
    assert first.finish.timings == Timings(prefill=1.5, decode=5 * 0.5 + 2 * 1.0)
    assert second.finish.timings == Timings(prefill=3.5, decode=5 * 0.5)


def test_every_token_has_its_own_log_probability_also_one_that_was_held_back() -> None:
    said = [*"é".encode(), 70, *"🦜".encode()[:2]]
    tokens = run(Speaking(said), Sampling(logprobs=2, max_tokens=5)).tokens
    assert [token.text for token in tokens] == ["", "é", "F", "", "\ufffd"]
    likely = [(len(IDS) + number) % 200 for number in range(5)]
    assert [token.logprobs.top for token in tokens] == [((each, -0.5), (0, -9.0)) for each in likely]  # type: ignore[union-attr]
    assert [token.logprobs.token for token in tokens] == [-9.0, -9.0, -9.0, -9.0, -9.0]  # type: ignore[union-attr]
    tokens = run(Speaking([67]), Sampling(logprobs=0, max_tokens=1)).tokens
    assert [token.logprobs for token in tokens] == [Logprobs(-0.5, ())]


def test_the_likeliest_come_in_order_and_of_equals_the_lower_id() -> None:
    scores = numpy.array([-3.0, -1.0, -math.inf, -1.0, -2.0], dtype=numpy.float32)
    assert module._score(scores, 4, 4) == Logprobs(-2.0, ((1, -1.0), (3, -1.0), (4, -2.0), (0, -3.0)))


# -- what a host refuses before it computes -----------------------------------------------------------


def test_prompts_that_cannot_be_read() -> None:
    engine = Speaking(HELLO, context_size=8)
    with speaking_host(engine) as host:
        for ids, says in (((), "empty"), ((1, 260), "outside the vocabulary of 260"), ((-1,), "outside")):
            with pytest.raises(UsageError, match=says):
                host.generate(Prompt(ids, ""), Sampling())
        with pytest.raises(ContextOverflow):
            host.generate(Prompt((1,) * 9, ""), Sampling())
        assert engine.evaluated == 0
        assert texts(host.generate(Prompt((0, START, *[1] * 6), ""), Sampling()).steps()) == ["h"]
