"""Every engine on lfm2-nano: the same tokens, and never computed twice."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localagent.catalog import load_catalog
from localagent.errors import ContextOverflow, NotEnoughMemory, UsageError
from localagent.hosts.backends import BACKENDS
from localagent.hosts.channel import AHEAD
from localagent.hosts.host import EngineHost, Reuse
from localagent.hosts.prefix import SnapshotFolder
from localagent.hosts.protocol import Prefilled, Prompt, Token
from localagent.hosts.sampling import Sampling
from localagent.nano.requests import KINDS, Request, make_requests
from localagent.prompt import Trusted
from tests.conftest import LONG

pytestmark = pytest.mark.engine

GREEDY = Sampling(max_tokens=120)
ENGINES = load_catalog().get("lfm2-nano").backends
ROOT = Path(__file__).parents[2]
QUESTION = {"role": "user", "content": "Set a timer for 12 minutes."}


def load(engine: str, nano: dict[str, Path], **options: Any) -> EngineHost:
    threads = 1 if engine == "llamacpp" else None
    return BACKENDS[engine].host().load(nano[engine], threads=threads, **options)


@pytest.fixture(scope="module")
def hosts(nano: dict[str, Path]) -> Iterator[dict[str, EngineHost]]:
    """One host of each engine that reuses, and one that does not."""
    loaded = {engine: load(engine, nano) for engine in ENGINES}
    loaded |= {f"{engine} cold": load(engine, nano, reuse=Reuse(0)) for engine in ENGINES}
    yield loaded
    for host in loaded.values():
        host.close()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def prompt_of(host: EngineHost, request: Request) -> Prompt:
    turns = [
        {**turn, "content": Trusted(turn["content"])} if turn["role"] == "assistant" else turn
        for turn in request.messages
    ]
    return host.render(turns, list(request.tools) or None)


def run(host: EngineHost, prompt: Prompt, sampling: Sampling = GREEDY) -> tuple[list[Token], int]:
    """The tokens, and how many of the prompt were reused."""
    generation = host.generate(prompt, sampling)
    tokens = list(generation)
    assert generation.finish is not None
    assert generation.finish.prompt == len(prompt.ids)
    return tokens, generation.finish.cached


def ids(tokens: list[Token]) -> list[int]:
    return [token.id for token in tokens]


# -- the same tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_engines_agree_with_and_without_reuse(hosts: dict[str, EngineHost], kind: str) -> None:
    asked = dict(hosts)
    if not LONG and kind != "third_turn":
        del asked["mlx cold"]  # slow; that MLX reuses exactly is also what the next tests show
    for request in make_requests(kind, 1, seed=5):
        prompts = {name: prompt_of(host, request) for name, host in asked.items()}
        assert len({prompt.ids for prompt in prompts.values()}) == 1, "the same tokenizer and template"
        found = {name: ids(run(host, prompts[name])[0]) for name, host in asked.items()}
        assert len({tuple(each) for each in found.values()}) == 1, found


def test_back_to_every_checkpoint(hosts: dict[str, EngineHost], engine: str) -> None:
    warm, cold = hosts[engine], hosts[f"{engine} cold"]
    prompt = prompt_of(warm, make_requests("third_turn", 1, seed=5)[0])
    run(warm, prompt)
    seat = max(warm._prefix._seats, key=lambda seat: seat.used)
    points = [point.length for point in seat.checkpoints]
    assert len(points) > 5
    tail = prompt.ids[points[-2] :]
    # tests/hosts/mlx compares every way back to the bit, and on a CPU MLX takes ten times as long.
    step = 4 if engine == "mlx" and not LONG else 1
    for length in [*reversed(points[:-1:step]), points[1]]:
        shorter = Prompt((*prompt.ids[:length], *tail), "")
        tokens, cached = run(warm, shorter)
        assert cached >= length
        assert ids(tokens) == ids(run(cold, shorter)[0]), length


def test_only_what_is_new_is_prefilled(hosts: dict[str, EngineHost], engine: str) -> None:
    """Over a conversation with calls. llama.cpp has not evaluated the last token that it sampled."""
    host, pending = hosts[engine], int(engine == "llamacpp")
    request = make_requests("long", 1, seed=6)[0]
    turns: list[dict[str, Any]] = [{"role": "system", "content": f"{engine}: use the tools."}]
    spent = 0
    for turn in request.messages:
        if turn["role"] != "user":
            continue
        turns.append(turn)
        prompt = host.render(turns, list(request.tools))
        tokens, cached = run(host, prompt)
        if spent:
            assert cached == spent - pending
        spent = len(prompt.ids) + len(tokens)
        content = "".join(token.text for token in tokens if not token.end)
        turns.append({"role": "assistant", "content": Trusted(content)})
    assert len(turns) > 8


def test_branches_of_a_conversation_stay_cached(hosts: dict[str, EngineHost], engine: str) -> None:
    host, cold = hosts[engine], hosts[f"{engine} cold"]
    system = {"role": "system", "content": "Branches. " * 10}
    prompts = [
        host.render([system, {"role": "user", "content": f"Tell me about {word}. " * 8}])
        for word in ("bees", "the moon")
    ]
    first = [ids(run(host, prompt)[0]) for prompt in prompts]
    for prompt, before in [*zip(prompts, first, strict=True)] * 2:
        tokens, cached = run(host, prompt)
        assert ids(tokens) == before == ids(run(cold, prompt)[0])
        assert cached > len(prompt.ids) - 10, "the other branch did not push it out"


CONTINUE = """
import json, sys
from localagent import load
from localagent.hosts.protocol import Prompt
from localagent.hosts.sampling import Sampling
engine, folder, ids, nano = json.loads(sys.stdin.read())
with load(nano, backend=engine, snapshots=folder) as model:
    generation = model.host.generate(Prompt(tuple(ids), ""), Sampling(max_tokens=120))
    print(json.dumps([[token.id for token in generation], generation.finish.cached]))
