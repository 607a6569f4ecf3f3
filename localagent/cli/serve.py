"""`localagent serve`: models over HTTP until SIGINT or SIGTERM."""

from __future__ import annotations

import logging
import os
import signal
import stat
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localagent.cli.loading import PullReport
from localagent.cli.naming import default_model, resolve
from localagent.cli.options import ServeOptions
from localagent.cli.terminal import say
from localagent.distribution import install_command, version
from localagent.errors import EngineFailed, ServerMissing, UnknownModel, UsageError
from localagent.remote.address import is_address, read_address
from localagent.wording import listed, quoted

if TYPE_CHECKING:
    from localagent.model import Model
    from localagent.server.access import Access
    from localagent.server.models import ModelPool
    from localagent.server.service import Pulling
    from localagent.server.weights import Weights
    from localagent.store import Progress

_STALL = 300.0
"""Seconds of one step after which an engine is given up."""
_IDLE = 600.0
"""Seconds after which one of several models is unloaded."""


def serve(options: ServeOptions) -> None:
    """Serve until a signal comes. Raises LocalAgentError before anything is served."""
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ServerMissing(f"the server is not installed: {install_command('server')} [{error}]") from error
    from localagent.server.app import all_wires, create_app
    from localagent.server.bounds import DEFAULT_BOUNDS, Bounds
    from localagent.server.listening import bind, listener
    from localagent.server.service import Service, log_to_standard_error

    failure: str | None = None

    def give_up(why: str) -> None:
        nonlocal failure
        failure = why
        server.should_exit = True

    access = access_for(options)
    drain = DEFAULT_BOUNDS.drain if options.drain is None else options.drain
    bounds = Bounds(queue=options.max_queue, deadline=options.deadline, drain=drain)
    with bind(options.host, options.port) as listening:  # first: it fails at once, and loading takes long
        pool = _pool(options, give_up, access.owner)
        service = Service(
            pool,
            access,
            bounds,
            metrics=options.metrics,
            log_prompts=options.log_prompts,
            buffer_tool_calls=options.buffer_tool_calls,
            pulling=pulling_for(options, access.owner) if options.allow_pull else None,
        )
        log_to_standard_error(options.log_prompts)
        server = listener(create_app(service, all_wires()), bounds, service.stop)
        # uvicorn puts the same handler there when it runs, and raises the signal again when it has ended.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, server.handle_exit)
        first, *others = pool.served.values()
        lanes = first.model.lanes if first.model is not None else 0
        welcome(
            url_of(options.host, listening.getsockname()[1]),
            [f"{first.name} ({lanes} answers at once)", *(each.name for each in others)],
            access,
            options,
        )
        server.run(sockets=[listening])
    if failure is not None and not pool.hangs:
        raise EngineFailed(failure)
    say("stopped" if failure is None else f"stopped: {failure}")
    if pool.hangs:  # the interpreter would wait for the engine's thread for ever
        logging.shutdown()
        sys.stderr.flush()
        os._exit(failure is not None)


def access_for(options: ServeOptions) -> Access:
    """Who may ask. Raises UsageError."""
    from localagent.server.access import Access, keys_for

    keys = keys_for(options.api_key_file)
    if (path := options.api_key_file) is not None:
        mode = path.expanduser().stat().st_mode
        if os.name != "nt" and mode & (stat.S_IRGRP | stat.S_IROTH):
            say(f"warning: other users of this machine can read {path}: chmod 600 {path}")
    return Access(
        options.host,
        keys,
        tuple(options.origins or ()),
        page=not options.no_page,
        share=options.share_prefixes,
        allow_hosts=tuple(options.allow_hosts or ()),
    )


def _pool(options: ServeOptions, end: Callable[[str], None], owner: str = "") -> ModelPool:
    """The models. The first one is loaded here, and the weights of the others fetched, if need be.

    `end`: see `ModelPool`; `owner`: whose evaluated prompts are kept on disk, see `Access`.
    """
    from localagent.server.models import ModelPool

    loaders: dict[str, Callable[[], Model]] = {}
    headers: dict[str, Callable[[], Weights]] = {}
    stored: list[str] = []
    for asked in wanted(options):
        name, loader, header, in_store = _prepared(asked, options, owner)
        if name in loaders:
            raise UsageError(f"--model {name} is given twice")
        loaders[name] = loader
        if header is not None:
            headers[name] = header
        if in_store:
            stored.append(name)
    aliases = [alias_of(text) for text in options.aliases or ()]
    alone = len(loaders) == 1 and not options.allow_pull
    idle = options.idle if options.idle is not None or alone else _IDLE
    pool = ModelPool(
        loaders,
        headers=headers,
        stored=stored,
        aliases=aliases,
        idle=idle,
        restart=options.restart,
        stall=_STALL if options.stall_limit is None else options.stall_limit,
        queue=options.max_queue,
        end=end,
    )
    pool.begin_with(next(iter(loaders)))
    return pool


