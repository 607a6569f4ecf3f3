"""How readings are judged: each verdict on hand-made readings, what each fault does, and what a wrong call is."""

from __future__ import annotations

import random

import pytest

from localagent.bench.parsers.corpora import Row, Task
from localagent.bench.parsers.judging import Reading, is_own, judge, judge_fault, judge_trip
from localagent.bench.parsers.outputs import CUTS, FAULTS, Output, cut, rendered, with_fault
from localagent.bench.parsers.trips import judge_faulty
from parsers import DIALECTS

F, G = ("f", {"a": 1}), ("g", {"s": "x"})
ROW = Row(
    corpus="c", id="1", family="lfm2", dialect="lfm2", text="", tools=None,
    accepted=([F, G], [G]), content="hi there", reasoning="hm",
)  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "found"),
    [
        ("exact", Reading("hi there", "hm", (F, G))),
        ("exact", Reading("hi there", "hm", (("f", {"a": 1.0}), G))),
        ("exact", Reading("anything", "", (G,))),
        ("soft", Reading("hi there\n", "hm", (F, G))),
        ("soft", Reading("hithere", " hm", (F, G), kept=True)),
        ("refused", Reading("hi there", "hm", (F,), kept=True)),
        ("refused", Reading(kept=True, error="ValueError")),
        ("missed", Reading("hi there", "hm", (F,))),
        ("missed", Reading("hi there", "hm", ())),
        ("missed", Reading("hi", "hm", (F, G))),
        ("missed", Reading("hi there", "", (F, G))),
        ("wrong", Reading("hi there", "hm", (F, G, G))),
        ("wrong", Reading("hi there", "hm", (G, F))),
        ("wrong", Reading("hi there", "hm", (("f", {"a": "1"}), G), kept=True)),
        ("wrong", Reading("hi there", "hm", (("f", {"a": True}), G))),
        ("wrong", Reading("hi there", "hm", (("f", {}),))),
    ],
)
def test_a_reading_has_one_of_five_verdicts(verdict, found):
    assert judge(ROW, found)[0] == verdict


def test_what_differs_is_told():
    told = "content 'hi', due is 'hi there', reasoning '', due is 'hm'"
    assert judge(ROW, Reading("hi", "", (F, G))) == ("missed", told)
    assert judge(ROW, Reading("hi", "hm", (F, G), kept=True, error="ValueError"))[1] == "ValueError"


def test_what_may_be_refused_is_exact_when_it_is():
    lenient = Row(
        **{name: getattr(ROW, name) for name in ROW.__slots__} | {"tags": frozenset({"may-refuse"})}
    )
    assert judge(lenient, Reading("", "", ()))[0] == "exact"
    assert judge(lenient, Reading("", "", (("h", {}),)))[0] == "wrong"


def tool(name: str, **types: str) -> dict:
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in types.items()}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("f", a="integer", ok="boolean"), tool("g", s="string")]


@pytest.mark.parametrize(
    ("outcome", "due", "found"),
    [
        ("right", [F, G], (F, G)),
        ("right", [("g", {"s": 5})], (("g", {"s": "5"}),)),
        ("right", [("f", {"a": "5"})], (("f", {"a": 5}),)),
        ("right", [("f", {"ok": "True"})], (("f", {"ok": True}),)),
        ("wrong", [("f", {"a": 5})], (("f", {"a": "5"}),)),
        ("wrong", [("g", {"s": "5"})], (("g", {"s": 5}),)),
        ("wrong", [F], (("f", {"a": 1, "b": 2}),)),
        ("wrong", [F], (F, F)),
        ("wrong", [F, G], (G, F)),
        ("refused", [F, G], (G,)),
        ("refused", [F], ()),
    ],
)
def test_a_round_trip_is_right_with_the_types_that_the_tools_declare(outcome, due, found):
    assert judge_trip(due, TOOLS, Reading(calls=found)) == outcome