"""


def test_the_next_process_goes_on(
    hosts: dict[str, EngineHost], engine: str, nano: dict[str, Path], tmp_path: Path
) -> None:
    import json

    prompt = prompt_of(hosts[engine], make_requests("long", 1, seed=7)[0])
    wanted = ids(run(hosts[f"{engine} cold"], prompt)[0])
    given = json.dumps([engine, str(tmp_path), prompt.ids, str(nano[engine])])
    found = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", CONTINUE],
            input=given,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        assert done.stderr == ""
        found.append(json.loads(done.stdout))
    assert [tokens for tokens, _ in found] == [wanted, wanted]
    assert found[0][1] == 0
    assert found[1][1] > len(prompt.ids) - 10


def test_a_damaged_snapshot_costs_time_only(
    hosts: dict[str, EngineHost],
    engine: str,
    nano: dict[str, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    prompt = prompt_of(hosts[engine], make_requests("long", 1, seed=8)[0])
    reuse = Reuse(snapshots=SnapshotFolder(tmp_path))
    with load(engine, nano, reuse=reuse) as host:
        wanted = ids(run(host, prompt)[0])
    (path,) = SnapshotFolder(tmp_path).files()
    content = bytearray(path.read_bytes())
    content[-5000] ^= 1
    path.write_bytes(content)
    with load(engine, nano, reuse=reuse) as host:
        tokens, cached = run(host, prompt)
    assert (ids(tokens), cached) == (wanted, 0)
    assert "its content is damaged" in caplog.text


# -- limits and control -------------------------------------------------------------------------------


def test_progress_of_the_prefill(hosts: dict[str, EngineHost], engine: str) -> None:
    host = hosts[engine]
    prompt = host.render([{"role": "user", "content": f"{engine} " + "count the words " * 120}])
    steps = list(host.generate(prompt, Sampling(max_tokens=2)).steps())
    progress = [step for step in steps if isinstance(step, Prefilled)]
    assert [type(step) for step in steps] == [Prefilled] * len(progress) + [Token] * 2
    assert len(progress) > 2
    done = [step.done for step in progress]
    assert done == sorted(set(done))
    assert {step.total for step in progress} == {len(prompt.ids)}
    assert max(b - a for a, b in itertools.pairwise(done)) <= 256


def test_cancelled_within_a_chunk_of_prefill(hosts: dict[str, EngineHost], engine: str) -> None:
    host = hosts[engine]
    prompt = host.render([{"role": "user", "content": f"{engine} " + "and so on, " * 300}])
    before = ids(run(host, host.render([QUESTION]))[0])
    cancel = threading.Event()
    generation = host.generate(prompt, GREEDY, cancel)
    seen = 0
    for step in generation.steps():
        assert isinstance(step, Prefilled)
        seen = step.done
        if seen > 300:
            cancel.set()
    assert generation.finish is not None
    assert (generation.finish.stop_reason, generation.finish.generated) == ("cancelled", 0)
    assert 300 < seen < len(prompt.ids) - 256
    assert ids(run(host, host.render([QUESTION]))[0]) == before
    assert ids(run(host, prompt)[0]) == ids(run(hosts[f"{engine} cold"], prompt)[0])


def test_cancelled_within_a_token(hosts: dict[str, EngineHost], engine: str) -> None:
    host = hosts[engine]
    prompt, sampling = host.render([QUESTION]), Sampling(max_tokens=100, temperature=5.0, seed=1)
    left = host.generate(prompt, sampling)
    next(left)
    left.close()
    cancelled = host.generate(prompt, sampling)
    next(cancelled)
    channel = cancelled._channel
    channel.cancel()
    put = channel._put
    cancelled.close()
    assert channel._put <= put + 1, "none but the one that was being computed"
    for generation in (left, cancelled):
        assert generation.finish is not None
        assert generation.finish.stop_reason == "cancelled"
        assert generation.finish.generated <= 1 + AHEAD + 1, (
            "the lane does not wait for this thread before that"
        )


def test_a_stop_string_ends_the_text_before_it(hosts: dict[str, EngineHost], engine: str) -> None:
    host = hosts[engine]
    prompt = host.render([{"role": "user", "content": "Say exactly: one two three four."}])
    whole = "".join(token.text for token in run(host, prompt)[0])
    for stop in {whole[3:7], whole[1:9], whole[-12:-10]} - {""}:
        generation = host.generate(prompt, Sampling(max_tokens=120, stop=(stop, "never written")))
        text = "".join(token.text for token in generation)
        assert generation.finish is not None
        assert (text, generation.finish.stop) == (whole[: whole.index(stop)], stop)
        assert generation.finish.stop_reason == "stop"
    generation = host.generate(prompt, Sampling(max_tokens=120, stop=("never written",)))
    assert "".join(token.text for token in generation) == whole
    assert generation.finish is not None
    assert generation.finish.stop is None


@pytest.mark.parametrize("more", [{}, {"temperature": 0.7, "seed": 5}, {"repetition_penalty": 1.2}])
def test_a_bias_bans_a_token_and_brings_another(hosts: dict[str, EngineHost], more: dict[str, Any]) -> None:
    for engine, host in hosts.items():
        prompt = host.render([QUESTION])
        free, _ = run(host, prompt, Sampling(max_tokens=12, logprobs=0, **more))
        banned = {token.id: -100.0 for token in free}
        without, _ = run(host, prompt, Sampling(max_tokens=12, logit_bias=banned, logprobs=2, **more))
        assert not {token.id for token in without} & banned.keys(), engine
        # What is told is the model's own opinion, which has not changed.
        first = without[0].logprobs
        assert first is not None and (more.get("temperature") or first.top[0][0] == free[0].id or more)
        wanted = max(host.vocabulary.special) + 40
        only, _ = run(host, prompt, Sampling(max_tokens=3, logit_bias={wanted: 100.0}, **more))
        assert [token.id for token in only] == [wanted] * 3, engine


def test_a_bias_is_for_its_own_generation_alone(hosts: dict[str, EngineHost]) -> None:
    for engine, host in hosts.items():
        prompt = host.render([QUESTION])
        alone, _ = run(host, prompt, Sampling(max_tokens=10))
        bans = {alone[0].id: -100.0}
        with_ban, _ = run(host, prompt, Sampling(max_tokens=10, logit_bias=bans))
        both = [host.generate(prompt, Sampling(max_tokens=10, logit_bias=each)) for each in (None, bans)]
        assert [[token.id for token in one] for one in both] == [
            [token.id for token in one] for one in (alone, with_ban)
        ], engine


def test_a_bias_for_a_token_that_there_is_not(hosts: dict[str, EngineHost]) -> None:
    for host in hosts.values():
        with pytest.raises(UsageError, match="logit_bias has an id outside the vocabulary"):
            host.generate(host.render([QUESTION]), Sampling(logit_bias={host.vocabulary.size: 1}))


def test_both_engines_report_the_same_logprobs(hosts: dict[str, EngineHost]) -> None:
    found = {}
    for engine in ENGINES:
        host = hosts[engine]
        tokens, _ = run(host, host.render([QUESTION]), Sampling(max_tokens=12, logprobs=3))
        for token in tokens:
            assert token.logprobs is not None
            values = [value for _, value in token.logprobs.top]
            assert len(values) == 3
            assert values == sorted(values, reverse=True)
            assert token.logprobs.top[0] == (token.id, token.logprobs.token), "greedy takes the likeliest"
            assert values[0] <= 0
        found[engine] = [value for token in tokens for _, value in token.logprobs.top[:1]]  # type: ignore[union-attr]
        unasked, _ = run(host, host.render([QUESTION]), Sampling(max_tokens=12))
        assert [token.logprobs for token in unasked] == [None] * len(unasked)
        hot, _ = run(host, host.render([QUESTION]), Sampling(8, temperature=50.0, top_k=1, logprobs=0))
        assert [token.logprobs.token for token in hot] == found[engine][:8], "before temperature"  # type: ignore[union-attr]
    assert found["llamacpp"] == pytest.approx(found["mlx"], abs=0.05)


def test_overflow_says_both_numbers(nano: dict[str, Path], engine: str) -> None:
    with load(engine, nano, context=64) as host, pytest.raises(ContextOverflow) as overflow:
        host.generate(host.render([{"role": "user", "content": "word " * 90}]), GREEDY)
    assert overflow.value.prompt_tokens > 90
    assert overflow.value.context == 64


def test_the_context_can_be_filled(nano: dict[str, Path], engine: str) -> None:
    with load(engine, nano, context=64) as host:
        prompt = Prompt(tuple(range(20, 80)), "")
        tokens, _ = run(host, prompt, Sampling(temperature=3.0, seed=3))
        assert len(tokens) == 5 or tokens[-1].end


@settings(max_examples=40)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=8),
            st.sampled_from(
                ["<|im_end|>", "<|im_start|>", "<|tool_call_start|>", "<think>", "<|im", "_end|>", "<"]
            ),
        ),
        max_size=6,
    )
)
def test_content_is_never_a_control_token(hosts: dict[str, EngineHost], pieces: list[str]) -> None:
    content = "".join(pieces)
    plain = hosts["mlx"].render([{"role": "user", "content": ""}]).ids
    prompts = [hosts[engine].render([{"role": "user", "content": content}]) for engine in ENGINES]
    assert prompts[0].ids == prompts[1].ids
    special = set(range(16))
    assert [i for i in prompts[0].ids if i in special] == [i for i in plain if i in special]
    text = content.encode("utf-8", "replace").decode()
    assert text in hosts["mlx"].detokenize(prompts[1].ids).decode()


def test_a_model_that_does_not_fit_is_refused(
    nano: dict[str, Path], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"localagent.hosts.{engine}.host.available_memory", lambda **_: 8_000_000)
    with pytest.raises(NotEnoughMemory, match=r"a context of [\d,]+ tokens would fit"):
        load(engine, nano, context=4096)
    monkeypatch.setenv("LOCALAGENT_MEMORY_CHECK", "0")
    load(engine, nano, context=4096).close()


def test_closing_gives_memory_back(nano: dict[str, Path], engine: str) -> None:
    """Loaded, used and closed again and again: what is resident does not grow by another model each time.

    Other rounds go before those that count: in them the allocator's arenas grow to what they need.
    """
    process = psutil.Process(os.getpid())
    resident = []
    first, counted = (40, 50) if LONG else (30, 30)
    for _ in range(first + counted):
        with load(engine, nano, context=4096) as host:
            run(host, host.render([QUESTION]), Sampling(max_tokens=3))
        resident.append(process.memory_info().rss)
    grown = (resident[-1] - resident[first - 1]) / counted
    assert grown < 1_250_000, f"{grown:,.0f} bytes more in every round; a model takes twice that"


def test_a_closed_host_says_so(nano: dict[str, Path], engine: str) -> None:
    host = load(engine, nano, context=256)
    host.close()
    with pytest.raises(UsageError, match="closed"):
        host.render([QUESTION])


# -- what a past may not change -----------------------------------------------------------------------


def test_a_consumer_that_leaves_within_a_character(nano: dict[str, Path], engine: str) -> None:
    """The byte that came without its character is not taken for part of the text."""
    with load(engine, nano) as host:
        prompt = host.render([QUESTION])
        for seed in range(12):
            generation = host.generate(prompt, Sampling(max_tokens=9, temperature=50.0, seed=seed))
            next(generation)
            generation.close()
            assert host.render([QUESTION]).ids == prompt.ids
            text = "".join(
                token.text
                for token in host.generate(prompt, Sampling(max_tokens=3, temperature=50.0, seed=seed))
            )
            shown = [QUESTION, {"role": "assistant", "content": text}, QUESTION]
            assert host.detokenize(host.render(shown).ids).decode() == host.render(shown).text


def test_the_words_of_a_past_do_not_cut_other_words(nano: dict[str, Path], engine: str) -> None:
    with load(engine, nano) as host:
        other = [QUESTION, {"role": "assistant", "content": "Hello there, Helloing is it."}, QUESTION]
        before = host.render(other).ids
        prompt = host.render([QUESTION])
        host._prompting.transcripts.add(
            prompt.key.text + "Hello", (*prompt.ids, *host.tokenize("Hello", False))
        )  # type: ignore[union-attr]
        assert host.render(other).ids == before
        shown = [QUESTION, {"role": "assistant", "content": "Hello"}, QUESTION]
        assert host.render(shown).ids[: len(prompt.ids)] == prompt.ids


def test_ids_that_a_caller_put_behind_a_prompt_are_not_its_text(nano: dict[str, Path], engine: str) -> None:
    with load(engine, nano) as host:
        prompt = host.render([QUESTION])
        longer = dataclasses.replace(prompt, ids=(*prompt.ids, *host.tokenize("Well, ", False)))
        text = "".join(token.text for token in run(host, longer)[0] if not token.end)
        shown = host.render([QUESTION, {"role": "assistant", "content": text}])
        assert host.detokenize(shown.ids).decode() == shown.text


def test_a_snapshot_for_a_larger_context(nano: dict[str, Path], engine: str, tmp_path: Path) -> None:
    reuse = Reuse(snapshots=SnapshotFolder(tmp_path))
    ids = tuple(range(20, 90)) * 8
    with load(engine, nano, context=1024, reuse=reuse) as host:
        run(host, Prompt(ids, ""), Sampling(max_tokens=3))
    with load(engine, nano, context=256, reuse=reuse) as host:
        tokens, cached = run(host, Prompt(ids[:200], ""), Sampling(max_tokens=3))
    assert cached == 0
    with load(engine, nano, context=256, reuse=Reuse(0)) as host:
        assert run(host, Prompt(ids[:200], ""), Sampling(max_tokens=3))[0] == tokens


def test_closing_lets_saved_states_go(nano: dict[str, Path], engine: str) -> None:
    host = load(engine, nano, lanes=1)
    for start in (20, 60):
        run(host, Prompt(tuple(range(start, start + 200)), ""), Sampling(max_tokens=2))
    assert host._prefix.nbytes > 0
    host.close()
    assert host._prefix.nbytes == 0


def test_the_end_of_an_answer_is_a_checkpoint(hosts: dict[str, EngineHost], engine: str) -> None:
    host = hosts[engine]
    asked = [{"role": "system", "content": f"{engine} answers."}, QUESTION]
    prompt = host.render(asked)
    tokens, _ = run(host, prompt)
    text = Trusted("".join(token.text for token in tokens if not token.end))
    for again in ("Thanks.", "Something else, please."):
        turns = [*asked, {"role": "assistant", "content": text}, {"role": "user", "content": again}]
        _, cached = run(host, host.render(turns))
        assert cached >= len(prompt.ids) + len(tokens) - 1
