"""A parser in a child process that hangs, dies or talks nonsense costs one output, and then takes no further part."""

from __future__ import annotations

import functools
import json
import shlex
import shutil
import sys
import time
from importlib.util import find_spec
from select import select

import psutil
import pytest

from localagent_bench.parsers import children
from localagent_bench.parsers.children import Child, Gone, adapter, commanded, reading_of
from localagent_bench.parsers.judging import Reading

ASKED = {"dialect": "lfm2", "text": "<|tool_call_start|>[f(a=1)]<|tool_call_end|>"}
SLOW_START = 20.0
"""Seconds for programs of which the answer matters, not the time."""


def test_a_good_command_is_read(program):
    child = program(
        'for asked in lines(): answer(asked, content=asked["text"], tool_calls=[{"name": "f", "arguments": {}}])',
        SLOW_START,
    )
    for _ in range(3):
        found = child.read(ASKED)
        assert (found.content, found.calls, found.kept) == (ASKED["text"], (("f", {}),), False)
    assert child.failures == []


def test_localagent_parse_speaks_the_protocol():
    child = commanded(shlex.join([sys.executable, "-m", "localagent", "parse", "--jsonl"]))
    try:
        [call] = child.ask(ASKED, 60)["tool_calls"]
        assert call == {"name": "f", "arguments": {"a": 1}, "repaired": False, "fits": None}
        hermes = {
            "dialect": "hermes",
            "chunks": ['<tool_call>{"name": "f", "arg', 'uments": {"a": 1}}</tool_call>'],
        }
        assert child.read(hermes).calls == (("f", {"a": 1}),)
        assert "no dialect is called" in child.read({"dialect": "../x.toml", "text": ""}).error
    finally:
        child.close()


def test_a_parser_says_what_it_is_when_it_begins(tmp_path):
    told = {"version": 3, "dialects": {"a": "x", "b": "y"}, "needs_tools": 1, "flags": True}
    script = f"import sys\nprint({json.dumps(json.dumps(told))}, flush=True)\nfor line in sys.stdin: pass"
    child = Child("mine", [sys.executable, "-c", script], introduces=True)
    child.open()
    child.close()
    assert (child.version, child.dialects, child.needs_tools, child.flags) == ("3", {"a", "b"}, True, True)
    assert [child.claims(*each) for each in (("a", TOOLS), ("a", []), ("a", None), ("c", TOOLS))] == [
        True,
        *[False] * 3,
    ]
    anything = Child("any", [])
    assert (anything.claims("c", None), anything.needs_tools, anything.flags) == (True, False, False)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"absent": "x" * 400}, "x" * 300),
        ({"version": 1}, "did not say what it is"),
        ({"version": 1, "dialects": None}, "did not say what it is"),
        ({"dialects": []}, "did not say what it is"),
    ],
)
def test_a_parser_that_does_not_begin_takes_no_part(told, why):
    script = f"import time\nprint({json.dumps(json.dumps(told))}, flush=True)\ntime.sleep(60)"
    child = Child("mine", [sys.executable, "-c", script], introduces=True)
    with pytest.raises(Gone) as gone:
        child.open()
    assert str(gone.value) == why
    assert child._process is None, "ended"


def test_what_a_parser_says_before_it_dies_is_told_by_its_last_line(program):
    said = "import sys; print('first', file=sys.stderr); print('x' * 300, file=sys.stderr); sys.exit(4)"
    assert program(said, SLOW_START).read(ASKED).error == f"ended with status 4: {'x' * 200}"
    assert program("import sys; sys.exit(4)", SLOW_START).read(ASKED).error == "ended with status 4"


def test_requests_are_numbered_and_may_have_more_time(program):
    child = program(
        "for asked in lines():\n    answer(asked, content=json.dumps(asked), reasoning='r', malformed=[1])",
        0.001,
    )
    first = child.ask(ASKED, SLOW_START)
    assert json.loads(first["content"]) == {"id": 1, **ASKED}
    second = child.ask(ASKED, SLOW_START)
    assert second["id"] == 2
    child.seconds = SLOW_START
    assert child.read(ASKED) == Reading(json.dumps({"id": 3, **ASKED}), "r", (), True)


