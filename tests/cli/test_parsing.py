"""`parse` in this process: each way in which a line may be wrong, and all that people are shown."""

from __future__ import annotations

import io
import json
import sys

import pytest

from localagent.cli.parse import list_dialects, opened, parse_lines, parse_text
from localagent.errors import UsageError
from parsers import DIALECTS

START, END = "<|tool_call_start|>", "<|tool_call_end|>"
NO_TOOLS = "tools must be a list of OpenAI function tools"
LFM2, HERMES = DIALECTS["lfm2"], DIALECTS["hermes"]


def answers(capsys, *lines, dialect=LFM2):
    """What is answered to these lines."""
    parse_lines(dialect, io.BytesIO(b"\n".join(lines)))
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ([], "not a JSON object"),
        ({}, "needs exactly one of text, chunks, pieces; has none"),
        ({"text": "", "pieces": []}, "needs exactly one of text, chunks, pieces; has text, pieces"),
        ({"text": None}, "text must be a string"),
        ({"chunks": "a"}, "chunks must be a list"),
        ({"pieces": {}}, "pieces must be a list"),
        ({"chunks": ["a", "b", 1]}, "chunks[2] must be a string"),
        ({"pieces": [{"text": "a"}, "b"]}, "pieces[1] must be an object with a string text"),
        ({"pieces": [{"text": 1}]}, "pieces[0] must be an object with a string text"),
        ({"pieces": [{"text": "", "special": 1}]}, "pieces[0].special must be true, false or null"),
        ({"text": "", "inside": "content"}, "inside must be one of reasoning"),
        ({"text": "", "finish": ""}, "finish must be one of stop, length"),
        ({"text": "", "tools": {}}, NO_TOOLS),
        ({"text": "", "tools": [1]}, NO_TOOLS),
        ({"text": "", "tools": [{"function": "f"}]}, NO_TOOLS),
        ({"text": "", "tools": [{"function": {"name": 1}}]}, NO_TOOLS),
        ({"text": "", "tools": [{"function": {"name": "f"}}, {}]}, NO_TOOLS),
        ({"text": "", "dialect": 3}, "no dialect is called 3: `localagent parse --list` shows all"),
        (
            {"text": "", "dialect": "./mine.toml"},
            "no dialect is called './mine.toml': `localagent parse --list` shows all",
        ),
        (
            {"text": "", "dialect": "llama3-json", "inside": "reasoning"},
            "inside: the dialect llama3-json has no reasoning",
        ),
    ],
)
def test_what_is_wrong_with_a_line_is_told_and_the_next_is_read(capsys, record, error):
    good = json.dumps({"id": 2, "text": "x", "tools": None, "inside": None, "finish": None}).encode()
    named = {"id": 1, **record} if isinstance(record, dict) else record
    first, second = answers(capsys, json.dumps(named).encode(), good)
    assert first == {"id": 1 if isinstance(record, dict) else None, "error": error}
    assert second == {
        "id": 2, "content": "x", "reasoning": "", "tool_calls": [], "malformed": [], "segments": [["text", 0, 1]],
        "events": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"{", "not a JSON line: Expecting property name"),
        (b'{"id": -Infinity}', "not a JSON line: -Infinity is not JSON"),
        (b'"\xff"', "not a JSON line: 'utf-8' codec can't decode"),
    ],
)
def test_what_is_no_json(capsys, line, error):
    [answer] = answers(capsys, line)
    assert answer["error"].startswith(error)


