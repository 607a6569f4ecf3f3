"""What a turn asks for is what the model writes: phases of a guide, on made-up output and on real models."""

from __future__ import annotations

import codecs
import json
import random
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest

from localagent.constraint import request
from localagent.constraint.bars import Bars
from localagent.constraint.guide import Guide
from localagent.constraint.request import guided
from localagent.control import Control
from localagent.errors import ConstraintFailed, GrammarMissing, SchemaRefused, Unsupported, UsageError
from localagent.hosts.utf8 import Piece, make_piece
from localagent.model import Model, load
from localagent.nano import GGUF
from localagent.prompt import RequestWarning
from localagent.prompt.segments import Prompt
from localagent.turn import Done
from parsers import DIALECTS, CallEnd, StreamParser
from tests.conftest import LONG
from tests.constraint.twelve import QUESTIONS, TWELVE, fits

CALLING = [name for name, dialect in DIALECTS.items() if dialect.renderers]
CALL = [("f", {"a": 1})]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
NUMBERS = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def json_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


# -- no calls -----------------------------------------------------------------------------------------


class Pieces:
    """A vocabulary of every byte, some longer pieces of a text, and special tokens."""

    def __init__(self, text: str, special: Sequence[str], seed: int) -> None:
        draw = random.Random(seed)
        between = re.split("|".join(map(re.escape, special)), text) if special else [text]
        found: dict[bytes, None] = {}
        for data in (each.encode() for each in between):
            cuts = [(at, at + draw.randrange(2, 9)) for at in range(len(data))]
            found |= dict.fromkeys(data[begin:end] for begin, end in cuts if draw.random() < 0.5)
        spelled = [bytes([byte]) for byte in range(256)] + list(found)
        self.data = [*spelled, *(each.encode() for each in special), b"<end>"]
        self.special = {len(spelled) + at: text for at, text in enumerate([*special, "<end>"])}
        self.size = len(self.data)
        self.eos = "<end>"

    def piece(self, token: int) -> Piece:
        return make_piece(token, self.data[token], token in self.special, token == self.size - 1)

    def tokenize_segments(self, segments: Any, continued: bool = False) -> Any:
        assert continued
        return tuple(byte for text, _ in segments for byte in text.encode())


class Host:
    """As much of a host as a guide asks for."""

    def __init__(self, vocabulary: Any) -> None:
        self.vocabulary = vocabulary
        self.special_tokens = frozenset(vocabulary.special.values())


def allows(mask: Any, token: int) -> bool:
    return mask is None or bool(mask[token // 32] >> numpy.uint32(token % 32) & 1)


@pytest.mark.parametrize("known", [True, False], ids=["tokens", "spelled"])
@pytest.mark.parametrize("name", CALLING)
def test_none_lets_no_call_be_written_however_it_is_cut(name: str, known: bool) -> None:
    """Markers may be tokens of their own or ordinary text; what is not part of a call can be written."""
    dialect = DIALECTS[name]
    special = [marker for marker in dialect.markers if marker not in dialect.cores] if known else []
    for seed in range(16 if LONG else 3):
        for renderer in dialect.renderers:
            wanted = dialect.render(CALL, renderer)
            vocabulary = Pieces(wanted, special, seed)
            try:
                guide = guided(
                    Host(vocabulary), dialect, [TOOL], Control(tool_choice="none"), Prompt((0,), "")
                ).guide  # type: ignore[arg-type]
            except Unsupported:
                assert name in ("muse", "inkling")
                return
            assert guide is not None
            parser = StreamParser(dialect, atomic=dialect.markers if known else ())
            events = []
            decode = codecs.getincrementaldecoder("utf-8")().decode
            left = wanted.encode()
            while left:
                fitting = [t for t, data in enumerate(vocabulary.data) if left.startswith(data)]
                fitting = [t for t in fitting if allows(guide.mask(), t)]
                if not fitting:
                    break
                token = random.Random(seed).choice(fitting)
                guide.accept(token)
                events += parser.feed(decode(vocabulary.data[token]), token in vocabulary.special)
                left = left[len(vocabulary.data[token]) :]
            events += parser.close()
            assert not [event for event in events if isinstance(event, CallEnd)]
            # Where markers are tokens, ordinary ones cannot spell them; `json` reads no calls without tools.
            assert left or known or name == "json"


def test_only_what_would_complete_a_marker_is_barred() -> None:
    vocabulary = Pieces("a<tool", ["<start>"], 0)
    start = vocabulary.data.index(b"<start>")
    bars = Bars(vocabulary, [start], ["<tool>"])  # type: ignore[arg-type]

    def barred() -> set[bytes]:
        mask = bars.mask()
        return {data for token, data in enumerate(vocabulary.data) if not allows(mask, token)}

    assert barred() == {b"<start>"}
    for letter in b"a <<tool":
        bars.accept(letter)
    assert barred() == {b"<start>", b">"}
    bars.accept(ord("s"))
    assert barred() == {b"<start>"}


# -- calls that the model may make --------------------------------------------------------------------

TWO = [("f", {"a": 1, "text": "x y"}), ("g", {}), ("f", {"a": 2, "text": ""})]
PROPERTIES = {"a": {"type": "integer"}, "text": {"type": "string"}}
OFFERED = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": PROPERTIES}},
    },
    {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}},
]
# Lists in Python without a marker are calls only as a whole; objects are known as calls by their names.
UNBOUNDED = {"llama-pythonic"}
UNMARKED = {"llama3-json", "json"}


