"""Further faults: each changes what it says it changes, what is then the same call, and a parser that guesses."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from localagent_bench.parsers.corpora import AskedCalls
from localagent_bench.parsers.faults import _INVISIBLE, _PROSE, FURTHER, Faulty, with_further_fault
from localagent_bench.parsers.injected import inject, judge_faulty, judged
from localagent_bench.parsers.judging import Reading, contradicts
from localagent_bench.parsers.outputs import Output, cut, rendered, tokens
from localagent_bench.results import Results
from parsers import DIALECTS

F, G = "find_city", "book_trip"


def tool(name, required=(), **types):
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool(F, ["city"], city="string", count="integer"),
    tool(G, to="string", days="array", fare="number", direct="boolean"),
]
CALLS = [(F, {"city": "Porto 'Old' Town", "count": 12}), (G, {"to": "Faro\nSul", "days": [1, 20, 300]})]
OTHER = AskedCalls("o", [tool("send_mail", text="string")], [("send_mail", {"text": "hello"})])
SEEDS = range(40)


def output(dialect="hermes", calls=CALLS) -> Output:
    return next(rendered(dialect, [AskedCalls("t", TOOLS, calls)]))


def broken(fault, dialect="hermes", seeds=SEEDS, calls=CALLS) -> list[Faulty]:
    made = (with_further_fault(output(dialect, calls), fault, OTHER, random.Random(seed)) for seed in seeds)
    return [each for each in made if each is not None]


def texts(fault, dialect="hermes") -> list[str]:
    return [each.output.text for each in broken(fault, dialect)]


HERMES = output().text
QWEN = output("qwen3-coder").text
MARKERS = {mark for mark in DIALECTS["hermes"].markers if mark.strip()}


def edits(a: str, b: str) -> int:
    """Levenshtein's distance."""
    row = list(range(len(b) + 1))
    for number, x in enumerate(a, 1):
        last, row[0] = row[0], number
        for place, y in enumerate(b, 1):
            last, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, last + (x != y))
    return row[-1]


def without(longer: str, shorter: str) -> str | None:
    """What stood together in the longer text and is not in the shorter one."""
    same = next((at for at, (x, y) in enumerate(zip(longer, shorter, strict=False)) if x != y), len(shorter))
    lost = longer[same : same + len(longer) - len(shorter)]
    return lost if longer[:same] + longer[same + len(lost) :] == shorter else None


# -- what each of them changes ------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", [name for name, table in DIALECTS.items() if table.renderers])
def test_every_fault_is_the_same_for_a_seed_and_changes_every_format(dialect):
    before = output(dialect)
    for fault in FURTHER:
        made = broken(fault, dialect, range(3))
        assert made == broken(fault, dialect, range(3))
        for each in made:
            assert (each.fault, each.output.id, each.output.finish) == (fault, before.id, "stop")
            assert each.output.text != before.text, fault
            assert each.before == (before.calls if fault in ("restarted", "inside", "again") else ())
            pieces = [piece for piece, _ in tokens(each.output.text, dialect)]
            assert "".join(pieces) == each.output.text and all(pieces)


def test_single_characters():
    assert all(without(text, HERMES) for text in texts("inserted"))
    assert {len(text) - len(HERMES) for text in texts("inserted")} == {1}
    assert {edits(HERMES, text) for text in texts("two")} == {1, 2}
    for text in texts("swapped"):
        (first, second) = (at for at, (x, y) in enumerate(zip(HERMES, text, strict=True)) if x != y)
        assert second == first + 1 and (text[first], text[second]) == (HERMES[second], HERMES[first])
    lost = [without(HERMES, text) for text in texts("span")]
    assert all(lost) and {len(part) for part in lost} == {*range(2, 13)}


