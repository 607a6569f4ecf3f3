"""llama-index: a model that is like OpenAI's, and an agent with a tool."""

import asyncio
import gc
from typing import Literal

from asking import answers
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Paint(BaseModel):
    """Paint for a wall."""

    colour: Literal["red", "blue"]
    litres: Literal[1, 2]


def model(url: str, **options: object) -> OpenAILike:
    return OpenAILike(
        model="model-1", api_base=f"{url}/v1", api_key="any", is_chat_model=True,
        is_function_calling_model=True, max_retries=0, **options,
    )  # fmt: skip


with answers() as (given, say):

    def get_weather(place: str) -> str:
        """The weather in a place."""
        return given.rain if place == "Oslo" else "unknown"

    async def run(url: str, streaming: bool) -> str:
        agent = FunctionAgent(tools=[get_weather], llm=model(url), streaming=streaming)
        return str(await agent.run(given.question))

    asked = [ChatMessage(role="user", content=given.question)]
    say("chat", model(given.chat).chat(asked).message.content)
    say("stream", [chunk.delta for chunk in model(given.chat).stream_chat(asked)])
    say("tools", asyncio.run(run(given.tools, False)))
    say("tools stream", asyncio.run(run(given.streamed, True)))
    say("structured tool", model(given.paint).as_structured_llm(Paint).chat(asked).raw.model_dump())
    by_schema = model(given.paint, should_use_structured_outputs=True).as_structured_llm(Paint)
    say("structured", by_schema.chat(asked).raw.model_dump())
    blocks = model(given.thought).chat(asked).message.blocks
    say("thinking", next((block.content for block in blocks if block.block_type == "thinking"), None))
    words = model(given.long).stream_chat(asked)
    next(words)
    words.close()
    gc.collect()
    say("cancel", True)
