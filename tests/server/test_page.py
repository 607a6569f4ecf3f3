"""The page at `/`, in a real browser where there is one: Debian's `chromium`, driven by `playwright`."""

from __future__ import annotations

import json
import re
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import pytest

from localagent.hosts.replay import ReplayHost
from localagent.model import Model, load
from localagent.server.access import Access
from localagent.server.app import all_wires
from localagent.server.page import page
from tests.agent.replaying import LFM2, block, recording
from tests.hosts.speaking import Speaking, speaking_host
from tests.server.serving import Running, serving

KEY = "sk-browser"
PAGE = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
LOOKS = [(scheme, width) for scheme in ("light", "dark") for width in (1280, 390)]

MARKDOWN = (
    "<think>A plan, then.</think>A **plan** for *six*:\n\n## Food\n\n1. bread\n2. `salt`\n\n"
    "```python\nprint('<b>')\n```\n\n> rain"
)
CALLED = "Let me see." + block('get_weather(place="Oslo", days=[1, 2])')
CUT = "Let me see." + LFM2.calls.open + "[get_weather(place=" + LFM2.calls.close
HOSTILE = (
    '<img src=x onerror="pwned()"></script><script>pwned()</script><svg/onload=pwned()>\n\n'
    "# <iframe srcdoc='<script>parent.pwned()</script>'>\n\n- [a](javascript:pwned()) ![b](http://198.51.100.1/c.png)\n\n"
    "```html\n</code></pre><script>pwned()</script>\n```\n\n\x1b[31mred\x00 \u202eevil \x9b and `<style>*{display:none}</style>`"
)


def replay(*outputs: str) -> Model:
    return Model(
        ReplayHost([recording(output) for output in outputs], LFM2.markers, context=4096, lanes=2), LFM2
    )


def slow(output: str, step: float) -> Model:
    """A model that takes `step` seconds for every letter."""
    engine = Speaking(list(output.encode()), lambda work, _: time.sleep(step) if work == "step" else None)
    return Model(speaking_host(engine), LFM2)


@contextmanager
def page_server(*outputs: str | Model, keys: tuple[str, ...] = ()) -> Iterator[Running]:
    """A server whose model writes these outputs, one a turn; or one of another model."""
    (model,) = outputs if isinstance(outputs[0], Model) else (replay(*outputs),)  # type: ignore[arg-type]
    with serving(model, access=Access(keys=keys, page=True), wires=all_wires()) as running:
        yield running


def get(server: Running, path: str = "/", method: str = "GET", **headers: str) -> Any:
    return server.ask(path=path, method=method, **headers)


# ---- without a browser


def test_browsers_get_the_page_and_others_what_ollamas_clients_expect():
    with page_server("Hi.") as server:
        shown = get(server, **PAGE)
        assert shown.status == 200
        assert b"<title>localagent</title>" in shown.body
        assert "content-type: text/html; charset=utf-8" in shown.head
        assert "vary: accept" in shown.head
        assert get(server).body == b"Ollama is running"
        assert get(server, accept="*/*").body == b"Ollama is running"
        assert get(server, method="HEAD", **PAGE).status == 200
        assert get(server, method="HEAD").status == 200


def test_the_policy_allows_the_one_script_and_nothing_from_elsewhere():
    html, headers = page()
    headers = {**headers}
    policy = dict(part.split(" ", 1) for part in headers.pop("content-security-policy").split("; "))
    for tag in ("script", "style"):
        inside = html.partition(f"<{tag}>".encode())[2].partition(f"</{tag}>".encode())[0]
        assert policy.pop(f"{tag}-src") == f"'sha256-{b64encode(sha256(inside).digest()).decode()}'"
    assert policy == {
        **dict.fromkeys(
            ("default-src", "base-uri", "form-action", "frame-ancestors", "trusted-types"), "'none'"
        ),
        "connect-src": "'self'",
        "img-src": "data:",
        "require-trusted-types-for": "'script'",
    }
    assert headers == {
        "content-type": "text/html; charset=utf-8",
        "cache-control": "no-cache",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "x-frame-options": "DENY",
        "vary": "accept",
    }
    with page_server("Hi.") as server:
        assert "\r\ncontent-security-policy: default-src 'none'; " in get(server, **PAGE).head


