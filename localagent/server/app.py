"""The application: the routes, and the guard in front of all of them.

`create_app(service)` is a Starlette application whose wires all share one handler (`answering`). Every
request passes the guard first, which decides from its head whether it may go on (`access`), and logs it at
the end: who, what, how many tokens, how long; never what was said.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence, Set
from contextlib import asynccontextmanager, suppress
from itertools import takewhile
from time import monotonic
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from localagent.messages import Usage
from localagent.server.access import Client, Head, in_origin_form
from localagent.server.answering import AskEndpoint, Endpoint
from localagent.server.bounds import CROWDED, Receive
from localagent.server.exchange import BadRequest, Wire
from localagent.server.metrics import Watched
from localagent.server.pulling import PullRoutes
from localagent.server.queue import Overloaded
from localagent.server.reply import Send, refuse
from localagent.server.routes import OwnRoutes, Refused
from localagent.server.service import Service
from localagent.server.tokens import APPLY_TEMPLATE_WIRE, DETOKENIZE_WIRE, TOKENIZE_WIRE
from localagent.server.wires.chat import CHAT_WIRE
from localagent.server.wires.completions import COMPLETIONS_WIRE
from localagent.server.wires.infill import INFILL_WIRE
from localagent.server.wires.messages import COUNT_TOKENS_WIRE, MESSAGES_WIRE
from localagent.server.wires.ollama import OLLAMA_CHAT_WIRE, OLLAMA_GENERATE_WIRE
from localagent.server.wires.responses import RESPONSES_WIRE
from localagent.wording import quoted

access_log = logging.getLogger("localagent.access")


class Guard:
    """The outermost layer: access, and a line in the log."""

    def __init__(
        self, app: Callable[..., Awaitable[None]], service: Service, shape: Callable[[str], Wire]
    ) -> None:
        self._app = app
        self._service = service
        self._shape = shape

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope, authority = in_origin_form(scope)
        head, began = Head.of(scope, authority), monotonic()
        note: dict[str, Any] = scope.setdefault("state", {})
        access, status = self._service.access, 0
        more: list[tuple[bytes, bytes]] = [(b"x-content-type-options", b"nosniff")]

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            try:
                if note.get(CROWDED):
                    raise self._crowded(head, more)
                note["client"] = access.admit(head, self._service.bounds)
                more += access.cors(head)
            except BadRequest as refusal:
                note["outcome"] = "refused"
                # A page that may ask is to see why it was refused, as where it has no key.
                with suppress(BadRequest):
                    access.check_origin(head)
                    more += access.cors(head)
                wire = self._shape(head.path)
                await refuse(wire, refusal, head, self._service.bounds, answer)
                return
            if head.method == "OPTIONS" and head.one(b"origin") is not None:
                await Response(status_code=204)(scope, receive, answer)
                return
            await self._app(scope, receive, answer)
        finally:
            self._log(head, note, status, monotonic() - began)

    def _crowded(self, head: Head, more: list[tuple[bytes, bytes]]) -> Overloaded:
        """There are too many connections: this one is closed after the answer, to make room."""
        if not head.has_body:  # else it is closed anyway
            more.append((b"connection", b"close"))
        return Overloaded(f"{self._service.bounds.connections} connections are open already: try again later")

    def _log(self, head: Head, note: Mapping[str, Any], status: int, seconds: float) -> None:
        client: Client = note.get("client") or Client(head.address)
        watched: Watched | None = note.get("watched")
        outcome = str(note.get("outcome", ""))
        words = [f"{quoted(client.name)} {head.method} {quoted(head.path)} {status or '-'}"]
        if outcome:
            model, dialect = note.get("model", ""), note.get("dialect", "")
            self._service.metrics.ended(model, dialect, outcome, watched or Watched())
            words += [outcome, model]
        if watched is not None and watched.done:
            usage = sum((done.message.usage for done in watched.done), Usage())
            words.append(f"{usage.input} ({usage.cache_read} cached) + {usage.output} tokens")
            words.append(f"first {watched.first or 0:.3f} s")
        access_log.info("%s", " ".join([*filter(None, words), f"{seconds:.3f} s"]))


def shapes(wires: Sequence[Wire]) -> Callable[[str], Wire]:
    """In which API's shape an error is written: of the wire whose path begins most like the one asked for."""

    def shape(path: str) -> Wire:
        def alike(wire: Wire) -> int:
            both = zip(wire.path.strip("/").split("/"), path.strip("/").split("/"), strict=False)
            return len(list(takewhile(lambda parts: parts[0] == parts[1], both)))

        return max(wires, key=alike)  # the first one of equals

    return shape


