"""CanIToolCall's outputs, judged by its own code in every chunking, are read as it says, but for those listed."""

from __future__ import annotations

from collections import Counter

import pytest

from localagent_bench.parsers.canitoolcall import FAILS, _fixtures, conformance, conformance_rows, units
from localagent_bench.parsers.corpora import Row
from localagent_bench.parsers.judging import Reading


def test_only_the_listed_outputs_fail_and_no_call_is_wrong(ours):
    judged = {row.id: conformance(ours, row) for row in conformance_rows()}
    counts = Counter(verdict for verdict, _, _ in judged.values())
    print(f"{counts.total()} outputs: {dict(counts)}")
    assert counts.total() == 469
    failing = {id: said for id, (verdict, said, _) in judged.items() if verdict not in ("exact", "soft")}
    assert {id: said for id, said in failing.items() if id not in FAILS} == {}
    assert FAILS.keys() - failing.keys() == set(), "listed as failing, but read as the package wants it"
    assert counts["wrong"] == 0
    assert counts["soft"] <= 5
    assert [id for id, (_, _, equal) in judged.items() if not equal] == []
    for id, said in failing.items():
        print(f"{id}: {FAILS[id][0]} ({said})")


def test_few_outputs_fail():
    assert len(FAILS) <= 4


ROWS = {row.id: row for row in conformance_rows()}


def test_each_output_is_of_the_dialect_of_its_model():
    assert Counter((row.family, row.dialect) for row in ROWS.values()) == {
        ("qwen3-xml", "qwen3-coder"): 54,
        ("gpt-oss", "harmony"): 51,
        ("qwen3-hermes", "hermes"): 50,
        ("gemma4", "gemma4"): 48,
        ("mistral", "mistral"): 47,
        ("glm", "glm47"): 32,
        ("kimi", "kimi-k2"): 26,
        ("llama", "llama3-json"): 24,
        ("kimi", "kimi-k3"): 23,
        ("deepseek", "deepseek-v41"): 21,
        ("glm", "glm45"): 19,
        ("deepseek", "deepseek-v4"): 18,
        ("deepseek", "deepseek-v3"): 17,
        ("deepseek", "deepseek-v32"): 17,
        ("deepseek", "deepseek-v31"): 12,
        ("llama", "llama-pythonic"): 10,
    }
    assert Counter(
        (row.finish, row.inside, row.content is None, row.reasoning is None) for row in ROWS.values()
    ) == {
        ("stop", None, False, False): 320,
        ("stop", "reasoning", False, False): 90,
        ("length", None, True, True): 26,
        ("length", None, False, False): 14,
        ("length", "reasoning", False, False): 10,
        ("stop", None, True, True): 8,
        ("length", "reasoning", True, True): 1,
    }
    assert {row.corpus for row in ROWS.values()} == {"canitoolcall"}


def test_an_output_is_all_that_the_package_says_of_it():
    properties = {"city": {"type": "string"}, "unit": {"type": "string"}, "count": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties}
    text = "How can I help you today? I can check weather for you."
    assert ROWS["deepseek/vllm-v3-no-tool-calls"] == Row(
        corpus="canitoolcall",
        id="deepseek/vllm-v3-no-tool-calls",
        family="deepseek",
        dialect="deepseek-v3",
        text=text,
        tools=[{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}],
        accepted=([],),
        content=text,
        reasoning="",
        tags=frozenset({"x-deepseek-v3", "no-call"}),
        pieces=((text, None),),
    )
    (right, ours) = ROWS["llama/l4-truncated-missing-close-bracket"].accepted
    assert (right, ours) == ([], [("get_weather", {"city": "San Francisco"})])
    assert [row.id for row in ROWS.values() if len(row.accepted) != 1] == [
        "llama/l4-truncated-missing-close-bracket"
    ]


def test_control_tokens_are_told_from_markers_that_are_spelled():
    assert all("".join(text for text, _ in row.pieces) == row.text for row in ROWS.values())
    special = [row for row in ROWS.values() if any(flag for _, flag in row.pieces)]
    assert Counter(row.family for row in special) == {"gpt-oss": 51, "kimi": 21}
    assert ROWS["gpt-oss/vllm-channel-first-recipient"].pieces == (
        *(
            ("<|channel|>", True),
            ("analysis", False),
            ("<|message|>", True),
            ("reasoning", False),
            ("<|end|>", True),
        ),
        *(("<|start|>", True), ("assistant", False), ("<|channel|>", True)),
        *(("commentary to=functions.get_weather ", False), ("<|constrain|>", True), ("json", False)),
        *(("<|message|>", True), ('{"city": "Tokyo"}', False)),
    )
    spelled = {row.id: text for row in special for text, flag in row.pieces if not flag and "<|" in text}
    assert [*spelled] == [
        *("gpt-oss/harmony-marker-in-arguments", "gpt-oss/harmony-marker-in-reasoning"),
        "kimi/k3-control-marker-text-in-value",
    ]
    assert spelled["kimi/k3-control-marker-text-in-value"] == "<|close|>argument<|sep|> is how args end"


def test_without_ids_of_tokens_markers_words_and_signs_stand_for_them():
    fixture, family = _fixtures()["deepseek/vllm-v3-no-tool-calls"]
    assert units(fixture, family, "deepseek-v3")[:7] == [
        (text, None) for text in ("How", " can", " I", " help", " you", " today", "?")
    ]
    fixture, family = _fixtures()["qwen3-xml/coder-next-parallel-calls"]
    assert [text for text, _ in units(fixture, family, "qwen3-coder")][:6] == [
        *("<tool_call>", "\n", "<function=", "get_weather", ">", "\n")
    ]


CALLED = ROWS["qwen3-xml/coder-next-parallel-calls"]
RIGHT = Reading("", "", tuple(CALLED.accepted[0]))


@pytest.mark.parametrize(
    ("whole", "pieces", "verdict", "says", "equal"),
    [
        (RIGHT, RIGHT, "exact", "", True),
        (Reading(), Reading(), "missed", "calls", True),
        (Reading(kept=True, error="no"), Reading(kept=True, error="no"), "refused", "no", True),
        (Reading("", "", (("f", {}),)), Reading("", "", (("f", {}),)), "wrong", "calls", True),
        (RIGHT, Reading(), "missed", "stream", False),
    ],
)
def test_verdicts_of_the_package_are_told_in_our_terms(whole, pieces, verdict, says, equal):
    asked = []

    class Parser:
        flags = False

        def read(self, request):
            asked.append(request)
            return whole if "text" in request else pieces

    found, said, same = conformance(Parser(), CALLED)
    assert (found, same) == (verdict, equal)
    assert says in said
    assert (said == "") == (verdict == "exact")
    assert asked[0]["text"] == CALLED.text
    assert all("".join(request["chunks"]) == CALLED.text for request in asked[1:])
    assert len(asked) > 4