def test_a_server_without_a_page_has_none():
    with serving(replay("Hi."), access=Access(), wires=all_wires()) as server:
        assert get(server, **PAGE).body == b"Ollama is running"


def test_the_page_needs_no_key_and_what_it_shows_does():
    with page_server("Hi.", keys=(KEY,)) as server:
        assert get(server, **PAGE).status == 200
        assert get(server).status == 401
        assert get(server, path="/api/localagent/state").status == 401
        assert get(server, path="/api/localagent/state", **PAGE).status == 401
        assert get(server, path="/api/localagent/state", authorization=f"Bearer {KEY}").status == 200


def test_the_state_counts_answers_and_errors():
    with page_server("Hi there, all of you.") as server:
        before = get(server, path="/api/localagent/state").json["models"][0]
        assert (before["state"], before["answers"], before["tokens_per_second"]) == ("unloaded", 0, None)
        ask = {"messages": [{"role": "user", "content": "Hello"}]}
        assert server.ask(ask, path="/v1/chat/completions").status == 200
        assert server.ask({**ask, "logprobs": True}, path="/v1/chat/completions").status == 400
        after = get(server, path="/api/localagent/state")
        assert "cache-control: no-store" in after.head
        assert set(after.json) == {"version", "keys", "models"}
        (told,) = after.json["models"]
        assert (told["name"], told["state"], told["lanes"], told["context"]) == ("model-1", "ready", 2, 4096)
        assert (told["answers"], told["failed"], told["running"], told["waiting"]) == (1, 0, 0, 0)
        assert told["prompt_tokens"] == 1
        assert told["generated_tokens"] == 6
        assert told["first_token_seconds"] < 5


def test_the_page_names_no_other_server():
    with page_server("Hi.") as server:
        html = get(server, **PAGE).body.decode()
    outside = set(re.findall(r"https?://[^\s\"'`<>)]*", html))
    assert outside == {"http://www.w3.org/2000/svg"}, "the name of a format, which nobody fetches"
    assert "innerHTML" not in html and "insertAdjacentHTML" not in html and "eval(" not in html


# ---- with one


class Visit:
    """A page in the browser, with everything that went wrong there and everything that it asked for."""

    def __init__(self, browser: Any, server: Running, scheme: str = "light", width: int = 1280) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 844}, color_scheme=scheme, reduced_motion="reduce",
            permissions=["clipboard-read", "clipboard-write"],
        )  # fmt: skip
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.problems: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.add_init_script("window.hurt = 0; window.pwned = () => { window.hurt++; };")
        self.server = server
        self.page.goto(server.url)

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def say(self, text: str) -> None:
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")

    def answered(self, number: int = 1) -> None:
        self.page.locator(".numbers").nth(number - 1).wait_for()

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).last.inner_text())

    def end(self, *expected: str) -> None:
        """Nothing went wrong but what is expected, and nothing was asked of anybody else."""
        rest = [each for each in self.problems if not any(word in each for word in expected)]
        assert rest == []
        own = self.server.url + "/"
        assert [url for url in self.asked if not url.startswith((own, "data:image/svg+xml"))] == []
        assert self.page.evaluate("window.hurt") == 0
        self.context.close()


@pytest.fixture
def visit(chromium) -> Iterator[Any]:
    visits: list[Visit] = []

    def begin(server: Running, **look: Any) -> Visit:
        visits.append(Visit(chromium, server, **look))
        return visits[-1]

    yield begin
    for each in visits:
        each.context.close()


