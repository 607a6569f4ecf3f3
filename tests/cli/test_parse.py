"""`localagent parse`: the contract that other programs run against."""

from __future__ import annotations

import json

import pytest

START, END = "<|tool_call_start|>", "<|tool_call_end|>"


def parse(localagent, *lines: object, dialect: str = "lfm2") -> list[dict]:
    stdin = b"".join(
        (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines
    )
    done = localagent("parse", "--dialect", dialect, "--jsonl", stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_line_in_a_line_out(localagent):
    raw = f"<think>hm</think>Hi {START}[f(a=07), g('x')]{END}!"
    (answer,) = parse(localagent, {"id": "one", "text": raw})
    tiles = answer.pop("segments")
    assert answer == {
        "id": "one",
        "content": "Hi !",
        "reasoning": "hm",
        "tool_calls": [{"name": "f", "arguments": {"a": 7}, "repaired": True, "fits": None}],
        "malformed": [{"raw": "g('x')", "reason": "positional_argument", "name": "g"}],
        "events": 16,
    }
    assert [kind for kind, _, _ in tiles] == [
        "markup", "reasoning", "markup", "text", "markup", "call", "markup", "malformed", "markup", "text",
    ]  # fmt: skip
    assert [start for _, start, _ in tiles] == [0, *(end for _, _, end in tiles[:-1])]
    assert tiles[-1][2] == len(raw)


def test_chunks_pieces_inside_and_finish(localagent):
    answers = parse(
        localagent,
        {"id": 1, "chunks": ["x</th", "ink>y"], "inside": "reasoning"},
        {"id": 2, "pieces": [{"text": START, "special": False}, {"text": "[]", "special": None}]},
        {"id": 3, "pieces": [{"text": START, "special": True}, {"text": "[f("}], "finish": "length"},
        {"id": 4, "text": ""},
    )
    assert [answer["id"] for answer in answers] == [1, 2, 3, 4]
    assert (answers[0]["reasoning"], answers[0]["content"]) == ("x", "y")
    assert answers[1]["content"] == f"{START}[]"
    assert answers[2]["malformed"] == [{"raw": "f(", "reason": "truncated", "name": "f"}]
    assert answers[3]["segments"] == []


def test_the_tools_of_a_line_say_whether_its_calls_fit(localagent):
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    (answer,) = parse(localagent, {"text": f"{START}[f(a='x'), f(b=1)]{END}", "tools": tools})
    assert [call["fits"] for call in answer["tool_calls"]] == [
        True,
        [{"kind": "unknown_key", "path": "/b"}, {"kind": "missing_required", "path": "/a"}],
    ]


def test_the_tools_of_a_line_give_its_arguments_their_types(localagent):
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    text = f"{START}[f(a=07)]{END}"
    typed, untyped = parse(localagent, {"id": 1, "text": text, "tools": tools}, {"id": 2, "text": text})
    assert typed["tool_calls"][0]["arguments"] == {"a": "07"}
    assert untyped["tool_calls"][0]["arguments"] == {"a": 7}


def test_bad_lines_are_answered_on_their_lines(localagent):
    answers = parse(
        localagent,
        b"not json",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"id": NaN, "text": "x"}',
        {"id": 5},
        {"id": 6, "text": "a", "chunks": ["b"]},
        {"id": 7, "text": 3},
        {"id": 8, "chunks": ["a", 1]},
        {"id": 9, "pieces": [{"special": True}]},
        {"id": 10, "pieces": [{"text": "a", "special": "yes"}]},
        {"id": 11, "text": "a", "inside": "out"},
        {"id": 12, "text": "a", "finish": "never"},
        {"id": 13, "text": "a", "tools": [{"name": "f"}]},
        {"id": 14, "text": "fine"},
    )
    assert [answer["id"] for answer in answers] == [None] * 4 + list(range(5, 15))
    assert all("error" in answer and "content" not in answer for answer in answers[:-1])
    assert answers[-1]["content"] == "fine"
    assert "chunks[1]" in answers[7]["error"]


def test_lone_surrogates_survive(localagent):
    (answer,) = parse(localagent, b'{"id": 1, "text": "a\\ud800b"}')
    assert answer["content"] == "a\ud800b"


def test_the_plain_dialect_reads_no_calls(localagent):
    (answer,) = parse(localagent, {"id": 1, "text": f"<think>a</think>{START}[f()]"}, dialect="plain")
    assert (answer["content"], answer["reasoning"], answer["tool_calls"]) == (f"{START}[f()]", "a", [])


def test_an_answer_comes_before_the_next_line_is_read(localagent):
    """A program that writes a line and waits for its answer must not hang."""
    import subprocess

    from tests.cli.conftest import COMMAND

    with subprocess.Popen(
        [COMMAND, "parse", "--jsonl"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        for number in range(3):
            process.stdin.write(json.dumps({"id": number, "text": "x"}) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == number
        process.stdin.close()
    assert process.returncode == 0


def test_the_readable_view_shows_every_part_and_no_escapes(localagent):
    done = localagent("parse", stdin=f"<think>hm</think>Hi\x1b[2J{START}[f(a=1), g(2)]{END}".encode())
    view = done.stdout.decode()
    for words in ("reasoning  hm", "Hi\\x1b[2J", 'f {"a": 1}', "positional_argument, g: g(2)"):
        assert words in view
    assert "\x1b" not in view
    localagent.refuse("parse", stdin=b"\xff", code=2, says="not UTF-8")


HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def test_an_output_may_tell_its_dialect(localagent):
    answers = parse(
        localagent,
        {"id": 1, "text": HERMES},
        {"id": 2, "pieces": [{"text": START, "special": True}, {"text": "[f(a=1)]"}, {"text": END, "special": True}]},
        {"id": 3, "text": "Hello."},
        {"id": 4, "chunks": ["<seed:tool_call>\n<function=f>\n</func", "tion>\n</seed:tool_call>"]},
        {"id": 5, "text": 3},
        dialect="auto",
    )  # fmt: skip
    assert [answer.get("dialect") for answer in answers] == ["hermes", "lfm2", None, "seed-oss", None]
    assert answers[0]["tool_calls"] == [{"name": "f", "arguments": {"a": 1}, "repaired": False, "fits": None}]
    assert answers[2] == {
        "id": 3,
        "error": "no dialect reads calls from this output without anything malformed: name one",
    }
    done = localagent("parse", "-d", "auto", stdin=HERMES.encode())
    assert done.stdout.decode().split() == ["part", "what", "dialect", "hermes", "call", "f", '{"a":', "1}"]


def test_help_says_how_a_dialect_may_be_named(localagent):
    help_text = " ".join(localagent("parse", "--help").stdout.decode().replace("│", " ").split())
    assert "or auto to detect it" in help_text
    assert "JSON with --jsonl" in help_text


def test_a_dialect_from_a_file(localagent, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\nbased_on = "hermes"\n[calls]\nopen = "[CALL]"\nclose = "[/CALL]"\n')
    (answer,) = parse(
        localagent, {"id": 1, "text": '[CALL]{"name": "f", "arguments": {}}[/CALL]'}, dialect=str(file)
    )
    assert answer["tool_calls"] == [{"name": "f", "arguments": {}, "repaired": False, "fits": None}]
    file.write_text('name = "mine"\nbased_on = "hermes"\n[calls]\nopen = 3\n')
    localagent.refuse("parse", "-d", str(file), code=2, says=f"{file}: calls.open: must be a text")


def test_reasoning_cannot_be_open_in_a_dialect_that_has_none(localagent):
    record = {"id": 1, "text": "x", "inside": "reasoning"}
    (answer,) = parse(localagent, record, dialect="llama3-json")
    assert answer == {"id": 1, "error": "inside: the dialect llama3-json has no reasoning"}


def test_the_dialects_are_listed_with_their_markers(localagent):
    from parsers import DIALECTS

    lines = localagent("parse", "--list").stdout.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["dialect", *DIALECTS]
    assert f"{START} … {END}" in lines[1]
    listed = [json.loads(line) for line in localagent("parse", "--list", "--jsonl").stdout.splitlines()]
    assert [entry["name"] for entry in listed] == list(DIALECTS)
    assert listed[0]["calls"] == [START, END]
    assert listed[1]["calls"] is None
    localagent.refuse("parse", "-d", "klingon", code=2, says="choose apertus, ")


DECLARED = {
    "start_anchor": "A:",
    "fields": {
        "content": {"close": "<|eot|>"},
        "tool_calls": {
            "open_pattern": "<run (?P<name>[a-z]+)>",
            "close": "</run>",
            "content": "xml-inline",
            "content_args": {"tag_pattern": "<(?P<key>[a-z]+)>(?P<value>.*?)</arg>"},
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        },
    },
}


def test_a_dialect_that_a_model_declares(localagent, tmp_path):
    """By its file or its folder, for people and for programs."""
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({"response_template": DECLARED}))
    raw = b"Look: <run ls>\n<path>/tmp</arg>\n</run><|eot|>"
    for given in (file, tmp_path):
        done = localagent("parse", "--dialect-from", str(given), stdin=raw)
        lines = [line.rstrip() for line in done.stdout.decode().splitlines()]
        assert lines[1:] == ["text  Look:", 'call  ls {"path": "/tmp"}']
    line = json.dumps({"id": 1, "text": raw.decode()}).encode()
    (answer,) = localagent("parse", "--dialect-from", str(file), "--jsonl", stdin=line).stdout.splitlines()
    calls = [{"name": "ls", "arguments": {"path": "/tmp"}, "repaired": False, "fits": None}]
    assert json.loads(answer)["tool_calls"] == calls
    assert "dialect" not in json.loads(answer)


def test_a_declaration_that_cannot_be_read_is_one_line(localagent, tmp_path):
    file = tmp_path / "tokenizer_config.json"
    refuse = localagent.refuse
    refuse("parse", "--dialect-from", str(file), code=2, says="tokenizer_config.json: No such file")
    refuse("parse", "--dialect-from", str(tmp_path), code=2, says="tokenizer_config.json: No such file")
    for text, says in (
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ("{}", "response_template: missing: this model declares no output format; name its dialect"),
        (json.dumps({"response_template": DECLARED | {"x": 1}}), "response_template.x: no such key"),
    ):
        file.write_text(text)
        refuse("parse", "--dialect-from", str(file), code=2, says=f"{file}: {says}")
    refuse(
        "parse", "-d", "lfm2", "--dialect-from", str(file), code=2, says="both name the format: leave one out"
    )


def test_an_alias_names_its_dialect(localagent):
    """Capitals do not count, for names as for aliases."""
    from parsers import DIALECTS

    raw = f"{START}[f(a=1)]{END}"
    assert parse(localagent, {"id": 1, "text": raw}, dialect="LFM2")[0]["tool_calls"]
    listed = [json.loads(line) for line in localagent("parse", "--list", "--jsonl").stdout.splitlines()]
    assert [entry["aliases"] for entry in listed] == [[*dialect.aliases] for dialect in DIALECTS.values()]
    assert "aliases" in localagent("parse", "--list").stdout.decode().splitlines()[0]


def test_w14_a_file_is_read(localagent, tmp_path):
    file = tmp_path / "output.txt"
    file.write_text(f"Hi {START}[f(a=1)]{END}")
    done = localagent("parse", str(file))
    assert done.returncode == 0, done.stderr
    assert b"call  f " in done.stdout
    lines = tmp_path / "outputs.jsonl"
    lines.write_text(json.dumps({"id": 1, "text": f"{START}[f(a=1)]{END}"}) + "\n")
    done = localagent("parse", "--jsonl", str(lines))
    assert json.loads(done.stdout)["tool_calls"] == [
        {"name": "f", "arguments": {"a": 1}, "repaired": False, "fits": None}
    ]
    assert b"text  Hi" in localagent("parse", "-", stdin=b"Hi").stdout


def test_w14_a_file_that_cannot_be_read(localagent, tmp_path):
    localagent.refuse("parse", str(tmp_path / "none"), code=2, says="none cannot be read: No such file")
    localagent.refuse("parse", str(tmp_path), code=2, says="cannot be read: Is a directory")
    (tmp_path / "binary").write_bytes(b"a\0b")
    localagent.refuse("parse", str(tmp_path / "binary"), code=2, says="binary is binary: NUL at character 1")
    (tmp_path / "latin").write_bytes(b"na\xefve")
    localagent.refuse("parse", str(tmp_path / "latin"), code=2, says="latin is not UTF-8 text: byte 0xef")


@pytest.mark.parametrize(
    ("output", "dialect", "shown"),
    [
        (f"{START}[f('x')]{END}", "lfm2", "positional_argument"),
        (f"{START}[f(a=1)", "lfm2", "truncated"),
        ('<tool_call>{"name": "f", "arguments": {', "hermes", "truncated"),
        ("Just text.", "plain", "Just text."),
    ],
)
def test_w14_auto_shows_what_is_wrong(localagent, output, dialect, shown):
    done = localagent("parse", "-d", "auto", stdin=output.encode())
    assert done.returncode == 0
    assert f"shown as {dialect} reads it, which comes nearest" in done.stderr.decode()
    assert shown in done.stdout.decode()
    (answer,) = map(
        json.loads,
        localagent(
            "parse", "-d", "auto", "--jsonl", stdin=json.dumps({"id": 1, "text": output}).encode()
        ).stdout.splitlines(),
    )
    assert "name one" in answer["error"]  # a program is told that it is not sure
