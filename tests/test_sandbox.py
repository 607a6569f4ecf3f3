"""The sandbox of chat templates: what operators and methods give, what they cost, and where the bounds are."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

from localagent.errors import TemplateFailed
from localagent.sandbox import budget as budgets
from localagent.sandbox import compile_template, environment, render_template
from localagent.sandbox.budget import MAX_SECONDS, MAX_VALUE, MAX_WORK, Budget, check_bits, weigh


def render(source: str, **values: Any) -> str:
    return render_template(compile_template(source), values)


def refused(source: str, **values: Any) -> str:
    with pytest.raises(TemplateFailed) as caught:
        render(source, **values)
    return str(caught.value)


# -- what templates get -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 < 2 < 3", True),
        ("1 > 2 < 3", False),
        ("1 < 2 > 3", False),
        ("3 > 2 > 1", True),
        ("1 < 2 == 2 != 3", True),
        ("1 == 2 == 1", False),
        ("1 > 2 < 'a'", False),  # the rest of a chain is not compared any more
        ("1 <= 1", True),
        ("2 <= 1", False),
        ("1 >= 1", True),
        ("1 >= 2", False),
        ("1 < 1", False),
        ("1 > 1", False),
        ("1 != 1", False),
        ("1 != 2", True),
        ("'a' in 'cat'", True),
        ("'a' not in 'cat'", False),
        ("'b' not in ['a']", True),
        ("'b' in {'a': 1}", False),
        ("'a' in {'a': 1}.keys()", True),
        ("[1] in [[1]]", True),
        ("[1, 2] == [1, 2]", True),
        ("[1, 2] == [1]", False),
        ("[1] < [2]", True),
        ("[1] == 5", False),
        ("5 != [1]", True),
        ("{'a': 1} == {'a': 1}", True),
    ],
)
def test_comparisons_give_what_python_gives(expression: str, value: bool) -> None:
    assert render("{{ " + expression + " }}") == str(value)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("', '.join(['a', 'b'])", "a, b"),
        ("', '.join(['a', 'b'] | map('upper'))", "A, B"),
        ("'-'.join('abc')", "a-b-c"),
        ("''.join([])", ""),
        ("['a', 'b'] | join", "ab"),
        ("[{'n': 1}, {'n': 2}] | join('+', attribute='n')", "1+2"),
        ("'a' ~ 1 ~ none", "a1None"),
        ("'a b'.split() | length", "2"),
        ("'abc'[1:] ~ 'abc'[::-1] ~ [1, 2, 3][:2]", "bccba[1, 2]"),
        ("'x'.center(5) ~ 'x'.ljust(3) ~ 'x'.rjust(3) ~ 'x'.zfill(3)", "  x  x    x00x"),
        ("'12345' + 'x'", "12345x"),
        ("'%d' % 10 ** 9", "1000000000"),
        ("'aXbX'.replace('X', 'yy')", "ayybyy"),
        ("'aXbX'.replace('X', 'y', 1)", "aybX"),
        ("'aXbX' | replace('X', 'y', 1)", "aybX"),
        ("'%s and %03d' % ('a', 7)", "a and 007"),
        ("'{0} {n:>4}'.format('a', n=7)", "a    7"),
        ("'a\nb' | indent(2)", "a\n  b"),
        ("[1, 2, 2].count(2) ~ [1, 2].index(2)", "21"),
        ("(1, 2).index(2) ~ (1, 1).count(1)", "12"),
        ("{'a': 1}.get('a') ~ {'a': 1}.get('b', 2)", "12"),
        ("{'a': 1}.items() | list ~ {'a': 1}.keys() | list ~ {'a': 1}.values() | list", "[('a', 1)]['a'][1]"),
        ("dict(a=1).pop('a')", "1"),
        ("[1, 2, 3] | sum", "6"),
        ("[1.5, 2] | sum", "3.5"),
        ("[{'n': 1}, {'n': 2}] | sum(attribute='n')", "3"),
        ("2 ** 10 + 7 // 2 - 7 % 3 * 2", "1025"),
        ("'ab' * 2 ~ [1] * 2 ~ ([1] + [2])", "abab[1, 1][1, 2]"),
        ("[3, 1] | sort | first ~ ('b', 'a') | max", "1b"),
        ("'a' is string and 1 is ge 1 and [] is sequence and {} is mapping and x is undefined", "True"),
        ("'A' is upper and 'a' is lower and 'upper' is filter and 'upper' is test", "True"),
        ("1 is eq 1 and 1 is lt 2 and 2 is gt 1 and 1 is in [1] and 1 is ne 2 and 1 is le 1 and 2 is ge 2", "True"),
        ("[1, 2, 3] | select('>', 1) | list ~ [1, 2] | reject('in', [2]) | list", "[2, 3][1]"),
        ("cycler('a', 'b').next() ~ joiner(',')() ~ range(3) | list", "a[0, 1, 2]"),
        ("{1: 'a', (1, 2): 'b'}[(1, 2)]", "b"),
    ],
)  # fmt: skip
def test_what_templates_write(expression: str, text: str) -> None:
    assert render("{{ " + expression + " }}") == text


def test_lists_and_namespaces_can_be_changed() -> None:
    source = (
        "{% set l = [3] %}{% set _ = l.append(1) %}{% set _ = l.extend([2]) %}{% set _ = l.extend(range(1)) %}"
        "{% set _ = [].extend(l | map('string')) %}{% set _ = [].append('a' * 300000) %}"
        "{% set _ = l.insert(0, 9) %}{% set _ = l.sort() %}{% set _ = l.remove(9) %}{{ l }}{{ l.pop() }}"
        "{% set n = namespace(x=1) %}{% for i in l %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}"
        "{% for a, b in [(1, 2)] %}{{ a + b }}{% endfor %}{% set a, b = 1, 2 %}{{ a }}{{ b }}"
        "{% for i in [0, [1, [2]]] recursive %}{% if i is sequence %}({{ loop(i) }}){% else %}{{ i }}{% endif %}{% endfor %}"
        "{% for i in [1, 1, 2] if i %}{{ loop.changed(i) }}{{ loop.index }}/{{ loop.length }} {% endfor %}"
    )
    assert render(source) == "[0, 1, 2, 3]343120(1(2))True1/3 False2/3 True3/3 "


@pytest.mark.parametrize(
    "expression",
    [
        "'a'.encode()",
        "'a'.translate({})",
        "'a'.format_map({})",
        "'a'.expandtabs(9)",
        "[].__len__()",
        "{}.fromkeys([1])",
        "(1).bit_length()",
        "(1.5).hex()",
        "dict.items({})",
        "x.secret()",
        "x.__init__()",
    ],
)
def test_methods_that_templates_have_no_use_for(expression: str) -> None:
    class Thing(str):
        def secret(self) -> str:
            return "reached"

    assert "reached" not in refused("{{ " + expression + " }}", x=Thing("a"))


@pytest.mark.parametrize("name", environment._LEAVE_OUT)
def test_filters_that_are_left_out(name: str) -> None:
    assert f"No filter named {name!r}" in refused("{{ 'a' | " + name + " }}")


def test_templates_see_only_the_globals_meant_for_them() -> None:
    assert "'lipsum' is undefined" in refused("{{ lipsum() }}")
    assert render("{{ strftime_now('%Y') }}") in (time.strftime("%Y"), str(int(time.strftime("%Y")) - 1))
    assert refused("{{ raise_exception(7) }}").endswith(": 7")


# -- where the bounds are -----------------------------------------------------------------------------


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds without what the content adds to them."""
    monkeypatch.setattr(environment, "weigh", lambda *_: 0)


