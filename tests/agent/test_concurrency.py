"""Threads and loops below a run: who waits for whom, what is given up, and what comes back."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from time import monotonic, sleep

import pytest

from localagent.agent import HandedOver, ToolEnded, ToolStarted, TurnStarted
from localagent.agent.concurrency import AHEAD, Coroutines, Stepper, in_thread
from localagent.agent.events import is_piece
from localagent.hosts.protocol import Cancel, Cancelled, Prefilled, Queued
from localagent.messages import ToolCallPart
from parsers import ArgumentEnd, ArgumentsDelta, CallEnd, CallStart, Markup, Reasoning, Text

CALL = ToolCallPart(id="c", name="f")
SOON = 60.0  # seconds that nothing here takes, on the busiest machine


def eventually(condition) -> None:
    end = monotonic() + SOON
    while not condition():
        assert monotonic() < end
        sleep(0.005)


# Cancelling


def test_whoever_cancels_the_whole_cancels_its_parts():
    whole = threading.Event()
    part, other = Cancel(whole), Cancel()
    assert not part.is_set()
    part.set()
    assert (part.is_set(), whole.is_set()) == (True, False), "a part does not cancel the whole"
    second = Cancel(whole)
    whole.set()
    assert second.is_set()
    assert second.wait()
    assert not other.is_set()


def test_waiting_ends_when_somebody_cancels_or_the_time_is_over():
    whole = threading.Event()
    cancel = Cancel(whole)
    begin = monotonic()
    assert cancel.wait(0.12) is False
    assert 0.11 < monotonic() - begin < SOON
    assert cancel.wait(0) is False
    threading.Timer(0.05, whole.set).start()
    assert cancel.wait(SOON) is True
    assert monotonic() - begin < SOON / 2
    assert cancel.wait(0) is True


# Awaiting from a thread


async def told(value):
    await asyncio.sleep(0)
    return value


def test_what_is_no_coroutine_is_the_answer():
    assert Coroutines().settle(3, threading.Event()) == 3
    assert Coroutines().settle(told(3), threading.Event()) == 3


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_coroutine_raises_is_raised_here_and_the_loop_goes_on(error):
    async def fails():
        raise error

    coroutines = Coroutines()
    with pytest.raises(type(error)) as caught:
        coroutines.settle(fails(), threading.Event())
    assert caught.value is error
    assert coroutines.settle(told("still here"), threading.Event()) == "still here"


def test_a_cancelled_coroutine_has_its_grace_and_no_more():
    heard, cancel = threading.Event(), threading.Event()

    async def stubborn():
        try:
            await asyncio.sleep(SOON)
        except asyncio.CancelledError:
            heard.set()
            raise

    cancel.set()
    begin = monotonic()
    with pytest.raises(Cancelled):
        Coroutines().settle(stubborn(), cancel, grace=0.3)
    assert 0.29 < monotonic() - begin < SOON / 2
    assert heard.wait(SOON)

    async def quick():
        await asyncio.sleep(0.1)
        return "in time"

    assert Coroutines().settle(quick(), cancel, grace=SOON) == "in time"


def test_a_coroutine_that_runs_an_agent_does_not_wait_for_itself():
    async def outer():
        return Coroutines().settle(told("inner"), threading.Event())

    assert Coroutines().settle(outer(), threading.Event()) == "inner"


def test_whoever_is_asked_is_asked_in_this_thread_unless_it_is_a_loops():
    def where():
        return threading.current_thread()

    async def on_a_loop():
        return threading.current_thread()

    here = threading.current_thread()
    assert Coroutines().ask(where, cancel=threading.Event()) is here
    assert Coroutines().ask(on_a_loop, cancel=threading.Event()) is not here

    async def main():
        coroutines, loop_thread = Coroutines(asyncio.get_running_loop()), threading.current_thread()
        asked = await asyncio.to_thread(coroutines.ask, where, cancel=threading.Event())
        assert asked not in (loop_thread, here)
        assert asked.name == "localagent-approver"
        assert await asyncio.to_thread(coroutines.ask, on_a_loop, cancel=threading.Event()) is loop_thread

    asyncio.run(main())


def test_a_run_that_is_cancelled_waits_for_nobody_who_is_asked():
    answered = threading.Event()

    async def main():
        cancel = threading.Event()
        coroutines = Coroutines(asyncio.get_running_loop())
        threading.Timer(0.05, cancel.set).start()
        with pytest.raises(Cancelled):
            await asyncio.to_thread(coroutines.ask, answered.wait, SOON, cancel=cancel)

    begin = monotonic()
    asyncio.run(main())
    assert monotonic() - begin < SOON / 2
    answered.set()


def test_what_is_awaited_of_whoever_is_asked_is_given_up_too():
    async def main():
        cancel = threading.Event()
        coroutines = Coroutines(asyncio.get_running_loop())
        assert await asyncio.to_thread(coroutines.ask, lambda: told(3), cancel=cancel) == 3
        cancel.set()
        with pytest.raises(Cancelled):
            await asyncio.to_thread(coroutines.ask, lambda: asyncio.sleep(SOON), cancel=cancel)

    asyncio.run(main())


VARIABLE = contextvars.ContextVar("VARIABLE", default="unset")


def test_a_thread_has_the_context_of_whoever_began_it():
    VARIABLE.set("here")
    future = in_thread(lambda: (VARIABLE.get(), threading.current_thread()), "a name")
    value, thread = future.result(SOON)
    assert (value, thread.name, thread.daemon) == ("here", "a name", True)
    assert not future.cancel(), "a thread cannot be cancelled"
    with pytest.raises(ZeroDivisionError):
        in_thread(lambda: 1 // 0, "a name").result(SOON)


# Stepping a generator


def follow(made, is_piece=lambda _: False):
    """Runs a function of a stepper on a loop."""

    def run(steps, main):
        async def on_loop():
            return await main(Stepper(steps, is_piece, "steps"))

        return asyncio.run(on_loop())

    return run(*made)


def test_events_come_in_order_and_then_none():
    def steps():
        yield from range(5)

    async def main(stepper):
        assert [await stepper.next() for _ in range(6)] == [0, 1, 2, 3, 4, None]
        await stepper.close()

    follow((steps(), main))


def test_nothing_happens_until_it_is_asked_for():
    done = []

    def steps():
        done.append("begun")
        for number in range(3):
            yield number
            done.append(number)

    async def main(stepper):
        await asyncio.sleep(0.1)
        assert done == []
        assert await stepper.next() == 0
        await asyncio.sleep(0.1)
        assert done == ["begun"]
        assert await stepper.next() == 1
        assert done == ["begun", 0]
        await stepper.close()

    follow((steps(), main))
    assert done == ["begun", 0], "what was left behind does not go on"


@pytest.mark.parametrize(
    ("event", "piece"),
    [
        (Text("a", 0, 1), True), (Reasoning("a", 0, 1), True), (Markup(0, 1), True), (Prefilled(1, 2, 0), True),
        (Queued(1), True),
        (CallStart(0, "f", 0, 1), True), (ArgumentsDelta(0, "{", 0, 1), True), (ArgumentEnd(0, "a", 1, 0, 1), True),
        (CallEnd(0, "f", {}, False, 0, 1), False), (TurnStarted(0), False), (HandedOver("a", "b"), False),
        (ToolStarted(CALL), False), (ToolEnded(CALL, CALL.result("x")), False),
    ],
)  # fmt: skip
def test_a_piece_is_what_nothing_is_done_about_yet(event, piece):
    assert is_piece(event) is piece


def test_pieces_may_be_ahead_up_to_a_number():
    made = []

    def steps():
        for number in range(10 * AHEAD):
            made.append(number)
            yield number

    async def main(stepper):
        assert await stepper.next() == 0
        await asyncio.to_thread(eventually, lambda: len(made) >= AHEAD)
        await asyncio.sleep(0.1)
        # 64 wait: without the one that was taken if this thread took it meanwhile, and with it otherwise.
        assert len(made) in (64, 65)
        assert [await stepper.next() for _ in range(1, 10 * AHEAD + 1)] == [*range(1, 10 * AHEAD), None]
        await stepper.close()

    follow((steps(), main), is_piece=lambda _: True)


def test_what_the_generator_raises_is_raised_after_what_it_gave():
    def steps():
        yield 1
        raise ValueError("no more")

    async def main(stepper):
        assert await stepper.next() == 1
        with pytest.raises(ValueError, match="no more"):
            await stepper.next()
        assert await stepper.next() is None
        await stepper.close()

    follow((steps(), main))


def test_a_generator_that_is_left_is_closed_in_its_thread():
    closed = []

    def steps():
        try:
            while True:
                yield 1
        finally:
            closed.append(threading.current_thread().name)

    async def main(stepper):
        await stepper.next()
        await stepper.close()
        assert closed == ["steps"]

    follow((steps(), main))


def test_a_generator_that_was_never_asked_does_not_begin():
    begun = []

    def steps():
        begun.append(True)
        yield 1

    async def main(stepper):
        await stepper.close()

    follow((steps(), main))
    assert begun == []


def test_leaving_waits_for_the_end_even_if_it_is_cancelled_itself():
    """Otherwise a tool would still run when its run is said to be over."""
    ending, ended = threading.Event(), []

    def steps():
        try:
            yield 1
        finally:
            ending.wait(SOON)
            ended.append(True)

    async def main(stepper):
        await stepper.next()
        closing = asyncio.ensure_future(stepper.close())
        for _ in range(3):
            await asyncio.sleep(0.02)
            closing.cancel()
        assert not closing.done()
        ending.set()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert ended == [True]

    follow((steps(), main))
