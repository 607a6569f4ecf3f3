"""An MCP server all of whose words are hostile: HOSTILE_WORDS, in the way that the first argument names."""

from __future__ import annotations

import json
import os
import sys

EVIL = os.environ["HOSTILE_WORDS"]
MODE = sys.argv[1]


def say(**message: object) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def answer(method: str, params: dict) -> object:
    match method:
        case "initialize":
            info = {"name": EVIL, "version": EVIL, "title": EVIL}
            version = EVIL if MODE == "version" else params["protocolVersion"]
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            schema = {"type": "object", "properties": {EVIL: {"type": "string", "description": EVIL}}}
            named = {"description": EVIL, "inputSchema": schema, "annotations": {"title": EVIL}}
            return {"tools": [{"name": "look", **named}, {"name": EVIL, **named}]}
    if token := params.get("_meta", {}).get("progressToken"):
        progress = {"progressToken": token, "progress": 1, "total": 2, "message": EVIL}
        say(method="notifications/progress", params=progress)
    return {"content": [{"type": "text", "text": EVIL}], "isError": MODE == "fails"}


if MODE == "exits":
    sys.exit(EVIL)
for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        say(id=request["id"], result=answer(request["method"], request.get("params") or {}))