@pytest.mark.parametrize(
    ("fits", "too_much", "says"),
    [
        ("'a'.ljust(1000)", "'a'.ljust(1001)", "pads"),
        ("'a'.rjust(1000)", "'a'.rjust(1001)", "pads"),
        ("'a'.center(1000)", "'a'.center(1001)", "pads"),
        ("'1'.zfill(1000)", "'1'.zfill(1001)", "pads"),
        ("'a\na' | indent(1000)", "'a\na' | indent(1001)", "indents"),
        ("'a\na' | indent(width=1000)", "'a\na' | indent(width=1001)", "indents"),
        ("'a\na' | indent(1000 * 'x')", "'a\na' | indent(1001 * 'x')", "indents"),
        ("'a'.ljust(-1000)", "'a'.ljust(-1001)", "pads"),
        ("[1] | tojson(indent=1000)", "[1] | tojson(indent=1001)", "indents"),
        ("strftime_now('x' * 1000)", "strftime_now('x' * 1001)", "pads"),
        ("'%999d' % 1", "'%1000d' % 1", "width above 999"),
        ("'{:999}'.format(1)", "'{:1000}'.format(1)", "width above 999"),
        ("'%s' % 1", "'%*d' % (3, 1)", "computes"),
        ("'{:}{}'.format(1, 2)", "'{:{}}'.format(1, 2)", "computes"),
        ("'a' * 3", "'a' * 10 ** 15", "more than 1,000,000 characters"),  # said before it is built
        ("[1] * 3", "10 ** 15 * [1]", "more than 1,000,000 characters"),
        ("('{0}' * 100).format('a' * 8000)", "('{0}' * 100).format('a' * 9000)", "more than 1,000,000"),
        ("('%(a)s' * 100) % {'a': 'a' * 8000}", "('%(a)s' * 100) % {'a': 'a' * 9000}", "more than 1,000,000"),
        ("'a' * 1000000", "'a' * 1000001", "more than 1,000,000 characters"),
        ("1000000 * 'a'", "1000001 * 'a'", "more than 1,000,000 characters"),
        ("[1] * 250000", "[1] * 250001", "more than 1,000,000 characters"),
        ("(1,) * 250000", "(1,) * 250001", "more than 1,000,000 characters"),
        ("'a' * 999999 + 'b'", "'a' * 1000000 + 'b'", "more than 1,000,000 characters"),
        ("[1] * 249999 + [2]", "[1] * 250000 + [2]", "more than 1,000,000 characters"),
        ("('a' * 1000).replace('a', 'b' * 999)", "('a' * 1000).replace('a', 'b' * 1000)", "more than 1,000,000"),
        ("('a' * 1000) | replace('a', 'b' * 999)", "('a' * 1000) | replace('a', 'b' * 1000)", "more than 1,000,000"),
        ("2 ** 2048", "2 ** 2049", "a number that is too large"),
        ("2 ** 2040 * 2 ** 2040", "2 ** 2048 * 2 ** 2048", "a number that is too large"),
        ("[1] | sum(start=2.5)", "[[1]] | sum(start=[])", "sums"),
    ],
)  # fmt: skip
def test_each_bound_lets_pass_just_what_fits(bare: None, fits: str, too_much: str, says: str) -> None:
    render("{% set x = " + fits + " %}")
    assert says in refused("{% set x = " + too_much + " %}")


