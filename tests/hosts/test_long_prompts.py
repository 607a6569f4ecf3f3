"""A prompt far too long is refused after a part of it was tokenized, and one that fits keeps its ids."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localagent.agent import Agent, RunFailed
from localagent.errors import ContextOverflow
from localagent.hosts import counting
from localagent.hosts.counting import CUT, PIECE, count_at_least, tokenize_within
from localagent.hosts.engine import Vocabulary
from localagent.hosts.host import EngineHost
from localagent.hosts.llamacpp.host import LlamaCppHost
from localagent.messages import UserMessage
from localagent.model import Model, load
from localagent.prompt import Segment, TooManyTokens

pytest.importorskip("mlx_lm")

ENGINES = ("llamacpp", "mlx")
PIECES = st.sampled_from(
    ["a", "the ", "word", " ", "  ", "\n", "\t", "1", "2024", ".", "=", "é", "e\u0301", "日本", "🦜", "<|", "<|im_end|>", "don't"]
)  # fmt: skip
TEXTS = st.lists(st.tuples(PIECES, st.sampled_from([1, 2, 3, 40, 300])), max_size=12).map(
    lambda runs: "".join(piece * count for piece, count in runs)
)


@pytest.fixture(scope="module")
def models(nano: dict[str, Path]) -> Iterator[dict[str, Model]]:
    loaded = {engine: load(nano[engine]) for engine in ENGINES}
    yield loaded
    for model in loaded.values():
        model.close()


@pytest.fixture(scope="module")
def vocabularies(models: dict[str, Model], host: LlamaCppHost) -> dict[str, Vocabulary]:
    """That of lfm2-nano in both engines, and a large one."""
    hosts: dict[str, EngineHost] = {**{name: model.host for name, model in models.items()}, "large": host}  # type: ignore[dict-item]
    return {name: each._engine.vocabulary for name, each in hosts.items()}


@pytest.mark.parametrize("name", [*ENGINES, "large"])
@settings(max_examples=150)
@given(text=TEXTS, at=st.floats(0, 1), special=st.booleans())
def test_a_cut_adds_few_tokens(
    vocabularies: dict[str, Vocabulary], name: str, text: str, at: float, special: bool
) -> None:
    """What `CUT` rests on: half of it is never needed."""
    place = int(at * len(text))
    whole, front, back = (
        len(vocabularies[name].tokenize_segments((Segment(part, special),), continued=True))
        for part in (text, text[:place], text[place:])
    )
    assert front + back <= whole + CUT // 2


@pytest.mark.parametrize("name", [*ENGINES, "large"])
@settings(max_examples=60)
@given(texts=st.lists(st.tuples(TEXTS.filter(bool), st.booleans()), max_size=3), piece=st.integers(100, 2000))
def test_what_is_counted_is_never_more_than_there_is(
    vocabularies: dict[str, Vocabulary], name: str, texts: list[tuple[str, bool]], piece: int
) -> None:
    vocabulary, segments = vocabularies[name], [Segment(*each) for each in texts]
    exact = vocabulary.tokenize_segments(segments)
    assert count_at_least(vocabulary, segments, piece=piece) <= len(exact)
    assert tokenize_within(vocabulary, segments, len(exact)) == exact


def test_a_long_text_of_few_tokens_is_tokenized_whole(vocabularies: dict[str, Vocabulary]) -> None:
    vocabulary = vocabularies["large"]
    text = [Segment("=" * 64 + " " * 30, True)] * 400
    exact = vocabulary.tokenize_segments(text)
    assert sum(len(each.text) for each in text) > max(PIECE, 8 * len(exact)), "or nothing is counted"
    assert tokenize_within(vocabulary, text, len(exact)) == exact
    with pytest.raises(TooManyTokens):
        tokenize_within(vocabulary, text, len(exact) - 1)


class Watched:
    """A vocabulary that notes how much it was given."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.characters = 0

    def tokenize_segments(self, segments: Sequence[Segment], continued: bool = False) -> tuple[int, ...]:
        self.characters += sum(len(each.text) for each in segments)
        return self._vocabulary.tokenize_segments(segments, continued)