@pytest.mark.parametrize("tokens", ["all", "markers", "none"])
@pytest.mark.parametrize("name", CALLING)
def test_a_block_that_is_opened_is_bounded_from_there_on(name: str, tokens: str) -> None:
    """What the dialect itself would write can be written, also behind text, and all of it is bounded.

    `tokens`: the vocabulary has a token for each marker and tag, or for the markers alone, or none of either.
    """
    dialect = DIALECTS[name]
    known = tokens != "none"
    whole_words = (*dialect.markers, *(dialect.tags if tokens == "all" else ()))
    special = [marker for marker in whole_words if marker not in dialect.cores]
    special += [core for core in set(dialect.cores.values()) if core and core not in special]
    wanted = ("" if name in UNMARKED else "So. ") + dialect.render(TWO)
    for seed in range(8 if LONG else 2):
        vocabulary = Pieces(wanted, special if known else [], seed)
        host = Host(vocabulary)
        guide = guided(host, dialect, OFFERED, Control(), Prompt((0,), "")).guide  # type: ignore[arg-type]
        assert guide is not None
        if name in UNBOUNDED:
            assert {each.tool for each in guide.relaxed} == {"f", "g"}
            return
        assert not guide.relaxed
        parser = StreamParser(dialect, OFFERED, atomic=special if known else ())
        decode = codecs.getincrementaldecoder("utf-8")().decode
        draw, events, bounded = random.Random(seed), list[Any](), 0
        left = wanted.encode()
        while left:
            mask = guide.mask()
            fitting = [t for t, data in enumerate(vocabulary.data) if data and left.startswith(data)]
            # A tokenizer never writes a part of what is a token of its own.
            ahead = min(
                [left.find(each.encode()) for each in special if known and each.encode() in left], default=99
            )
            fitting = [t for t in fitting if len(vocabulary.data[t]) <= (ahead or 99)]
            whole = [t for t in fitting if t in vocabulary.special]
            fitting = [t for t in whole or fitting if allows(mask, t)]
            assert fitting, (left, guide.relaxed)
            token = draw.choice(fitting)
            bounded += mask is not None
            guide.accept(token)
            events += parser.feed(decode(vocabulary.data[token]), token in vocabulary.special)
            left = left[len(vocabulary.data[token]) :]
        events += parser.close()
        assert bounded > 10
        assert not guide.relaxed
        assert [call.arguments for call in calls_in(events)] == [arguments for _, arguments in TWO]


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", ["hermes", "mistral", "gemma4", "json"])
def test_objects_without_markers_are_bounded_from_where_they_are_known(
    name: str, strict: bool, parallel: bool
) -> None:
    """As a model of Qwen writes them: fenced, over several lines, and one after the other."""
    one = '{\n  "name": "f",\n  "arguments": {\n    "a": 1,\n    "text": "x y"\n  }\n}'
    said = f"```json\n{one}\n```\n```json\n{one}\n```"
    for seed in range(4):
        vocabulary = Pieces(said, [], seed)
        control = Control(strict=strict, parallel_tool_calls=parallel)
        guide = guided(Host(vocabulary), DIALECTS[name], OFFERED, control, Prompt((0,), "")).guide  # type: ignore[arg-type]
        assert guide is not None
        draw, left, bounded = random.Random(seed), said.encode(), list[bytes]()
        calls = said.encode()
        while left:
            mask = guide.mask()
            fitting = [t for t, data in enumerate(vocabulary.data) if data and left.startswith(data)]
            fitting = [t for t in fitting if allows(mask, t)]
            if not fitting:
                break
            token = draw.choice(fitting)
            bounded += [vocabulary.data[token]] if mask is not None else []
            guide.accept(token)
            left = left[len(vocabulary.data[token]) :]
        assert not guide.relaxed
        if parallel:
            assert not left
            assert b"".join(bounded).count(b'"text": "x y"\n  }\n}') == 2
        else:
            assert left == calls[calls.index(b"}\n}") + 3 :], "only the end may come"
            assert numpy.flatnonzero(guide.mask()).size == 1