def test_a_line_may_name_its_dialect(capsys):
    line = json.dumps(
        {"id": 1, "text": '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "dialect": "hermes"}
    )
    for dialect in (LFM2, None):
        [answer] = answers(capsys, line.encode(), dialect=dialect)
        assert answer["tool_calls"] == [{"name": "f", "arguments": {}, "repaired": False, "fits": None}]
        assert "dialect" not in answer, "it was not detected"


def test_pieces_are_fed_one_by_one_with_what_is_known_of_them(capsys):
    pieces = [{"text": START, "special": False}, {"text": "[f()]"}, {"text": END, "special": False}]
    whole = {"id": 1, "text": f"{START}[f()]{END}"}
    spelled, read = answers(
        capsys, *(json.dumps(each).encode() for each in ({"id": 0, "pieces": pieces}, whole))
    )
    assert (spelled["content"], spelled["tool_calls"]) == (whole["text"], [])
    assert (read["content"], [call["name"] for call in read["tool_calls"]]) == ("", ["f"])


def shown(capsys, raw, dialect=None):
    """The lines that people are shown, and the note."""
    file = io.BytesIO(raw.encode())
    file.name = "output"
    parse_text(dialect, file)
    printed = capsys.readouterr()
    return [line.rstrip() for line in printed.out.splitlines()], printed.err


def test_every_part_of_an_output_is_shown(capsys):
    assert shown(capsys, f"<think>hm</think>Hi{START}[f(a=1), g(2)]{END}{START}[", LFM2) == (
        [
            "part       what",
            "reasoning  hm",
            "text       Hi",
            'call       f {"a": 1}',
            "malformed  positional_argument, g: g(2)",
            f"malformed  truncated: {START}[",
        ],
        "",
    )
    repaired = '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>'
    lines = ["part  what", 'call  f (repaired) {"a": 1}']
    assert shown(capsys, repaired, HERMES) == (lines, "")
    lines = ["part     what", "dialect  hermes", 'call     f (repaired) {"a": 1}']
    assert shown(capsys, repaired) == (lines, "")
    lines, note = shown(capsys, "Hello.")
    assert lines == ["part     what", "dialect  plain", "text     Hello."]
    assert note == (
        "note: no dialect reads calls from this output without anything malformed: name one; shown as plain reads "
        "it, which comes nearest\n"
    )


def test_a_long_part_is_not_cut(capsys):
    lines, _ = shown(capsys, "word " * 500, DIALECTS["plain"])
    assert " ".join(lines[1:]).split() == ["text", *["word"] * 500]


def test_a_file_is_named_if_it_is_no_text(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"a\0")
    with opened(path) as file, pytest.raises(UsageError) as error:
        parse_text(None, file)
    assert str(error.value) == f"{path} is binary: NUL at character 1"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    with opened(None) as file, pytest.raises(UsageError) as error:
        parse_text(None, file)
    assert str(error.value) == "standard input is not UTF-8 text: byte 0xff at offset 0"


@pytest.mark.parametrize("typed", [True, False])
def test_who_sits_at_a_terminal_is_told_what_to_do(monkeypatch, capsys, typed):
    stdin = io.TextIOWrapper(io.BytesIO(b"x"))
    stdin.isatty = lambda: typed
    monkeypatch.setattr(sys, "stdin", stdin)
    with opened(None) as file:
        assert file.read() == b"x"
    said = "(paste the output, then press Ctrl-D on an empty line)\n" if typed else ""
    assert capsys.readouterr().err == said


def test_the_list_shows_the_markers_of_each_dialect(capsys):
    list_dialects(as_json=False)
    lines = capsys.readouterr().out.splitlines()
    starts = [
        lines[0].index(title) for title in ("dialect", "calls", "reasoning", "ends of a turn", "aliases")
    ]
    rows = {}
    for line in lines[1:]:
        cells = [line[at:end].strip() for at, end in zip(starts, [*starts[1:], None], strict=True)]
        rows[cells[0]] = cells[1:]
    assert [*rows] == [*DIALECTS]
    assert starts[0] == 0
    assert rows["lfm2"] == [
        f"{START} … {END}", "<think> … </think>", "<|im_end|> <|endoftext|>", "lfm2.5",
    ]  # fmt: skip
    assert rows["plain"] == ["", "<think> … </think>", "<|im_end|> <|endoftext|>", ""]
    assert rows["llama3-json"][:2] == ["<|python_tag|> … <|eom_id|>", ""]
    assert rows["llama-pythonic"][3] == "llama4, pythonic"
    assert rows["json"][0] == "(bare)"
    list_dialects(as_json=True)
    listed = {each["name"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    assert (listed["llama3-json"]["reasoning"], listed["plain"]["calls"]) == (None, None)
    assert listed["lfm2"] == {
        "name": "lfm2", "reasoning": ["<think>", "</think>"], "calls": [START, END], "inner": [],
        "ends": ["<|im_end|>", "<|endoftext|>"], "aliases": ["lfm2.5"],
    }  # fmt: skip
