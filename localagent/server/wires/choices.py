"""The answers of OpenAI's older two APIs: one choice or several, and what is told of all of them together."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any, Protocol

from localagent.hosts.sampling import Numbers, SamplingOptions
from localagent.server.exchange import Answer, Frame, TurnRequest
from localagent.server.wires.openai import error_body, own_fields
from localagent.turn import Done, TurnEvent
from localagent.wire.payload import Fields

_MOST = 128
"""Choices that anybody may ask for; the model that is asked may have fewer lanes than that."""


def read_choices(fields: Fields, options: SamplingOptions, stream: bool) -> tuple[int, int]:
    """How many choices are wanted of each prompt, and how many are made, of which those are the best."""
    count = Numbers(whole=True, least=1, most=_MOST)
    wanted = fields.number("n", count) or 1
    made = fields.number("best_of", count) or wanted
    if made < wanted:
        raise fields.wrong(f"it must be at least n, which is {wanted}", "best_of")
    if made > wanted:
        if stream:
            raise fields.wrong(
                "the best answers are known when all have ended: ask without stream", "best_of"
            )
        options.setdefault("logprobs", 0)
    return wanted, made


class Choice(Protocol):
    """One of the choices of an answer, a function of the events of one turn."""

    reasoning_tokens: int
    """How many tokens of reasoning there were, when `Done` was fed."""

    def begin(self) -> list[dict[str, Any]]:
        """What chunks say of it before its first event."""

    def feed(self, event: TurnEvent) -> list[dict[str, Any]]:
        """What chunks say of the next event. After `Done`, the last one has the finish reason."""

    def whole(self) -> dict[str, Any]:
        """The choice of an answer that is not streamed."""


class ChoiceWriter:
    """See `ChoicesWriter`. Numbers stand beside the choices: of all of them, when the last one has ended."""

    def __init__(
        self,
        request: TurnRequest,
        answer: Answer,
        make: Callable[[TurnRequest, Answer, int], Choice],
        prefix: str,
        kinds: tuple[str, str],
    ) -> None:
        """`prefix`: of the id. `kinds`: what a chunk is called, and the whole answer."""
        count = max(1, len(request.raw_prompts)) * request.choices
        self._wanted: int = request.details["wanted"]
        self._made = request.choices
        self._with_usage: bool = request.details["include_usage"]
        self._choices = [make(request, answer, number) for number in range(count)]
        self._done: dict[int, Done] = {}
        self._kinds = kinds
        created = int(answer.created)
        self._head = {"id": f"{prefix}-{answer.key}", "object": "", "created": created, "model": answer.model}

    def begin(self) -> list[Frame]:
        """As `Writer.begin`."""
        return [self._chunk(told) for choice in self._choices for told in choice.begin()]

    def feed(self, event: TurnEvent) -> list[Frame]:
        """As `Writer.feed`, where there is one choice."""
        return self.feed_choice(0, event)

    def feed_choice(self, number: int, event: TurnEvent) -> list[Frame]:
        """As `ChoicesWriter.feed_choice`."""
        told = self._choices[number].feed(event)
        frames = [self._chunk(each) for each in told]
        if not isinstance(event, Done):
            return frames
        self._done[number] = event
        if len(self._done) < len(self._choices):
            return frames
        if self._with_usage:
            frames.append(Frame(self._envelope(0, []) | self._usage() | self._own()))
        else:
            frames[-1] = Frame(self._envelope(0, told[-1:]) | self._own())
        return [*frames, Frame("[DONE]")]

    def keep_alive(self) -> list[Frame]:
        """As `Writer.keep_alive`."""
        return [Frame(comment="working")]

    def fail(self, error: Exception) -> list[Frame]:
        """As `Writer.fail`."""
        return [Frame(error_body(error)[1])]

    def whole(self) -> dict[str, Any]:
        """As `Writer.whole`."""
        choices = [self._choices[number].whole() for number in self._best()]
        told = [{**choice, "index": index} for index, choice in enumerate(choices)]
        return self._envelope(1, told) | self._usage() | self._own()

    def _best(self) -> list[int]:
        """The choices that are given: of each prompt those whose tokens were likeliest on the mean."""
        numbers = range(len(self._choices))
        if self._made == self._wanted:
            return [*numbers]
        groups = (numbers[first : first + self._made] for first in numbers[:: self._made])
        return [best for group in groups for best in sorted(group, key=self._unlikely)[: self._wanted]]

    def _unlikely(self, number: int) -> float:
        return -fmean([score.token for score in self._done[number].logprobs] or [0.0])

    def _usage(self) -> dict[str, Any]:
        """The tokens of all choices. A prompt counts once, however many choices it has."""
        usages = [self._done[number].message.usage for number in range(len(self._choices))]
        prompt = sum(usage.input for usage in usages[:: self._made])
        written = sum(usage.output for usage in usages)
        reasoning = sum(choice.reasoning_tokens for choice in self._choices)
        # Of its choices the one that came first read it, and which one that was is chance.
        cached = sum(
            min(usage.cache_read for usage in usages[first : first + self._made])
            for first in range(0, len(usages), self._made)
        )
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }
        return {"usage": usage}

    def _own(self) -> dict[str, Any]:
        return own_fields(*(self._done[number] for number in range(len(self._choices))))

    def _chunk(self, told: dict[str, Any]) -> Frame:
        return Frame(self._envelope(0, [told]))

    def _envelope(self, kind: int, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": self._kinds[kind], "choices": choices}
