"""What is sent to a server, request by request, and what is told of one that keeps every rule: kept in wire.txt, which
`python -m tests.bench.server.test_wire` writes anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from localagent.remote import Server
from localagent_bench.results import Results
from localagent_bench.server.checking import CHECKS, check_servers
from localagent_bench.server.target import MeasuredServer
from tests.bench.server.imitation import CONTEXT, KEY, imitation

KEPT = Path(__file__).with_name("wire.txt")
_SHOWN = 1500
"""Characters of a request."""


def seen() -> Iterator[str]:
    """All requests that the checks send, and the rows that they make, in order; seconds are left out."""
    results, lines = Results("server", {}), list[str]()
    with imitation() as server:
        target = MeasuredServer("imitation", Server.at(server.url, KEY, 5), "words", CONTEXT)
        (there,) = check_servers(results, [target], 10, lines.append)
        assert there is target
    yield from lines
    for path, data in server.heard:
        text = data.decode()
        yield f"{path} {text if len(text) <= _SHOWN else f'{text[:_SHOWN]}... {len(text):,} characters'}".rstrip()
    for check, row in zip(CHECKS, results.run.rows["server.rules"], strict=True):
        told = re.sub(r"\d\.\d+ s", "... s", row["seen"])
        yield f"{check.about}: {row['rule']} [{row['sent']}] {row['outcome']}: {told}"


def test_a_server_is_asked_what_it_was_asked_ever() -> None:
    assert [*seen()] == KEPT.read_text().splitlines()
    assert len(CHECKS) == 57


if __name__ == "__main__":
    KEPT.write_text("".join(f"{line}\n" for line in seen()))
