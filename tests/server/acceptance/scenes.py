"""What all clients are put through: the scripted answers, the servers, and which version of a client runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from localagent.hosts.replay import ReplayHost
from localagent.server.app import all_wires
from tests.agent.replaying import block, scripted
from tests.server.serving import Running, serving

QUESTION = "Will it rain in Oslo?"
ASK = [{"role": "user", "content": QUESTION}]
CALL = "Let me see." + block('get_weather(place="Oslo")')
RAIN = "Rain at 9°, says the tool."
ANSWER = "Yes, take an umbrella."
THOUGHT = "<think>Oslo is wet.</think>Yes."
TOO_LONG = "word " * 12_000
"""For lfm2-nano, whose window is 4,096 tokens."""
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}


class Paint(BaseModel):
    """What lfm2-nano would never write by itself."""

    colour: Literal["red", "blue"]
    litres: Literal[1, 2]


NOWHERE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
NOWHERE |= dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost")
"""For the environment of a client: whatever else it would like to ask is refused at once."""
LONGEST = 60
"""Seconds that a client may wait for an answer: the machines that run tests are busy."""


def must_run() -> bool:
    """Whether a client that is missing is a failure, as it is in CI, and not a skipped test."""
    return bool(os.environ.get("LOCALAGENT_ALL_CLIENTS"))


def client(*packages: str) -> Any:
    """Marks a test that runs these packages, so that its name says their versions; it takes `client`."""
    names, missing = [], None
    for package in packages:
        try:
            names.append(f"{package}-{version(package)}")
        except PackageNotFoundError:
            names.append(package)
            missing = f"{package} is not installed: pip install --group clients"
    return named("+".join(names), missing)


def named(name: str, missing: str | None) -> Any:
    """Gives a test its `client`. `missing`: why that cannot run here."""
    skip = pytest.mark.skipif(missing is not None and not must_run(), reason=str(missing))
    return pytest.mark.parametrize("client", [pytest.param(name, id=name, marks=skip)])


@contextmanager
def playing(*outputs: str, **options: Any) -> Iterator[Running]:
    """A server whose model writes these outputs, one a turn, and then the last one again."""
    with serving(scripted(*outputs), wires=all_wires(), **options) as running:
        yield running


def heard(server: Running) -> list[Sequence[Any]]:
    """The conversations that the model of `playing` was given."""
    model = server.service.pool.served["model-1"].model
    assert model is not None and isinstance(model.host, ReplayHost)
    return model.host.rendered


def spoken(conversation: Sequence[Any]) -> list[str]:
    """A conversation in a line for each message: who, and what was said in the model's own notation."""
    return [f"{message['role']}: {''.join(message['content'])}" for message in conversation]


LOOP = [f"user: {QUESTION}", f"assistant: {CALL}", f"tool: {RAIN}"]
"""What a model is told in the second turn of an agent's loop."""
