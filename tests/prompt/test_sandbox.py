"""The sandbox of chat templates: what operators and methods give, what they cost, and where the bounds are."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest

from localagent.errors import TemplateFailed
from localagent.prompt import metering, sandbox
from localagent.prompt.metering import MAX_SECONDS
from localagent.prompt.sandbox import MAX_SOURCE, compile_template, render_template


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
        ("'a\nb' | indent ~ 'a\nb' | indent(first=true)", "a\n    b    a\n    b"),
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
        ("cycler('a', 'b') == none", "False"),
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


@pytest.mark.parametrize("name", sorted(sandbox._LEFT_OUT))
def test_filters_that_are_left_out(name: str) -> None:
    assert f"No filter named {name!r}" in refused("{{ 'a' | " + name + " }}")


def test_templates_see_only_the_globals_meant_for_them() -> None:
    assert "'lipsum' is undefined" in refused("{{ lipsum() }}")
    assert render("{{ strftime_now('%Y') }}") in (time.strftime("%Y"), str(int(time.strftime("%Y")) - 1))
    assert refused("{{ raise_exception(7) }}").endswith(": 7")


# -- where the bounds are -----------------------------------------------------------------------------


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
        ("([1] * 62499) | tojson", "([1] * 62500) | tojson", "too large or too deep"),
        ("(['a'] * 1000) | join('b' * 982)", "(['a'] * 1000) | join('b' * 983)", "too large or too deep"),
        ("('b' * 982).join(['a'] * 1000)", "('b' * 983).join(['a'] * 1000)", "too large or too deep"),
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
def test_each_bound_lets_pass_just_what_fits(fits: str, too_much: str, says: str) -> None:
    render("{% set x = " + fits + " %}")
    assert says in refused("{% set x = " + too_much + " %}")


def test_a_list_may_grow_by_as_much_as_fits() -> None:
    source = "{% set a = [1] * 125000 %}{% set b = [1] * SIZE %}{% set _ = a.extend(b) %}{{ a | length }}"
    assert render(source.replace("SIZE", "125000")) == "250000"
    assert "more than 1,000,000" in refused(source.replace("SIZE", "125001"))


def test_a_long_list_grows_step_by_step_at_the_cost_of_the_steps() -> None:
    source = (
        "{% set a = [1] * 200000 %}{% for i in range(1000) %}{% set _ = a.STEP %}{% endfor %}{{ a | length }}"
    )
    for step in ("extend([1])", "append(1)", "insert(0, 1)"):
        assert render(source.replace("STEP", step)) == "201000"


def test_long_texts_are_indented_only_as_far_as_there_is_room() -> None:
    assert len(render("{{ x | indent(4) }}", x="a\n" * 500)) == 1000 + 499 * 4
    assert "more than" in refused("{{ x | indent(1000) }}", x="\n" * 2000)


def test_the_source_of_a_template_is_bounded() -> None:
    assert len(render_template(compile_template("x" * MAX_SOURCE), {})) == MAX_SOURCE
    with pytest.raises(TemplateFailed, match="longer than 100,000 characters"):
        compile_template("x" * (MAX_SOURCE + 1))


def test_what_is_written_is_bounded_and_grows_with_the_content() -> None:
    source = "{% for i in range(11) %}{{ 'x' * 100000 }}{% endfor %}"
    assert "writes more than 1,000,000 characters" in refused(source)
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

SIZED: dict[str, Any] = {
    "text": "x" * 20_000,
    "other": "x" * 19_999 + "y",
    "items": ["x"] * 1_000,
    "more": ["x"] * 999 + ["y"],
    "table": {str(n): n for n in range(1_000)},
    "long": ["y" * 20_000] * 2,
}


@pytest.mark.parametrize(
    "step",
    [
        # written, joined and copied
        "{{ text }}",
        "{{ items }}",
        "{% set x = text ~ 'a' %}",
        "{% set x = text[1:] %}",
        "{% set x = items[1:] %}",
        "{% set x = text + 'a' %}",
        "{% set x = text | upper %}",
        "{% set x = items | list %}",
        "{% set x = items | join(',') %}",
        "{% set x = ','.join(items) %}",
        "{% set x = items | tojson %}",
        "{% set x = items | tojson(separators=(', ', ': ')) %}",
        "{% set x = text.upper() %}",
        "{% set x = '%s' % text %}",
        "{% set x = '{}'.format(text) %}",
        "{% set x = text % () %}",
        "{% set x = text.format(1) %}",
        "{% set x = cycler(text) %}",
        # gone through
        "{% for i in items %}{% endfor %}",
        "{% set x = more.index('y') %}",
        "{% set x = items.count('y') %}",
        "{% set x = items | sort %}",
        "{% set x = items | unique | list %}",
        "{% set _ = [].extend(items) %}",
        "{% set x = {text: 1} %}",
        "{% set x = {}[(text,)] is defined %}",
        "{% set x = {}.get((text,)) %}",
        "{% for i in [1, 2] %}{% set x = loop.changed(text) %}{% endfor %}",
        "{% for i in [items] recursive %}{% if i is not string %}{{ loop(i) }}{% endif %}{% endfor %}",
        # one in the other
        "{% for i in [1] %}{% set x = text[1:] %}{% endfor %}",
        "{% for i in items[1:] %}{% endfor %}",
        "{{ text[1:] }}",
        "{% set x = text[1:] == 'a' %}",
        "{% set x = text[1:][2:] %}",
        "{% set x = [text[1:]] %}",
        "{% set x = {text[1:]: 1} %}",
        # compared
        "{% set x = 'y' in items %}",
        "{% set x = 'y' not in items %}",
        "{% set x = 1 in items %}",
        "{% set x = [1] in items %}",
        "{% set x = items in [1] %}",
        "{% set x = items == more %}",
        "{% set x = items != more %}",
        "{% set x = items < more %}",
        "{% set x = items is eq more %}",
        "{% set x = 'y' is in items %}",
        "{% set x = items is lt more %}",
        "{% set x = 'y' in table.values() %}",
        "{% set x = other in long %}",
    ],
)
def test_whatever_grows_is_paid_for(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be done a few times, and not thousands of times."""
    monkeypatch.setattr(metering, "MAX_WORK", 0)
    render("{% for i in range(10) %}" + step + "{% endfor %}", **SIZED)
    message = refused("{% for i in range(60000) %}" + step + "{% endfor %}", **SIZED)
    assert "too many steps" in message or "writes more than" in message


