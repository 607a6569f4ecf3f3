"""llama-server's endpoints for what is around a turn: the tokens of a text, the text of tokens, and a prompt.

They are wires whose requests run no turn: `tell` is the answer, given in a thread beside the engine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from localagent.errors import Unsupported
from localagent.model import Model
from localagent.server.exchange import DEFAULT_LIMITS, Limits, TurnRequest, Wire, open_body, refusing
from localagent.server.models import ServedModel
from localagent.server.wires.chat import ChatCompletions
from localagent.server.wires.completions import Completions


class TellingWire(Wire, Protocol):
    """A wire that runs no turn."""

    def tell(self, model: ServedModel, request: TurnRequest, prompting: Mapping[str, Any]) -> dict[str, Any]:
        """The answer. `prompting`: the options of the request that its prompt depends on."""


class Tokenize(Completions):
    """`POST /tokenize`: `content` to `tokens`."""

    path = "/tokenize"

    def read(self, body: Any, limits: Limits = DEFAULT_LIMITS) -> TurnRequest:
        """As `Wire.read`."""
        fields = open_body(body)
        with refusing():
            details: dict[str, Any] = {
                "begin": fields.flag("add_special"),
                "special": fields.flag("parse_special", True),
                "pieces": fields.flag("with_pieces"),
            }
            content = fields.maybe_text("content")
            if content is None:
                raise fields.wrong("it must be a text", "content")
            details["content"] = content
            return TurnRequest(model=fields.maybe_text("model") or "", raw_prompts=[content], details=details)

    def tell(self, model: ServedModel, request: TurnRequest, prompting: Mapping[str, Any]) -> dict[str, Any]:
        """As `TellingWire.tell`."""
        here, asked = _here(model), request.details
        ids = here.host.tokenize(asked["content"], asked["special"])
        if asked["begin"] and (raw := getattr(here.host, "raw_prompt", None)) is not None:
            ids = (*raw("").ids, *ids)  # an empty prompt has what the model wants at the beginning of each
        if asked["pieces"]:
            return {"tokens": [{"id": each, "piece": _piece(_bytes(here, [each]))} for each in ids]}
        return {"tokens": ids}


class Detokenize(Completions):
    """`POST /detokenize`: `tokens` to `content`."""

    path = "/detokenize"

    def read(self, body: Any, limits: Limits = DEFAULT_LIMITS) -> TurnRequest:
        """As `Wire.read`."""
        fields = open_body(body)
        with refusing():
            ids = fields.take("tokens")
            if not isinstance(ids, list) or not all(type(each) is int and each >= 0 for each in ids):
                raise fields.wrong("it must be a list of token ids", "tokens")
            return TurnRequest(model=fields.maybe_text("model") or "", raw_prompts=[""], details={"ids": ids})

    def tell(self, model: ServedModel, request: TurnRequest, prompting: Mapping[str, Any]) -> dict[str, Any]:
        """As `TellingWire.tell`."""
        return {"content": _bytes(_here(model), request.details["ids"]).decode("utf-8", "replace")}


class ApplyTemplate(ChatCompletions):
    """`POST /apply-template`: a request for chat completions to the prompt that it would run."""

    path = "/apply-template"

    def tell(self, model: ServedModel, request: TurnRequest, prompting: Mapping[str, Any]) -> dict[str, Any]:
        """As `TellingWire.tell`."""
        return {"prompt": _here(model).render(request.messages, **prompting).text}


def _here(model: ServedModel) -> Model:
    if not isinstance(model, Model):
        raise Unsupported(f"{model.name} runs in replicas, which give neither tokens nor prompts")
    return model


def _bytes(model: Model, ids: list[int]) -> bytes:
    if (detokenize := getattr(model.host, "detokenize", None)) is None:
        raise Unsupported(f"{model.name} runs elsewhere, and the bytes of its tokens are not known here")
    spelled: bytes = detokenize(ids)
    return spelled


def _piece(data: bytes) -> str | list[int]:
    """A token as text, or its bytes where it is a part of a character."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return [*data]
