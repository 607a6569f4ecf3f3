"""`localagent serve --ray`: the same server, whose models run in replicas of Ray Serve."""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localagent.cli.options import ServeOptions
from localagent.cli.serve import access_for, alias_of, fetched, url_of, wanted, welcome
from localagent.cli.terminal import exactly, say
from localagent.distribution import install_command
from localagent.errors import EngineFailed, ServerMissing, ServerUnreachable, StreamBroken, UsageError
from localagent.remote.address import is_address
from localagent.remote.server import Server
from localagent.wording import listed

if TYPE_CHECKING:
    from localagent.server.access import Access
    from localagent.server.fleet.plan import Plan

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nobody is told what runs here
    "RAY_DEDUP_LOGS": "0",
    "RAY_COLOR_PREFIX": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",  # its tracebacks are in its own logs; what replicas log comes here
    # What listens for it only has to import Ray, but on a machine with much to do that takes longer than the
    # usual 5 s, and after three times Ray gives up.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
}
_RAISED = re.compile(r"^(?:\S*: )?localagent\.errors\.\w+: (.*)$", re.MULTILINE)
_ONLY_WITH_RAY = ("replicas", "address", "gpus", "models_per_replica", "print_config")
_NOT_WITH_RAY = ("idle", "restart", "stall_limit", "allow_pull", "drain")


def refuse_without_ray(options: ServeOptions) -> None:
    """Raise UsageError for an option that means nothing without `--ray`."""
    for name in _ONLY_WITH_RAY:
        if getattr(options, name):
            raise UsageError(f"{_spelled(name)} is for replicas: give --ray, too")


def serve_fleet(options: ServeOptions) -> None:
    """Serve until a signal comes, or print how to. Raises LocalAgentError before anything is served."""
    for name in _NOT_WITH_RAY:
        value = getattr(options, name)
        if value is not None and value is not False:  # 0 is given, too
            raise UsageError(
                f"{_spelled(name)} is not for --ray, which loads and replaces by itself: leave it out"
            )
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)  # before Ray is imported; what it starts has the same
    try:
        import ray  # noqa: F401
        from ray import serve  # noqa: F401
    except ImportError as error:
        raise ServerMissing(f"Ray Serve is not installed: {install_command('ray')} [{error}]") from error
    access = access_for(options)
    plan = _plan(options, access)
    if options.print_config:
        exactly(config(plan, options.port))
        return
    port = _free_port(options)
    least, most = plan.replicas
    stop = threading.Event()
    with _running(plan, options, port):
        for number in (signal.SIGINT, signal.SIGTERM):  # after Ray, which has handlers of its own
            signal.signal(number, lambda *_: stop.set())
        count = f"{least} to {most} replicas" if least < most else f"{most} replica{'s' * (most > 1)}"
        first, *others = plan.models
        welcome(url_of(options.host, port), [f"{first} ({count})", *others], access, options)
        stop.wait()
        say("stopping")
    say("stopped")


@contextmanager
def _running(plan: Plan, options: ServeOptions, port: int) -> Iterator[None]:
    """Ray, if it does not run yet, and the application on it."""
    from ray import serve, shutdown
    from ray.exceptions import RayError

    from localagent.server.fleet.deployment import NAME, QUIET, application

    address = options.address
    _start_ray(plan, address)
    if address is not None and NAME in serve.status().applications:
        shutdown()
        raise UsageError(
            f"the cluster at {address} serves {NAME} already: end that first, with `serve shutdown`"
        )
    try:
        try:
            serve.start(
                proxy_location="HeadOnly" if address is None else "EveryNode",
                http_options={"host": options.host, "port": port},
                logging_config=QUIET,
            )
            serve.run(application(plan), name=NAME, route_prefix="/")
            _require_answer(url_of(options.host, port), address or "")
        except (RuntimeError, RayError) as error:
            why = _why() or _line(str(error))
            raise EngineFailed(f"the replicas could not be started: {why}") from error
        yield
    finally:
        with suppress(Exception):  # there may be none
            serve.get_app_handle(NAME).stop.remote().result(timeout_s=5)
        if address is None:
            serve.shutdown()  # type: ignore[no-untyped-call]
        else:
            serve.delete(NAME)
        shutdown()


def _start_ray(plan: Plan, address: str | None) -> None:
    """Join the cluster, or start Ray here. Raises UsageError."""
    import ray

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    here: dict[str, Any] = {"address": address}
    if address is None:  # and not the one of which Ray has left a note
        # A replica counts for some cores even where there are fewer: nobody else counts on them here.
        needed = plan.cpus * plan.replicas[1]
        here = {
            "address": "local",
            "num_cpus": max(os.cpu_count() or 1, int(needed) + 1),
            "include_dashboard": False,
        }
    else:
        _require_cluster(address)
    try:
        ray.init(logging_level=logging.ERROR, log_to_driver=True, **here)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"to the cluster at {address} (if it asks for a token: RAY_AUTH_MODE=token)"
        where = "here" if address is None else where
        raise UsageError(f"Ray does not start {where}: {_line(str(error))}") from error