CONTRASTS = """() => {
  const rgb = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return [n[0], n[1], n[2], n.length > 3 ? n[3] : 1]; };
  const light = ([r, g, b]) => { const f = (c) => (c /= 255) <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
    return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
  const poor = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
    const box = node.getBoundingClientRect();
    if (!(own || node.matches("input, textarea, select")) || node.closest("script") || box.width < 2 || box.height < 2) continue;
    const colours = [getComputedStyle(node).color];
    if (node.placeholder) colours.push(getComputedStyle(node, "::placeholder").color);
    let ground = node;
    while (ground && rgb(getComputedStyle(ground).backgroundColor)[3] === 0) ground = ground.parentElement;
    const under = light(rgb(getComputedStyle(ground || document.body).backgroundColor));
    for (const colour of colours) {
      const over = light(rgb(colour)), ratio = (Math.max(over, under) + .05) / (Math.min(over, under) + .05);
      if (ratio < 4.5) poor.push(`${node.tagName}.${node.className} ${colour} ${ratio.toFixed(2)}`);
    }
  }
  return poor;
}"""
UNNAMED = """() => [...document.querySelectorAll("button, input, select, textarea, [role=log], [role=img]")].filter((node) =>
  !(node.getAttribute("aria-label") || node.getAttribute("aria-labelledby") || (node.labels && node.labels.length) || node.textContent.trim()))
  .map((node) => node.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_a_conversation_looks_right_in_every_light_and_width(visit, scheme, width):
    with page_server(MARKDOWN, CALLED, "It is **sunny**.") as server:
        seen = visit(server, scheme=scheme, width=width)
        page = seen.page
        page.locator(".model").wait_for()
        seen.say("A plan, please")
        seen.answered()
        assert seen.text(".user").endswith("A plan, please")
        assert page.locator("details.reasoning").get_attribute("open") is None, "reasoning is folded"
        assert not page.get_by_text("A plan, then.").is_visible()
        page.locator("details.reasoning summary").click()
        assert page.get_by_text("A plan, then.").is_visible()
        assert seen.text(".text strong") == "plan"
        assert seen.text(".text h3") == "Food"
        assert page.locator(".text ol li").all_inner_texts() == ["bread", "salt"]
        assert seen.text(".text pre") == "print('<b>')"
        seen.say("Will it rain?")
        seen.answered(2)
        assert seen.text(".call h3").split() == ["Tool", "call", "get_weather"]
        assert json.loads(seen.text(".call pre")) == {"place": "Oslo", "days": [1, 2]}
        assert page.locator(".call input").evaluate("node => node === document.activeElement"), (
            "it is typed at once"
        )
        page.get_by_role("button", name="Options").click()
        page.get_by_label("Offer tools").check()
        assert page.evaluate(CONTRASTS) == []
        assert page.evaluate(UNNAMED) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
        page.get_by_label("What get_weather returns").fill("sunny")
        page.get_by_role("button", name="Return it").click()
        seen.answered(3)
        assert seen.text(".text strong") == "sunny"
        sent = server.service.pool.served["model-1"].model.host.rendered[-1]
        assert [each["role"] for each in sent] == ["user", "assistant", "user", "assistant", "tool"]
        assert page.locator("[aria-busy]").count() == 0
        assert seen.text("#spoken") == "The answer is complete"
        seen.end()


@pytest.mark.parametrize("output", [HOSTILE, f"<think>{HOSTILE}</think>", CUT, block(f"f(x={HOSTILE!r})")])
def test_whatever_a_model_writes_is_text(visit, output):
    with page_server(output) as server:
        seen = visit(server)
        page = seen.page
        seen.say("<img src=x onerror=pwned()> \u202e")
        seen.answered()
        for fold in page.locator("details.reasoning summary").all():
            fold.click()
        assert page.locator("#log :is(img, script, iframe, svg, style, a)").count() == 0
        if output is HOSTILE:
            assert '<img src=x onerror="pwned()"></script><script>' in seen.text(".text")
            assert page.locator(".text .odd").all_inner_texts() == ["U+001B", "U+0000", "U+202E", "U+009B"]
        elif output is CUT:
            assert "cannot be read" in seen.text(".problem")
        seen.end()


def test_an_answer_appears_while_it_is_written_and_can_be_stopped(visit):
    with page_server(slow("word " * 200 + "end", 0.01)) as server:
        seen = visit(server)
        page = seen.page
        for turn in (1, 2):
            seen.say("Go on and on")
            page.locator(".text", has_text="word word").nth(turn - 1).wait_for()
            assert "end" not in seen.text(".text")
            assert page.get_by_role("log").locator("[aria-busy=true]").count() == 1
            assert not page.get_by_role("button", name="Send").is_visible()
            page.get_by_role("button", name="Stop").click()
            seen.answered(turn)
            assert "stopped" in seen.text(".numbers")
            assert "end" not in seen.text(".text")
            assert seen.text("#spoken") == "Stopped"
        page.get_by_role("button", name="New conversation").click()
        assert page.get_by_text("Talk to a model of your own").is_visible()
        seen.end()


def test_a_key_is_asked_for_and_used(visit):
    with page_server("Hello you.", keys=(KEY,)) as server:
        seen = visit(server)
        page = seen.page
        page.get_by_label("This server wants an API key").fill(KEY)
        page.keyboard.press("Enter")
        page.locator(".model").wait_for()
        assert not page.locator("#key").is_visible()
        seen.say("Hello")
        seen.answered()
        assert seen.text(".text") == "Hello you."
        assert "--api-key-env" not in seen.text("#snippet") or KEY not in seen.text("#snippet")
        seen.end("401")


def test_errors_are_shown_and_the_question_is_not_lost(visit):
    with page_server("Hi.") as server:
        seen = visit(server)
        page = seen.page
        page.locator(".model").wait_for()
        page.get_by_role("button", name="Options").click()
        page.get_by_label("Temperature").fill("-1")
        seen.say("Will this work?")
        page.get_by_role("alert").wait_for()
        assert "temperature" in seen.text(".problem")
        assert page.get_by_label("Message", exact=True).input_value() == "Will this work?"
        page.get_by_label("Temperature").fill("")
        page.get_by_label("Message", exact=True).press("Enter")
        seen.answered()
        assert seen.text(".text") == "Hi."
        server.stop()
        server.stopped(20)
        seen.say("Still there?")
        page.get_by_text("the server cannot be reached").wait_for()
        page.get_by_text("The server does not answer").wait_for()
        seen.end("400", "ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")


def test_the_ways_to_connect_name_this_server_and_can_be_copied(visit):
    with page_server("Hi.") as server:
        seen = visit(server)
        page = seen.page
        page.locator(".model").wait_for()
        for name in (
            "Codex",
            "Claude Code",
            "OpenCode",
            "Zed",
            "Continue",
            "Open WebUI",
            "Python",
            "curl",
            "Ollama",
            "Other",
        ):
            button = page.get_by_role("group", name="Program").get_by_role("button", name=name, exact=True)
            button.click()
            assert button.get_attribute("aria-pressed") == "true"
            assert server.url in seen.text("#snippet pre")
            page.locator("#snippet").get_by_role("button").click()
            page.locator("#snippet").get_by_text("Copied").wait_for()
            assert (
                page.evaluate("navigator.clipboard.readText()") == page.locator("#snippet pre").text_content()
            )
        seen.end()


def test_the_commands_that_it_shows_are_commands_that_there_are(visit, monkeypatch, tmp_path):
    from localagent.connect.clients import CLIENTS

    with page_server("Hi.") as server:
        seen = visit(server)
        seen.page.locator(".model").wait_for()
        for client in CLIENTS.values():
            if client.command:
                seen.page.get_by_role("button", name=client.title, exact=True).click()
                assert f"localagent connect {client.name} " in seen.text("#snippet pre")
        seen.end()


@pytest.mark.engine
def test_a_conversation_with_a_real_model(visit, gguf):
    with (
        load("lfm2-nano", threads=1, context=512) as nano,
        serving(nano, access=Access(page=True), wires=all_wires()) as server,
    ):
        seen = visit(server, width=390)
        page = seen.page
        page.get_by_role("button", name="Options").click()
        page.get_by_label("Most tokens").fill("24")
        page.get_by_label("Temperature").fill("0")
        seen.say("What is the weather in Oslo?")
        seen.answered()
        assert "tokens/s" in seen.text(".numbers")
        seen.say("And in Rome?")
        seen.answered(2)
        assert "from cache" in seen.text(".numbers")
        page.get_by_text("Prompt from cache").wait_for()
        seen.end()
