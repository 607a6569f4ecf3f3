"""A real MCP server, made with the server side of the package: over stdio, or over HTTP on `--port`."""

import argparse
import asyncio
import os
import socket
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import (
    BlobResourceContents,
    EmbeddedResource,
    ResourceLink,
    SamplingMessage,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)
server = MCPServer("real", version="1.2")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(name="get-time.now", title="The time")
def get_time(zone: str = "UTC") -> str:
    return f"noon in {zone}"


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("the disk is full")


@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=PNG, format="png")


@server.tool(structured_output=False)
def pieces() -> list:
    """Content of all kinds."""
    import base64

    return [
        TextContent(text="one"),
        EmbeddedResource(resource=TextResourceContents(uri="file:///a.txt", text="two")),
        ResourceLink(name="three", uri="file:///b.txt", mime_type="text/plain"),
        EmbeddedResource(
            resource=BlobResourceContents(
                uri="file:///c.bin", blob=base64.b64encode(b"abc").decode(), mime_type="application/zip"
            )
        ),
    ]


@server.tool()
def surroundings() -> str:
    """What the server sees of the machine."""
    return f"{os.environ.get('GREETING')} {os.environ.get('SECRET_OF_PARENT')} {Path.cwd()}"


@server.tool()
async def steps(ctx: Context) -> str:
    """Work in steps."""
    for number in range(3):
        await ctx.report_progress(number + 1, 3, f"step {number + 1}")
    return "done"


@server.tool()
async def wait(record: str) -> str:
    """Wait until cancelled, and leave a record of it."""
    Path(record, "started").touch()
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        Path(record, "cancelled").touch()
        raise
    return "waited"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def file(path: str, ctx: Context) -> str:
    """Read a file, which takes for ever."""
    step = 0
    while True:
        step += 1
        await ctx.report_progress(step, message=f"step {step} of {path}")
        await asyncio.sleep(0.05)


@server.tool()
async def meet(folder: str, me: str, others: int) -> str:
    """Come back when everybody is here."""
    Path(folder, me).touch()
    while len(list(Path(folder).iterdir())) < others:
        await asyncio.sleep(0.01)
    return f"{me} met them"


@server.tool()
async def learn(ctx: Context) -> str:
    """Learn a new tool."""

    def fresh() -> str:
        return "fresh"

    server.add_tool(fresh)
    await ctx.session.send_tool_list_changed()
    return "learnt"


@server.tool()
def crash() -> str:
    """End the process."""
    print("Segmentation fault (nearly)", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def pid() -> str:
    """The process."""
    return str(os.getpid())


@server.tool()
def long_text(size: int) -> str:
    """A long text."""
    return "x" * size


@server.tool()
async def ask(ctx: Context, what: str) -> str:
    """Ask the client for something that it cannot give."""
    match what:
        case "roots":
            await ctx.session.list_roots()
        case "sampling":
            message = SamplingMessage(role="user", content=TextContent(text="hello"))
            await ctx.session.create_message([message], max_tokens=5)
        case "elicitation":
            await ctx.session.elicit_form("Name?", {"type": "object", "properties": {}})
    return "answered"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--told", type=Path, help="where to write the port")
    options = parser.parse_args()
    if options.port is None:
        server.run()
        return
    import uvicorn

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", options.port))
        listening.listen()
        told = options.told.with_suffix(".new")
        told.write_text(str(listening.getsockname()[1]))
        told.rename(options.told)
        config = uvicorn.Config(server.streamable_http_app(), log_level="error", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