def test_white_space_and_what_nobody_sees():
    assert all((put := without(text, HERMES)) and not put.strip() for text in texts("space"))
    for text in texts("tag", "qwen3-coder"):
        assert without(text, QWEN) in (" ", "\n")
        assert re.sub(r"<[^<>]*>", lambda tag: re.sub(r"\s", "", tag[0]), text) == QWEN
    put = [without(text, HERMES) for text in texts("invisible")]
    assert set(put) == {*_INVISIBLE}
    assert any(text[0] in _INVISIBLE for text in texts("invisible"))
    assert any(text[-1] in _INVISIBLE for text in texts("invisible"))
    assert set(texts("crlf")) == {HERMES.replace("\n", "\r\n")}
    assert broken("crlf", "lfm2", calls=CALLS[:1]) == [], "it is written in one line"


def test_quotes_are_curled_one_by_one_in_pairs_or_all():
    straight = str.maketrans("\u201c\u201d\u2018\u2019", "\"\"''")
    found = texts("quotes")
    assert {text.translate(straight) for text in found} == {HERMES}
    counts = Counter(edits(HERMES, text) for text in found)
    assert counts.keys() == {1, 2, sum(map(HERMES.count, "\"'"))}
    assert broken("quotes", "glm47", calls=[(F, {"city": "Porto"})]) == []


def test_markers():
    assert {without(HERMES, text) for text in texts("marker-lost")} <= MARKERS
    doubled = {without(text, HERMES) for text in texts("marker-doubled")}
    # what is left over is a marker and a blank, perhaps turned round by what they have in common
    assert None not in doubled and any(part.strip() in MARKERS for part in doubled)
    assert all("".join(sorted(part)).strip() for part in doubled)
    for text in texts("marker-changed"):
        lost, put = Counter(marks(HERMES)), Counter(marks(text))
        assert (sum((lost - put).values()), sum((put - lost).values())) == (1, 1)
    for text in texts("fence"):
        assert re.sub(r"```\w*\n|\n```|\*\*|`", "", text) == HERMES
    fenced = {text.find("<tool_call>") for text in texts("fence")}
    assert 0 in fenced and len(fenced) > 1, "within the markers as well as around them"


def marks(text: str) -> list[str]:
    return re.findall("|".join(map(re.escape, sorted(MARKERS, key=len, reverse=True))), text)


def test_turns_that_are_cut_off():
    for text in texts("prose"):
        (prose,) = (prose for prose in _PROSE if prose in text)
        assert HERMES.startswith(text.removesuffix(prose))
    for text in texts("prose-closed"):
        (prose,) = (prose for prose in _PROSE if prose in text)
        head, _, tail = text.partition(prose)
        assert HERMES.startswith(head) and HERMES.endswith(tail) and 1 <= len(tail) <= 24
    for text in texts("restarted"):
        assert text.endswith(HERMES)
        head = text.removesuffix(HERMES).removesuffix("\n\nLet me try again.\n").removesuffix("\n")
        assert head and HERMES.startswith(head)
    for text in texts("name-cut"):
        head = text.removesuffix(HERMES).removesuffix("\n")
        assert text.endswith(HERMES) and HERMES.startswith(head)
        assert head.rpartition('"')[2] in [F[:length] for length in range(1, len(F))]
    for text in texts("again"):
        assert text.startswith(HERMES) and HERMES.startswith(text.removeprefix(HERMES).lstrip("\n"))


def test_other_calls_and_reasoning():
    other = DIALECTS["hermes"].render(OTHER.calls)
    for each in broken("inside"):
        assert each.output.text.endswith(other) and HERMES.startswith(each.output.text.removesuffix(other))
        assert (each.output.calls, each.before) == (OTHER.calls, CALLS)
        assert each.output.tools == [*TOOLS, *OTHER.tools]
    same = AskedCalls("o", TOOLS, CALLS[:1])
    assert with_further_fault(output(), "inside", same, random.Random(1)) is None, "one name for two tools"
    for text in texts("unclosed"):
        assert text.startswith("<think>") and text.endswith(HERMES) and "</think>" not in text
    for each in broken("half-draft"):
        draft = each.output.text.partition("Perhaps ")[2].partition(" No: ")[0]
        assert draft != other and other.startswith(draft) and each.output.text.endswith(HERMES)
    assert broken("unclosed", "llama3-json") == broken("half-draft", "llama3-json") == []


