"""A host on an engine without weights: what it says of itself, what it refuses, and what it keeps on disk."""

from __future__ import annotations

import dataclasses
import platform
import threading

import pytest

from localagent.errors import ContextOverflow, EngineFailed, InvalidWeights, TemplateFailed, UsageError
from localagent.hosts.host import (
    DEFAULT_CONTEXT,
    LOADED_VARIABLE,
    EngineHost,
    Identity,
    Reuse,
    choose_context,
)
from localagent.hosts.owner import OwnerThread, on_an_owner_thread
from localagent.hosts.prefix import SnapshotFolder
from localagent.hosts.protocol import Finish, Prompt, Token
from localagent.hosts.sampling import Sampling
from tests.hosts.speaking import END, HEL, LO, TEMPLATE, Bytes, Speaking, speaking_host

ASKED = [{"role": "user", "content": "What?"}]


@pytest.mark.parametrize(
    ("asked", "trained", "context"),
    [
        (None, None, 32_768),
        (None, 0, DEFAULT_CONTEXT),
        (None, 4096, 4096),
        (None, DEFAULT_CONTEXT, DEFAULT_CONTEXT),
        (None, 128_000, DEFAULT_CONTEXT),
        (1, 4096, 1),
        (4096, 4096, 4096),
        (100_000, 128_000, 100_000),
        (100_000, None, 100_000),
    ],
)
def test_the_context_is_what_was_asked_for_or_the_models_up_to_a_size(asked, trained, context):
    assert choose_context(asked, trained) == context


@pytest.mark.parametrize(
    ("asked", "trained", "says"),
    [
        (0, None, "context is 0: it must be 1 or more"),
        (-5, 4096, "context is -5: it must be 1 or more"),
        (4097, 4096, "context is 4,097, but the model was trained for at most 4,096 tokens"),
    ],
)
def test_contexts_that_cannot_be(asked, trained, says):
    with pytest.raises(UsageError) as caught:
        choose_context(asked, trained)
    assert str(caught.value) == says


def test_what_it_says_of_itself():
    with speaking_host(Speaking(context_size=77)) as host:
        assert (host.name, host.architecture, host.engine, host.context) == (
            "speaking",
            "chain",
            "chain 1",
            77,
        )
        assert host.special_tokens == {"<s>", "<e>"}
        assert host.template_source == TEMPLATE
        assert host.template is host.template, "compiled once"
    with (
        speaking_host(Speaking(), template=None) as host,
        pytest.raises(TemplateFailed, match="the weights have no chat template"),
    ):
        host.render(ASKED)


def test_text_to_ids_and_back():
    with speaking_host(Speaking()) as host:
        assert host.tokenize("a<e>", True) == (97, END)
        assert host.tokenize("a<e>", False) == tuple(b"a<e>")
        assert host.detokenize([97, END, HEL, LO, 255]) == b"a<e>hello\xff"
        assert host.detokenize([]) == b""
        for wrong in (-1, Bytes.size):
            with pytest.raises(UsageError, match=f"no token {wrong}"):
                host.detokenize([97, wrong])


def test_every_piece_is_made_before_other_threads_ask_for_them():
    """A part at a time, on the thread of the engine, and once."""
    engine = Speaking()
    asked = []
    piece = engine.vocabulary.piece
    engine.vocabulary.piece = lambda token: asked.append((token, on_an_owner_thread())) or piece(token)
    with speaking_host(engine) as host:
        asked.clear()
        for _ in range(2):
            assert host.vocabulary is engine.vocabulary
    assert asked == [(token, True) for token in range(Bytes.size)]


@pytest.mark.parametrize(
    ("ids", "error", "says"),
    [
        ((), UsageError, "the prompt is empty: it needs at least one token"),
        ((1, -1), UsageError, "the prompt holds an id outside the vocabulary of 260"),
        ((1, 260), UsageError, "the prompt holds an id outside the vocabulary of 260"),
        ((1,) * 11, ContextOverflow, "the prompt has 11 tokens and the context window holds 10"),
    ],
)
def test_prompts_that_are_refused(ids, error, says):
    with speaking_host(Speaking(context_size=10)) as host, pytest.raises(error) as caught:
        host.generate(Prompt(ids, ""), Sampling())
    assert str(caught.value).startswith(says)


def test_the_longest_prompt_and_the_ends_of_the_vocabulary():
    with speaking_host(Speaking([HEL], context_size=10)) as host:
        generation = host.generate(Prompt((0, 259, *[1] * 8), ""), Sampling())
        assert [token.text for token in generation] == ["hel"]
        assert generation.finish.stop_reason == "length"


def test_a_prompt_much_too_long_is_refused_before_all_of_it_is_read():
    text = "a" * 20_000
    with speaking_host(Speaking(context_size=100)) as host:
        with pytest.raises(ContextOverflow) as caught:
            host.render([{"role": "user", "content": text}])
        assert (caught.value.exact, caught.value.context) == (False, 100)
        assert 100 < caught.value.prompt_tokens < len(text)
        assert len(host.render([{"role": "user", "content": text}], limit=10**6).ids) == len(text) + 3


