"""Dialects from TOML files: what they change, and every way in which a file can be wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parsers import DIALECTS, CallPart, ReasoningPart, StreamParser, TextPart, collect
from parsers.custom import InvalidDialect, load_dialect
from tests.parsers.outputs import in_pieces

GOOD = """
name = "mine"
based_on = "hermes"
ends = ["<|stop|>"]

[calls]
open = "[CALL]"
close = "[/CALL]"
before = ["\\n", "\\n\\n"]

[reasoning]
open = "<thought>"
close = "</thought>"
after_open = "\\n"
before_close = []
after_close = []
"""


@pytest.fixture
def load(tmp_path):
    """Loads a dialect from its text."""

    def load(text: str):
        file = tmp_path / "mine.toml"
        file.write_text(text, encoding="utf-8")
        return load_dialect(file)

    return load


def read(dialect, text: str, **how):
    parser = StreamParser(dialect, **how)
    return collect([event for piece in text for event in parser.feed(piece)] + parser.close())


def test_a_file_changes_what_it_names(load):
    dialect = load(GOOD)
    assert dialect.calls.before == ("\n\n", "\n")
    assert dialect.markers == ("<thought>", "</thought>", "[CALL]", "[/CALL]", "<|stop|>")
    written = (
        '<thought>\nhm</thought>\nSo.\n\n[CALL]{"name": "f", "arguments": {"a": "[/CALL]"}}[/CALL]<|stop|>'
    )
    thought, text, call = read(dialect, written)
    assert (thought, text) == (ReasoningPart("hm"), TextPart("\nSo."))
    assert (call.name, call.arguments) == ("f", {"a": "[/CALL]"})


def test_what_is_left_out_is_as_in_the_dialect_it_is_based_on(load):
    dialect, base = load('name = "mine"\nbased_on = "qwen3-coder"'), DIALECTS["qwen3-coder"]
    assert (dialect.calls, dialect.reasoning, dialect.ends) == (base.calls, base.reasoning, base.ends)
    other = load('name = "mine"\nbased_on = "qwen3-coder"\nreasoning = false\n[calls]\nopen = "<c>"')
    assert other.reasoning is None
    assert other.interrupts == {
        "<c>" if marker == "<tool_call>" else marker: follow for marker, follow in base.interrupts.items()
    }
    assert other.calls.close == base.calls.close


@pytest.mark.parametrize("name", [name for name, dialect in DIALECTS.items() if dialect.calls])
def test_whatever_it_is_based_on_it_reads_what_it_writes_or_is_refused(load, name):
    """Some grammars know their own markers; that must not become a dialect which never reads a call."""
    text = (
        f'name = "mine"\nbased_on = "{name}"\n[calls]\nopen = "<|my_calls|>"\nclose = "<|end_of_my_calls|>"'
    )
    try:
        dialect = load(text)
    except InvalidDialect as error:
        assert f"{name} cannot be read with these markers" in str(error)
        return
    (call,) = read(dialect, dialect.render([("f", {"a": "b c"})]))
    assert isinstance(call, CallPart)
    assert (call.name, call.arguments) == ("f", {"a": "b c"})


def test_a_host_may_flag_the_token_in_a_new_marker(load):
    dialect = load('name = "mine"\nbased_on = "deepseek-v32"\n[calls]\nopen = "<｜DSML｜tool_uses>"')
    base = DIALECTS["deepseek-v32"]
    assert dialect.cores["<｜DSML｜tool_uses>"] == "｜DSML｜"
    assert set(dialect.cores) <= set(dialect.markers)
    assert base.calls.open not in dialect.cores
    written = dialect.render([("f", {"a": "b"})])
    parser = StreamParser(dialect, atomic={"｜DSML｜"})
    events = []
    for number, piece in enumerate(written.split("｜DSML｜")):
        events += parser.feed("｜DSML｜" if number else "", special=True)
        events += parser.feed(piece, special=False)
    (call,) = collect([*events, *parser.close()])
    assert (call.name, call.arguments) == ("f", {"a": "b"})


def test_reasoning_where_the_base_has_none(load):
    based = 'name = "mine"\nbased_on = "llama3-json"\n[reasoning]\nopen = "<t>"\n'
    with pytest.raises(InvalidDialect, match=r"reasoning\.close: missing"):
        load(based)
    assert read(load(based + 'close = "</t>"'), "<t>hm</t>ok") == [ReasoningPart("hm"), TextPart("ok")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = ", "not valid TOML: "),
        ('based_on = "hermes"', "name: missing"),
        ('name = ""\nbased_on = "hermes"', "name: must be a text, and not empty"),
        ('name = "Mine!"\nbased_on = "hermes"', "name: 'Mine!' is taken or no name"),
        ('name = "lfm2"\nbased_on = "hermes"', "name: 'lfm2' is taken or no name"),
        ('name = "auto"\nbased_on = "hermes"', "name: 'auto' is taken or no name"),
        ('name = "mine"\nbased_on = "hermes"\n[calls]\nopen = "<a\\u0000>"', "calls.open: a marker cannot hold a NUL"),
        ('name = "mine"\nbased_on = "hermes"\n[calls]\nopen = "<th"', "calls.open: '<th' is how reasoning.open begins, '<think>'"),
        ('name = "mine"\nbased_on = "hermes"\nends = ["<tool"]', "ends[0]: '<tool' is how calls.open begins, '<tool_call>'"),
        ('name = "mine"\nbased_on = "mistral"\n[calls]\nopen = "[ARGS]"', "calls.open: '[ARGS]' is inner of mistral as well"),
        ('name = "mine"\nbased_on = "mistral"\n[calls]\nopen = "[ARGS]x"', "calls.open: '[ARGS]x' begins with '[ARGS]' of inner of mistral"),
        ('name = "mine"\nbased_on = "mistral"\n[calls]\nopen = "[AR"', "calls.open: '[AR' is how inner of mistral begins, '[ARGS]'"),
        ('name = "mine"\nbased_on = "harmony"\n[reasoning]\nopen = "<r>"\nclose = "</r>"', "reasoning: harmony cannot be read with these markers"),
        ('name = "mine"\nbased_on = "hermes"\n[reasoning]\nopen = "<r>"\nclose = "o"', "calls: the grammar of hermes cannot be read with"),
        ('name = "mine"\nbased_on = "hermes"\nreasoning = true', "reasoning: must be a table, or false for none"),
        ('name = "mine"\nbased_on = "granite3"\n[calls]\nopen = "<tool_call>x"', "calls.open: '<tool_call>x' begins with '<tool_call>' of slips of granite3"),
        ('name = "mine"\nbased_on = "granite3"\nends = ["<tool_call>"]', "ends[0]: '<tool_call>' is slips of granite3 as well"),
        ('name = "mine"\nbased_on = "granite3"\n[calls]\nopen = "<response>"', "calls.open: '<response>' is answers of granite3 as well"),
        ('name = "mine"\nbased_on = "granite3"\n[reasoning]\nopen = "<tool_call>"', "reasoning.open: '<tool_call>' is slips of granite3 as well"),
        ('name = "mine"\nbased_on = "hermes"\n[calls]\nbefore = ""', "calls.before: must be a text, and not empty; [] says"),
        ('name = "mine"\nbased_on = "hermes"\nreasoning = ""', "reasoning: must be a table, or false for none"),
        ('name = "mine"', "based_on: missing"),
        ('name = "mine"\nbased_on = "klingon"', "based_on: no dialect 'klingon': there are apertus, "),
        ('name = "mine"\nbased_on = "hermes"\nstart = "x"', "start: no such key: there are name, based_on, "),
        ('name = "mine"\nbased_on = "hermes"\ncalls = "x"', "calls: must be a table"),
        ('name = "mine"\nbased_on = "plain"\n[calls]\nopen = "x"', "calls: plain has no calls"),
        ('name = "mine"\nbased_on = "hermes"\n[calls]\nopens = "x"', "calls.opens: no such key: there are open, "),
        ('name = "mine"\nbased_on = "hermes"\n[calls]\nopen = 3', "calls.open: must be a text, and not empty"),
        ('name = "mine"\nbased_on = "hermes"\n[calls]\nopen = "\\n"', "calls.open: a marker cannot be white space"),
        ('name = "mine"\nbased_on = "hermes"\n[calls]\nbefore = "x"', "calls.before: must be white space"),
        ('name = "mine"\nbased_on = "hermes"\n[calls]\nopen = "<think>"', "calls.open: '<think>' is reasoning.open as well"),
        ('name = "mine"\nbased_on = "hermes"\nends = ["<tool_call>"]', "calls.open: '<tool_call>' is ends[0] as well"),
        ('name = "mine"\nbased_on = "hermes"\nends = ["a", 2]', "ends: must be a text, and not empty"),
        ('name = "mine"\nbased_on = "hermes"\n[calls]\nopen = "{"\nclose = "}"', "calls: the grammar of hermes cannot be read"),
        ('name = "mine"\nbased_on = "hermes"\n[reasoning]\nopen = "</think>"', "reasoning.open: '</think>' is reasoning.close as well"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_one_line(load, text, says):
    with pytest.raises(InvalidDialect) as caught:
        load(text)
    line = str(caught.value)
    assert f"mine.toml: {says}" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("calls.open", ""),
        ("calls.before", "; [] says that there is no white space"),
        ("reasoning.open", "; reasoning = false says that there is none"),
        ("reasoning.after_open", "; [] says that there is no white space"),
    ],
)
def test_an_empty_text_is_answered_with_what_says_none(load, key, hint):
    table, _, name = key.partition(".")
    with pytest.raises(InvalidDialect) as caught:
        load(f'name = "mine"\nbased_on = "hermes"\n[{table}]\n{name} = ""')
    assert str(caught.value).endswith(f"mine.toml: {key}: must be a text, and not empty{hint}")


@pytest.mark.parametrize("name", DIALECTS)
def test_a_name_alone_makes_the_dialect_it_is_based_on(load, name):
    """Markers that would be refused in a file are fine where the base already has them so."""
    dialect, base = load(f'name = "mine"\nbased_on = "{name}"'), DIALECTS[name]
    for fact in ("markers", "cores", "shown", "interrupts", "reasoning", "calls", "answers"):
        assert getattr(dialect, fact) == getattr(base, fact)


def test_a_closing_marker_may_end_the_turn_as_well(load):
    """Many models stop at the end of their calls; only what opens something must be its own."""
    dialect = load('name = "mine"\nbased_on = "hermes"\nends = "</tool_call>"')
    assert dialect.ends == (dialect.calls.close,)
    (call,) = read(dialect, dialect.render([("f", {"a": "b"})]))
    assert (call.name, call.arguments) == ("f", {"a": "b"})


def test_a_marker_that_is_replaced_is_not_said_to_be_shown(load):
    dialect = load('name = "mine"\nbased_on = "hermes"\n[reasoning]\nopen = "<thought>"')
    assert dialect.shown == ("<tool_call>", "</tool_call>", "</think>")


FILES = Path(__file__).parent / "dialects"
WRITTEN = {
    "internlm2": (
        'So: <|action_start|><|plugin|>\n{"name": "f", "parameters": {"city": "Paris"}}<|action_end|><|im_end|>'
    ),
    "command-r-plus": (
        'So: Action:\n```json\n[\n    {"tool_name": "f", "parameters": {"city": "Paris"}}\n]\n```'
        "<|END_OF_TURN_TOKEN|>"
    ),
    "sarashina": "So: <|tool_calls|>[{'name': 'f', 'arguments': {'city': 'Paris'}}]</s>",
    "granite-20b-fc": 'So: <function_call> {"name": "f", "arguments": {"city": "Paris"}}<|endoftext|>',
}
"""What the models of the formats in `dialects/` write."""


@pytest.mark.parametrize("name", [file.stem for file in FILES.glob("*.toml")])
def test_formats_with_markers_of_their_own_are_files(name):
    dialect = load_dialect(FILES / f"{name}.toml")
    assert dialect.name == name
    for atomic in (None, {*dialect.markers, *dialect.cores.values()}):
        pieces = in_pieces(dialect.markers, WRITTEN[name])
        parser = StreamParser(dialect, atomic=atomic)
        events = [event for piece in pieces for event in parser.feed(piece, piece in dialect.markers)]
        text, call = collect([*events, *parser.close()])
        assert (text, call.name, call.arguments) == (TextPart("So: "), "f", {"city": "Paris"})


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidDialect, match=r"nothing\.toml: No such file"):
        load_dialect(Path("nothing.toml"))
    with pytest.raises(InvalidDialect, match="not a file"):
        load_dialect(tmp_path)
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    with pytest.raises(InvalidDialect, match=r"pipe\.toml: not a file"):
        load_dialect(pipe)
    deep = tmp_path / "deep.toml"
    deep.write_text("a = " + "[" * 100_000)
    with pytest.raises(InvalidDialect, match=r"deep\.toml: not valid TOML"):
        load_dialect(deep)
    file = tmp_path / "bytes.toml"
    file.write_bytes(b"\xff")
    with pytest.raises(InvalidDialect, match="not valid TOML"):
        load_dialect(file)