def test_an_answer_is_no_longer_than_it_may_be(program, monkeypatch):
    monkeypatch.setattr("localagent_bench.parsers.children._LONGEST", 100)
    child = program(
        "for asked in lines(): print('x' * 100, end='', flush=True); print('y' * asked['more'], flush=True)"
    )
    child.seconds = SLOW_START
    assert child.read({"more": 0}).error in ("its answer has no end", "its answer is no JSON object")
    with pytest.raises(Gone, match="its answer has no end"):
        child.read({"more": 100})


def test_a_parser_fails_as_often_as_it_may(program, monkeypatch):
    monkeypatch.setattr("localagent_bench.parsers.children._MOST_FAILURES", 3)
    child = program(
        "for asked in lines():\n    if asked['text'] == 'x': sys.exit(3)\n    answer(asked)", SLOW_START
    )
    assert [child.read({"text": text}).kept for text in "axx"] == [False, True, True]
    with pytest.raises(Gone, match=r"^ended with status 3$"):
        child.read({"text": "x"})
    assert child.failures == ["ended with status 3"] * 3
    child.close()
    child.close()


@pytest.mark.parametrize(("late", "error"), [(-1.0, ""), (0.5, ""), (1.5, "gave no answer in time")])
def test_the_rest_of_an_answer_that_has_begun_to_come_in_time_is_read(program, monkeypatch, late, error):
    """`late`: seconds over the time when anything comes, all of which is waited for."""
    times = iter([0.0])
    monkeypatch.setattr(children, "monotonic", lambda: next(times, 3.0 + late))
    monkeypatch.setattr(
        children, "select", lambda readers, writers, others, left: select(readers, writers, others, 20)
    )
    child = program("for asked in lines(): answer(asked, content='x' * 100_000)", 3.0)
    found = child.read(ASKED)
    assert (found.error, len(found.content)) == (error, 0 if error else 100_000)


def test_parsers_have_the_time_and_the_failures_that_they_always_had():
    """A measurement with others could not be held against an earlier one."""
    assert (children.START_SECONDS, children.ANSWER_SECONDS, children._GRACE) == (60, 3, 1)
    assert (children._MOST_FAILURES, children._LONGEST, Child("x", []).seconds) == (60, 64 << 20, 3)


def test_a_command_is_split_as_a_shell_does():
    child = commanded("./mine --opt 'a b'")
    assert (child.command, child.name, child.dialects) == (
        ["./mine", "--opt", "a b"],
        "./mine --opt 'a b'",
        None,
    )