def test_a_turn_that_begins_again_has_the_header_that_the_prompt_has_begun():
    for fault in ("restarted", "name-cut", "again"):
        made = broken(fault, "harmony", calls=CALLS[:1])
        assert any("<|start|>assistant to=" in each.output.text for each in made), fault


def test_an_output_without_text_has_no_place_for_a_fault():
    empty = replace(output(), text="", calls=[])
    assert [with_further_fault(empty, fault, OTHER, random.Random(1)) for fault in FURTHER] == [None] * 21


def test_the_method_names_every_fault():
    method = (Path(__file__).parents[3] / "benchmarks" / "METHOD.md").read_text()
    rows = {
        name
        for line in method.splitlines()
        if line.startswith("| `")
        for name in re.findall("`([^`]+)`", line)
    }
    assert rows >= FURTHER.keys()


# -- what is the same call ----------------------------------------------------------------------------------

CITY = "Porto 'Old' Town"


@pytest.mark.parametrize(
    ("fault", "own", "city"),
    [
        ("inserted", True, "Portoo 'Old' Town"),
        ("inserted", False, "Portooo 'Old' Town"),
        ("two", True, "Poto 'Old' Twon"[:13] + "own"),
        ("two", False, "rto 'ld' Town"),
        ("swapped", True, "Proto 'Old' Town"),
        ("swapped", False, "Prot 'Old' Twn"),
        ("span", True, "Porown"),
        ("span", False, "Poro 'Old' own"),
        ("span", False, CITY + "s"),
        ("space", True, "Por\n to 'Old' Town"),
        ("space", False, "Por-to 'Old' Town"),
        ("tag", True, "\nPorto 'Old' Town"),
        ("tag", False, "Porto 'Old' Town</"),
        ("invisible", True, "Por\u200bto 'Old' Town"),
        ("invisible", True, "\u200b\nPorto 'Old' Town"),
        ("invisible", False, "Por\u200bt 'Old' Town"),
        ("crlf", True, CITY + "\r"),
        ("crlf", False, CITY + "\r\n"),
        ("quotes", True, "Porto \u2018Old\u2019 Town"),
        ("quotes", False, "\u201cPorto 'Old' Town\u201d"),
        *(
            (fault, False, CITY + "s")
            for fault in ("marker-lost", "marker-doubled", "marker-changed", "fence")
        ),
        *((fault, False, CITY + "s") for fault in ("prose", "restarted", "name-cut", "again", "unclosed")),
        *((fault, True, CITY) for fault in FURTHER if fault != "inside"),
        ("prose-closed", True, "Por" + _PROSE[0] + "own"),
        ("prose-closed", False, "Por" + _PROSE[0] + "</tool_call>"),
        ("prose-closed", False, "Por and so on"),
        ("half-draft", False, "Porto"),
    ],
)
def test_the_models_own_words_after_a_fault(fault, own, city):
    (due, *_) = CALLS
    faulty = Faulty(fault, replace(output(calls=[due]), calls=[due]))
    found = Reading(calls=((F, {"city": city, "count": 12}),))
    assert judge_faulty(faulty, found) == ("right" if own else "wrong")


@pytest.mark.parametrize(
    ("fault", "own", "got"),
    [
        ("span", True, {"to": "Faro\nSul", "days": [1, 300]}),
        ("span", True, {"to": "Faro\nSul", "days": [1, 2300]}),
        ("span", False, {"to": "Faro\nSul", "days": [300, 1]}),
        ("span", False, {"to": "Faro\nSul"}),
        ("swapped", True, {"ot": "Faro\nSul", "days": [1, 20, 300]}),
        ("inserted", False, {"ot": "Faro\nSul", "days": [1, 20, 300]}),
        ("two", True, {"too": "Faro\nSul", "dys": [1, 20, 300]}),
        ("two", False, {"too": "Faro\nSul", "dys": [1, 20, 30]}),
    ],
)
def test_lists_and_keys_after_a_fault(fault, own, got):
    faulty = Faulty(fault, replace(output(calls=CALLS[1:]), calls=CALLS[1:]))
    assert judge_faulty(faulty, Reading(calls=((G, got),))) == ("right" if own else "wrong")


