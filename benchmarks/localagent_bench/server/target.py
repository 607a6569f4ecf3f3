"""A server that is measured: its name, its model, and what its requests hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from localagent.chat_model import UNKNOWN_CONTEXT
from localagent.errors import UsageError
from localagent.remote import RemoteModel, Server
from localagent_bench.results import Column, Results, Table


@dataclass(frozen=True)
class MeasuredServer:
    """A server and a model of it."""

    name: str
    """How tables call it."""
    server: Server
    model: str
    context: int | None = None
    """Tokens, where the server says so."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields that its load requests have beside the usual ones."""
    cpu: Callable[[], float] | None = None
    """Seconds that it has computed until now, where that can be known."""
    build: str = ""
    """Which engine it has, and for which processor that was built, where that is known."""

    @classmethod
    def at(cls, url: str, model: str | None, silence: float, name: str = "") -> MeasuredServer:
        """The server at `url`, with its first model if none is named; its key is in LOCALAGENT_API_KEY.

        Raises UsageError, UnknownModel, ServerUnreachable, ServerRefused, StreamBroken.
        """
        remote = RemoteModel.open(url, model, silence=silence)
        context = None if remote.host.context == UNKNOWN_CONTEXT else remote.host.context
        return cls(name or name_of(remote.server.url), remote.server, remote.name, context)


SERVERS = Table(
    "server.servers",
    "Servers",
    (
        Column("server", "server"),
        Column("url", "address"),
        Column("model", "model"),
        Column("context", "context", "tokens"),
        Column("build", "build"),
    ),
)


def describe(results: Results, targets: Sequence[MeasuredServer]) -> None:
    """Say which servers are measured."""
    for target in targets:
        told = {"url": target.server.url, "model": target.model, "context": target.context}
        results.add(SERVERS, server=target.name, **told, build=target.build or None)


def name_of(url: str) -> str:
    """The short name of a server: where it listens."""
    parts = urlsplit(url)
    return f"{parts.netloc}{parts.path}"


def pair(urls: Sequence[str], models: Sequence[str]) -> list[tuple[str, str | None]]:
    """Each address with its model: one for all of them, or one for each. Raises UsageError."""
    if len(set(urls)) < len(urls):
        raise UsageError("the same --url twice: name each server once")
    if len(models) > 1 and len(models) != len(urls):
        raise UsageError(
            f"{len(models)} times --model and {len(urls)} times --url: give one model for all servers, or "
            "one for each, in the same order"
        )
    if len(models) > 1:
        return list(zip(urls, models, strict=True))
    return [(url, models[0] if models else None) for url in urls]