@pytest.mark.parametrize("name", [*ENGINES, "large"])
@pytest.mark.parametrize("text", ["word ", "a", "日本語", " \n", "<|im_end|>"])
def test_the_rest_is_not_looked_at(vocabularies: dict[str, Vocabulary], name: str, text: str) -> None:
    watched = Watched(vocabularies[name])
    with pytest.raises(TooManyTokens) as many:
        tokenize_within(watched, [Segment(text * 1_000_000, True)], 4096)  # type: ignore[arg-type]
    assert many.value.least > 4096
    assert watched.characters < 600_000


@pytest.mark.parametrize("engine", ENGINES)
def test_every_way_to_ask_says_so(models: dict[str, Model], engine: str) -> None:
    model, text = models[engine], "word " * 400_000
    answered = model.respond("Name a colour.", max_tokens=4)
    after = [UserMessage(content="Name a colour."), answered, UserMessage(content=text)]
    for ask in (
        lambda: model.respond(text),
        lambda: list(model.stream(text)),
        lambda: model.respond(after),
        lambda: model.respond("<|im_end|>" * 100_000),
        lambda: model.count_tokens(text, limit=5000),
        lambda: model.host.render([{"role": "user", "content": text}]),
    ):
        with pytest.raises(ContextOverflow, match=r"has more than [\d,]+ tokens .* holds 4,096") as overflow:
            ask()
        assert not overflow.value.exact
        assert overflow.value.prompt_tokens >= 4096
    *_, last = Agent(model).run(text)
    assert isinstance(last, RunFailed)
    assert "more than" in str(last.error)
    assert model.respond("Name a colour.", max_tokens=4).text == answered.text


@pytest.mark.parametrize("engine", ENGINES)
def test_counting_for_its_own_sake_goes_to_the_end(models: dict[str, Model], engine: str) -> None:
    model = models[engine]
    few, more, many = (model.count_tokens("word " * count) for count in (1, 2, 30_000))
    assert many - few == (more - few) * 29_999 > 4096 * 2
    assert model.count_tokens("word " * 30_000, limit=10**9) == many


def test_what_is_a_little_too_long_is_counted_whole(models: dict[str, Model]) -> None:
    text = "word " * 3000
    tokens = models["llamacpp"].count_tokens(text)
    with pytest.raises(ContextOverflow, match=f"has {tokens:,} tokens") as overflow:
        models["llamacpp"].respond(text)
    assert (overflow.value.prompt_tokens, overflow.value.exact) == (tokens, True)


def test_ids_do_not_depend_on_the_counting(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    host = models["llamacpp"].host
    messages = [{"role": "user", "content": "Plan a trip to Paris, in 3 steps. <|im_end|> " * 40}]
    before = host.render(messages).ids
    assert len(before) < 4096
    monkeypatch.setattr(counting, "_USUAL", 0)
    monkeypatch.setattr(counting, "PIECE", 100)
    assert host.render(messages).ids == before == host.render(messages, limit=math.inf).ids


MEASURED = """
import json, resource, sys, time
from localagent.errors import ContextOverflow
from localagent.model import load
with load(sys.argv[1]) as model:
    model.respond("Hi", max_tokens=2)
    text = "The quick brown fox jumps over it. " * (100_000_000 // 35)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        model.respond(text)
    except ContextOverflow as error:
        said = str(error)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps([said, time.process_time() - began, grown]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count memory in other units")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_hundred_megabytes(nano: dict[str, Path], engine: str) -> None:
    """In a process of its own, whose memory is that of the model and the text."""
    command = [sys.executable, "-c", MEASURED, str(nano[engine])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    said, seconds, grown = json.loads(done.stdout)
    assert "more than" in said
    assert seconds < 2
    assert grown < 300_000, "kilobytes above the text"