def test_calls_that_stand_twice_may_be_read_twice_and_no_more():
    first, second = CALLS
    twice = Faulty("again", output(), CALLS)
    for calls, outcome in (
        ([first, second], "right"),
        ([first, first, second], "right"),
        ([first, second, first], "right"),
        ([first, second] * 2, "right"),
        ([first], "refused"),
        ([], "refused"),
        ([first, second] * 3, "wrong"),
        ([second, second, first, first], "wrong"),
    ):
        assert judge_faulty(twice, Reading(calls=tuple(calls))) == outcome, calls
    once = Faulty("marker-doubled", output())
    assert judge_faulty(once, Reading(calls=(first, first, second))) == "wrong"
    inside = Faulty("inside", replace(output(), calls=OTHER.calls), CALLS)
    assert judge_faulty(inside, Reading(calls=(first, *OTHER.calls))) == "right"
    assert judge_faulty(inside, Reading(calls=(first,))) == "refused"
    assert judge_faulty(inside, Reading(calls=(*OTHER.calls, first))) == "wrong"


# -- what the tools contradict --------------------------------------------------------------------------------

TRIP = {
    "type": "object",
    "required": ["to"],
    "properties": {
        "to": {"type": "string"},
        "class": {"enum": ["first", "second"]},
        "seats": {"type": "array", "items": {"type": "integer"}},
        "card": {"type": "object", "required": ["id"], "properties": {"id": {"type": ["string", "null"]}}},
        "fare": {"type": "number"},
        "open": {},
    },
}  # fmt: skip
DECLARED = [{"type": "function", "function": {"name": "trip", "parameters": TRIP}},
            {"type": "function", "function": {"name": "ping"}}]  # fmt: skip


@pytest.mark.parametrize(
    ("against", "name", "more"),
    [
        (False, "trip", {}),
        (True, "trap", {}),
        (True, "trip", {"when": "now"}),
        (True, "trip", {"to": None}),
        (True, "trip", {"to": 5}),
        (False, "trip", {"class": "first"}),
        (True, "trip", {"class": "third"}),
        (False, "trip", {"seats": [1, 2.0]}),
        (True, "trip", {"seats": [1, 2.5]}),
        (True, "trip", {"seats": "[1, 2]"}),
        (False, "trip", {"card": {"id": None}}),
        (True, "trip", {"card": {"id": 5}}),
        (True, "trip", {"card": {}}),
        (False, "trip", {"fare": 3}),
        (True, "trip", {"fare": True}),
        (False, "trip", {"open": [{"any": None}]}),
        (True, "trip", {"open": ['<param name="x']}),
        (True, "trip", {"to": "Faro</to>"}),
    ],
)
def test_tools_contradict_a_call(against, name, more):
    assert contradicts((name, {"to": "Faro", **more}), DECLARED, ["</", '<param name="']) is against


def test_what_is_required_must_be_there_and_a_tool_without_a_schema_takes_nothing():
    assert contradicts(("trip", {}), DECLARED, [])
    assert not contradicts(("ping", {}), DECLARED, [])
    assert contradicts(("ping", {"a": 1}), DECLARED, [])


def test_only_the_calls_that_are_wrong_can_be_against_the_tools():
    second = CALLS[1]
    odd = (F, {"city": "Porto 'Old' Town", "count": "12"})  # its task contradicts its own tool
    faulty = Faulty("restarted", replace(output(), calls=[odd, second]))
    assert judged(faulty, Reading(calls=(odd, second))) == ("right", False)
    assert judged(faulty, Reading(calls=(odd, (F, {"city": "Lima"})))) == ("wrong", False)
    assert judged(faulty, Reading(calls=(odd, (F, {"city": "Lima<tool_call>"})))) == ("wrong", True)
    again = Faulty("again", replace(output(), calls=[odd]), [odd])
    assert judged(again, Reading(calls=(odd, odd, (F, {"city": "Lima"})))) == ("wrong", False)
    assert judged(Faulty("cut", output()), Reading(calls=((F, {}), second))) == ("wrong", True)
    assert judged(Faulty("lost", output()), Reading(calls=((F, {"count": 2}),))) == ("wrong", True)


