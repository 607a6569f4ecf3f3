"""What the endpoints of OpenAI's API share: options, numbers and errors."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from localagent.errors import ContextOverflow, UnknownModel
from localagent.hosts.sampling import MOST_BIAS, MOST_BIASES, Numbers, Sampling, SamplingOptions
from localagent.parsers import Fits, Malformed, misfits
from localagent.server.exchange import Answer, BadRequest, Refused, message_of, status_of
from localagent.turn import Done, Scored
from localagent.wire.payload import Fields, whole

# -- errors -----------------------------------------------------------------------------------------------


def error_body(problem: Exception) -> tuple[int, dict[str, Any]]:
    """The status and the body of an error."""
    status = status_of(problem)
    error = {
        "message": message_of(problem),
        "type": "invalid_request_error" if status < 500 else "server_error",
        "param": None,
        "code": None,
    }
    match problem:
        case BadRequest():
            error |= {"param": problem.param, "code": problem.code, "type": problem.type or error["type"]}
        case ContextOverflow():
            error |= {"code": "context_length_exceeded", "message": _overflow(problem)}
        case UnknownModel():
            error |= {"param": "model", "code": "model_not_found"}
    return status, {"error": error}


def _overflow(problem: ContextOverflow) -> str:
    """The error in OpenAI's own words, for which some clients look; its numbers have no commas."""
    more = "" if problem.exact else "more than "
    return (
        f"This model's maximum context length is {problem.context} tokens. However, the prompt has "
        f"{more}{problem.prompt_tokens} tokens: shorten it, or load the model with a larger context."
    )


# -- options ---------------------------------------------------------------------------------------------

NO_PENALTY = Refused("the server has no such penalty; repetition_penalty is one that it has", (0,))
OF_OTHER_SERVERS: Mapping[str, Refused] = {
    **dict.fromkeys(
        ("grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        Refused("the server takes response_format of /v1/chat/completions instead"),
    ),
    "ignore_eos": Refused("the server ends where the model does", (False,)),
    "min_tokens": Refused("the server ends where the model does", (0,)),
}
"""Fields of other servers that change what the model writes."""
_NUMBERS: Mapping[str, Numbers] = {
    each.name: each.metadata["numbers"] for each in dataclasses.fields(Sampling) if each.metadata
}
_OFF: Mapping[str, Sequence[int]] = {"max_tokens": (-1,), "top_k": (0, -1), "seed": (-1,)}
"""What other servers take for "no limit" and "random", and clients therefore send."""
_SAMPLING = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")},
    "repeat_penalty": "repetition_penalty",
}
_MOST_STOPS = 100
"""Each of them is looked for at every token."""
SAMPLING = (*_SAMPLING, "stop", "logit_bias")
"""The fields that `read_sampling` takes, but for the limit, which has another name at each endpoint."""


def read_sampling(body: Fields, *limits: str) -> SamplingOptions:
    """The sampling options. `limits`: names of the field for the most tokens; the first one given counts."""
    options: dict[str, Any] = {}
    for theirs, ours in (dict.fromkeys(limits, "max_tokens") | _SAMPLING).items():
        if (value := _number(body, theirs, ours)) is not None:
            options.setdefault(ours, value)
    if options.get("top_p") == 0:  # as small as it gets: the likeliest token and no other
        options |= {"top_p": None, "top_k": 1}
    if stops := read_stops(body, "stop"):
        options["stop"] = stops
    if biases := read_bias(body):
        options["logit_bias"] = biases
    return cast(SamplingOptions, options)


def read_bias(body: Fields) -> dict[int, float]:
    """What is added to the logits of tokens: the API's object, or llama-server's list of pairs, in which
    false bans a token.
    """
    given = body.take("logit_bias")
    pairs = given.items() if isinstance(given, dict) else given or []
    biases: dict[int, float] = {}
    for pair in pairs if isinstance(pairs, Iterable) else [None]:
        token, bias = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (None, None)
        if isinstance(token, str) and token.isdecimal() and len(token) < 10:
            token = int(token)
        bias = -MOST_BIAS if bias is False else whole(bias)
        if type(token) is not int or token < 0 or bias not in Numbers(least=-MOST_BIAS, most=MOST_BIAS):
            said = f"it must be an object of token ids, each with a number from -{MOST_BIAS} to {MOST_BIAS}"
            raise body.wrong(said, "logit_bias")
        biases[token] = bias
    if len(biases) > MOST_BIASES:
        raise body.wrong(f"{len(biases):,} tokens, and the server takes {MOST_BIASES}", "logit_bias")
    return biases


