"""What a server's failure is called, and what of its own words goes with it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import httpx2
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED

from localagent.errors import McpFailed
from localagent.mcp.failures import describe, failure
from localagent.mcp.transport import KEPT, SHOWN, Traces


def traces(status: int | None = None, stderr: bytes = b"") -> Traces:
    made = Traces()
    made.status = status
    made.keep(stderr)
    return made


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (McpFailed("it\nfailed"), None, "it\nfailed"),
        (MCPError(code=-1, message="Server returned an error response"), 418, "HTTP 418: it failed"),
        (
            MCPError(code=-1, message="Server returned an error response"), 405,
            "HTTP 405: nothing there speaks MCP: check the url",
        ),
        (MCPError(code=-1, message="Not Found"), None, "Not Found"),
        (MCPError(code=-1, message="its own words"), 405, "its own words"),
        (
            MCPError(code=-1, message="Unexpected content type: text/html"), None,
            "it answered with text/html: check the url",
        ),
        (MCPError(code=-1, message="Unexpected content type: "), None, "it answered with no type: check the url"),
        (MCPError(code=CONNECTION_CLOSED, message="Connection closed"), None, "the server ended before it answered"),
        (httpx2.ConnectError("all attempts\nfailed"), None, "it cannot be reached: all attempts failed"),
        (httpx2.ConnectError(""), None, "it cannot be reached: ConnectError"),
        (FileNotFoundError(2, "No such file or directory", "prog"), None, "prog cannot be started: No such file or directory"),
        (OSError(5, "Input/output error"), None, "[Errno 5] Input/output error"),
        (KeyError(), None, "KeyError"),
        (ValueError("a\n b"), None, "a b"),
        (ValueError("x" * 300), None, "x" * 300),
        (ValueError("x" * 301), None, "x" * 297 + "..."),
        (httpx2.ConnectError("x" * 301), None, f"it cannot be reached: {'x' * 297}..."),
        (FileNotFoundError(2, "No such file", "p" * 201), None, f"'{'p' * 199} cannot be started: No such file"),
        (ExceptionGroup("g", [ExceptionGroup("h", [ValueError("inner")]), KeyError("x")]), None, "inner"),
    ],
)  # fmt: skip
def test_an_error_in_plain_words(error, status, said):
    assert describe(error, traces(status)) == said


def test_a_failure_names_the_server_and_what_it_wrote():
    assert (
        str(failure("s", "it ended")) == str(failure("s", "it ended", traces())) == "MCP server 's': it ended"
    )
    wrote = traces(stderr=b"Traceback\n\n  \x1b[31mValueError\xff: no\t key\n")
    assert str(failure("s", "it ended", wrote)) == (
        "MCP server 's': it ended [it wrote: Traceback | [31mValueError\N{REPLACEMENT CHARACTER}: no key]"
    )
    assert len(str(failure("n" * 1000, "it ended"))) < 120


def test_the_end_of_what_it_wrote_is_kept():
    kept = traces()
    for number in range(1000):
        kept.keep(b"%09d\n" % number)
    assert kept.stderr.endswith(" | 000000998 | 000000999")
    assert len(kept.stderr) == SHOWN
    kept.keep(b"x" * SHOWN)
    assert kept.stderr == "x" * SHOWN
    whole = traces(stderr=b"a " + b" " * (KEPT - 2))
    assert whole.stderr == "a"
    whole.keep(b" ")
    assert whole.stderr == "", "one more, and the first is gone"
    whole.keep(b"b" + b" " * (KEPT - 2))
    assert whole.stderr == "b"


@pytest.mark.parametrize(
    ("status", "method", "headers", "kept", "lost"),
    [
        (200, "POST", {}, None, False),
        (399, "POST", {}, None, False),
        (400, "POST", {}, 400, False),
        (404, "POST", {}, 404, False),
        (404, "POST", {"mcp-session-id": "7"}, 404, True),
        (400, "POST", {"mcp-session-id": "7"}, 400, False),
        (404, "GET", {"mcp-session-id": "7"}, None, False),
        (405, "GET", {}, None, False),
    ],
)
def test_which_answers_are_noted(status, method, headers, kept, lost):
    """A server may refuse the GET for its own messages, and be fine."""
    seen = Traces()
    request = SimpleNamespace(method=method, headers=headers)
    asyncio.run(seen.look(SimpleNamespace(status_code=status, request=request)))
    assert (seen.status, seen.lost_session) == (kept, lost)
