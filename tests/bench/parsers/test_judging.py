"""How readings are judged: each verdict on hand-made readings, what each fault does, and what a wrong call is."""

from __future__ import annotations

import random

import pytest

from localagent_bench.parsers.corpora import AskedCalls, Row
from localagent_bench.parsers.faults import Faulty
from localagent_bench.parsers.injected import judge_faulty
from localagent_bench.parsers.judging import Reading, is_own, judge, judge_fault, judge_trip
from localagent_bench.parsers.outputs import CUTS, FAULTS, Output, cut, rendered, with_fault
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


@pytest.mark.parametrize(
    ("found", "due", "judged"),
    [
        (Reading("x", "y", (F,)), {"content": None, "reasoning": None}, ("exact", "")),
        (Reading("x", "hm", (F,)), {"content": None}, ("exact", "")),
        (Reading("x", "", (F,)), {"content": None}, ("missed", "reasoning '', due is 'hm'")),
        (
            Reading("hi there ", "", (F,)),
            {},
            ("missed", "content 'hi there ', due is 'hi there', reasoning '', due is 'hm'"),
        ),
        (
            Reading("hi there ", "h m", (F,)),
            {},
            ("soft", "content 'hi there ', due is 'hi there', reasoning 'h m', due is 'hm'"),
        ),
        (Reading("hi", "hm", (F,), error="ValueError"), {}, ("refused", "ValueError")),
        (Reading("hi", "hm", (F,), kept=True), {}, ("missed", "content 'hi', due is 'hi there'")),
        (Reading("hi there", "hm", (G,)), {}, ("wrong", "calls [('g', {'s': 'x'})]")),
        (Reading("hi there", "hm", (), error="no"), {}, ("missed", "no")),
    ],
)
def test_content_and_reasoning_are_judged_where_they_are_known(found, due, judged):
    told = {name: getattr(ROW, name) for name in ROW.__slots__} | {"accepted": ([F],)} | due
    assert judge(Row(**told), found) == judged


def test_what_may_be_refused_is_exact_when_it_is():
    lenient = Row(
        **{name: getattr(ROW, name) for name in ROW.__slots__} | {"tags": frozenset({"may-refuse"})}
    )
    assert judge(lenient, Reading("", "", ()))[0] == "exact"
    assert judge(lenient, Reading("", "", (("h", {}),)))[0] == "wrong"
    text = Row(
        **{name: getattr(ROW, name) for name in ROW.__slots__} | {"tags": frozenset({"may-text", "x"})}
    )
    other = Row(**{name: getattr(ROW, name) for name in ROW.__slots__} | {"tags": frozenset({"x"})})
    assert (judge(text, Reading("", "", ()))[0], judge(other, Reading("", "", ()))[0]) == ("exact", "missed")


def test_readings_that_a_client_cannot_tell_apart_are_one():
    one = Reading("a", "b", (("f", {"x": 1, "y": [2.0, {"z": True}]}),))
    assert (
        one.key == Reading("a", "b", (("f", {"y": [2, {"z": True}], "x": 1.0}),), kept=True, error="no").key
    )
    assert one.key != Reading("a", "b", (("f", {"x": 1, "y": [2, {"z": 1}]}),)).key
    assert (
        len({str(Reading(*each).key) for each in (("a", "b"), ("b", "a"), ("ab", ""), ("a", "b", (F,)))}) == 4
    )


