"""llama-server's endpoints for what is around a turn: the tokens of a text, the text of tokens, and a prompt.

They are wires whose requests run no turn: `Wire.tell` gives the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from localagent.errors import Unsupported
from localagent.model import Model
from localagent.server.exchange import DEFAULT_LIMITS, Limits, TurnRequest, open_body, refusing
from localagent.server.models import ServedModel
from localagent.server.wires.chat import CHAT_WIRE
from localagent.server.wires.completions import COMPLETIONS_WIRE


def _read_tokenize(body: Any, limits: Limits = DEFAULT_LIMITS) -> TurnRequest:
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


def _tokenize(model: ServedModel, request: TurnRequest, prompting: Mapping[str, Any]) -> dict[str, Any]:
    here, asked = _here(model), request.details
    ids = here.host.tokenize(asked["content"], asked["special"])
    if asked["begin"] and here.host.takes_text:
        # An empty prompt has what the model wants at the beginning of each.
        ids = (*here.host.raw_prompt("").ids, *ids)
    if asked["pieces"]:
        return {"tokens": [{"id": each, "piece": _piece(here.host.detokenize([each]))} for each in ids]}
    return {"tokens": ids}


def _read_detokenize(body: Any, limits: Limits = DEFAULT_LIMITS) -> TurnRequest:
    fields = open_body(body)
    with refusing():
        ids = fields.take("tokens")
        if not isinstance(ids, list) or not all(type(each) is int and each >= 0 for each in ids):
            raise fields.wrong("it must be a list of token ids", "tokens")
        return TurnRequest(model=fields.maybe_text("model") or "", raw_prompts=[""], details={"ids": ids})


def _detokenize(model: ServedModel, request: TurnRequest, prompting: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": _here(model).host.detokenize(request.details["ids"]).decode("utf-8", "replace")}


def _apply_template(model: ServedModel, request: TurnRequest, prompting: Mapping[str, Any]) -> dict[str, Any]:
    return {"prompt": _here(model).render(request.messages, **prompting).text}


def _here(model: ServedModel) -> Model:
    if not isinstance(model, Model):
        raise Unsupported(f"{model.name} runs in replicas, which give neither tokens nor prompts")
    return model


def _piece(data: bytes) -> str | list[int]:
    """A token as text, or its bytes where it is a part of a character."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return [*data]


TOKENIZE_WIRE = replace(COMPLETIONS_WIRE, path="/tokenize", read=_read_tokenize, tell=_tokenize)
"""`content` to `tokens`."""
DETOKENIZE_WIRE = replace(COMPLETIONS_WIRE, path="/detokenize", read=_read_detokenize, tell=_detokenize)
"""`tokens` to `content`."""
APPLY_TEMPLATE_WIRE = replace(CHAT_WIRE, path="/apply-template", tell=_apply_template)
"""A request for chat completions to the prompt that it would run."""
