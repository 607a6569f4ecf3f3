"""SGLang: its reasoning parser first, then its function-call detector on what is left, as its server does.

    python -m venv sglang && sglang/bin/pip install --no-deps sglang
    sglang/bin/pip install pydantic openai orjson msgspec partial-json-parser regex
    localagent bench parsers --python sglang=sglang/bin/python

Neither a GPU nor torch is needed: the packages `sglang` and `sglang.srt` run nothing here, and xgrammar and
transformers, which the detectors only name in the types of other methods, are empty modules.
"""

import importlib.machinery
import json
import pathlib
import sys
import types

NAME = "SGLang"
NEEDS_TOOLS = True
# Each dialect with the names of the tool-call parser and the reasoning parser that its server is started
# with.
_PARSERS = {
    "lfm2": ("lfm2", "qwen3"),
    "hermes": ("qwen25", "qwen3"),
    "llama3-json": ("llama3", None),
    "llama-pythonic": ("pythonic", None),
    "mistral": ("mistral", "mistral"),
    "deepseek-v3": ("deepseekv3", "deepseek-v3"),
    "deepseek-v31": ("deepseekv31", "deepseek-v3"),
    "deepseek-v32": ("deepseekv32", "deepseek-v3"),
    "deepseek-v4": ("deepseekv4", "deepseek-v4"),
    "deepseek-v41": ("deepseekv41", "deepseek-v41"),
    "glm45": ("glm45", "glm45"),
    "glm47": ("glm47", "glm45"),
    "harmony": ("gpt-oss", "gpt-oss"),
    "kimi-k2": ("kimi_k2", "kimi_k2"),
    "kimi-k3": ("kimi_k3", "kimi_k3"),
    "qwen3-coder": ("qwen3_coder", "qwen3"),
    "minimax-m2": ("minimax-m2", "qwen3"),
    "minimax-m3": ("minimax-m3", "minimax-m3"),
    "minicpm5": ("minicpm5", "qwen3"),
    "hy4": ("hunyuan", "hunyuan"),
    "step3": ("step3", "qwen3"),
    "gemma4": ("gemma4", "gemma4"),
    "gigachat3": ("gigachat3", None),
    "gigachat35": ("gigachat35", None),
    "apertus": ("apertus2509", "apertus2509"),
}
DIALECTS = {dialect: tool for dialect, (tool, _) in _PARSERS.items()}


class _Anything:
    """Stands for every class of a package that is not here."""

    def __init__(self, *_, **__):
        pass

    def __class_getitem__(cls, _):
        return cls

    @classmethod
    def __get_pydantic_core_schema__(cls, *_):
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _Absent(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


def load():
    """Import the two parsers without running what their packages run when they are imported."""
    from importlib import metadata

    version = metadata.version("sglang")
    top = next(root for path in sys.path if (root := pathlib.Path(path) / "sglang").joinpath("srt").is_dir())
    for name in ("sglang", "sglang.srt", "sglang.srt.function_call", "sglang.srt.parser",
                 "sglang.srt.entrypoints", "sglang.srt.entrypoints.openai"):  # fmt: skip
        module = types.ModuleType(name)
        module.__path__ = [str(top.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    for name in ("xgrammar", "xgrammar.structural_tag", "transformers"):
        module = _Absent(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules.setdefault(name, module)
    plain = types.ModuleType("sglang.utils")
    plain.convert_json_schema_to_str = lambda schema: schema  # for the server's own requests
    sys.modules["sglang.utils"] = plain
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    for dialect, (tool, thinking) in _PARSERS.items():
        known = tool in FunctionCallParser.ToolCallParserEnum
        if not known or (thinking and thinking not in ReasoningParser.DetectorMap):
            del DIALECTS[dialect]  # another version
    return version


def read(dialect, pieces, streamed, request):
    """The steps of `OpenAIServingChat`; parts of a call are joined by its index."""
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    tool_parser, thinking = _PARSERS[dialect]
    tools = [Tool(**tool) for tool in request.get("tools") or ()]
    calling = FunctionCallParser(tools, tool_parser)
    reasoner = None
    if thinking:
        reasoner = ReasoningParser(
            thinking, force_reasoning=bool(request.get("inside")), tool_call_parser_active=bool(tools)
        )
    content, reasoning, calls = "", "", {}

    def take(found):
        for item in found:
            call = calls.setdefault(item.tool_index, {"name": "", "arguments": ""})
            call["name"] = item.name or call["name"]
            call["arguments"] += item.parameters or ""

    if not streamed:
        text = pieces[0]
        if reasoner:
            thought, text = reasoner.parse_non_stream(text)
            reasoning = thought or ""
        text, found = text or "", []
        if calling.has_tool_call(text):
            text, found = calling.parse_non_stream(text)
        # Here an index is the place of the tool in the request, and each item is a whole call.
        whole = [{"name": item.name, "arguments": item.parameters} for item in found]
        return {"content": text, "reasoning": reasoning, "tool_calls": whole}
    for at, piece in enumerate([*pieces, None]):
        text = piece or ""
        if reasoner:
            thought, text = reasoner.parse_stream_chunk(text) if text else ("", "")
            reasoning += thought or ""
            if piece is None:
                thought, rest = reasoner.parse_stream_end()
                reasoning, text = reasoning + (thought or ""), (text or "") + (rest or "")
        if text:
            normal, found = calling.parse_stream_chunk(text)
            content += normal or ""
            take(found)
        if piece is None and at:
            normal, found = calling.parse_stream_end()
            content += normal or ""
            take(found)
    # `_check_for_unstreamed_tool_args`
    detector = calling.detector
    last = len(getattr(detector, "prev_tool_call_arr", ())) - 1
    sent = getattr(detector, "streamed_args_for_tool", ())
    if 0 <= last < len(sent) and last in calls:
        due = detector.prev_tool_call_arr[last].get("arguments", {})
        due = due if isinstance(due, str) else json.dumps(due, ensure_ascii=False)
        if due.startswith(sent[last]):
            calls[last]["arguments"] += due[len(sent[last]) :]
    return {
        "content": content,
        "reasoning": reasoning,
        "tool_calls": [calls[index] for index in sorted(calls)],
    }