def test_a_value_that_does_not_fit_cannot_be_written_in_an_object_without_markers() -> None:
    begun = '{"name": "f", "arguments": {"a": '
    vocabulary = Pieces(begun, [], 0)
    guide = guided(Host(vocabulary), DIALECTS["hermes"], OFFERED, Control(), Prompt((0,), "")).guide  # type: ignore[arg-type]
    assert guide is not None
    for byte in begun.encode():
        guide.accept(byte)
    mask = guide.mask()
    assert mask is not None
    assert {chr(byte) for byte in range(256) if allows(mask, byte)} == set("-0123456789 \t\r\n")


@pytest.mark.parametrize("gap", [0, 300])
def test_half_a_character_behind_an_object_is_not_another_one(gap: int) -> None:
    said = '{"name": "f", "arguments": {"a": 1}}'
    vocabulary = Pieces(said, [], 0)
    guide = guided(
        Host(vocabulary), DIALECTS["hermes"], OFFERED, Control(strict=True), Prompt((0,), "")
    ).guide  # type: ignore[arg-type]
    assert guide is not None
    for byte in (said + " " * gap).encode():
        guide.accept(byte)
    for byte in "é{".encode():
        assert guide.mask() is None
        guide.accept(byte)
    assert guide.mask() is None


def test_json_that_is_no_call_is_free() -> None:
    for said in (
        '{"result": {"a": [1]}}',
        '```json\n{"name": "nobody", "arguments": {}}\n```',
        '[1, {"name": "f"}]',
    ):
        vocabulary = Pieces(said, [], 0)
        guide = guided(
            Host(vocabulary), DIALECTS["hermes"], OFFERED, Control(strict=True), Prompt((0,), "")
        ).guide  # type: ignore[arg-type]
        assert guide is not None
        for byte in said.encode():
            assert guide.mask() is None
            guide.accept(byte)
        assert not guide.relaxed


CUT = '<tool_call>\n{"name": "g", "arguments": {}}'


@pytest.mark.parametrize("choice", ["required", "g"])
def test_after_a_required_call_the_model_decides_whether_it_goes_on(choice: str) -> None:
    """It may leave the closing marker out, and what it writes in place of another call ends the turn."""
    dialect = DIALECTS["hermes"]
    vocabulary = Pieces(CUT, [], 0)
    guide = guided(Host(vocabulary), dialect, OFFERED, Control(tool_choice=choice), Prompt((0,), "")).guide  # type: ignore[arg-type]
    assert guide is not None
    end = vocabulary.size - 1

    def write(text: str, ends: bool) -> None:
        for byte in text.encode():
            assert allows(guide.mask(), byte)
            assert guide.otherwise() == (end if ends else None)
            assert allows(guide.mask(), end) == ends
            guide.accept(byte)

    write(CUT, ends=False)
    for text in ("", "\n"):
        write(text, ends=True)
        assert guide.otherwise() == end
    if choice == "g":
        assert guide.whole
        write("</tool_call>"[:1], ends=True)
        write("</tool_call>"[1:], ends=False)
        assert not any(allows(guide.mask(), byte) for byte in range(256))
        assert allows(guide.mask(), end)
        return
    again = guided(Host(vocabulary), dialect, OFFERED, Control(tool_choice=choice), Prompt((0,), "")).guide  # type: ignore[arg-type]
    for byte in (CUT + "\n").encode():
        again.accept(byte)
    guide, first = again, guide
    write(CUT[12:13], ends=True)  # another object in the same block
    write(CUT[13:], ends=False)
    guide = first
    for piece in ("</tool_call>", "\n", CUT):
        write(piece[:1], ends=True)
        write(piece[1:], ends=False)
    assert guide.otherwise() == end


# -- made-up output -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nano_model() -> Iterator[Model]:
    with load(GGUF, backend="llamacpp", threads=1, context=2048, lanes=4) as loaded:
        yield loaded


def guide_of(
    model: Model, tools: Any = TWELVE, inside: Any = None, ending: Any = None, **options: Any
) -> Guide:
    found = guided(
        model.host, model.dialect, tools, Control(**options), Prompt((0,), "", inside=inside), ending
    )
    assert found.guide is not None
    return found.guide