# -- parsers -------------------------------------------------------------------------------------------------


def test_special_tokens_are_those_that_vocabularies_flag():
    (first, *_, last) = tokens("<|tool_call_start|>[f(a='<|')]<|tool_call_end|>", "lfm2")
    assert (first, last) == (("<|tool_call_start|>", True), ("<|tool_call_end|>", True))
    assert not any(special for _, special in tokens(HERMES, "hermes")), "its markers are not flagged"
    flagged = [piece for piece, special in tokens(output("deepseek-v32").text, "deepseek-v32") if special]
    assert set(flagged) == {"\uff5cDSML\uff5c"}, "the token in its markers"
    flagged = {piece for piece, special in tokens(output("harmony").text, "harmony") if special}
    assert "<|channel|>" in flagged
    split = tokens("<|channel|>analysis<|message|>", "harmony")
    assert [piece for piece, special in split if special] == ["<|channel|>", "<|message|>"]
    assert tokens("", "lfm2") == []
    assert [piece for piece, _ in tokens("a b", "json")] == cut("a b", "token", "json", random.Random(1))


GUESS = """
import re
for asked in lines():
    text = asked.get("text") or "".join(asked["chunks"])
    calls = []
    for name, rest in re.findall(r'"name": *"(\\\\w+)(.*?)(?=<tool_call>|$)', text, re.S):
        given = dict(re.findall(r'"(\\\\w+)": *"?([^"{}]*)"?[,}]', rest))
        calls.append({"name": name, "arguments": given})
    answer(asked, tool_calls=calls)
"""


def test_a_parser_that_guesses_is_caught(program):
    """It takes what looks like a name and its arguments, whatever is missing around them."""
    tasks = [
        AskedCalls(f"t{n}", TOOLS, [(F, {"city": f"Porto {n}"}), (G, {"to": f"Faro {n}"})]) for n in range(6)
    ]
    results = Results("parsers", {})
    guesses = program(GUESS.replace("\\\\", "\\"), 20.0)
    inject(results, [guesses], [next(rendered("hermes", [task])) for task in tasks], [OTHER], 1, fail)
    rows = {row["fault"]: row for row in results.run.rows["parsers.faults_by"]}
    wrong = {fault for fault, row in rows.items() if row["wrong"]}
    assert wrong >= {"marker-lost", "prose", "restarted", "name-cut", "inside", "half-draft", "quotes"}
    against = {fault for fault, row in rows.items() if row["against"]}
    assert wrong >= against >= {"prose", "restarted", "name-cut", "quotes"}
    assert all(row["known"] == row["wrong"] for row in rows.values()), "it reads nothing but text"


def fail(parser, why):
    pytest.fail(f"{parser.name}: {why}")


@pytest.mark.parametrize("dialect", ["hermes", "lfm2", "harmony", "json"])
def test_ours_reads_few_calls_wrong(ours, dialect):
    tasks = [
        AskedCalls(
            f"t{n}", TOOLS, [(F, {"city": f"Porto {n}", "count": n}), (G, {"to": "Faro", "days": [n, 7]})]
        )
        for n in range(5)
    ]
    results = Results("parsers", {})
    written = [next(rendered(dialect, [task])) for task in tasks]
    inject(results, [ours], written, [OTHER], 3, fail, kinds=FURTHER)
    (row,) = results.run.rows["parsers.faults"]
    assert row["set"] == "further" and row["outputs"] > 60
    assert max(row["against"], row["known_against"]) < 2, json.dumps(results.run.cases, indent=1)
    assert row["right"] > 30
