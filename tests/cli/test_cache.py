"""`localagent cache`, and chats that go on where the last process stopped reading."""

from __future__ import annotations

import json
import os
import re

NANO = ("--model", "lfm2-nano", "--threads", "1", "--max-tokens", "24", "--stats")


def kept(localagent) -> list[dict]:
    return json.loads(localagent("cache", "list", "--json").stdout)


def test_a_chat_is_kept_and_goes_on_without_reading_again(localagent):
    system = "You are brief. " * 8
    first = localagent("chat", *NANO, "--system", system, stdin=b"Hello!\n")
    assert first.returncode == 0, first.stderr
    (row,) = kept(localagent)
    assert row["model"] == "lfm2-nano"
    assert row["engine"].startswith("llama.cpp")
    assert row["tokens"] > 40
    heading, line = localagent("cache", "list").stdout.decode().splitlines()[:2]
    for title, told in (("tokens", f" {row['tokens']} "), ("size", f" {row['size']:,} bytes")):
        assert heading.index(title) + len(title) == line.index(told) + len(told.rstrip()), "below each other"
    again = localagent("chat", *NANO, "--resume", "last", stdin=b"Hello again!\n").stderr.decode()
    cached = int(re.search(r"cached: (\d+)", again)[1])
    assert cached >= row["tokens"] - 1
    (grown,) = kept(localagent)
    assert grown["tokens"] > row["tokens"], "the longer one takes its place"


def test_engines_keep_their_own(localagent):
    localagent("chat", *NANO, stdin=b"Hello there, how are you today, my friend? Tell me something.\n")
    done = localagent(
        "chat", "--model", "lfm2-nano", "--backend", "mlx", "--max-tokens", "24",
        stdin=b"Hello there, how are you today, my friend? Tell me something.\n",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len({row["engine"] for row in kept(localagent)}) == 2


def test_no_save_keeps_nothing(localagent):
    done = localagent("chat", *NANO, "--no-save", stdin=b"Hello! " * 20 + b"\n")
    assert done.returncode == 0
    assert kept(localagent) == []
    assert b"0 kept" in localagent("cache", "list").stderr


def test_clear_asks_and_removes(localagent):
    localagent("chat", *NANO, "--system", "word " * 40, stdin=b"Hello!\n")
    localagent.refuse("cache", "clear", code=2, says="--yes")
    assert len(kept(localagent)) == 1
    done = localagent("cache", "clear", "--yes")
    assert (done.returncode, done.stderr.startswith(b"removed 1")) == (0, True)
    assert kept(localagent) == []
    assert localagent("cache", "clear").returncode == 0, "nothing to ask about"


def test_a_damaged_file_is_listed_and_harms_nobody(localagent):
    localagent("chat", *NANO, "--system", "word " * 40, stdin=b"Hello!\n")
    (row,) = kept(localagent)
    os.truncate(row["path"], 100)
    assert b"not readable" in localagent("cache", "list").stdout
    done = localagent("chat", *NANO, "--resume", "last", stdin=b"Hello!\n")
    assert done.returncode == 0
    assert b"ignored: not a whole snapshot" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_cache_that_cannot_be_written_is_a_warning(localagent, tmp_path):
    (tmp_path / "cache" / "localagent" / "prefixes").write_text("a file")
    done = localagent("chat", *NANO, "--system", "word " * 40, stdin=b"Hello!\n")
    assert done.returncode == 0
    assert b"not written" in done.stderr
    assert b"Traceback" not in done.stderr


def test_either_engine_answers(localagent):
    for backend in ("llamacpp", "mlx"):
        done = localagent("run", "Hello!", "--model", "lfm2-nano", "--backend", backend, "--max-tokens", "9")
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.strip()
    done = localagent(
        "run", "Hi", "--model", "lfm2-nano", "--backend", "mlx", "--threads", "1", "--max-tokens", "2"
    )
    assert (done.returncode, done.stderr) == (0, b"threads=1 is left aside: MLX chooses its own\n")