def tool(name: str, **types: str) -> dict:
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in types.items()}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("f", a="integer", ok="boolean"), tool("g", s="string")]
TYPED = [
    *TOOLS,
    tool("t", x="number", n="integer", l="array", o="object"),
    {"type": "function", "function": {"name": "nobody"}},
]


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
        ("right", [("f", {"a": " 5\n"})], (("f", {"a": 5}),)),
        ("right", [("f", {"ok": "False"})], (("f", {"ok": False}),)),
        ("wrong", [("f", {"ok": "true"})], (("f", {"ok": 1}),)),
        ("wrong", [("f", {"ok": "True"})], (("f", {"ok": "true"}),)),
        ("right", [("t", {"x": "1.5", "n": "2"})], (("t", {"x": 1.5, "n": 2}),)),
        ("right", [("t", {"l": "[1]", "o": '{"k": 2}'})], (("t", {"l": [1], "o": {"k": 2}}),)),
        ("wrong", [("t", {"x": "[1]"})], (("t", {"x": [1]}),)),
        ("wrong", [("t", {"x": '{"k": 2}'})], (("t", {"x": {"k": 2}}),)),
        ("wrong", [("t", {"l": "1"})], (("t", {"l": 1}),)),
        ("right", [("t", {"any": "1", "more": "[1]"})], (("t", {"any": 1, "more": [1]}),)),
        ("right", [("t", {"any": "null", "more": "true"})], (("t", {"any": None, "more": True}),)),
        ("wrong", [("t", {"x": "null"})], (("t", {"x": None}),)),
        ("right", [("t", {"any": '{"k": 1}', "more": "x"})], (("t", {"any": {"k": 1}, "more": " x "}),)),
        ("wrong", [("t", {"x": "1.5"})], (("t", {"n": 1.5}),)),
        ("right", [("nobody", {"x": "1"})], (("nobody", {"x": 1}),)),
        ("wrong", [("f", {"a": 5})], (("g", {"a": 5}),)),
    ],
)
def test_a_round_trip_is_right_with_the_types_that_the_tools_declare(outcome, due, found):
    assert judge_trip(due, TYPED, Reading(calls=found)) == outcome


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
        (True, {"a": "b\\nc"}, {"a": "b\nc"}),
        (True, {"a": "b\tc"}, {"a": "btc"}),
        (True, {"a": "BC"}, {"a": "bc"}),
        (True, {"a": True}, {"a": "true"}),
        (True, {"a": "1.0"}, {"a": 1}),
        (True, {"a": "axc"}, {"a": "abc"}),
        (True, {"a": "xbc"}, {"a": "bc"}),
        (True, {"a": ["b", "c"]}, {"a": ["b", "cd"]}),
        (True, {"k": {"x": 1}, "b": 2}, {"kk": {"x": 1}, "b": 2}),
        (True, {"a": '{"k": 1}'}, {"a": {"k": 1}}),
        (True, {"x": "1e5"}, {"x": "2e9"}),
        (False, {"x": "1e5"}, {"x": "the"}),
        (False, {"x": "e"}, {"x": "12"}),
        (False, {"x": 10}, {"x": 99}),
        (False, {"a": "acb"}, {"a": "abc"}),
        (False, {"a": "b"}, {"a": "bcd"}),
        (False, {"k": {"x": 1}}, {"kk": {"x": 222}}),
        (False, {"xx": 1, "yy": 1}, {"x": 1, "y": 1}),
        (False, {"a": ["x", "c"]}, {"a": ["bb", "cd"]}),
        (False, {"a": "[1, 2"}, {"a": [1, 2]}),
        (False, {"a": [1]}, {"a": 1}),
        (False, {"a": {"b": 1}}, {"a": ["b", 1]}),
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


TASK = AskedCalls("t", TOOLS, [("f", {"a": 12, "ok": True}), ("g", {"s": 'it\'s "x"'})])
OTHER = AskedCalls("o", [tool("h", q="string")], [("h", {"q": "draft"})])


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
    assert judge_faulty(Faulty("draft", draft), Reading(calls=calls)) == "right"
    assert judge_faulty(Faulty("draft", draft), Reading(calls=(*OTHER.calls, *calls))) == "wrong"
    assert judge_faulty(Faulty("twice", output), Reading(calls=calls)) == "right"
    assert judge_faulty(Faulty("twice", output), Reading(calls=calls * 2)) == "right"
    assert judge_faulty(Faulty("twice", output), Reading(calls=calls * 3)) == "wrong"
    misspelled = Reading(calls=(("f", {"a": 12, "ok": True}), ("g", {"s": 'it\'s "xx"'})))
    assert judge_faulty(Faulty("lost", output), misspelled) == "right"
    assert judge_faulty(Faulty("cut", output), misspelled) == "wrong"
