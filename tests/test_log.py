"""The message log: one line per message, whatever happens to the process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from localagent.errors import InvalidMessage, LocalAgentError, SaveFailed, UsageError
from localagent.log import LogRecord, MessageLog, RunContext, read_log
from localagent.messages import (
    AssistantMessage,
    CustomMessage,
    FlushMessage,
    ImagePart,
    ReasoningPart,
    RescueMessage,
    SystemMessage,
    TextPart,
    Timings,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)

ROOT = Path(__file__).parents[1]
CALL = ToolCallPart(id="c1", name="get_weather", arguments={"city": "Zürich", "days": [1, {"n": None}]})
CONVERSATION = [
    SystemMessage.text("Be curt.\n\u2028"),
    UserMessage(content=("Look:", ImagePart(data=b"\x89PNG\r\n\x1a\n\0\xff"))),
    AssistantMessage(content=(ReasoningPart(text="hm"), TextPart(text="So"), CALL), raw="<|x|>\n", model="m"),
    ToolMessage.from_result(CALL.result({"t": 4})),
    CustomMessage(custom_type="note", payload={"at": [1, 2]}),
    RescueMessage(content="again"),
    FlushMessage(),
]


def test_what_is_logged_can_be_read(tmp_path):
    context = RunContext(iteration=3, model="m", timings=Timings(prefill=0.5), metadata={"run": 1})
    before = datetime.now(UTC)
    with MessageLog(tmp_path / "logs") as log:
        assert log.path is None
        assert not (tmp_path / "logs").exists(), "nothing is made before something is logged"
        for message in CONVERSATION:
            log.append(message, "t1", context)
        log.append(UserMessage.text("alone"))
        path = log.path
    found = read_log(path)
    assert found.problems == ()
    assert [record.message for record in found.records] == [*CONVERSATION, UserMessage.text("alone")]
    assert [(record.thread_id, record.context) for record in found.records[:-1]] == [("t1", context)] * 7
    assert (found.records[-1].thread_id, found.records[-1].context) == (None, None)
    times = [record.logged_at for record in found.records]
    assert before <= times[0]
    assert times == sorted(times)
    assert list(json.loads(path.read_bytes().splitlines()[0])) == [
        "logged_at",
        "thread_id",
        "context",
        "message",
    ]


def test_every_log_has_a_private_file_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path / "home"))
    logs = [MessageLog() for _ in range(20)]
    for log in logs:
        log.append(UserMessage.text("hi"))
    names = {log.path.name for log in logs}
    assert len(names) == 20, "every log has its own"
    pattern = rf"\d{{8}}T\d{{6}}\.\d{{3}}Z-{os.getpid()}(-\d+)?\.jsonl"
    assert all(re.fullmatch(pattern, name) for name in names)
    folder = tmp_path / "home" / "logs"
    assert {log.path.parent for log in logs} == {folder}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    for log in logs:
        log.close()
        log.close()


def test_logs_of_one_millisecond_are_numbered(tmp_path, monkeypatch):
    monkeypatch.setattr("localagent.log._stamp", lambda: "now")
    for end in ("", "-2", "-3"):
        with MessageLog(tmp_path) as log:
            log.append(FlushMessage())
        assert log.path == tmp_path / f"now-{os.getpid()}{end}.jsonl"


def test_after_the_end(tmp_path):
    log = MessageLog(tmp_path)
    log.close()
    with pytest.raises(UsageError, match="closed"):
        log.append(UserMessage.text("hi"))
    assert list(tmp_path.iterdir()) == []


def test_a_line_is_there_at_once(tmp_path):
    with MessageLog(tmp_path) as log:
        for count in range(1, 4):
            log.append(UserMessage.text("hi"))
            assert len(read_log(log.path).records) == count


def test_a_file_that_was_removed_is_made_anew(tmp_path):
    with MessageLog(tmp_path) as log:
        log.append(UserMessage.text("one"))
        log.path.unlink()
        log.append(UserMessage.text("two"))
        assert [record.message.text for record in read_log(log.path).records] == ["two"]
        assert held_open(tmp_path) == [str(log.path)], "the one that was removed is let go"
    assert held_open(tmp_path) == []


def held_open(folder: Path) -> list[str]:
    """The files below a folder that this process has open."""
    if sys.platform != "linux":
        pytest.skip("/proc says which files are open")
    found = []
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the one that lists them
            found.append(str(descriptor.readlink()))
    return [file for file in found if file.startswith(str(folder))]


def test_threads_share_a_log(tmp_path):
    with MessageLog(tmp_path) as log:

        def work(name: str) -> None:
            for number in range(50):
                log.append(UserMessage.text("x" * 5000 + f" {number}"), name)

        threads = [threading.Thread(target=work, args=(str(name),)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = read_log(log.path)
    assert list(tmp_path.iterdir()) == [log.path]
    assert found.problems == ()
    for name in range(8):
        own = [r.message.text.split()[1] for r in found.records if r.thread_id == str(name)]
        assert own == [str(number) for number in range(50)]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"role": "wizard", "content": []}, "record.message: 'wizard' is not a role here; there are 'system', 'user'"),
        ({"role": "user", "content": [{"kind": "text"}]}, "record.message.user.content[0].text"),
        ({"role": "user"}, "record.message.user.content"),
        ({"role": "user", "content": [], "colour": 1}, "colour"),
        ("hi", "record.message"),
        (None, "record.message"),
    ],
)  # fmt: skip
def test_a_message_of_another_world_is_a_problem(tmp_path, message, says):
    with MessageLog(tmp_path) as log:
        log.append(UserMessage.text("one"))
        with log.path.open("ab") as file:
            file.write(json.dumps({"logged_at": "2026-01-01T00:00:00Z", "message": message}).encode() + b"\n")
        log.append(UserMessage.text("two"))
        found = read_log(log.path)
    assert [record.message.text for record in found.records] == ["one", "two"]
    (problem,) = found.problems
    assert problem.line == 2
    assert says in problem.reason
    assert "\n" not in problem.reason


def test_a_log_cut_anywhere(tmp_path):
    with MessageLog(tmp_path) as log:
        for message in CONVERSATION:
            log.append(message, "t")
    whole, path = log.path.read_bytes(), tmp_path / "cut.jsonl"
    start = whole.rstrip(b"\n").rfind(b"\n", 0, whole.rstrip(b"\n").rfind(b"\n")) + 1  # of the last two lines
    for cut in range(start, len(whole) + 1):
        path.write_bytes(whole[:cut])
        found = read_log(path)
        count = len(found.records)
        assert [record.message for record in found.records] == CONVERSATION[:count]
        assert count >= whole[:cut].count(b"\n")
        assert len(found.problems) == (cut > sum(map(len, whole.splitlines(keepends=True)[:count])))


def test_kills_at_random_moments(tmp_path):
    """Real writers, real SIGKILLs: what was appended is there, and at most one line is torn."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.killing", "log", tmp_path, "120", str(time.time_ns())],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["kills"] == 120


