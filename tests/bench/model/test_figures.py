"""Every figure of models whose speed and answers are known: what is read, written, timed, counted and skipped."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest

from localagent.errors import ContextOverflow, NotEnoughMemory, UnknownModel
from localagent.hosts.protocol import Finish, Token
from localagent.hosts.sampling import Sampling
from localagent.messages import AssistantMessage, TextPart, ToolCallPart
from localagent.messages.usage import Timings, Usage
from localagent.turn import Done
from localagent_bench.model import conversation, speed
from localagent_bench.model.conversation import QUESTIONS, measure_reuse
from localagent_bench.model.energy import NotTold
from localagent_bench.model.sides import Opened, Side
from localagent_bench.model.speed import Sizes, ids_of, measure_speed, words
from localagent_bench.results import Results


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Known:
    """A host that reads a token in `reads` seconds and writes one in `writes`; in each round it is slower.

    It ends its turn after `most` tokens. What it was asked for: the lengths of prompts, and of answers.
    """

    name, engine, cache_bytes = "known", "llamacpp", 3_000_000

    def __init__(
        self, clock: Clock, reads: float, writes: float, context: int = 1000, most: int = 10**6
    ) -> None:
        self.clock, self.reads, self.writes, self.context, self.most = clock, reads, writes, context, most
        self.asked: list[tuple[int, int | None]] = []
        self.chunks: list[tuple[int, ...]] = []
        self.scopes: list[str] = []
        self.slower = 0
        self._kept: tuple[int, ...] = ()

    def scoped(self, scope: str) -> Known:
        self.scopes.append(scope)
        self.slower += 1
        return self

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        assert not special
        return tuple(crc32(word.encode()) for word in text.split())

    def generate(self, prompt: Any, sampling: Sampling) -> Generation:
        assert (sampling.temperature, sampling.top_k) == (1.0, 1) or sampling.max_tokens == 1
        self.asked.append((len(prompt.ids), sampling.max_tokens))
        cached = len(self._kept) if self._kept and prompt.ids[: len(self._kept)] == self._kept else 0
        self.chunks.append(prompt.ids[cached:])
        self._kept = prompt.ids if sampling.max_tokens == 1 else ()
        return Generation(self, len(prompt.ids), cached, min(sampling.max_tokens or 0, self.most))


class Generation:
    def __init__(self, host: Known, prompt: int, cached: int, written: int) -> None:
        self.host, self.written = host, written
        self.seconds = (prompt - cached) * host.reads * host.slower
        self.finish = Finish("length", prompt, cached, written, Timings(prefill=self.seconds))

    def __iter__(self) -> Iterator[Token]:
        self.host.clock.now += self.seconds
        for at in range(self.written):
            self.host.clock.now += self.host.writes * self.host.slower if at else 0
            yield Token(at, "x", special=False)


class Meter:
    """10 joules in each second."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def read(self) -> float:
        return self.clock.now

    def since(self, before: float) -> float:
        return 10 * (self.clock.now - before)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(speed, "perf_counter", made)
    monkeypatch.setattr(speed, "EnergyMeter", lambda: Meter(made))
    grown = count(0, 5_000_000)
    monkeypatch.setattr(speed, "resident", lambda: next(grown))
    monkeypatch.setattr(speed, "weights_of", lambda *_: None)
    return made


def side(name: str, host: Known, seconds: float | None = 1.5) -> Opened:
    return Opened(Side(name), SimpleNamespace(host=host), seconds, 2_500_000)  # type: ignore[arg-type]


