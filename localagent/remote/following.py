"""What a server sends, read in a thread and followed on an event loop."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def followed(items: Iterator[T], left: threading.Event) -> AsyncGenerator[Sequence[T], None]:
    """The items, one in each group, which a thread takes one after the other. `left` is set when nobody
    follows any more: what makes the items is to look at it, and to close its connection.
    """
    import asyncio  # here, so that programs without an event loop do not load it

    loop, arrived = asyncio.get_running_loop(), asyncio.Queue[Any]()

    def put(item: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(arrived.put_nowait, item)

    def run() -> None:
        try:
            for item in items:
                put(item)
        except BaseException as error:
            put(error)
        else:
            put(None)

    thread = threading.Thread(target=run, name="localagent-remote", daemon=True)
    thread.start()
    try:
        while (item := await arrived.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield (item,)
    finally:
        left.set()