def test_cancelling_by_the_event_or_by_leaving():
    for how in ("event", "close"):
        with speaking_host(Speaking([HEL] * 900)) as host:
            cancel = threading.Event()
            generation = host.generate(host.render(ASKED), Sampling(), cancel)
            assert next(generation).text == "hel"
            cancel.set() if how == "event" else generation.close()
            assert len(list(generation)) < 800
            assert generation.finish.stop_reason == "cancelled"


# Loading and closing


def loading(make, identity=None, reuse=None):
    identity = identity or Identity("a model", "chain", TEMPLATE, "chain 1", lambda: "weights", "a=1")
    owner = OwnerThread("test-loading")
    return owner, lambda: EngineHost(owner, make, identity, reuse)


def test_an_engine_that_cannot_be_loaded_leaves_no_thread():
    def fails():
        raise InvalidWeights("no weights")

    owner, load = loading(fails)
    with pytest.raises(InvalidWeights, match="no weights"):
        load()
    with pytest.raises(UsageError, match="closed"):
        owner.run(lambda: None)


def test_closing_closes_the_engine_once():
    engine = Speaking()
    _, load = loading(lambda: engine)
    with load() as host:
        assert engine.closed == 0
    host.close()
    assert engine.closed == 1


def test_what_was_loaded_last_is_noted_for_whoever_sees_the_crash(tmp_path, monkeypatch):
    monkeypatch.setenv(LOADED_VARIABLE, str(tmp_path / "note"))
    speaking_host(Speaking()).close()
    assert (tmp_path / "note").read_text() == "speaking on chain 1"
    monkeypatch.setenv(LOADED_VARIABLE, str(tmp_path / "gone" / "note"))
    speaking_host(Speaking()).close()  # nobody can be told, and nothing is wrong


def said(host) -> str:
    return "".join(token.text for token in host.generate(host.render(ASKED * 8), Sampling()))


@pytest.fixture
def kept(tmp_path):
    return SnapshotFolder(tmp_path)


def test_evaluated_states_are_kept_under_all_that_they_depend_on(kept):
    engine = Speaking([HEL, LO])
    _, load = loading(lambda: engine, reuse=Reuse(snapshots=kept))
    with load() as host:
        assert said(host) == "hello<e>"
        assert kept.files() == []
        host.save()
        (path,) = kept.files()
        key, tokens = kept.describe(path)
        assert tokens >= 8 * len("<s>What?<e>") - 8 * 4
    assert dataclasses.asdict(key) == {
        "name": "a model",
        "weights": "weights",
        "template": key.template,
        "engine": "chain 1",
        "platform": f"{platform.system()} {platform.machine()}",
        "settings": "a=1",
        "owner": "",
    }
    assert len(key.template) == 32
    other = Identity("a model", "chain", TEMPLATE + " ", "chain 1", lambda: "weights", "a=1")
    _, load = loading(lambda: Speaking([HEL, LO]), other, Reuse(snapshots=kept))
    with load() as host:
        assert said(host) == "hello<e>"
    assert len({kept.describe(path)[0].template for path in kept.files()}) == 2, (
        "another template is another key"
    )


def test_the_next_process_goes_on_from_what_was_kept(kept):
    for cached in (False, True):
        _, load = loading(lambda: Speaking([HEL, LO]), reuse=Reuse(snapshots=kept))
        answered = [*ASKED * 8, {"role": "assistant", "content": "hello"}]
        with load() as host:
            before = host.render(answered).ids[-4:-2]
            assert before == ((HEL, LO) if cached else (*b"lo",)), "as what the model said is known on disk"
            generation = host.generate(host.render(ASKED * 8), Sampling())
            list(generation)
            assert (generation.finish.cached > 0) is cached
            later = host.render(answered)
            assert later.ids[-4:-2] == (HEL, LO), "the words of the model are known as its tokens"


@pytest.mark.parametrize(
    ("batch", "more", "cached"),
    [(None, 1, 40), (None, 2, 40), (64, 1, 32), (64, 2, 40)],  # with the last, no token is evaluated alone
)
def test_how_much_of_a_prompt_is_left_to_be_read(batch, more, cached):
    with speaking_host(Speaking([HEL], batch=batch)) as host:
        ids = (*b"a" * 40,)
        list(host.generate(Prompt(ids, ""), Sampling(max_tokens=1)))
        generation = host.generate(Prompt((*ids, *b"b" * more), ""), Sampling(max_tokens=1))
        list(generation)
    assert generation.finish.cached == cached


@pytest.mark.parametrize("reuse", [None, Reuse(), Reuse(0)])
def test_nothing_is_kept_unless_it_was_asked_for(kept, reuse):
    """Nor is the fingerprint computed, which reads all of the weights."""

    def fingerprint():
        raise EngineFailed("it was read")

    identity = Identity("a model", "chain", TEMPLATE, "chain 1", fingerprint, "")
    _, load = loading(lambda: Speaking([HEL]), identity, reuse)
    with load() as host:
        assert said(host) == "hel<e>"
    _, load = loading(lambda: Speaking([HEL]), identity, Reuse(0, kept))
    with load() as host:
        assert said(host) == "hel<e>"
        host.save()
    assert kept.files() == []


def test_a_token_of_somebody_elses_host_ends_nothing_unless_it_says_so():
    token = Token(7, "a", special=False)
    assert (token.end, token.logprobs) == (False, None)
    assert Finish("stop", prompt=3, cached=1, generated=2).stop is None
