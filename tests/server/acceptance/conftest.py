"""The servers that several of these tests ask; `scenes.playing` makes the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localagent.model import load
from localagent.server.app import all_wires
from tests.agent.replaying import scripted
from tests.server.acceptance.scenes import ANSWER
from tests.server.serving import Running, serving


@pytest.fixture(scope="package")
def nano_server(nano: dict[str, Path]) -> Iterator[Running]:
    """A server of lfm2-nano, whose window is 4,096 tokens."""
    with serving(load(nano["llamacpp"], lanes=2), wires=all_wires()) as running:
        yield running


@pytest.fixture
def two_models() -> Iterator[Running]:
    """With two models served, a name that neither has is an error."""
    with serving(scripted(ANSWER), scripted(ANSWER), wires=all_wires()) as running:
        yield running
