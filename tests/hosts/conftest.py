"""One loaded host for the tests that only need some model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localagent.hosts.llamacpp.host import LlamaCppHost


@pytest.fixture(scope="session")
def host(gguf: Path) -> Iterator[LlamaCppHost]:
    with LlamaCppHost.load(gguf, context=1024, chunk=32, threads=1) as loaded:
        yield loaded
