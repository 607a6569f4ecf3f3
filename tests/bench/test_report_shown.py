"""The report in a real browser: nothing is fetched, nothing sticks out, all is drawn, and no text becomes markup."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from localagent_bench.report import write_report
from localagent_bench.results import Chart, Column, Results, Table
from tests.bench.test_report import run
from tests.server.test_page import CONTRASTS

FILLS = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = ([r, g, b]) => { const f = (c) => (c /= 255) <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
    return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
  const ground = light(rgb(getComputedStyle(document.querySelector(".panel")).backgroundColor));
  const poor = [];
  for (const node of document.querySelectorAll(".chart text, .role-mark path")) {
    const least = node.matches("text") ? 4.5 : 2.0, style = getComputedStyle(node);
    const over = light(rgb(style.fill === "none" ? style.stroke : style.fill));
    const ratio = (Math.max(over, ground) + .05) / (Math.min(over, ground) + .05);
    if (ratio < least) poor.push(`${node.tagName}.${node.getAttribute("class")} ${ratio.toFixed(2)}`);
  }
  return poor;
}"""
OUTSIDE = """() => [...document.querySelectorAll(".chart text, .role-mark path")].filter((node) => {
  const own = node.getBoundingClientRect(), box = node.closest(".chart").getBoundingClientRect();
  return own.width && (own.right > box.right + 1 || own.left < box.left - 1 || own.bottom > box.bottom + 1);
}).map((node) => node.textContent || node.outerHTML)"""


class Shown:
    """A report in the browser, with everything that it asked for and that went wrong."""

    def __init__(self, browser: Any, path: Path, **look: Any) -> None:
        self.context = browser.new_context(**look)
        self.page = self.context.new_page()
        self.asked: list[str] = []
        self.problems: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.add_init_script("window.hurt = 0; window.pwned = () => { window.hurt++; };")
        self.page.goto(path.as_uri())

    def end(self) -> None:
        assert [url for url in self.asked if not url.startswith("data:image/svg+xml")] == [self.page.url]
        assert self.problems == []
        assert self.page.evaluate("window.hurt || 0") == 0
        self.context.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report([run(), run(factor=30), run("other")], path)
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_page_fits_every_screen_and_is_read_in_both_lights(
    chromium, report: Path, scheme: str, width: int
) -> None:
    shown = Shown(chromium, report, viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = shown.page
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") == width, "nothing sticks out"
    assert page.evaluate(OUTSIDE) == []
    assert page.evaluate(CONTRASTS) == []
    assert page.evaluate(FILLS) == []
    assert page.locator(".chart").count() == 10
    assert all(len(each.get_attribute("aria-label") or "") > 40 for each in page.locator(".chart").all())
    # Two runs side by side, and one alone: parts of stacks, a bar for each time that was measured, two for each parser.
    assert page.locator(".mark-rect path").count() == 3 * 3 * 3 + 3 * 2 + 3 * 3 * 2
    assert page.locator(".role-mark.mark-symbol path").count() == 2 * 3 * 3 * 3
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(re.findall(r"\d+", ground)[0]) > 128) == (scheme == "light")
    assert "<b>raw</b>\nsecond line" in page.locator(".case").first.inner_text()
    shown.end()


def test_a_bar_is_as_long_as_its_value(chromium, report: Path) -> None:
    shown = Shown(chromium, report, viewport={"width": 390, "height": 800})
    widths = [
        box.evaluate("node => node.getBoundingClientRect().width")
        for box in shown.page.locator("figure:has(b:text-is('Time'))").last.locator(".mark-rect path").all()
    ]
    assert len(widths) == 2, "one is not measured"
    assert widths[1] / widths[0] == pytest.approx(3, rel=0.02)
    assert shown.page.get_by_text("not measured").first.is_visible()
    shown.end()


def test_it_is_printed_light_and_whole(chromium, report: Path) -> None:
    shown = Shown(chromium, report, viewport={"width": 700, "height": 900}, color_scheme="dark")
    shown.page.emulate_media(media="print", color_scheme="dark")
    assert shown.page.evaluate("getComputedStyle(document.querySelector('h1')).color") == "rgb(28, 35, 33)"
    assert shown.page.evaluate("getComputedStyle(document.querySelector('.box')).overflowX") == "visible"
    assert len(shown.page.pdf()) > 10_000
    shown.end()


EVIL = (
    '</style></title><script>pwned()</script><img src=x onerror=pwned()><svg onload=pwned()>" onmouseover="pwned()\' '
    "{{ 7 * 7 }}{% for %} ]]>--><a href=javascript:pwned()> \x1b[31m \u202edlrow\u2066 \x00 \ud800 &lt;b&gt;"
)


@pytest.mark.parametrize("wide", [320, 1280])
def test_hostile_text_in_every_field_is_text(chromium, tmp_path: Path, wide: int) -> None:
    columns = (
        Column("a" + EVIL, EVIL, EVIL),
        Column("y", EVIL, EVIL, "more"),
        Column("z", EVIL),
        Column("x", EVIL),
    )
    charts = tuple(
        Chart(kind, x, ("y", "z"), EVIL, columns[0].key)  # type: ignore[arg-type]
        for kind, x in (("bars", columns[0].key), ("stack", columns[0].key), ("lines", "x"))
    )
    table = Table(EVIL, EVIL, columns, EVIL, charts, within=columns[0].key)
    results = Results(EVIL, {EVIL: EVIL, "list": [EVIL]})
    results.run.machine |= {EVIL: EVIL, "processor": EVIL, "memory": EVIL}
    results.run.packages = {EVIL: EVIL}
    results.run.started = EVIL
    for at in range(3):
        results.add(table, **{columns[0].key: f"{EVIL}{at % 2}", "y": at, "z": 2 * at, "x": at + 1})
    results.skip(EVIL, EVIL)
    results.case(table, **{EVIL: EVIL, "b": {EVIL: [EVIL]}})
    path = tmp_path / "report.html"
    write_report([results.run, results.run], path)
    shown = Shown(chromium, path, viewport={"width": wide, "height": 800})
    page = shown.page
    page.locator("summary").first.click()
    assert (
        page.locator("script, img, a[href^=javascript], [onload], [onerror], [onmouseover], iframe").count()
        == 0
    )
    assert page.evaluate("document.documentElement.scrollWidth") == wide
    told = page.locator("body").inner_text() + path.read_text()
    assert not set("\x1b\u202e\u2066\x00\ud800") & set(told)
    assert "{{ 7 * 7 }}" in told and "49" not in page.title()
    page.mouse.move(100, 300)
    shown.end()
