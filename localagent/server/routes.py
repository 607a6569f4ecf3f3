"""The endpoints that answer without running a turn: health, models, metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from localagent.distribution import version
from localagent.errors import LocalAgentError, UnknownModel, UsageError
from localagent.hosts.backends import BACKENDS
from localagent.hosts.mlx.backend import MLX
from localagent.server.access import Head
from localagent.server.bounds import SMALL, Gone, Receive, parse_json, read_body
from localagent.server.exchange import BadRequest, Wire, dump, message_of
from localagent.server.models import ModelPool, Served
from localagent.server.openapi import openapi
from localagent.server.page import page, state
from localagent.server.reply import Send, refuse
from localagent.server.service import Service
from localagent.server.weights import Weights
from localagent.server.wires import ollama_models
from localagent.server.wires.ollama_models import RUNNING

log = logging.getLogger("localagent.server")


class JsonAnswer(Response):
    """A JSON value, written as the wires write theirs."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of the body."""
        return dump(content).encode("utf-8", "backslashreplace")


class Refused(Response):
    """An error in the shape of one API. `unread`: the request's body has not been read."""

    def __init__(
        self,
        wire: Wire,
        error: Exception,
        service: Service,
        unread: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._more = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        self._unread = unread
        self._wire = wire
        self._error = error
        self._service = service

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer."""
        head = Head.of(scope) if self._unread else None
        await refuse(self._wire, self._error, head, self._service.bounds, send, self._more)


class OwnRoutes:
    """The endpoints, as methods. `shape`: the wire in whose shape the errors of a path are written."""

    def __init__(self, service: Service, wires: Sequence[Wire], shape: Callable[[str], Wire]) -> None:
        self._service = service
        self._wires = wires
        self._shape = shape

    @property
    def service(self) -> Service:
        """What all requests share."""
        return self._service

    @property
    def pool(self) -> ModelPool:
        """The models."""
        return self._service.pool

    async def root(self, request: Request) -> Response:
        """The page, for browsers. Ollama's clients look here whether a server runs."""
        if self._service.access.page and Head.of(request.scope).wants_page:
            html, headers = page()
            return Response(html, headers=headers)
        return PlainTextResponse(RUNNING, headers={"vary": "accept"})

    async def state(self, _: Request) -> Response:
        """What the page shows."""
        service = self._service
        return JsonAnswer(
            state(service.pool, service.metrics, service.access), headers={"cache-control": "no-store"}
        )

    async def document(self, _: Request) -> Response:
        """What can be asked, as OpenAPI."""
        return JsonAnswer(openapi(self._wires, keys=bool(self._service.access.keys)))

    async def health(self, _: Request) -> Response:
        """Whether HTTP and every engine thread live: 503 as soon as one of them does not.

        One of several models that could not be loaded, say for want of memory, leaves the others as they are.
        """
        pool = self._service.pool.served
        models = {name: _state(served) for name, served in pool.items()}
        down = {name for name, told in models.items() if told["state"] in ("failed", "stalled")}
        dead = any(pool[name].model is not None for name in down)
        failed = self._service.stopping or dead or len(down) == len(models)
        said = {"status": "stopping" if self._service.stopping else "failed" if failed else "ok"}
        # Which models there are is nobody's business who has no key.
        if not self._service.access.keys:
            said["models"] = models  # type: ignore[assignment]
        return JsonAnswer(said, 503 if failed else 200, {"retry-after": "5"} if failed else None)

    async def models(self, _: Request) -> Response:
        """All models, with the fields of OpenAI's API and of Anthropic's."""
        data = [await _described(served) for served in self._service.pool.served.values()]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
        return JsonAnswer({"object": "list", "data": data, "has_more": False, **ends})

    async def model(self, request: Request) -> Response:
        """One model, by its own name or an alias."""
        name = request.path_params["name"]
        try:
            served = self._service.pool.find(name, exactly=True)
        except UnknownModel as error:
            return self.refused(request, error)
        return JsonAnswer(await _described(served))

    async def load(self, request: Request) -> Response:
        """Load a model, also one whose engine has ended or is stalled."""
        try:
            served = await self._named(request)
            await self._service.pool.load(served)
        except Exception as error:
            return self.refused(request, error)
        return JsonAnswer(await _described(served))

    async def unload(self, request: Request) -> Response:
        """Unload a model that nobody uses."""
        try:
            served = await self._named(request)
            await self._service.pool.unload(served)
        except Exception as error:
            return self.refused(request, error)
        return JsonAnswer(await _described(served))

    async def metrics(self, _: Request) -> Response:
        """The counters."""
        return Response(self._service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def tags(self, _: Request) -> Response:
        """Ollama's list of models."""
        described = [await _for_ollama(served) for served in self._service.pool.served.values()]
        return JsonAnswer(ollama_models.tags(described))

    async def ps(self, _: Request) -> Response:
        """Ollama's list of models in memory."""
        ready = [served for served in self._service.pool.served.values() if served.state == "ready"]
        return JsonAnswer(ollama_models.ps([await _for_ollama(served) for served in ready]))

    async def show(self, request: Request) -> Response:
        """Ollama's description of a model."""
        try:
            name = ollama_models.asked_model(await self.body(request))
            described = await _for_ollama(self._service.pool.find(name, exactly=True))
            return JsonAnswer(ollama_models.show(described))
        except (UsageError, Gone) as error:
            return self.refused(request, error)

    async def version(self, _: Request) -> Response:
        """The version of Ollama's API."""
        return JsonAnswer(ollama_models.version())

    async def lm_studio_models(self, _: Request) -> Response:
        """LM Studio's list of models."""
        data = [await _for_lm_studio(served) for served in self._service.pool.served.values()]
        return JsonAnswer({"object": "list", "data": data})

    async def lm_studio_model(self, request: Request) -> Response:
        """LM Studio's description of a model."""
        try:
            served = self._service.pool.find(request.path_params["name"], exactly=True)
        except UnknownModel as error:
            return self.refused(request, error)
        return JsonAnswer(await _for_lm_studio(served))

    async def props(self, request: Request) -> Response:
        """llama-server's properties, as far as clients look at them."""
        try:
            served = self._service.pool.find(request.query_params.get("model", ""))
        except UnknownModel as error:
            return self.refused(request, error)
        described = await _for_ollama(served)
        return JsonAnswer(
            {
                "default_generation_settings": {"n_ctx": described.context},
                "total_slots": served.model.lanes if served.model is not None else 0,
                "model_alias": served.name,
                "model_path": served.name,  # where its weights are is nobody's business
                "chat_template": described.template,
                "modalities": {"vision": described.images, "audio": False},
                "build_info": f"localagent {version() or 0}",
            }
        )

    def refused(self, request: Request, error: Exception) -> Response:
        """An error in the shape of the API whose path was asked for."""
        if isinstance(error, Gone):
            return Response(status_code=400)  # nobody is there to read it
        if not isinstance(error, LocalAgentError):
            log.error("%s failed", request.url.path, exc_info=error)
        unread = isinstance(error, BadRequest) and error.status in (408, 413)  # some of the body, at least
        return Refused(self._shape(request.url.path), error, self._service, unread)

    async def body(self, request: Request) -> Any:
        """The JSON of a small body. Raises BadRequest, Gone."""
        bounds = replace(self._service.bounds, body=min(SMALL, self._service.bounds.body))
        announced = request.headers.get("content-length")
        return parse_json(await read_body(request.receive, bounds, announced), bounds)

    async def _named(self, request: Request) -> Served:
        """The model that the body names. Raises BadRequest, UnknownModel."""
        value = await self.body(request)
        name = value.get("model") if isinstance(value, dict) else None
        if not isinstance(name, str) or not name:
            raise BadRequest("model: the name of a model is needed", "model")
        return self._service.pool.find(name, exactly=True)


async def _for_ollama(served: Served) -> ollama_models.Described:
    """The model, or what its weights say of it while it is not loaded."""
    if (model := served.model) is not None:
        host, dialect = model.host, model.dialect
        found = Weights(
            host.architecture,
            host.context,
            _format(host.engine),
            host.template_source or "",
            dialect,
        )
    elif (read := await served.weights()) is not None:
        found = read
    else:
        return ollama_models.Described(
            name=served.name, architecture="unknown", context=0, modified=served.created, tools=True
        )
    return ollama_models.Described(
        name=served.name,
        architecture=found.architecture,
        context=found.context,
        format=found.format,
        modified=served.created,
        template=found.template,
        tools=found.dialect.calls is not None,
        thinking=found.dialect.reasoning is not None,
    )


def _format(engine: str) -> str:
    """The format of the weights that an engine of this name and version loads."""
    return next((row.format for row in BACKENDS.values() if engine.startswith(row.title)), MLX.format)


async def _for_lm_studio(served: Served) -> dict[str, Any]:
    told = await _for_ollama(served)
    loaded = {"state": "not-loaded"}
    if served.state == "ready":
        loaded = {"state": "loaded", "loaded_context_length": told.context}  # type: ignore[dict-item]
    return {
        "id": served.name,
        "object": "model",
        "type": "llm",
        "publisher": "localagent",
        "arch": told.architecture,
        "compatibility_type": told.format,
        "quantization": told.quantization,
        **loaded,
        "max_context_length": told.context,
        "capabilities": ["tool_use"] if told.tools else [],
    }


def _state(served: Served) -> dict[str, Any]:
    state: dict[str, Any] = {
        "state": served.state,
        "lanes": served.model.lanes if served.model is not None else 0,
        "running": served.queue.running,
        "waiting": served.queue.waiting,
    }
    return state if served.error is None else {**state, "error": message_of(served.error)}


async def _described(served: Served) -> dict[str, Any]:
    known = await served.weights() if served.model is None else served.model.host
    context = None if known is None else known.context
    created = datetime.fromtimestamp(served.created, UTC).isoformat(timespec="seconds")
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "localagent",
        "type": "model",
        "display_name": served.name,
        "created_at": created.replace("+00:00", "Z"),
        "context_length": context,
        **_state(served),
    }
