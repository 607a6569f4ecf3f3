"""One request to a server of lfm2-nano by each official client, printed: `make serve-demo`."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from localagent.model import load
from localagent.nano import GGUF
from localagent.server.app import all_wires
from tests.server.serving import serving

PROMPT = "What is the weather in Oslo?"
PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "The weather in a city.", "parameters": PLACE}
ASK: Any = [{"role": "user", "content": PROMPT}]


def chat(url: str) -> Any:
    import openai

    with openai.OpenAI(base_url=f"{url}/v1", api_key="any") as client:
        tools: Any = [{"type": "function", "function": FUNCTION}]
        answer = client.chat.completions.create(
            model="lfm2-nano", messages=ASK, tools=tools, temperature=0, max_tokens=64
        )
        return answer.choices[0].message.to_dict()


def responses(url: str) -> Any:
    import openai

    with openai.OpenAI(base_url=f"{url}/v1", api_key="any") as client:
        tools: Any = [{"type": "function", **FUNCTION, "strict": False}]
        answer = client.responses.create(
            model="lfm2-nano", input=PROMPT, tools=tools, temperature=0, max_output_tokens=64
        )
        return [item.to_dict() for item in answer.output]


def messages(url: str) -> Any:
    import anthropic

    with anthropic.Anthropic(base_url=url, api_key="any") as client:
        tools: Any = [{"name": "get_weather", "input_schema": PLACE}]
        answer = client.messages.create(
            model="lfm2-nano", messages=ASK, tools=tools, max_tokens=64, extra_body={"temperature": 0}
        )
        return [part.to_dict() for part in answer.content]


def ollama(url: str) -> Any:
    from ollama import Client

    tools: Any = [{"type": "function", "function": FUNCTION}]
    client = Client(host=url)
    answer = client.chat(
        "lfm2-nano", messages=ASK, tools=tools, options={"temperature": 0, "num_predict": 64}
    )
    client._client.close()
    return answer.message.model_dump(exclude_none=True)


CLIENTS = {
    "openai": (("/v1/chat/completions", chat), ("/v1/responses", responses)),
    "anthropic": (("/v1/messages", messages),),
    "ollama": (("/api/chat", ollama),),
}


def main() -> None:
    with serving(load(GGUF), wires=all_wires()) as server:
        print(f"lfm2-nano on {server.url}, asked: {PROMPT}")
        for package, turns in CLIENTS.items():
            for path, turn in turns:
                print(f"{package} {version(package)}, {path}:\n  {turn(server.url)}")


if __name__ == "__main__":
    main()
