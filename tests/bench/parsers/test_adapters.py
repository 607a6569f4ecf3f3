"""Parsers of others, as their servers use them: what they are asked, and what is made of their answers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from localagent_bench.parsers import adapters
from localagent_bench.parsers.children import Gone, adapter
from localagent_bench.parsers.judging import Reading

FOLDER = Path(adapters.__file__).parent
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("f", "g")]

# What of SGLang is used. Its detectors find calls as @name{...}@, its reasoner thoughts before a |.
SGLANG = {
    "__init__.py": "raise ImportError('the whole of it')",
    "srt/__init__.py": "raise ImportError('the whole of it')",
    "srt/entrypoints/openai/protocol.py": """
class Tool:
    def __init__(self, type, function): self.name = function["name"]
""",
    "srt/parser/reasoning_parser.py": """
class ReasoningParser:
    DetectorMap = {"qwen3": 1, "glm45": 1}
    def __init__(self, kind, force_reasoning, tool_call_parser_active):
        self.first = f"{kind} {force_reasoning} {tool_call_parser_active}: "
        self.thinking, self.kept = True, ""
    def parse_non_stream(self, text):
        thought, sign, rest = text.partition("|")
        return (self.first + thought, rest or None) if sign else (None, text)
    def parse_stream_chunk(self, text):
        if not self.thinking: return None, text
        thought, sign, rest = text.partition("|")
        self.thinking = not sign
        first, self.first = self.first, ""
        return first + thought, rest if sign else None
    def parse_stream_end(self):
        return ("(cut)", None) if self.thinking else (None, "(end)")
""",
    "srt/function_call/function_call_parser.py": """
import re
import xgrammar
from sglang.utils import convert_json_schema_to_str
from transformers import AutoTokenizer
from xgrammar.structural_tag import Tag
assert convert_json_schema_to_str({}) == {}
Tag[int](1, x=2)
class Item:
    def __init__(self, index, name, parameters): self.tool_index, self.name, self.parameters = index, name, parameters
class Detector:
    def __init__(self): self.prev_tool_call_arr, self.streamed_args_for_tool = [], []
class FunctionCallParser:
    ToolCallParserEnum = {"qwen25": 1, "glm45": 1, "llama3": 1, "lfm2": 1}
    def __init__(self, tools, kind):
        self.names, self.detector, self.rest = [tool.name for tool in tools], Detector(), ""
    def has_tool_call(self, text): return "@" in text
    def parse_non_stream(self, text):
        found = re.findall(r"@(\\w+)({.*?})@", text)
        return re.sub("@.*?@", "", text) or None, [Item(self.names.index(name), name, given) for name, given in found]
    def parse_stream_chunk(self, text):
        if text == "(end)": return text, []
        sent = self.detector.streamed_args_for_tool
        items = []
        for sign in text:
            if sign == "#":
                items.append(Item(len(sent), self.names[len(sent)], None))
                sent.append("")
                self.detector.prev_tool_call_arr.append({"arguments": {"a": 1}})
            elif sent:
                items.append(Item(len(sent) - 1, None, sign))
                sent[-1] += sign
        return (None if sent else text), items
    def parse_stream_end(self): return "!", [Item(7, "last", "{}")] if self.detector.streamed_args_for_tool else []
