"""What each kind of server is asked for tokens, and what its events mean. No input or output.

An `Api` belongs to one generation. Sources: vLLM 0.33 (scale_out/token_in_token_out and openai/completion,
protocol.py), SGLang (managers/io_struct.py, GenerateReqInput, and tokenizer_manager.py), llama.cpp's
tools/server/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from localagent.errors import StreamBroken, Unsupported
from localagent.hosts.protocol import Form, Logprobs, StopReason
from localagent.hosts.sampling import PENALTY_WINDOW, Sampling
from localagent.wording import one_line

LLGUIDANCE = "%llguidance"
"""How a grammar for llguidance begins. A llama-server that was built without it may end at the sight."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a server is to do. `most`: tokens to draw; `ends`: ids that end a turn; `name`: of the request."""

    ids: Sequence[int]
    sampling: Sampling
    most: int
    ends: Sequence[int]
    model: str | None
    name: str
    form: Form | None = None
    """What `bound` is; None where nothing is asked to be held."""
    bound: Any = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one event brings. `scores`: one for each id, or none at all."""

    ids: Sequence[int] = ()
    scores: Sequence[Logprobs] = ()
    cached: int | None = None
    ended: StopReason | None = None
    lost: int = 0
    """So many tokens came before `ids` that the server drew and did not send."""
    text: str = ""
    """What those tokens and `ids` spell together, where some are lost."""


class Api(Protocol):
    """How one kind of server is spoken to."""

    path: str

    def body(self, asked: Asked) -> dict[str, Any]:
        """The JSON to post."""

    def read(self, event: Any) -> Chunk:
        """What an event brings. Raises StreamBroken for one that makes no sense."""

    def abort(self, name: str) -> tuple[str, dict[str, Any]] | None:
        """Where, and with what, a request is given up; None if closing its connection is all there is."""


class VllmTokens(Api):
    """vLLM's `/inference/v1/generate`: ids in, ids out."""

    path = "/inference/v1/generate"

    def body(self, asked: Asked) -> dict[str, Any]:
        chosen: dict[str, Any] = {**_vllm_sampling(asked), "detokenize": False}
        if asked.sampling.logprobs is not None:
            chosen["logprobs"] = asked.sampling.logprobs
        return {
            "request_id": asked.name,
            "token_ids": list(asked.ids),
            "sampling_params": chosen,
            **({"model": asked.model} if asked.model else {}),
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def read(self, event: Any) -> Chunk:
        with _Sensible("vLLM"):
            choice: Mapping[str, Any] = next(iter(event.get("choices") or ()), {})
            content = (choice.get("logprobs") or {}).get("content") or ()
            return Chunk(
                _ids(choice.get("token_ids") or ()),
                tuple(_score(each, each["top_logprobs"], "token_id") for each in content),
                _cached((event.get("usage") or {}).get("prompt_tokens_details")),
                _ended(choice.get("finish_reason")),
            )

    def abort(self, name: str) -> tuple[str, dict[str, Any]]:
        # Inside, the request has a longer name than it was given.
        return "/inference/v1/abort_requests", {"request_ids": [f"generate-tokens-{name}", name]}


class VllmCompletions(Api):
    """vLLM's `/v1/completions` of earlier versions, told to give the ids of what it writes."""

    path = "/v1/completions"

    def body(self, asked: Asked) -> dict[str, Any]:
        body = {
            **_vllm_sampling(asked),
            "prompt": list(asked.ids),
            "model": asked.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "add_special_tokens": False,
        }
        if asked.sampling.logprobs is not None:
            # The texts of tokens are not their ids; so written, they are.
            body |= {"logprobs": asked.sampling.logprobs, "return_tokens_as_token_ids": True}
        return body

    def read(self, event: Any) -> Chunk:
        with _Sensible("vLLM"):
            choice: Mapping[str, Any] = next(iter(event.get("choices") or ()), {})
            return Chunk(
                _ids(choice.get("token_ids") or ()),
                tuple(_scores_by_name(choice.get("logprobs"))),
                _cached((event.get("usage") or {}).get("prompt_tokens_details")),
                _ended(choice.get("finish_reason")),
            )

    def abort(self, name: str) -> None:
        return


class Sglang(Api):
    """SGLang's `/generate`. What it streams holds all ids so far, or, where the server was started with
    `--incremental-streaming-output`, the new ones: the count of tokens tells which of them are new.
    """

    path = "/generate"

    def __init__(self) -> None:
        self._seen = 0
        self._scored = 0
        self._whole = False
        """Whether events hold all tokens so far; the first may be of either kind."""

    def body(self, asked: Asked) -> dict[str, Any]:
        sampling = asked.sampling
        chosen: dict[str, Any] = {
            "max_new_tokens": asked.most,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p or 1.0,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p or 0.0,
            "repetition_penalty": sampling.repetition_penalty or 1.0,
            "stop_token_ids": list(asked.ends),
            "skip_special_tokens": False,
            "no_stop_trim": True,
        }
        if sampling.seed is not None:
            chosen["sampling_seed"] = sampling.seed
        match asked.form:
            case "lark" | "ebnf":
                chosen["ebnf"] = asked.bound
            case "schema":
                chosen["json_schema"] = json.dumps(asked.bound)
            case _:
                _require_nothing(asked)
        body: dict[str, Any] = {
            "rid": asked.name,
            "input_ids": list(asked.ids),
            "sampling_params": chosen,
            "stream": True,
        }
        if sampling.logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": sampling.logprobs}
        return body

    def read(self, event: Any) -> Chunk:
        with _Sensible("SGLang"):
            told = event["meta_info"]
            count = int(told["completion_tokens"])
            seen, self._seen = self._seen, count
            ids = _ids(event.get("output_ids") or ())
            if len(ids) >= count >= seen:  # all so far, which may be ahead of what is counted beside them
                self._whole = self._whole or seen > 0 or len(ids) > count
                ids = ids[seen:count]
            elif len(ids) == count - seen:
                self._whole = False
            else:
                raise ValueError("it counts other tokens than it sends")
            drawn = told.get("output_token_logprobs") or ()
            likely = told.get("output_top_logprobs") or [()] * len(drawn)
            fresh = slice(self._scored, count) if self._whole else slice(len(ids))
            scores = [
                Logprobs(float(one[0]), tuple((int(each[1]), float(each[0])) for each in most or ()))
                for one, most in list(zip(drawn, likely, strict=True))[fresh]
            ]
            self._scored += len(scores)
            reason = told.get("finish_reason")
            kind = reason.get("type") if isinstance(reason, Mapping) else reason
            return Chunk(ids, scores, _cached(told), _ended(kind))

    def abort(self, name: str) -> tuple[str, dict[str, Any]]:
        return "/abort_request", {"rid": name}


class LlamaServer(Api):
    """llama-server's `/completion`. Its samplers are put into our order.

    While a character is not complete it sends nothing, and then the id of its last token alone. How many it
    left out is seen by its count, and which by the character.
    """

    path = "/completion"

    def __init__(self) -> None:
        self._seen = 0

    def body(self, asked: Asked) -> dict[str, Any]:
        sampling = asked.sampling
        body: dict[str, Any] = {
            "prompt": list(asked.ids),
            "n_predict": asked.most,
            "stream": True,
            "return_tokens": True,
            "cache_prompt": True,
            "repeat_penalty": sampling.repetition_penalty or 1.0,
            "repeat_last_n": PENALTY_WINDOW,  # as ours does; the other servers look at all
        }
        if sampling.temperature == 0:
            body |= {"samplers": ["penalties", "top_k"], "top_k": 1}
        else:
            body |= {
                "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
                "temperature": sampling.temperature,
                "top_k": sampling.top_k or 0,
                "top_p": sampling.top_p or 1.0,
                "min_p": sampling.min_p or 0.0,
            }
        if sampling.seed is not None:
            body["seed"] = sampling.seed % 0xFFFFFFFF
        if sampling.logprobs is not None:
            body["n_probs"] = max(1, sampling.logprobs)
        match asked.form:
            case "lark":
                body["grammar"] = f"{LLGUIDANCE} {{}}\n{asked.bound}"
            case "gbnf":
                body["grammar"] = asked.bound
            case "schema":
                body["json_schema"] = asked.bound
            case _:
                _require_nothing(asked)
        return body

    def read(self, event: Any) -> Chunk:
        with _Sensible("llama-server"):
            scores = tuple(
                _score(each, each.get("top_logprobs") or (), "id")
                for each in event.get("completion_probabilities") or ()
            )
            ids, count = _ids(event.get("tokens") or ()), int(event["tokens_predicted"])
            lost, self._seen = count - self._seen - len(ids), count
            if lost < 0:
                raise ValueError("it counts fewer tokens than it sends")
            text = str(event["content"]) if lost else ""
            if not event["stop"]:
                return Chunk(ids, scores, lost=lost, text=text)
            ended: StopReason = "length" if event["stop_type"] == "limit" else "stop"
            # At the end, what was left out is half a character, which nothing spells.
            return Chunk(ids, (), int(event["timings"]["cache_n"]), ended, lost if text else 0, text)

    def abort(self, name: str) -> None:
        return


class _Sensible:
    """Turns what a server's nonsense raises into a StreamBroken."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, ValueError | TypeError | KeyError | AttributeError | LookupError):
            raise StreamBroken(
                f"{self._name} sent an event that makes no sense ({type(error).__name__}: "
                f"{one_line(str(error), 80)}): is it another kind of server, or another version?"
            ) from error


def _vllm_sampling(asked: Asked) -> dict[str, Any]:
    sampling = asked.sampling
    chosen: dict[str, Any] = {
        "max_tokens": asked.most,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p or 1.0,
        "top_k": sampling.top_k or 0,
        "min_p": sampling.min_p or 0.0,
        "repetition_penalty": sampling.repetition_penalty or 1.0,
        "stop_token_ids": list(asked.ends),
        "skip_special_tokens": False,
    }
    if sampling.seed is not None:
        chosen["seed"] = sampling.seed
    match asked.form:
        case "core":
            chosen["structured_outputs"] = {"grammar": asked.bound}
        case "schema":
            chosen["structured_outputs"] = {"json": asked.bound}
        case _:
            _require_nothing(asked)
    return chosen


def _require_nothing(asked: Asked) -> None:
    """What cannot be said must not be left out."""
    if asked.form is not None:
        raise Unsupported(f"this kind of server cannot be told a constraint as {asked.form}")


def _ids(given: Sequence[Any]) -> tuple[int, ...]:
    if not all(type(each) is int for each in given):
        raise ValueError("ids that are no whole numbers")
    return tuple(given)


def _score(told: Mapping[str, Any], likely: Sequence[Mapping[str, Any]], name: str) -> Logprobs:
    return Logprobs(
        float(told["logprob"]), tuple((int(each[name]), float(each["logprob"])) for each in likely)
    )


def _scores_by_name(told: Mapping[str, Any] | None) -> list[Logprobs]:
    """Scores of tokens that are written as `token_id:7`."""
    if not told:
        return []
    likely = told.get("top_logprobs") or [{}] * len(told["token_logprobs"])
    return [
        Logprobs(
            float(one),
            tuple((int(name.removeprefix("token_id:")), float(each)) for name, each in (most or {}).items()),
        )
        for one, most in zip(told["token_logprobs"], likely, strict=True)
    ]


def _cached(told: Mapping[str, Any] | None) -> int | None:
    cached = (told or {}).get("cached_tokens")
    return None if cached is None else int(cached)


def _ended(reason: str | None) -> StopReason | None:
    match reason:
        case None:
            return None
        case "length":
            return "length"
        case "abort":
            raise StreamBroken("the server gave the request up: its log says why; ask again")
    return "stop"
