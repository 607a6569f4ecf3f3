"""Lines of files become outputs with all that they say, and a wrong one is told what is wrong with it."""

from __future__ import annotations

import functools
import json

import pytest

from localagent.errors import UsageError
from localagent_bench.bfcl import JUDGED, NoData
from localagent_bench.parsers import corpora
from localagent_bench.parsers.corpora import AskedCalls, Row, bfcl_tasks, case_rows, file_rows, too_deep

FUNCTION = {"name": "f", "parameters": {}}
TOOL = {"type": "function", "function": FUNCTION}
EXPECTED = {"tool_calls": [{"name": "f", "arguments": {"a": 1}}]}


def rows(path, *lines):
    """What is read of such lines, and the notes."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    notes = []
    return list(file_rows(path, notes.append)), notes


def row(**more):
    told = {"corpus": "mine", "id": "1", "family": "lfm2", "dialect": "lfm2", "text": "x", "tools": None}
    told |= {"accepted": ([("f", {"a": 1})],), "content": None, "reasoning": None}
    return Row(**told | more)


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ({"text": "x"}, row()),
        ({"raw": "x", "tools": None, "tags": None, "accept": []}, row()),
        ({"text": "x", "raw": "y"}, row()),
        ({"chunks": ["a", "b"]}, row(text="ab")),
        (
            {"pieces": [{"text": "a", "special": True}, {"text": "b"}]},
            row(text="ab", pieces=(("a", True), ("b", None))),
        ),
        ({"text": "x", "pieces": [{"text": "a"}]}, row(pieces=(("a", None),))),
        (
            {
                "text": "x",
                "id": 7,
                "dialect": "hermes",
                "finish": "length",
                "inside": "reasoning",
                "tags": ["t"],
            },
            row(
                id="7",
                dialect="hermes",
                family="hermes",
                finish="length",
                inside="reasoning",
                tags=frozenset("t"),
            ),
        ),
        ({"text": "x", "tools": [FUNCTION, TOOL]}, row(tools=[TOOL, TOOL])),
        (
            {"text": "x", "accept": [[], [{"name": "g", "arguments": {}}]]},
            row(accepted=([("f", {"a": 1})], [], [("g", {})])),
        ),
    ],
)
def test_a_line_is_an_output_with_what_it_says(line, read, tmp_path):
    assert rows(tmp_path / "mine.jsonl", {"expected": EXPECTED} | line) == ([read], [])


def test_what_is_expected_of_texts_is_read(tmp_path):
    (found,), _ = rows(
        tmp_path / "x.jsonl", {"text": "", "expected": EXPECTED | {"content": "c", "reasoning": ""}}
    )
    assert (found.content, found.reasoning) == ("c", "")


DEEP = functools.reduce(lambda inner, _: [inner], range(197), [])
"""198 lists: within an object, in a list of calls, as deep as may be."""


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"dialect": "klingon"}, "no dialect is called klingon"),
        ({"expected": {}}, "'tool_calls' is missing"),
        ({"expected": {"tool_calls": [{"arguments": {}}]}}, "'name' is missing"),
        ({"text": 3}, "text must be a string, and inside `reasoning` or null"),
        ({"inside": "text"}, "text must be a string, and inside `reasoning` or null"),
        ({"finish": "end"}, "finish must be `stop` or `length`"),
        (
            {"expected": EXPECTED | {"content": 5}},
            "the expected content and reasoning must be strings or null",
        ),
        (
            {"expected": EXPECTED | {"reasoning": []}},
            "the expected content and reasoning must be strings or null",
        ),
        ({"expected": {"tool_calls": [{"name": "f", "arguments": [["a", 1]]}]}}, "arguments must be objects"),
        ({"accept": [[{"name": "f", "arguments": [["a", 1]]}]]}, "arguments must be objects"),
        ({"tools": {}}, "tools must be a list of objects"),
        ({"tools": ["f"]}, "tools must be a list of objects"),
        (
            {"expected": {"tool_calls": [{"name": "f", "arguments": {"a": [DEEP]}}]}},
            "arguments of more than 200 levels",
        ),
    ],
)
def test_a_line_that_is_no_output_is_told_why(line, why, tmp_path):
    path = tmp_path / "mine.jsonl"
    found, notes = rows(path, {"text": "x", "expected": EXPECTED} | line)
    assert found == []
    assert notes == [
        f"mine.jsonl, line 1, is left out: {why}",
        "mine.jsonl holds no outputs that can be judged",
    ]


def test_arguments_may_be_deep(tmp_path):
    expected = {"tool_calls": [{"name": "f", "arguments": {"a": DEEP}}]}
    (found,), notes = rows(tmp_path / "x.jsonl", {"text": "x", "expected": expected})
    assert (found.accepted, notes) == (([("f", {"a": DEEP})],), [])
    assert [too_deep(each) for each in ([[DEEP]], [[[DEEP]]], {"a": [{"b": DEEP}]}, 7)] == [
        False,
        True,
        True,
        False,
    ]


def test_a_long_reason_is_cut_and_a_file_that_is_not_there_named(tmp_path):
    _, (note, _) = rows(tmp_path / "x.jsonl", {"text": "x", "expected": EXPECTED, "dialect": "k" * 300})
    assert note == f"x.jsonl, line 1, is left out: no dialect is called {'k' * 179}"
    with pytest.raises(UsageError, match=r"none\.jsonl cannot be read: No such file or directory$"):
        list(file_rows(tmp_path / "none.jsonl", print))


ASKED = {"dialect": "lfm2", "tools": [TOOL], "finish": "stop"}
FLAGGED = [("a", True), ("b", None)]


@pytest.mark.parametrize(
    ("more", "given", "asked"),
    [
        ({}, {}, {"text": "x"}),
        ({}, {"flags": True}, {"text": "x"}),
        (
            {"inside": "reasoning", "finish": "length"},
            {},
            {"text": "x", "inside": "reasoning", "finish": "length"},
        ),
        ({}, {"pieces": FLAGGED}, {"chunks": ["a", "b"]}),
        ({}, {"pieces": FLAGGED, "flags": True}, {"chunks": ["a", "b"], "special": [True, None]}),
        ({}, {"pieces": [("a", None)], "flags": True}, {"chunks": ["a"]}),
        ({"pieces": tuple(FLAGGED)}, {}, {"text": "x"}),
        ({"pieces": tuple(FLAGGED)}, {"flags": True}, {"chunks": ["a", "b"], "special": [True, None]}),
    ],
)
def test_a_parser_is_told_which_pieces_are_special_if_it_can_be(more, given, asked):
    assert row(tools=[TOOL], **more).request(**given) == ASKED | asked


def test_rows_of_the_case_tables_and_of_recorded_outputs(tmp_path, monkeypatch):
    cases = tmp_path / "tests" / "parsers" / "cases"
    cases.mkdir(parents=True)
    case = {
        "why": "a call",
        "raw": "r",
        "calls": [["f", {"a": 1}]],
        "content": "c",
        "reasoning": "",
        "tools": [FUNCTION],
    }
    more = case | {"inside": "reasoning", "pieces": [["r", True]]}
    own = [case | {"strict": True}, case | {"atomic": []}]
    (cases / "lfm2.jsonl").write_text("\n".join(map(json.dumps, [case, *own, more])))
    monkeypatch.setattr(corpora, "_ROOT", tmp_path)
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    rows(recorded / "b.jsonl", {"text": "x", "expected": EXPECTED}, {})
    rows(recorded / "a.jsonl", {"text": "x", "expected": EXPECTED})
    monkeypatch.setenv("RECORDED_CASES", str(recorded))
    first = row(corpus="cases", id="lfm2: a call", text="r", tools=[TOOL], content="c", reasoning="")
    assert list(case_rows()) == [
        first,
        row(
            **{
                name: getattr(first, name)
                for name in ("corpus", "id", "text", "tools", "content", "reasoning")
            },
            inside="reasoning",
            pieces=(("r", True),),
        ),
        row(corpus="a"),
        row(corpus="b"),
    ]


PARAMETERS = {
    "type": "dict",
    "properties": {
        "type": {"type": "String", "description": "One called type."},
        "at": {"type": "dict", "properties": {"lat": {"type": "float"}}},
        "all": {"type": "tuple", "items": [{"type": "any"}, {"type": "Bigint"}]},
        "unit": {"type": "any", "enum": ["c"]},
        "same": {"type": ["a", "b"]},
    },
    "required": ["type"],
}
SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "description": "One called type."},
        "at": {"type": "object", "properties": {"lat": {"type": "number"}}},
        "all": {"type": "array", "items": [{}, {"type": "string"}]},
        "unit": {"enum": ["c"]},
        "same": {"type": ["a", "b"]},
    },
    "required": ["type"],
}


def test_tasks_of_bfcl_have_schemas_and_the_first_of_the_right_values(tmp_path, monkeypatch):
    data = tmp_path / "bfcl_eval" / "data"
    (data / "possible_answer").mkdir(parents=True)
    for name in JUDGED:
        for folder in (data, data / "possible_answer"):
            (folder / f"BFCL_v4_{name}.json").touch()
    functions = [
        {"name": "a.b.c", "description": "Does.", "parameters": PARAMETERS, "more": 1},
        {"name": "g"},
    ]
    (data / "BFCL_v4_multiple.json").write_text(json.dumps({"id": "m", "function": functions}) + "\n")
    truth = [
        {
            "a.b.c": {
                "x": ["", 2],
                "left": [""],
                "o": [{"k": [1], "gone": [""], "plain": "p"}],
                "l": [[{"y": [3, 4]}, 5]],
            }
        },
        {"g": {}},
    ]
    told = json.dumps({"id": "m", "ground_truth": truth}) + "\n"
    (data / "possible_answer" / "BFCL_v4_multiple.json").write_text(told)
    monkeypatch.setenv("LOCALAGENT_BFCL", str(tmp_path))
    first = {"name": "a_b_c", "description": "Does.", "parameters": SCHEMA}
    calls = [("a_b_c", {"x": 2, "o": {"k": 1, "plain": "p"}, "l": [{"y": 3}, 5]}), ("g", {})]
    tools = [{"type": "function", "function": each} for each in (first, {"name": "g"})]
    assert bfcl_tasks() == [AskedCalls("m", tools, calls)]
    (data / "possible_answer" / "BFCL_v4_multiple.json").write_text("{")
    with pytest.raises(NoData, match="cannot be read"):
        bfcl_tasks()
