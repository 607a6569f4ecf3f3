"""instructor: structured answers by a schema, by a tool, and as they are written."""

from typing import Literal

import instructor
import openai
from asking import answers
from instructor import Mode
from pydantic import BaseModel


class Paint(BaseModel):
    colour: Literal["red", "blue"]
    litres: Literal[1, 2]


def client(url: str, mode: Mode) -> instructor.Instructor:
    return instructor.from_openai(
        openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0), mode=mode
    )


with answers() as (given, say):
    asked = {"model": "model-1", "messages": [{"role": "user", "content": given.question}], "max_retries": 0}
    for scene, mode in (("structured", Mode.JSON_SCHEMA), ("structured tool", Mode.TOOLS)):
        paint = client(given.paint, mode).chat.completions.create(response_model=Paint, **asked)
        say(scene, paint.model_dump())
    partial = client(given.paint, Mode.JSON_SCHEMA).chat.completions.create_partial(
        response_model=Paint, **asked
    )
    say("structured stream", [piece.model_dump(exclude_none=True) for piece in partial])
