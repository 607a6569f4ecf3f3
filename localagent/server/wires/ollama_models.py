"""What Ollama's API tells of models: `/api/tags`, `/api/show`, `/api/ps` and `/api/version`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from localagent.server.exchange import open_body, refusing

API_VERSION = "0.12.10"
"""The version of Ollama whose API this is. Clients refuse to talk to versions that they find too old."""
RUNNING = "Ollama is running"
"""The answer to `GET /`, by which clients find out that somebody speaks this API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A model, as far as clients are told of it."""

    name: str
    architecture: str
    context: int
    """Tokens."""
    format: str = "gguf"
    size: int = 0
    """Bytes on disk."""
    parameters: int = 0
    quantization: str = ""
    modified: float = 0.0
    """Seconds since 1970."""
    digest: str = ""
    template: str = ""
    license: str = ""
    tools: bool = False
    thinking: bool = False
    images: bool = False
    loaded: int = 0
    """Bytes of memory."""
    expires: float = math.inf
    """When it is unloaded, in seconds since 1970."""


def asked_model(body: Any) -> str:
    """The name in a request to `/api/show`. Raises BadRequest."""
    fields = open_body(body)
    with refusing():
        name = fields.maybe_text("model") or fields.maybe_text("name")
        if not name:
            raise fields.wrong("missing", "model")
        return name.removesuffix(":latest")


def asked_pull(body: Any) -> tuple[str, bool]:
    """The name in a request to `/api/pull`, and whether its progress is streamed. Raises BadRequest."""
    with refusing():
        return asked_model(body), open_body(body).flag("stream", True)


def tags(models: Iterable[Described]) -> dict[str, Any]:
    """The answer of `/api/tags`: the models that can be asked."""
    return {"models": [_entry(model) | {"modified_at": moment(model.modified)} for model in models]}


def ps(models: Iterable[Described]) -> dict[str, Any]:
    """The answer of `/api/ps`: the models in memory."""
    return {
        "models": [
            _entry(model)
            | {
                "size": model.loaded,
                "size_vram": model.loaded,
                "context_length": model.context,
                "expires_at": moment(min(model.expires, _FOR_EVER)),
            }
            for model in models
        ]
    }


_FOR_EVER = datetime(2999, 1, 1, tzinfo=UTC).timestamp()


def show(model: Described) -> dict[str, Any]:
    """The answer of `/api/show`."""
    capabilities = {"tools": model.tools, "thinking": model.thinking, "vision": model.images}
    return {
        "license": model.license,
        "modelfile": f"FROM {model.name}\n",
        "parameters": f"num_ctx {model.context}",
        "template": model.template,
        "details": _details(model),
        "model_info": {
            "general.architecture": model.architecture,
            "general.basename": model.name,
            "general.parameter_count": model.parameters,
            f"{model.architecture}.context_length": model.context,
        },
        "capabilities": ["completion", *(name for name, has in capabilities.items() if has)],
        "modified_at": moment(model.modified),
    }


def version() -> dict[str, Any]:
    """The answer of `/api/version`."""
    return {"version": API_VERSION}


def _entry(model: Described) -> dict[str, Any]:
    return {
        "name": model.name,
        "model": model.name,
        "size": model.size,
        "digest": model.digest or hashlib.sha256(model.name.encode()).hexdigest(),
        "details": _details(model),
    }


def _details(model: Described) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": model.format,
        "family": model.architecture,
        "families": [model.architecture],
        "parameter_size": _in_words(model.parameters),
        "quantization_level": model.quantization,
    }


def _in_words(parameters: int) -> str:
    """A number of parameters such as "1.2B"."""
    for unit, word in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.1f}{word}"
    return str(parameters)


def moment(seconds: float) -> str:
    """A time as the API writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
