"""What a turn cost, in tokens and seconds."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt


class Usage(BaseModel):
    """Tokens of one turn. `input` counts the whole prompt, `cache_read` the part of it that was reused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: NonNegativeInt = 0
    output: NonNegativeInt = 0
    cache_read: NonNegativeInt = 0
    cache_write: NonNegativeInt = 0

    @property
    def total(self) -> int:
        """Prompt and output together."""
        return self.input + self.output


class Timings(BaseModel):
    """Wall-clock seconds of one turn: reading the prompt, and generating."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prefill: NonNegativeFloat = 0.0
    decode: NonNegativeFloat = 0.0
