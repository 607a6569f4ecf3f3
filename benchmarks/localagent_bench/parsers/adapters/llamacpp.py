"""llama.cpp: `common_chat_parse`, which llama-server calls, through the program in llamacpp.cpp.

llama.cpp makes its parser from the chat template, so that its source is needed for the templates as well. It
is part of the source of llama-cpp-python; whatever libllama is at hand will do, since no model is loaded:

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36 && tar xf llama_cpp_python-*.tar.gz
    cd llama_cpp_python-*/vendor/llama.cpp
    HERE=$(python -c "from localagent_bench.parsers import adapters as a; print(list(a.__path__)[0])")
    LIB=$(python -c "import llama_cpp, os; print(os.path.dirname(llama_cpp.__file__))")/lib
    g++ -std=c++17 -O1 -ffunction-sections -Wl,--gc-sections -Icommon -Iinclude -Iggml/include -Ivendor -I. \\
        common/{chat*,peg-parser,json,json-schema,json-schema-to-grammar,unicode,log,trie,common}.cpp \\
        common/jinja/*.cpp common/parsers/*.cpp $HERE/llamacpp.cpp \\
        -L$LIB -Wl,-rpath,$LIB -lllama -lggml -lggml-base -lpthread -o parse
    LLAMACPP_SOURCE=$PWD localagent bench parsers

LLAMACPP_SOURCE names the folder with the program `parse` and with models/templates; LLAMACPP_PARSE the
program, if it is elsewhere. A request that the program does not survive ends this process as well.

llama-server also keeps the model to the grammar of the parser once a call has begun, so that it meets some of
these outputs less often than others do.
"""

import json
import os
import pathlib
import subprocess

NAME = "llama.cpp"
NEEDS_TOOLS = True
# Not here: models whose templates show no calls, such as SmolLM3 and Granite 3, have no parser in llama.cpp.
_TEMPLATES = {
    "lfm2": "LFM2.5-8B-A1B",
    "hermes": "Qwen-Qwen3-0.6B",
    "qwen3-coder": "Qwen3.5-4B",
    "llama3-json": "meta-llama-Llama-3.3-70B-Instruct",
    "functionary": "meetkai-functionary-medium-v3.1",
    "mistral": "mistralai-Ministral-3-14B-Reasoning-2512",
    "deepseek-v31": "deepseek-ai-DeepSeek-V3.1",
    "deepseek-v32": "deepseek-ai-DeepSeek-V3.2",
    "deepseek-v4": "deepseek-ai-DeepSeek-V4",
    "glm45": "GLM-4.6",
    "glm47": "GLM-4.7-Flash",
    "gemma4": "google-gemma-4-31B-it",
    "harmony": "openai-gpt-oss-120b",
    "kimi-k2": "Kimi-K2-Thinking",
    "kimi-k3": "Kimi-K3",
    "minimax-m2": "MiniMax-M2",
    "minimax-m3": "MiniMax-M3",
    "minicpm5": "openbmb-MiniCPM5-1B",
    "seed-oss": "ByteDance-Seed-OSS",
    "apertus": "Apertus-8B-Instruct",
    "gigachat3": "GigaChat3.1-10B-A1.8B",
    "command-r7b": "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "nemotron-nano-v2": "NVIDIA-Nemotron-Nano-v2",
    "solar-open": "upstage-Solar-Open-100B",
    "hy3": "tencent-Hy3",
    "muse": "muse-glimmer",
}
DIALECTS = {}
_STATE = {}


def load():
    """Start the program."""
    source = pathlib.Path(os.environ.get("LLAMACPP_SOURCE", "")).resolve()
    program = pathlib.Path(os.environ.get("LLAMACPP_PARSE") or source / "parse")
    folder = source / "models" / "templates"
    if not os.environ.get("LLAMACPP_SOURCE") or not program.is_file() or not folder.is_dir():
        raise ImportError(
            "LLAMACPP_SOURCE names no folder with llama.cpp's templates and the program `parse`"
        )
    for dialect, name in _TEMPLATES.items():
        if (folder / f"{name}.jinja").is_file():
            DIALECTS[dialect] = f"template {name}"
    _STATE["folder"] = folder
    _STATE["program"] = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    version = source.parents[1].name.rpartition("-")[2]
    return f"of llama-cpp-python {version}" if source.parents[1].name.startswith("llama_cpp") else ""


def read(dialect, pieces, streamed, request):
    """Ask the program. What the server cuts off before it parses, the end of a turn, is in no request."""
    program = _STATE["program"]
    template = _STATE["folder"] / f"{request.get('template')}.jinja"  # the one that wrote the output
    if not template.is_file():
        template = _STATE["folder"] / f"{_TEMPLATES[dialect]}.jinja"
    given = {"chunks": pieces} if streamed else {"text": pieces[0]}
    asked = {
        "id": 0,
        "template": str(template),
        "inside": request.get("inside"),
        "tools": request.get("tools"),
    }
    program.stdin.write(json.dumps(asked | given).encode() + b"\n")
    program.stdin.flush()
    line = program.stdout.readline()
    if not line:
        os._exit(program.wait() % 256 or 1)
    found = json.loads(line)
    if "error" in found:
        raise ValueError(found["error"])
    del found["id"]
    return found