def all_wires() -> tuple[Wire, ...]:
    """Every API that is spoken."""
    return (
        CHAT_WIRE,
        RESPONSES_WIRE,
        COMPLETIONS_WIRE,
        INFILL_WIRE,
        MESSAGES_WIRE,
        COUNT_TOKENS_WIRE,
        OLLAMA_CHAT_WIRE,
        OLLAMA_GENERATE_WIRE,
    )


def as_meant(path: str, below_v1: Set[str]) -> str:
    """The path without what a wrong base URL has made of it: slashes too many, and /v1 twice or not at all.

    `below_v1`: the words that come after /v1.
    """
    words = [*filter(None, path.split("/"))]
    while words[:2] == ["v1", "v1"]:
        del words[0]
    if words and words[0] in below_v1:
        words.insert(0, "v1")
    return "/" + "/".join(words)


def create_app(service: Service, wires: Sequence[Wire]) -> Starlette:
    """The application. `wires`: the APIs that it speaks; the first one gives other errors their shape."""
    shape = shapes(wires)
    own = OwnRoutes(service, wires, shape)
    pulls = PullRoutes(own, service.pulling)
    routes = [
        Route(wire.path, (Endpoint if wire.tell is None else AskEndpoint)(wire, service), methods=["POST"])
        for wire in (*wires, TOKENIZE_WIRE, DETOKENIZE_WIRE, APPLY_TEMPLATE_WIRE)
    ]
    routes += [  # where no method is named, GET and HEAD
        Route("/", own.root),
        Route("/api/localagent/state", own.state),
        Route("/health", own.health),
        Route("/openapi.json", own.document),
        Route("/props", own.props),
        Route("/v1/models", own.models),
        Route("/v1/models/load", own.load, methods=["POST"]),
        Route("/v1/models/unload", own.unload, methods=["POST"]),
        Route("/v1/models/{name:path}", own.model),
        Route("/api/tags", own.tags),
        Route("/api/ps", own.ps),
        Route("/api/show", own.show, methods=["POST"]),
        Route("/api/version", own.version),
        Route("/api/pull", pulls.pull, methods=["POST"]),
        Route("/api/delete", pulls.delete, methods=["DELETE"]),
        Route("/api/v0/models", own.lm_studio_models),
        Route("/api/v0/models/{name:path}", own.lm_studio_model),
    ]
    if service.offers_metrics:
        routes.append(Route("/metrics", own.metrics))

    async def not_found(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        method, path = request.method, request.url.path
        said, code = f"{quoted(method)} {quoted(path)}: no such endpoint", "not_found"
        if not path.startswith(("/v1/", "/api/")):
            said += ": the base URL for OpenAI's API ends in /v1 here"
        if error.status_code == 405:
            said, code = f"{quoted(path)} does not take {quoted(method)}", "method_not_allowed"
        refusal = BadRequest(said, code=code, status=error.status_code)
        return Refused(shape(path), refusal, service, unread=True, headers=error.headers)

    async def failed(request: Request, error: Exception) -> Response:
        return Refused(shape(request.url.path), error, service, unread=True)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watch = asyncio.create_task(service.pool.watch())
        try:
            yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            await service.pool.close()

    app = Starlette(
        routes=routes, lifespan=lifespan, exception_handlers={HTTPException: not_found, Exception: failed}
    )
    app.router.redirect_slashes = False  # it would send a client to whatever host name he gave
    below_v1 = {route.path.split("/")[2] for route in routes if route.path.startswith("/v1/")}
    unknown = app.router.default

    async def look_again(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        path = as_meant(scope["path"], below_v1)
        again = unknown if path == scope["path"] else app.router
        await again({**scope, "path": path}, receive, send)

    app.router.default = look_again
    app.add_middleware(Guard, service=service, shape=shape)
    return app
