"""The process in which a parser is tried: python child.py NAME, with NAME.py beside it.

It first writes {"parser", "version", "dialects", "needs_tools", "flags"}, or {"absent": reason} if the parser
cannot be loaded. Then it answers each line {"id", "dialect", "text" or "chunks", "tools", "inside", "finish"}
with {"id", "content", "reasoning", "tool_calls"}, or with {"id", "error"}. A request with "rounds" is read
that often, and the answer has "seconds", the median, and "peak", the bytes that Python allocates at most.

Standard library only: this file is run by any Python, from 3.10 on.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import statistics
import sys
import time
import tracemalloc

ENOUGH = 1.0
"""Seconds of measuring one output after which no further round begins."""


def answer(adapter, request):
    """The answer to one request, without its id."""
    streamed = "chunks" in request
    pieces = request["chunks"] if streamed else [request["text"]]
    given = (request["dialect"], pieces, streamed, request)
    found = adapter.read(*given)
    # Arguments that are no JSON object make no call that anybody could run, as when a stream ends within
    # them.
    calls, found["tool_calls"] = found["tool_calls"], []
    for call in calls:
        arguments = call["arguments"]
        try:
            arguments = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        except ValueError:
            arguments = None
        if isinstance(arguments, dict) and isinstance(call["name"], str):
            found["tool_calls"].append({"name": call["name"], "arguments": arguments})
        else:
            found.setdefault("malformed", []).append({"raw": str(call), "reason": "no object of arguments"})
    taken = []
    for _ in range(request.get("rounds", 0)):
        if sum(taken) > ENOUGH:
            break
        began = time.perf_counter()
        adapter.read(*given)
        taken.append(time.perf_counter() - began)
    if taken:
        tracemalloc.start()
        adapter.read(*given)
        found["seconds"], found["peak"] = statistics.median(taken), tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return found


def main():
    """Say what is here, then answer until standard input ends."""
    # Only the protocol may be written to standard output: libraries print there.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(said):
        out.write(json.dumps(said) + "\n")
        out.flush()

    here = pathlib.Path(__file__).parent.resolve()
    # Files here have the names of the packages that they use, which must not be found in their place.
    sys.path[:] = [path for path in sys.path if pathlib.Path(path or ".").resolve() != here]
    try:
        found = importlib.util.spec_from_file_location(f"adapter_{sys.argv[1]}", here / f"{sys.argv[1]}.py")
        adapter = importlib.util.module_from_spec(found)
        found.loader.exec_module(adapter)
        version = adapter.load()
    except Exception as error:  # whatever a package does when it is loaded where it does not fit
        say({"absent": f"{type(error).__name__}: {error}".splitlines()[0]})
        return
    said = {"parser": adapter.NAME, "version": version, "dialects": adapter.DIALECTS}
    for setting in ("NEEDS_TOOLS", "FLAGS"):
        said[setting.lower()] = getattr(adapter, setting, False)
    say(said)
    for line in sys.stdin.buffer:
        request = {}
        try:
            request = json.loads(line)
            said = {"id": request["id"], **answer(adapter, request)}
            json.dumps(said, allow_nan=False)
        except Exception as error:  # which is what the parser does with this output
            said = {"id": request.get("id"), "error": f"{type(error).__name__}: {error}"[:500]}
        say(said)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main()
