"""The OpenAPI document: written from the wires' tables of options, so that it says what they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localagent.distribution import version
from localagent.server.exchange import Option, Refused, Wire
from localagent.server.wires import chat, completions, infill, messages, ollama, responses

_TABLES: Mapping[str, tuple[str, Mapping[str, Option]]] = {
    "/v1/chat/completions": ("OpenAI's chat completions", chat.OPTIONS),
    "/v1/responses": ("OpenAI's responses, without anything stored", responses.OPTIONS),
    "/v1/completions": (
        "OpenAI's older completions: text without a chat template, at most 16 tokens unless max_tokens says "
        "more, or -1 for no limit",
        completions.OPTIONS,
    ),
    "/infill": ("llama-server's completion of code at the cursor", infill.OPTIONS),
    "/v1/messages": ("Anthropic's messages", messages.OPTIONS),
    "/v1/messages/count_tokens": ("How many tokens a request to /v1/messages has", messages.OPTIONS),
    "/api/chat": ("Ollama's chat", ollama.CHAT_OPTIONS),
    "/api/generate": ("Ollama's generate", ollama.GENERATE_OPTIONS),
}
_TEXT, _FLAG, _OBJECT = ({"type": each} for each in ("string", "boolean", "object"))
_COUNT = {"type": "integer", "minimum": 1}
_LIST = {"type": "array", "items": _OBJECT}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "user", "assistant", "tool"]},
        "content": {"anyOf": [_TEXT, _LIST]},
    },
}
_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("model", "instructions", "system", "keep_alive"), _TEXT),
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens", "top_k"), _COUNT),
    **dict.fromkeys(("stream", "stream_tool_calls", "parallel_tool_calls", "raw"), _FLAG),
    **dict.fromkeys(("continue_final_message", "add_generation_prompt"), _FLAG),
    **dict.fromkeys(("stream_options", "response_format", "options"), _OBJECT),
    "input": {"anyOf": [_TEXT, _LIST]},
    "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
    "prompt": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1}]},
    **dict.fromkeys(("suffix", "input_prefix", "input_suffix"), _TEXT),
    **dict.fromkeys(("n", "best_of"), _COUNT),
    "echo": _FLAG,
    "seed": {"type": "integer"},
    "temperature": {"type": "number", "minimum": 0},
    "tools": _LIST,
    "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
}
"""The types of fields that have one type wherever they occur; the wires check all of them."""
_NEEDED = {
    "/v1/chat/completions": ["messages"],
    "/v1/responses": ["input"],
    "/v1/completions": ["prompt"],
    "/v1/messages": ["messages", "max_tokens"],
    "/v1/messages/count_tokens": ["messages"],
}
_NAMED = {"type": "object", "required": ["model"], "properties": {"model": _TEXT}}
_OTHERS: Mapping[tuple[str, str], str] = {
    ("get", "/health"): "Whether the server and every engine thread live",
    ("get", "/v1/models"): "All models",
    ("get", "/v1/models/{name}"): "One model",
    ("post", "/v1/models/load"): "Load a model",
    ("post", "/v1/models/unload"): "Unload a model that nobody uses",
    ("get", "/api/tags"): "Ollama's list of models",
    ("get", "/api/ps"): "Ollama's list of models in memory",
    ("post", "/api/show"): "Ollama's description of a model",
    ("get", "/api/version"): "The version of Ollama's API",
    ("post", "/api/pull"): "Have a model: at once if it is here, else fetched with --allow-pull",
    ("delete", "/api/delete"): "Delete a model's weights, with --allow-pull",
    ("get", "/api/v0/models"): "LM Studio's list of models",
    ("get", "/api/v0/models/{name}"): "LM Studio's description of a model",
    ("get", "/props"): "llama-server's properties",
}
_ERRORS = {
    "400": "The request is wrong; the message names the field",
    "401": "A key is needed, or wrong",
    "403": "This host name or origin may not ask",
    "404": "No such model or endpoint",
    "405": "The endpoint does not take this method; Allow says which it takes",
    "408": "The body took too long",
    "413": "The body is too large",
    "415": "The body must be declared as application/json",
    "500": "The engine failed",
    "503": "Too many requests wait, or a model has no room now; Retry-After says when to come back",
    "504": "The answer took longer than the server allows",
}


def openapi(wires: Sequence[Wire], keys: bool) -> dict[str, Any]:
    """The document. `keys`: whether clients need one."""
    paths: dict[str, dict[str, Any]] = {}
    for wire in wires:
        if wire.path in _TABLES:
            paths[wire.path] = {"post": _turn(wire)}
    for (method, path), summary in _OTHERS.items():
        operation: dict[str, Any] = {"summary": summary, "responses": _answers("application/json")}
        if method != "get":
            operation["requestBody"] = _body(_NAMED)
        if "{name}" in path:
            operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": _TEXT}]
        paths.setdefault(path, {})[method] = operation
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "localagent", "version": version() or "0"},
        "paths": paths,
    }
    if keys:
        schemes = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        document |= {"components": {"securitySchemes": schemes}, "security": [{"bearer": []}, {"header": []}]}
    return document


def _turn(wire: Wire) -> dict[str, Any]:
    summary, options = _TABLES[wire.path]
    schema = {
        "type": "object",
        "properties": {name: _property(wire.path, name, how) for name, how in options.items()},
        "required": _NEEDED.get(wire.path, []),
    }
    streamed = "application/x-ndjson" if wire.framing == "ndjson" else "text/event-stream"
    return {
        "summary": summary,
        "requestBody": _body(schema),
        "responses": _answers("application/json", streamed),
    }


def _property(path: str, name: str, how: Option) -> dict[str, Any]:
    if isinstance(how, Refused):
        return {"description": f"An error: {how.why}."}
    if how == "hint":
        return {"description": "Ignored, and named in the header x-localagent-ignored."}
    return _TEXT if name == "prompt" and path not in _NEEDED else dict(_TYPES.get(name, {}))


def _body(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _answers(*kinds: str) -> dict[str, Any]:
    content: dict[str, Any] = {kind: {} for kind in kinds}
    errors = {
        status: {"description": said, "content": {"application/json": {}}} for status, said in _ERRORS.items()
    }
    return {"200": {"description": "The answer", "content": content}, **errors}
