"""What the state of a server is said to be, from its connection; no server is started."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from localagent.errors import McpFailed
from localagent.mcp.config import load_config
from localagent.mcp.server import McpServer


def server(link) -> McpServer:
    [config] = load_config({"s": {"command": "program"}})
    made = McpServer(config, None, 1.0, lambda *_: None)
    made._link = link
    made.listing = (SimpleNamespace(name="t"), SimpleNamespace(name="u"))
    return made


def link(*, opened: bool, ready: bool, error: McpFailed | None = None):
    event = SimpleNamespace(is_set=lambda: ready)
    return SimpleNamespace(open=opened, ready=event, error=error, about="real 1.2", stop=lambda: None)


@pytest.mark.parametrize(
    ("its_link", "state", "about", "error"),
    [
        (None, "closed", "", None),
        (link(opened=False, ready=False), "starting", "real 1.2", None),
        (link(opened=True, ready=True), "running", "real 1.2", None),
        (link(opened=False, ready=True, error=McpFailed("no such file")), "failed", "real 1.2", "no such file"),
        (link(opened=True, ready=True, error=McpFailed("its tools")), "running", "real 1.2", "its tools"),
    ],
)  # fmt: skip
def test_states(its_link, state, about, error):
    status = server(its_link).status
    assert (status.name, status.state, status.about, status.error) == ("s", state, about, error)
    assert status.tools == ("t", "u")


def test_a_connection_that_is_being_closed_has_ended_by_itself():
    status = server(link(opened=False, ready=True)).status
    assert status.state == "failed"
    assert "ended by itself" in status.error


@pytest.mark.parametrize("its_link", [None, link(opened=True, ready=True)])
def test_what_was_closed_stays_closed(its_link):
    made = server(its_link)
    made.close()
    assert (made.status.state, made.status.error, made.status.tools) == ("closed", None, ("t", "u"))