""",
}


@pytest.fixture
def sglang(tmp_path, monkeypatch):
    """The adapter with such a package, in a process of its own."""
    for name, text in SGLANG.items():
        (tmp_path / "sglang" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sglang" / name).write_text(text)
    (tmp_path / "sglang-0.5.dist-info").mkdir()
    (tmp_path / "sglang-0.5.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5\n"
    )
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    child = adapter("sglang")
    child.seconds = 20.0  # of which the answer matters, not the time
    child.open()
    yield child
    child.close()


def test_sglang_claims_what_its_version_has(sglang):
    assert (sglang.version, sglang.needs_tools, sglang.flags) == ("0.5", True, False)
    assert sglang.dialects == {"lfm2", "hermes", "llama3-json", "glm45"}


@pytest.mark.parametrize(
    ("asked", "content", "reasoning", "calls"),
    [
        ({"text": 'hm|a@f{"x": 1}@b@g{}@'}, "ab", "qwen3 False True: hm", (("f", {"x": 1}), ("g", {}))),
        ({"text": "hm|"}, "", "qwen3 False True: hm", ()),
        ({"text": "plain", "inside": "reasoning"}, "plain", "", ()),
        ({"text": "hm|x", "inside": "reasoning", "tools": []}, "x", "qwen3 True False: hm", ()),
        ({"dialect": "llama3-json", "text": "a|b@f{}@"}, "a|b", "", (("f", {}),)),
        ({"chunks": ["h", "m|", "a", "b"]}, "ab(end)!", "qwen3 False True: hm", ()),
        ({"chunks": ["hm"]}, "!", "qwen3 False True: hm(cut)", ()),
        ({"chunks": []}, "", "(cut)", ()),
        ({"dialect": "llama3-json", "chunks": ["a|", "b"]}, "a|b!", "", ()),
        ({"dialect": "llama3-json", "chunks": ["a#", '{"a"', ": 1}"]}, "!", "", (("f", {"a": 1}), ("last", {}))),
        ({"dialect": "llama3-json", "chunks": ["#", '{"a": 1}#', '{"a"']}, "!", "",
         (("f", {"a": 1}), ("g", {"a": 1}), ("last", {}))),
    ],
)  # fmt: skip
def test_sglang_reads_thoughts_first_and_calls_in_what_is_left(sglang, asked, content, reasoning, calls):
    """At the end of a stream the server sends what the detector knows of arguments and has not sent."""
    found = sglang.read({"dialect": "hermes", "tools": TOOLS} | asked)
    assert (found.content, found.reasoning, found.calls, found.error) == (content, reasoning, calls, "")


# -- transformers and mlx-lm ------------------------------------------------------------------------------

TRANSFORMERS = {
    "__init__.py": '__version__ = "9.1"',
    "utils/__init__.py": "",
    "utils/chat_parsing.py": """
def told(template, prefix, tools): return f"{template['name']} {prefix} {len(tools or [])}: "
def call(name): return {"type": "function", "function": {"name": name, "arguments": {"a": 1}}}
def parse_response(text, template, prefix, tools):
    if text == "nothing": return {}
    return {"content": told(template, prefix, tools) + text, "reasoning_content": "r", "tool_calls": [call("f")]}
class ResponseParser:
    def __init__(self, template, prefix, tools): self.first = told(template, prefix, tools)
    def feed(self, piece):
        yield {"type": "region_open", "field": "content"}
        yield {"type": "region_chunk", "field": "content", "text": self.first + piece}
        yield {"type": "region_chunk", "field": "content", "text": "dirty", "dirty": True}
        yield {"type": "region_chunk", "field": "other", "text": "other"}
        yield {"type": "region_chunk", "field": "thinking", "text": "t"}
        yield {"type": "region_chunk", "field": "reasoning_content", "text": "r"}
        yield {"type": "region_close", "field": "content", "value": "x"}
        yield {"type": "region_close", "field": "tool_calls", "value": [call("f"), call("g")]}
        self.first = ""
    def finalize(self): return {}, [{"type": "region_close", "field": "tool_calls", "value": call("last")}]
""",
    "cli/serving/utils.py": """
