"""The same over streamable HTTP, with a real server, and what else may answer at an address."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from localagent.errors import McpFailed, ToolError
from localagent.mcp import McpServers
from localagent.mcp.tools import Arguments
from tests.mcp.conftest import call, eventually
from tests.mcp.test_servers import cancel_while_waiting


def test_tools_progress_and_cancelling(http_server, tmp_path):
    heard = []
    with McpServers(http_server.config) as servers:
        assert servers.status()[0].about == "real 1.2"
        assert call(servers, "http_add", {"a": 20, "b": 22}).content == "42"
        call(servers, "http_steps", report=lambda text, share: heard.append(text))
        assert heard == ["step 1", "step 2", "step 3"]
        assert len(call(servers, "http_long_text", {"size": 3_000_000}).content) == 3_000_000
        cancel_while_waiting(servers, "http_wait", tmp_path)


def test_a_changed_list_is_listed_anew(http_server):
    with McpServers(http_server.config) as servers:
        before = len(servers.tools())
        call(servers, "http_learn")
        eventually(lambda: len(servers.tools()) == before + 1, "the new tool")


def test_a_server_that_crashes_in_a_call_and_comes_back(http_server):
    with McpServers(http_server.config) as servers:
        with pytest.raises(ToolError, match="it may have done part of it"):
            call(servers, "http_crash")
        http_server.stop()
        with pytest.raises(ToolError, match=r"cannot be reached|gave no result|ended during the call"):
            call(servers, "http_add", {"a": 1, "b": 1})
        http_server.start()
        servers.restart("http")
        assert call(servers, "http_add", {"a": 1, "b": 1}).content == "2"


def test_a_server_that_forgot_the_session_is_met_anew(http_server):
    with McpServers(http_server.config) as servers:
        assert call(servers, "http_add", {"a": 1, "b": 1}).content == "2"
        http_server.stop()
        http_server.start()
        with pytest.raises(ToolError, match="has forgotten the session, and did not run the call: try again"):
            call(servers, "http_add", {"a": 1, "b": 1})
        assert call(servers, "http_add", {"a": 1, "b": 1}).content == "2"


class Answering(BaseHTTPRequestHandler):
    """Answers everything with the status and the type of its server."""

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.heard.append(dict(self.headers))
        body = (
            b"<html><body>Welcome!</body></html>" if self.server.kind != "application/json" else b"{no json"
        )
        self.send_response(self.server.status)
        self.send_header("Content-Type", self.server.kind)
        self.send_header("Content-Length", str(len(body)))
        if self.server.status == 307:
            self.send_header("Location", "http://127.0.0.2:9/elsewhere")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def answering():
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        server.heard = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (401, "text/plain", "HTTP 401: it requires authentication: put a token under headers"),
        (404, "text/html", "HTTP 404: nothing is there: check the url"),
        (500, "text/html", "HTTP 500: it failed"),
        (503, "application/json", "HTTP 503: it failed"),
        (200, "text/html", "it answered with text/html: check the url"),
        (200, "application/json", "Failed to parse JSON response"),
        (202, "text/plain", "server answered a request with 202 Accepted"),
        (307, "text/plain", "Redirect to http://127.0.0.2:9/elsewhere not followed"),
    ],
)
def test_what_is_no_server(answering, status, kind, said):
    answering.status, answering.kind = status, kind
    config = {"web": {"url": f"http://127.0.0.1:{answering.server_port}/mcp", "headers": {"X-Token": "abc"}}}
    with pytest.raises(McpFailed) as failed:
        McpServers(config).open()
    assert str(failed.value).startswith("MCP server 'web': ")
    assert said in str(failed.value)
    assert "\n" not in str(failed.value)
    assert {name.lower(): value for name, value in answering.heard[0].items()}["x-token"] == "abc"


def test_a_schema_makes_no_request(answering):
    answering.status, answering.kind = 200, "application/json"
    elsewhere = f"http://127.0.0.1:{answering.server_port}/schema"
    Arguments("t", {"type": "object", "properties": {"a": {"$ref": elsewhere}}}).check({"a": 1})
    assert answering.heard == []


def test_an_address_where_no_server_listens_is_an_error_with_its_name():
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as free:
        port = free.server_port
    with pytest.raises(McpFailed, match="'web': it cannot be reached"):
        McpServers({"web": {"url": f"http://127.0.0.1:{port}/mcp"}}).open()


def test_a_header_that_is_none():
    with pytest.raises(McpFailed, match="MCP server 'web'"):
        McpServers({"web": {"url": "http://127.0.0.1:9/mcp", "headers": {"X": "a\u2603"}}}).open()
