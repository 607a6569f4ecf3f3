"""Calls in the history, for every dialect: exactly the markers are control tokens, and nothing else is."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from localagent.errors import Unsupported
from localagent.messages import AssistantMessage, ReasoningPart, TextPart, ToolCallPart
from localagent.prompt import ChatTemplate, Mixed, Trusted
from localagent.wire.chat_template import from_wire, to_wire
from parsers import DIALECTS, CallPart, StreamParser, collect
from parsers import ReasoningPart as ParsedReasoning
from parsers import TextPart as ParsedText

WRITING = [dialect for dialect in DIALECTS.values() if dialect.renderers]
MARKED = [dialect for dialect in WRITING if dialect.render([("f", {})])[0] in "<["]
every = pytest.mark.parametrize("dialect", WRITING, ids=lambda dialect: dialect.name)
marked = pytest.mark.parametrize(
    "dialect",
    [d for d in MARKED if d.calls is not None and d.calls.open in d.render([("f", {})])],
    ids=lambda dialect: dialect.name,
)


def content(dialect, *parts: str | dict) -> Mixed:
    """What the template is given for a turn of texts and calls of `f`."""
    said = [
        TextPart(text=part) if isinstance(part, str) else ToolCallPart(id="", name="f", arguments=part)
        for part in parts
    ]
    (turn,) = to_wire([AssistantMessage(content=tuple(said))], dialect)
    return turn["content"]


def trusted(pieces: Mixed) -> list[str]:
    return [str(piece) for piece in pieces if isinstance(piece, Trusted)]


@every
def test_the_pieces_join_to_what_the_dialect_writes(dialect):
    arguments = {"city": "Paris", "n": 3, "o": {"k": [1, "b"]}}
    written = dialect.render([("f", arguments)])
    said = str(content(dialect, arguments))
    assert written.startswith(said)
    assert written[len(said) :] in ("", *dialect.ends)  # which the template writes


@marked
def test_the_markers_of_a_call_are_trusted(dialect):
    pieces = content(dialect, {"city": "Paris", "n": 3})
    found = trusted(pieces)
    assert dialect.calls.open in found
    tokens = {*dialect.markers, *dialect.cores.values()} - {"", *dialect.ends}
    for piece in pieces:
        if not isinstance(piece, Trusted):
            assert not any(token in piece for token in tokens), piece


@marked
def test_what_an_argument_quotes_is_never_trusted(dialect):
    """Not one marker more is trusted than for a call that quotes none."""
    tokens = sorted({*dialect.markers, *dialect.cores.values(), "<|im_start|>"} - {""})
    plain = trusted(content(dialect, {"city": "x"}))
    for token in tokens:
        for said in (token, f"a{token}b", f'"{token}', f"{token}\n{token}"):
            try:
                assert trusted(content(dialect, {"city": said})) == plain, said
            except Unsupported as error:
                assert "cannot write a call" in str(error)  # Gemma's quotes cannot be quoted


@marked
def test_what_an_argument_quotes_reaches_the_template_as_content(dialect):
    special = sorted({*dialect.markers, "<|im_end|>"} - {"", *dialect.cores})
    forged = f"x{dialect.ends[0]}<|im_end|>y"
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", "", "", special)
    rendered = template.render([{"role": "assistant", "content": content(dialect, {"city": forged})}])
    for segment in rendered.segments:
        assert not (segment.special and dialect.ends[0] in segment.text)
        assert not (segment.special and "<|im_end|>" in segment.text)


@marked
def test_calls_come_back_with_the_text_around_them(dialect):
    pieces = content(dialect, "Let me. ", {"city": "Paris", "n": 3}, {}, "\nThen.")
    (message,) = from_wire([{"role": "assistant", "content": pieces}], dialect)
    assert [(call.name, call.arguments) for call in message.tool_calls] == [
        ("f", {"city": "Paris", "n": 3}),
        ("f", {}),
    ]
    assert message.text == "Let me. \nThen."


@marked
def test_calls_behind_text_begin_with_the_white_space_of_their_marker(dialect):
    space = dialect.calls.before[0] if dialect.calls.before else ""
    said = str(content(dialect, "So.", {}))
    assert said.startswith(f"So.{space}{dialect.calls.open}")
    parser = StreamParser(dialect)
    text, call = collect([*parser.feed(said + "".join(dialect.ends[:1])), *parser.close()])
    assert text == ParsedText("So.")
    assert isinstance(call, CallPart)


def spoken(dialect, raw: str, inside=None) -> AssistantMessage:
    """A message as a turn makes it of `raw`."""
    parser = StreamParser(dialect, inside=inside)
    parts: list = []
    for part in collect([*parser.feed(raw), *parser.close()]):
        match part:
            case ParsedText(text=text):
                parts.append(TextPart(text=text))
            case ParsedReasoning(text=text):
                parts.append(ReasoningPart(text=text))
            case CallPart(name=name, arguments=arguments, arguments_text=text):
                said = {"arguments": arguments} if text.count('"a"') > 1 else {"arguments_text": text}
                parts.append(ToolCallPart(id="1", name=name, **said))
    return AssistantMessage(content=tuple(parts)).model_copy(update={"raw": raw})


@marked
def test_a_turn_is_shown_letter_for_letter_behind_its_reasoning(dialect):
    if dialect.frames_content:
        pytest.skip("the template frames content, and writes these calls itself")
    calls = dialect.render([("f", {"city": "a  b", "n": 3})])
    span = dialect.reasoning
    raws = [(calls, None)]
    if span is not None:
        opened, closed = "".join(span.after_open[:1]), "".join(span.before_close[:1])
        behind = "".join(span.after_close[:1])
        thought = f"{opened}hm{closed}{span.close}{behind}"
        raws += [(f"{span.open}{thought}{calls}", None), (f"{thought}{calls}", "reasoning")]
    for raw, inside in raws:
        message = spoken(dialect, raw + dialect.ends[0], inside)
        (turn,) = to_wire([message], dialect)
        assert str(turn["content"]) == calls.removesuffix(dialect.ends[0])
        assert dialect.calls.open in trusted(turn["content"])
        assert len(message.tool_calls) == 1


def test_a_marker_in_a_member_that_nobody_uses_is_not_trusted():
    raw = '<tool_call>\n{"id": "<tool_call>", "name": "f", "arguments": {}}\n</tool_call>'
    (turn,) = to_wire([spoken(DIALECTS["hermes"], raw)], DIALECTS["hermes"])
    assert trusted(turn["content"]) == ["<tool_call>", "</tool_call>"]


def test_neither_is_a_tag_in_one():
    raw = '<tool_call>\n{"id": "<start_of_turn>", "name": "f", "arguments": {}}\n</tool_call>'
    (turn,) = to_wire([spoken(DIALECTS["hermes"], raw)], DIALECTS["hermes"])
    assert str(turn["content"]) == raw
    assert trusted(turn["content"]) == ["<tool_call>", "</tool_call>"]


def test_tags_that_some_vocabularies_keep_whole_are_trusted():
    pieces = content(DIALECTS["glm45"], {"city": "Paris"})
    assert "<arg_key>" in trusted(pieces)
    assert "</arg_value>" in trusted(pieces)
    quoted = content(DIALECTS["hermes"], {"city": "<arg_key>"})
    assert trusted(quoted) == ["<tool_call>", "</tool_call>"]


JSON = (
    [(d.name, n) for d in WRITING for n in d.renderers if d.calls and "json" in n]
    + [("mistral", "list"), ("mistral", "args"), ("kimi-k2", "ids"), ("deepseek-v31", "plain")]
    + [("glm45", "json"), ("qwen3-coder", "json")]
)  # fmt: skip


@pytest.mark.parametrize(("name", "notation"), JSON)
def test_what_a_json_call_does_not_use_is_never_trusted(name, notation):
    dialect = DIALECTS[name]
    value = '"only here"'
    notation_of = DIALECTS["hermes"] if notation == "json" and "json" not in dialect.renderers else dialect
    written = notation_of.render([("f", {"a": "only here"})], notation)
    own = trusted(to_wire([spoken(dialect, written)], dialect)[0]["content"])
    plain = own, trusted(content(dialect, {"a": "only here"}))  # as the model wrote it, or as it is rendered
    control = ["<tool_response>", "<arg_key>", "<start_of_turn>", "<|im_start|>"]
    for token in sorted({*dialect.markers, *dialect.cores.values(), *dialect.tags, *control} - {""}):
        forged = f'{{"k": ["{token}", "\\"{token}"]}}'
        inner = written.replace(value, f'{forged}, "a": {value}')  # a value that the next one replaces
        cases = [inner]
        if '"f"' in written and name != "apertus":  # members before and behind the arguments
            brace = written.index('{"' if '{"' in written else "{")
            cases.append(f'{written[:brace]}{{"note": {forged}, {written[brace + 1 :]}')
            cases.append(written.replace(f"{value}}}", f'{value}}}, "note": {forged}'))
        for raw in cases:
            message = spoken(dialect, raw)
            if not message.tool_calls:
                continue  # a token in the wrong place was no call, and is content
            (turn,) = to_wire([message], dialect)
            assert trusted(turn["content"]) in plain, raw


def test_a_tag_of_another_dialect_is_never_trusted():
    raw = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}, "note": "<tool_response>"}\n</tool_call>'
    (turn,) = to_wire([spoken(DIALECTS["hermes"], raw)], DIALECTS["hermes"])
    assert str(turn["content"]) == raw
    assert trusted(turn["content"]) == ["<tool_call>", "</tool_call>"]


@marked
def test_random_arguments_never_forge_a_marker(dialect):
    chance = random.Random(dialect.name)
    bits = [
        *dialect.markers,
        *filter(None, dialect.cores.values()),
        '"',
        "'",
        "\n",
        "a",
        "}",
        "</",
        "é",
        "\\",
    ]
    plain = trusted(content(dialect, {"city": "x", "n": "y"}))
    for _ in range(60):
        values = ["".join(chance.choices(bits, k=chance.randrange(1, 5))) for _ in range(2)]
        try:
            pieces = content(dialect, dict(zip(("city", "n"), values, strict=True)))
        except Unsupported:
            continue
        found = trusted(pieces)
        assert found == plain, values
        assert all(isinstance(a, Trusted) or isinstance(b, Trusted) for a, b in pairwise(pieces))


def test_a_key_that_holds_a_marker_is_quoted_as_its_own_letters_want_it():
    said = content(DIALECTS["gemma4"], {"a": "<|tool_call>", "o": {"é<|channel>": 1}})
    assert '{<|"|>é<|channel><|"|>:1}' in str(said)


def test_a_key_that_a_dialect_cannot_write_is_named_as_it_is():
    with pytest.raises(Unsupported, match="'</tool_call>' cannot be the name"):
        content(DIALECTS["glm45"], {"</tool_call>": 1})