def test_speed_is_the_median_of_the_rounds_with_the_least_and_the_most(clock: Clock) -> None:
    one, two = Known(clock, 0.001, 0.01), Known(clock, 0.002, 0.02)
    results, told = Results("model", {}), list[tuple[str, int, int]]()
    sides = [side("one", one), side("shared", one, None), side("two", two)]
    measure_speed(results, sides, Sizes((0, 100), 16, 8, 2), lambda *step: told.append(step))
    rows = results.run.rows
    # The warm-up is the first generation; then each round of each depth is slower by one more time.
    assert rows["model.speed"] == [
        pytest.approx(
            {"side": name, "depth": depth, "rounds": 2, "watts": 10.0}
            | {"prompt": sum(prompt) / 2, "prompt_low": prompt[1], "prompt_high": prompt[0]}
            | {"decode": sum(decode) / 2, "decode_low": decode[1], "decode_high": decode[0]}
            | {"joules": (10 / decode[0] + 10 / decode[1]) / 2}
        )
        for name, depth, prompt, decode in (
            ("two", 0, (500 / 2, 500 / 4), (50 / 2, 50 / 4)),
            ("one", 0, (1000 / 2, 1000 / 4), (100 / 2, 100 / 4)),
            ("two", 100, (500 / 3, 500 / 5), (50 / 3, 50 / 5)),
            ("one", 100, (1000 / 3, 1000 / 5), (100 / 3, 100 / 5)),
        )
    ]
    assert rows["model.ratio"] == [
        pytest.approx(
            {"side": "two", "against": "one", "depth": depth, "what": what, "rounds": 2}
            | dict.fromkeys(("ratio", "low", "high"), 0.5)
        )
        for depth in (0, 100)
        for what in ("prompt", "decode")
    ]
    assert rows["model.memory"] == [
        {"side": name, "engine": "llamacpp", "context": 1000, "weights": None, "seconds": 1.5}
        | {"loaded": 2.5, "deep": 5.0, "kept": 3.0}
        for name in ("one", "two")
    ]
    assert results.run.skipped == {}
    assert told == [
        *(("warming up one", 0, 2), ("warming up two", 1, 2)),
        *(("speed, round 1, depth 0", 0, 4), ("speed, round 1, depth 100", 1, 4)),
        *(("speed, round 2, depth 0", 2, 4), ("speed, round 2, depth 100", 3, 4), ("speed", 4, 4)),
    ]


def test_a_depth_is_read_first_and_each_round_reads_something_new_after_it(clock: Clock) -> None:
    host = Known(clock, 0.001, 0.01)
    measure_speed(Results("model", {}), [side("one", host)], Sizes((0, 100), 16, 8, 2), lambda *_: None)
    deep = [(100, 1), (116, 9)]
    assert host.asked == [*deep, (16, 9), *deep, (16, 9), *deep], "the warm-up is at the greatest depth"
    assert set(host.scopes) == {"speed"}
    read = [chunk for chunk in host.chunks if len(chunk) == 16]
    assert len(read) == len({*read}) == 5
    assert len({chunk for chunk in host.chunks if len(chunk) == 100}) == 1


def test_sides_take_turns(clock: Clock) -> None:
    one, two = Known(clock, 0.001, 0.01), Known(clock, 0.002, 0.02)
    order: list[str] = []
    for name, host in (("one", one), ("two", two)):
        host.scoped = lambda scope, name=name, host=host: order.append(name) or host  # type: ignore[method-assign]
        host.slower = 1
    measure_speed(
        Results("model", {}), [side("one", one), side("two", two)], Sizes((0,), 8, 8, 3), lambda *_: None
    )
    assert order == ["one", "two", "two", "one", "one", "two", "two", "one"]


@pytest.mark.parametrize(
    ("wanted", "most", "asked", "rate"),
    [
        (8, 9, [9], 100),
        (8, 3, [9, 7, 5, 3], 100),
        (8, 2, [9, 8, 7, 6, 5, 4, 3, 2], 100),
        (16, 2, [17, 16, 15, 14, 13, 12, 11, 10], 100),
        (18, 2, [19, 18, 17, 16, 15, 14, 13, 12], None),
        (8, 1, [9] * 8, None),
    ],
)
def test_a_model_that_ends_its_turn_is_asked_again(
    clock: Clock, wanted: int, most: int, asked: list[int], rate: float | None
) -> None:
    host = Known(clock, 0.001, 0.005, most=most)
    results = Results("model", {})
    measure_speed(results, [side("one", host)], Sizes((0,), 4, wanted, 1), lambda *_: None)
    assert host.asked[len(asked) :] == [(4, most_tokens) for most_tokens in asked]
    assert len({*host.chunks}) == 2 * len(asked), "each time something else"
    (row,) = results.run.rows["model.speed"]
    assert row.get("decode") == (None if rate is None else pytest.approx(rate))
    assert row["prompt"] == pytest.approx(500)
    assert row["watts"] == (None if rate is None else pytest.approx(10))
    why = {"decoding of one at a depth of 0": "the model ends its turn at once"}
    assert results.run.skipped == ({} if rate else why)