def test_a_list_may_grow_by_as_much_as_fits(bare: None) -> None:
    source = "{% set a = [1] * 125000 %}{% set b = [1] * SIZE %}{% set _ = a.extend(b) %}{{ a | length }}"
    assert render(source.replace("SIZE", "125000")) == "250000"
    assert "more than 1,000,000" in refused(source.replace("SIZE", "125001"))


def test_long_texts_are_indented_only_as_far_as_there_is_room() -> None:
    assert len(render("{{ x | indent(4) }}", x="a\n" * 500)) == 1000 + 499 * 4
    assert "more than" in refused("{{ x | indent(1000) }}", x="\n" * 2000)


def test_the_source_of_a_template_is_bounded() -> None:
    assert len(render_template(compile_template("x" * environment.MAX_SOURCE), {})) == environment.MAX_SOURCE
    with pytest.raises(TemplateFailed, match="longer than 1,000,000 characters"):
        compile_template("x" * (environment.MAX_SOURCE + 1))


def test_what_is_written_is_bounded_and_grows_with_the_content() -> None:
    source = "{% for i in range(11) %}{{ 'x' * 100000 }}{% endfor %}"
    assert "writes more than 1,000,064 characters" in refused(source)
    assert len(render(source, content="y" * 100_000)) == 1_100_000


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("\n\n{{ [1] | nothing }}", "cannot be compiled: No filter named 'nothing'. (line 3)"),
        ("{{ raise_exception('a\n\n b') }}", "refused the messages: a b"),
        ("{{ 1 / 0 }}", "refused the messages: ZeroDivisionError: division by zero"),
        ("{{ [].pop() }}", "refused the messages: IndexError: pop from empty list"),
        ("{{ raise_exception('x' * 1000) }}", "refused the messages: " + "x" * 300),
        ("{{ raise_exception('') }}", "refused the messages: TemplateError"),
    ],
)
def test_what_goes_wrong_is_one_line(source: str, says: str) -> None:
    assert refused(source) == f"the chat template {says}"