def test_a_fork_while_a_thread_logs(tmp_path):
    """The child has a copy of the lock that another thread of its parent held, and nobody to release it."""
    with MessageLog(tmp_path) as log:
        log.append(UserMessage.text("parent"))
        with log._lock:
            child = os.fork()
            if child == 0:
                log.append(UserMessage.text("child"))
                os._exit(0)
        for _ in range(100):
            if os.waitpid(child, os.WNOHANG)[0]:
                break
            time.sleep(0.1)
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child waits for ever")
    words = sorted(record.message.text for path in tmp_path.iterdir() for record in read_log(path).records)
    assert words == ["child", "parent"]


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="it is not a file"):
        read_log(tmp_path / "pipe")
    for call in (lambda: read_log("a\0b"), lambda: MessageLog("a\0b").append(FlushMessage())):
        with pytest.raises(LocalAgentError, match="null byte"):
            call()


def test_what_was_changed_after_validation_is_refused(tmp_path):
    call = ToolCallPart(id="c", name="f", arguments={"a": 1})
    for bad in (object(), float("nan"), "\ud800"):
        odd = call.model_copy(update={"arguments": {"a": bad}})
        message = AssistantMessage(content=(call,)).model_copy(update={"content": (odd,)})
        with MessageLog(tmp_path) as log, pytest.raises(InvalidMessage, match="record"):
            log.append(message)
    assert not list(tmp_path.iterdir())


def test_a_long_log_loads_whole(tmp_path):
    context = RunContext(iteration=1, model="m", timings=Timings(prefill=0.1, decode=0.2))
    with MessageLog(tmp_path) as log:
        for number in range(2_000):
            log.append(CONVERSATION[number % 4], "t", context)
    read = read_log(log.path)
    assert [record.message for record in read.records] == [CONVERSATION[n % 4] for n in range(2_000)]
    assert not read.problems


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda log, _: log.append("hi"), InvalidMessage, "record.message"),
        (lambda log, _: log.append(UserMessage.text("hi"), 3), InvalidMessage, "record.thread_id"),
        (lambda log, _: log.append(UserMessage.text("hi"), "\ud800"), InvalidMessage, "surrogate"),
        (lambda _, folder: MessageLog(folder / "file").append(FlushMessage()), SaveFailed, "cannot write to .*file"),
        (lambda _, folder: MessageLog(folder / "file/x").append(FlushMessage()), SaveFailed, "cannot write to "),
        (lambda _, folder: read_log(folder / "none"), UsageError, "cannot read .*none': No such file"),
        (lambda _, folder: read_log(folder), UsageError, "it is not a file"),
        (lambda _, __: RunContext(iteraton=3), ValidationError, "iteraton"),
        (lambda _, __: RunContext(iteration=-1), ValidationError, "iteration"),
        (lambda _, __: RunContext(metadata={"a": float("nan")}), ValidationError, "nan is not JSON"),
        (lambda _, __: LogRecord(message=FlushMessage(), logged_at=datetime(2026, 1, 1)), ValidationError, "timezone"),
    ],
)  # fmt: skip
def test_what_cannot_be_logged_or_read_is_refused(tmp_path, call, error, says):
    (tmp_path / "file").touch()
    with MessageLog(tmp_path / "logs") as log, pytest.raises(error, match=says) as raised:
        call(log, tmp_path)
    if error is not ValidationError:
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "logs").exists()


def test_home_of_nobody(monkeypatch):
    monkeypatch.setenv("LOCALAGENT_HOME", "~nosuchuser")
    with pytest.raises(UsageError, match="LOCALAGENT_HOME=~nosuchuser: no such home folder"):
        MessageLog()
