"""What a turn cost, in tokens, money and seconds."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, model_validator


class UsageCost(BaseModel):
    """Money for one turn, in the currency of the prices. `total` is the sum unless given."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    input: NonNegativeFloat = 0.0
    output: NonNegativeFloat = 0.0
    cache_read: NonNegativeFloat = 0.0
    cache_write: NonNegativeFloat = 0.0
    total: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _add_up(self) -> Self:
        if "total" not in self.model_fields_set:
            self.__dict__["total"] = self.input + self.output + self.cache_read + self.cache_write
        return self

    def __add__(self, other: UsageCost) -> UsageCost:
        return UsageCost(
            **{name: getattr(self, name) + getattr(other, name) for name in UsageCost.model_fields}
        )


class Usage(BaseModel):
    """Tokens of one turn. `input` counts the whole prompt, `cache_read` the part of it that was reused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: NonNegativeInt = 0
    output: NonNegativeInt = 0
    cache_read: NonNegativeInt = 0
    cache_write: NonNegativeInt = 0
    cost: UsageCost = UsageCost()

    @property
    def prefilled(self) -> int:
        """The tokens of the prompt that had to be computed."""
        return self.input - self.cache_read

    @property
    def total(self) -> int:
        """Prompt and output together."""
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            cost=self.cost + other.cost,
        )


class Timings(BaseModel):
    """Wall-clock seconds of one turn: reading the prompt, and generating."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    prefill: NonNegativeFloat = 0.0
    decode: NonNegativeFloat = 0.0
