"""The connection to a server: through a proxy where the environment names one."""

from __future__ import annotations

import pytest

from localagent.errors import LocalAgentError, UnknownModel
from localagent.hosts.remote.http import Server
from tests.remote.scripted import scripted, whole


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_a_model_that_the_server_does_not_have_is_an_unknown_model():
    refusal = whole({"error": {"message": "no model x", "code": "model_not_found"}}, status=404)
    with scripted(refusal) as server, pytest.raises(UnknownModel) as error:
        Server.at(server.url).ask("/v1/chat/completions", {"model": "x"})
    assert str(error.value) == f"{server.url}: no model x"


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_proxy_is_asked_for_the_whole_address(monkeypatch, scheme):
    with scripted() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("http://", scheme))
        with pytest.raises(LocalAgentError):
            Server.at("http://models.example:8000/base").ask("/v1/other")
        assert proxy.asked[0].line == "GET http://models.example:8000/base/v1/other HTTP/1.1"
        assert proxy.asked[0].headers["host"] == "models.example:8000"


def test_a_proxy_makes_a_tunnel_for_what_is_secured(monkeypatch):
    with scripted() as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        with pytest.raises(LocalAgentError, match="no server answers at https"):
            Server.at("https://models.example").ask("/v1/models")
        assert proxy.asked[0].line.startswith("CONNECT models.example:443 HTTP/1.")


def test_this_machine_and_those_that_are_excepted_are_asked_directly(monkeypatch):
    with scripted() as proxy, scripted() as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert Server.at(server.url).ask("/v1/models")["object"] == "list"
        monkeypatch.setenv("no_proxy", "models.example")
        with pytest.raises(LocalAgentError, match="no server answers"):
            Server.at("http://models.example:1").ask("/v1/models")
        assert not proxy.asked


@pytest.mark.parametrize("host", ["a..b", "a" * 70 + ".example"])
def test_a_name_that_no_host_can_have_is_no_server(host):
    with pytest.raises(LocalAgentError, match="no server answers"):
        Server.at(f"http://{host}:1").ask("/v1/models")
