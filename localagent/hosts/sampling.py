"""How the next token is chosen: every sampling option with its range and default.

The catalogue, a turn's options and the command line all take them from `Sampling`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

from localagent.errors import UsageError

MOST_LOGPROBS = 20
"""The most alternatives that `Sampling.logprobs` may ask for."""
MOST_BIAS, MOST_BIASES = 100, 300
"""The largest bias of a token, and how many tokens may have one."""
_BAN = -1e9
"""Less than any logit and more than the -inf of a mask: if a grammar allows this token alone, it comes."""
PENALTY_WINDOW = 64
"""Tokens that the repetition penalty looks back on."""


class SamplingOptions(TypedDict, total=False):
    """A turn's options that override the model's `Sampling`, for type checkers. A test compares the two."""

    max_tokens: int | None
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    seed: int | None
    stop: str | list[str] | tuple[str, ...] | None
    logprobs: int | None
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] | None


@dataclass(frozen=True, slots=True)
class Numbers:
    """The range of an option: `least` and `most` are included, `above` and `below` are not."""

    whole: bool = False
    above: float = -math.inf
    least: float = -math.inf
    most: float = math.inf
    below: float = math.inf

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        # Written so that NaN, with which every comparison is False, is in no range; nor are infinity and
        # integers that no float holds: engines compute with floats.
        within = self.above < value < self.below and self.least <= value <= self.most
        return within and abs(value) <= sys.float_info.max

    def __str__(self) -> str:
        bounds = {"above": self.above, "at least": self.least, "at most": self.most, "below": self.below}
        said = " and ".join(f"{word} {bound}" for word, bound in bounds.items() if abs(bound) < math.inf)
        return f"a{' whole' if self.whole else ''} number" + (f", {said}" if said else "")


def _option(default: float | None, meaning: str, numbers: Numbers) -> Any:
    return field(default=default, metadata={"meaning": meaning, "numbers": numbers})


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. `None` leaves a step out of the sampler chain.

    Generation ends before the first `stop` string, even if tokens straddle it. `logprobs`: return each
    token's log-probability and those of this many likeliest alternatives; 0 for the token's own only.
    `logit_bias`: what is added to the logits of these token ids, from -100, which bans one unless a grammar
    leaves no other, to 100. Log-probabilities are those before it.
    """

    max_tokens: int | None = _option(
        None, "Stop after this many generated tokens.", Numbers(whole=True, least=1)
    )
    temperature: float = _option(0.0, "0 always picks the likeliest token.", Numbers(least=0))
    top_k: int | None = _option(
        None, "Choose among this many of the likeliest tokens.", Numbers(whole=True, least=1)
    )
    top_p: float | None = _option(
        None,
        "Choose among the likeliest tokens that add up to this.",
        Numbers(above=0, most=1),
    )
    min_p: float | None = _option(
        None, "Drop tokens less likely than this share of the likeliest one.", Numbers(least=0, below=1)
    )
    repetition_penalty: float | None = _option(
        None, "Divides the logits of recent tokens; 1 changes nothing.", Numbers(above=0)
    )
    seed: int | None = _option(None, "Makes sampling repeatable. Default: random.", Numbers(whole=True))
    stop: tuple[str, ...] = ()
    logprobs: int | None = _option(
        None, "Log-probabilities of this many alternatives.", Numbers(whole=True, least=0, most=MOST_LOGPROBS)
    )

    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def biases(self) -> tuple[list[int], list[float]]:
        """The ids of `logit_bias`, and what to add to the logits of each."""
        ids = [token for token, _ in self.logit_bias]
        return ids, [_BAN if bias <= -MOST_BIAS else bias for _, bias in self.logit_bias]

    def __post_init__(self) -> None:
        """Raise UsageError for a value outside its range."""
        for each in fields(self):
            value, numbers = getattr(self, each.name), each.metadata.get("numbers")
            if numbers is not None and value not in numbers and not (value is None is each.default):
                raise _refusal(each.name, value, numbers)
        stop: Any = (self.stop,) if isinstance(self.stop, str) else self.stop
        stop = () if stop is None else tuple(stop) if isinstance(stop, list) else stop
        if not isinstance(stop, tuple) or not all(isinstance(text, str) and text for text in stop):
            raise _refusal("stop", stop, "a list of texts, none of them empty")
        object.__setattr__(self, "stop", stop)
        given: Any = self.logit_bias
        listed = given.items() if isinstance(given, Mapping) else () if given is None else given
        pairs = tuple(listed) if isinstance(listed, Iterable) else (None,)
        if len(pairs) > MOST_BIASES or not all(_is_bias(pair) for pair in pairs):
            range_ = f"at most {MOST_BIASES} token ids, each with a number from -{MOST_BIAS} to {MOST_BIAS}"
            raise _refusal("logit_bias", given, range_)
        object.__setattr__(self, "logit_bias", pairs)


def _is_bias(pair: Any) -> bool:
    token, bias = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None)
    return type(token) is int and token >= 0 and bias in Numbers(least=-MOST_BIAS, most=MOST_BIAS)


def _refusal(name: str, value: object, range_: object) -> UsageError:
    return UsageError(f"{name} is {str(value)[:80]!r}: it must be {range_}")