import torch
OTHER = {}
_RESPONSE_TEMPLATE_FALLBACKS = {
    ("qwen3", "qwen3_moe"): {"name": "hermes", "start_anchor": "<s>"},
    ("gemma4",): {"name": "gemma", "start_anchor": ["<a>", "<b>"]},
}
""",
}


def asked_of(name, folder, files, monkeypatch):
    """An adapter with such a package."""
    for each, text in files.items():
        (folder / name / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / each).write_text(text)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    child = adapter(name)
    child.seconds = 20.0
    return child


def test_transformers_reads_by_the_templates_that_its_server_falls_back_to(tmp_path, monkeypatch):
    child = asked_of("transformers", tmp_path, TRANSFORMERS, monkeypatch)
    try:
        child.open()
        assert (child.version, child.dialects) == ("9.1", {"hermes", "gemma4"})
        asked = {"dialect": "hermes", "tools": TOOLS}
        found = child.read(asked | {"text": "hi"})
        assert found == Reading("hermes <s> 2: hi", "r", (("f", {"a": 1}),))
        opened = {"inside": "reasoning", "text": "hi"}
        assert child.read(asked | opened).content == "hermes <s><think>\n 2: hi"
        assert child.read({"dialect": "gemma4"} | opened).content == "gemma <a><|channel>thought\n 0: hi"
        assert child.read({"dialect": "gemma4", "text": "hi"}).content == "gemma <a> 0: hi"
        assert child.read(asked | {"text": "nothing"}) == Reading()
        streamed = child.read(asked | {"chunks": ["a", "b"]})
        assert (streamed.content, streamed.reasoning) == ("hermes <s> 2: ab", "rrtt")
        assert [name for name, _ in streamed.calls] == ["f", "g", "f", "g", "last"]
    finally:
        child.close()


def test_transformers_without_templates_takes_no_part(tmp_path, monkeypatch):
    child = asked_of(
        "transformers", tmp_path, TRANSFORMERS | {"cli/serving/utils.py": "OTHER = {}"}, monkeypatch
    )
    with pytest.raises(Gone, match=r"^ImportError: this version of transformers has no response templates$"):
        child.open()


@pytest.mark.engine
def test_mlx_lm_cuts_at_markers_and_drops_what_its_parser_refuses():
    child = adapter("mlx_lm")
    try:
        child.open()
    except Gone as gone:
        assert "No module named" in str(gone), gone
        pytest.skip(str(gone))
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    thought = "<think>hm</think>"
    rows = [
        (f"{thought}a{call}b{call}c", {}, Reading("abc", "hm", (("f", {"a": 1}),) * 2)),
        (f"h{thought[-8:]}a", {"inside": "reasoning"}, Reading("a", "h")),
        ("a<tool_call>{</tool_call>b", {}, Reading("ab", kept=True)),
        (f"a{call[:-12]}", {"finish": "length"}, Reading("a", "", (("f", {"a": 1}),))),
        ("ab<tool", {"finish": "length"}, Reading("ab<tool")),
        ("ab<tool", {}, Reading("ab")),
    ]
    try:
        for text, more, due in rows:
            asked = {"dialect": "hermes", "tools": TOOLS} | more
            for given in ({"text": text}, {"chunks": list(text)}):
                assert child.read(asked | given) == due, (text, given)
        (lfm2,) = child.read(
            {"dialect": "lfm2", "text": "<|tool_call_start|>[f(a=1)]<|tool_call_end|>"}
        ).calls
        assert lfm2 == ("f", {"a": 1})
        mistral = child.read({"dialect": "mistral", "text": "[THINK]hm[/THINK]a"})
        assert (mistral.content, mistral.reasoning) == ("a", "hm")
    finally:
        child.close()


# -- the process around them ------------------------------------------------------------------------------

PARSER = """
import sys
NAME = "mine"
DIALECTS = {"hermes": "x"}
FLAGS = True
def load():
    print("noise")
    return "3"
def read(dialect, pieces, streamed, request):
    print("noise")
    if pieces == ["raise"]:
        raise ValueError("x" * 600)
    if pieces == ["nan"]:
        return {"content": float("nan"), "tool_calls": []}
    calls = [{"name": "f", "arguments": each} for each in request.get("given", ())]
    calls += [{"name": 7, "arguments": {}}] * request.get("nameless", 0)
    return {"content": f"{dialect} {pieces} {streamed}", "reasoning": "", "tool_calls": calls}
