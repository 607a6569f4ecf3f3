"""MCP servers that do it wrong, in plain Python: what is wrong is the first argument."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MODE = sys.argv[1]
DEPTH = 100_000
OBJECT = {"type": "object", "properties": {}}


def write(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def say(**message: object) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}).encode())


def tool(name: str, schema: object = OBJECT, **more: object) -> dict:
    return {"name": name, "inputSchema": schema, **more}


def listed(params: dict) -> dict:
    cursor = params.get("cursor")
    match MODE:
        case "changes":
            first = tool("t", description="A tool.", annotations={"readOnlyHint": True})
            said = json.loads(sys.argv[2])
            changed = {key: value for key, value in {**first, **said}.items() if value is not None}
            return {"tools": [changed if Path(sys.argv[3]).exists() else first]}
        case "list_of_nonsense":
            return {"tools": 5}
        case "tool_without_schema":
            return {"tools": [{"name": "bare"}]}
        case "unfit":
            twins = {"type": "object", "properties": {"x-y": {}, "x_y": {}}}
            return {
                "tools": [
                    tool("n" * 100_000),
                    tool("same", description="one", annotations={"readOnlyHint": True}),
                    tool("same", description="other"),
                    tool("SAME"),
                    tool("twins", twins),
                    tool("wordy", description="d" * 50_001),
                    tool("list", {"type": "object", "enum": [*range(100_000)]}),
                    tool("t"),
                ]
            }
        case "many":
            at = int(cursor or 0)
            tools = [tool(f"t{number}", description="d" * 500) for number in range(at, at + 1_000)]
            return {"tools": tools, "nextCursor": str(at + 1_000)}
        case "endless_list":
            return {"tools": [], "nextCursor": "again"}
        case "pages":
            at = int(cursor or 0)
            return {"tools": [tool(f"t{at}")], **({"nextCursor": str(at + 1)} if at < 4 else {})}
        case "schemas":
            return {
                "tools": [
                    tool("bad_type", {"type": "object", "properties": {"a": {"type": "strng"}}}),
                    tool("bad_pattern", {"type": "object", "properties": {"a": {"pattern": "("}}}),
                    tool(
                        "elsewhere", {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}}
                    ),
                    tool("itself", {"type": "object", "allOf": [{"$ref": "#"}]}),
                    tool("unknown_dialect", {"$schema": "urn:x", "type": "object", "required": ["a"]}),
                ]
            }
    return {"tools": [tool("t", description="A tool.")]}


def called(number: object, params: dict) -> None:
    text = [{"type": "text", "text": "fine"}]
    result: object = {"content": text}
    match MODE:
        case "surrogate":
            result = {"content": [{"type": "text", "text": "half \ud83d of it"}]}
        case "no_result":
            result = {"foo": 1}
        case "not_an_object":
            result = 5
        case "refuses":
            say(id=number, error={"code": -32602, "message": "no such\n thing"})
            return
        case "structured":
            result = {"content": [], "structuredContent": {"wind": 3}, "_meta": {"cost": 2}}
        case "not_a_number":
            result = {"content": [], "structuredContent": {"wind": float("nan")}}
        case "broken_schema_out":
            result = {"content": text, "structuredContent": {"a": 1}}
        case "bad_media":
            bad = {"data": "!!!", "mimeType": "image/png"}
            result = {"content": [{"type": "image", **bad}, {"type": "audio", **bad}, *text]}
        case "chatty":
            write(b"INFO: working on it")
            write(b"caf\xe9 \xff\xfe")
            write(b'{"jsonrpc": "2.0", "id": 99999, "result": {}}')
            write(b'{"jsonrpc": "2.0", "method": "notifications/unheard_of"}')
            write(b"[]")
        case "deep" | "deep_before_its_number" | "deep_text":
            deep = "[" * DEPTH + "]" * DEPTH
            content = f'[{{"type": "text", "text": "{deep}"}}]' if MODE == "deep_text" else "[]"
            inside = "{}" if MODE == "deep_text" else f'{{"a": {deep}}}'
            fields = [f'"id": {number}', f'"result": {{"content": {content}, "structuredContent": {inside}}}']
            if MODE == "deep_before_its_number":
                fields.reverse()
            write(f'{{"jsonrpc": "2.0", {", ".join(fields)}}}'.encode())
            return
        case "cut":
            write(f'{{"jsonrpc": "2.0", "id": {number}, "result": {{"content": ["'.encode())
            return
        case "dies_in_call" | "leaves_child":
            os._exit(1)
        case "silent_in_call":
            return
        case "changes" if params["name"] == "t":
            Path(sys.argv[3]).touch()
            say(method="notifications/tools/list_changed")
        case "silent_in_second_list":
            Path(sys.argv[2]).mkdir()
            say(method="notifications/tools/list_changed")
    say(id=number, result=result)


def answer(request: dict) -> None:
    number, params = request.get("id"), request.get("params") or {}
    match request["method"]:
        case "initialize" if MODE == "modern":
            data = {"supported": ["2026-07-28"], "requested": "2025-11-25"}
            say(id=number, error={"code": -32022, "message": "unsupported", "data": data})
        case "initialize":
            version = "1999-01-01" if MODE == "version" else params["protocolVersion"]
            info = {"name": MODE, "version": "0"}
            offers = {} if MODE == "no_tools" else {"tools": {"listChanged": True}}
            result = {"protocolVersion": version, "capabilities": offers, "serverInfo": info}
            say(id=number, result={"hello": 1} if MODE == "no_handshake" else result)
        case "server/discover" if MODE == "modern":
            offers = {"tools": {}}
            versions = {"supportedVersions": ["2026-07-28"], "capabilities": offers}
            say(id=number, result={**versions, "resultType": "complete", "ttlMs": 0, "cacheScope": "public"})
        case "tools/list" if MODE == "modern":
            say(
                id=number,
                result={**listed(params), "resultType": "complete", "ttlMs": 0, "cacheScope": "public"},
            )
        case "tools/list" if MODE == "storm":
            say(id=number, result=listed(params))
            with Path(sys.argv[2]).open("a") as lists:
                lists.write("once\n")
            say(method="notifications/tools/list_changed")
        case "tools/list" if MODE == "silent_in_second_list" and Path(sys.argv[2]).exists():
            Path(sys.argv[2], "asked").touch()
        case "tools/list":
            say(id=number, result=listed(params))
            if MODE == "dies_after_list":
                sys.stderr.write("out of memory\n")
                sys.stderr.flush()
                os._exit(1)
        case "tools/call":
            called(number, params)


def main() -> None:
    match MODE:
        case "exits":
            sys.stderr.buffer.write(b"starting\nno API key caf\xe9 \x1b[31mgiven\n")
            sys.exit(3)
        case "mute":
            sys.stdin.buffer.read()
            return
        case "nonsense":
            write(b"Hello! I am a server. \x1b[0m")
            write(b"\x00\xff\xfe" * 10)
            sys.stdin.buffer.read()
            return
        case "leaves_child":  # with the server's pipes, which stay open, or without
            pipes = (
                {}
                if sys.argv[3] == "inherits"
                else dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            )
            child = subprocess.Popen(["sleep", "600"], **pipes)
            Path(sys.argv[2]).write_text(str(child.pid))
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "noisy":
            sys.stderr.write("noise " * 200_000)
            sys.stderr.flush()
    for line in sys.stdin.buffer:
        answer(json.loads(line))
    if MODE == "stubborn":
        Path(sys.argv[2]).touch()
        while True:
            time.sleep(60)


main()
