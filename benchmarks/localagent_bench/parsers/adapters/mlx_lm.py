"""mlx-lm: the text state machine and the tool parsers of its server, put together as `mlx_lm.server` does.

    pip install mlx-lm        # on Linux also: pip install "mlx[cpu]"

The server cuts the output at the markers of reasoning and calls; the text of a block goes to the tool parser
when the block has ended. A block that its parser refuses is dropped, with a warning in the log: here it
counts as refused.
"""

import importlib
import json

NAME = "mlx-lm"
DIALECTS = {
    "lfm2": "pythonic",
    "hermes": "json_tools",
    "qwen3-coder": "qwen3_coder",
    "glm45": "glm47",
    "glm47": "glm47",
    "minimax-m2": "minimax_m2",
    "gemma4": "gemma4",
    "functiongemma": "function_gemma",
    "kimi-k2": "kimi_k2",
    "longcat": "longcat",
    "mistral": "mistral",
    "minicpm5": "minicpm5",
}
"""Each with the tool parser that mlx-lm infers from the chat template of such a model."""
THINKING = {"gemma4": ("<|channel>thought", "<channel|>"), "mistral": ("[THINK]", "[/THINK]")}


def load():
    """Parsers alone are imported: no model, no tokenizer."""
    from importlib import metadata

    for name in set(DIALECTS.values()):
        importlib.import_module(f"mlx_lm.tool_parsers.{name}")
    importlib.import_module("mlx_lm.generate")
    return metadata.version("mlx-lm")


def read(dialect, pieces, streamed, request):
    """As `handle_completion` of mlx_lm/server.py does, which reads token by token in any case."""
    from mlx_lm.generate import TextStateMachine

    module = importlib.import_module(f"mlx_lm.tool_parsers.{DIALECTS[dialect]}")
    start, end = module.tool_call_start, module.tool_call_end
    think, thought = THINKING.get(dialect, ("<think>", "</think>"))
    machine = TextStateMachine(
        {
            "normal": [(think, "reasoning"), (start, "tool")],
            "reasoning": [(thought, "normal"), (start, "tool")],
            "tool": [(end, "normal")] if end else [],
        }
    )
    state = machine.make_state(request.get("inside") or "normal")
    text, calls, last = {"normal": "", "reasoning": "", "tool": ""}, [], request.get("inside") or "normal"
    segments = []
    for piece in pieces:
        state, found = TextStateMachine.split(state, piece)
        segments += found
    if request.get("finish") == "length":
        state, rest, name = TextStateMachine.flush(state)
        segments.append((name, rest))
    for name, clean in segments:
        if last == "tool" and name == "normal":
            calls.append(text["tool"])
            text["tool"] = ""
        text[name] += clean
        last = name
    if last == "tool" and text["tool"]:
        calls.append(text["tool"])
    found, dropped = [], []
    for call in calls:
        try:
            parsed = module.parse_tool_call(call, request.get("tools"))
        except (ValueError, json.JSONDecodeError) as error:
            dropped.append({"raw": call, "reason": str(error)[:200]})
            continue
        found += parsed if isinstance(parsed, list) else [parsed]
    return {
        "content": text["normal"],
        "reasoning": text["reasoning"],
        "tool_calls": [{"name": call["name"], "arguments": call["arguments"]} for call in found],
        "malformed": dropped,
    }
