"""Grammars in GBNF say what they say for llguidance, or are refused."""

from __future__ import annotations

import pytest

from localagent.constraint.gbnf import gbnf
from localagent.constraint.grammar import block_grammar, schema_grammar
from localagent.constraint.passing import Thought, Turns
from localagent.errors import Unsupported
from parsers import DIALECTS
from tests.constraint.drawing import takes_bytes

SPECIAL = {"<|tool_call_start|>": 10, "<|tool_call_end|>": 11}
TOOLS = [{"name": "f", "parameters": {"type": "object", "properties": {"a": {"enum": ['x"', "y\\"]}}}}]
CALL = '<|tool_call_start|>[f(a="x\\""), f(a=\'y\\\\\')]<|tool_call_end|>'
END = "<|im_end|>"
PROPERTIES = {
    "name": {"type": "string", "maxLength": 3},
    "many": {"type": "array", "items": {"type": "number"}, "maxItems": 2},
    "any": {},
    'q"\\\n\u20ac': {"enum": ['a"b', 'c\\d"', "\u20ac\U0001f600", None]},
}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["name"], "additionalProperties": False}
FITTING = [
    '{"name": "abc"}',
    '{"name": "\\u00e9\\"\\\\"}',
    '{"name": "", "many": [1, -2.5e3]}',
    '{"name": "a", "any": {"x": [true, null, {}]}}',
    '{"name": "a", "q\\"\\\\\\n\u20ac": "c\\\\d\\""}',
    '{"name": "a", "q\\"\\\\\\n\u20ac": "\u20ac\U0001f600"}',
]
OTHERS = [
    "",
    '{"name": "abcd"}',
    '{"name": "a\nb"}',
    '{"name": 1}',
    '{"many": []}',
    '{"name": "a", "many": [1, 2, 3]}',
    '{"name": "a", "many": [01]}',
    '{"name": "a", "q\\"\\\\\\n\u20ac": "c\\\\d"}',
    '{"name": "a", "more": 1}',
]


@pytest.fixture(scope="module")
def taken(nano):
    """Whether llama.cpp itself takes a text in which control tokens are recognised, and its end."""
    import ctypes

    from localagent.hosts.llamacpp.library import library
    from localagent.hosts.llamacpp.vocabulary import LlamaCppVocabulary

    native, words = library(), LlamaCppVocabulary.read(nano["llamacpp"])
    parameters = native.llama_model_default_params()
    parameters.vocab_only = True
    model = native.llama_model_load_from_file(str(nano["llamacpp"]).encode(), parameters)
    vocabulary = native.llama_model_get_vocab(model)

    def takes(grammar: str, text: str) -> bool:
        sampler = native.llama_sampler_init_grammar(vocabulary, grammar.encode(), b"root")
        assert sampler, "it cannot be read"
        try:
            for token in words.tokenize(text, special=True):
                data = (native.llama_token_data * 1)(native.llama_token_data(token, 1.0, 0.0))
                only = native.llama_token_data_array(data, 1, -1, False)
                native.llama_sampler_apply(sampler, ctypes.byref(only))
                if data[0].logit == float("-inf"):
                    return False
                native.llama_sampler_accept(sampler, token)
        finally:
            native.llama_sampler_free(sampler)
        return True

    yield takes
    native.llama_model_free(model)


@pytest.mark.engine
@pytest.mark.parametrize("text", [*FITTING, *OTHERS])
def test_it_takes_the_same_texts(taken, text):
    lark = schema_grammar(SCHEMA).text
    assert takes_bytes(lark, text) == (text in FITTING)
    assert taken(gbnf(lark, "gbnf"), text + END) == (text in FITTING)


@pytest.mark.engine
def test_a_turn_with_tokens_in_it(taken):
    block = block_grammar(DIALECTS["lfm2"], TOOLS, special=SPECIAL)
    turns = Turns(1024, [7, 2], "gbnf")
    required = gbnf(turns.required([block], Thought(14, 15)), "gbnf")
    assert taken(required, CALL + END)
    assert taken(required, f"<think>Hm.</think>{CALL}{END}")
    assert not taken(required, "No.")
    assert not taken(required, f"<think>Hm.{END}")
    assert not taken(required, CALL + CALL)
    offered = gbnf(turns.offered(block, [10], parallel=False), "gbnf")
    assert taken(offered, f"So {CALL} then.{END}")
    assert taken(offered, f"No.{END}")
    assert not taken(offered, CALL.replace('"x', '"xx'))
    assert not taken(offered, CALL + CALL)
    assert not taken(gbnf(turns.barred([10, 11], [10]), "gbnf"), CALL)


