"""What becomes of pages and charsets, also of hostile ones."""

from __future__ import annotations

import encodings.aliases
import time
from html import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.toolbox import web
from localagent.toolbox.web import charset_of, html_to_text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        (
            "<title>T</title><h2>Head</h2><p>One\n two<br>three</p><p>Next",
            "# T\n\n## Head\n\nOne two\nthree\n\nNext",
        ),
        ("<ul><li>a<li>b</ul>c", "- a\n- b\n\nc"),
        ('see <a href="/x?a=1&amp;b=2">this</a>.', "see this (http://h/x?a=1&b=2)."),
        (
            '<a href="http://o/">o</a> <a href="#top">top</a> <a href="javascript:x()">js</a>',
            "o (http://o/) top js",
        ),
        ('<a href="http://o/">http://o/</a><a href="mailto:a@b">a@b</a>', "http://o/a@b"),
        ('<a href="http://[">bad</a> <a href="b c">sp</a>', "bad sp (http://h/b%20c)"),
        ("<script>var a = '<p>x</p>';</script><style>p{}</style>y", "y"),
        ("<svg><text>no</text></svg>yes<noscript>no</noscript>", "yes"),
        ("<svg/>yes", "yes"),
        ("<template><svg></template>yes", "yes"),
        ("<pre>a\n  b</pre>", "a\n  b"),
        ("<table><tr><th>a<th>b<tr><td>1<td>2</table>", "a | b\n1 | 2"),
        ('<img alt="a cat" src="x"> &amp; &lt;b&gt; &#233;&nbsp;!', "[image: a cat] & <b> é\u00a0!"),
        ("a <b>bold</b> word", "a bold word"),
        ("<![CDATA[x]]><!-- c --><?php y ?>z", "z"),
        ("", ""),
        ("<", "<"),
        ("</p>", ""),
    ],
)
def test_pages_as_text(html, text):
    assert html_to_text(html, "http://h/") == text


@given(st.text(alphabet="<>/ab!-&;'\"=# \n[]?ascriptpe", max_size=300) | st.text(max_size=200))
def test_any_page_has_a_text(html):
    html_to_text(html, "http://h/").encode()


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]) | st.just(" "), max_size=200))
def test_what_is_no_markup_is_all_kept(text):
    shown = html_to_text(f"<p>{escape(text)}</p>", "http://h/")
    assert shown.split() == text.split()


PIECES = """<|<a |<a|<!|<!--|<![|<?|</|&|&#|<a href='|<p>|<a b="|<script|<script>|</script|<!--a-|<a\t|<a/|<svg>|<pre>
<!DOCTYPE |<a b| |=|<a =|<a href=x>|<li>|</p>|<textarea|<title"""


MORE_PIECES = [
    "<div>",
    "<p>",
    "<b a=1>",
    "<i></b>",
    "</i>",
    "<b><p>",
    "<table><tr><td>",
    "<a href=/>x</a>",
    "<select>",
]


@pytest.mark.parametrize("piece", [*PIECES.replace("\n", "|").split("|"), *MORE_PIECES])
def test_hostile_pages_take_bounded_time(piece, monkeypatch):
    monkeypatch.setattr(web, "MAX_SECONDS", 0.3)
    page = piece * (400_000 // len(piece))
    begin = time.process_time()
    html_to_text(page, "http://h/")
    assert time.process_time() - begin < 3


@pytest.mark.parametrize("tag", ["div", "b", "span", "li", "table"])
def test_depth_is_no_obstacle(tag):
    page = f"<{tag}>" * 100_000 + "deep" + f"</{tag}>" * 100_000 + "after"
    assert "".join(html_to_text(page, "http://h/").replace("-", "").split()) == "deepafter"


def test_a_large_page_is_cut_after_its_time(monkeypatch):
    page = "<p>one <b>two</b> &amp; three" * (10_000_000 // 28)
    monkeypatch.setattr(web, "MAX_SECONDS", 0.3)
    begin = time.process_time()
    text = html_to_text(page, "http://h/")
    assert time.process_time() - begin < 3
    assert text.startswith("one two & three\n\none") and text.endswith(
        "\n(the rest of the page could not be read in time)"
    )


def test_charsets_are_those_of_the_web():
    for name in {*encodings.aliases.aliases, *encodings.aliases.aliases.values()}:
        bytes(range(256)).decode(charset_of(f"text/plain; charset={name}"), "replace")
        assert charset_of(f"x; charset={name}") not in (
            "punycode",
            "idna",
            "utf-7",
            "utf_7",
            "unicode_escape",
            "rot13",
        )
