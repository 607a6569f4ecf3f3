"""Schemas that cost more than they look: none stops anything, and none spoils another tool."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from localagent.constraint import grammar, matching, processes, worker
from localagent.constraint.grammar import block_grammar, schema_grammar
from localagent.constraint.leaves import least_size
from localagent.constraint.matching import Factory, Matcher, matcher_factory, trial
from localagent.constraint.request import guided
from localagent.control import Control
from localagent.errors import ConstraintFailed, GrammarTooLarge, SchemaRefused
from localagent.model import load
from localagent.prompt.segments import Prompt
from parsers import DIALECTS
from tests.constraint.drawing import special_of, tool_of
from tests.constraint.hostile import HOSTILE
from tests.constraint.test_matching import BYTES, allowed

EXPLODES = "start: /((((a{100}){100}){100}){100})/"
"""llguidance writes out what is forced, 100 million characters, before it says what comes first."""
SECONDS = 20
"""No hang: what these take is measured elsewhere, and machines are busy."""


def drawn(matcher: Matcher, count: int) -> None:
    """Draw tokens at random."""
    import numpy as np

    choose = random.Random(1)
    for _ in range(count):
        if matcher.stopped:
            return
        bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
        matcher.accept(choose.choice(np.flatnonzero(bits).tolist()))


@pytest.mark.parametrize("name", ["lfm2", "qwen3-coder"])
@pytest.mark.parametrize("row", HOSTILE)
def test_it_is_held_or_relaxed_by_name(row: str, name: str, vocabulary: Any) -> None:
    start = time.monotonic()
    parameters = {"type": "object", "properties": {"x": HOSTILE[row]}, "required": ["x"]}
    tools = [tool_of("hostile", parameters), tool_of("harmless", {"properties": {"a": {"enum": ["b"]}}})]
    factory = matcher_factory(vocabulary)
    grammar = block_grammar(DIALECTS[name], tools, special=special_of(vocabulary))
    assert {relaxed.tool for relaxed in grammar.relaxed} <= {"hostile"}
    assert all(relaxed.keyword and relaxed.reason for relaxed in grammar.relaxed)
    try:
        drawn(factory.compile(grammar.text), 60)
    except ConstraintFailed:  # this generation alone fails
        pass
    except GrammarTooLarge:  # a turn then leaves this tool alone out: tests/constraint/test_guide
        drawn(factory.compile(block_grammar(DIALECTS[name], tools[1:]).text), 10)
    if grammar.relaxed:
        with pytest.raises(SchemaRefused, match=r"^the schema of hostile cannot be enforced: /"):
            block_grammar(DIALECTS[name], tools, strict=True, special=special_of(vocabulary))
    assert time.monotonic() - start < SECONDS


@pytest.mark.parametrize("row", HOSTILE)
def test_an_answer_of_it_is_held_or_refused(row: str, vocabulary: Any) -> None:
    start = time.monotonic()
    # References name the place within a tool's parameters.
    schema = {"type": "object", "properties": {"x": HOSTILE[row]}, "required": ["x"]}
    try:
        drawn(matcher_factory(vocabulary).compile(schema_grammar(schema).text), 60)
    except (SchemaRefused, GrammarTooLarge, ConstraintFailed) as refused:
        assert "\n" not in str(refused)
    assert time.monotonic() - start < SECONDS


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("^abc$", 3),
        ("a{7}", 7),
        ("a{2,}b{3,9}", 5),
        ("(ab){5}c", 11),
        ("((a{3}b){4}|c{9}){2}", 50),
        ("a*b?c+", 1),
        ("(abc)?(def)*", 0),
        ("[a-z{9}(]{4}", 4),
        (r"\({3}\d{2}\p{L}", 6),
        ("a{0}", 0),
        ("(((", 0),
        ("^((((a{100}){100}){100}){100})$", 10**8),
    ],
)
def test_the_size_of_a_pattern_is_what_it_forces(pattern: str, size: int) -> None:
    assert least_size(pattern) == size


def test_what_explodes_is_ended_and_says_so() -> None:
    start = time.monotonic()
    with pytest.raises(GrammarTooLarge, match=r"^the grammar cannot be compiled: it takes more than 2\.0 s$"):
        Factory(BYTES).compile(EXPLODES)
    assert trial(EXPLODES) == ("it takes more than 0.5 s", 0.5)
    assert trial('start: "a"')[0] == ""
    assert time.monotonic() - start < SECONDS


@pytest.mark.skipif(not processes.FORKS, reason="elsewhere nothing can be ended")
def test_what_explodes_is_ended_where_its_signal_is_ignored_and_blocked() -> None:
    handler = signal.signal(signal.SIGPROF, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})
    try:
        with pytest.raises(GrammarTooLarge):
            Factory(BYTES).compile(EXPLODES)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGPROF, handler)


def test_trials_have_a_time_for_all_of_a_tool() -> None:
    words = {"enum": [f"word-{n * 7919 % 100_003}" for n in range(15_000)]}  # some 0.1 s each time
    places = {f"p{n}": {"$ref": "#/$defs/words"} for n in range(80)}
    tool = tool_of("many", {"type": "object", "properties": places, "$defs": {"words": words}})
    relaxed = block_grammar(DIALECTS["lfm2"], [tool]).relaxed
    assert 0 < len(relaxed) < len(places)
    assert {each.keyword for each in relaxed} == {"size"}
    assert relaxed[0].reason.endswith("trying the parts of the schema takes more than 2.0 s")


def test_trials_have_a_time_for_all_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MOST_SECONDS", 0.2)
    tools = [
        tool_of(f"t{n}", {"properties": {"x": {"type": "string", "pattern": f"^(ab){{{2000 + n}}}$"}}})
        for n in range(12)  # some 0.1 s each
    ]
    relaxed = block_grammar(DIALECTS["qwen3-coder"], tools).relaxed
    assert (relaxed[-1].tool, relaxed[-1].path, relaxed[-1].keyword) == ("t11", "", "size")
    assert relaxed[-1].reason == "trying the parts of the tools before it took more than 0.2 s"
    with pytest.raises(SchemaRefused):
        block_grammar(DIALECTS["qwen3-coder"], tools, strict=True)


def test_what_explodes_later_ends_its_generations_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # llguidance's own limit ends this step after some 0.2 to 0.5 s, as fast as the machine is.
    monkeypatch.setattr(worker, "PATIENCE", 0.05)
    factory = Factory(BYTES)
    other = factory.compile("start: /[ab]+/")
    matcher = factory.compile(EXPLODES.replace("/(", "/b|x("))
    same = matcher.copy()
    start = time.monotonic()
    with pytest.raises(ConstraintFailed, match=r"what may come next is not known after 0\.05 s$"):
        matcher.accept(ord("x"))
    assert time.monotonic() - start < SECONDS
    with pytest.raises(ConstraintFailed):
        same.accept(ord("b"))
    other.accept(ord("a"))
    assert allowed(other) == {ord("a"), ord("b"), 256}
    again = factory.compile(EXPLODES.replace("/(", "/b|x("))  # in a new process
    again.accept(ord("b"))
    assert again.accepting


def children_of(process: int) -> Sequence[int]:
    """The processes that it has started."""
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells which processes there are")
def test_no_process_is_left() -> None:
    before = set(children_of(os.getpid()))
    factory = Factory(BYTES)
    matchers = [factory.compile(f'start: "{n}"') for n in range(3)]
    (process,) = set(children_of(os.getpid())) - before
    assert len(children_of(process)) == 3
    del matchers, factory
    gc.collect()
    assert set(children_of(os.getpid())) <= before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells which processes there are")
def test_a_process_that_dies_is_started_again() -> None:
    before = set(children_of(os.getpid()))
    factory = Factory(BYTES)
    factory.compile('start: "a"')
    (process,) = set(children_of(os.getpid())) - before
    os.kill(process, signal.SIGKILL)
    deadline = time.monotonic() + SECONDS
    while children_of(process) if Path(f"/proc/{process}/task").exists() else False:
        assert time.monotonic() < deadline
    factory.compile('start: "b"').accept(ord("b"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells which processes there are")
def test_a_trial_that_ended_or_was_left_spoils_no_other() -> None:
    class Left(BaseException):
        """As at Ctrl-C."""

    def leave(*_: object) -> None:
        raise Left

    assert trial('start: "a"')[0] == ""
    handler = signal.signal(signal.SIGALRM, leave)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Left):
            trial(EXPLODES)
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert trial('start: "a"')[0] == ""
    for process in children_of(os.getpid()):
        for child in children_of(process):
            os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + SECONDS
    while any(children_of(process) for process in children_of(os.getpid())):
        assert time.monotonic() < deadline
    assert trial('start: "a"')[0] == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork of the process is meant")
def test_a_fork_has_a_process_of_its_own() -> None:
    factory = Factory(BYTES)
    matcher = factory.compile("start: /[ab]/")
    child = os.fork()
    if not child:
        status = 1
        try:
            factory.compile('start: "c"').accept(ord("c"))
            with pytest.raises(ConstraintFailed):  # its answers are for the other process
                matcher.accept(ord("a"))
            status = 0 if trial('start: "a"')[0] == "" else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    matcher.accept(ord("a"))
    factory.compile('start: "d"').accept(ord("d"))


def test_where_nothing_forks_it_runs_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "FORKS", False)
    monkeypatch.setattr(subprocess, "Popen", None)
    matcher = Factory(BYTES).compile('start: "a" /[b-c]/')
    matcher.accept(ord("a"))
    assert allowed(matcher.copy()) == {ord("b"), ord("c")}


def test_its_file_is_run_by_its_path_and_needs_nothing_else() -> None:
    program = f"import sys; sys.path[:] = {sys.path!r}; import runpy; runpy.run_path({worker.__file__!r})"
    program += "; assert not any(name.startswith('localagent') for name in sys.modules)"
    subprocess.run([sys.executable, "-I", "-c", program], check=True)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_tool_that_cannot_be_compiled_spoils_no_other(
    choice: str, nano: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"type": "object", "properties": {"x": {"enum": [f"word {n}" for n in range(2000)]}}}
    tools = [tool_of("large", words), tool_of("small", {"properties": {"a": {"enum": ["b"]}}})]
    with load(nano["llamacpp"]) as model:
        alone = block_grammar(model.dialect, tools[:1], special=special_of(model.host.vocabulary))
        monkeypatch.setattr(matching, "LONGEST", len(alone.text) - 1)

        def guide(tools: Any, **wishes: Any) -> Any:
            wish = Control(tool_choice=choice, **wishes)
            return guided(model.host, model.dialect, tools, wish, Prompt((0,), "")).guide

        (relaxed,) = guide(tools).relaxed
        assert (relaxed.tool, relaxed.keyword) == ("large", "size")
        assert "characters" in relaxed.reason
        assert guide(tools[1:]).relaxed == ()
        with pytest.raises(GrammarTooLarge):
            guide(tools, strict=True)
