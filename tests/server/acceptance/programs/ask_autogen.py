"""autogen: a model's client, and an assistant with a tool."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Literal

from asking import answers
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel


class Paint(BaseModel):
    colour: Literal["red", "blue"]
    litres: Literal[1, 2]


INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True
)


def model(url: str) -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(
        model="model-1", base_url=f"{url}/v1", api_key="any", model_info=INFO, max_retries=0
    )


async def main(given: SimpleNamespace, say: Callable[[str, object], None]) -> None:
    async def get_weather(place: str) -> str:
        """The weather in a place."""
        return given.rain if place == "Oslo" else "unknown"

    asked = [UserMessage(content=given.question, source="user")]
    say("chat", (await model(given.chat).create(asked)).content)
    *pieces, _ = [piece async for piece in model(given.chat).create_stream(asked)]
    say("stream", pieces)
    for scene, url, stream in (("tools", given.tools, False), ("tools stream", given.streamed, True)):
        agent = AssistantAgent(
            "porter", model(url), tools=[get_weather], system_message=None,
            reflect_on_tool_use=True, model_client_stream=stream,
        )  # fmt: skip
        say(scene, (await agent.run(task=given.question)).messages[-1].content)
    painted = await model(given.paint).create(asked, json_output=Paint)
    say("structured", Paint.model_validate_json(painted.content).model_dump())
    say("thinking", (await model(given.thought).create(asked)).thought)
    words = model(given.long).create_stream(asked)
    await anext(words)
    await words.aclose()
    say("cancel", True)


with answers() as (given, say):
    asyncio.run(main(given, say))
