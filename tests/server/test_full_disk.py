"""A disk that is full: the server goes on answering, says once what is wrong, and leaves no half files."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.server.serving import Running
from tests.server.test_faults import until
from tests.server.test_serve import CHAT, QUESTION, served


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight megabytes: a snapshot of lfm2-nano takes two."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", folder]
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small file system can be mounted here: {getattr(error, 'stderr', '') or error}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(disk: Path, left: int = 0) -> Path:
    """Fill the disk but for so many bytes; removing the file frees it."""
    path = disk / "filling"
    with path.open("wb", buffering=0) as file:
        with suppress(OSError):
            while file.write(bytes(4096)):
                pass
        file.truncate(file.tell() - left)
    return path


def names(disk: Path) -> list[str]:
    return [path.name for path in disk.rglob("*") if path.is_file()]


# With room for its beginning, a file could be left that is torn.
@pytest.mark.parametrize("left", [0, 40_000])
def test_snapshots(nano: dict[str, Path], disk: Path, left: int) -> None:
    weights, home = str(nano["llamacpp"]), disk / "home"
    with served("--model", weights, "--lanes", "2", home=home) as server:
        server.ask()
        filling = fill(disk, left)
        for number in range(3):
            server.ask(f"{number}. {QUESTION}")
        assert server.client.ask(path="/health", method="GET").status == 200
        assert server.end() == 0
    assert len(re.findall(r"not written: No space left on device", server.said)) == 1, server.said
    assert "Traceback" not in server.said
    assert names(disk) == ["filling"]
    filling.unlink()
    with served("--model", weights, "--lanes", "2", home=home) as server:
        assert server.cached() == 0
        assert server.end() == 0
    with served("--model", weights, "--lanes", "2", home=home) as server:
        assert server.cached() > 30
        assert server.end() == 0
    assert "not written" not in server.said
    assert "ignored" not in server.said


def test_a_cache_folder_on_a_full_disk(nano: dict[str, Path], disk: Path) -> None:
    """The notes of what was tried, too, which the server makes before it begins."""
    fill(disk)
    with served("--model", str(nano["llamacpp"]), home=disk / "home", LOCALAGENT_ENGINE_CHECK="1") as server:
        server.ask()
        assert server.end() == 0
    assert "Traceback" not in server.said
    assert names(disk) == ["filling"]


def test_the_log(nano: dict[str, Path], disk: Path) -> None:
    log = disk / "log"
    arguments = ["serve", "--port", "0", "--model", str(nano["llamacpp"]), "--no-snapshots", "--log-prompts"]
    with (
        log.open("wb") as file,
        subprocess.Popen([sys.executable, "-m", "localagent", *arguments], stderr=file) as child,
    ):
        try:
            until(lambda: "logged here" in log.read_text(), 60)
            client = Running(
                int(re.findall(r"listens on http://127\.0\.0\.1:(\d+)", log.read_text())[0]), None
            )  # type: ignore[arg-type]

            def ask(text: str) -> int:
                body = {"messages": [{"role": "user", "content": text}], "max_tokens": 2}
                return client.ask(body, path=CHAT).status

            assert ask("Before.") == 200
            filling = fill(disk)
            assert [ask(f"{number}. {'full ' * 600}") for number in range(5)] == [200] * 5
            filling.unlink()
            assert ask("After.") == 200
            filling = fill(disk)
            assert ask(f"Again. {'full ' * 900}") == 200
        finally:
            child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
    said = log.read_text()
    assert "Before." in said
    assert said.count("(notes are missing here: the disk was full)\n") == 1
    after = said.partition("was full)\n")[2].splitlines()
    # The line of the last request before may come late: it is written once the answer has been sent.
    assert any("After." in line for line in after)
    assert any("POST /v1/chat/completions 200 ok" in line for line in after)
    assert "Traceback" not in said
