"""Tools of a real server over stdio: every result comes back, a dead server is started again, none outlives us."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from localagent.errors import InvalidArguments, McpFailed, ToolError, UsageError
from localagent.mcp import McpServers
from localagent.messages import ImagePart, ToolCallPart
from tests.mcp.conftest import call, context, eventually, hostile, real, tool_of

ROOT = Path(__file__).parents[2]


def test_what_is_listed(servers):
    [status] = servers.status()
    assert (status.name, status.state, status.about, status.error) == ("real", "running", "real 1.2", None)
    assert "add" in status.tools
    tool = tool_of(servers, "real_add")
    assert tool.description == "Add two numbers."
    assert tool.parameters["required"] == ["a", "b"]
    assert not tool.repeatable
    assert tool_of(servers, "real_get-time.now").description == "The time"


def test_a_tool_asks_unless_it_only_reads(servers):
    assert not tool_of(servers, "real_add").side_effects
    assert tool_of(servers, "real_fail").side_effects


def test_a_call_returns_text_and_structured_content(servers):
    output = call(servers, "real_add", {"a": 2, "b": 40})
    assert (output.content, output.is_error) == ("42", False)
    assert output.metadata["mcp_tool"] == "add"
    assert output.metadata["structured_content"] == {"result": 42}
    assert call(servers, "real_get-time.now", {"zone": "CET"}).content == "noon in CET"


def test_an_error_of_the_tool_is_an_error_result(servers):
    output = call(servers, "real_fail")
    assert output.is_error
    assert "the disk is full" in output.content


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"a": 1}, "'b' is a required property"),
        ({"a": "one", "b": 2}, "a: 'one' is not of type 'integer'"),
        ([1, 2], "are an object, not list"),
    ],
)
def test_arguments_that_do_not_fit(servers, arguments, said):
    with pytest.raises(InvalidArguments, match="real_add") as refused:
        tool_of(servers, "real_add").bind(arguments)
    assert said in str(refused.value)


def test_an_image_comes_back_as_an_image_part(servers):
    output = call(servers, "real_picture")
    [image] = output.content
    assert isinstance(image, ImagePart)
    assert image.media_type == "image/png"
    ToolCallPart(id="1", name="picture").result(output.content)


def test_other_content_is_text(servers):
    assert call(servers, "real_pieces").content.split("\n") == [
        "one",
        "two",
        "file:///b.txt (three; text/plain)",
        "[the file file:///c.bin: application/zip, 3 bytes]",
    ]


def test_progress_comes_in_the_callers_thread_and_in_order(servers):
    heard = []
    call(
        servers,
        "real_steps",
        report=lambda text, share: heard.append((text, round(share, 2), threading.current_thread())),
    )
    assert [(text, share) for text, share, _ in heard] == [
        ("step 1", 0.33),
        ("step 2", 0.67),
        ("step 3", 1.0),
    ]
    assert {thread for *_, thread in heard} == {threading.current_thread()}


def test_who_follows_the_progress_may_fail(servers):
    def report(text, share):
        raise KeyError(text)

    with pytest.raises(KeyError):
        call(servers, "real_steps", report=report)
    assert call(servers, "real_add", {"a": 1, "b": 1}).content == "2"


def cancel_while_waiting(servers, name, folder):
    cancel = threading.Event()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(call, servers, name, {"record": str(folder)}, cancel=cancel)
        eventually((folder / "started").exists)
        assert not running.done()
        cancel.set()
        with pytest.raises(ToolError, match="was cancelled"):
            running.result(timeout=30)
    eventually((folder / "cancelled").exists, "the cancellation on the server")


def test_cancelling_reaches_the_server(servers, tmp_path):
    cancel_while_waiting(servers, "real_wait", tmp_path)
    assert call(servers, "real_add", {"a": 1, "b": 1}).content == "2"


def test_twenty_calls_run_at_once(servers, tmp_path):
    with ThreadPoolExecutor(20) as pool:
        jobs = [{"folder": str(tmp_path), "me": f"m{number}", "others": 20} for number in range(20)]
        outputs = list(pool.map(lambda job: call(servers, "real_meet", job), jobs))
    assert [output.content for output in outputs] == [f"m{number} met them" for number in range(20)]


def test_a_result_of_megabytes_comes_back_whole(servers):
    assert call(servers, "real_long_text", {"size": 5_000_000}).content == "x" * 5_000_000


@pytest.mark.parametrize("what", ["roots", "sampling", "elicitation"])
def test_a_server_that_asks_for_something_is_told_that_there_is_none(servers, what):
    with pytest.raises(ToolError, match=r"(?i)not supported"):
        call(servers, "real_ask", {"what": what})


def test_a_changed_list_is_listed_anew():
    with McpServers({"real": real()}) as servers:
        before = servers.tools()
        assert servers.tools() == before
        call(servers, "real_learn")
        eventually(lambda: len(servers.tools()) == len(before) + 1, "the new tool")
        assert call(servers, "real_fresh").content == "fresh"


def test_environment_and_working_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_PARENT", "abc")
    config = {"real": real(env={"GREETING": "hi"}, cwd=str(tmp_path))}
    with McpServers(config) as servers:
        assert call(servers, "real_surroundings").content == f"hi None {tmp_path.resolve()}"


def test_filters_approvals_and_times(tmp_path):
    limits = {
        "tools": ["add", "fail", "wait"],
        "disabledTools": ["add"],
        "alwaysAllow": ["fail"],
        "timeout": 0.5,
    }
    with McpServers({"r": {**real(), **limits}}) as servers:
        assert {tool.name: tool.side_effects for tool in servers.tools()} == {"r_fail": False, "r_wait": True}
        assert tool_of(servers, "r_wait").timeout == 0.5
        with pytest.raises(ToolError, match=r"did not answer within 0\.5 s; it may have done part of it"):
            call(servers, "r_wait", {"record": str(tmp_path)})
        eventually((tmp_path / "cancelled").exists, "the cancellation on the server")


def test_names_with_and_without_prefix():
    with McpServers({"my server/2": hostile("fine")}) as servers:
        assert [tool.name for tool in servers.tools()] == ["my_server_2_t"]
    with McpServers({"a": hostile("fine")}, prefix=False) as servers:
        assert [tool.name for tool in servers.tools()] == ["t"]
    problems = []
    config = {"a": hostile("fine"), "b": hostile("fine")}
    with McpServers(config, prefix=False, on_problem=lambda *it: problems.append(str(it[1]))) as servers:
        assert [tool.origin[0] for tool in servers.tools()] == ["a"]
    assert problems == ["MCP server 'b': left out: tool t: models cannot tell it from t of the server a"]


def test_a_crash_during_a_call_is_told_and_the_next_call_starts_the_server_anew():
    problems = []
    with McpServers({"real": real()}, on_problem=lambda *problem: problems.append(problem)) as servers:
        first = call(servers, "real_pid").content
        with pytest.raises(ToolError, match="real ended during the call; it may have done part of it"):
            call(servers, "real_crash")
        assert call(servers, "real_pid").content != first
        eventually(lambda: problems)
        [(name, problem)] = problems
        assert name == "real"
        assert "Segmentation fault (nearly)" in str(problem)
        assert not psutil.pid_exists(int(first))


def test_a_server_that_was_killed_is_started_by_the_next_call():
    with McpServers({"real": real()}) as servers:
        process = psutil.Process(int(call(servers, "real_pid").content))
        process.kill()
        eventually(lambda: servers.status()[0].error)
        assert "ended by itself" in servers.status()[0].error
        assert "real_add" in [tool.name for tool in servers.tools()]  # or nobody would ever call it again
        assert call(servers, "real_add", {"a": 1, "b": 1}).content == "2"
        assert servers.status()[0].state == "running"


def test_a_server_that_keeps_dying_is_left_alone_for_a_while(monkeypatch):
    import localagent.mcp.server

    with McpServers({"h": hostile("dies_in_call")}) as servers:
        for _ in range(localagent.mcp.server.ATTEMPTS):
            with pytest.raises(ToolError, match="ended during the call"):
                call(servers, "h_t")
        with pytest.raises(
            ToolError, match=r"failed 3 times in a row and is left alone for 30 s; MCP server '.*': it ended"
        ):
            call(servers, "h_t")
        servers.restart("h")
        assert servers.status()[0].state == "running"
        monkeypatch.setattr(localagent.mcp.server, "REST", 0.0)
        for _ in range(5):
            with pytest.raises(ToolError, match="ended during the call"):
                call(servers, "h_t")


def test_a_restarted_server_is_a_new_process():
    with McpServers({"real": real()}) as servers:
        first = call(servers, "real_pid").content
        servers.restart("real")
        assert not psutil.pid_exists(int(first))
        assert call(servers, "real_pid").content != first
        with pytest.raises(UsageError, match="no MCP server is called 'other'"):
            servers.restart("other")


@pytest.mark.parametrize("act", ["restart", "close"])
def test_whoever_hears_of_a_problem_may_act(act):
    acted = threading.Event()

    def on_problem(name, problem):
        servers.restart(name) if act == "restart" else servers.close()
        acted.set()

    with McpServers({"real": real()}, on_problem=on_problem) as servers:
        psutil.Process(int(call(servers, "real_pid").content)).kill()
        assert acted.wait(60)
        assert servers.status()[0].state == ("running" if act == "restart" else "closed")


def test_calls_that_wait_end_when_the_servers_are_closed(tmp_path):
    servers = McpServers({"real": real()})
    with ThreadPoolExecutor() as pool:
        with servers:
            running = pool.submit(call, servers, "real_wait", {"record": str(tmp_path)})
            eventually((tmp_path / "started").exists)
        with pytest.raises(ToolError, match=r"ended during the call|are closed"):
            running.result(timeout=30)


def test_closed_servers_refuse_calls_and_can_be_opened_again(tmp_path):
    servers = McpServers({"real": real()})
    assert [status.state for status in servers.status()] == ["closed"]
    with pytest.raises(UsageError, match="open them with `with`"):
        servers.tools()
    with servers:
        tool = tool_of(servers, "real_add")
        with pytest.raises(UsageError, match="open already"):
            servers.open()
    with pytest.raises(ToolError, match="the MCP servers are closed"):
        tool.bind({"a": 1, "b": 2})(context())
    with pytest.raises(UsageError, match="closed"):
        servers.restart("real")
    servers.close()
    with servers:  # and open again
        assert tool_of(servers, "real_add").parameters == tool.parameters
        assert tool.bind({"a": 1, "b": 2})(context()).content == "3"


def test_servers_open_in_an_event_loop():
    async def main():
        async with McpServers({"real": real()}) as servers:
            return await asyncio.to_thread(call, servers, "real_add", {"a": 1, "b": 2})

    assert asyncio.run(main()).content == "3"


def test_an_asynchronous_start_can_be_cancelled():
    async def main():
        opening = asyncio.ensure_future(McpServers({"h": hostile("mute")}, start_timeout=3600).__aenter__())
        me = psutil.Process()
        while not me.children():
            await asyncio.sleep(0.01)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(main())


@pytest.mark.skipif(sys.platform == "win32", reason="signals to threads are Unix")
def test_ctrl_c_ends_a_start_even_if_another_thread_gets_the_signal():
    """The signal does not wake the thread that waits, just as when it comes right before the wait."""
    servers = McpServers({"mute": hostile("mute")}, start_timeout=20)

    def press():
        eventually(lambda: servers.status()[0].state == "starting")
        time.sleep(0.3)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        servers.open()
    pressing.join()
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("ending", ["", "import sys; sys.exit(0)", "raise KeyError('x')"])
def test_a_process_that_never_closes_ends_all_the_same(ending):
    code = (
        "import sys; from localagent.mcp import McpServers\n"
        f"servers = McpServers({{'h': {hostile('fine')!r}}}).open()\n"
        f"print(len(servers.tools()))\n{ending}"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "1\n"
    assert ("KeyError" in done.stderr) == ("KeyError" in ending)
    assert "Warning" not in done.stderr


def test_a_stubborn_server_is_killed(tmp_path):
    with McpServers({"h": hostile("stubborn", str(tmp_path / "heard"))}) as servers:
        assert call(servers, "h_t").content == "fine"
    assert (tmp_path / "heard").exists()  # `nothing_is_left` sees to the rest


def test_the_extra_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    for name in [name for name in sys.modules if name.startswith("mcp.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(McpFailed, match=r"pip install .*\[mcp\]"):
        McpServers({"real": real()}).open()