def read_stops(body: Fields, name: str) -> list[str]:
    """The texts that end an answer."""
    given = body.take(name)
    stops = [] if given is None else [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise body.wrong("it must be a text or a list of texts, none of them empty", name)
    if len(stops) > _MOST_STOPS:
        raise body.wrong(f"{len(stops):,} texts, and the server takes {_MOST_STOPS}", name)
    return stops


def _number(body: Fields, theirs: str, ours: str) -> Any:
    value = whole(body.take(theirs))
    if value is None or (type(value) is int and value in _OFF.get(ours, ())):
        return None
    if ours == "top_p" and type(value) in (int, float) and value == 0:
        return 0
    if value not in _NUMBERS[ours]:
        raise body.wrong(f"it must be {_NUMBERS[ours]}", theirs)
    return value


# -- thinking ---------------------------------------------------------------------------------------------

EFFORTS: Mapping[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
"""The API's levels of reasoning, as `Model.stream` takes them."""


def read_effort(fields: Fields, name: str) -> bool | str | None:
    """A level of reasoning."""
    word = fields.word(name, tuple(EFFORTS))
    return None if word is None else EFFORTS[word]


# -- numbers ----------------------------------------------------------------------------------------------


class Spans:
    """Stretches of the raw output, to find the tokens that wrote them."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """The next stretch, which begins where the last one ends or later."""
        if self._ends and self._ends[-1] == start:
            self._ends[-1] = end
        elif end > start:
            self._starts.append(start)
            self._ends.append(end)

    def tokens(self, done: Done) -> list[int]:
        """The positions of the tokens with text in one of them.

        A token whose character comes complete with a later one counts where that character stands.
        """
        found = []
        before = 0
        for position, end in enumerate(done.ends):
            at = bisect_left(self._ends, before + 1)  # the first stretch that goes on after the token begins
            if at < len(self._starts) and self._starts[at] < max(end, before + 1):
                found.append(position)
            before = end
        return found


class Scores:
    """The log-probabilities of a text that comes in pieces: each beside the first piece that has something of
    its token.

    A token whose character comes complete with a later one belongs where that character stands.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._waiting: deque[tuple[int, Scored]] = deque()  # with the place where each begins
        self._end = 0

    def note(self, event: Scored) -> None:
        """The next token, of text or of anything else."""
        self._waiting.append((self._end, event))
        self._end = event.end

    def beside(self, start: int, end: int) -> list[tuple[int, dict[str, Any]]]:
        """Those of the piece that is this span of the raw output: where each token begins, and its entry."""
        entries = []
        while self._waiting and self._waiting[0][0] < end:
            begin, scored = self._waiting.popleft()
            if start < max(scored.end, begin + 1):
                entries.append((begin, self._entry(scored)))
        return entries

    def _entry(self, scored: Scored) -> dict[str, Any]:
        top = scored.logprobs.top
        ids = list(dict.fromkeys([scored.id, *(token for token, _ in top)]))
        spell = self._answer.spell
        spelled = dict(zip(ids, spell(ids) if spell is not None else [b""] * len(ids), strict=True))

        def entry(token: int, value: float) -> dict[str, Any]:
            data = spelled[token]
            text = data.decode("utf-8", "replace")
            return {"token": text, "logprob": max(value, _LEAST), "bytes": list(data)}

        likeliest = [entry(*each) for each in top]
        return {**entry(scored.id, scored.logprobs.token), "top_logprobs": likeliest}


_LEAST = -9999.0
"""What the API says of a token that cannot come: JSON has no infinity."""


def own_fields(*done: Done) -> dict[str, Any]:
    """What stands beside the API's own fields: `timings`, and `relaxed_schemas` if anything was relaxed.

    Of several turns of one request, the numbers are sums, and the same schemas were relaxed in all.
    """
    relaxed = [dataclasses.asdict(each) for each in done[0].relaxed]
    return {"timings": _timings(done), **({"relaxed_schemas": relaxed} if relaxed else {})}


def _timings(done: Sequence[Done]) -> dict[str, Any]:
    """llama-server's object of this name, which many user interfaces show."""
    usages, timings = [each.message.usage for each in done], [each.message.timings for each in done]
    spans = (
        ("prompt", sum(usage.prefilled for usage in usages), sum(each.prefill for each in timings)),
        ("predicted", sum(usage.output for usage in usages), sum(each.decode for each in timings)),
    )
    numbers: dict[str, Any] = {"cache_n": sum(usage.cache_read for usage in usages)}
    for name, tokens, seconds in spans:
        numbers[f"{name}_n"] = tokens
        numbers[f"{name}_ms"] = round(seconds * 1000, 3)
        numbers[f"{name}_per_token_ms"] = round(seconds * 1000 / tokens, 3) if tokens else 0.0
        numbers[f"{name}_per_second"] = round(tokens / seconds, 3) if seconds else 0.0
    return numbers


def malformed_entry(event: Malformed, index: int, call_id: str | None, arguments: str) -> dict[str, Any]:
    """One entry of the extension field `malformed_tool_calls`.

    `id` and `arguments` are those of a call that had been announced and partly sent: it never happened, and
    what was sent of it is here again.
    """
    return {
        "index": index,
        "id": call_id,
        "name": event.name,
        "reason": str(event.reason),
        "raw": event.raw,
        "arguments": arguments,
    }


def unfit_entries(index: int, fits: Fits) -> list[dict[str, Any]]:
    """The entry of a call in the extension field `unfit_tool_calls`; none for a call that fits.

    `index`: its place among the calls of the answer, from 0.
    """
    reasons = [dataclasses.asdict(reason) for reason in misfits(fits)]
    return [{"index": index, "reasons": reasons}] if reasons else []


def worth_telling(event: Malformed) -> bool:
    """Whether anything was lost; a forgotten end marker after complete calls is nobody's concern."""
    return bool(event.raw) or event.index is not None