@pytest.mark.parametrize("form", ["lark", "core"])
def test_names_of_rules_within_texts_stay_texts(form):
    grammars = [schema_grammar({"enum": ["start:", "opener: x"]}), schema_grammar({"const": "way1: start:"})]
    grammar = Turns(1024, [7, 2], form).required(grammars)
    for text in ("start:", "opener: x", "way1: start:"):
        assert takes_bytes(grammar, f'"{text}"'), grammar
    assert not takes_bytes(grammar, '"way0:"')


def test_tokens_are_written_as_each_reads_them():
    block = block_grammar(DIALECTS["lfm2"], TOOLS, special=SPECIAL)
    for form, token, other in (
        ("gbnf", "<[{}]>", "!<[{}]>"),
        ("ebnf", "Token({})", "ExcludeToken({})"),
    ):
        turns = Turns(100, [7, 2], form)
        required = gbnf(turns.required([block], Thought(14, 15)), form)
        assert required.startswith(f"root ::= ( {token.format(14)} thought )? turn\n")
        assert f"thought ::= ( {other.format(15)} )* {token.format(15)}\n" in required
        assert f"opener ::= {token.format(10)}\n" in required
        offered = gbnf(turns.offered(block, [10], parallel=False), form)
        assert offered.startswith(f"root ::= free ( block free )?\nfree ::= ( {other.format(10)} )*\n")
        barred = gbnf(turns.barred([10, 11], [10]), form)
        assert barred == f"root ::= ( {other.format(10)} )*\n"
        with pytest.raises(Unsupported, match="leave out several markers"):
            turns.offered(block, [10, 12], parallel=False)


@pytest.mark.parametrize(
    "rule",
    [
        "T1: /a+/ & /aa/",
        "T1: ~/a/",
        "s1[lazy]: /a*b/",
        'r1: %json {"type": "number", "minimum": 3}',
        r"T1: /\w+/",
        r"T1: /[\w]+/",
        r"T1: /[\p{L}_]+/",
        "T1: /(?i:a)/",
        "T1: /^a/",
        "r1: <[1-5]>",
    ],
)
def test_what_cannot_be_said_is_refused(rule):
    with pytest.raises(Unsupported, match="a server without llguidance cannot be told") as raised:
        gbnf(f"start: r1\n{rule}\n", "gbnf")
    assert "\n" not in str(raised.value)


def test_what_cannot_be_said_is_told():
    for rule, what in (
        (r"/[\w]+/", r"'\\w'"),
        ("s1[lazy]: /a/", "text up to a marker"),
        ("~/a/ b", "'~/a/ b'"),
    ):
        with pytest.raises(Unsupported) as raised:
            gbnf(rule if ":" in rule else f"start: {rule}", "gbnf")
        assert str(raised.value) == (
            f"a server without llguidance cannot be told {what} in a grammar: start it with that"
        )


def test_any_character_is_any_but_the_end_of_a_string():
    assert gbnf("start: /a(?s:.){2,}\\./\n", "gbnf") == 'root ::= ("a" [^\\x00]{2,} ".")\n'


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (r'"a\"b\\c"', r'"a\"b\\c"'),
        ('"\u20ac\U0001f600"', '"\u20ac\U0001f600"'),
        (r'"\u0085\n\t\u0000"', r'"\u0085\u000a\u0009\u0000"'),
        ('"\U000e0001"', r'"\U000e0001"'),
        (r"/\x0a\x2d/", r'("\u000a" "-")'),
        (r"/[^\"\\\x00-\x1f]/", r"([^\"\\\x00-\x1f])"),
        (r"/[\n\-\]]+/", r"([\n\x2d\]]+)"),
        (r"/(a|b\/)*c?/", r'(( "a" | "b" "/" )* "c"?)'),
        (r"/x{2}y{1,3}/", r'("x"{2} "y"{1,3})'),
        ("( a | b )? c", "( a | b )? c"),
        ("<[12]> <[^7]>", "<[12]> !<[7]>"),
    ],
)
def test_each_part_is_written_as_llama_cpp_reads_it(text, written):
    assert gbnf(f"start: {text}\nmore: x\n", "gbnf") == f"root ::= {written}\nmore ::= x\n"