"""


def test_a_parser_is_loaded_from_its_file_and_asked_line_by_line(tmp_path):
    (tmp_path / "child.py").write_text((FOLDER / "child.py").read_text())
    (tmp_path / "colorsys.py").write_text("raise ImportError('a file beside it')")
    (tmp_path / "mine.py").write_text(PARSER + "import colorsys\n")
    asked = [
        {"id": 1, "dialect": "hermes", "text": "a"},
        {
            "id": 2,
            "dialect": "hermes",
            "chunks": ["a", "b"],
            "given": [{"x": 1}, '{"y": 2}', "", "{", "[1]", None, 3],
        },
        {"id": 3, "dialect": "hermes", "text": "raise"},
        {"id": 4, "dialect": "hermes", "text": "nan"},
        {"id": 5, "dialect": "hermes"},
        {"id": 6, "dialect": "hermes", "text": "a", "nameless": 1},
    ]
    lines = "".join(json.dumps(each) + "\n" for each in asked) + "{\n"
    done = subprocess.run(
        [sys.executable, tmp_path / "child.py", "mine"],
        input=lines, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    told, *answers = map(json.loads, done.stdout.splitlines())
    assert told == {
        "parser": "mine",
        "version": "3",
        "dialects": {"hermes": "x"},
        "needs_tools": False,
        "flags": True,
    }
    assert "noise" in done.stderr
    assert answers[3]["error"].startswith("ValueError: Out of range float values")
    assert answers == [
        {"id": 1, "content": "hermes ['a'] False", "reasoning": "", "tool_calls": []},
        {"id": 2, "content": "hermes ['a', 'b'] True", "reasoning": "",
         "tool_calls": [{"name": "f", "arguments": given} for given in ({"x": 1}, {"y": 2}, {})],
         "malformed": [{"raw": str({"name": "f", "arguments": given}), "reason": "no object of arguments"}
                       for given in ("{", "[1]", None, 3)]},
        {"id": 3, "error": f"ValueError: {'x' * 488}"},
        {"id": 4, "error": answers[3]["error"]},
        {"id": 5, "error": "KeyError: 'text'"},
        {"id": 6, "content": "hermes ['a'] False", "reasoning": "", "tool_calls": [],
         "malformed": [{"raw": "{'name': 7, 'arguments': {}}", "reason": "no object of arguments"}]},
        {"id": None, "error": answers[-1]["error"]},
    ]  # fmt: skip


def test_times_are_the_median_of_the_rounds_and_end_when_it_is_enough(monkeypatch):
    spec = importlib.util.spec_from_file_location("child", FOLDER / "child.py")
    child = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(child)
    now, reads = [0.0], []

    class Parser:
        @staticmethod
        def read(*given):
            reads.append(given)
            now[0] += (0.125, 0.25, 0.25, 0.25, 0.5)[len(reads) % 5]
            return {"content": "x" * 1000, "tool_calls": []}

    monkeypatch.setattr(child.time, "perf_counter", lambda: now[0])
    request = {"dialect": "d", "text": "t", "rounds": 3}
    found = child.answer(Parser, request)
    assert found["seconds"] == 0.25
    assert found["peak"] > 0
    assert reads == [("d", ["t"], False, request)] * 5, "the answer, three rounds, and the memory"
    reads.clear()
    assert child.answer(Parser, request | {"rounds": 100})["seconds"] == 0.25
    assert len(reads) == 6, "of four rounds, since three take a second"
    assert child.answer(Parser, {"dialect": "d", "text": "t"}) == {"content": "x" * 1000, "tool_calls": []}


def test_a_package_that_breaks_when_it_is_loaded_is_told_in_a_line(tmp_path):
    (tmp_path / "child.py").write_text((FOLDER / "child.py").read_text())
    (tmp_path / "bad.py").write_text("raise RuntimeError('no GPU\\nand more')")
    done = subprocess.run(
        [sys.executable, tmp_path / "child.py", "bad"],
        input="",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout) == {"absent": "RuntimeError: no GPU"}


def test_another_python_may_have_the_parser():
    assert adapter("sglang", "/nowhere/python").command == [
        "/nowhere/python",
        str(FOLDER / "child.py"),
        "sglang",
    ]
    assert (adapter("ours").command[0], adapter("ours").name) == (sys.executable, "localagent")
    with pytest.raises(Gone, match=r"^/nowhere/python cannot be started: No such file or directory$"):
        adapter("sglang", "/nowhere/python").open()
