"""The cost of a turn in tokens, money and seconds."""

from __future__ import annotations

from typing import Any, Self

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


class Prices(BaseModel):
    """Prices of a million tokens; `input` is for prompt tokens neither read from nor written to a cache."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    input: NonNegativeFloat
    output: NonNegativeFloat
    cache_read: NonNegativeFloat | None = None
    """None: the same as `input`."""
    cache_write: NonNegativeFloat | None = None

    def cost(self, usage: Usage) -> UsageCost:
        """The cost of these tokens."""
        fresh = usage.input - usage.cache_read - usage.cache_write
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        return UsageCost(
            input=fresh * self.input / 1e6,
            output=usage.output * self.output / 1e6,
            cache_read=usage.cache_read * read / 1e6,
            cache_write=usage.cache_write * write / 1e6,
        )


_ALIASES = {f"{name}_tokens": name for name in ("input", "output", "cache_read", "cache_write")}


class Usage(BaseModel):
    """Tokens of one turn. `input` counts the whole prompt, `cache_read` the part of it that was reused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: NonNegativeInt = 0
    output: NonNegativeInt = 0
    cache_read: NonNegativeInt = 0
    cache_write: NonNegativeInt = 0
    cost: UsageCost | None = None
    """None if no prices are set, as for models on this machine."""

    @model_validator(mode="before")
    @classmethod
    def _read_aliases(cls, data: Any) -> Any:
        """`input_tokens` and the like are read as well, unless the field is given under its own name, too."""
        if not isinstance(data, dict) or _ALIASES.keys().isdisjoint(data):
            return data
        return {name if (to := _ALIASES.get(name, name)) in data else to: data[name] for name in data}

    @property
    def prefilled(self) -> int:
        """The prompt tokens that had to be evaluated."""
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
            cost=self.cost + other.cost if self.cost and other.cost else self.cost or other.cost,
        )


class Timings(BaseModel):
    """Wall-clock seconds of one turn: reading the prompt, and generating."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    prefill: NonNegativeFloat = 0.0
    decode: NonNegativeFloat = 0.0