@pytest.mark.parametrize(
    "step",
    [
        "{% set x = items | length %}",
        "{% set x = items | first %}",
        "{% set x = range(9000) | select | first %}",
        "{% set x = items == [1] %}",
        "{% set x = items is eq ['a'] %}",
        "{% set x = items < ['a'] %}",
        "{% set x = 'y' in table %}",
        "{% set x = text == other %}",
        "{% set x = dict(a=1, b=text) %}",
        "{% set _ = [].append(items) %}",
    ],
)
def test_what_looks_at_no_more_than_the_outside_costs_next_to_nothing(step: str) -> None:
    render("{% for i in range(20000) %}" + step + "{% endfor %}", **SIZED)


@pytest.mark.parametrize(
    "step",
    [
        "{% set x = range(1) %}",
        "{% set x = 1 == 1 %}",
        "{% set x = 1 + 1 %}",
        "{% set x = 1 is ge 1 %}",
        "{% set x = 'a' | upper %}",
        "{% set x = '' | length %}",
        "{% set x = {}[1] is defined %}",
        "{{ 1 }}",
    ],
)
def test_every_step_looks_at_the_clock(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template = compile_template(step * 10)
    now = 0.0

    def later() -> float:
        nonlocal now
        now += MAX_SECONDS / 9
        return now

    monkeypatch.setattr(metering.time, "monotonic", later)
    with pytest.raises(TemplateFailed, match="takes too long"):
        render_template(template, {})


@pytest.mark.parametrize(
    "step",
    [
        "{% set x = items | unique | list %}",
        "{% set x = dict(pairs) %}",
        "{% set x = namespace(pairs) %}",
        "{% set _ = {}.update(pairs) %}",
    ],
)
def test_every_item_that_is_hashed_looks_at_the_clock(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All multiples of 2**61 - 1 have one hash: 26,000 of them took ten seconds in one step."""
    template = compile_template(step)
    now = 0.0

    def later() -> float:
        nonlocal now
        now += MAX_SECONDS / 30
        return now

    monkeypatch.setattr(metering.time, "monotonic", later)
    values = {"items": [*range(30)], "pairs": [[str(key), 1] for key in range(30)]}
    with pytest.raises(TemplateFailed, match="takes too long"):
        render_template(template, values)


def test_all_limits_grow_with_the_content(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]  # a clock that stands: what is allowed takes long on a busy machine
    monkeypatch.setattr(metering.time, "monotonic", lambda: now[0])
    passes = "{% for i in range(60000) %}{% for i in range(100) %}{% endfor %}{% endfor %}"
    assert "too many steps" in refused(passes)
    render(passes, content="x" * 1_000_000)
    large = "{% set x = 'a' * 2000000 %}"
    assert "more than 1,000,000 characters" in refused(large)
    render(large, content="x" * 1_000_000)
    slow = {"wait": lambda: now.__setitem__(0, MAX_SECONDS + 1.5)}
    assert "takes too long" in refused("{{ wait() }}", **slow, content="x" * 1_000_000)
    now[0] = 0.0
    render("{{ wait() }}", **slow, content="x" * 2_000_000)


# -- what hostile templates try -----------------------------------------------------------------------

# Values of depth 200 that share their halves: small to hold, endless to write, compare or hash.
SHARED = (
    "{% set n = namespace(x=[1], y=[1], t=(1,)) %}{% for i in range(200) %}"
    "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% set n.t = (n.t, n.t) %}{% endfor %}"
)


@pytest.mark.parametrize(
    "source",
    [
        # what an iterator yields
        SHARED + "{{ [[n.x], [n.y]] | map('first') | sort }}",
        SHARED + "{{ n.x in ([[n.y]] | map('first')) }}",
        SHARED + "{{ [[n.t]] | map('first') | unique | list }}",
        SHARED + "{{ dict([[[n.t, 1]]] | map('first')) }}",
        SHARED + "{{ namespace(n.x) }}",
        # an argument that is written or hashed
        SHARED + "{{ 'a' | attr(n.x) }}",
        SHARED + "{{ ['a'] | join(n.x) }}",
        SHARED + "{{ [1] | tojson(separators=(n.x, n.x)) }}",
        SHARED + "{{ [1] | tojson(indent=n.x) }}",
        SHARED + "{{ 'a' | default(n.x, n.y) | replace(n.x, n.y) }}",
        SHARED + "{{ 'a' | replace('a', n.x) }}",
        SHARED + "{{ 'a' | indent(1, n.x) }}",
        SHARED + "{{ ['a'] | join('', n.x) }}",
        SHARED + "{{ {'a': 1}.get('b', n.x) }}",
        SHARED + "{{ 'a' | truncate(1, true, n.x) }}",
        SHARED + "{{ 'a' | indent(n.x) }}",
        SHARED + "{{ {'a': 1} | dictsort(by=n.x) }}",
        SHARED + "{{ [n.x, n.y] | max }}",
        SHARED + "{{ [n.t] | groupby(0) }}",
        SHARED + "{{ strftime_now(n.x) }}",
        SHARED + "{{ 'a' | urlencode ~ (n.x | urlencode) }}",
        SHARED + "{% for k, v in {1: n.x}.items() %}{{ 'a' in v }}{{ v }}{% endfor %}",
        SHARED + "{{ (n.x, 1) in {1: n.y}.items() }}",
        SHARED + "{{ n.x in {1: n.y}.values() }}",
        SHARED + "{{ {1: n.x} == {1: n.y} }}",
        SHARED + "{{ {1: n.x}.items() == {1: n.y}.items() }}",
        SHARED + "{{ [1] | select(n.t) | list }}",
        SHARED + "{{ [1] | map(n.t) | list }}",
        SHARED + "{{ [{}] | map(attribute=n.t) | list }}",
        SHARED + "{{ [{}] | selectattr(n.t) | list }}",
        SHARED + "{{ [{}, {}] | sort(attribute=n.t) }}",
        SHARED + "{{ {}.setdefault(n.t, 1) }}",
        SHARED + "{{ {}.update({'a': n.t}) }}",
        SHARED + "{{ [1].index(n.x) }}",
        SHARED + "{{ n.t is filter }}",
        SHARED + "{{ '{}'.format(n) }}",
        "{% set l = [] %}{% for i in range(99999) %}{% set _ = l.extend(range(99999) | select) %}{% endfor %}",
        # a format where no operator formats
        "{{ '%999999999d' is odd }}",
        "{{ '%999999999d' is divisibleby 7 }}",
        "{{ ['%999999999d'] | format(1) }}",
        "{{ '%(a(b)c)999999999d' % {'a(b)c': 1} }}",
        "{{ '%%%999999999d' % 1 }}",
        "{{ '%-0999999999d' % 1 }}",
        "{{ '%.999999999f' % 1.5 }}",
        "{{ '{:\uff19\uff19\uff19\uff19\uff19\uff19\uff19\uff19\uff19}'.format(1) }}",
        "{{ '{0!r:>999999999}'.format(1) }}",
        # one operation that takes long
        "{{ 1.5 | round(1000000000, 'ceil') }}",
        "{{ ('a' * 900000).strip('b' * 900000 ~ 'a') }}",
        "{{ ('a' * 900000) | trim('b' * 900000 ~ 'a') }}",
        "{{ ('a' * 900000).startswith(('a' * 450000 ~ 'b' ~ 'a' * 449999,) * 250000) }}",
        "{{ ('a' * 900000).rfind('b' ~ 'a' * 450000) }}",
        "{{ range(60000) | map(attribute='a.' * 450000, default=1) | list }}",
        # a function that is called without a check
        "{% set _ = [999999999].sort(key='a'.center) %}",
        "{{ ('\n' * 900000) | indent(1000) }}",
        "{{ ('a\n' * 400000) | indent }}",
        "{{ ([2 ** 4000] * 60000) | string }}",
    ],
)  # fmt: skip
def test_a_hostile_template_is_refused_soon_and_in_little_memory(source: str) -> None:
    started = time.process_time()
    tracemalloc.start()
    try:
        message = refused(source)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "\n" not in message
    assert peak < 100_000_000
    assert time.process_time() - started < 8, "it is slow while memory is traced"


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("'since 2024: %s' % 'x'", "since 2024: x"),
        ("'(in) 2024 or 12345: {}'.format('x')", "(in) 2024 or 12345: x"),
        ("'100%% of 2024* %s' % 'x'", "100% of 2024* x"),
        ("'%(year2024)s' % {'year2024': 'x'}", "x"),
        ("'{0} {1:>4}{{2024}}'.format('a', 'b')", "a    b{2024}"),
        ("'20241231 %s' | format('x')", "20241231 x"),
        ("'*%s*' | format('x')", "*x*"),
    ],
)
def test_only_digits_in_a_field_are_a_width(expression: str, text: str) -> None:
    assert render("{{ " + expression + " }}") == text


def test_values_that_are_too_deep_are_refused_before_they_are_rendered() -> None:
    deep: Any = 1
    for _ in range(297):
        deep = [deep]
    assert render("{{ x | length }}", x=deep) == "1"
    assert "too deep" in refused("", x=[[[deep]]])
    endless: list[Any] = []
    endless.append(endless)
    assert "too deep" in refused("", x=endless)


def test_what_is_in_a_value_twice_counts_twice() -> None:
    source = (
        "{% set n = namespace(x=['x' * 1000]) %}{% for i in range(N) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
    )
    assert render(source.replace("N", "9") + "{{ n.x | string | length }}") > "500000"
    assert "too large or too deep" in refused(source.replace("N", "10") + "{{ n.x | string | length }}")


def test_the_budget_of_one_rendering_is_not_that_of_another() -> None:
    inner = compile_template("{{ 'x' * 900 }}")
    outer = compile_template("{{ f() | length }}{{ f() | length }}")
    assert render_template(outer, {"f": lambda: render_template(inner, {})}) == "900900"
