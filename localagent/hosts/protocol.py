"""What a model host promises: messages in, tokens out.

Knows nothing of parsers, message parts or the command line. A host loads one set of weights, renders
conversations to token ids, and generates tokens one by one with their exact text.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from localagent.errors import UsageError
from localagent.prompt.segments import Prompt

StopReason = Literal["stop", "length", "cancelled"]
MOST_LOGPROBS = 20
"""The most alternatives that `Sampling.logprobs` may ask for."""


def _require(name: str, value: object, valid: bool, range_: str) -> None:
    if not valid:
        raise UsageError(f"{name} is {str(value)[:80]!r}: it must be {range_}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return _whole(value) or isinstance(value, float)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. `None` leaves the step out of the sampler chain.

    `temperature` 0 is greedy. `top_k` counts tokens; `top_p` and `min_p` are probabilities in 0..1;
    `repetition_penalty` divides the logits of recent tokens, 1.0 is off. `seed` None draws a fresh one.
    `max_tokens` bounds the generated tokens; None means as many as the context holds. Generation ends before
    the first of the `stop` strings, wherever token borders fall. `logprobs` asks for the log-probability of
    every token and of as many likeliest alternatives; 0 asks for the token's own only.
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for a value outside its range; NaN is in none."""
        for name in ("max_tokens", "top_k"):
            count = getattr(self, name)
            _require(name, count, count is None or (_whole(count) and count >= 1), "a whole number above 0")
        _require("seed", self.seed, self.seed is None or _whole(self.seed), "a whole number")
        heat = self.temperature
        _require("temperature", heat, _number(heat) and 0 <= heat < math.inf, "a number, 0 or more")
        top, least, penalty = self.top_p, self.min_p, self.repetition_penalty
        valid = top is None or (_number(top) and 0 < top <= 1)
        _require("top_p", top, valid, "a number above 0 and at most 1")
        valid = least is None or (_number(least) and 0 <= least < 1)
        _require("min_p", least, valid, "a number, at least 0 and below 1")
        valid = penalty is None or (_number(penalty) and 0 < penalty < math.inf)
        _require("repetition_penalty", penalty, valid, "a number above 0")
        stop: Any = (self.stop,) if isinstance(self.stop, str) else self.stop
        stop = () if stop is None else tuple(stop) if isinstance(stop, list) else stop
        object.__setattr__(self, "stop", stop)
        valid = isinstance(stop, tuple) and all(isinstance(text, str) and text for text in stop)
        _require("stop", stop, valid, "a list of texts, none of them empty")
        tops = self.logprobs
        valid = tops is None or (_whole(tops) and 0 <= tops <= MOST_LOGPROBS)
        _require("logprobs", tops, valid, f"a whole number from 0 to {MOST_LOGPROBS}")


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token. `text` is what this token completes: a split UTF-8 character stays back
    until its last byte, so `text` may be empty; special tokens appear as their text.

    `end` is True for an end-of-generation token, which is always the last one. `logprobs` is None unless
    `Sampling.logprobs` asked for them.
    """

    id: int
    text: str
    special: bool
    end: bool = False
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logarithms of the model's own probabilities, before penalties, temperature and truncation.

    `token` is that of the token chosen; `top` pairs the likeliest ids with theirs, the likeliest first.
    """

    token: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Progress of the prefill: `done` of `total` prompt tokens are evaluated, `cached` of them reused."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall-clock seconds spent on the prompt and on generating."""

    prefill: float = 0.0
    decode: float = 0.0


@dataclass(frozen=True, slots=True)
class Finish:
    """How a generation ended. Counts are tokens; `prompt` includes the `cached` ones that were reused.

    `stop` is the stop string that ended it, if one did.
    """

    stop_reason: StopReason
    prompt: int
    cached: int
    generated: int
    timings: Timings = field(default_factory=Timings)
    stop: str | None = None

    @property
    def prefilled(self) -> int:
        """The tokens of the prompt that had to be computed."""
        return self.prompt - self.cached


class Generation(Iterator[Token], Protocol):
    """The running generation: an iterator of tokens that knows, once exhausted, how it ended."""

    def steps(self) -> Iterator[Prefilled | Token]:
        """The same tokens, and before them the progress of the prefill."""

    @property
    def finish(self) -> Finish | None:
        """None while tokens may still come."""

    def close(self) -> None:
        """Stop early; `finish` then says "cancelled". Safe to call twice and after the end."""


class Host(Protocol):
    """One loaded model on one engine.

    All engine calls happen on one owner thread, whichever threads call these methods.
    """

    @property
    def name(self) -> str:
        """The model's name as its weights give it, for messages and logs."""

    @property
    def context(self) -> int:
        """Context window in tokens."""

    @property
    def architecture(self) -> str:
        """The engine's name of the architecture, such as "lfm2" or "llama"."""

    @property
    def special_tokens(self) -> frozenset[str]:
        """The text of every special token in the vocabulary."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        limit: float | None = None,
    ) -> Prompt:
        """Template-shaped messages (see `prompt.variables`) to a prompt that ends where the model
        is to continue.

        With many more tokens than `limit` (by default what the context holds; infinite for a whole prompt
        whatever it takes) it may stop on the way and raise ContextOverflow. Raises TemplateFailed.
        """

    def generate(
        self, prompt: Prompt, sampling: Sampling, cancel: threading.Event | None = None
    ) -> Generation:
        """Prefill `prompt` and yield tokens until an end token, a limit or `cancel`.

        Raises ContextOverflow before any computing, EngineFailed when the engine gives up.
        """

    def close(self) -> None:
        """Free the weights and end the owner thread. Safe to call twice."""
