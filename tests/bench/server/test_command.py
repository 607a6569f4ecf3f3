"""`localagent bench server` and `bench report` as commands: what they print, write, refuse and end with."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.bench.server import imitation as module
from tests.bench.server.imitation import KEY, imitation
from tests.cli.conftest import Command
from tests.cli.hostile import EVIL, driven, told
from tests.remote.scripted import scripted

QUICK = ["--quick", "--tokens", "4", "--answers", "2", "--streams", "1,2", "--clients", "1"]


@pytest.fixture
def bench(tmp_path: Path) -> Command:
    return Command(tmp_path)


def test_servers_are_measured_and_shown(bench: Command, tmp_path: Path) -> None:
    out, html = tmp_path / "out.jsonl", tmp_path / "out.html"
    with imitation() as one, imitation("no web") as two:
        done = bench(
            "bench", "server", "--url", one.url, "--url", f"{two.url}/v1", "--url", "http://127.0.0.1:9", *QUICK,
            "--out", str(out), "--html", str(html), LOCALAGENT_API_KEY=KEY,
        )  # fmt: skip
    shown, said = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 0, said
    for title in (
        "Rules of the wire",
        "What is on the wire",
        "Many streams",
        "A long prompt",
        "Answers of one",
    ):
        assert title in shown
    assert "skipped http://127.0.0.1:9: no server answers" in shown
    rows = [line for line in shown.splitlines() if line.startswith("Unknown kinds of tools")]
    assert [word for row in rows for word in ("passes", "fails") if word in row] == ["passes", "fails"]
    kinds = [json.loads(line)["kind"] for line in out.read_text().splitlines()]
    assert (kinds[0], kinds[-1]) == ("run", "end")
    assert KEY not in out.read_text() + html.read_text() + shown + said
    again = bench("bench", "report", str(out))
    assert again.stdout.decode().split("\n", 1)[1] in shown.replace("\r", "")
    assert bench("bench", "report", str(out), str(out), "--html", str(html)).returncode == 0
    assert html.read_text().count('<span class="letter">B</span>') == 2


def test_lines_of_json_alone_are_printed_when_asked_for(bench: Command) -> None:
    with imitation() as server:
        done = bench("bench", "server", "--url", server.url, "--no-load", "--json", LOCALAGENT_API_KEY=KEY)
    told = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert [each["kind"] for each in told if each["kind"] != "row"] == ["run", *["table"] * 3, "end"]
    assert {each.get("table") for each in told} >= {"server.rules", "server.outcomes"}
    assert "127.0.0.1" in done.stderr.decode()


def test_servers_that_are_none_are_named_and_the_others_go_on(bench: Command) -> None:
    with (
        scripted(models=None) as without,
        scripted(models=b"<html>") as page,
        socket.create_server(("127.0.0.1", 0)) as silent,
        imitation() as server,
    ):
        hanging = f"http://127.0.0.1:{silent.getsockname()[1]}"
        urls = [word for url in (without.url, page.url, hanging, server.url) for word in ("--url", url)]
        done = bench(
            "bench", "server", *urls, *QUICK, "--no-checks", "--timeout", "1", LOCALAGENT_API_KEY=KEY
        )
    assert done.returncode == 0
    shown = done.stdout.decode()
    skipped = [line for line in shown.splitlines() if line.startswith("skipped ")]
    for line, reason in zip(
        skipped, ("404", "something else than JSON", "said nothing for 1 seconds"), strict=True
    ):
        assert reason in line
    assert "Answers of one token" in shown


def test_nothing_that_a_server_says_controls_a_terminal(
    bench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = f"{EVIL}[bold]{EVIL}[/bold]"
    monkeypatch.setattr(module, "WORDS", [evil, *module.WORDS])
    monkeypatch.setattr(module.Refused, "__str__", lambda _: evil)
    with imitation() as server:
        hidden = bench("bench", "server", "--url", server.url, *QUICK)  # it wants a key, in hostile words
        shown = bench("bench", "server", "--url", server.url, "--model", evil, *QUICK, LOCALAGENT_API_KEY=KEY)
    for done in (hidden, shown):
        assert driven(done.stdout + done.stderr) == []
        assert told(done.stdout)
        assert b"Traceback" not in done.stderr


def test_the_same_server_twice_is_measured_once(bench: Command) -> None:
    with imitation() as server:
        urls = ["--url", server.url, "--url", f"{server.url}/v1"]
        done = bench("bench", "server", *urls, "--no-load", LOCALAGENT_API_KEY=KEY)
    shown = done.stdout.decode()
    assert done.returncode == 0
    assert f"skipped {server.url}/v1: it is the same server as" in shown
    assert len([line for line in shown.splitlines() if line.startswith("Unknown kinds of tools")]) == 1


WRONG = {
    "no address": ([], 2, "no server is named"),
    "no URL": (["--url", "nonsense"], 1, "no server can be measured"),
    "nobody there": (["--url", "http://127.0.0.1:9"], 1, "no server can be measured"),
    "twice": (["--url", "http://a:1", "--url", "http://a:1"], 2, "twice"),
    "no numbers": (["--url", "http://a:1", "--streams", "1,x"], 2, "--streams '1,x': give numbers"),
    "zero": (["--url", "http://a:1", "--clients", "0"], 2, "--clients '0'"),
    "too many models": (
        ["--url", "http://a:1", "-m", "x", "-m", "y"],
        2,
        "2 times --model and 1 times --url",
    ),
    "no folder": (["--url", "http://a:1", "--out", "/nowhere/out"], 2, "/nowhere/out cannot be written"),
}


@pytest.mark.parametrize(("arguments", "status", "reason"), WRONG.values(), ids=[*WRONG])
def test_what_cannot_be_is_one_line(bench: Command, arguments: list[str], status: int, reason: str) -> None:
    done = bench("bench", "server", *arguments)
    lines = done.stderr.decode().strip().splitlines()
    assert done.returncode == status
    assert len(lines) == 1
    assert reason in lines[0]


def test_a_file_that_is_broken_is_named_and_the_others_are_shown(bench: Command, tmp_path: Path) -> None:
    good, bad, html = tmp_path / "good", tmp_path / "bad", tmp_path / "out.html"
    with imitation() as server:
        bench("bench", "server", "--url", server.url, "--no-load", "--out", str(good), LOCALAGENT_API_KEY=KEY)
    bad.write_text("not JSON\n")
    done = bench("bench", "report", str(bad), str(good), str(tmp_path / "none"))
    assert "Rules of the wire" in done.stdout.decode()
    assert done.returncode == 2
    first, second = done.stderr.decode().splitlines()
    assert f"{bad}, line 1, is no result" in first
    assert "No such file" in second
    done = bench("bench", "report", str(bad), "--html", str(html))
    assert (done.returncode, done.stderr.decode().count("\n")) == (2, 1)
    assert not html.exists()
    assert bench("bench", "report", str(good), "--html", str(tmp_path)).returncode == 2
