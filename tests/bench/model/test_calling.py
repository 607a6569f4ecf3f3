"""What is counted of answers to tasks, side by side, and how each side is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from localagent.errors import ContextOverflow, TemplateFailed, UsageError
from localagent.messages import AssistantMessage, MalformedToolCallPart, TextPart, ToolCallPart
from localagent.messages.usage import Usage
from localagent.nano.requests import make_requests
from localagent.turn import Done
from localagent_bench.model import calling
from localagent_bench.model.calling import measure_calling
from localagent_bench.model.sides import Opened, Side
from localagent_bench.model.tasks import Task, nano_tasks, sample
from localagent_bench.results import Results
from localagent_bench.statistics import bootstrap, mcnemar, wilson
from parsers import DIALECTS


@dataclass
class Said:
    """An answer: whether it is right, what it took, and what is in it."""

    right: bool
    seconds: float
    first: float | None = None
    calls: int = 0
    malformed: int = 0
    tokens: int = 0
    cut: bool = False
    relaxed: bool = False


@dataclass
class Speaker:
    """A model that gives these answers, task by task, on the clock of the module."""

    answers: list[Said | Exception]
    shows: bool = True
    dialect: Any = DIALECTS["lfm2"]
    now: float = 0.0
    times: list[float] = field(default_factory=list)
    asked: list[tuple[str, Any, Any, Any]] = field(default_factory=list)
    scope: str = ""

    def render(self, text: str, *, tools: Any) -> Any:
        return SimpleNamespace(text=f"{text} {tools[0]['function']['name'] if self.shows else 'get_'}")

    def stream(self, messages: Any, *, tools: Any, **options: Any) -> Iterator[Any]:
        self.asked.append((self.scope, messages, tools, options))
        said = self.answers.pop(0)
        began = self.now
        if isinstance(said, Exception):
            self.now += 1
            raise said
        self.now += said.seconds
        self.times = [] if said.first is None else [began + said.first, 10**9]
        parts: list[Any] = [TextPart(text="right" if said.right else "wrong" * 200)]
        parts += [ToolCallPart(id=str(at), name="f", arguments={}) for at in range(said.calls)]
        parts += [MalformedToolCallPart(id="", raw="[f(", reason="truncated") for _ in range(said.malformed)]
        message = AssistantMessage(
            content=tuple(parts),
            usage=Usage(input=1000, output=said.tokens),
            stop_reason="length" if said.cut else "stop",
            raw=parts[0].text,
        )
        yield "an event"
        yield Done(message, (), relaxed=("something",) * said.relaxed)  # type: ignore[arg-type]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Any:
    speaking: list[Speaker] = []

    def view(opened: Opened, scope: str) -> Any:
        model: Any = opened.model
        model.scope = scope
        speaking[:] = [model]
        return model, model

    monkeypatch.setattr(Opened, "view", view)
    monkeypatch.setattr(calling, "perf_counter", lambda: speaking[0].now)

    def measure(tasks: list[Task], **sides: Speaker) -> tuple[Results, list[tuple[str, int, int]]]:
        results, told = Results("model", {}), list[tuple[str, int, int]]()
        opened = [
            Opened(Side(name, (("temperature", 0.5), ("threads", 2))), each, 1.0, 0)  # type: ignore[arg-type]
            for name, each in sides.items()
        ]
        options = {"temperature": 0.0, "max_tokens": 9}
        measure_calling(results, opened, tasks, "these", options, 3, lambda *step: told.append(step))
        return results, told

    return measure


def task(name: str, kind: str = "call", calls: bool = True, system: str = "") -> Task:
    told = [{"role": "system", "content": system}] if system else []
    function = {"name": "get_weather", "description": "\u00fcber", "parameters": {"type": "object"}}
    return Task(
        name,
        kind,
        (*told, {"role": "user", "content": f"Do {name}!"}),
        ({"type": "function", "function": function},),
        lambda message: "" if message.text == "right" else "not right",
        calls,
    )


TASKS = [task("a"), task("b"), task("c", "none", calls=False), task("d", "none", calls=False)]
BASE, OTHER = "base temperature=0.5 threads=2", "other temperature=0.5 threads=2"


def base() -> Speaker:
    return Speaker(
        [
            Said(True, 2, 0.5, calls=1, tokens=10),
            Said(False, 4, 1.0, tokens=20),
            Said(True, 6, tokens=30),
            Said(False, 8, 2.0, calls=2, malformed=1, tokens=40, cut=True, relaxed=True),
        ]
    )


def other() -> Speaker:
    return Speaker(
        [
            ContextOverflow(9, 7),
            Said(True, 8, 4.0, calls=1, tokens=1),
            Said(True, 3, 2.5, tokens=2),
            Said(True, 2, 0.5, tokens=3),
        ]
    )


def row(side: str, group: str, tasks: int, right: int, **more: Any) -> Any:
    share = wilson(right, tasks)
    found = dict.fromkeys(("calls", "missed", "needless", "malformed", "refused", "cut", "relaxed"), 0)
    shares = {"exact": 100 * right / tasks, "low": 100 * share.low, "high": 100 * share.high}
    return pytest.approx(
        {"side": side, "set": "these", "group": group, "tasks": tasks} | shares | found | more
    )


def test_what_each_side_makes_of_the_tasks_is_counted(measured: Any) -> None:
    results, told = measured(TASKS, base=base(), other=other())
    cut = {"malformed": 1, "cut": 1, "relaxed": 1}
    assert results.run.rows["model.tools"] == [
        row(BASE, "all", 4, 2, calls=3, missed=1, needless=1, tokens=100, seconds=5, first=1, **cut),
        row(BASE, "call", 2, 1, calls=1, missed=1, tokens=30, seconds=3, first=0.75),
        row(BASE, "none", 2, 1, calls=2, needless=1, tokens=70, seconds=7, first=2, **cut),
        row(OTHER, "all", 4, 3, calls=1, refused=1, tokens=6, seconds=3, first=2.5),
        row(OTHER, "call", 2, 1, calls=1, refused=1, tokens=1, seconds=8, first=4),
        row(OTHER, "none", 2, 2, tokens=5, seconds=2.5, first=1.5),
    ]
    difference = bootstrap([-100.0, 100.0, 0.0, 100.0], 3)
    assert results.run.rows["model.paired"] == [
        {
            "side": OTHER,
            "against": BASE,
            "set": "these",
            "tasks": 4,
            "exact": 75,
            "other": 50,
            "gained": 2,
            "lost": 1,
        }
        | {"difference": difference.value, "low": difference.low, "high": difference.high}
        | {"p": mcnemar(2, 1), "time": 0.5}
    ]
    assert told == [("tool calling, these", at, 4) for at in range(5)]
    assert results.run.skipped == {}


def test_what_is_not_exact_is_told_as_far_as_one_reads_it(measured: Any) -> None:
    results, _ = measured(TASKS, base=base(), other=other())
    wrote = ("wrong" * 200)[:500]
    assert results.run.cases == [
        {"table": "model.tools", "side": side, "id": name, "group": group, "fault": fault, "wrote": text}
        for side, name, group, fault, text in (
            (OTHER, "a", "call", "refused: ContextOverflow", str(ContextOverflow(9, 7))),
            (BASE, "b", "call", "not right", wrote),
            (BASE, "d", "none", "not right", wrote),
        )
    ]


def test_sides_take_turns_and_each_task_is_asked_by_itself(measured: Any) -> None:
    one, two = base(), other()
    order: list[str] = []
    for name, each in (("one", one), ("two", two)):
        spoken = each.stream
        each.stream = lambda *given, spoken=spoken, name=name, **more: (
            order.append(name) or spoken(*given, **more)
        )  # type: ignore[method-assign,misc]
    measured(TASKS, base=one, other=two)
    assert order == ["two", "one", "one", "two", "two", "one", "one", "two"]
    assert one.asked == [
        (f"{BASE}, task {at}", list(task.messages), task.tools, {"temperature": 0.5, "max_tokens": 9})
        for at, task in enumerate(TASKS, 1)
    ]


def test_one_kind_of_tasks_is_no_group_and_one_side_has_no_pair(measured: Any) -> None:
    results, _ = measured(TASKS[:2], base=base())
    assert [row["group"] for row in results.run.rows["model.tools"]] == ["all"]
    assert "model.paired" not in results.run.rows
    results, told = measured([], base=base(), other=other())
    assert (results.run.rows, told) == ({}, [("tool calling, these", 0, 0)])


def test_what_was_never_answered_has_no_times(measured: Any) -> None:
    refused = Speaker([UsageError("no"), TemplateFailed("no")])
    results, _ = measured(TASKS[:2], base=base(), other=refused)
    assert results.run.rows["model.tools"][1] == row(
        OTHER, "all", 2, 0, refused=2, tokens=0, seconds=None, first=None
    )
    assert results.run.rows["model.paired"][0]["time"] is None


def test_a_template_that_shows_no_tools_has_them_told_in_the_system_message(measured: Any) -> None:
    hidden = Speaker([Said(True, 1), Said(True, 1)], shows=False)
    results, _ = measured([task("a"), task("b", system="Be brief.")], base=hidden)
    assert results.run.skipped == {
        f"the chat template of {BASE}": "shows no tools: a system message tells of them instead"
    }
    listed = json.dumps(task("a").tools[0]["function"], ensure_ascii=False)
    told = (
        f"You can call these functions:\n{listed}\nTo call one, write:\n"
        '<|tool_call_start|>[NAME(ARGUMENT="VALUE")]<|tool_call_end|>'
    )
    assert [messages for _, messages, _, _ in hidden.asked] == [
        [{"role": "system", "content": told}, {"role": "user", "content": "Do a!"}],
        [{"role": "system", "content": f"Be brief.\n{told}"}, {"role": "user", "content": "Do b!"}],
    ]


def test_a_template_that_fails_is_told_by_the_request_that_fails(measured: Any) -> None:
    failing = Speaker([TemplateFailed("no such role")])

    def render(*_: Any, **__: Any) -> Any:
        raise TemplateFailed("no such role")

    failing.render = render  # type: ignore[method-assign]
    results, _ = measured([task("a")], base=failing)
    assert results.run.skipped == {}
    assert results.run.cases[0]["fault"] == "refused: TemplateFailed"


def test_a_model_whose_dialect_has_no_calls_takes_no_part(measured: Any) -> None:
    results, _ = measured(TASKS, base=base(), other=Speaker([], dialect=DIALECTS["plain"]))
    assert {row["side"] for row in results.run.rows["model.tools"]} == {BASE}
    assert results.run.skipped == {
        f"tool calling of {OTHER}": "its dialect 'plain' has no calls: if it does write some, name the dialect with "
        "--dialect"
    }


def test_without_a_model_that_calls_no_task_is_asked(measured: Any) -> None:
    results, told = measured(TASKS, base=Speaker([], dialect=DIALECTS["plain"]))
    assert (results.run.rows, told) == ({}, [("tool calling, these", 4, 4)])


# -- the tasks of lfm2-nano -------------------------------------------------------------------------------


def test_a_sample_has_as_many_tasks_as_there_are_at_most() -> None:
    assert sample(TASKS, 3, 1) != TASKS
    assert len(sample(TASKS, 3, 1)) == 3
    assert sample(TASKS, 4, 1) == sample(TASKS, 5, 1) == sample(TASKS, None, 1) == TASKS
    for draw in (sample, nano_tasks):
        with pytest.raises(UsageError, match=r"^a sample of 0 tasks: it must be 1 or more$"):
            draw(*((TASKS,) if draw is sample else ()), 0, 1)


def test_tasks_of_lfm2_nano_come_in_turn_and_want_what_they_say() -> None:
    tasks = nano_tasks(43, 5)
    assert [task.id for task in (tasks[0], tasks[20], tasks[21], tasks[42])] == [
        "single_5_0",
        "long_5_0",
        "single_5_1",
        "single_5_2",
    ]
    kinds = {task.id.rsplit("_", 2)[0]: (task.kind, task.calls) for task in tasks[:20]}
    assert {
        name: kinds[name] for name in ("single", "parallel", "answer", "greeting", "sequence", "chain")
    } == {
        "single": ("call", True),
        "parallel": ("calls", True),
        "answer": ("answer", False),
        "greeting": ("no call", False),
        "sequence": ("call", True),
        "chain": ("answer", False),
    }
    by_kind = {task.kind: task for task in reversed(tasks)}
    name = by_kind["call"].tools[0]["function"]["name"]
    broken = AssistantMessage(content=(MalformedToolCallPart(id="", raw="[f(", reason="truncated"),))
    called = AssistantMessage(content=(ToolCallPart(id="", name=name, arguments={"x": 1}),))
    assert by_kind["call"].judge(broken) == by_kind["no call"].judge(broken) == "malformed"
    assert by_kind["no call"].judge(called) == "other calls"
    assert by_kind["no call"].judge(AssistantMessage(content="Hm.")) == "other words"
    assert by_kind["call"].judge(AssistantMessage(content="Hm.")) == "no call"
    (single,), (greeting,) = make_requests("single", 1, 5), make_requests("greeting", 1, 5)
    right = [ToolCallPart(id="", name=name, arguments=given) for name, given in single.calls]
    assert tasks[0].judge(AssistantMessage(content=tuple(right))) == ""
    greets = next(task for task in tasks if task.id == "greeting_5_0")
    assert greets.judge(AssistantMessage(content=greeting.content)) == ""
    assert (tasks[0].messages, tasks[0].tools) == (tuple(single.openai_messages), single.tools)
