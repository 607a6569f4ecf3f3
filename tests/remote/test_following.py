"""What a thread takes from a server, followed on an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from localagent.hosts.protocol import Cancel
from localagent.remote.following import followed


def counting(seen: list[threading.Thread], left: threading.Event | None = None) -> Iterator[int]:
    """Numbers from 0 on; with `left`, until that is set, and else up to 3."""
    number = 0
    while number < 4 if left is None else not left.is_set():
        seen.append(threading.current_thread())
        yield number
        number += 1


def test_the_items_come_in_order_from_a_thread_that_no_program_waits_for():
    seen: list[threading.Thread] = []
    left = threading.Event()

    async def follow():
        return [each async for (each,) in followed(counting(seen), left)]

    assert asyncio.run(follow()) == [0, 1, 2, 3]
    assert left.is_set()
    (thread,) = {*seen}
    assert thread is not threading.main_thread()
    assert (thread.daemon, thread.name) == (True, "localagent-remote")


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt("now")])
def test_an_error_comes_after_what_came_before_it(error):
    left, found = threading.Event(), []

    def failing():
        yield 1
        raise error

    async def follow():
        try:
            async for (each,) in followed(failing(), left):
                found.append(each)
        except BaseException as raised:
            return raised

    assert asyncio.run(follow()) is error
    assert (found, left.is_set()) == ([1], True)


def test_who_leaves_is_noticed_by_what_makes_the_items():
    seen: list[threading.Thread] = []
    left = threading.Event()

    async def follow():
        async with aclosing(followed(counting(seen, left), left)) as items:
            async for (each,) in items:
                if each == 2:
                    return

    asyncio.run(follow())
    assert left.is_set()
    seen[0].join(20)  # the loop has ended, and the thread ends without an error
    assert not seen[0].is_alive()


@pytest.mark.parametrize(
    ("flags", "is_set"),
    [((), False), ((False,), False), ((True,), True), ((None, False), False), ((False, None, True), True)],
)
def test_any_of_several_flags(flags, is_set):
    made = []
    for flag in flags:
        made.append(None if flag is None else threading.Event())
        if flag:
            made[-1].set()
    assert Cancel(*made).is_set() is is_set