def written(
    model: Model, guide: Guide, draw: random.Random, first: str = "", most: int = 400, whole: bool = False
) -> tuple[str, bool]:
    """What comes of drawing at random whatever is allowed, after `first`; and whether it came to an end.
    `whole`: it ends nowhere where more may come.
    """
    vocabulary = model.host.vocabulary
    ids = list(model.host.tokenize(first, special=True))
    [close] = model.host.tokenize("</think>", special=True)
    text = b""
    for number in range(most):
        forced = list(guide.forced())
        mask = guide.mask()
        if number < len(ids):
            token = ids[number]
            assert allows(mask, token)
        elif mask is None:
            return text.decode("utf-8", "replace"), False
        elif (end := guide.otherwise()) is not None and draw.random() < 0.3:
            assert allows(mask, end)
            token = end
        else:
            allowed = numpy.flatnonzero(numpy.unpackbits(mask.view(numpy.uint8), bitorder="little"))
            if whole:
                others = [t for t in allowed.tolist() if not vocabulary.piece(t).end]
                allowed = numpy.array(others or allowed)
            short = [
                t for t in allowed.tolist() if vocabulary.piece(t).data in (b'"', b"]", b"}", b")", b"'")
            ]
            token = draw.choice(short if short and draw.random() < 0.5 else allowed.tolist())
            if len(allowed) > vocabulary.size - 5:  # reasoning
                token = close
        if forced:
            assert allows(mask, forced[0])
            assert number < len(ids) or token == forced[0], "a mask leaves no choice where a token is forced"
        if vocabulary.piece(token).end:
            return text.decode("utf-8", "replace"), True
        guide.accept(token)
        text += vocabulary.piece(token).data
    return text.decode("utf-8", "replace"), False


def parsed(model: Model, text: str, tools: Any = TWELVE, inside: Any = None) -> list[Any]:
    parser = StreamParser(model.dialect, tools=tools, inside=inside, atomic=model.dialect.markers)
    events = []
    for piece in _pieces(model, text):
        events += parser.feed(piece, piece in model.dialect.markers)
    return [*events, *parser.close()]


def _pieces(model: Model, text: str) -> list[str]:
    import re

    return [
        piece for piece in re.split(f"({'|'.join(map(re.escape, model.dialect.markers))})", text) if piece
    ]


def calls_in(events: Sequence[Any]) -> list[CallEnd]:
    assert not [event for event in events if type(event).__name__ == "Malformed"], events
    return [event for event in events if isinstance(event, CallEnd)]


@pytest.mark.engine
@pytest.mark.parametrize("seed", range(300 if LONG else 20))
def test_what_is_drawn_at_random_where_a_call_is_required_is_calls_that_fit(
    nano_model: Model, seed: int
) -> None:
    draw = random.Random(seed)
    named = draw.choice(TWELVE)["function"]["name"]
    options: dict[str, Any] = draw.choice(
        [
            {"tool_choice": "required"},
            {"tool_choice": "required", "parallel_tool_calls": False},
            {"tool_choice": named},
            {"tool_choice": {"type": "function", "function": {"name": named}}},
        ]
    )
    guide = guide_of(nano_model, **options)
    text, ended = written(nano_model, guide, draw)
    if not ended:  # a string or a list that went on and on
        assert guide.mask() is not None
        return
    found = calls_in(parsed(nano_model, text))
    assert found
    assert not any(call.repaired for call in found)
    assert all(fits(call.name, call.arguments) for call in found), text
    if options != {"tool_choice": "required"}:
        assert len(found) == 1
    if options["tool_choice"] != "required":
        assert found[0].name == named


@pytest.mark.engine
def test_a_block_that_the_model_opens_is_bounded_and_what_follows_it_is_free(nano_model: Model) -> None:
    start = nano_model.dialect.calls.open  # type: ignore[union-attr]
    for seed in range(20):
        guide = guide_of(nano_model)
        assert guide.mask() is None
        assert not guide.forced()
        text, _ = written(nano_model, guide, random.Random(seed), f"Let me see.{start}", whole=True)
        assert guide.mask() is None, "the block has ended"
        found = calls_in(parsed(nano_model, text))
        assert all(fits(call.name, call.arguments) for call in found)
        assert text.startswith(f"Let me see.{start}[")
        again, _ = written(nano_model, guide, random.Random(seed), f" And{start}", whole=True)
        assert again.startswith(f" And{start}[")


@pytest.mark.engine
def test_one_call_is_all_where_calls_are_not_to_be_parallel(nano_model: Model) -> None:
    start = nano_model.dialect.calls.open  # type: ignore[union-attr]
    guide = guide_of(nano_model, parallel_tool_calls=False)
    text, _ = written(nano_model, guide, random.Random(1), start, most=200, whole=True)
    assert len(calls_in(parsed(nano_model, text[: text.index("<|tool_call_end|>") + 17]))) == 1
    [opener] = nano_model.host.tokenize(start, special=True)
    assert not allows(guide.mask(), opener)


@pytest.mark.engine
def test_a_draft_in_the_reasoning_is_free(nano_model: Model) -> None:
    guide = guide_of(nano_model)
    ids = nano_model.host.tokenize("<think>I could <|tool_call_start|>[", special=True)
    for token in ids:
        guide.accept(token)
        assert guide.mask() is None


