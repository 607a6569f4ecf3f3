"""A value set in a text and taken out again, in each format: every other byte stays."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.connect.document import CannotEdit
from localagent.connect.jsonc import Jsonc
from localagent.connect.toml import Toml
from localagent.connect.yaml import Yaml
from localagent.errors import ServerMissing

ROWS = [
    # Names at the root of a TOML file come after the others there, and before the first table.
    (Toml, "", "a", 1, "a = 1\n"),
    (Toml, "b = 2\n", "a", "x", 'b = 2\na = "x"\n'),
    (Toml, "b = 2", "a", 1, "b = 2\na = 1"),
    (Toml, "b = 2\n\n[t]\nc = 3\n", "a", 1, "b = 2\na = 1\n\n[t]\nc = 3\n"),
    (Toml, "b = 2\r\n[t]\r\nc = 3\r\n", "a", 1, "b = 2\r\na = 1\r\n[t]\r\nc = 3\r\n"),
    (Toml, "[t]\nc = 3\n", "a", 1, "a = 1\n\n[t]\nc = 3\n"),
    (Toml, "# about t\n[t]\n", "a", 1, "a = 1\n\n# about t\n[t]\n"),
    (Toml, "a = 2 # mine\nb = 3\n", "a", 1, "a = 1 # mine\nb = 3\n"),
    (Toml, "a = [ # [\n 2,\n] # ]\n", "a", 1, "a = 1 # ]\n"),
    (Toml, "'a' = {b = 2}   \n", "a", 1, "'a' = 1   \n"),
    (Toml, 'b = """\na = 2\n[t]\n"""\n', "a", 1, 'b = """\na = 2\n[t]\n"""\na = 1\n'),
    (Toml, "b = 'a = 2 # no'\n", "a", 1, "b = 'a = 2 # no'\na = 1\n"),
    (Toml, "b.a = 2\n", "a", 1, "b.a = 2\na = 1\n"),
    (Toml, "[t]\na = 2\n", "a", 1, "a = 1\n\n[t]\na = 2\n"),
    (Toml, "b = [ # two\n] # ends", "a", 1, "b = [ # two\n] # ends\na = 1"),
    (Toml, "", "a", "\x7f\u00fc", 'a = "\\u007f\u00fc"\n'),
    # A table comes last, set off by an empty line.
    (Toml, "", "t.u", {"x": 1, "y": "z"}, '[t.u]\nx = 1\ny = "z"\n'),
    (Toml, "b = 2\n", "t.u", {"x": 1}, "b = 2\n\n[t.u]\nx = 1\n"),
    (Toml, "b = 2", "t.u", {"x": 1}, "b = 2\n\n[t.u]\nx = 1"),
    (Toml, "b = 2\r\n", "t.u", {"x": 1}, "b = 2\r\n\r\n[t.u]\r\nx = 1\r\n"),
    (Toml, "[t.u]\nq = 2\n\n[v]\n", "t.u", {"x": 1}, "[t.u]\nx = 1\n\n[v]\n"),
    (Toml, "[t.u]\nq = 2\n[t.u.w]\nq = 3\n[v]\n", "t.u", {"x": 1}, "[t.u]\nx = 1\n[v]\n"),
    (Toml, "[ t . 'u' ] # mine\nq = 2\n", "t.u", {"x": 1}, "[t.u]\nx = 1\n"),
    (Toml, "[[v]]\nq = 2\n[[v]]\nq = 3\n", "t", {"x": 1}, "[[v]]\nq = 2\n[[v]]\nq = 3\n\n[t]\nx = 1\n"),
    # JSON keeps what it is indented by, and the comma after the last.
    (Jsonc, "", "a", 1, '{\n  "a": 1\n}\n', '{}\n'),
    (Jsonc, "", "a.b", 1, '{\n  "a": {\n    "b": 1\n  }\n}\n', '{}\n'),
    (Jsonc, "// mine\n", "a", 1, '// mine\n{\n  "a": 1\n}\n', '// mine\n{}\n'),
    (Jsonc, "// mine\r\n", "a", 1, '// mine\r\n{\r\n  "a": 1\r\n}\r\n', '// mine\r\n{}\r\n'),
    (Jsonc, "{}", "a", 1, '{\n  "a": 1\n}'),
    (Jsonc, "{ }", "a", 1, '{\n  "a": 1\n}', '{}'),
    (Jsonc, "{ /* mine */ }", "a", 1, '{ /* mine */\n  "a": 1\n}', '{ /* mine */\n}'),
    (Jsonc, "{\n  // mine\n}", "a", 1, '{\n  // mine\n  "a": 1\n}'),
    (Jsonc, '{"b": 2}', "a", {"x": "\u00fc"}, '{"b": 2, "a": {"x": "\u00fc"}}'),
    (Jsonc, '{"b": 2,}', "a", 1, '{"b": 2, "a": 1,}'),
    (Jsonc, '{"b": 2 /* two */}', "a", 1, '{"b": 2, /* two */ "a": 1}'),
    (Jsonc, '{\n\t"b": 2\n}', "a", {"x": 1}, '{\n\t"b": 2,\n\t"a": {\n\t\t"x": 1\n\t}\n}'),
    (Jsonc, '{\r\n "b": 2\r\n}', "a", {"x": 1}, '{\r\n "b": 2,\r\n "a": {\r\n  "x": 1\r\n }\r\n}'),
    (Jsonc, '{\n "b": 2, // two\n}', "a", 1, '{\n "b": 2, // two\n "a": 1,\n}'),
    (Jsonc, '{\n "b": {\n  "c": 3\n }\n}', "b.a", 1, '{\n "b": {\n  "c": 3,\n  "a": 1\n }\n}'),
    (Jsonc, '{\n "b": {}\n}', "b.a", 1, '{\n "b": {\n  "a": 1\n }\n}'),
    (Jsonc, '{\n "b": {}\n}', "b.c.a", 1, '{\n "b": {\n  "c": {\n   "a": 1\n  }\n }\n}'),
    (Jsonc, '{"b": null, "a": 2}', "a", 1, '{"b": null, "a": 1}'),
    (Jsonc, '{"a": 2, "a": 3}', "a", 1, '{"a": 2, "a": 1}'),
    (Jsonc, '{\n "a": [1, [2], {"b": "]}"}], // mine\n}', "a", {"x": 1},
     '{\n "a": {\n  "x": 1\n }, // mine\n}'),
    # YAML: an entry after the last one of its list, and a name at the end.
    (Yaml, "", "a", "x", "a: x\n"),
    (Yaml, "", "l.x", {"name": "x", "k": 1}, "l:\n  - name: x\n    k: 1\n"),
    (Yaml, "b: 2\n", "a", 1, "b: 2\na: 1\n"),
    (Yaml, "b: 2", "a", 1, "b: 2\na: 1"),
    (Yaml, "b: 2\r\n", "l.x", {"name": "x", "k": 1}, "b: 2\r\nl:\r\n  - name: x\r\n    k: 1\r\n"),
    (Yaml, "a: 2\nb: 3\n", "a", 1, "a: 1\nb: 3\n"),
    (Yaml, "a: |\n  x\n\n  y\n\nb: 3\n", "a", 1, "a: 1\n\nb: 3\n"),
    (Yaml, "l: []\n", "l.x", {"name": "x"}, "l:\n  - name: x\n"),
    (Yaml, "l:\n", "l.x", {"name": "x"}, "l:\n  - name: x\n", ""),
    (Yaml, "l: [] # mine\nb: 2\n", "l.x", {"name": "x"}, "l: # mine\n  - name: x\nb: 2\n"),
    (Yaml, "b: 2\nl: []", "l.x", {"name": "x"}, "b: 2\nl:\n  - name: x"),
    (Yaml, "l:\n- name: m\n", "l.x", {"name": "x", "k": 1}, "l:\n- name: m\n- name: x\n  k: 1\n"),
    (Yaml, "l:\n    - name: m\n", "l.x", {"name": "x"}, "l:\n    - name: m\n    - name: x\n"),
    (Yaml, "l:\n  - name: m\n\n# b\nb: 2\n", "l.x", {"name": "x"},
     "l:\n  - name: m\n  - name: x\n\n# b\nb: 2\n"),
    (Yaml, "l:\n  - name: x # old\n    k: [1]\n  - name: m\n", "l.x", {"name": "x", "k": 2},
     "l:\n  - name: x\n    k: 2\n  - name: m\n"),
    (Yaml, "l:\n  - {name: m}\n", "l.x", {"name": "x"}, "l:\n  - {name: m}\n  - name: x\n"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0].kind}-{row[1]!r}-{row[2]}")
def test_a_value_is_set_and_taken_out_again(row):
    """`back`: what is left afterwards, if it is not the same."""
    format, text, names, value, expected, *back = row
    document, keys = format(text), tuple(names.split("."))
    before, depth = document.raw(keys), document.depth(keys)
    document.set(keys, value)
    assert document.text == expected
    assert document.get(keys) == value
    if before is not None:
        document.restore(keys, before)
    else:
        document.remove(keys)
        for length in range(len(keys) - 1, depth, -1):
            if document.get(keys[:length]) == {}:
                document.remove(keys[:length])
    assert document.text == (back[0] if back else text)


TAKEN_OUT = [
    (Toml, "[t.u]\nx = 1\n", "t.u", ""),
    (Toml, "b = 2\n[t.u]\nx = 1\n", "t.u", "b = 2\n"),
    (Toml, "b = 2\n\n\n[t.u]\nx = 1\n\n[v]\n", "t.u", "b = 2\n\n\n[v]\n"),
    (Toml, "b = 2\r\n[t.u]\r\nx = 1", "t.u", "b = 2"),
    (Toml, "\n[t.u]\nx = 1\n", "t.u", ""),
    (Toml, "[t.u]\nx = 1\n[t.u.w]\n[[t.u.z]]\n[t.v]\n", "t.u", "[t.v]\n"),
    (Toml, "a = 1\n\nb = 2\n", "a", "\nb = 2\n"),
    (Toml, "a = 1\n\n[t]\n", "a", "[t]\n"),
    (Toml, "a = 1\n# b\n[t]\n", "a", "# b\n[t]\n"),
    (Toml, "b = 2\na = 1", "a", "b = 2"),
    (Jsonc, '{"a": 1}', "a", "{}"),
    (Jsonc, '{\n  "a": 1 // one\n}', "a", '{ // one\n}'),
    (Jsonc, '{ /* one */ "a": 1 }', "a", "{ /* one */ }"),
    (Jsonc, '{"a": 1, "b": 2}', "a", '{ "b": 2}'),
    (Jsonc, '{"b": 2, "a": 1}', "a", '{"b": 2}'),
    (Jsonc, '{"b": 2, /* a */ "a": 1 /* one */ }', "a", '{"b": 2 /* a */ /* one */ }'),
    (Jsonc, '{"b": 2, "a": 1,}', "a", '{"b": 2,}'),
    (Jsonc, '{"b": {"c": 3, "a": 1}}', "b.a", '{"b": {"c": 3}}'),
    (Yaml, "a: 1\nb: 2\n", "a", "b: 2\n"),
    (Yaml, "b: 2\r\na: 1", "a", "b: 2"),
    (Yaml, "l:\n- name: x\n", "l.x", "l: []\n"),
    (Yaml, "l: # mine\n  - name: x\n    k: 1\nb: 2\n", "l.x", "l: [] # mine\nb: 2\n"),
    (Yaml, "l:\n  - name: m\n  - name: x\n    k: |\n      y\n\n\nb: 2\n", "l.x",
     "l:\n  - name: m\n\n\nb: 2\n"),
]  # fmt: skip


@pytest.mark.parametrize(("format", "text", "keys", "after"), TAKEN_OUT)
def test_a_value_is_taken_out_of_what_others_wrote(format, text, keys, after):
    document = format(text)
    document.remove(tuple(keys.split(".")))
    assert document.text == after


PIECES = {
    Toml: [
        "# [c]\n", "\n", "b = 2 # a = 1\n", "s = \"\"\"\n[t]\n# a = 1\n\"\"\"\n", "'q = 1' = '''\na = 1''' # '\n",
        "l = [ # ]\n  [1], # \"\n  '#]',\n]\n", "  d.e = {x = 1}\n", "a = '#' # one\n", "[t.v]\n", "[ t . 'u' ] # mine\n",
        "[[z]]\n", "[t.u.w]\n", "[t]\n", "  [x.y]\n", "k = 1\n",
    ],
    Jsonc: [
        '"b": [{"a": 2}, "]}", ],', "// a\n", "\n  ", '"t": {"v": 1, // v\n},', "/* } */", '"a": "// \\"",', '"c": "\u00fc,}" ,',
        '"t": { /* none */ },', '"u": null ,\n',
    ],
    Yaml: [
        "# c\n", "\n", "b: |\n  a: 1\n\n  c\n", "a: 'x' # one\n", 'd: "x\n  y"\n', "e: [ f,g ]   # g\n", "h: &h i\nj: *h\n",
        "t:\n- name: v\n  w:   1\n", "t: # mine\n    - name: u\n      x: [1]\n\n    # v\n    - name: v\n", "t: []\n", "k: l\n  m\n",
    ],
}  # fmt: skip


@pytest.mark.parametrize("format", PIECES)
@given(st.data(), st.sampled_from(["a", "t.u"]), st.booleans(), st.booleans())
def test_whatever_a_file_holds_it_comes_back(format, data, names, dos, ended):
    text = "".join(data.draw(st.lists(st.sampled_from(PIECES[format]), unique=True, max_size=8)))
    text = "{" + text + "}\n" if format is Jsonc else text
    text = text if ended else text.rstrip("\n")
    text, keys = text.replace("\n", "\r\n" if dos else "\n"), tuple(names.split("."))
    try:
        document = format(text)
        before, depth, others = document.raw(keys), document.depth(keys), {**document.value}
        document.set(keys, 1 if names == "a" else {"name": "u"})
    except CannotEdit:
        return
    assert {key: document.value[key] for key in others if key not in ("a", "t")} == {
        key: value for key, value in others.items() if key not in ("a", "t")
    }
    if before is not None:
        document.restore(keys, before)
    else:
        document.remove(keys)
        if depth == 0 and len(keys) == 2 and document.get(keys[:1]) == {}:
            document.remove(keys[:1])
    if before is None and format is Jsonc:  # white space at the end of an object is not told apart
        assert "".join(document.text.split()) == "".join(text.split())
    else:
        assert document.text == text


SCALARS = {
    "plain words (1.2)": "a: plain words (1.2)\n",
    "http://[::1]:80": 'a: "http://[::1]:80"\n',
    "http://h:80/v1": "a: http://h:80/v1\n",
    "a: b": 'a: "a: b"\n',
    "a #b": 'a: "a #b"\n',
    "ends ": 'a: "ends "\n',
    "ends:": 'a: "ends:"\n',
    "1": 'a: "1"\n',
    "No": 'a: "No"\n',
    "y": 'a: "y"\n',
    "\u00fc": 'a: "\u00fc"\n',
    "\x7f": 'a: "\\x7f"\n',
    "": 'a: ""\n',
    True: "a: true\n",
    1.5: "a: 1.5\n",
}


@pytest.mark.parametrize("value", SCALARS)
def test_yaml_reads_a_value_as_it_was_meant(value):
    document = Yaml("")
    document.set(("a",), value)
    assert document.text == SCALARS[value]
    assert document.value == {"a": value}


DEPTHS = [
    ("x", 0),
    ("a", 0),
    ("a.x", 1),
    ("a.x.y", 1),
    ("a.b", 1),
    ("a.b.c.d", 3),
    ("a.b.x", 2),
    ("a.n.x", 1),
]


@pytest.mark.parametrize(("keys", "depth"), DEPTHS)
def test_how_many_tables_are_there(keys, depth):
    document = Jsonc('{"a": {"b": {"c": {"d": 1}}, "n": null}, "s": "text"}')
    assert document.depth(tuple(keys.split("."))) == depth
    assert (document.get(("a", "b", "c", "d")), document.get(("s", "x"))) == (1, None)


BROKEN = [
    (Jsonc, "{", "not valid JSON: line 1: Expecting property name enclosed in double quotes"),
    (Jsonc, '{\n\n"a": }', "not valid JSON: line 3: Expecting value"),
    (Jsonc, '{\n"a"\n1}', "not valid JSON: line 3: Expecting ':' delimiter"),
    (Jsonc, "// b\n[1]", "not the JSON of a configuration: it holds no names"),
    (Jsonc, '{"a": 1}\n x', "not valid JSON: line 2: Extra data"),
    (Jsonc, '{"a": /* 1\n2 */ nope}', "not valid JSON: line 2: Expecting value"),
    (Jsonc, '{"a": "\\q"}', "not valid JSON: line 1: Invalid \\escape"),
    (Jsonc, '{"a": 1\n"b": 2}', "not valid JSON: line 2: Expecting ',' delimiter"),
    (Jsonc, '{"a": [1\n2]}', "not valid JSON: line 2: Expecting ',' delimiter"),
    (Jsonc, '{"a": [1,\n,]}', "not valid JSON: line 2: Expecting value"),
    (Jsonc, '{"a": [,]}', "not valid JSON: line 1: Expecting value"),
    (Jsonc, "{ /* 1 */ , }", "not valid JSON: line 1: Expecting property name enclosed in double quotes"),
    (Jsonc, '{"a": 1,,}', None),
    (Jsonc, '{"a": "// 1}', "not valid JSON: line 1: Unterminated string starting at"),
    (Jsonc, '{"a": "1\n"}', "not valid JSON: line 1: Invalid control character at"),
    (Jsonc, "/* open", "not valid JSON: line 1: Expecting value"),
    (Jsonc, '{"a": ' * 100_000, "not valid JSON: nested too deeply"),
    (Toml, "a = 1\na = 2\n", "not valid TOML: Cannot overwrite a value (at line 2, column 6)"),
    (Yaml, "a: b: c", "not valid YAML: line 1: mapping values are not allowed here"),
    (Yaml, "a: 1\nb: &x\n  c: *y\n", "not valid YAML: line 3: found undefined alias 'y'"),
    (Yaml, "- a\n- b\n", "not the YAML of a configuration: it holds no names"),
]


@pytest.mark.parametrize(("format", "text", "reason"), BROKEN)
def test_what_is_broken_is_told_with_its_place(format, text, reason):
    with pytest.raises(CannotEdit) as refused:
        format(text)
    if reason is not None:  # else Python's versions have words of their own
        assert str(refused.value) == reason


def test_a_list_that_holds_itself_is_refused():
    document = Yaml(text := "a: &a [*a]\n")
    with pytest.raises(CannotEdit, match=r"^b cannot be changed safely: maximum recursion depth exceeded"):
        document.set(("b",), 1)
    assert document.text == text


def test_however_deep_a_file_is_it_is_changed_or_refused():
    for depth in (100, *range(200, 2000, 10)):
        text = '{"a": ' * depth + "1" + "}" * depth
        try:
            document = Jsonc(text)
        except CannotEdit:
            assert depth > 100
            continue
        document.set(("b",), 1)
        assert document.text == text[:-1] + ', "b": 1}'


ELSEWHERE = [
    (Toml, "t = { u = { x = 1 } }\n", "t.u", "t.u cannot be changed safely: not valid TOML: Cannot "),
    (Toml, "[t.u]\n[v]\n[t.u.w]\n", "t.u", "t.u stands in several places"),
    (Toml, "t = 1\n", "t.u", "t.u cannot be set: t holds something else"),
    (Jsonc, '{"t": "text"}', "t.u", "t.u cannot be set: t holds something else"),
    (Yaml, "t: [{name: a}]\n", "t.u", "the list t is written in brackets: write one entry a line"),
    (Yaml, "t:\n  u:\n    v: 1\n", "t.w", "t holds something else than a list"),
    (Yaml, "t:\n  - a\n", "t.u", "t.u cannot be set: t holds something else"),
    (Yaml, "t:\n  - name: [a]\n", "t.u", "t.u cannot be set: t holds something else"),
    (Yaml, "{t: []}", "t.u", "t.u cannot be changed safely: not valid YAML: line 2: expected "),
]


@pytest.mark.parametrize(("format", "text", "keys", "reason"), ELSEWHERE)
def test_what_stands_where_nothing_can_be_put_is_left(format, text, keys, reason):
    document = format(text)
    value = document.value
    with pytest.raises(CannotEdit) as refused:
        document.set(tuple(keys.split(".")), {"name": "u"})
    assert str(refused.value).startswith(reason)
    assert (document.text, document.value) == (text, value)


CARELESS = [
    (Jsonc, '{"a": 2, "a": 3}', "a", "the first one would count then"),
    (Yaml, "m: &x\n  - name: b\n    k: &y 1\nn: &y 2\nc: *y\n", "n", "the alias would mean the first anchor"),
]


@pytest.mark.filterwarnings("ignore::ruamel.yaml.error.ReusedAnchorWarning")
@pytest.mark.parametrize(("format", "text", "keys", "reason"), CARELESS)
def test_a_change_that_would_change_something_else_is_taken_back(format, text, keys, reason):
    document = format(text)
    value = document.value
    with pytest.raises(CannotEdit, match=f"^{keys} cannot be changed safely: something else would change$"):
        document.remove((keys,))
    assert (document.text, document.value) == (text, value), reason


TANGLED = [
    (Toml, "t = { u = { x = 1 } }\n", "t.u", "t.u is written in a way that cannot be taken out"),
    (Yaml, "t: [{name: u}]\n", "t.u", "t.u is written in a way that cannot be taken out"),
]


@pytest.mark.parametrize(("format", "text", "keys", "reason"), TANGLED)
def test_what_is_not_found_in_the_text_is_not_taken_out(format, text, keys, reason):
    document = format(text)
    with pytest.raises(CannotEdit, match=f"^{reason}$"):
        document.remove(tuple(keys.split(".")))
    assert document.text == text


def test_yaml_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    with pytest.raises(
        ServerMissing, match=r"^YAML files need more: .*pip install .*\[import of ruamel.yaml"
    ):
        Yaml("a: 1\n")