def test_depths_without_room_are_skipped(clock: Clock) -> None:
    host = Known(clock, 0.001, 0.01, context=1124)
    results = Results("model", {})
    measure_speed(results, [side("one", host)], Sizes((1100, 1101), 16, 8, 1), lambda *_: None)
    assert [row["depth"] for row in results.run.rows["model.speed"]] == [1100]
    assert results.run.skipped == {
        "one at a depth of 1,101": "the context of 1,124 tokens has no room for 24 more"
    }


def test_a_context_without_room_for_anything_has_its_memory_told(clock: Clock) -> None:
    host = Known(clock, 0.001, 0.01, context=10)

    def refuses(*_: Any) -> Any:
        raise ContextOverflow(24, 10)

    host.generate = refuses  # type: ignore[method-assign]
    results = Results("model", {})
    measure_speed(results, [side("one", host)], Sizes((0,), 16, 8, 1), lambda *_: None)
    assert list(results.run.rows) == ["model.memory"]


def test_without_energy_the_reason_is_told(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise NotTold("not told here: root alone")

    monkeypatch.setattr(speed, "EnergyMeter", none)
    results = Results("model", {})
    measure_speed(results, [side("one", Known(clock, 0.001, 0.01))], Sizes((0,), 16, 8, 1), lambda *_: None)
    assert results.run.skipped == {"power": "not told here: root alone"}
    (row,) = results.run.rows["model.speed"]
    assert (row["watts"], row["joules"]) == (None, None)


def test_what_was_timed_before_an_interrupt_is_kept(clock: Clock) -> None:
    one, two = Known(clock, 0.001, 0.01), Known(clock, 0.002, 0.02)
    results = Results("model", {})

    def broken(*_: Any) -> Any:
        raise KeyboardInterrupt

    def tell(what: str, done: int, total: int) -> None:
        if what == "speed, round 2, depth 0":
            two.generate = broken  # type: ignore[method-assign]  # after the other one, whose round counts

    with pytest.raises(KeyboardInterrupt):
        measure_speed(results, [side("one", one), side("two", two)], Sizes((0,), 8, 8, 3), tell)
    assert [(row["side"], row["rounds"]) for row in results.run.rows["model.speed"]] == [
        ("two", 1),
        ("one", 2),
    ]
    assert [row["rounds"] for row in results.run.rows["model.ratio"]] == [1, 1]


def test_weights_are_as_large_as_their_files(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, folder = tmp_path / "a.gguf", tmp_path / "mlx"
    file.write_bytes(b"x" * 1500)
    folder.mkdir()
    for name, size in (("one.safetensors", 1000), ("two.safetensors", 500), ("tokenizer.json", 9000)):
        (folder / name).write_bytes(b"x" * size)
    asked = []

    def weights(model: str, backend: str | None) -> Path | None:
        asked.append((model, backend))
        if model == "unknown":
            raise UnknownModel("no such model")
        return {"file": file, "folder": folder, "gone": tmp_path / "none"}.get(model)

    monkeypatch.setattr(speed, "weights_of", weights)
    results = Results("model", {})
    for name in ("file", "folder", "gone", "unknown", "not here"):
        opened = Opened(
            Side(name, (("backend", "mlx"),)),
            SimpleNamespace(host=Known(clock, 1, 1)),
            1.5,
            -7,  # type: ignore[arg-type]
        )
        measure_speed(results, [opened], Sizes(()), lambda *_: None)
    rows = results.run.rows["model.memory"]
    assert [row["weights"] for row in rows] == [0.0015, 0.0015, None, None, None]
    assert asked[0] == ("file", "mlx")
    assert {row["loaded"] for row in rows} == {0}, "a process that has shrunk has not grown"


def test_so_many_tokens_of_invented_words_are_drawn(clock: Clock) -> None:
    opened = side("one", Known(clock, 1, 1))
    ids = ids_of(opened, 500, "a")
    assert len(ids) == 500
    assert len({*ids}) > 100
    assert ids == ids_of(opened, 500, "a")
    assert ids[:50] == ids_of(opened, 50, "a")[:50]
    assert ids_of(opened, 50, "b") != ids_of(opened, 50, "a")
    assert ids_of(opened, 0, "a") == ()
    assert words(3, "a") == words(3, "a") != words(3, "b")
    assert len(words(200, "a").split()) in range(500, 1200)


# -- a conversation ---------------------------------------------------------------------------------------


class Speaker:
    """A model that answers each turn after a time of its own, with three tokens; it was told `heard`."""

    def __init__(self, clock: Clock, seconds: float, answers: dict[int, Any] | None = None) -> None:
        self.clock, self.seconds, self.answers = clock, seconds, answers or {}
        self.heard: list[tuple[str, list[str], Any]] = []
        self.options: list[dict[str, Any]] = []
        self.texts: list[str] = []
        """The last words of the user, in each turn."""
        self.times: list[float] = []
        self.scope = ""
        self.host = SimpleNamespace(name="known")
        self.name = "known"

    def __enter__(self) -> Speaker:
        return self

    def __exit__(self, *_: object) -> None:
        self.heard.append(("closed", [], None))

    def stream(self, messages: Any, *, tools: Any = None, **options: Any) -> Iterator[Any]:
        told = messages if isinstance(messages, list) else [messages]
        self.heard.append((self.scope, [getattr(each, "role", each) for each in told], tools))
        self.options.append(options)
        spoken = [each.content[0].text for each in told if getattr(each, "role", "") == "user"]
        self.texts.append(spoken[-1] if spoken else "")
        turn = sum(scope == self.scope for scope, *_ in self.heard)
        answer = self.answers.get(turn, (TextPart(text="Well."),))
        if isinstance(answer, Exception):
            raise answer
        self.clock.now += self.seconds * turn
        self.times = [self.clock.now, self.clock.now + 99]
        self.clock.now += 100
        usage = Usage(input=100 * turn, output=10, cache_read=100 * turn - 30)
        yield "an event"
        yield Done(AssistantMessage(content=answer, usage=usage), (1, 2, 3))


@pytest.fixture
def spoken(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    def view(opened: Opened, scope: str) -> tuple[Any, Any]:
        model: Any = opened.model
        model.scope = scope
        return model, model

    monkeypatch.setattr(conversation, "perf_counter", clock)
    monkeypatch.setattr(Opened, "view", view)
    monkeypatch.setattr(conversation, "quantized", lambda model, backend: backend)
    return clock


def held(
    warm: Speaker, cold: Speaker | Exception, exchanges: int, rounds: int, backend: Any = None
) -> tuple[Results, list[str], list[tuple[str, int, int]], list[Any]]:
    results, told, loaded = Results("model", {}), list[tuple[str, int, int]](), list[Any]()

    def load(name: str, options: Any) -> Any:
        loaded.append((name, options))
        if isinstance(cold, Exception):
            raise cold
        return cold

    settings = (("threads", 2), ("temperature", 0.5), ("backend", backend))
    opened = Opened(Side("one", settings), warm, 1.0, 0)  # type: ignore[arg-type]
    shared = Opened(Side("two"), warm, None, 0)  # type: ignore[arg-type]
    faults = measure_reuse(
        results, [opened, shared], load, exchanges, rounds, lambda *step: told.append(step)
    )
    return results, faults, told, loaded


def test_a_conversation_is_held_again_in_each_round_and_without_reuse(spoken: Clock) -> None:
    warm, cold = Speaker(spoken, 0.001), Speaker(spoken, 0.010)
    results, faults, told, loaded = held(warm, cold, 11, 2)
    assert faults == []
    name = "one threads=2 temperature=0.5 backend=None"
    rows = results.run.rows["model.reuse"]
    assert len(rows) == 11
    for turn, row in enumerate(rows[:3], 1):
        first, again = 1 * turn, 10 * turn
        assert row == pytest.approx(
            {"side": name, "turn": turn, "prompt": 100 * turn, "prefilled": 30, "same": True}
            | {"new": 100 if turn == 1 else 90}
            | dict.fromkeys(("first", "first_low", "first_high"), first)
            | dict.fromkeys(("cold", "cold_low", "cold_high"), again)
        )
    assert told == [(f"conversation, {name}", at, 4) for at in range(5)]
    assert loaded == [("one", {"threads": 2, "backend": None, "prefix_cache": 0})]
    talk = [["user", *["assistant", "user"] * at] for at in range(11)]
    assert warm.heard == [
        (scope, each, None) for scope in ("conversation 0", "conversation 1") for each in talk
    ]
    assert [scope for scope, *_ in cold.heard].count("conversation 1") == 11
    assert cold.heard[0] == ("", ["Warm up. " * 20], None)
    assert cold.options[0] == {"max_tokens": 2}
    assert cold.heard[-1][0] == "closed"
    assert warm.options[0] == cold.options[-1] == {"max_tokens": 60, "temperature": 0.0, "top_p": None}


def test_questions_come_in_turn_and_begin_again(spoken: Clock) -> None:
    asked: list[str] = []

    class Listening(Speaker):
        def stream(self, messages: Any, **options: Any) -> Iterator[Any]:
            asked.append(messages[-1].content[0].text if isinstance(messages, list) else "")
            return super().stream(messages, **options)

    held(Listening(spoken, 1), Speaker(spoken, 1), 11, 1)
    assert asked == [*QUESTIONS, QUESTIONS[0]]


def test_as_many_requests_as_are_asked_for_can_be_answered_with_the_tools_of_the_first(spoken: Clock) -> None:
    warm = Speaker(spoken, 0.001)
    warm.name = "lfm2-nano"
    results, *_ = held(warm, Speaker(spoken, 0.010), 30, 1)
    assert len(results.run.rows["model.reuse"]) == 30
    assert len({*warm.texts}) == 30


def test_a_call_is_answered_and_the_answer_is_a_turn_of_its_own(spoken: Clock) -> None:
    calls = (ToolCallPart(id="1", name="f", arguments={}), ToolCallPart(id="2", name="g", arguments={}))
    warm = Speaker(spoken, 0.001, {1: calls})
    warm.name = "lfm2-nano"
    results, *_ = held(warm, Speaker(spoken, 0.010, {1: calls}), 2, 1)
    assert [row["turn"] for row in results.run.rows["model.reuse"]] == [1, 2, 3]
    assert [roles for _, roles, _ in warm.heard] == [
        ["user"],
        ["user", "assistant", "tool"],
        ["user", "assistant", "tool", "assistant", "user"],
    ]
    asked = warm.texts
    assert asked[0] == asked[1] != asked[2]
    assert (asked[0], asked[2]) == (
        "Now start a 794 minute timer named xbhodrnr.",
        "Now start a 725 minute timer.",
    ), "figures of another day are of the same conversation"
    offered = [tools for *_, tools in warm.heard]
    assert len(offered[0]) == 4
    assert offered == [offered[0]] * 3


@pytest.mark.parametrize("where", ["again", "cold"])
@pytest.mark.parametrize("backend", [None, True, False])
def test_other_tokens_are_a_fault_of_weights_that_are_not_quantized(
    spoken: Clock, where: str, backend: bool | None
) -> None:
    """What says whether they are is the backend, here."""

    class Forgetful(Speaker):
        def stream(self, *given: Any, **options: Any) -> Iterator[Any]:
            *_, done = super().stream(*given, **options)
            once = len(self.heard) == 5  # of four turns in two rounds, and of a warm-up and as many
            yield Done(done.message, (1, 2) if once else (1, 2, 3))

    kinds = (Forgetful, Speaker) if where == "again" else (Speaker, Forgetful)
    results, faults, *_ = held(kinds[0](spoken, 1), kinds[1](spoken, 1), 4, 2, backend)
    wrong = 0 if where == "again" else 3
    assert [row["same"] for row in results.run.rows["model.reuse"]] == [at != wrong for at in range(4)]
    name = f"one threads=2 temperature=0.5 backend={ {None: 'None', True: 'on', False: 'off'}[backend] }"
    assert faults == ([f"{name}: reusing a prefix has changed the tokens"] if backend is False else [])


def test_a_conversation_that_does_not_fit_is_told_as_far_as_it_went(spoken: Clock) -> None:
    results, *_ = held(Speaker(spoken, 1, {3: ContextOverflow(9, 7)}), Speaker(spoken, 1), 5, 2)
    (what,) = results.run.skipped
    assert what.startswith("the rest of the conversation with one")
    assert "9 tokens and the context window holds 7" in results.run.skipped[what]
    rows = results.run.rows["model.reuse"]
    assert [(row["turn"], row["same"], "first" in row, "cold" in row) for row in rows] == [
        (1, None, True, False),
        (2, None, True, False),
    ]


def test_without_memory_for_a_second_copy_the_first_is_told(spoken: Clock) -> None:
    results, *_ = held(Speaker(spoken, 1), NotEnoughMemory("too large"), 2, 2)
    (what,) = results.run.skipped
    assert what.startswith("the conversation with one") and what.endswith("without reuse")
    assert results.run.skipped[what] == "too large"
    assert [row["same"] for row in results.run.rows["model.reuse"]] == [None, None]