@pytest.mark.engine
@pytest.mark.parametrize("inside", [None, "reasoning"])
def test_reasoning_is_free_but_cannot_end_the_turn_before_a_required_call(
    nano_model: Model, inside: Any
) -> None:
    guide = guide_of(nano_model, inside=inside, tool_choice="required")
    vocabulary = nano_model.host.vocabulary
    ends = [token for token in range(vocabulary.size) if vocabulary.piece(token).end]
    opener, think, close = (
        nano_model.host.tokenize(text, special=True)[0]
        for text in ("<|tool_call_start|>", "<think>", "</think>")
    )
    if inside is None:
        mask = guide.mask()
        assert [token for token in range(vocabulary.size) if allows(mask, token)] == sorted([opener, think])
        assert not guide.forced()
        guide.accept(think)
    for token in nano_model.host.tokenize("The user wants", special=False):
        mask = guide.mask()
        assert not any(allows(mask, end) for end in ends)
        assert allows(mask, token)
        assert not guide.forced()
        guide.accept(token)
    guide.accept(close)
    assert guide.forced()[0] == opener
    mask = guide.mask()
    assert [token for token in range(vocabulary.size) if allows(mask, token)] == [opener]


class Closing:
    """Ends the reasoning after some tokens, with these."""

    def __init__(self, tokens: Sequence[int], after: int) -> None:
        self._tokens = list(tokens)
        self._left = after
        self._inside = False

    def forced(self) -> Sequence[int]:
        return self._tokens if self._left <= 0 and self._tokens else ()

    def accept(self, token: int, text: str, inside: bool) -> None:
        self._left -= inside
        if self._left < 0 or (self._left == 0 and not inside):
            self._tokens = self._tokens[1:]


@pytest.mark.engine
def test_reasoning_that_is_ended_early_is_followed_by_what_is_required(nano_model: Model) -> None:
    closing = nano_model.host.tokenize("</think>\n\n", special=True)
    assert len(closing) > 1
    guide = guide_of(nano_model, inside="reasoning", ending=Closing(closing, 3), tool_choice="required")
    for token in nano_model.host.tokenize("one two three", special=False)[:3]:
        assert not guide.forced()
        guide.accept(token)
    for at, token in enumerate(closing):
        assert list(guide.forced()) == list(closing[at:])
        assert allows(guide.mask(), token)
        guide.accept(token)
    assert nano_model.host.detokenize(guide.forced()).startswith(b"<|tool_call_start|>")


@pytest.mark.engine
@pytest.mark.parametrize("seed", range(10))
def test_an_answer_drawn_at_random_fits_its_schema(nano_model: Model, seed: int) -> None:
    asked = [{"type": "json_object"}, json_schema(NUMBERS)][seed % 2]
    guide = guide_of(nano_model, tools=None, response_format=asked)
    text, ended = written(nano_model, guide, random.Random(seed))
    text = text.split("</think>")[-1]
    if ended:
        assert isinstance(json.loads(text), dict)
        assert seed % 2 == 0 or [*json.loads(text)] == ["n"]


@pytest.mark.engine
def test_with_tools_and_a_format_the_model_either_calls_or_answers(nano_model: Model) -> None:
    for first in ("<|tool_call_start|>", '{"'):
        guide = guide_of(nano_model, response_format=json_schema(NUMBERS))
        text, ended = written(nano_model, guide, random.Random(2), first)
        assert ended
        assert calls_in(parsed(nano_model, text)) or json.loads(text)["n"] is not None
    [letter] = nano_model.host.tokenize("So", special=False)[:1]
    assert not allows(guide_of(nano_model, response_format=json_schema(NUMBERS)).mask(), letter)


# -- real models --------------------------------------------------------------------------------------


def last(model: Model, question: Any, tools: Any = TWELVE, **options: Any) -> Done:
    *_, done = model.stream(question, tools=tools, **options)
    assert isinstance(done, Done)
    return done


def is_right(model: Model, seed: int, **options: Any) -> bool:
    """Ask at temperature 1: whether every call is whole, as the model wrote it, and fits. Too long a turn counts."""
    question = QUESTIONS[seed % len(QUESTIONS)]
    done = last(model, question, temperature=1.0, seed=seed, max_tokens=300, **options)
    message = done.message
    if message.stop_reason == "length":
        assert all(block.reason == "truncated" for block in message.malformed_tool_call_blocks)
    else:
        assert message.stop_reason == "tool_calls"
        assert not message.malformed_tool_call_blocks, message.raw
        assert message.tool_calls
    assert not any(call.repaired for call in message.tool_calls), message.raw
    return all(fits(call.name, call.arguments) for call in message.tool_calls)


@pytest.mark.engine
@pytest.mark.parametrize("seed", range(200 if LONG else 6))
def test_every_required_turn_of_nano_calls_and_fits(nano_model: Model, seed: int) -> None:
    assert is_right(nano_model, seed, tool_choice="required")
    name = TWELVE[seed % 12]["function"]["name"]
    done = last(nano_model, QUESTIONS[seed % 8], temperature=1.0, seed=seed, max_tokens=300, tool_choice=name)
    assert {call.name for call in done.message.tool_calls} <= {name}
    done = last(
        nano_model, QUESTIONS[seed % 8], temperature=1.0, seed=seed, max_tokens=60, tool_choice="none"
    )
    assert not done.message.tool_calls
    assert not done.message.malformed_tool_call_blocks


