"""What a host remembers of a generation: its very tokens, as far as they are what was shown."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest

from localagent.errors import UsageError
from localagent.hosts.host import EngineHost, Reuse
from localagent.hosts.protocol import Prefilled, Prompt, Token
from localagent.hosts.sampling import Sampling
from localagent.prompt import Mixed, Trusted
from tests.hosts.speaking import END, HEL, LO, START, Speaking, speaking_host

ASKED = [{"role": "user", "content": "What?"}]
BEFORE = (START, *b"What?", END, START)


def shown(host: EngineHost, content: Any) -> tuple[int, ...]:
    """The tokens that an answer of this content has when the conversation goes on."""
    ids = host.render([*ASKED, {"role": "assistant", "content": content}]).ids
    assert ids[: len(BEFORE)] == BEFORE
    assert ids[-2:] == (END, START)
    return ids[len(BEFORE) : -2]


def ask(host: EngineHost, sampling: Sampling | None = None, take: int | None = None) -> str:
    """What is said, of which at most `take` tokens are taken."""
    prompt = host.render(ASKED)
    assert prompt.ids == BEFORE
    generation = host.generate(prompt, sampling or Sampling())
    assert iter(generation) is generation
    text = ""
    for token in generation if take is None else (next(generation) for _ in range(take)):
        text += token.text
    if take is not None:
        generation.close()
    return text


def test_what_was_said_keeps_its_tokens() -> None:
    with speaking_host(Speaking([HEL, LO])) as host:
        assert shown(host, "hello") == tuple(b"hello")
        assert ask(host) == "hello<e>"
        assert shown(host, "hello") == (HEL, LO)
        assert shown(host, "hello!") == tuple(b"hello!"), "it has not said that"


def test_what_was_said_in_one_scope_is_remembered_there_alone() -> None:
    with speaking_host(Speaking([HEL, LO])) as host:
        one, other = host.scoped("one"), host.scoped("other")
        assert ask(one) == "hello<e>"
        assert shown(one, "hello") == (HEL, LO)
        assert shown(other, "hello") == shown(host, "hello") == tuple(b"hello")
        assert ask(host) == "hello<e>"
        assert shown(host, "hello") == (HEL, LO)
        assert shown(other, "hello") == tuple(b"hello")
    with speaking_host(Speaking([HEL, LO]), reuse=Reuse(0)) as host:
        assert shown(host.scoped("one"), "hello") == tuple(b"hello")


def test_what_was_said_until_its_reader_left() -> None:
    engine = Speaking([HEL, LO] * 400, context_size=5000)
    with speaking_host(engine) as host:
        assert ask(host, take=1) == "hel"
        assert engine.ended == 1
        assert len(engine.lanes[0].ids) < len(BEFORE) + 100
        assert shown(host, "hel") == (HEL,)


def test_control_tokens_that_were_said_are_found_as_such() -> None:
    with speaking_host(Speaking([HEL, START, LO, START])) as host:
        assert ask(host) == "hel<s>lo<s><e>"
        said = Mixed(["hel", Trusted("<s>"), "lo", Trusted("<s>")])
        assert shown(host, said) == (HEL, START, LO, START)
        assert shown(host, "hel<s>lo<s>") == tuple(b"hel<s>lo<s>"), "content does not pass for it"


@pytest.mark.parametrize(
    ("script", "take", "sampling", "text", "kept"),
    [
        ([HEL, *"é".encode()], 2, Sampling(), "hel", (HEL,)),
        ([*"é".encode()], 1, Sampling(), "", ()),
        ([HEL, LO], None, Sampling(stop=("el",)), "h", tuple(b"h")),
        (
            [HEL, LO],
            None,
            Sampling(stop=("o",)),
            "hell",
            tuple(b"hell"),
        ),  # only a control token may follow what is known
        ([HEL, LO], None, Sampling(stop=("lo",)), "hel", (HEL,)),
        ([HEL, LO], None, Sampling(max_tokens=1), "hel", (HEL,)),
    ],
)
def test_an_end_that_was_cut_is_left_out(
    script: list[int], take: int | None, sampling: Sampling, text: str, kept: tuple[int, ...]
) -> None:
    with speaking_host(Speaking(script)) as host:
        assert ask(host, sampling, take) == text
        assert shown(host, text) == kept


def test_ids_that_its_text_was_not_rendered_to_are_not_remembered() -> None:
    with speaking_host(Speaking([HEL, LO])) as host:
        prompt = host.render(ASKED)
        longer = dataclasses.replace(prompt, ids=(*prompt.ids, 33))
        for each in (longer, Prompt(prompt.ids, prompt.text)):
            assert "".join(token.text for token in host.generate(each, Sampling())) == "hello<e>"
            assert shown(host, "hello") == tuple(b"hello")


def test_where_nothing_is_reused_nothing_is_remembered() -> None:
    with speaking_host(Speaking([HEL, LO]), reuse=Reuse(0)) as host:
        assert ask(host) == "hello<e>"
        assert shown(host, "hello") == tuple(b"hello")


def test_progress_is_only_for_those_who_ask_for_it() -> None:
    with speaking_host(Speaking([HEL], chunk=4)) as host:
        prompt = host.render(ASKED)
        assert [type(step) for step in host.generate(prompt, Sampling())] == [Token] * 2
        steps = list(host.generate(prompt, Sampling()).steps())
        assert isinstance(steps[0], Prefilled)
        assert [type(step) for step in steps if not isinstance(step, Prefilled)] == [Token] * 2


def test_how_it_ended_is_known_at_the_end_and_stays() -> None:
    with speaking_host(Speaking([HEL, LO])) as host:
        generation = host.generate(host.render(ASKED), Sampling())
        assert (next(generation).text, generation.finish) == ("hel", None)
        list(generation)
        assert generation.finish is not None
        assert generation.finish.stop_reason == "stop"
        generation.close()
        assert generation.finish.stop_reason == "stop"
        assert list(generation) == []


def test_a_host_that_was_closed_says_so() -> None:
    host = speaking_host(Speaking([HEL]))
    prompt = host.render(ASKED)
    host.close()
    for call in (
        lambda: host.tokenize("x", False),
        lambda: host.render(ASKED),
        lambda: host.generate(prompt, Sampling()),
    ):
        with pytest.raises(UsageError, match="closed: load the model again"):
            call()


def test_after_a_fork_a_generation_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with speaking_host(Speaking([HEL])) as host:
        generation = host.generate(host.render(ASKED), Sampling())
        monkeypatch.setattr(os, "getpid", lambda: 1)
        with pytest.raises(UsageError, match="before a fork: load the model again"):
            next(generation)
        monkeypatch.undo()
