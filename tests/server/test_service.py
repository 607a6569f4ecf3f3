"""What the requests of a server share: its log, and its end, for which nobody waits long."""

from __future__ import annotations

import asyncio
import io
import logging
import re
from collections.abc import Iterator

import pytest

from localagent.server.access import Access
from localagent.server.bounds import Bounds
from localagent.server.models import ModelPool
from localagent.server.service import Service, log_to_standard_error

LOGGERS = ("localagent", "localagent.prompts", "uvicorn.error")


def service() -> Service:
    return Service(ModelPool({"m": lambda: None}))  # type: ignore[arg-type, return-value]


def test_what_a_service_is_without_a_word() -> None:
    made = service()
    assert (made.access, made.bounds) == (Access(), Bounds())
    assert not (made.offers_metrics or made.log_prompts or made.stopping) and made.buffer_tool_calls


def test_each_field_that_is_ignored_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    made = service()
    with caplog.at_level(logging.INFO, "localagent.server"):
        made.mention("/v1/x", ["user", "a\nb"])
        made.mention("/v1/y", ["user", "store"])
        assert caplog.messages == [
            "/v1/x: user is ignored",
            "/v1/x: 'a\\nb' is ignored",
            "/v1/y: store is ignored",
        ]
        made.mention("/v1/x", [f"field{number}" for number in range(2000)])
    assert len(caplog.messages) == 1000, "names that clients make up do not fill memory"


# -- the end -----------------------------------------------------------------------------------------------


async def answer(ends: list[str], name: str, stubborn: bool = False) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        ends.append(name)
        if stubborn:  # what it writes, nobody reads
            await asyncio.Event().wait()


async def stopped(stubborn: bool) -> tuple[list[str], bool]:
    """Who was ended, and whether it was before `stop` returned."""
    made, ends = service(), list[str]()
    turns = [asyncio.create_task(answer(ends, name, stubborn)) for name in ("first", "second")]
    over = asyncio.create_task(answer(ends, "over"))
    with made.running(over):
        await asyncio.sleep(0)
    with made.running(turns[0]), made.running(turns[1]):
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await made.stop()
        assert made.stopping
        done = all(turn.done() for turn in turns)
        late = asyncio.create_task(answer(ends, "late"))
        with made.running(late):
            await asyncio.wait([late], timeout=10)
        assert late.cancelled(), "what begins now is ended at once"
    for each in (over, *turns):
        each.cancel()
        await asyncio.gather(each, return_exceptions=True)
    return ends, done


@pytest.mark.parametrize("stubborn", [False, True])
def test_running_answers_are_ended_and_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    monkeypatch.setattr("localagent.server.service._LAST_WORDS", 0.01 if stubborn else 10)
    ends, done = asyncio.run(stopped(stubborn))
    assert done is not stubborn
    assert (sorted(ends[:2]), ends[2:]) == (["first", "second"], ["over"]), "which had ended for the server"


def test_a_server_with_nothing_to_do_ends_at_once() -> None:
    asyncio.run(service().stop())


# -- the log -----------------------------------------------------------------------------------------------


@pytest.fixture
def loggers() -> Iterator[None]:
    """The loggers are as in a new process, and are so afterwards."""

    def forget() -> None:
        for logger in map(logging.getLogger, LOGGERS):
            logger.handlers.clear()
            logger.propagate, logger.disabled = True, False
            logger.setLevel(logging.NOTSET)

    forget()
    yield
    forget()


@pytest.mark.parametrize("prompts", [False, True])
def test_a_line_for_each_thing_and_what_is_said_only_if_it_is_asked_for(
    loggers: None, caplog: pytest.LogCaptureFixture, prompts: bool
) -> None:
    written, level = io.StringIO(), logging.getLogger().level
    log_to_standard_error(prompts, written)
    assert logging.getLogger().level == level, "other libraries log as they did"
    logging.getLogger("localagent.server").info("%s is loaded", "m")
    logging.getLogger("localagent.server").debug("a detail")
    logging.getLogger("localagent.prompts").info("what was said")
    logging.getLogger("uvicorn.error").warning("no HTTP")
    logging.getLogger("uvicorn.error").error("it broke")
    lines = written.getvalue().splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines)
    said = ["m is loaded", *(["what was said"] if prompts else []), "it broke"]
    assert [line[9:] for line in lines] == said
    assert caplog.messages == [], "nobody else tells it again"


def test_standard_error_is_where_it_goes(loggers: None, capsys: pytest.CaptureFixture[str]) -> None:
    log_to_standard_error(prompts=False)
    logging.getLogger("localagent").info("here")
    assert capsys.readouterr().err.endswith(" here\n")
