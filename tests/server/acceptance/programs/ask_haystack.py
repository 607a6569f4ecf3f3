"""haystack: a chat generator, and an agent with a tool."""

from typing import Annotated, Literal

from asking import answers
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret
from pydantic import BaseModel


class Paint(BaseModel):
    colour: Literal["red", "blue"]
    litres: Literal[1, 2]


with answers() as (given, say):

    def generator(url: str, **options: object) -> OpenAIChatGenerator:
        return OpenAIChatGenerator(
            api_key=Secret.from_token("any"),
            model="model-1",
            api_base_url=f"{url}/v1",
            max_retries=0,
            **options,
        )

    @tool
    def get_weather(place: Annotated[str, "Where"]) -> str:
        """The weather in a place."""
        return given.rain if place == "Oslo" else "unknown"

    asked = [ChatMessage.from_user(given.question)]
    say("chat", generator(given.chat).run(asked)["replies"][0].text)
    pieces: list[str] = []
    generator(given.chat, streaming_callback=lambda chunk: pieces.append(chunk.content)).run(asked)
    say("stream", pieces)
    for scene, url, callback in (
        ("tools", given.tools, None),
        ("tools stream", given.streamed, lambda chunk: None),
    ):
        agent = Agent(chat_generator=generator(url), tools=[get_weather], streaming_callback=callback)
        say(scene, agent.run(asked)["last_message"].text)
    paint = generator(given.paint, generation_kwargs={"response_format": Paint}).run(asked)["replies"][0]
    say("structured", Paint.model_validate_json(paint.text).model_dump())