@pytest.mark.parametrize(
    ("own", "got", "due"),
    [
        (True, {"city": "Pari"}, {"city": "Paris"}),
        (True, {"cityy": "Paris"}, {"city": "Paris"}),
        (True, {"n": 170}, {"n": 17}),
        (True, {"n": "17"}, {"n": 17}),
        (True, {"s": "a\nb"}, {"s": "anb"}),
        (True, {"ids": "[1, 2]"}, {"ids": [1, 2]}),
        (True, {"o": {"k": [1, {"x": "yz"}]}}, {"o": {"k": [1, {"x": "y"}]}}),
        (True, {"x": 1e20}, {"x": 1e10}),
        (True, {"x": 100000.0}, {"x": 1e50}),
        (False, {"a": ""}, {"a": 123}),
        (False, {"a": 1}, {"a": 1000}),
        (False, {"a": 29}, {"a": 17}),
        (False, {"city": "Par"}, {"city": "Paris"}),
        (False, {"city": "Pari", "n": "x"}, {"city": "Paris", "n": "y"}),
        (False, {}, {"city": "Paris"}),
        (False, {"city": "Paris", "n": 1}, {"city": "Paris"}),
        (False, {"l": [1]}, {"l": [1, 2]}),
        (False, {"o": {"k": "v"}}, {"o": "v"}),
        (False, {"a": 'x", "b": 1'}, {"a": "x", "b": 1}),
    ],
)
def test_one_edit_in_one_word_is_the_models_own(own, got, due):
    assert is_own(("f", got), ("f", due)) is own
    assert judge_fault([("f", due)], Reading(calls=(("f", got),))) == ("right" if own else "wrong")


def test_a_misspelled_name_is_the_models_own_and_another_name_is_not():
    assert is_own(("get_wether", {"a": "[1"}), ("get_weather", {"a": "[1"}))
    assert not is_own(("get_time", {}), ("get_weather", {}))


TASK = Task("t", TOOLS, [("f", {"a": 12, "ok": True}), ("g", {"s": 'it\'s "x"'})])
OTHER = Task("o", [tool("h", q="string")], [("h", {"q": "draft"})])


def outputs(dialect: str) -> list[Output]:
    return list(rendered(dialect, [TASK]))


def test_every_format_is_written_and_every_cut_joins_to_the_text():
    for dialect in [name for name, table in DIALECTS.items() if table.renderers]:
        found = outputs(dialect)
        assert found, dialect
        for output in found:
            for how in CUTS:
                assert "".join(cut(output.text, how, dialect, random.Random(1))) == output.text
        assert cut("", "token", dialect, random.Random(1)) == []


def test_each_fault_does_what_it_says():
    (output,) = outputs("hermes")
    for seed in range(30):
        draw = random.Random(seed)
        broken = {fault: with_fault(output, fault, OTHER, draw) for fault in FAULTS}
        lengths = {fault: len(each.text) - len(output.text) for fault, each in broken.items()}
        assert (lengths["lost"], lengths["doubled"], lengths["changed"]) == (-1, 1, 0)
        assert lengths["quote"] == -1
        quotes = [sum(text.count(quote) for quote in "\"'") for text in (output.text, broken["quote"].text)]
        assert quotes[0] == quotes[1] + 1
        assert output.text.startswith(broken["cut"].text)
        assert broken["cut"].finish == "length"
        assert broken["twice"].text == output.text * 2
        (said,) = [given["s"] for _, given in broken["marker"].calls if "s" in given]
        assert said in ("see <tool_call> here", "see </tool_call> here")
        assert said in broken["marker"].text
        assert broken["draft"].text.endswith(output.text)
        assert "<think>" in broken["draft"].text
        assert [each["function"]["name"] for each in broken["draft"].tools] == ["f", "g", "h"]


def test_a_fault_that_finds_no_place_is_left_out():
    plain = Output("hermes", "json", "", [("f", {})], TOOLS, "x")
    assert all(
        with_fault(plain, fault, OTHER, random.Random(1)) is None
        for fault in ("lost", "quote", "cut", "marker")
    )
    (harmony, *_) = outputs("harmony")
    assert with_fault(harmony, "draft", OTHER, random.Random(1)) is None


def test_what_is_right_after_a_fault_depends_on_its_kind():
    (output,) = outputs("hermes")
    calls = tuple(output.calls)
    draft = with_fault(output, "draft", OTHER, random.Random(1))
    assert judge_faulty("draft", draft, Reading(calls=calls)) == "right"
    assert judge_faulty("draft", draft, Reading(calls=(*OTHER.calls, *calls))) == "wrong"
    assert judge_faulty("twice", output, Reading(calls=calls)) == "right"
    assert judge_faulty("twice", output, Reading(calls=calls * 2)) == "right"
    assert judge_faulty("twice", output, Reading(calls=calls * 3)) == "wrong"
    misspelled = Reading(calls=(("f", {"a": 12, "ok": True}), ("g", {"s": 'it\'s "xx"'})))
    assert judge_faulty("lost", output, misspelled) == "right"
    assert judge_faulty("cut", output, misspelled) == "wrong"