@pytest.fixture(scope="module")
def untrained(gguf: Path) -> Iterator[Model]:
    """A model that has never seen a tool, told to write calls as Hermes does."""
    with load(gguf, dialect="hermes", threads=1, context=2048) as loaded:
        yield loaded


@pytest.mark.parametrize("seed", range(200 if LONG else 2))
def test_every_required_turn_of_an_untrained_model_calls_and_fits(untrained: Model, seed: int) -> None:
    assert is_right(untrained, seed, tool_choice="required", parallel_tool_calls=False)


def free(model: Model, monkeypatch: pytest.MonkeyPatch, *question: Any, **options: Any) -> Done:
    """The same turn without a guide."""
    with monkeypatch.context() as patch:
        patch.setattr("localagent.constraint.request.guided", lambda *_: request.Guided())
        return last(model, *question, **options)


@pytest.mark.engine
@pytest.mark.parametrize("backend", ["llamacpp", "mlx"])
@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.0, "seed": 5}, {"repetition_penalty": 1.2}], ids=str
)
def test_auto_without_a_call_is_as_without_a_guide(
    backend: Any, sampling: dict[str, Any], nano: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "mlx":
        pytest.importorskip("mlx_lm")
    with load(nano[backend], backend=backend, context=1024) as model:
        compared = 0
        for question in ("Hello!", "Thank you.", *QUESTIONS[2:6]):
            guided_turn = last(model, question, TWELVE[:2], max_tokens=40, **sampling)
            plain = free(model, monkeypatch, question, TWELVE[:2], max_tokens=40, **sampling)
            if not plain.message.tool_calls and not plain.message.malformed_tool_call_blocks:
                compared += 1
                assert guided_turn.token_ids == plain.token_ids
                assert guided_turn.message.raw == plain.message.raw
        assert compared > 1


@pytest.mark.engine
@pytest.mark.parametrize("most", [1, 2, 3, 5, 8])
def test_a_limit_within_a_block_cuts_it(nano_model: Model, most: int) -> None:
    done = last(nano_model, QUESTIONS[0], max_tokens=most, tool_choice="required")
    assert (len(done.token_ids), done.message.stop_reason) == (most, "length")


@pytest.mark.engine
def test_a_stop_string_within_a_block_ends_it(nano_model: Model) -> None:
    whole = last(nano_model, QUESTIONS[0], max_tokens=60, tool_choice="get_weather").message.raw
    done = last(nano_model, QUESTIONS[0], max_tokens=60, tool_choice="get_weather", stop=("city",))
    assert done.message.raw == whole[: whole.index("city")]


@pytest.mark.engine
def test_probabilities_come_with_every_token_of_a_bounded_turn(nano_model: Model) -> None:
    plain = last(nano_model, QUESTIONS[0], max_tokens=60, tool_choice="required")
    done = last(nano_model, QUESTIONS[0], max_tokens=60, tool_choice="required", logprobs=2)
    assert done.token_ids == plain.token_ids
    assert len(done.logprobs) == len(done.token_ids)


@pytest.mark.engine
def test_a_bounded_answer_is_reused_by_the_next_turn(nano_model: Model) -> None:
    question = "Plot a few points, and then some more."
    turns = (
        last(nano_model, question, max_tokens=200, tool_choice="plot", temperature=1.0, seed=seed)
        for seed in range(9)
    )
    first = next(turn.message for turn in turns if turn.message.stop_reason == "tool_calls")
    history = [{"role": "user", "content": question}, first]
    done = last(nano_model, [*history, {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "ok"}],
                max_tokens=30)  # fmt: skip
    assert done.message.usage.cache_read > first.usage.input + first.usage.output - 3


KINDS_OF_TURNS: list[dict[str, Any]] = [
    {"tool_choice": "required"},
    {"tool_choice": "plot"},
    {"tool_choice": "none"},
    {},
    {"tools": None},
    {"tools": None, "response_format": json_schema(NUMBERS)},
    {"tool_choice": "required", "parallel_tool_calls": False},
    {"tool_choice": "required", "logprobs": 1},
]


@pytest.mark.engine
@pytest.mark.parametrize("backend", ["llamacpp", "mlx"])
def test_lanes_with_and_without_bounds_do_not_touch_each_other(backend: Any, nano: dict[str, Path]) -> None:
    if backend == "mlx":
        pytest.importorskip("mlx_lm")
    turns = list(zip(QUESTIONS[:8], KINDS_OF_TURNS, strict=True))

    with load(nano[backend], backend=backend, context=2048, lanes=4) as model:

        def turn(asked: tuple[str, dict[str, Any]]) -> tuple[tuple[int, ...], str]:
            question, options = asked
            done = last(model, question, max_tokens=60, **options)
            return tuple(done.token_ids), done.message.raw

        alone = [turn(each) for each in turns]
        with ThreadPoolExecutor(len(turns)) as pool:
            assert list(pool.map(turn, turns)) == alone


@pytest.mark.engine
def test_a_bounded_turn_after_a_restart_reads_its_snapshot(tmp_path: Path) -> None:
    question = "Plot a few points, and then some more."
    history: list[Any] = [{"role": "user", "content": question}]
    options: dict[str, Any] = {"max_tokens": 60, "tool_choice": "required"}
    system = " ".join(f"Rule {number}: be kind." for number in range(30))  # a snapshot of less does not pay

    def load_nano(folder: Any) -> Model:
        return load(GGUF, backend="llamacpp", threads=1, context=2048, snapshots=folder)

    with load_nano(tmp_path) as model:
        first = last(model, history, system=system, **options)
    with load_nano(tmp_path) as model:
        again = last(model, history, system=system, **options)
    assert again.message.usage.cache_read > again.message.usage.input // 2
    assert (again.token_ids, again.message.raw) == (first.token_ids, first.message.raw)


# -- what cannot be had -------------------------------------------------------------------------------


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package that reads grammars is not installed."""

    def missing(_: object) -> None:
        raise GrammarMissing("bounding what a model writes needs llguidance: pip install it")

    monkeypatch.setattr(request, "matcher_factory", missing)


@pytest.mark.engine
@pytest.mark.usefixtures("without")
def test_without_the_package_markers_and_names_are_forced_and_it_is_said(nano_model: Model) -> None:
    for choice, lead in (("required", "<|tool_call_start|>"), ("route", "<|tool_call_start|>[route")):
        events = list(nano_model.stream("Hello.", tools=TWELVE, max_tokens=40, tool_choice=choice))
        assert isinstance(events[-1], Done)
        assert events[-1].message.raw.split("</think>")[-1].startswith(lead)
        [warning] = [event for event in events if isinstance(event, RequestWarning)]
        assert "pip install" in warning.text
    done = last(nano_model, QUESTIONS[0], max_tokens=40, tool_choice="none")
    assert not done.message.tool_calls


@pytest.mark.engine
@pytest.mark.usefixtures("without")
def test_without_the_package_auto_is_as_before(nano_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    done = last(nano_model, QUESTIONS[0], max_tokens=40)
    assert done.token_ids == free(nano_model, monkeypatch, QUESTIONS[0], max_tokens=40).token_ids
    assert [each.tool for each in done.relaxed] == [tool["function"]["name"] for tool in TWELVE]
    assert "pip install" in done.relaxed[0].reason


@pytest.mark.engine
@pytest.mark.usefixtures("without")
@pytest.mark.parametrize(
    "options",
    [{"strict": True}, {"response_format": {"type": "json_object"}}, {"parallel_tool_calls": False}],
    ids=str,
)
def test_what_needs_the_package_says_so(nano_model: Model, options: dict[str, Any]) -> None:
    with pytest.raises(GrammarMissing, match="pip install"):
        last(nano_model, "Hello.", **options)


WRONG = [
    ({"tool_choice": "fly"}, "no tool has that name: there are get_weather, set_alarm"),
    ({"tool_choice": "fly", "tools": None}, "there are none"),
    ({"tool_choice": "required", "tools": None}, "there are no tools"),
    ({"tools": ["f"]}, "'f' is no tool: it must be {"),
    ({"tools": [{"type": "function", "function": {}}]}, "is no tool: it must be {"),
    ({"tools": [*TWELVE, TWELVE[0]]}, "two tools are called 'get_weather'"),
    ({"tool_choice": ""}, "it must be 'auto', 'none', 'required' or the name of a tool"),
    ({"tool_choice": {"type": "any"}}, "it must be 'auto'"),
    ({"tool_choice": {"type": "function", "function": {}}}, "it must be 'auto'"),
    ({"tool_choice": 3}, "it must be 'auto'"),
    ({"parallel_tool_calls": "no"}, "it must be True or False"),
    ({"strict": 1}, "it must be True or False"),
    ({"response_format": "json"}, "response_format is 'json'"),
    ({"response_format": {"type": "xml"}}, '"json_object"'),
    ({"response_format": {"type": "json_schema"}}, 'needs "json_schema"'),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}, 'needs "json_schema"'),
    ({"response_format": {"type": "json_object"}, "tool_choice": "required"}, "in a call or in an answer"),
    ({"response_format": {"type": "json_object"}, "tool_choice": "now"}, "in a call or in an answer"),
]


@pytest.mark.engine
@pytest.mark.parametrize(("options", "said"), WRONG, ids=str)
def test_what_makes_no_sense_is_refused_before_anything_is_computed(
    nano_model: Model, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        nano_model.stream("Hello.", **{"tools": TWELVE, **options})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


LOOSE = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "pattern": "^(?=.*[0-9])x$"}, "n": {"type": "integer"}},
            "required": ["code", "n"],
        },
    },
}


@pytest.mark.engine
def test_what_cannot_be_enforced_is_reported_and_touches_nothing_else(nano_model: Model) -> None:
    done = last(nano_model, QUESTIONS[0], [LOOSE, *TWELVE], max_tokens=60, tool_choice="required")
    [relaxed] = done.relaxed
    assert (relaxed.tool, relaxed.path, relaxed.keyword) == ("f", "/properties/code", "pattern")
    assert all(fits(call.name, call.arguments) for call in done.message.tool_calls if call.name != "f")
    with pytest.raises(SchemaRefused, match="/properties/code"):
        last(nano_model, QUESTIONS[0], [LOOSE], strict=True)
    with pytest.raises(SchemaRefused, match="pattern"):
        last(nano_model, QUESTIONS[0], None, response_format=json_schema(LOOSE["function"]["parameters"]))


@pytest.mark.engine
def test_a_dialect_that_frames_its_answers_says_that_they_cannot_be_bounded(nano_model: Model) -> None:
    framed = Model(nano_model.host, DIALECTS["command-r7b"])
    with pytest.raises(Unsupported, match="command-r7b"):
        last(framed, "Hello.", None, response_format={"type": "json_object"})


UNLIKE_ITS_TEMPLATE = [
    ("lfm2", "Well. [f(a=1)] "),  # no marker
    ("hermes", '{"arguments": {"a": 1}, "name": "f"}'),  # the name comes last
]


@pytest.mark.parametrize(("name", "said"), UNLIKE_ITS_TEMPLATE)
def test_calls_that_begin_otherwise_are_reported_and_strictly_refused(name: str, said: str) -> None:
    dialect = DIALECTS[name]
    vocabulary = Pieces(said, [], 0)
    for strict in (False, True):
        guide = guided(Host(vocabulary), dialect, OFFERED, Control(strict=strict), Prompt((0,), "")).guide  # type: ignore[arg-type]
        assert guide is not None
        try:
            for byte in said.encode():
                assert guide.mask() is None
                guide.accept(byte)
        except ConstraintFailed:
            assert strict
        else:
            assert not strict
            assert guide.relaxed
            assert "a way that its own template does not" in guide.relaxed[0].reason


TAGS = "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>"


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("strict", [True, False])
def test_calls_in_tags_without_their_marker_are_bounded(strict: bool, parallel: bool) -> None:
    said = f"{TAGS}\n{TAGS}"
    vocabulary = Pieces(said, [], 0)
    control = Control(strict=strict, parallel_tool_calls=parallel)
    guide = guided(Host(vocabulary), DIALECTS["qwen3-coder"], OFFERED, control, Prompt((0,), "")).guide  # type: ignore[arg-type]
    assert guide is not None
    bounded = ""
    for byte in said.encode():
        mask = guide.mask()
        if not allows(mask, byte):
            break
        bounded += chr(byte) if mask is not None else ""
        guide.accept(byte)
    assert bounded.startswith(TAGS.removeprefix("<function="))
    assert bounded.count("</function>") == 1 + parallel
    assert not guide.relaxed


def test_what_strict_cannot_bound_is_named_with_what_to_do() -> None:
    vocabulary = Pieces("", [], 0)
    guide = guided(Host(vocabulary), DIALECTS["lfm2"], OFFERED, Control(strict=True), Prompt((0,), "")).guide  # type: ignore[arg-type]
    assert guide is not None
    with pytest.raises(ConstraintFailed) as caught:
        for byte in b"[f(a=1)] ":
            guide.accept(byte)
    assert str(caught.value) == (
        "strict: a call of 'f' began with 'f(a=1)]', and calls of the dialect lfm2 are bounded where they begin "
        "with '<|tool_call_start|>': require the call with tool_choice, or leave strict out"
    )


def test_what_cannot_be_bounded_is_reported_or_refused_where_it_must_be() -> None:
    dialect, vocabulary = DIALECTS["llama-pythonic"], Pieces("", [], 0)

    def made(**options: Any) -> Guide | None:
        return guided(Host(vocabulary), dialect, OFFERED, Control(**options), Prompt((0,), "")).guide  # type: ignore[arg-type]

    guide = made()
    assert guide is not None
    assert {each.tool for each in guide.relaxed} == {"f", "g"}
    for options in ({"strict": True}, {"parallel_tool_calls": False}):
        with pytest.raises(Unsupported, match="begin without a marker"):
            made(**options)
    required = made(tool_choice="required", strict=True)
    assert required is not None
    assert not required.relaxed
