"""Writers that are killed: `python -m tests.killing log|session FOLDER ROUNDS SEED`.

A process of one thread forks writers that append as fast as they can, kills each at a random moment, reads
what is there, and goes on. Prints one JSON line of figures; whatever is wrong is an AssertionError.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from localagent.log import MessageLog, read_log
from localagent.messages import UserMessage
from localagent.session import Session

LONGEST = 0.02  # seconds that a writer may live


def text(number: int) -> str:
    """What is appended at that place: some of it short, some of it a megabyte, which takes many pages."""
    size = (20, 300, 40_000, 1_000_000)[number * 2654435761 % 4]
    return f"{number}:" + "x" * size


class Writer:
    """A forked process that appends, and tells through a pipe of every line that is out of its hands."""

    def __init__(self, write: Callable[[Callable[[], None]], None]) -> None:
        self._heard, says = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._heard)
            try:
                write(lambda: os.write(says, b"."))
            except BaseException as error:
                os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os.close(says)

    def started(self) -> bool:
        return os.read(self._heard, 1) == b"."

    def kill(self) -> int:
        """End it; returns how many lines it was told were appended."""
        os.kill(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        assert os.WIFSIGNALED(status), "the writer ended by itself"
        count = 1
        while piece := os.read(self._heard, 65536):
            count += len(piece)
        os.close(self._heard)
        return count


@contextmanager
def killed(*writes: Callable[[Callable[[], None]], None]) -> Iterator[list[int]]:
    """Start writers, kill them at a random moment; the counts of what they appended."""
    writers = [Writer(write) for write in writes]
    assert all(writer.started() for writer in writers)
    time.sleep(random.random() * LONGEST)
    random.shuffle(order := list(range(len(writers))))
    counts = {at: writers[at].kill() for at in order}
    yield [counts[at] for at in range(len(writers))]


def check(numbers: list[str], told: int) -> None:
    """Exactly a prefix of what was appended, and all that the writer knew to be there."""
    assert numbers == [text(number) for number in range(len(numbers))]
    assert told <= len(numbers) <= told + 1, (told, len(numbers))


def kill_logs(folder: Path, rounds: int) -> dict[str, int]:
    torn = lines = 0
    for number in range(rounds):
        home = folder / str(number)

        def write(tell: Callable[[], None], home: Path = home) -> None:
            log = MessageLog(home)
            for at in range(1_000_000):
                log.append(UserMessage.text(text(at)), thread_id="t")
                tell()

        with killed(write) as (told,):
            (path,) = home.iterdir()
            found = read_log(path)
            check([record.message.text for record in found.records], told)
            assert len(found.problems) <= 1
            torn += len(found.problems)
            lines += len(found.records)
        with MessageLog(home) as log:  # the next run has a file of its own
            log.append(UserMessage.text("next"))
            assert log.path != path
            assert len(read_log(log.path).records) == 1
        path.unlink()
    return {"kills": rounds, "torn": torn, "lines": lines}


def kill_sessions(folder: Path, rounds: int) -> dict[str, int]:
    """Two writers at a time on one session, which goes on from kill to kill."""
    torn = lines = 0
    for number in range(rounds // 2):
        if number % 2 == 0:
            session, before, seen = Session.create(folder), (), 0
            session.append(UserMessage.text("start"))

        def writer(name: str, file: Path = session.file) -> Callable[[Callable[[], None]], None]:
            def write(tell: Callable[[], None]) -> None:
                own = Session.open(file)
                for at in range(1_000_000):
                    own.append(UserMessage.text(text(at), agent_name=name))
                    tell()

            return write

        first, second = f"{number}a", f"{number}b"
        with killed(writer(first), writer(second)) as told:
            session = Session.open(session.file)
            assert session.entries[: len(before)] == before, "what was there before is untouched"
            for name, count in zip((first, second), told, strict=True):
                own = [e.message for e in session.entries if e.message.agent_name == name]
                check([message.text for message in own], count)
            assert not any("parent" in problem.reason for problem in session.problems)
            fresh = len(session.problems) - seen
            # One torn line of each at most: the second finds the first one's tail and seals it.
            assert 0 <= fresh <= 2, session.problems
            torn += fresh
            lines += len(session.entries) - len(before)
            session.append(UserMessage.text("next"))
            session = Session.open(session.file)
            assert session.entries[-1].message.text == "next"
            before, seen = session.entries, len(session.problems)
        if number % 2 == 1:
            session.file.unlink()
    return {"kills": rounds, "torn": torn, "lines": lines}


if __name__ == "__main__":
    kind, folder, rounds, seed = sys.argv[1:]
    random.seed(int(seed))
    kill = {"log": kill_logs, "session": kill_sessions}[kind]
    print(json.dumps(kill(Path(folder), int(rounds))))
