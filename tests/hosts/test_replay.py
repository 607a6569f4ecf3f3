"""A replay plays what was recorded, ends for the reason that a host would, and renders one prompt."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing

import pytest

from localagent.errors import UsageError
from localagent.hosts.protocol import Token
from localagent.hosts.replay import ReplayHost
from localagent.hosts.sampling import Sampling
from localagent.prompt import Prompt

FIRST, SECOND = ([Token(at, letter, False) for at, letter in enumerate(text)] for text in ("Hello", "Bye"))


def played(host: ReplayHost, sampling: Sampling | None = None, cancel: threading.Event | None = None):
    generation = host.generate(host.render([]), sampling or Sampling(), cancel)
    text = "".join(token.text for token in generation)
    return text, generation.finish


def test_recordings_come_in_order_and_the_last_one_again():
    host = ReplayHost([FIRST, SECOND], prompt=Prompt((7, 8, 9), "asked"))
    assert [played(host)[0] for _ in range(3)] == ["Hello", "Bye", "Bye"]
    _, finish = played(host)
    assert (finish.stop_reason, finish.prompt, finish.generated, finish.stop) == ("stop", 3, 3, None)
    assert host.render([{"role": "user"}]).text == "asked"
    assert host.rendered[-1] == [{"role": "user"}]


def test_without_a_prompt_there_is_one_token():
    assert len(ReplayHost([FIRST]).render([]).ids) == 1
    with pytest.raises(ValueError, match="at least one recording"):
        ReplayHost([])


@pytest.mark.parametrize(
    ("sampling", "text", "reason", "stop"),
    [
        (Sampling(max_tokens=2), "He", "length", None),
        (Sampling(max_tokens=5), "Hello", "stop", None),
        (Sampling(stop=("lo",)), "Hel", "stop", "lo"),
        (Sampling(stop=("lo",), max_tokens=1), "H", "length", None),
    ],
)
def test_a_replay_ends_where_a_host_would(sampling, text, reason, stop):
    said, finish = played(ReplayHost([FIRST]), sampling)
    assert (said, finish.stop_reason, finish.stop, finish.generated) == (text, reason, stop, len(text))


def test_a_cancelled_and_a_closed_replay_say_so():
    cancel = threading.Event()
    cancel.set()
    assert played(ReplayHost([FIRST]), cancel=cancel)[1].stop_reason == "cancelled"
    generation = ReplayHost([FIRST]).generate(Prompt((0,), ""), Sampling())
    next(generation)
    assert generation.finish is None
    generation.close()
    generation.close()
    assert (generation.finish.stop_reason, generation.finish.generated) == ("cancelled", 1)
    assert list(generation) == []


def test_a_replay_on_an_event_loop_is_the_same():
    async def play(most: int) -> tuple[str, str]:
        generation = ReplayHost([FIRST]).generate(Prompt((0,), ""), Sampling())
        text = ""
        async with aclosing(generation.asteps()) as steps:
            async for (token,) in steps:
                text += token.text
                if len(text) == most:
                    break
        return text, generation.finish.stop_reason

    assert asyncio.run(play(99)) == ("Hello", "stop")
    assert asyncio.run(play(2)) == ("He", "cancelled")


def test_a_replay_has_no_vocabulary():
    with pytest.raises(UsageError, match="no vocabulary"):
        ReplayHost([FIRST]).tokenize("Hi.", special=False)


def test_a_replay_has_no_logprobs():
    with pytest.raises(UsageError, match="log-probabilities"):
        ReplayHost([FIRST]).generate(Prompt((0,), ""), Sampling(logprobs=1))