def pulling_for(options: ServeOptions, owner: str) -> Pulling:
    """What fetches and deletes models for clients: those of the catalogue, and of Hugging Face."""
    from localagent.model import locate
    from localagent.server.service import Pulling
    from localagent.store import WeightStore

    def remove(asked: str) -> None:
        found, engine = locate(_fetchable(asked), options.backend)
        assert not isinstance(found, Path)
        WeightStore().remove(found, engine)

    return Pulling(lambda asked, progress: _prepared(_fetchable(asked), options, owner, progress), remove)


def _fetchable(asked: str) -> str:
    """The name by which a model is fetched, or was. Clients name no files of this machine, and no servers.

    Raises UnknownModel.
    """
    from localagent.catalog import HUB, load_catalog

    name = HUB + asked.partition("/")[2] if asked.startswith(("hf.co/", "huggingface.co/")) else asked
    if name.startswith(HUB) or name in load_catalog():
        return name
    raise UnknownModel(
        f"no model {quoted(asked)}: pull one of `localagent models list --all`, or {HUB}owner/name"
    )


def _prepared(
    asked: str, options: ServeOptions, owner: str = "", progress: Progress | None = None
) -> tuple[str, Callable[[], Model], Callable[[], Weights] | None, bool]:
    """See `service.Prepared`. Weights that are not here are fetched, so that loading does not wait for them.
    A model on another server is looked for here, and opened again when it is asked for.
    """
    from localagent.hosts.prefix import SnapshotFolder
    from localagent.model import load_served, load_weights
    from localagent.server.weights import read_weights

    if is_address(asked):
        address = read_address(asked)
        if address.kind == "openai":
            raise UsageError(f"{asked} parses calls itself: give that address to the clients, not to serve")
        opened = partial(load_served, address, options.dialect, options.context)
        return opened().name, opened, None, False
    name, what, path, dialect = fetched(asked, options, progress)
    loader = partial(
        load_weights,
        what,
        backend=options.backend,
        dialect=options.dialect,
        context=options.context,
        threads=options.threads,
        lanes=options.lanes,
        snapshots=not options.no_snapshots and SnapshotFolder(owner=owner),
        offline=True,  # a request does not wait for a download
    )
    header = partial(read_weights, path, dialect, options.context)
    return name, loader, header, isinstance(what, str)


def wanted(options: ServeOptions) -> Sequence[str]:
    """The models that are named, as `load` takes them; the default one, if none is."""
    return [resolve(name) for name in options.models or ()] or [default_model(options.backend)]


def fetched(
    asked: str, options: ServeOptions, progress: Progress | None = None
) -> tuple[str, str | Path, Path, str | None]:
    """The name under which a model is served, what it is loaded by, its weights, which are fetched if need
    be, and its dialect, where that is known without them. `progress`: told in place of the terminal.
    """
    from localagent.model import locate
    from localagent.store import WeightStore

    found, engine = locate(asked, options.backend)
    if isinstance(found, Path):
        return found.name.removesuffix(".gguf"), found, found, options.dialect
    with PullReport(found) as report:
        path = WeightStore().pull(found, engine, progress or report)
    return found.name, found.name, path, options.dialect or found.dialect


def alias_of(text: str) -> tuple[str, str]:
    """The pattern and the name of `A=B`. Raises UsageError."""
    pattern, equals, name = text.partition("=")
    if not (pattern and equals and name):
        raise UsageError(f"--alias is {text!r}: write it like 'claude-*=NAME'")
    return pattern, name


def url_of(host: str, port: int) -> str:
    """Where programs on this machine reach a server that listens there."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{port}"


def welcome(url: str, models: Sequence[str], access: Access, options: ServeOptions) -> None:
    """Say where the server listens, what it serves, and how to connect. `models`: the first one is loaded."""
    others_too = "" if access.loopback else ", for other machines, too"
    say(f"localagent {version() or ''} listens on {url}{others_too}")
    say(f"  models     {models[0]}")
    if others := models[1:]:
        say(f"             when they are asked for: {listed(others)}")
    if not options.no_page:
        say(f"  page       {url}")
    say(f"  OpenAI     base URL {url}/v1")
    say(f"  Anthropic  ANTHROPIC_BASE_URL={url}")
    say(f"  Ollama     OLLAMA_HOST={url}")
    say(f"  programs   localagent connect NAME --url {url}")
    say(f"  API key    {'one of yours' if access.keys else 'any: none is checked'}")
    if options.log_prompts:
        say("  what is asked and answered is logged here")