# -- what it costs ------------------------------------------------------------------------------------


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a rendering takes of its budget, in units of work."""
    made: list[Budget] = []

    def make(content: int = 0) -> Budget:
        made.append(Budget())  # whatever the content weighs
        return made[-1]

    monkeypatch.setattr(environment, "Budget", make)

    def find(source: str, **values: Any) -> int:
        template = compile_template(source)
        render_template(template, values)
        return MAX_WORK - made[-1]._left

    return find


SIZED: dict[str, Any] = {
    "text": "x" * 1000,
    "other": "x" * 999 + "y",
    "items": ["x"] * 1000,
    "more": ["x"] * 999 + ["y"],
}
DOUBLE: dict[str, Any] = {name: value * 2 for name, value in SIZED.items()}
SIZED["table"], DOUBLE["table"] = ({str(n): n for n in range(size)} for size in (1000, 2000))


@pytest.mark.parametrize(
    ("source", "more"),
    [
        # written, joined and copied
        ("{{ text }}", 1000),
        ("{{ items }}", 1000 * 17),
        ("{% set x = text ~ 'a' %}", 1000),
        ("{% set x = text[1:] %}", 1000),
        ("{% set x = items[1:] %}", 4000),
        ("{% set x = text + 'a' %}", 1000),
        ("{% set x = text | upper %}", 2000),
        ("{% set x = items | list %}", 16000),
        ("{% set x = items | join(',') %}", 18000),
        ("{% set x = ','.join(items) %}", 18000),
        ("{% set x = items | tojson %}", 17000),
        ("{% set x = items | tojson(separators=(', ', ': ')) %}", 17000),
        ("{% set x = text.upper() %}", 1000),
        ("{% set x = '%s' % text %}", 1000),
        ("{% set x = '{}'.format(text) %}", 1000),
        ("{% set x = text % () %}", 2000),
        ("{% set x = text.format(1) %}", 2000),
        ("{% set x = dict(a=1, b=text) %}", 0),
        ("{% set x = cycler(text) %}", 1000),
        # gone through
        ("{% for i in items %}{% endfor %}", 8000),
        ("{% set x = text.find('y') %}", 1000 // 16),
        ("{% set x = items.index('x') %}", 17000),
        ("{% set x = items.count('y') %}", 17000),
        ("{% set x = items | length %}", 0),
        ("{% set x = items | first %}", 0),
        ("{% set x = items | sort %}", 17000),
        ("{% set x = items | unique | list %}", 8000),
        ("{% set _ = [].extend(items) %}", 4000),
        ("{% set x = text is lower %}", 1000),
        ("{% set x = {text: 1} %}", 1000),
        ("{% set x = {}[(text,)] is defined %}", 1000),
        ("{% set x = {}.get(text) %}", 1000),
        ("{% for i in [1, 2] %}{% set x = loop.changed(text) %}{% endfor %}", 2000),
        # one in the other
        ("{% for i in [1] %}{% set x = text[1:] %}{% endfor %}", 1000),
        ("{% for i in items[1:] %}{% endfor %}", 12000),
        (
            "{% for i in [items] recursive %}{% if i is not string %}{{ loop(i) }}{% endif %}{% endfor %}",
            8000,
        ),
        ("{{ text[1:] }}", 2000),
        ("{% set x = text[1:] == 'a' %}", 1000),
        ("{% set x = text[1:] ~ 'a' %}", 2000),
        ("{% set x = text[1:][2:] %}", 2000),
        ("{% set x = [text[1:]] %}", 1000),
        ("{% set x = {text[1:]: 1} %}", 2000),
        # compared
        ("{% set x = 'y' in text %}", 1000 // 16),
        ("{% set x = 'y' in items %}", 1000),
        ("{% set x = 'y' not in items %}", 1000),
        ("{% set x = 1 in items %}", 1000),
        ("{% set x = [1] in items %}", 1000 * 17),
        ("{% set x = items in [1] %}", 17000),
        ("{% set x = items == more %}", 17000),
        ("{% set x = items != more %}", 17000),
        ("{% set x = items < more %}", 17000),
        ("{% set x = items is eq more %}", 17000),
        ("{% set x = 'y' is in items %}", 1000),
        ("{% set x = items is lt more %}", 17000),
        ("{% set x = 'y' in table %}", 0),
        ("{% set x = 'y' in table.values() %}", 17000),
        ("{% set x = items is eq ['a'] %}", 0),
        ("{% set x = items is lt ['a'] %}", 17000),
        ("{% set x = text == other %}", 0),
    ],
)
def test_whatever_grows_is_paid_for(spent: Any, source: str, more: int) -> None:
    """Twice as much of it costs at least so much more."""
    found = spent(source, **DOUBLE) - spent(source, **SIZED)
    assert more <= found <= 4 * more + 100


def test_comparing_with_a_list_of_other_length_costs_nothing_more(spent: Any) -> None:
    assert spent("{% set x = items == [1] %}", **DOUBLE) == spent("{% set x = items == [1] %}", **SIZED)
    less = "{% set x = items < ['a'] %}"
    assert spent(less, **DOUBLE) > spent(less, **SIZED) + 16_000, (
        "how they are ordered, only going through tells"
    )


def test_a_long_text_among_long_texts_costs_what_comparing_them_does(spent: Any) -> None:
    long, short = {"x": "a" * 16_000, "l": ["b"] * 100}, {"x": "a", "l": ["b"] * 100}
    assert spent("{% set y = x in l %}", **long) - spent("{% set y = x in l %}", **short) == 100 * 1000


@pytest.mark.parametrize(
    "step",
    [
        "{% set x = range(1) %}",
        "{% set x = 1 == 1 %}",
        "{% set x = 1 is ge 1 %}",
        "{% set x = 'a' | upper %}",
        "{% set x = '' | length %}",
        "{{ 1 }}",
    ],
)
def test_every_step_costs_something(spent: Any, step: str) -> None:
    assert spent(step * 2) > spent(step) > 0


def test_making_an_object_costs_more_than_a_call(spent: Any) -> None:
    assert spent("{% set x = namespace() %}") - spent("{% set x = range(1) %}") >= 400


# -- the budget itself --------------------------------------------------------------------------------


def test_all_work_there_is_can_be_spent_and_no_more() -> None:
    for content in (0, 1000):
        budget = Budget(content)
        budget.spend(MAX_WORK + 64 * content)
        with pytest.raises(SecurityError, match="too many steps"):
            budget.spend(1)


def test_the_time_there_is_grows_with_the_content(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(budgets.time, "monotonic", lambda: now)
    for content, seconds in ((0, MAX_SECONDS), (2_000_000, MAX_SECONDS + 2)):
        now = 100.0
        budget = Budget(content)
        now += seconds
        budget.spend(0)
        now += 0.001
        with pytest.raises(SecurityError, match="takes too long"):
            budget.spend(0)


def test_values_as_large_as_the_content_allows() -> None:
    for content in (0, 1000):
        budget = Budget(content)
        assert budget.size == MAX_VALUE + 4 * content
        budget.check(budget.size)
        with pytest.raises(SecurityError, match=f"more than {budget.size:,}"):
            budget.check(budget.size + 1)


@pytest.mark.parametrize(
    ("value", "item", "cost"),
    [
        ("abc", 16, 3),
        (b"abc", 16, 3),
        ([1, 2], 16, 32),
        ([1, 2], 4, 8),
        ((1,), 16, 16),
        ({1: 2}, 16, 16),
        ({1: 2}.keys(), 16, 16),
        ({1: 2}.values(), 16, 16),
        ({1: 2}.items(), 16, 16),
        (7, 16, 0),
        (None, 16, 0),
        (1.5, 16, 0),
    ],
)
def test_what_is_made_is_paid_for(value: Any, item: int, cost: int) -> None:
    budget = Budget()
    assert budget.made(value, item) is value
    assert MAX_WORK - budget._left == cost


def test_what_is_made_may_not_be_too_large() -> None:
    for value in ("x" * (MAX_VALUE + 1), [1] * (MAX_VALUE // 16 + 1), 1 << 4097):
        with pytest.raises(SecurityError):
            Budget().made(value)
    Budget().made(1 << 4095)
    check_bits(4096)
    with pytest.raises(SecurityError, match="a number that is too large"):
        check_bits(4097)


@pytest.mark.parametrize(
    ("value", "weight"),
    [
        ("abc", 3),
        ("", 0),
        (1, 16),
        ([], 16),
        (["abc"], 16 + 19),
        (("a", "b"), 16 + 17 * 2),
        ({"key": "value"}, 16 + 19 + 21),
        ({"key": "value"}.keys(), 16 + 19),
        ({"key": "value"}.values(), 16 + 21),
        ([["a"], ["a"]], 16 + (16 + 17) * 2),
        (Namespace(a="abc"), 16 + 19),
        ([None, 1.5, True], 16 * 4),
    ],
)
def test_a_value_weighs_what_it_holds(value: Any, weight: int) -> None:
    assert weigh(value, math.inf) == weight
    assert Budget().weigh(value) == weight


def test_separators_and_indentation_weigh() -> None:
    assert weigh(["a", "b"], math.inf, per_item=10) == 16 + 34 + 3 * 10
    assert weigh([["a"]], math.inf, per_level=100) == 16 + 16 + 17 + 100 * (1 + 2 + 3)


def test_what_is_in_a_value_twice_counts_twice() -> None:
    value: list[Any] = ["x" * 1000]
    for _ in range(10):
        value = [value, value]
    assert weigh(value, math.inf) > 1024 * 1000
    with pytest.raises(SecurityError, match="too large or too deep"):
        weigh(value, 1_000_000)


def test_weighing_ends_at_the_limit_and_at_the_depth() -> None:
    assert weigh(["abc"], 35) == 35
    with pytest.raises(SecurityError, match="too large or too deep"):
        weigh(["abc"], 34)
    deep: Any = 1
    for _ in range(299):
        deep = [deep]
    assert weigh(deep, math.inf) == 300 * 16
    with pytest.raises(SecurityError, match="too large or too deep"):
        weigh([deep], math.inf)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(SecurityError, match="too large or too deep"):
        weigh(endless, math.inf)


def test_the_budget_of_one_rendering_is_not_that_of_another() -> None:
    inner = compile_template("{{ 'x' * 900 }}")
    outer = compile_template("{{ f() | length }}{{ f() | length }}")
    assert render_template(outer, {"f": lambda: render_template(inner, {})}) == "900900"