def _require_answer(url: str, address: str) -> None:
    """Ray takes no other port while it serves something already, and only logs that."""
    if "://" in address:  # a cluster of which this machine is no part
        return
    try:
        with Server.at(url, silence=30).send("GET", "/health"):
            return
    except (ServerUnreachable, StreamBroken) as error:
        raise EngineFailed(
            f"Ray Serve does not listen on {url}: where it runs already, give the --host and --port that "
            "it was started with"
        ) from error


def _require_cluster(address: str) -> None:
    """Ray tries for minutes to reach a cluster. Raises UsageError where nobody listens at `host:port`."""
    say(f"looking for the cluster of Ray at {address}")
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not (colon and port.isdecimal()):
        return  # a name such as auto, which Ray resolves
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"no cluster of Ray at {address}: {getattr(error, 'strerror', None) or error}; start one with "
            "`ray start --head`, which says its address"
        ) from error


def config(plan: Plan, port: int) -> str:
    """A file for `serve deploy`: YAML, with what is not as usual."""
    from ruamel.yaml import YAML

    from localagent.server.fleet.deployment import IMPORT_PATH, NAME, QUIET

    told = {
        "proxy_location": "EveryNode",
        "http_options": {"host": plan.host, "port": port},
        "logging_config": QUIET.model_dump(mode="json", include={"log_level", "enable_access_log"}),
        "applications": [
            {"name": NAME, "route_prefix": "/", "import_path": IMPORT_PATH, "args": plan.told()}
        ],
    }
    text = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(told, text)
    return text.getvalue()


def _plan(options: ServeOptions, access: Access) -> Plan:
    from localagent.server.fleet.plan import Plan

    models: dict[str, str] = {}
    for asked in wanted(options):
        if is_address(asked):
            raise UsageError(f"{asked} runs on a server already, and not in replicas: serve it without --ray")
        name, what, _, _ = fetched(asked, options)  # here, so that a wrong name does not come from a replica
        if name in models:
            raise UsageError(f"--model {name} is given twice")
        models[name] = str(what.absolute()) if isinstance(what, Path) else what
    aliases = tuple(map(alias_of, options.aliases or ()))
    for pattern, name in aliases:
        if name not in models:
            raise UsageError(f"--alias {pattern}={name}: {name!r} is not served; served are {listed(models)}")
    return Plan(
        models=models,
        replicas=replicas_of(options.replicas),
        models_per_replica=options.models_per_replica,
        lanes=options.lanes,
        gpus=options.gpus or 0,
        backend=options.backend,
        dialect=options.dialect,
        context=options.context,
        threads=options.threads,
        host=options.host,
        needs_key=bool(access.keys),
        api_key_file=options.api_key_file and options.api_key_file.expanduser().absolute(),
        allow_hosts=tuple(options.allow_hosts or ()),
        origins=tuple(options.origins or ()),
        aliases=aliases,
        page=not options.no_page,
        share_prefixes=options.share_prefixes,
        max_queue=options.max_queue,
        deadline=options.deadline,
        metrics=options.metrics,
        buffer_tool_calls=options.buffer_tool_calls,
        log_prompts=options.log_prompts,
    )


def replicas_of(text: str | None) -> tuple[int, int]:
    """The fewest and the most of `MIN:MAX`, or of one number. Raises UsageError."""
    least, colon, most = (text or "1").partition(":")
    try:
        found = int(least), int(most if colon else least)
    except ValueError:
        found = (1, 0)
    if not 0 <= found[0] <= found[1] or found[1] == 0:
        raise UsageError(f"--replicas is {text!r}: write it like 2, or 1:4 for as many as there is work for")
    return found


def _free_port(options: ServeOptions) -> int:
    """The port, which is free. Raises UsageError where it is not: Ray would wait for it."""
    from localagent.server.listening import bind

    if options.address is not None and options.port:
        return options.port  # of each machine of the cluster, and perhaps of an application before this
    with bind(options.host, options.port) as listening:
        return int(listening.getsockname()[1])


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _why() -> str:
    """What a replica raised when it was made; "" where none did."""
    from ray import serve

    from localagent.server.fleet.deployment import NAME

    with suppress(Exception):  # there may be no application, or nobody to ask
        found = [
            reason
            for deployment in serve.status().applications[NAME].deployments.values()
            for reason in _RAISED.findall(deployment.message)
        ]
        return str(found[-1])
    return ""


def _line(text: str) -> str:
    """The last line of what Ray says: before it come tracebacks."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "Ray does not say why"