BAD = {
    "hangs": ("for asked in lines(): time.sleep(60)", "gave no answer in time"),
    "dies": ("sys.exit('boom')", "ended with status 1: boom"),
    "is killed": ("os.kill(os.getpid(), 9)", "ended with status -9"),
    "answers another request": ("for asked in lines(): answer({'id': 7777})", "answered '7777' where"),
    "answers without an id": ("for asked in lines(): print('{}', flush=True)", "answered 'None' where"),
    "says rubbish": ("for asked in lines(): print('Traceback', flush=True)", "its answer is no JSON object"),
    "says a list": ("for asked in lines(): print('[]', flush=True)", "its answer is no JSON object"),
    "is not UTF-8": (r"for asked in lines(): os.write(1, b'{\"id\": \"\xff\"}\n')", "its answer is no JSON object"),
    "nests without end": ("for asked in lines(): print('[' * 100000, flush=True)", "its answer is no JSON object"),
    "closes its input": ("sys.stdin.close(); os.close(0); os.close(1); time.sleep(60)", "ended with status"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_answer_costs_one_output_and_the_second_time_the_parser(program, what):
    code, reason = BAD[what]
    child = program(code, 0.5 if what == "hangs" else 5.0)
    first = child.read(ASKED)
    assert first.kept
    assert reason in first.error
    with pytest.raises(Gone, match=reason.split(":")[0].replace("[", r"\[")):
        child.read(ASKED)


def test_an_answer_that_comes_twice_belongs_to_no_other_request(program):
    child = program("for asked in lines():\n    answer(asked)\n    answer(asked)", SLOW_START)
    assert not child.read(ASKED).kept
    assert "answered '1' where 2 was due" in child.read(ASKED).error


def test_a_parser_that_fails_now_and_then_goes_on_until_it_is_too_often(program):
    child = program(
        "for asked in lines():\n    if asked['text'] == 'x': sys.exit(3)\n    answer(asked)", SLOW_START
    )
    assert [child.read({"text": text}).kept for text in "axbxc"] == [False, True, False, True, False]
    assert len(child.failures) == 2
    with pytest.raises(Gone):
        for text in "xa" * 70:
            child.read({"text": text})


def test_a_process_that_does_not_read_blocks_nobody(program):
    child = program("time.sleep(60)")
    began = time.monotonic()
    assert "in time" in child.read({"text": "x" * 5_000_000}).error
    assert time.monotonic() - began < 5


def test_a_process_that_writes_without_end_takes_no_longer_than_one_that_hangs(program):
    child = program("for asked in lines():\n while True: sys.stdout.write('x' * 65536)")
    began = time.monotonic()
    assert child.read(ASKED).error in ("gave no answer in time", "its answer has no end")
    assert time.monotonic() - began < 5


def test_what_a_command_has_started_ends_with_it(program, tmp_path):
    pid = tmp_path / "pid"
    code = f"import subprocess; p = subprocess.Popen(['sleep', '60']); open({str(pid)!r}, 'w').write(str(p.pid))\nfor asked in lines(): answer(asked)"
    child = program(code, SLOW_START)
    child.read(ASKED)
    child.close()
    psutil.wait_procs(
        [psutil.Process(int(pid.read_text()))] if psutil.pid_exists(int(pid.read_text())) else [], 5
    )
    assert (
        not psutil.pid_exists(int(pid.read_text()))
        or psutil.Process(int(pid.read_text())).status() == "zombie"
    )


def test_a_command_that_is_not_there_and_one_that_is_none():
    with pytest.raises(Gone, match="cannot be started"):
        commanded("/nowhere/parser --jsonl").open()
    for bad in ("", "a 'b"):
        with pytest.raises(ValueError, match=r"empty|quot"):
            commanded(bad)


def test_a_package_that_is_absent_is_a_reason():
    child = adapter("sglang")
    try:
        child.open()
    except Gone as gone:
        assert "sglang" in str(gone)
    finally:
        child.close()
    broken = Child("nobody", [sys.executable, "-c", "print('{\"version\": 1}')"], introduces=True)
    with pytest.raises(Gone, match="did not say what it is"):
        broken.open()


PARSE = """#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "die" in str(asked.get("text")):
        sys.exit(3)
    if "?" in str(asked.get("text")):
        print(json.dumps({"id": 0, "error": "no parser for that"}), flush=True)
    else:
        print(json.dumps({"id": 0, "content": json.dumps(asked), "reasoning": "", "tool_calls": []}), flush=True)
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    """What LLAMACPP_SOURCE names, with a program that answers what it was asked."""
    source = tmp_path / "llama_cpp_python-0.9" / "vendor" / "llama.cpp"
    templates = source / "models" / "templates"
    templates.mkdir(parents=True)
    for name in ("LFM2.5-8B-A1B", "another"):
        (templates / f"{name}.jinja").write_text("")
    (source / "parse").write_text(PARSE)
    (source / "parse").chmod(0o755)
    monkeypatch.setenv("LLAMACPP_SOURCE", str(source))
    return source


def test_the_program_of_llamacpp_is_asked_with_the_template_that_wrote_the_output(source):
    child = adapter("llamacpp")
    try:
        child.open()
        assert (child.version, child.dialects) == ("of llama-cpp-python 0.9", {"lfm2"})
        given = {"dialect": "lfm2", "tools": TOOLS, "inside": "reasoning"}
        for pieces in ({"text": "hi"}, {"chunks": ["h", "i"]}):
            for named, used in (
                ("another", "another"),
                ("nobody's", "LFM2.5-8B-A1B"),
                (None, "LFM2.5-8B-A1B"),
            ):
                asked = json.loads(child.ask(given | pieces | {"template": named}, SLOW_START)["content"])
                template = str(source / "models" / "templates" / f"{used}.jinja")
                assert asked == pieces | {
                    "id": 0,
                    "template": template,
                    "inside": "reasoning",
                    "tools": TOOLS,
                }
        assert "no parser for that" in child.read(given | {"text": "?"}).error
        assert child.failures == []
        child.read(given | {"text": "die"})
        assert "ended with status 3" in child.failures[0]
    finally:
        child.close()


@pytest.mark.parametrize("lost", ["LLAMACPP_SOURCE", "parse", "templates"])
def test_without_the_source_of_llamacpp_its_parser_is_absent(source, lost, monkeypatch):
    if lost == "LLAMACPP_SOURCE":
        monkeypatch.chdir(source)  # which an empty path would name
        monkeypatch.delenv("LLAMACPP_SOURCE")
    elif lost == "parse":
        (source / "parse").unlink()
    else:
        shutil.rmtree(source / "models" / "templates")
    child = adapter("llamacpp")
    with pytest.raises(Gone, match="LLAMACPP_SOURCE names no folder"):
        child.open()
    child.close()


def test_the_program_of_llamacpp_may_be_elsewhere(source, tmp_path, monkeypatch):
    shutil.move(source / "parse", tmp_path / "program")
    monkeypatch.setenv("LLAMACPP_PARSE", str(tmp_path / "program"))
    child = adapter("llamacpp")
    child.open()
    child.close()


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"tool_calls": None},
        {"tool_calls": [{"name": "f"}]},
        {"tool_calls": [{"name": 1, "arguments": {}}]},
        {"tool_calls": [{"name": "f", "arguments": "{}"}]},
        {"tool_calls": ["f"]},
        {"tool_calls": [], "content": 3},
        {"error": "refused"},
        {"error": ""},
        {
            "tool_calls": [
                {"name": "f", "arguments": {"a": functools.reduce(lambda a, _: [a], range(400), 1)}}
            ]
        },
    ],
)
def test_an_answer_of_other_types_is_refused_as_a_whole(answer):
    """A right one comes first, so that it is seen what may be left out."""
    right = {"tool_calls": [{"name": "f", "arguments": {"a": 1}}], "content": None, "malformed": []}
    assert reading_of(right) == Reading("", "", (("f", {"a": 1}),))
    assert reading_of(right | {"content": "c", "reasoning": "r", "malformed": [1]}).kept
    found = reading_of(answer)
    assert found.kept
    assert found.calls == ()


PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]
HERMES = '<think>\nhm\n</think>\n\nhi\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize("name", ["ours", pytest.param("mlx_lm", marks=pytest.mark.engine), "transformers"])
def test_parsers_that_are_installed_here_read_a_call_whole_and_in_pieces(name):
    child = adapter(name)
    try:
        child.open()
    except Gone as gone:
        absent = (
            find_spec(name) is None or "No module named" in str(gone) or "cannot import name" in str(gone)
        )
        assert absent, gone
        pytest.skip(str(gone))
    try:
        assert "hermes" in child.dialects
        asked = {"dialect": "hermes", "tools": TOOLS}
        for given in ({"text": HERMES}, {"chunks": list(HERMES)}):
            found = child.read(asked | given)
            assert found.calls == (("f", {"a": 1}),)
            assert (found.content.strip(), found.reasoning.strip()) == ("hi", "hm")
        opened = child.read(asked | {"text": HERMES.removeprefix("<think>"), "inside": "reasoning"})
        assert (opened.reasoning.strip(), opened.calls) == ("hm", (("f", {"a": 1}),))
        timed = child.ask(asked | {"chunks": list(HERMES), "rounds": 2})
        assert timed["seconds"] > 0
        assert timed["peak"] > 0
        for hostile in ("", "\0", "\ud800", "<tool_call>" * 500, "{" * 5000):
            assert child.read(asked | {"text": hostile}).calls == ()
    finally:
        child.close()
    assert child.failures == []
